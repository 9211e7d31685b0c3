"""The bound of rounding holds for any order of summation, and is infinite where it must be."""

import dataclasses

import numpy as np
import pytest

from export.cases import case_of, policy
from fat2thin.export.contents import answers_of, contents_of, synthetic_states
from fat2thin.export.rounding import RoundingBound
from fat2thin.policies.plain import plain_policy
from fat2thin.safety.allowed import States as Boxes
from fat2thin.safety.arithmetic import ARITHMETICS
from fat2thin.safety.ends import BandEnd


def shuffled(plain, seed):
    """Return the same policy with its hidden units in another order."""
    draw = np.random.default_rng(seed)
    (member,) = plain.members
    trunk, order = [], np.arange(member.trunk[0].weight.shape[1])
    for layer in member.trunk:
        mine = draw.permutation(len(layer.bias))
        weight = np.ascontiguousarray(layer.weight[mine][:, order])
        trunk.append(dataclasses.replace(layer, weight=weight, bias=layer.bias[mine]))
        order = mine
    heads = {
        name: dataclasses.replace(head, weight=np.ascontiguousarray(head.weight[:, order]))
        for name, head in (("centre", member.centre), ("log_scale", member.log_scale))
    }
    return dataclasses.replace(
        plain, members=(dataclasses.replace(member, trunk=tuple(trunk), **heads),)
    )


@pytest.mark.parametrize("variant", ["plain", "limits"])
def test_the_bound_holds_for_other_orders_of_summation(variant):
    plain = plain_policy(policy("sparse", variant))
    contents = contents_of(plain)
    states = synthetic_states(contents, 4000, seed=5)
    ends, action = RoundingBound(contents).bounds(states)
    exact, differs = answers_of(contents, states, np.float64), False
    for seed in range(4):
        found = answers_of(contents_of(shuffled(plain, seed)), states)
        for name, bound in (("low", ends), ("high", ends), ("centre", ends), ("action", action)):
            one, other = getattr(found, name), getattr(exact, name)
            both = np.isfinite(bound) & ~np.isnan(one) & ~np.isnan(other)
            both &= ((found.refer == exact.refer) | (name != "action"))[:, None]
            assert (np.abs(one - other)[both] <= bound[both]).all(), name
            differs |= bool((one != other)[both].any())
    assert differs and np.median(ends) < 1e-3


def test_the_bound_grows_with_the_weights():
    plain = plain_policy(policy("sparse"))
    (member,) = plain.members
    first = member.trunk[0]
    larger = dataclasses.replace(first, weight=first.weight * 1000)
    wide = dataclasses.replace(
        plain, members=(dataclasses.replace(member, trunk=(larger, *member.trunk[1:])),)
    )
    states = synthetic_states(contents_of(plain), 300)
    narrow, wide = (RoundingBound(contents_of(one)).bounds(states)[0] for one in (plain, wide))
    # An end cannot err by more than the box.
    below = np.isfinite(wide) & (wide < 0.5)
    assert below.any() and (wide[below] > 10 * narrow[below]).all()


def test_an_open_condition_and_overflow_have_no_bound():
    case = case_of(policy("sparse", "limits"), 400)
    states = case.states
    raw = states.observation.copy()
    raw[0] = [0.5, 1.0, -0.5]  # rate + severity > 0 is open
    raw[1] = [3e38, 3e38, 3e38]
    raw[2] = [0.5, 1.0, -0.4]
    ends, _ = RoundingBound(case.contents).bounds(states._replace(observation=raw))
    assert np.isinf(ends[:2]).all() and np.isfinite(ends[2]).all()


def test_a_condition_is_open_where_a_subnormal_number_may_be_read_as_zero():
    """JAX reads 1e-38 as 0, which is not above a third of 1e-45; NumPy does not."""
    made = policy("sparse").with_limits({"cap": "dose <= 0.2 when 1e-45 >= 3 * severity"})
    contents = contents_of(plain_policy(made))
    states = synthetic_states(contents, 100)
    states.observation[:2] = [[1e-38, 1.0, 0.1], [1e-36, 1.0, 0.1]]
    ends, _ = RoundingBound(contents).bounds(states)
    assert np.isinf(ends[0]).all() and np.isfinite(ends[1]).all()


@pytest.mark.parametrize(
    "which",
    [("sparse", "limits"), ("sparse", "ensemble"), ("deterministic", "plain")],
    ids=" ".join,
)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_exports_lie_within_what_certificates_allow_at_a_state(which):
    """The certified bound of a single state is its exact end plus the bound of rounding."""
    made = policy(*which)
    plain, case = plain_policy(made), case_of(made, 600)
    rows = np.abs(case.states.observation).max(axis=1) < 50
    rows &= case.expected.reason & 30 == 0
    states = type(case.states)(*(None if part is None else part[rows] for part in case.states))
    found = answers_of(case.contents, states)
    columns, missing = states.observation.astype(np.float64), np.zeros(rows.sum(), bool)
    if states.last is not None:
        missing = np.isnan(states.last).any(axis=1)
        columns = np.concatenate([columns, np.nan_to_num(states.last)], axis=1)
    for action in range(2):
        for side, ends in ((-1, found.low), (1, found.high)):
            end = BandEnd(plain, action, side, ARITHMETICS["float32"])
            certified = end.over(Boxes(columns, columns, missing)).high
            assert (side * ends[:, action] <= certified).all()
            expected = case.expected.low if side < 0 else case.expected.high
            assert (side * expected[rows][:, action] <= certified).all()
            assert np.median(certified - side * ends[:, action]) < 2e-3
