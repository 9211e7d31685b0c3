"""The price of caution, and limits on changes in tasks, against episodes worked out by hand."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin.envs import treatment
from fat2thin.envs.rollouts import describe
from fat2thin.evaluation.caution import ACTS, FALLBACK, REFERS, caution_table, evaluate_caution
from fat2thin.evaluation.gymnasium_tasks import GymnasiumJudge
from fat2thin.evaluation.returns import TreatmentEvaluator
from fat2thin.policies.decision import CONFLICT, FORBIDDEN, OUTSIDE, with_referral
from fat2thin.policies.families import Deterministic, Head
from fat2thin.policies.limits import Limits
from fat2thin.policies.policy import Centred, Policy

EPISODES = 20


class FirstColumn(eqx.Module):
    """A log that holds the states whose first number is below a threshold."""

    threshold: jax.Array

    def distance(self, observation, xp=np):
        return xp.asarray(observation)[..., 0] / self.threshold

    def practice(self, observation, xp=np):
        return xp.zeros_like(xp.asarray(observation)[..., :2]) - 1.0


class Zigzag(eqx.Module):
    """Acts at 4 where the first observation is even, and at -2 where it is odd."""

    def __call__(self, observation):
        centre = jnp.repeat(jnp.cos(jnp.pi * observation[..., :1]), 2, axis=-1)
        return Head(centre, jnp.zeros_like(centre))


def zigzag(threshold=3.5):
    policy = Policy(Zigzag(), jnp.full(2, -2.0), jnp.full(2, 4.0), Deterministic())
    return with_referral(policy, FirstColumn(jnp.float32(threshold)))


@pytest.fixture(scope="module")
def judge():
    made = GymnasiumJudge(describe("rollout_tasks:Countdown-v0"), workers=0)
    yield made
    made.close()


def lengths_of(judge, key):
    """Return the lengths of the episodes, which start at a number and count down."""
    constant = dataclasses.replace(zigzag(), network=Zigzag(), low=jnp.ones(2), high=jnp.ones(2))
    found = judge.judge(
        {"one": jax.tree.map(lambda leaf: leaf[None], constant)}, key[None], EPISODES
    )
    return np.round(np.asarray(found["one_centre"].returns)[0]).astype(int)


def dose(left):
    return 4.0 if left % 2 == 0 else -2.0


def test_referred_states_get_the_fallback_and_are_counted(judge):
    key = jax.random.key(5)
    lengths = lengths_of(judge, key)
    assert {2, 6} <= {*lengths}
    found = evaluate_caution(zigzag(), judge, [1.0, 1.0], key, EPISODES)
    for name, doses in (
        (ACTS, dose), (REFERS, lambda left: dose(left) if left <= 3 else 1.0),
        (FALLBACK, lambda left: 1.0),
    ):  # fmt: skip
        expected = [sum(map(doses, range(1, length + 1))) for length in lengths]
        np.testing.assert_allclose(found[f"{name}, sampled"].returns, expected, atol=1e-5)
    share = sum(max(0, length - 3) for length in lengths) / sum(lengths)
    measures = found[f"{REFERS}, centre"].measures
    assert measures["referred"] == measures[OUTSIDE] == pytest.approx(share)
    practice = evaluate_caution(zigzag(), judge, "practice", key, EPISODES)
    np.testing.assert_allclose(practice[f"{FALLBACK}, sampled"].returns, -lengths, atol=1e-5)
    table = caution_table("price", found, "1")
    price = found[f"{ACTS}, centre"].returns - found[f"{REFERS}, centre"].returns
    row = table[f"{REFERS}, centre"]
    assert row["price"] == pytest.approx(price.mean(), abs=1e-5)
    assert row["from"] <= row["price"] <= row["to"] and row["referred"] == pytest.approx(share)


def test_limits_on_changes_hold_in_gymnasium_tasks(judge):
    """The doses swing between 4 and -2, and each is at most 0.5 from the one before."""
    columns = ["left", "seed"], ["a", "b"], [-2.0, -2.0], [4.0, 4.0]
    limits = Limits.parse({"rate": "abs(a - last_a) <= 0.5", "b": "b <= 1"}, *columns)
    policy = dataclasses.replace(zigzag(), limits=limits)
    key = jax.random.key(5)
    found = judge.judge({"one": jax.tree.map(lambda leaf: leaf[None], policy)}, key[None], EPISODES)
    for length, total in zip(lengths_of(judge, key), found["one_centre"].returns[0], strict=True):
        doses = [dose(length)]
        for left in range(length - 1, 0, -1):
            doses.append(float(np.clip(dose(left), doses[-1] - 0.5, doses[-1] + 0.5)))
        assert total == pytest.approx(sum(doses), abs=1e-4)


def test_referrals_in_the_treatment_task_have_their_reasons():
    task, key = treatment.by_name("treatment/quadratic"), jax.random.key(0)
    columns = [f"s{place}" for place in range(8)], ["dose"], [-1.0], [1.0]
    rules = {"stop": "no action when s1 > 1", "a": "dose <= 0 when s2 > 1", "b": "dose >= 0.5"}

    def network(observation):
        return Head(0.5 * observation[..., 3:4], jnp.zeros_like(observation[..., :1]))

    class Network(eqx.Module):
        def __call__(self, observation):
            return network(observation)

    policy = Policy(
        Network(), -jnp.ones(1), jnp.ones(1), Deterministic(), limits=Limits.parse(rules, *columns)
    )
    policy = with_referral(policy, FirstColumn(jnp.float32(0.8)))
    found = evaluate_caution(policy, TreatmentEvaluator(task), 0.25, key, EPISODES)

    def act(key, seen):
        refers = (seen[0] > 0.8) | (seen[1] > 1) | (seen[2] > 1)
        return jnp.where(refers, 0.25, jnp.clip(0.5 * seen[3], 0.5, 1.0))[None]

    plain = treatment.trajectories(key, treatment.from_observations(act), task, EPISODES)
    expected = jnp.sum(plain.reward, axis=-1)
    np.testing.assert_allclose(found[f"{REFERS}, centre"].returns, expected, rtol=1e-4, atol=1e-4)
    seen, measures = np.asarray(plain.observation), found[f"{REFERS}, centre"].measures
    for reason, mask in {
        OUTSIDE: seen[..., 0] > 0.8, FORBIDDEN: seen[..., 1] > 1, CONFLICT: seen[..., 2] > 1
    }.items():  # fmt: skip
        assert float(measures[reason]) == pytest.approx(mask.mean(), abs=1e-6)
    assert Centred(policy).needs_last_action is False
