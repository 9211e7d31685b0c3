"""Runs whose policies are evaluated on a Gymnasium task, on the host, in parallel."""

import dataclasses
import re

import gymnasium
import numpy as np
import pytest

import fat2thin
from fat2thin.cli.main import main
from fat2thin.data import Reader, readers
from fat2thin.envs.rollouts import Environments
from fat2thin.evaluation.gymnasium_tasks import GymnasiumJudge
from fat2thin.evaluation.returns import TaskError, evaluator
from fat2thin.report.run_figures import learning_curves, save_run_figures
from fat2thin.training import execute_together, make_spec
from fat2thin.training.progress import Silent

COUNTDOWN = "rollout_tasks:Countdown-v0"
OPTIONS = {
    "steps": 6,
    "evaluate_every": 2,
    "log_every": 2,
    "episodes": 4,
    "batch_size": 8,
    "seeds": 2,
    "settings_from": "default",
}


@pytest.fixture(autouse=True)
def world_of_two(tiny_world, monkeypatch):
    """ "bare/" logs whose observations are as wide as the task's."""

    def read(name, seed):
        dataset = tiny_world.dataset(name)
        narrow = {f: getattr(dataset, f)[:, :2] for f in ("observation", "next_observation")}
        return dataclasses.replace(dataset, **narrow)

    monkeypatch.setitem(readers._READERS, "bare/", Reader("bare/", read))


class Seen(Silent):
    def __init__(self):
        self.steps = []

    def evaluated(self, step, scores):
        self.steps.append(step)


def test_a_run_is_evaluated_on_the_task_it_names(tmp_path):
    seen = Seen()
    run = fat2thin.train(
        "stand_in", "bare/log", task=COUNTDOWN, out=tmp_path, progress=seen, **OPTIONS
    )
    assert run.evaluations.steps == (0, 2, 4, 6) == tuple(seen.steps)
    for name in ("actor_sampled", "actor_centre", "proposal_sampled", "proposal_centre"):
        assert run.evaluations[name].returns.shape == (4, 2, 4)
    lengths = run.evaluations["actor_centre"].measures["length"]
    np.testing.assert_array_equal(lengths, run.evaluations["proposal_centre"].measures["length"])
    assert run.about["rollouts"]["steps"] == 4 * round(float(lengths.sum()) * 4)
    assert run.about["rollouts"]["steps_a_second"] > 0
    loaded = fat2thin.load(tmp_path)
    np.testing.assert_array_equal(
        loaded.evaluations["actor_sampled"].returns, run.evaluations["actor_sampled"].returns
    )
    assert {"uniform"} <= set(run.references)


def test_evaluations_use_the_policy_of_their_step(tmp_path):
    """An evaluation on the host uses the policy of its step, not a later one."""
    long = fat2thin.train("stand_in", "bare/log", task=COUNTDOWN, **OPTIONS)
    short = fat2thin.train("stand_in", "bare/log", task=COUNTDOWN, **OPTIONS | {"steps": 2})
    np.testing.assert_allclose(
        long.evaluations["actor_centre"].returns[1], short.evaluations["actor_centre"].returns[1],
        rtol=1e-5,
    )  # fmt: skip
    assert not np.allclose(*long.evaluations["actor_centre"].returns[[1, 3]])


def test_fresh_evaluations_on_the_host_depend_on_the_draw():
    run = fat2thin.train("stand_in", "bare/log", task=COUNTDOWN, **OPTIONS)
    first, again, other = run.evaluate(5), run.evaluate(5), run.evaluate(5, draw=1)
    assert first["actor_sampled"] == again["actor_sampled"]
    assert first["actor_sampled"] != other["actor_sampled"]


