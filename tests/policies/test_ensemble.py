"""One policy from several seeds, and decisions with referrals."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from fat2thin.columns import Column
from fat2thin.policies.decision import (
    CONFLICT,
    DISAGREE,
    FORBIDDEN,
    INVALID,
    OUTSIDE,
    PRACTICE,
    Cautious,
    Thresholds,
    fallback_of,
    with_referral,
)
from fat2thin.policies.ensemble import ensemble_of
from fat2thin.policies.families import Sparse, Squashed
from fat2thin.policies.networks import PolicyNetwork
from fat2thin.policies.policy import Centred, Policy, unit_policy
from fat2thin.runs import files

SEEN = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
LOW, HIGH = (0.0, -2.0), (10.0, 2.0)


def members(family=Sparse(), count=3, bounds=(0.05, 0.6)):  # noqa: B008
    def one(key):
        network = PolicyNetwork(key, 3, action_size=2, hidden=(4,))
        return unit_policy(network, family, bounds)

    made = [one(key).in_box(LOW, HIGH) for key in jax.random.split(jax.random.key(1), count)]
    return made, jax.tree.map(lambda *leaves: jnp.stack(leaves), *made)


def test_consensus_is_the_intersection_of_the_members_bands():
    made, stacked = members()
    policy = ensemble_of(stacked, "consensus")
    bands = np.asarray([one.support(SEEN) for one in made])
    low, high = bands[:, 0].max(axis=0), bands[:, 1].min(axis=0)
    common = (low < high).all(axis=1)
    assert 0 < common.sum() < len(SEEN)
    found = np.asarray(policy.support(SEEN))
    np.testing.assert_allclose(found[0][common], low[common], atol=2e-6 * 10)
    np.testing.assert_allclose(found[1][common], high[common], atol=2e-6 * 10)
    np.testing.assert_array_equal(policy.agreement(SEEN).overlap, common)
    middle = np.asarray(ensemble_of(stacked, "median").support(SEEN))
    np.testing.assert_array_equal(found[:, ~common], middle[:, ~common])


def test_the_median_is_that_of_centres_and_widths():
    made, stacked = members()
    low, high = ensemble_of(stacked, "median").support(SEEN)
    bands = np.asarray([one.support(SEEN) for one in made])
    centre = np.median(bands.mean(axis=1), axis=0)
    width = np.median(bands[:, 1] - bands[:, 0], axis=0) / 2.0
    half = (np.asarray(HIGH) - LOW) / 2.0
    middle = (np.asarray(HIGH) + LOW) / 2.0
    centre = np.clip(centre, middle - half + width, middle + half - width)
    np.testing.assert_allclose(low, centre - width, atol=1e-5)
    np.testing.assert_allclose(high, centre + width, atol=1e-5)
    spread = np.asarray([one.act(SEEN) for one in made])
    expected = ((spread.max(axis=0) - spread.min(axis=0)) / (2.0 * half)).max(axis=1)
    np.testing.assert_allclose(
        ensemble_of(stacked).agreement(SEEN).disagreement, expected, atol=1e-5
    )


def test_an_ensemble_does_what_a_policy_does(tmp_path):
    policy = ensemble_of(members()[1], "consensus")
    low, high = policy.support(SEEN[0])
    drawn = policy.act(np.repeat(SEEN[:1], 200, axis=0), jax.random.key(0))
    assert bool(((low[None] <= drawn) & (drawn <= high[None])).all())
    np.testing.assert_allclose(
        jax.jit(policy.act)(jnp.asarray(SEEN)), policy.act(SEEN), rtol=1e-5, atol=1e-6
    )
    law = policy(jnp.asarray(SEEN[0])).base_dist
    density = jax.jit(lambda x: jnp.exp(law.log_prob(jnp.stack([x, law.loc[1]]))[0]))
    assert integrate.quad(density, float(low[0]), float(high[0]))[0] == pytest.approx(1, abs=1e-4)
    (tmp_path / "policy").write_bytes(files.dump_tree(policy))
    again = files.load_tree(tmp_path / "policy", policy)
    np.testing.assert_array_equal(again.act(SEEN), policy.act(SEEN))


def test_the_default_rule_is_consensus_where_there_are_bands():
    assert ensemble_of(members()[1]).network.rule == "consensus"
    assert ensemble_of(members(Squashed())[1]).network.rule == "median"


def test_consensus_needs_a_band():
    with pytest.raises(ValueError, match="consensus needs policies with a band"):
        ensemble_of(members(Squashed())[1], "consensus")
    low, _ = ensemble_of(members(Squashed())[1]).support(SEEN)
    np.testing.assert_array_equal(low[0], LOW)
    with pytest.raises(ValueError, match="one of median, consensus"):
        ensemble_of(members()[1], "mean")


class Far:
    """A log that holds only states whose first number is below 1."""

    def distance(self, observation, xp=np):
        return xp.asarray(observation)[..., 0]

    def practice(self, observation, xp=np):
        return xp.asarray(observation)[..., :2] * 0.0 + 1.5


def test_decisions_have_reasons_and_keep_every_row():
    policy = ensemble_of(members()[1], "consensus")
    states = SEEN.copy()
    states[3, 1] = np.nan
    states[4] = [5.0, 0.0, 0.0]
    found = with_referral(policy, Far(), Thresholds(disagreement=1.0)).decide(states)
    assert found.action.shape == (40, 2)
    assert found.reasons(3) == (INVALID,)
    assert OUTSIDE in found.reasons(4)
    known = np.arange(40) != 3
    common = np.asarray(policy.agreement(np.nan_to_num(states)).overlap)
    np.testing.assert_array_equal(found.because[DISAGREE][known], ~common[known])
    np.testing.assert_array_equal(np.isnan(found.action).all(axis=1), found.referred)
    acted = ~found.referred
    np.testing.assert_allclose(found.action[acted], policy.act(states[acted]), rtol=1e-6)
    one = with_referral(policy, Far()).decide(states[4])
    assert one.action.shape == (2,) and bool(one.referred) and OUTSIDE in one.reasons()
    with pytest.raises(ValueError, match="threshold of distance"):
        Thresholds(distance=-1.0)


def test_the_disagreement_threshold_decides_for_the_median():
    policy = ensemble_of(members()[1], "median")
    near = np.minimum(SEEN, 0.5)
    apart = np.asarray(policy.agreement(near).disagreement)
    edge = float(np.median(apart))
    found = with_referral(policy, Far(), Thresholds(disagreement=edge)).decide(near)
    np.testing.assert_array_equal(found.referred, apart > edge)


def test_one_seed_agrees_with_itself():
    found = members()[0][0].agreement(SEEN)
    assert not np.any(found.disagreement) and np.all(found.overlap)
    assert isinstance(members()[0][0], Policy)


def test_a_cautious_policy_does_what_decide_says():
    policy = with_referral(ensemble_of(members()[1], "consensus"), Far())
    found = policy.decide(SEEN)
    assert 0 < found.referred.sum() < len(SEEN)
    for fallback, expected in ((PRACTICE, [1.5, 1.5]), ([9.0, -1.0], [9.0, -1.0])):
        act = Cautious(policy, fallback_of(fallback, policy))
        np.testing.assert_array_equal(act.refers(jnp.asarray(SEEN)), found.referred)
        given = np.asarray(eqx.filter_jit(Centred(act))(jax.random.key(0), jnp.asarray(SEEN)))
        wanted = np.where(found.referred[:, None], expected, policy.act(SEEN))
        np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=1e-6)
    assert found.shares()["referred"] == found.referred.mean()
    assert fallback_of(1.0, policy).tolist() == [1.0, 1.0]
    for wrong in ("mean", [11.0, 0.0], [1.0], [np.nan, 0.0], "x"):
        with pytest.raises(ValueError, match="a fallback is 'practice', or one number"):
            fallback_of(wrong, policy)


def test_limits_that_leave_no_action_are_a_referral():
    policy = dataclasses.replace(
        with_referral(ensemble_of(members()[1], "median"), Far(), Thresholds(1e9, 1e9)),
        observation_columns=(Column("x"), Column("y"), Column("z")),
        action_columns=(Column("a"), Column("b")),
    )  # fmt: skip
    middle = float(np.median(SEEN[:, 0]))
    rules = {
        "cap": f"a <= 1 when x > {middle}", "floor": "a >= 2",
        "stop": f"no action when y > {middle}", "rate": "abs(b - last_b) <= 0.5",
    }  # fmt: skip
    limited = policy.with_limits(rules)
    last = np.full((len(SEEN), 2), np.nan)
    last[1], last[2] = [0.0, np.inf], [0.0, 1.0]
    found = limited.decide(SEEN, last=last)
    usable = np.arange(len(SEEN)) != 1
    np.testing.assert_array_equal(found.because[CONFLICT], (SEEN[:, 0] > middle) & usable)
    np.testing.assert_array_equal(found.because[FORBIDDEN], (SEEN[:, 1] > middle) & usable)
    assert found.reasons(1) == (INVALID,)
    row = int(np.flatnonzero(found.because[CONFLICT] & ~found.because[FORBIDDEN])[0])
    assert found.blocked_by(row) == (f"cap: a <= 1 when x > {middle}", "floor: a >= 2")
    acts = ~found.referred
    assert acts.any() and (found.action[acts, 0] >= 2).all()
    assert abs(limited.decide(np.full(3, middle), last=last[2]).action[1] - 1.0) <= 0.5
    refers = Cautious(limited, fallback_of(1.0, limited)).refers(jnp.asarray(SEEN), last)
    np.testing.assert_array_equal(np.asarray(refers)[usable], found.referred[usable])
    with pytest.raises(ValueError, match=r"limits depend on the last action: give last="):
        limited.decide(SEEN)


def test_a_policy_without_a_summary_says_so():
    with pytest.raises(ValueError, match=r"no summary of a log.*run\.policy\(\)"):
        members()[0][0].decide(SEEN)
