"""Tests that parameters are found by name and that a distribution can be rebuilt from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import distributions as dist
from numpyro.distributions import transforms
from scipy import stats

from fat2thin.testing.subject import Subject, parameters_of, rebuild

COVARIANCE = jnp.array([[1.0, 0.5], [0.5, 2.0]])


@pytest.mark.parametrize(
    ("distribution", "names"),
    [
        (dist.Normal(1.0, jnp.array([1.0, 2.0])), {"loc", "scale"}),
        (dist.StudentT(3, 0.0, 1.0), {"df", "loc", "scale"}),
        (dist.Beta(2.0, 3.0), {"concentration1", "concentration0"}),
        (dist.Uniform(0.0, 2.0), {"low", "high"}),
        (dist.LogNormal(0.0, 1.0), {"loc", "scale"}),
        (dist.Normal(jnp.ones(2), 1.0).to_event(1), {"loc", "scale"}),
        (dist.Normal(1.0, 2.0).expand([2]), {"loc", "scale"}),
        (dist.Normal(1.0, 2.0).mask(True), {"loc", "scale"}),
        (
            dist.TransformedDistribution(dist.Normal(1.0, 2.0), transforms.ExpTransform()),
            {"loc", "scale"},
        ),
        (dist.MultivariateNormal(jnp.ones(2), COVARIANCE), {"loc", "covariance_matrix"}),
        (
            dist.MultivariateNormal(jnp.ones(2), scale_tril=jnp.tril(COVARIANCE)),
            {"loc", "scale_tril"},
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, dist.Distribution) else "",
)
def test_a_rebuilt_distribution_has_the_same_density(distribution, names):
    parameters = parameters_of(distribution, np.float32)
    assert set(parameters) == names
    again = rebuild(distribution, parameters)
    value = jnp.full(distribution.shape(), 0.7)
    assert again.shape() == distribution.shape()
    first, second = (jax.jit(which.log_prob)(value) for which in (distribution, again))
    np.testing.assert_allclose(first, second, rtol=1e-6)


def test_a_changed_parameter_updates_derived_attributes():
    distribution = dist.Beta(2.0, 3.0)
    parameters = parameters_of(distribution, np.float32)
    changed = rebuild(distribution, {**parameters, "concentration1": jnp.array(5.0)})
    np.testing.assert_allclose(changed.log_prob(0.7), stats.beta(5, 3).logpdf(0.7), rtol=1e-5)


def test_every_batch_element_has_its_own_parameters():
    distribution = dist.Normal(0.0, jnp.array([[1.0], [2.0]]) * jnp.ones((1, 3)))
    parameters = parameters_of(distribution, np.float32)
    assert parameters["loc"].shape == (2, 3)
    assert Subject(distribution, 2_000).element_name(4) == "element (1, 1) loc=0 scale=2"
