"""Policies: what comes out lies in the box, whatever the box and the head."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fat2thin.policies import (
    Head,
    HeavyStudent,
    HeavyTailed,
    Policy,
    Sparse,
    Squashed,
    clip_inward,
    in_half_ranges,
)


class Constant(eqx.Module):
    """A network that says the same for every observation."""

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


FAMILIES = [HeavyTailed(2.0), HeavyStudent(3.0), Squashed(), Sparse(0.0), Sparse(0.0, "clip")]


@eqx.filter_jit
def look_at(policy):
    """Band, law and actions of a policy of one coordinate, compiled once for all its numbers."""
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
def test_inside_keeps_the_band_in_any_box(centre, width, middle, half_range):
    low, high = np.float32(middle - half_range), np.float32(middle + half_range)
    policy = make(Sparse(0.0, "inside"), centre, width, low, high)
    (band_low, band_high), (loc, half_width), actions = look_at(policy)
    slack = 1e-5 * (abs(middle) + half_range)
    assert low <= band_low <= band_high <= high
    np.testing.assert_allclose(band_high - band_low, 2 * width * half_range, atol=2 * slack)
    assert loc - half_width >= low - slack
    assert loc + half_width <= high + slack
    assert np.all((low <= actions) & (actions <= high))


def test_a_band_slides_along_an_edge_and_does_not_collapse():
    policy = make(Sparse(0.0, "inside"), 0.99, 0.2, 0.0, 10.0)
    low, high = policy.support(jnp.zeros(2))
    np.testing.assert_allclose([low[0], high[0]], [8.0, 10.0], rtol=1e-6)
    np.testing.assert_allclose(policy.act(jnp.zeros(2)), 9.0, rtol=1e-6)


def test_clip_puts_an_atom_on_the_edge():
    policy = make(Sparse(0.0, "clip"), 0.9, 0.4, -1.0, 1.0)
    keys = jax.random.split(jax.random.key(0), 20_000)
    actions = np.asarray(jax.vmap(lambda key: policy.act(jnp.zeros(2), key))(keys))[:, 0]
    shape = scipy.stats.beta(2, 2, 0.5, 0.8)
    share, expected = np.mean(actions == 1.0), shape.sf(1.0)
    assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / actions.size)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_a_box_of_a_hundred_is_a_box_of_one_stretched(family):
    unit = make(family, [0.3, -0.2], [0.2, 0.4], [-1.0, -1.0], [1.0, 1.0])
    large = make(family, [0.3, -0.2], [0.2, 0.4], [-100.0, 0.0], [100.0, 4.0])
    observation, key = jnp.zeros(3), jax.random.key(1)
    stretch = np.array([100.0, 2.0])
    small, big = unit.act(observation, key), large.act(observation, key)
    np.testing.assert_allclose(in_half_ranges(big, large.low, large.high), small, atol=1e-5)
    log_small = unit(observation).log_prob(small)
    np.testing.assert_allclose(
        large(observation).log_prob(big), log_small - np.sum(np.log(stretch)), rtol=1e-3
    )


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_support_holds_every_sample_and_the_centre(family):
    policy = make(family, 0.7, 0.5, -2.0, 1.0)
    low, high = policy.support(jnp.zeros((4, 3)))
    assert low.shape == high.shape == (4, 1)
    actions = jax.vmap(lambda key: policy.act(jnp.zeros((4, 3)), key))(
        jax.random.split(jax.random.key(0), 500)
    )
    assert np.all((low <= actions) & (actions <= high))
    centre = policy.act(jnp.zeros((4, 3)))
    assert np.all((low <= centre) & (centre <= high))
    assert np.all((policy.low <= centre) & (centre <= policy.high))


def test_supports_by_family():
    observation = jnp.zeros(2)
    assert make(HeavyTailed(2.0), 0.0, 0.1, -1.0, 1.0).support(observation)[0] == -jnp.inf
    np.testing.assert_array_equal(
        make(Squashed(), 0.0, 0.1, -3.0, 2.0).support(observation), [[-3], [2]]
    )


def test_probability_outside_the_band_is_exactly_zero():
    policy = make(Sparse(0.0), 0.1, 0.2, -1.0, 1.0)
    density = jnp.exp(policy(jnp.zeros(2)).log_prob(jnp.array([[-0.11], [0.31], [0.9]])))
    np.testing.assert_array_equal(density, 0.0)


def test_clip_inward_blocks_only_what_leads_outside():
    bounds = (jnp.asarray(-1.0), jnp.asarray(1.0))

    def gradient(x, target):
        return jax.grad(lambda y: (clip_inward(y, *bounds) - target) ** 2)(jnp.asarray(x))

    assert gradient(2.0, 3.0) == 0.0
    assert gradient(2.0, 0.0) > 0.0
    assert gradient(-2.0, -3.0) == 0.0
    assert gradient(-2.0, 0.0) < 0.0
    np.testing.assert_allclose(gradient(0.5, 0.0), 1.0)
