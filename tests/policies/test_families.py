"""Policy families compared with SciPy's distributions, on boxes of different position and size."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fat2thin.policies.families import (
    Beta,
    Deterministic,
    Family,
    Head,
    HeavyTailed,
    Sparse,
    Squashed,
)

LOW, HIGH = np.array([-3.0, 10.0], np.float32), np.array([1.0, 10.5], np.float32)
MIDDLE, HALF_RANGE = (LOW + HIGH) / 2.0, (HIGH - LOW) / 2.0
PLACES = np.linspace(0.0, 1.0, 2001, dtype=np.float32)[1:-1]
GRID = LOW + (HIGH - LOW) * PLACES[:, None]
"""Actions across the box; both coordinates are at the same relative position."""

CENTRES = ([0.3, -0.7], [0.0, 0.95], [-0.999, 0.5])


@eqx.filter_jit
def densities(family, centre, scale):
    """Return the log density at every action of `GRID`, per coordinate and jointly."""
    head = Head(centre, jnp.log(scale))
    law = family.distribution(head, jnp.asarray(LOW), jnp.asarray(HIGH))
    return law.base_dist.log_prob(GRID), law.log_prob(GRID)


def on_grid(family, centre, scale):
    return densities(family, jnp.array(centre), jnp.array(scale))


@pytest.mark.parametrize("centre", CENTRES)
@pytest.mark.parametrize("scale", [(0.1, 0.5), (0.02, 3.0)])
def test_beta_matches_scipy_on_the_box(centre, scale):
    found, joint = on_grid(Beta(), centre, scale)
    total = 0.0
    for column in range(2):
        place, strength = (1.0 + centre[column]) / 2.0, scale[column] ** -2
        law = scipy.stats.beta(
            1.0 + place * strength,
            1.0 + (1.0 - place) * strength,
            LOW[column],
            HIGH[column] - LOW[column],
        )
        expected = law.logpdf(GRID[:, column].astype(float))
        # In the tails the logarithm is in the thousands, and the grid itself is rounded.
        np.testing.assert_allclose(found[:, column], expected, rtol=2e-3, atol=5e-3)
        total += expected
    np.testing.assert_allclose(joint, total, rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize("centre", CENTRES)
def test_the_mode_of_beta_is_the_centre(centre):
    found, _ = on_grid(Beta(), centre, (0.1, 0.3))
    highest = GRID[np.argmax(found, axis=0), np.arange(2)]
    expected = MIDDLE + HALF_RANGE * np.array(centre)
    np.testing.assert_allclose((highest - expected) / HALF_RANGE, 0.0, atol=2e-3)
    head = Head(jnp.array(centre), jnp.zeros(2))
    np.testing.assert_allclose(
        Beta().centre(head, jnp.asarray(LOW), jnp.asarray(HIGH)), expected, rtol=1e-5
    )


def test_a_wide_beta_is_uniform():
    found, _ = on_grid(Beta(), (0.3, -0.9), (100.0, 1000.0))
    np.testing.assert_allclose(found, np.broadcast_to(-np.log(HIGH - LOW), found.shape), atol=2e-3)


@pytest.mark.parametrize("scale", [(0.02, 0.05), (0.1, 0.1)])
def test_the_scale_of_a_narrow_beta_in_the_middle_is_its_standard_deviation(scale):
    """Exactly 1 / sqrt(3 + scale^-2) half-ranges, which is 1.5 % below a scale of 0.1."""
    found, _ = on_grid(Beta(), (0.0, 0.0), scale)
    density = np.exp(np.asarray(found, float))
    share = density / density.sum(axis=0)
    deviation = np.sqrt(np.sum(share * ((GRID - MIDDLE) / HALF_RANGE) ** 2, axis=0))
    np.testing.assert_allclose(deviation, scale, rtol=0.016)
    np.testing.assert_allclose(deviation, 1.0 / np.sqrt(3.0 + np.array(scale) ** -2.0), rtol=1e-3)


@pytest.mark.parametrize("centre", CENTRES)
def test_a_clipped_gaussian_matches_scipys_normal(centre):
    scale = (0.2, 2.0)
    found, joint = on_grid(HeavyTailed(1.0), centre, scale)
    law = scipy.stats.norm(MIDDLE + HALF_RANGE * np.array(centre), HALF_RANGE * np.array(scale))
    np.testing.assert_allclose(found, law.logpdf(GRID), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(joint, law.logpdf(GRID).sum(axis=1), rtol=1e-4, atol=1e-4)


def test_a_sparse_policy_of_index_zero_matches_scipys_parabola():
    """The head's scale is the half-width in half-ranges, not the scale of the q-Gaussian."""
    centre, half_width = np.array([0.3, -0.2]), np.array([0.5, 0.1])
    found, _ = on_grid(Sparse(0.0), centre.astype(np.float32), half_width.astype(np.float32))
    band_low = MIDDLE + HALF_RANGE * (centre - half_width)
    law = scipy.stats.beta(2, 2, band_low, 2 * HALF_RANGE * half_width)
    inside = law.pdf(GRID) > 1e-2
    np.testing.assert_allclose(np.exp(found)[inside], law.pdf(GRID)[inside], rtol=5e-3)
    outside = np.abs((GRID - MIDDLE) / HALF_RANGE - centre) > half_width + 1e-3
    np.testing.assert_array_equal(np.exp(found)[outside], 0.0)


def test_a_band_wider_than_the_box_is_the_box():
    """For any centre and any half-width above 1."""
    low, high = jnp.asarray(LOW), jnp.asarray(HIGH)
    head = Head(jnp.array([0.9, -0.4]), jnp.log(jnp.array([3.0, 1.01])))
    law = Sparse(0.0).distribution(head, low, high).base_dist
    np.testing.assert_allclose(law.loc, MIDDLE, rtol=1e-6)
    np.testing.assert_allclose(law.half_width, HALF_RANGE, rtol=1e-6)
    np.testing.assert_allclose(Sparse(0.0).support(head, low, high), (LOW, HIGH), rtol=1e-6)
    # With the published rule the band keeps its width; only the support is clipped.
    loose = Sparse(0.0, "clip").distribution(head, low, high).base_dist
    np.testing.assert_allclose(loose.half_width, HALF_RANGE * np.array([3.0, 1.01]), rtol=1e-6)


def test_a_deterministic_policy_has_exactly_one_action():
    head = Head(jnp.array([[0.5, -0.5], [0.0, 1.0]]), jnp.zeros((2, 2)))
    expected = np.array([[0.0, 10.125], [-1.0, 10.5]])
    family, low, high = Deterministic(), jnp.asarray([LOW]), jnp.asarray([HIGH])
    np.testing.assert_allclose(family.centre(head, low, high), expected)
    for end in family.support(head, low, high):
        np.testing.assert_allclose(end, expected)
    law = family.distribution(head, low, high)
    samples = law.sample(jax.random.key(0), (5,))
    np.testing.assert_allclose(samples, np.broadcast_to(expected, (5, 2, 2)))
    with jax.numpy_rank_promotion("allow"):  # inside NumPyro's Delta
        np.testing.assert_array_equal(law.log_prob(samples + 0.1), -np.inf)


def test_only_subclasses_of_family_are_families():
    assert all(isinstance(family, Family) for family in (Beta(), Squashed(), Deterministic()))
    assert not isinstance(scipy.stats.norm, Family)
