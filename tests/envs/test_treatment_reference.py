import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from fat2thin.envs import treatment, treatment_reference
from fat2thin.envs.treatment import Treatment
from fat2thin.evaluation import returns
from fat2thin.random_streams import Stream, stream_key

DEVIATIONS = 5.0
SIGN = np.array([1, 1, 1, 1, -1, -1, -1, -1])


def numpy_reward(kind, s, x):
    if kind == "cubic":
        weights = np.array([1 / 8, 1 / 8, 0, 0, 1 / 4, 1 / 4, 0, 0])
        return s**3 @ weights + s @ np.array([0, 0, 1, 1, 0, 0, 0.5, 0.5])
    toxicity = np.exp((s[..., 0] + s[..., 4]) / 2)
    benefit = s[..., 1] + s[..., 2] + s[..., 5] + s[..., 6] + 0.5
    return -toxicity * x**2 + 2 * benefit * x + s[..., 3] + s[..., 7]


def numpy_expected_return(doses, latent, sigma, kind):
    """Return the expected return by Gauss-Hermite quadrature along single directions of the noise.

    That is enough for cubics of single components and an exponential in one direction: the noise is
    split into the direction of the exponent and a remainder that enters linearly.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    weights = weights / weights.sum()
    total = 0.0
    for dose in doses:
        latent = np.tanh(latent + dose * SIGN)
        if kind == "cubic":
            directions = np.sqrt(np.diag(sigma))
        else:
            exponent = np.array([0.5, 0, 0, 0, 0.5, 0, 0, 0])
            directions = sigma @ exponent / math.sqrt(exponent @ sigma @ exponent)
        total += weights @ numpy_reward(kind, latent + nodes[:, None] * directions, dose)
    return total


def starts(task, count):
    reset = jax.jit(treatment.reset, static_argnames="task")
    return [reset(key, task=task)[0] for key in jax.random.split(jax.random.key(21), count)]


def in_float64(start):
    factor = np.asarray(start.noise_factor, np.float64)
    return np.asarray(start.latent, np.float64), factor @ factor.T


@functools.partial(jax.jit, static_argnames="task")
def latent_plans(start, task):
    myopic = treatment_reference.myopic_plan(start, task)
    return myopic, treatment_reference.best_plan(start, myopic, task)


@pytest.mark.parametrize("reward", ["cubic", "quadratic"])
def test_the_expected_reward_is_the_mean_of_the_reward(reward):
    task = Treatment(reward=reward)
    latent, sigma = in_float64(starts(task, 1)[0])
    samples = np.random.default_rng(0).multivariate_normal(latent, sigma, 400_000)
    for dose in (-0.8, 0.4):
        values = numpy_reward(reward, samples, dose)
        expected = treatment_reference.expected_reward(
            jnp.float32(latent), jnp.float32(sigma), jnp.float32(dose), task
        )
        assert abs(float(expected) - values.mean()) < DEVIATIONS * values.std() / math.sqrt(400_000)


@pytest.mark.parametrize("reward", ["cubic", "quadratic"])
def test_the_expected_return_agrees_with_quadrature(reward):
    task = Treatment(reward=reward)
    doses = np.random.default_rng(1).uniform(-1, 1, task.horizon)
    start = starts(task, 1)[0]
    expected = treatment_reference.expected_return(jnp.float32(doses), start, task)
    np.testing.assert_allclose(
        expected, numpy_expected_return(doses, *in_float64(start), reward), rtol=1e-4
    )


def test_from_zero_the_quadratic_reward_has_a_known_best_dose():
    # Rising and falling components cancel in sums: E r = −e^(Var z / 2) x² + x, z = (s₁ + s₅)/2.
    task = treatment.by_name("treatment/quadratic-fixed-zero")
    start = starts(task, 1)[0]
    _, sigma = in_float64(start)
    best = 0.5 * math.exp(-(sigma[0, 0] + sigma[4, 4] + 2 * sigma[0, 4]) / 8)
    constant = treatment_reference.best_constant_dose(jax.random.key(0), task, 4)
    np.testing.assert_allclose(constant, best, atol=5e-4)
    myopic, plan = latent_plans(start, task)
    np.testing.assert_allclose(myopic, np.full(24, best), atol=5e-4)
    np.testing.assert_allclose(plan, np.full(24, best), atol=5e-4)
    np.testing.assert_allclose(
        treatment_reference.expected_return(plan, start, task), 12 * best, rtol=1e-5
    )


def test_from_zero_the_cubic_reward_has_a_known_best_plan():
    # Components stay at ±m, where E r = (5m − 2m³)/8 is largest at m = √(5/6). The first dose can
    # only reach tanh 1 < m, the second reaches m, the others keep it.
    task = treatment.by_name("treatment/cubic-zero")
    start = starts(task, 1)[0]
    best = math.sqrt(5 / 6)
    expected = [1.0, math.atanh(best) - math.tanh(1)] + 22 * [math.atanh(best) - best]
    _, plan = latent_plans(start, task)
    np.testing.assert_allclose(plan, expected, atol=5e-3)
    value = (5 * math.tanh(1) - 2 * math.tanh(1) ** 3 + 23 * (5 * best - 2 * best**3)) / 8
    np.testing.assert_allclose(
        treatment_reference.expected_return(plan, start, task), value, rtol=1e-5
    )


@pytest.mark.parametrize("reward", ["cubic", "quadratic"])
def test_the_best_plan_is_as_good_as_that_of_scipy(reward):
    task = Treatment(reward=reward, horizon=8, dose_low=-0.5, dose_high=1.5)
    shortfalls = []
    for start in starts(task, 3):
        latent, sigma = in_float64(start)

        def loss(doses, latent=latent, sigma=sigma):
            return -numpy_expected_return(doses, latent, sigma, reward)

        plan = np.asarray(latent_plans(start, task)[1], np.float64)
        assert np.all((plan >= -0.5) & (plan <= 1.5))
        found = min(
            scipy.optimize.minimize(
                loss, np.full(8, origin), bounds=[(-0.5, 1.5)] * 8, method="L-BFGS-B"
            ).fun
            for origin in (-0.25, 0.25, 1.0)
        )
        shortfalls.append(loss(plan) - found)
    assert np.mean(shortfalls) < 0.02


@functools.cache
def rows_of(reward):
    return treatment_reference.reference_rows(jax.random.key(22), Treatment(reward=reward), 3000)


@pytest.fixture(params=["quadratic", "cubic"])
def measured(request):
    return request.param, rows_of(request.param)


# As specified, with a standard error (of 4,000 episodes if none is stated) and rounding.
SPECIFIED_ROWS = {
    "quadratic": {
        "uniform": (-9.37, 0.16, 0.005),
        "best constant": (5.20, 0.06, 0.005),
        "myopic latent": (5.62, 0.13, 0.005),
    },
    "cubic": {"uniform": (-0.2, 0.13, 0.05), "best constant": (9.0, 0.14, 0.05)},
}


def test_reference_rows_agree_with_known_results(measured):
    reward, rows = measured
    assert list(rows) == ["uniform", "best constant", "myopic latent", "best latent"]
    for name, (mean, standard_error, rounding) in SPECIFIED_ROWS[reward].items():
        tolerance = rounding + DEVIATIONS * math.hypot(standard_error, rows[name].standard_error)
        assert abs(rows[name].mean - mean) < tolerance, name
    best_dose = {"quadratic": 0.441, "cubic": 1.0}[reward]
    np.testing.assert_allclose(rows["best constant"].measures["dose_mean"], best_dose, atol=0.02)
    assert f"{rows['best constant'].measures['dose_mean']:.3f}" in rows["best constant"].rule


def test_stored_rows_agree_with_other_patients(measured):
    reward, rows = measured
    stored = returns.stored_references()[Treatment(reward=reward)]
    assert list(stored) == list(rows)
    for name, row in rows.items():
        tolerance = DEVIATIONS * math.hypot(row.standard_error, stored[name].standard_error)
        assert abs(row.mean - stored[name].mean) < tolerance, name
        assert stored[name].measures == pytest.approx(row.measures, abs=0.03)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("reward", ["quadratic", "cubic"])
def test_stored_rows_are_those_of_the_stated_key(reward):
    task = Treatment(reward=reward)
    key = stream_key(returns.REFERENCE_SEED, Stream.REFERENCE)
    rows = treatment_reference.reference_rows(key, task, returns.REFERENCE_EPISODES)
    for name, row in returns.stored_references()[task].items():
        assert rows[name].mean == pytest.approx(row.mean, abs=1e-3)
        assert rows[name].standard_error == pytest.approx(row.standard_error, rel=1e-3)
        assert rows[name].measures == pytest.approx(row.measures, abs=1e-3)
        assert (rows[name].rule, rows[name].episodes) == (row.rule, row.episodes)


def test_seeing_the_latent_state_and_planning_ahead_both_help(measured):
    _, rows = measured
    means = [row.mean for row in rows.values()]
    # All use the same patients and noise, so even small differences of means are significant.
    assert means == sorted(means)
    assert means[3] > means[2] + 1


def test_limit_rates_of_the_reference_rows(measured):
    reward, rows = measured
    assert abs(rows["uniform"].measures["dose_limit_rate"] - 0.12) < 0.01
    assert abs(rows["uniform"].measures["dose_variance"] - 1 / 3) < 0.01
    assert rows["best constant"].measures["dose_variance"] < 1e-8
    expected = {"quadratic": 0.0, "cubic": 1.0}[reward]
    assert rows["best constant"].measures["dose_limit_rate"] == expected
    assert rows["best constant"].measures["cumulative_limit_rate"] == expected


def test_a_standard_error_needs_two_episodes():
    with pytest.raises(ValueError, match="episodes"):
        treatment_reference.reference_rows(jax.random.key(0), Treatment(), 1)
