"""Tests of exp_q and log_q against closed forms, and of their ratios in extended precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fat2thin.distributions.q_math import exp_q, log1p_ratio, log_expm1_ratio, log_q, polynomial

INDICES = (-20.0, -1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5)


def textbook_exp_q(x, index):
    """Return exp_q by its definition in extended precision, away from q = 1."""
    base = np.longdouble(1.0) + (1.0 - np.longdouble(index)) * np.longdouble(x)
    if base <= 0.0:
        return 0.0 if index < 1.0 else np.inf
    return float(base ** (1.0 / (1.0 - np.longdouble(index))))


@pytest.mark.parametrize("index", [i for i in INDICES if i != 1.0])
def test_exp_q_matches_its_definition(index):
    with jax.enable_x64(True):
        for x in np.linspace(-3.0, 3.0, 61):
            np.testing.assert_allclose(exp_q(x, index), textbook_exp_q(x, index), rtol=1e-12)


def test_exp_q_at_index_zero_is_the_clipped_line():
    x = jnp.linspace(-3.0, 3.0, 101)
    np.testing.assert_allclose(exp_q(x, 0.0), np.maximum(0.0, 1.0 + np.asarray(x)), rtol=1e-6)


@pytest.mark.parametrize("index", [-3.0, 0.0, 0.5])
def test_exp_q_is_exactly_zero_at_and_below_its_threshold(index):
    threshold = -1.0 / (1.0 - index)
    values = exp_q(jnp.array([threshold, threshold - 1e-3, -100.0]), index)
    assert np.all(np.asarray(values) == 0.0)
    slopes = jax.vmap(jax.grad(exp_q), (0, None))(jnp.array([threshold - 1e-3, -100.0]), index)
    assert np.all(np.asarray(slopes) == 0.0)
    assert exp_q(threshold + 1e-3, index) > 0.0


def test_exp_q_diverges_above_one():
    assert exp_q(1.0, 2.0) == jnp.inf
    np.testing.assert_allclose(exp_q(0.5, 2.0), 2.0, rtol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e-7, -1e-7, 1e-4, -1e-4, 0.05, -0.05])
def test_derivative_in_the_index_is_accurate_around_one(offset):
    """d exp_q(x) / dq = exp(x) x^2 / 2 at q = 1 (expand (1 + hx)^(1/h) in h = 1 - q)."""
    x, index = 0.8, 1.0 + offset
    slope = jax.grad(exp_q, 1)(jnp.float32(x), jnp.float32(index))
    step = 1e-3
    exact = (textbook_exp_q(x, index + step + 1e-12) - textbook_exp_q(x, index - step + 1e-12)) / (
        2.0 * step
    )
    np.testing.assert_allclose(slope, exact, rtol=1e-4)


@settings(deadline=None)
@given(
    x=st.floats(0.05, 20.0),
    index=st.floats(-1.0, 2.5),
)
def test_exp_q_inverts_log_q(x, index):
    with jax.enable_x64(True):
        np.testing.assert_allclose(exp_q(log_q(x, index), index), x, rtol=1e-9)


def test_log_q_at_and_below_zero():
    np.testing.assert_allclose(log_q(0.0, 0.5), -2.0)
    assert log_q(0.0, 1.0) == -jnp.inf
    assert log_q(0.0, 2.0) == -jnp.inf
    assert jnp.isnan(log_q(-1.0, 0.5))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ratios_match_extended_precision(dtype):
    around_switches = [0.2499, 0.2501, 0.41418, 0.99, 1.01]
    magnitudes = np.concatenate([np.logspace(-8, -0.01, 200), around_switches])
    x = np.concatenate([-magnitudes[magnitudes < 0.99], magnitudes]).astype(dtype)
    exact = x.astype(np.longdouble)
    tolerance = 20.0 * np.finfo(dtype).eps
    with jax.enable_x64(dtype is np.float64):
        np.testing.assert_allclose(log1p_ratio(x), np.log1p(exact) / exact, rtol=tolerance)
        np.testing.assert_allclose(
            log_expm1_ratio(x), np.log(np.expm1(exact) / exact), rtol=0, atol=tolerance
        )
        slope = jax.vmap(jax.grad(log1p_ratio))(jnp.asarray(x))
        # For smaller x the textbook derivative cancels, even in extended precision.
        resolved = np.abs(x) > 0.02
        textbook = (exact / (1.0 + exact) - np.log1p(exact)) / exact**2
        np.testing.assert_allclose(
            np.asarray(slope)[resolved], textbook[resolved].astype(float), rtol=200 * tolerance
        )
        small = x[~resolved].astype(float)
        taylor = -1 / 2 + 2 * small / 3 - 3 * small**2 / 4 + 4 * small**3 / 5
        np.testing.assert_allclose(np.asarray(slope)[~resolved], taylor, rtol=1e-6)


def test_log_expm1_ratio_does_not_overflow():
    np.testing.assert_allclose(log_expm1_ratio(1000.0), 1000.0 - np.log(1000.0), rtol=1e-6)
    np.testing.assert_allclose(log_expm1_ratio(-1000.0), -np.log(1000.0), rtol=1e-6)


def test_polynomial_matches_numpy():
    coefficients = (1.0, -2.0, 0.5, 3.0)
    x = np.linspace(-2.0, 2.0, 9)
    expected = np.polynomial.polynomial.polyval(x, coefficients)
    np.testing.assert_allclose(polynomial(coefficients, jnp.asarray(x)), expected, rtol=1e-5)
