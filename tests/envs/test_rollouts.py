"""Rollouts of Gymnasium tasks, compared with episodes by hand and a plain Gymnasium loop."""

import dataclasses
import gc

import gymnasium
import numpy as np
import pytest

from fat2thin.envs import TaskFailed, rollouts
from fat2thin.envs.rollouts import Environments, describe

COUNTDOWN = "rollout_tasks:Countdown-v0"
SEEDS = np.asarray([[4, 10], [1, 3], [6, 0]])
"""Episodes of seed % 5 + 2 steps: 6 and 2, 3 and 5, 3 and 2; those of odd seeds are cut."""
LENGTHS = np.asarray([[6, 2], [3, 5], [3, 2]])


def first_is_observation(observation, episode, step):
    """Return actions of the remaining count, clipped to the box, and the step."""
    return np.stack([np.minimum(observation[:, 0], 4.0), step], axis=1)


def returns_by_hand(length):
    return sum(min(left, 4) for left in range(1, length + 1))


@pytest.fixture(scope="module")
def countdown():
    return describe(COUNTDOWN)


def test_the_description_of_a_task(countdown):
    assert countdown.observation_size == 2
    assert countdown.action_low == (-2.0, -2.0) and countdown.action_high == (4.0, 4.0)
    assert countdown.time_limit is None
    assert describe("Pendulum-v1").time_limit == 200


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_results_agree_with_those_by_hand(countdown, workers):
    with Environments(countdown, 3, workers) as environments:
        for _ in range(2):
            found = environments.play(first_is_observation, SEEDS)
            np.testing.assert_array_equal(found.lengths, LENGTHS)
            by_hand = np.vectorize(returns_by_hand)(LENGTHS)
            np.testing.assert_allclose(found.returns, by_hand)
            np.testing.assert_array_equal(found.terminated, SEEDS % 2 == 0)
            assert found.steps == LENGTHS.sum()
            assert found.steps_a_second > 0


def test_output_of_a_task_is_not_taken_as_an_answer(capfd):
    with Environments(describe(COUNTDOWN, noisy=True), 3, 2) as environments:
        found = environments.play(first_is_observation, SEEDS)
    np.testing.assert_array_equal(found.lengths, LENGTHS)
    assert "even from C" in capfd.readouterr().err


def test_every_step_is_watched_once(countdown):
    seen = []
    with Environments(countdown, 3, 0) as environments:
        environments.play(first_is_observation, SEEDS, seen.append)
    rows = {
        (int(slot), int(episode), float(observation[0])): (action, reward, following, ended, cut)
        for steps in seen
        for slot, episode, observation, action, reward, following, ended, cut in zip(
            *steps, strict=True
        )
    }
    assert len(rows) == LENGTHS.sum()
    for (slot, episode, left), (action, reward, following, ended, cut) in rows.items():
        seed = SEEDS[slot, episode]
        assert reward == action[0] == min(left, 4)
        assert action[1] == seed % 5 + 2 - left
        np.testing.assert_array_equal(following, [left - 1, seed])
        assert ended == (left == 1 and seed % 2 == 0)
        assert cut == (left == 1 and seed % 2 == 1)


