"""Evaluation on Gymnasium tasks, against episodes that can be worked out by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from fat2thin.data import normalised_score
from fat2thin.envs.rollouts import describe
from fat2thin.evaluation import gymnasium_tasks
from fat2thin.evaluation.gymnasium_tasks import GymnasiumJudge, judge_for
from fat2thin.evaluation.returns import TaskError, evaluator
from fat2thin.policies.families import Head, Squashed
from fat2thin.policies.policy import Policy

COUNTDOWN = "rollout_tasks:Countdown-v0"
EPISODES = 7


class Constant(eqx.Module):
    """A network with a constant centre and scale."""

    centre: Array
    log_scale: Array

    def __call__(self, observation):
        shape = (*observation.shape[:-1], 2)
        return Head(jnp.broadcast_to(self.centre, shape), jnp.broadcast_to(self.log_scale, shape))


def policies(centres, log_scale):
    """Return squashed policies, one per job, centred at `centre` in the box from -2 to 4."""

    def one(centre):
        network = Constant(jnp.arctanh((centre - 1.0) / 3.0)[None], jnp.full(1, log_scale))
        return Policy(network, jnp.full(2, -2.0), jnp.full(2, 4.0), Squashed())

    return jax.vmap(one)(jnp.asarray(centres))


def keys(seeds):
    return jax.vmap(jax.random.key)(jnp.asarray(seeds))


@pytest.fixture(scope="module")
def judge():
    made = GymnasiumJudge(describe(COUNTDOWN), workers=0)
    yield made
    made.close()


def test_returns_are_the_action_times_the_episode_length(judge):
    """The reward is the first action coordinate, so a constant policy earns it per step."""
    found = judge.judge({"actor": policies([0.5, 3.0], -20.0)}, keys([1, 2]), EPISODES)
    assert set(found) == {"actor_sampled", "actor_centre"}
    for evaluation in found.values():
        assert evaluation.returns.shape == (2, EPISODES)
        for job, centre in enumerate([0.5, 3.0]):
            lengths = np.asarray(evaluation.returns[job]) / centre
            np.testing.assert_allclose(lengths, np.round(lengths), atol=1e-3)
            assert set(np.round(lengths)) <= {2, 3, 4, 5, 6}
            np.testing.assert_allclose(
                evaluation.measures["length"][job], lengths.mean(), rtol=1e-3
            )
    assert judge.steps > 0 and judge.seconds > 0


def test_episodes_depend_only_on_the_key(judge, monkeypatch):
    def evaluated(centres, seeds, episodes=EPISODES):
        found = judge.judge({"actor": policies(centres, 0.0)}, keys(seeds), episodes)
        return {name: np.asarray(one.returns) for name, one in found.items()}

    pair, alone = evaluated([2.0, 2.0], [1, 2]), evaluated([2.0], [2])
    for name in pair:
        np.testing.assert_allclose(pair[name][1], alone[name][0], rtol=1e-6)
        assert not np.allclose(pair[name][0], pair[name][1])
    fewer = evaluated([2.0], [2], episodes=3)
    np.testing.assert_allclose(fewer["actor_sampled"], alone["actor_sampled"][:, :3], rtol=1e-6)
    # The episodes are the same if they run in rounds of two or of one.
    for slots in (4, 1):
        monkeypatch.setattr(gymnasium_tasks, "MOST_SLOTS", slots)
        for name, returns in evaluated([2.0], [2]).items():
            np.testing.assert_allclose(returns, alone[name], rtol=1e-6)


def test_sampled_actions_follow_the_policys_distribution(judge):
    """The mean reward of many sampled steps is the mean action, found by quadrature."""
    scale = 0.7
    found = judge.judge({"actor": policies([2.0], np.log(scale))}, keys([5]), 400)
    steps = float(found["actor_sampled"].measures["length"][0]) * 400
    mean = float(np.sum(found["actor_sampled"].returns)) / steps
    normal = np.arctanh(1.0 / 3.0) + scale * np.polynomial.hermite_e.hermegauss(60)[0]
    weights = np.polynomial.hermite_e.hermegauss(60)[1] / np.sqrt(2.0 * np.pi)
    expected = float(np.sum(weights * (1.0 + 3.0 * np.tanh(normal))))
    deviation = np.sqrt(np.sum(weights * (1.0 + 3.0 * np.tanh(normal) - expected) ** 2) / steps)
    assert abs(mean - expected) < 4.5 * deviation
    assert expected < 2.0 - 4.5 * deviation


def test_scores_are_normalised_like_d4rls():
    judge = GymnasiumJudge(
        describe(COUNTDOWN), gymnasium_tasks.d4rl.REFERENCES["hopper"], workers=0
    )
    found = judge.judge({"actor": policies([3.0], -20.0)}, keys([1]), EPISODES)["actor_centre"]
    expected = normalised_score("d4rl/hopper-medium-v2", np.asarray(found.returns)).mean(axis=-1)
    np.testing.assert_allclose(found.measures["score"], expected, rtol=1e-6)
    judge.close()


def test_references_are_uniform_actions_and_d4rls_returns(monkeypatch):
    scale = gymnasium_tasks.d4rl.REFERENCES["hopper"]
    found = GymnasiumJudge(describe(COUNTDOWN), scale, workers=0).references()
    # A uniform action from -2 to 4 has mean 1, and an episode has 4 steps on average.
    assert abs(found["uniform"].mean - 4.0) < 4.5 * found["uniform"].standard_error
    assert found["d4rl expert"].mean == 3234.3
    assert found["d4rl expert"].measures == {"score": 100.0}
    assert set(GymnasiumJudge(describe(COUNTDOWN), workers=0).references()) == {"uniform"}


def test_each_data_set_or_task_gets_its_judge(monkeypatch):
    monkeypatch.setitem(gymnasium_tasks.ROBOTS, "hopper", COUNTDOWN)
    own = judge_for("regenerated/hopper-medium")
    assert own.task.name == COUNTDOWN and own.scale.expert == 3234.3
    for name in ("d4rl/hopper-medium-v2", "regenerated/hopper-medium@9"):
        assert evaluator(name) == own
    assert evaluator("minari/mujoco/hopper/simple-v0") == own
    assert evaluator("minari/mujoco/pusher/medium-v0") is None
    other = judge_for("regenerated/hopper-medium", "Pendulum-v1")
    assert other.task.name == "Pendulum-v1" and other.scale is None
    assert judge_for("own.csv", COUNTDOWN).scale is None
    assert judge_for("d4rl/antmaze-umaze-v2") is None
    assert evaluator("d4rl/hopper-medium-v2", "none") is None
    with pytest.raises(TaskError, match=r'NoSuch-v0.*task "none"'):
        evaluator("own.csv", "NoSuch-v0")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((3, (-2.0, -2.0), (4.0, 4.0)), "has observations of size 2, the log has 3"),
        ((2, (-2.0,), (4.0,)), "has actions of size 2, the log has 1"),
        ((2, (-1.0, -1.0), (1.0, 1.0)), "the units differ"),
    ],
)
def test_a_log_of_another_task_is_refused(judge, sizes, message):
    judge.check(2, (-2.0, -2.0), (4.0, 4.0))
    with pytest.raises(TaskError, match=message):
        judge.check(*sizes)
