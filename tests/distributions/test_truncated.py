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


def twin_of(index):
    """Return SciPy's law, and how many of its scales are one of a q-Gaussian of this index."""
    if index == 1.0:
        return stats.norm, 1.0
    return stats.t((3.0 - index) / (index - 1.0)), np.sqrt(2.0 / (3.0 - index))


def quantile(twin, left, right, share):
    """Return quantiles of a law on [left, right] in float64, by bisection of log tails."""
    mirrored = left + right < 0.0
    begin, end = np.where(mirrored, -right, left), np.where(mirrored, -left, right)
    upper, lower = np.where(mirrored, (share, 1.0 - share), (1.0 - share, share))
    with np.errstate(divide="ignore"):
        shares = np.log(upper), np.log(lower)
    above, below = (
        np.logaddexp(shares[0] + tail(begin), shares[1] + tail(end))
        for tail in (twin.logsf, twin.logcdf)
    )
    downward, least, most = below < above, begin, end
    for _ in range(100):
        middle = least + (most - least) / 2.0
        short = np.where(downward, twin.logcdf(middle) < below, twin.logsf(middle) > above)
        least, most = np.where(short, middle, least), np.where(short, most, middle)
    return np.where(mirrored, -least, least)


def intervals_and_shares(count):
    """Return ends in scales, a few far in a tail, and shares, half of them near 0 or 1."""
    draw = np.random.default_rng(5)
    reach = np.where(np.arange(count) % 2, 6.0, 10.0 ** draw.uniform(0, 1.5, count))
    left = draw.choice([-1, 1], count) * reach * draw.uniform(0.1, 1, count)
    width = 10.0 ** draw.uniform(-4, 3, count)
    left, right = np.where(np.arange(count) % 4 < 2, (left, left + width), (-left - width, -left))
    share, near = draw.uniform(size=count), 10.0 ** draw.uniform(-7, 0, count)
    share[: count // 4] = near[: count // 4]
    share[-count // 4 :] = 1.0 - near[-count // 4 :]
    return left, right, np.float32(share)


INDICES = [1.0, 1.01, 1.1, 1.25, 1.5, 2.0, 2.5, 2.9]


@pytest.mark.parametrize("index", INDICES)
def test_quantiles_and_their_derivatives_agree_with_scipy(index):
    """Newton's step must stay where rounding makes it zero: bisecting from there loses the root."""
    twin, factor = twin_of(index)
    left, right, share = intervals_and_shares(4000)
    draw = np.random.default_rng(6)
    loc = np.float32(draw.choice([0.0, 0.3, -5.0, 40.0], 4000))
    scale = np.float32(10.0 ** draw.uniform(-2, 2, 4000))
    low, high = np.float32(loc + scale * left), np.float32(loc + scale * right)

    def ours(loc, scale):
        law = Truncated(TailKernel(loc, scale, index), jnp.asarray(low), jnp.asarray(high))
        return law.icdf(jnp.asarray(share))

    def scipys(loc, scale, share):
        ends = ((end - loc) / (scale * factor) for end in (low, high))
        return loc + scale * factor * quantile(twin, *ends, share)

    found, pull = jax.jit(lambda *given: jax.vjp(ours, *given))(
        jnp.asarray(loc), jnp.asarray(scale)
    )
    slopes = pull(jnp.ones(4000, jnp.float32))
    loc, scale, share = (part.astype(np.float64) for part in (loc, scale, share))
    wanted = scipys(loc, scale, share)
    assert ((low <= found) & (found <= high)).all()
    # Of a tail of 1e-7, panels in which a Gaussian falls steeply leave 5e-5 uncertain.
    nearer = np.where(share > 0.5, 1.0 - share, share)
    moved = [scipys(loc, scale, np.clip(share + step * nearer, 0, 1)) for step in (-5e-5, 5e-5)]
    rounding = 4 * 2.0**-23 * np.maximum(np.abs(loc), np.abs(wanted))
    np.testing.assert_array_less(
        np.abs(found - wanted), moved[1] - moved[0] + rounding + 1e-6 * scale
    )
    step = 1e-4 * scale
    for slope, steps in zip(slopes, ((step, 0 * step), (0 * step, step)), strict=True):
        ends = [scipys(loc + sign * steps[0], scale + sign * steps[1], share) for sign in (-1, 1)]
        exact = (ends[1] - ends[0]) / (2.0 * step)
        # Of the location beside the ends, in scales, float32 keeps as many digits as it has.
        away = np.maximum(np.abs(low - loc), np.abs(high - loc)) / scale
        digits = 2.0**-20 * (np.abs(loc) / scale + np.minimum(away, 1e4) + 100.0)
        np.testing.assert_array_less(np.abs(slope - exact), digits * (1.0 + np.abs(exact)) + 1e-4)


def test_ends_of_the_quantile_are_those_of_the_interval():
    law = Truncated(TailKernel(one(0.0), one(1e-3), 1.0), one(-1.0), one(2.0))
    shares = jnp.array([0.0, 1.0, -0.1, 1.1, jnp.nan])[:, None]
    np.testing.assert_array_equal(law.icdf(shares)[:, 0], [-1.0, 2.0, np.nan, np.nan, np.nan])
