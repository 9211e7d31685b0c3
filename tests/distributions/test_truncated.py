"""Truncated laws against SciPy and quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from fat2thin.distributions import BoxBeta
from fat2thin.distributions.truncated import (
    BetaKernel,
    DensityKernel,
    SquashedKernel,
    TailKernel,
    Truncated,
)

# Each compiles a quadrature of its own, which takes seconds.
pytestmark = [pytest.mark.slow, pytest.mark.long]


def one(number):
    return jnp.array([number], jnp.float32)


BETA = (one(4.0), one(2.0), one(-1.0), one(1.0))
KERNELS = {
    "cauchy": TailKernel(one(0.1), one(0.05), 2.0),
    "squashed": SquashedKernel(one(0.9), one(0.4), 1.0, one(-1.0), one(1.0)),
    "beta": BetaKernel(*BETA),
    "density": DensityKernel(BoxBeta(*BETA, validate_args=False), one(0.5)),
}


@pytest.mark.parametrize(
    ("loc", "scale", "low", "high"),
    [
        (0.0, 1.0, -0.5, 0.75),
        (0.0, 1.0, 3.0, 5.0),
        (0.25, 8.0, -1.0, 1.0),
        (0.5, 0.01, 0.25, 0.375),
    ],
)
def test_truncated_gaussian_agrees_with_scipy(loc, scale, low, high):
    law = Truncated(TailKernel(one(loc), one(scale), 1.0), one(low), one(high))
    scale = float(np.float32(scale))
    twin = stats.truncnorm((low - loc) / scale, (high - loc) / scale, loc, scale)
    inside = np.linspace(low, high, 9)[1:-1]
    density = law.log_prob(jnp.asarray(inside, jnp.float32)[:, None])[:, 0]
    np.testing.assert_allclose(density, twin.logpdf(np.float32(inside)), atol=5e-4)
    # Absolute: a mean near 0 is a sum of numbers as large as the ends, rounded to float32.
    np.testing.assert_allclose(
        law.mean[0], twin.mean(), rtol=0, atol=1e-6 * max(abs(low), abs(high))
    )
    drawn = np.asarray(law.sample(jax.random.key(1), (4000,)), np.float64)[:, 0]
    assert drawn.min() >= low and drawn.max() <= high
    assert stats.kstest(drawn, twin.cdf).pvalue > 1e-4


@pytest.mark.parametrize("name", KERNELS)
def test_densities_integrate_to_one_and_agree_with_the_entropy(name):
    law = Truncated(KERNELS[name], one(-0.25), one(0.75))
    grid = np.linspace(-0.25, 0.75, 4001)
    log_density = np.asarray(law.log_prob(jnp.asarray(grid, jnp.float32)[:, None]), np.float64)[
        :, 0
    ]
    density = np.exp(log_density)
    assert abs(integrate.simpson(density, x=grid) - 1.0) < 1e-5
    entropy = integrate.simpson(-density * log_density, x=grid)
    np.testing.assert_allclose(law.entropy()[0], entropy, atol=1e-4)
    assert law.log_prob(one(0.76))[0] == -jnp.inf


def test_a_width_of_zero_is_a_point_mass():
    law = Truncated(KERNELS["cauchy"], one(0.25), one(0.25))
    assert law.sample(jax.random.key(0), (3,)).tolist() == [[0.25]] * 3
    assert law.log_prob(one(0.25))[0] == 0.0 and law.log_prob(one(0.3))[0] == -jnp.inf
    assert law.entropy()[0] == 0.0


def test_samples_carry_the_derivative_of_the_quantile():
    def quantile(loc):
        return Truncated(TailKernel(loc, one(0.3), 1.0), one(-0.5), one(0.7)).icdf(one(0.3))[0]

    def twin(loc):
        return stats.truncnorm.ppf(0.3, (-0.5 - loc) / 0.3, (0.7 - loc) / 0.3, loc, 0.3)

    slope = (twin(0.6 + 1e-5) - twin(0.6 - 1e-5)) / 2e-5
    np.testing.assert_allclose(jax.grad(quantile)(one(0.6))[0], slope, rtol=1e-4)
