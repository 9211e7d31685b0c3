"""Bounds of certificates: sound, also in float32, and stated so that they hold."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import random_policies as made
from fat2thin import safety
from fat2thin.policies.families import Sparse
from fat2thin.policies.networks import PolicyNetwork
from fat2thin.policies.policy import unit_policy
from fat2thin.safety.arithmetic import ARITHMETICS
from fat2thin.safety.lines import above_half_width, above_tanh, half_width

LONG = [pytest.mark.slow, pytest.mark.long]


def check(case, rng, count, samples=256):
    for _ in range(count):
        policy = made.policy_of(int(rng.integers(2**31)), **case)
        box = made.box_of(rng, policy, 10.0 ** rng.uniform(-1.5, 0.5))
        found = safety.certify(policy, box, seconds=float(rng.choice([0.02, 0.2, 0.6])))
        low, high = made.attacked(policy, box, rng)
        states = made.sampled(policy, box, rng, samples)
        for least, most in [(low, high), *made.blocks(policy, states)]:
            assert (found.low <= least).all(), (case, box)
            assert (most <= found.high).all(), (case, box)


@pytest.mark.parametrize("case", made.QUICK, ids=made.named)
def test_attacks_stay_within_bounds(case):
    check(case, np.random.default_rng(1), 2)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=LONG) for case in made.CASES], ids=made.named
)
def test_attacks_and_samples_stay_within_bounds_of_a_hundred_boxes(case):
    rng = np.random.default_rng(2)
    check(case, rng, 100, 10_000)
    check(case, rng, 2, 1_000_000)


def cancelling(size):
    """A policy whose exact centre is 0, and whose rounding errors are large."""
    network = PolicyNetwork(jax.random.key(0), 3, 1, (64,))
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(64, 3))
    weight[32:] = weight[:32]
    head = size * np.tile(rng.normal(size=32), 2)
    head[32:] *= -1.0
    order = rng.permutation(64)
    return unit_policy(
        eqx.tree_at(
            lambda tree: (tree.trunk.layers[0].weight, tree.centre.weight),
            network,
            tuple(jnp.asarray(one, jnp.float32) for one in (weight[order], head[order][None])),
        ), Sparse(), (0.1, 0.1),
    )  # fmt: skip


def test_rounding_of_the_deployed_policy_is_within_the_bounds():
    policy = cancelling(1e4)
    states = np.random.default_rng(1).normal(size=(300, 3)).astype(np.float32)
    low, high = map(np.asarray, policy.support(states))
    middle = (low + high)[:, 0] / 2.0
    assert np.abs(middle).max() > 1e-4  # it would be 0 without rounding
    worst = np.argsort(-np.abs(middle))[:8]
    for place in worst:
        box = {f"observation_{n}": float(value) for n, value in enumerate(states[place])}
        found = safety.certify(policy, box, seconds=0.05)
        assert found.low[0] <= low[place, 0] <= high[place, 0] <= found.high[0]


def test_float64_has_a_smaller_margin_and_other_arithmetic_is_refused():
    policy, box = cancelling(1.0), {f"observation_{n}": 0.5 for n in range(3)}
    widths = [
        safety.certify(policy, box, seconds=0.1, arithmetic=name) for name in ("float32", "float64")
    ]
    wide, narrow = ((one.high - one.low)[0] for one in widths)
    assert 0.2 <= narrow < 0.2 + 1e-8 < wide < 0.2 + 1e-3
    with pytest.raises(ValueError, match="float32 or float64, not for 'bfloat16'"):
        safety.certify(policy, box, arithmetic="bfloat16")


def test_lines_are_above_tanh_and_the_half_width():
    rng = np.random.default_rng(0)
    low = rng.normal(0.0, 4.0, 4000)
    high = low + 10.0 ** rng.uniform(-10.0, 1.5, 4000)
    points = low + (high - low) * np.linspace(0.0, 1.0, 301)[:, None]
    slope, height = above_tanh(low, high)
    assert (slope * points + height >= np.tanh(points)).all()
    slope, height = above_half_width(low, high, -3.0, 0.5)
    assert (slope * points + height >= half_width(points, -3.0, 0.5)).all()


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_sums_in_any_order_err_by_less_than_the_bound(name):
    of, rng = ARITHMETICS[name], np.random.default_rng(0)
    terms = rng.normal(size=(50, 200)).astype(name)
    others = rng.normal(size=(50, 200)).astype(name)
    exact = (terms.astype(np.longdouble) * others).sum(axis=1)
    sizes = np.abs(terms.astype(float) * others).sum(axis=1)
    for _ in range(20):
        order, total = rng.permutation(200), np.zeros(50, name)
        for place in order:
            total = total + terms[:, place] * others[:, place]
        assert (np.abs(total - exact) <= of.sum_error(200) * sizes).all()


def test_no_certificate_without_finite_weights_or_with_layer_norm():
    policy, box = cancelling(1.0), {f"observation_{n}": (0.0, 1.0) for n in range(3)}
    broken = eqx.tree_at(lambda one: one.network.network.centre.bias, policy, jnp.full(1, jnp.nan))
    with pytest.raises(safety.NotCertified, match=r"centre\.bias of member 0 is not finite"):
        safety.certify(broken, box)
    huge = cancelling(1e38)
    with pytest.raises(safety.NotCertified, match="overflow"):
        safety.certify(huge, box)


def test_claims_are_proven_refuted_or_open_and_text_is_rounded_outward():
    policy = made.policy_of(0, hidden=(12, 12))
    box = made.box_of(np.random.default_rng(0), policy, 1.0)
    wide = safety.certify(policy, box, seconds=5.0)
    between = (wide.high[0] + wide.worst["dose"][1].value) / 2.0
    found = safety.certify(
        policy,
        box,
        below={"dose": float(wide.high[0]), "rest": -1.9},
        above={"rest": -3.0},
        seconds=5.0,
    )
    results = [(claim.action, claim.side, claim.result) for claim in found.claims]
    assert results == [
        ("dose", "high", safety.PROVEN), ("rest", "high", safety.REFUTED),
        ("rest", "low", safety.PROVEN),
    ]  # fmt: skip
    example = found.claims[1].counterexample
    assert example.value > -1.9
    state = np.array([example.state[name] for name in box.names])
    assert float(policy.support(state)[1][1]) == pytest.approx(example.value, abs=1e-6)
    hurried = safety.certify(policy, box, below={"dose": between}, seconds=0.0)
    assert hurried.claims[0].result in (safety.PROVEN, safety.OPEN)
    assert (hurried.low <= wide.low + 1e-6).all() and (wide.high <= hurried.high + 1e-6).all()
    assert float(wide.shown("dose", "high")) >= wide.high[0]
    assert float(wide.shown("dose", "low")) <= wide.low[0]


def test_a_table_has_a_row_per_combination_within_the_whole_box():
    policy = made.policy_of(0, rules="cap")
    box = {"severity": (0.0, 3.0), "weight": (50.0, 60.0), "age": 0.3}
    whole = safety.certify(policy, box, seconds=3.0, gap=0.01)
    columns = {"severity": [0, 1.5, (2, 3)], "age": [0.3, 0.4]}
    rows = safety.table(policy, box, columns, seconds=3.0).rows
    assert len(rows) == 3 * 2 * 2
    assert [row["severity"] for row in rows[::4]] == ["0", "1.5", "2 to 3"]
    for row in rows:
        if row["age"] == "0.3" and row["action"] == "dose":
            assert float(row["never_above"]) <= whole.high[0] + 0.05


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"severty": 1}, r"no column 'severty' \(did you mean 'severity'\?\)"),
        ({"severity": [2, 1]}, "must have finite ends, the low one first, not 2 to 1"),
        ({"severity": "high"}, r"must be a number or a pair \[low, high\], not 'high'"),
        ({"severity": 1}, "must name 'weight', because the range of the log is not known"),
        (3, "must be the path of a TOML file or a mapping"),
        ("missing.toml", "no such file with a box"),
    ],
)
def test_a_bad_box_is_refused_with_its_column(given, words):
    with pytest.raises(safety.BoxError, match=words):
        safety.certify(made.policy_of(0), given)


def test_a_last_action_is_a_column_and_the_first_step_is_covered_unless_it_is_named():
    policy = made.policy_of(0, rules="rate")
    state = {"severity": (1.0, 1.5), "weight": 60.0, "age": 0.0}
    free = safety.certify(policy, state, seconds=1.0)
    given = safety.certify(policy, {**state, "last_dose": 0.5, "last_rest": 0.0}, seconds=1.0)
    assert free.box.steps == (False, True)
    assert given.low[0] >= 0.4 - 1e-5 and given.high[0] <= 0.6 + 1e-5
    assert free.high[0] > 0.61 or free.low[0] < 0.39
    assert "last_dose" in given.worst["dose"][1].state


def test_policies_without_a_band_have_the_box_and_the_limits():
    policy = made.policy_of(0, kind="squashed", rules="cap")
    state = {"severity": (2.5, 3.0), "weight": (40.0, 60.0), "age": 0.0}
    found = safety.certify(policy, state, seconds=1.0)
    np.testing.assert_allclose(found.low, made.LOW, rtol=1e-6)
    np.testing.assert_array_equal(found.high, [0.8, made.HIGH[1]])
    assert "has no band" in str(found)


def test_states_without_an_action_are_named_and_have_no_bounds():
    policy = made.policy_of(0, rules="stop")
    state = {"severity": (0.0, 0.05), "weight": 50.0, "age": 0.0}
    found = safety.certify(policy, state, seconds=1.0)
    assert found.may_not_act and found.worst["dose"] == (None, None)
    assert found.high[0] == -np.inf and found.low[0] == np.inf
    assert "does not act" in str(found)


def test_the_fallback_counts_where_another_action_has_no_allowed_value():
    policy = made.policy_of(2, kind="deterministic", rules="fallback")
    state = {"severity": (0.8, 1.2), "weight": 60.0}
    apart = safety.certify(policy, {**state, "age": (0.5, 0.9)}, seconds=1.0)
    conflict = safety.certify(policy, {**state, "age": (0.5, 1.1)}, seconds=1.0)
    assert not apart.may_not_act and apart.low[1] > 2.0
    assert conflict.may_not_act and conflict.low[1] == 0.0


def test_a_certificate_of_a_run_takes_free_columns_from_its_log():
    policy = made.policy_of(0)
    ranges = [(0.0, 1.0), (50.0, 60.0), (0.0, 0.1)]
    found = safety.certify(policy, {"severity": 0.5}, ranges=ranges, seconds=0.1)
    assert found.box.ranges() == {"severity": (0.5, 0.5), "weight": (50.0, 60.0), "age": (0.0, 0.1)}
    assert dataclasses.replace(found.box).sha256 == found.box.sha256