def test_a_plain_gymnasium_loop_agrees():
    """Pendulum under a fixed rule, step by step with Gymnasium alone."""
    seeds, limit = np.asarray([[3], [5]]), 2.0

    def rule(observation):
        return np.clip(-3.0 * observation[..., 1:2] - observation[..., 2:3], -limit, limit)

    expected = []
    for (seed,) in seeds:
        environment, total, over = gymnasium.make("Pendulum-v1"), 0.0, False
        observation, _ = environment.reset(seed=int(seed))
        while not over:
            observation, reward, ended, cut, _ = environment.step(rule(observation))
            total, over = total + reward, ended or cut
        expected.append([total])
    with Environments(describe("Pendulum-v1"), 2, 0) as environments:
        found = environments.play(lambda observation, episode, step: rule(observation), seeds)
    np.testing.assert_allclose(found.returns, expected, rtol=1e-4)
    np.testing.assert_array_equal(found.lengths, 200)
    assert not found.terminated.any()


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("rollout_tasks:Choice-v0", "action space must be a box of numbers, but is Discrete"),
        ("rollout_tasks:Unbounded-v0", "action box must be finite"),
        ("NoSuchTask-v0", "Gymnasium cannot make 'NoSuchTask-v0'.*package.module:Name-v0"),
        ("nosuchmodule:Task-v0", "Gymnasium cannot make 'nosuchmodule:Task-v0'"),
    ],
)
def test_unsupported_tasks_are_refused(task, message):
    with pytest.raises(ValueError, match=message):
        describe(task)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failing_environment_is_reported(workers, capfd):
    task = describe(COUNTDOWN, fails_at=2)
    with (
        Environments(task, 3, workers) as environments,
        pytest.raises(TaskFailed, match=r"Countdown-v0.*the pump is empty"),
    ):
        environments.play(first_is_observation, SEEDS)
    assert workers == 0 or "Traceback" in capfd.readouterr().err
    with pytest.raises(TaskFailed, match="these environments are closed"):
        environments.play(first_is_observation, SEEDS)


def test_an_environment_that_cannot_start_is_reported(capfd):
    task = dataclasses.replace(describe(COUNTDOWN), options={"fails_to_start": True})
    with pytest.raises(TaskFailed, match=r"no pump at all.*needs workers=0"):
        Environments(task, 3, 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_closed_environments_cannot_play(countdown, workers):
    environments = Environments(countdown, 3, workers)
    environments.close()
    environments.close()
    with pytest.raises(TaskFailed, match="these environments are closed"):
        environments.play(first_is_observation, SEEDS)


def test_a_killed_worker_is_reported_and_the_others_end(countdown):
    environments = Environments(countdown, 3, 3)
    workers = list(environments._workers)
    workers[1].kill()
    workers[1].wait()
    with pytest.raises(TaskFailed, match="ended without a message"):
        environments.play(first_is_observation, SEEDS)
    assert all(worker.poll() is not None for worker in workers)


def test_an_interrupt_ends_all_workers(countdown):
    def interrupted(observation, episode, step):
        raise KeyboardInterrupt

    environments = Environments(countdown, 3, 2)
    workers = list(environments._workers)
    with pytest.raises(KeyboardInterrupt), environments:
        environments.play(interrupted, SEEDS)
    assert all(worker.poll() is not None for worker in workers)


def test_workers_end_with_their_driver(countdown):
    environments = Environments(countdown, 3, 2)
    workers = list(environments._workers)
    del environments
    gc.collect()
    assert all(worker.poll() is not None for worker in workers)


def test_modules_of_the_current_folder_are_not_imported(countdown, tmp_path, monkeypatch):
    (tmp_path / "mmap.py").write_text("raise RuntimeError('a stranger is in')")
    monkeypatch.chdir(tmp_path)
    with Environments(countdown, 3, 1) as environments:
        np.testing.assert_array_equal(
            environments.play(first_is_observation, SEEDS).lengths, LENGTHS
        )


def test_actions_are_clipped_in_the_precision_of_the_task():
    with Environments(describe("rollout_tasks:Precise-v0"), 1, 0) as environments:
        found = environments.play(
            lambda observation, episode, step: np.float32([[0.1]]), np.asarray([[0]])
        )
    assert found.returns[0, 0] == 0.1 and float(np.float32(0.1)) > 0.1


def test_an_endless_episode_is_an_error(monkeypatch):
    monkeypatch.setattr(rollouts, "LONGEST_EPISODE", 20)
    with (
        Environments(describe(COUNTDOWN, never_ends=True), 3, 0) as environments,
        pytest.raises(ValueError, match="20 steps and does not end"),
    ):
        environments.play(first_is_observation, SEEDS)


def test_seeds_of_the_wrong_shape_are_refused(countdown):
    with pytest.raises(ValueError, match="slots must be at least 1"):
        Environments(countdown, 0)
    with Environments(countdown, 3, 0) as environments:
        for seeds in (SEEDS[:2], SEEDS[:, :0], SEEDS[:, 0]):
            with pytest.raises(ValueError, match=r"seeds must have shape \(3, episodes\)"):
                environments.play(first_is_observation, seeds)
