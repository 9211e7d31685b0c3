"""Policies: actions and supports lie in the box, for any box and head."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fat2thin.policies.families import (
    Beta,
    Deterministic,
    Head,
    HeavyStudent,
    HeavyTailed,
    Sparse,
    Squashed,
)
from fat2thin.policies.networks import PolicyNetwork
from fat2thin.policies.policy import BoundedNetwork, Policy, in_half_ranges, unit_policy


class Constant(eqx.Module):
    """A network with the same output for every observation."""

    centre: jax.Array
    log_scale: jax.Array

    def __call__(self, observation):
        shape = (*observation.shape[:-1], self.centre.shape[-1])
        return Head(jnp.broadcast_to(self.centre, shape), jnp.broadcast_to(self.log_scale, shape))


def make(family, centre, scale, low, high):
    centre, scale, low, high = (
        jnp.asarray(np.atleast_1d(np.asarray(value, np.float32)))
        for value in (centre, scale, low, high)
    )
    return Policy(Constant(centre, jnp.log(scale)), low, high, family)


FAMILIES = [
    HeavyTailed(2.0),
    HeavyTailed(1.0),
    HeavyStudent(3.0),
    Squashed(),
    Beta(),
    Sparse(0.0),
    Sparse(0.0, "clip"),
    Deterministic(),
]


class Outputs(NamedTuple):
    """Outputs of a policy at 500 rows."""

    support: tuple[jax.Array, jax.Array]
    centre: jax.Array
    sample: jax.Array
    log_density: jax.Array


@eqx.filter_jit
def outputs(policy):
    """Return the outputs of a two-coordinate policy; compiled once per family."""
    observation = jnp.zeros((500, 3))
    sample = policy.act(observation, jax.random.key(1))
    log_density = policy(observation).log_prob(sample)
    return Outputs(policy.support(observation), policy.act(observation), sample, log_density)


@eqx.filter_jit
def band_and_actions(policy):
    """Return support, location, half-width and samples of a one-coordinate policy."""
    observation = jnp.zeros(3)
    low, high = policy.support(observation)
    base = policy(observation).base_dist
    keys = jax.random.split(jax.random.key(0), 64)
    actions = jax.vmap(lambda key: policy.act(observation, key))(keys)
    return (low[0], high[0]), (base.loc[0], base.half_width[0]), actions


@given(
    centre=st.floats(-1.0, 1.0, width=32),
    width=st.floats(2**-10, 1.0, width=32),
    middle=st.floats(-100.0, 100.0, width=32),
    half_range=st.floats(2**-7, 128.0, width=32),
)
def test_the_inside_rule_keeps_the_band_in_any_box(centre, width, middle, half_range):
    low, high = np.float32(middle - half_range), np.float32(middle + half_range)
    policy = make(Sparse(0.0, "inside"), centre, width, low, high)
    (band_low, band_high), (loc, half_width), actions = band_and_actions(policy)
    slack = 1e-5 * (abs(middle) + half_range)
    assert low <= band_low <= band_high <= high
    np.testing.assert_allclose(band_high - band_low, 2 * width * half_range, atol=2 * slack)
    assert loc - half_width >= low - slack
    assert loc + half_width <= high + slack
    assert np.all((low <= actions) & (actions <= high))


def test_a_band_at_an_edge_is_shifted_and_keeps_its_width():
    policy = make(Sparse(0.0, "inside"), 0.99, 0.2, 0.0, 10.0)
    low, high = policy.support(jnp.zeros(2))
    np.testing.assert_allclose([low[0], high[0]], [8.0, 10.0], rtol=1e-6)
    np.testing.assert_allclose(policy.act(jnp.zeros(2)), 9.0, rtol=1e-6)


def test_the_clip_rule_puts_an_atom_on_the_edge():
    policy = make(Sparse(0.0, "clip"), 0.9, 0.4, -1.0, 1.0)
    keys = jax.random.split(jax.random.key(0), 20_000)
    act = eqx.filter_jit(jax.vmap(lambda key: policy.act(jnp.zeros(2), key)))
    actions = np.asarray(act(keys))[:, 0]
    shape = scipy.stats.beta(2, 2, 0.5, 0.8)
    share, expected = np.mean(actions == 1.0), shape.sf(1.0)
    assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / actions.size)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_a_policy_in_another_box_is_shifted_and_scaled(family):
    unit = make(family, [0.3, -0.2], [0.2, 0.4], [-1.0, -1.0], [1.0, 1.0])
    large = unit.in_box((-100.0, 0.0), (100.0, 4.0))
    small, big = outputs(unit), outputs(large)
    middle, half_range = np.array([0.0, 2.0]), np.array([100.0, 2.0])
    pairs = zip((small.centre, small.sample, *small.support),
                (big.centre, big.sample, *big.support), strict=True)  # fmt: skip
    for before, after in pairs:
        expected = middle + half_range * np.asarray(before)
        np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        in_half_ranges(big.sample, large.low, large.high), small.sample, atol=1e-5
    )
    if not isinstance(family, Deterministic):
        per_unit = np.asarray(small.log_density) - np.sum(np.log(half_range))
        np.testing.assert_allclose(big.log_density, per_unit, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_samples_and_centre_lie_in_box_and_support(family):
    policy = make(family, [0.7, -0.95], [0.5, 0.3], [-2.0, 0.0], [1.0, 10.0])
    found = outputs(policy)
    for low, high in (found.support, (policy.low[None], policy.high[None])):
        for action in (found.centre, found.sample):
            assert np.all((low <= action) & (action <= high))
    assert found.centre.shape == found.support[0].shape == found.support[1].shape == (500, 2)
    # Samples differ from row to row, unless the policy has only one action.
    assert (len(np.unique(found.sample[:, 0])) == 1) == isinstance(family, Deterministic)


def test_a_deterministic_policy_acts_the_same_with_and_without_a_key():
    found = outputs(make(Deterministic(), [0.3, -0.2], [0.2, 0.4], [-1.0, 0.0], [1.0, 4.0]))
    for action in (found.centre, found.sample, *found.support):
        np.testing.assert_allclose(action, np.broadcast_to([0.3, 1.6], (500, 2)), rtol=1e-6)


def test_the_support_is_the_line_or_the_box_for_dense_families():
    observation = jnp.zeros(2)
    assert make(HeavyTailed(2.0), 0.0, 0.1, -1.0, 1.0).support(observation)[0] == -jnp.inf
    np.testing.assert_array_equal(
        make(Squashed(), 0.0, 0.1, -3.0, 2.0).support(observation), [[-3], [2]]
    )


def test_probability_outside_the_band_is_exactly_zero():
    policy = make(Sparse(0.0), 0.1, 0.2, -1.0, 1.0)
    density = jnp.exp(policy(jnp.zeros(2)).log_prob(jnp.array([[-0.11], [0.31], [0.9]])))
    np.testing.assert_array_equal(density, 0.0)


def bounded(bounds, **settings):
    network = PolicyNetwork(jax.random.key(0), 3, 2, (8,))
    return BoundedNetwork(network, bounds, squashed=False, **settings)


def test_centre_and_scale_stay_within_their_bounds():
    head = bounded((0.1, 2.0))(1e3 * jax.random.normal(jax.random.key(1), (200, 3)))
    assert np.max(np.abs(head.centre)) <= 1.0
    np.testing.assert_allclose(np.exp(head.log_scale).min(), 0.1, rtol=1e-5)
    np.testing.assert_allclose(np.exp(head.log_scale).max(), 2.0, rtol=1e-5)


def test_the_centre_is_squashed_exactly_once():
    network = PolicyNetwork(jax.random.key(0), 3, 2, (8,))
    observation = 10.0 * jax.random.normal(jax.random.key(1), (20, 3))
    raw = np.asarray(network(observation)[0])
    assert np.max(np.abs(raw)) > 1.0
    for family in (Squashed(), HeavyTailed(2.0), Deterministic()):
        policy = unit_policy(network, family, (1e-3, 10.0))
        np.testing.assert_allclose(policy.act(observation), np.tanh(raw), rtol=1e-5, atol=1e-6)


def test_a_state_independent_scale_is_learned_by_its_bias_alone():
    network = eqx.tree_at(
        lambda whole: whole.network.log_scale.bias,
        bounded((0.1, 2.0), state_dependent_scale=False),
        jnp.array([-0.5, 0.25]),
    )
    observation = jax.random.normal(jax.random.key(1), (20, 3))
    scale = network(observation).log_scale
    np.testing.assert_allclose(scale, np.broadcast_to([-0.5, 0.25], (20, 2)), rtol=1e-6)

    slope = jax.jit(jax.grad(lambda net: jnp.mean(net(observation).log_scale)))
    gradient = slope(network).network
    np.testing.assert_allclose(gradient.log_scale.bias, 0.5, rtol=1e-6)
    others = eqx.tree_at(lambda net: net.log_scale.bias, gradient, replace_fn=jnp.zeros_like)
    assert all(np.all(np.asarray(leaf) == 0.0) for leaf in jax.tree.leaves(others))


def test_a_scale_beyond_its_bound_gets_a_gradient_back_inside():
    network = eqx.tree_at(
        lambda whole: whole.network.log_scale.bias,
        bounded((0.1, 2.0), state_dependent_scale=False),
        jnp.array([5.0, -5.0]),
    )
    observation = jnp.zeros((4, 3))

    def pull(wanted):
        def loss(net):
            log_wanted = jnp.broadcast_to(jnp.log(wanted), (4, 2))
            return jnp.mean((net(observation).log_scale - log_wanted) ** 2)

        return jax.jit(jax.grad(loss))(network).network.log_scale.bias

    # Half of 2 (log 2 - log 1) and of 2 (log 0.1 - log 1): the gradient at the bound.
    np.testing.assert_allclose(pull(1.0), [np.log(2.0), np.log(0.1)], rtol=1e-5)
    np.testing.assert_array_equal(pull(jnp.array([3.0, 0.01])), 0.0)


def test_half_ranges_of_an_action_at_the_end_of_a_box_do_not_exceed_1():
    """Unclipped, rounding puts one in six of these ends beyond 1, where Beta has no density."""
    rng = np.random.default_rng(0)
    low = rng.uniform(-100.0, 100.0, 5_000).astype(np.float32)
    high = (low + rng.uniform(0.1, 50.0, 5_000)).astype(np.float32)
    ends = in_half_ranges(jnp.asarray(high), jnp.asarray(low), jnp.asarray(high))
    np.testing.assert_allclose(ends, 1.0, rtol=1e-4)
    assert np.all(np.asarray(ends) <= 1.0)


def test_half_ranges_of_an_array_on_the_host_have_the_bits_of_one_on_the_device():
    rng = np.random.default_rng(0)
    low, high = np.float32([[-2.0, -0.3, 0.0], [1.5, 0.7, 7.3]])
    action = rng.uniform(low, high, (2, 3_000, 3)).astype(np.float32)
    on_host = in_half_ranges(action, low, high)
    assert isinstance(on_host, np.ndarray)
    on_device = in_half_ranges(*map(jnp.asarray, (action, low, high)))
    np.testing.assert_array_equal(on_host, on_device)


@functools.cache
def learned_policy(standardised=False):
    network = PolicyNetwork(jax.random.key(0), 3, 2, (4,))
    policy = unit_policy(network, Sparse(0.0), (1e-3, 1.0)).in_box((0.0, 0.0), (1.0, 1.0))
    return policy.on_raw(jnp.ones(3), jnp.full(3, 2.0)) if standardised else policy


CALLS = {
    "act": lambda policy, observation: policy.act(observation),
    "sample": lambda policy, observation: policy.act(observation, jax.random.key(1)),
    "support": lambda policy, observation: policy.support(observation),
    "distribution": lambda policy, observation: policy(observation),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("standardised", [False, True])
@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ([0.0, 1.0, np.nan], "observation 2 is nan: "),
        ([-np.inf, 1.0, 2.0], "observation 0 is -inf: "),
        ([[0.0, 1.0, 2.0], [0.0, np.inf, 2.0]], "observation 1 of row 1 is inf: "),
        (np.full((4, 2, 3), np.nan), r"observation 0 of row 0, 0 is nan \(24 numbers are not fin"),
    ],
)
def test_an_observation_that_is_not_finite_is_refused(call, standardised, observation, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call(learned_policy(standardised), jnp.asarray(observation))


def test_observations_are_not_checked_in_compiled_code():
    """Values of a tracer are not known, so nan gives nan."""
    policy, bad = learned_policy(), jnp.array([0.0, jnp.nan, 1.0])
    rows = jnp.stack([jnp.zeros(3), bad])
    assert np.isnan(jax.jit(lambda policy, rows: policy.act(rows))(policy, bad)).all()
    compiled = np.asarray(jax.jit(jax.vmap(policy.act))(rows))
    np.testing.assert_array_equal(np.isnan(compiled), [[False] * 2, [True] * 2])
    np.testing.assert_allclose(compiled[0], policy.act(jnp.zeros(3)), rtol=1e-6)
    assert np.isnan(jax.vmap(policy.act)(rows)[1]).all()
    scanned = jax.lax.scan(lambda carry, row: (carry, policy.support(row)), None, rows)[1]
    assert np.isnan(scanned[0][1]).all() and np.isfinite(scanned[0][0]).all()
    # A constant in compiled code is known, and checked.
    with pytest.raises(ValueError, match="observation 1 is nan"):
        jax.jit(lambda key: policy.act(bad, key))(jax.random.key(0))
