"""Tests that the published forms have exactly the errors that algebra predicts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from fat2thin.distributions.published import (
    AuthorsProposal,
    PaperQGaussian,
    authors_actor,
    published_box_muller,
)
from oracles import scipy_twin


def test_published_sampler_is_gaussian_at_index_two():
    """At q = 2 the published index gives exactly standard normal samples."""
    values = np.asarray(published_box_muller(jax.random.key(0), (100_000,), 2.0), float)
    assert scipy.stats.kstest(values, scipy.stats.norm.cdf).pvalue > 1e-6
    assert scipy.stats.kstest(values, scipy_twin(0.0, 1.0, 2.0).cdf).statistic > 0.1


def test_published_sampler_has_index_minus_three_at_index_zero():
    """At q = 0 the samples have index -3 and the map's own scale, sqrt((3 - q) / 2) = sqrt(3)."""
    values = np.asarray(published_box_muller(jax.random.key(0), (100_000,), 0.0), float)
    assert scipy.stats.kstest(values, scipy_twin(0.0, np.sqrt(3.0), -3.0).cdf).pvalue > 1e-6
    np.testing.assert_allclose(values.std(), 0.654, atol=0.005)
    assert np.max(np.abs(values)) <= 1.22475


@pytest.mark.parametrize("index", [-1.0, 0.0, 1.5, 2.0])
def test_printed_normaliser_has_mass_root_two(index):
    with jax.enable_x64(True):
        x = scipy_twin(0.0, 1.0, index).ppf(np.linspace(0.001, 0.999, 2001))
        density = np.exp(PaperQGaussian(0.0, 1.0, index).log_prob(x))
    np.testing.assert_allclose(scipy.integrate.simpson(density, x=x), 0.998 * np.sqrt(2), rtol=1e-4)


def test_printed_normaliser_is_correct_only_for_the_gaussian():
    x = jnp.linspace(-2.0, 2.0, 9)
    log_density = PaperQGaussian(0.0, 1.0, 1.0).log_prob(x)
    np.testing.assert_allclose(log_density, scipy.stats.norm.logpdf(x), rtol=1e-5)


def radial_mass(distribution, count, radius):
    """Return the mass of an isotropic density inside a ball, by quadrature over the radius."""
    area = 2 * np.pi ** (count / 2) / scipy.special.gamma(count / 2)
    radii = np.concatenate([[0.0], np.geomspace(1e-4, radius, 4001)])
    points = np.zeros((radii.size, count))
    points[:, 0] = radii
    density = np.exp(np.asarray(distribution.log_prob(points), float))
    return scipy.integrate.simpson(area * radii ** (count - 1) * density, x=radii)


def test_authors_proposal_has_mass_root_two_or_a_divergent_one():
    with jax.enable_x64(True):
        line = AuthorsProposal(np.zeros(1), np.ones(1))
        np.testing.assert_allclose(radial_mass(line, 1, 1e6), np.sqrt(2), rtol=1e-3)
        space = AuthorsProposal(np.zeros(3), np.ones(3))
        np.testing.assert_allclose(radial_mass(space, 3, 100.0), 249.0, rtol=0.01)
        six = AuthorsProposal(np.zeros(6), np.ones(6))
        np.testing.assert_allclose(radial_mass(six, 6, 100.0), 9e7, rtol=0.05)


def test_authors_proposal_samples_are_gaussian():
    proposal = AuthorsProposal(jnp.array([1.0, -1.0]), jnp.array([0.25, 4.0]))
    values = np.asarray(proposal.sample(jax.random.key(0), (50_000,)), float)
    for column, (loc, deviation) in zip(values.T, [(1.0, 0.5), (-1.0, 2.0)], strict=True):
        assert scipy.stats.kstest(column, scipy.stats.norm(loc, deviation).cdf).pvalue > 1e-6


def test_authors_actor_has_the_documented_implicit_widths():
    for count, radius in {1: 1.1447, 3: 1.0360, 6: 1.0561}.items():
        np.testing.assert_allclose(
            authors_actor(jnp.zeros(count), jnp.ones(count)).half_width, radius, atol=5e-5
        )
        narrow = authors_actor(jnp.zeros(count), jnp.full(count, jnp.exp(-14.0))).half_width
        np.testing.assert_allclose(narrow, radius * np.exp(-14 / (count + 2)), rtol=1e-4)
    line = authors_actor(jnp.zeros(1), jnp.full(1, 0.02)).half_width
    np.testing.assert_allclose(line, (1.5 * 0.02) ** (1 / 3), rtol=1e-5)


def test_authors_actor_has_the_density_of_the_beta_gaussian():
    """The density [-tau - m^2 / 2]_+ falls by m^2 / 2 from its peak, whatever tau is."""
    spread = jnp.array([0.3, 0.05])
    actor = authors_actor(jnp.zeros(2), spread)
    point = np.array([0.05, 0.02])
    drop = np.exp(actor.log_prob(jnp.zeros(2))) - np.exp(actor.log_prob(jnp.asarray(point)))
    np.testing.assert_allclose(drop, np.sum(point**2 / np.asarray(spread)) / 2, rtol=1e-3)
