"""Exports and certificates read limits as policies do, also where rounding decides."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin.columns import Column
from fat2thin.export.contents import contents_of
from fat2thin.policies.families import Squashed
from fat2thin.policies.limits import Limits
from fat2thin.policies.networks import PolicyNetwork
from fat2thin.policies.plain import plain_policy
from fat2thin.policies.policy import unit_policy
from fat2thin.safety import allowed, checker_limits
from fat2thin.safety.arithmetic import ARITHMETICS

NAMES, BOX = (["severity", "weight"], ["dose"]), ([-1.0], [2.0])
RULES = {
    "decimal": "dose <= 0.9 when severity >= 0.7",
    "opposite": "dose >= -0.3 when not severity >= 0.7",
    "equal": "dose <= 0.6 when -3 * severity == -0.3",
    "scaled": "dose >= -0.2 when 0.02 * weight > 1.5",
    "sum": "dose <= 1.1 when severity + weight >= 75.7",
    "zero": "dose <= 0.1 * severity + 1 * weight when weight <= 0",
    "strict": "dose > 0 when severity < 0.1",
    "rate": "abs(dose - last_dose) <= 0.7 when last_dose > 0.1",
    "stop": "no action when severity > 2.3 and weight == 70.1",
}
UNSURE = ("equal", "scaled", "sum", "zero")  # certificates allow for rounding of these


@pytest.fixture(scope="module")
def states():
    """All pairs of thresholds, their neighbours in float32, and zeros."""
    near = [
        [np.nextafter(number, np.float32(-9)), number, np.nextafter(number, np.float32(900))]
        for number in map(np.float32, (0.1, 0.7, 2.3, 5.0, 75.0, 70.1))
    ]
    numbers = [np.float32(0), *itertools.chain(*near)]
    seen = np.asarray([*itertools.product(numbers, numbers)], np.float32)
    last = np.tile(np.float32([np.nan, 0.1, 0.2, 1.9]), len(seen))[: len(seen), None]
    return seen, last


def test_exports_agree(states):
    network = PolicyNetwork(jax.random.key(0), 2, action_size=1, hidden=(4,))
    policy = unit_policy(network, Squashed(), (0.1, 1.0)).in_box(*map(tuple, BOX))
    columns = (tuple(map(Column, names)) for names in NAMES)
    policy = dataclasses.replace(
        policy, **dict(zip(("observation_columns", "action_columns"), columns, strict=True))
    ).with_limits(RULES)
    found = contents_of(plain_policy(policy)).policy()(states[0], 0.5, states[1])
    interval = policy.interval(*states)
    acts = np.asarray(interval.acts)
    assert 0.1 < acts.mean() < 0.99
    np.testing.assert_array_equal(found.refer == 0, acts)
    for name, end in (("low", interval.low), ("high", interval.high)):
        end, other = (np.asarray(part)[acts] for part in (end, getattr(found, name)))
        np.testing.assert_allclose(other, end, rtol=0, atol=3e-7)


@pytest.mark.parametrize("name", RULES)
def test_certificates_contain_the_interval(states, name):
    limits = Limits.parse({name: RULES[name]}, *NAMES, *BOX)
    found = jax.jit(limits.interval)(jnp.asarray(states[0]), jnp.asarray(states[1]))
    low, high, acts = (np.asarray(part) for part in (found.low[:, 0], found.high[:, 0], found.acts))
    seen = np.concatenate([*states], axis=1).astype(np.float64)
    missing = np.isnan(seen[:, 2])
    seen[missing, 2] = 0.0
    arithmetic = ARITHMETICS["float32"]
    of_action = allowed.AllowedActions(limits.parsed, 0, BOX[0][0], BOX[1][0], 2, arithmetic)
    bounds = of_action.over(allowed.States(seen, seen, missing))
    checked = checker_limits.interval(
        limits.parsed, 0, (BOX[0][0], BOX[1][0]), 2, arithmetic.unit, arithmetic.tiny, seen, seen,
        missing,
    )  # fmt: skip
    for (low_least, low_most), (high_least, high_most), without, never in (
        ((bounds[0], bounds[1]), (bounds[2], bounds[3]), bounds.without, bounds.never),
        (checked[0], checked[1], checked[2], checked[3]),
    ):
        assert (without | acts).all() and not (never & acts).any()
        for end, least, most in ((low, low_least, low_most), (high, high_least, high_most)):
            assert ((least <= end) & (end <= most))[acts].all()
            if name not in UNSURE:
                assert (most - least)[acts].max() < 1e-4