def test_runs_on_one_task_are_evaluated_together(monkeypatch):
    asked = []
    judge = GymnasiumJudge.judge

    def watched(self, policies, keys, episodes):
        asked.append(keys.shape)
        return judge(self, policies, keys, episodes)

    monkeypatch.setattr(GymnasiumJudge, "judge", watched)
    specs = [
        make_spec("stand_in", f"bare/{name}", task=COUNTDOWN, settings={"noise": noise}, **OPTIONS)
        for name, noise in (("a", 0.1), ("b", 0.2))
    ]
    # A run before them that is not evaluated, with other seeds.
    seeds = {**OPTIONS, "seeds": [7, 8, 9]}
    unevaluated = make_spec("stand_in", "bare/c", task="none", settings={"noise": 0.3}, **seeds)
    *_, last = execute_together([unevaluated, *specs])
    assert asked == [(4,)] * 4
    alone = fat2thin.train("stand_in", "bare/b", task=COUNTDOWN, noise=0.2, **OPTIONS)
    for name, evaluation in alone.evaluations.policies.items():
        np.testing.assert_allclose(
            last.evaluations[name].returns, evaluation.returns, rtol=1e-4, err_msg=name
        )
        measured = last.evaluations[name].measures["length"]
        np.testing.assert_array_equal(measured, evaluation.measures["length"])


def test_a_task_that_does_not_fit_is_refused_before_training(tmp_path):
    with pytest.raises(TaskError, match="has observations of size 3, the log has 2"):
        fat2thin.train("stand_in", "bare/log", task="Pendulum-v1", out=tmp_path / "x", **OPTIONS)
    assert not (tmp_path / "x").exists()


def test_an_error_of_the_task_ends_the_run(capfd, monkeypatch):
    def judge(self, policies, keys, episodes):
        raise RuntimeError("the pump is empty")

    monkeypatch.setattr(GymnasiumJudge, "judge", judge)
    with pytest.raises(RuntimeError, match="the pump is empty"):
        fat2thin.train("stand_in", "bare/log", task=COUNTDOWN, **OPTIONS)


def test_learning_curves_show_evaluations_on_the_host(tmp_path):
    run = fat2thin.train("stand_in", "bare/log", task=COUNTDOWN, **OPTIONS)
    (drawn,) = save_run_figures(run, tmp_path)
    assert drawn.name == "learning_curves.png" and drawn.exists()
    (axes, _) = learning_curves(run).axes
    _, returns = axes.lines[0].get_data()
    np.testing.assert_allclose(returns, run.evaluations["actor_sampled"].returns.mean(axis=(1, 2)))
    names = [text.get_text() for text in learning_curves(run).axes[-1].texts]
    assert [name.split()[0] for name in names] == ["uniform"]
    blind = fat2thin.train("stand_in", "bare/log", task="none", **OPTIONS)
    with pytest.raises(ValueError, match=r"a log without a task.*fat2thin validate"):
        save_run_figures(blind, tmp_path / "none")


def test_the_command_line_takes_task_and_scales(tmp_path, capsys):
    options = ["--steps", "4", "--evaluate-every", "2", "--episodes", "2", "--batch-size", "8"]
    main(
        ["train", "stand_in", "bare/log", *options, "--task", COUNTDOWN, "--standardise",
         "--reward-scale", "return_range", "--out", str(tmp_path / "run")]
    )  # fmt: skip
    printed = capsys.readouterr().out
    assert re.search(r"evaluations: [\d,]+ steps of the task, [\d,]+ per second", printed)
    spec = fat2thin.load(tmp_path / "run").spec
    assert (spec.task, spec.standardise, spec.reward_scale) == (COUNTDOWN, True, "return_range")
    with pytest.raises(SystemExit, match="fat2thin: Gymnasium cannot make 'NoSuch-v0'"):
        main(["train", "stand_in", "bare/log", *options, "--task", "NoSuch-v0"])
    with pytest.raises(SystemExit, match="fat2thin: reward_scale must be positive"):
        main(["train", "stand_in", "bare/log", *options, "--reward-scale", "0"])


def test_rollouts_of_a_robot_equal_those_of_gymnasium():
    pytest.importorskip("mujoco")
    judge = evaluator("regenerated/hopper-medium")
    judge.check(11, (-1.0,) * 3, (1.0,) * 3)
    with Environments(judge.task, 2, workers=0) as environments:
        found = environments.play(
            lambda observation, episode, step: np.zeros((2, 3)), np.asarray([[1], [2]])
        )
    expected = []
    for seed in (1, 2):
        robot, total, over = gymnasium.make("Hopper-v5"), 0.0, False
        robot.reset(seed=seed)
        while not over:
            _, reward, ended, cut, _ = robot.step(np.zeros(3, np.float32))
            total, over = total + reward, ended or cut
        expected.append([total])
    np.testing.assert_allclose(found.returns, expected, rtol=1e-6)
    assert found.terminated.all()
