import dataclasses
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import scipy.stats

from fat2thin.envs import treatment
from fat2thin.envs.treatment import Treatment

# Approximate false-alarm level of each statistical test below, all with fixed keys.
LEVEL = 1e-6
DEVIATIONS = 5.0


@pytest.fixture
def without_type_checks(monkeypatch):
    """Disable the type checks of the tests, which would refuse some arguments first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def always(dose):
    return jax.tree_util.Partial(_constant_policy, jnp.float32(dose))


def _constant_policy(dose, key, observation):
    return dose[None]


def numpy_latents(latent, doses):
    """Return the latent means after each dose, with the paper's form of the tanh."""
    path = []
    for dose in np.asarray(doses, np.float64):
        pushed = latent + dose * np.array([1, 1, 1, 1, -1, -1, -1, -1])
        latent = (np.exp(pushed) - np.exp(-pushed)) / (np.exp(pushed) + np.exp(-pushed))
        path.append(latent)
    return np.stack(path)


def numpy_reward(kind, s, x):
    s1, s2, s3, s4, s5, s6, s7, s8 = np.asarray(s, np.float64).T
    if kind == "cubic":
        cubes = s1**3 / 8 + s2**3 / 8 + s5**3 / 4 + s6**3 / 4
        return cubes + s3 + s4 + s7 / 2 + s8 / 2
    return -(np.exp((s1 + s5) / 2)) * x**2 + 2 * (s2 + s3 + s6 + s7 + 0.5) * x + s4 + s8


@pytest.mark.parametrize("reward", ["cubic", "quadratic"])
def test_an_episode_agrees_with_a_numpy_loop(reward):
    task = Treatment(reward=reward, dose_low=-3.0, dose_high=2.0)
    keys = jax.random.split(jax.random.key(1), task.horizon)
    doses = np.random.default_rng(1).uniform(-3, 2, task.horizon)
    state, _ = treatment.reset(jax.random.key(0), task)
    expected = numpy_latents(np.asarray(state.latent, np.float64), doses)
    step = jax.jit(treatment.step, static_argnames="task")
    for time, dose in enumerate(doses):
        state, observation, value, info = step(keys[time], state, jnp.float32([dose]), task=task)
        np.testing.assert_allclose(state.latent, expected[time], atol=2e-6)
        np.testing.assert_allclose(
            value, numpy_reward(reward, observation, dose), rtol=1e-5, atol=1e-5
        )
        np.testing.assert_allclose(info.dose, dose, rtol=1e-6)
        np.testing.assert_allclose(info.cumulative_dose, np.abs(doses[: time + 1]).sum(), rtol=1e-5)
    assert int(state.time) == task.horizon


@pytest.mark.parametrize("covariance", ["episode", "fixed"])
def test_the_noise_has_the_covariance_of_the_episode(covariance):
    task = Treatment(covariance=covariance)
    state, _ = treatment.reset(jax.random.key(2), task)
    sigma = np.asarray(state.noise_factor, np.float64) @ np.asarray(state.noise_factor).T
    count = 100_000
    keys = jax.random.split(jax.random.key(3), count)
    observations = jax.jit(
        jax.vmap(lambda key: treatment.step(key, state, jnp.array([0.3]), task)[1])
    )(keys)
    noise = np.asarray(observations, np.float64)
    noise -= numpy_latents(np.asarray(state.latent, np.float64), [0.3])[0]
    np.testing.assert_array_less(
        np.abs(noise.mean(axis=0)), DEVIATIONS * np.sqrt(np.diag(sigma) / count)
    )
    error = noise.T @ noise / count - sigma
    variance = (np.outer(np.diag(sigma), np.diag(sigma)) + sigma**2) / count
    # 36 different entries, hence slightly more than the usual number of deviations.
    np.testing.assert_array_less(np.abs(error), (DEVIATIONS + 0.7) * np.sqrt(variance))


def test_the_episode_covariance_is_a_sample_correlation_over_two():
    task = Treatment()
    for seed in range(5):
        key = jax.random.key(seed)
        factor = np.asarray(treatment.sample_correlation_factor(key), np.float64)
        matrix = np.asarray(jax.random.uniform(key, (8, 8)), np.float64)
        np.testing.assert_allclose(factor @ factor.T, np.corrcoef(matrix, rowvar=False), atol=1e-6)
        state, _ = treatment.reset(key, task)
        sigma = np.asarray(state.noise_factor, np.float64) @ np.asarray(state.noise_factor).T
        np.testing.assert_allclose(np.diag(sigma), 0.5, rtol=1e-6)
        assert np.linalg.matrix_rank(sigma, tol=1e-6) == 7


def test_the_episode_covariance_differs_between_episodes_and_the_fixed_one_does_not():
    keys = jax.random.split(jax.random.key(4), 2)

    def factors(task):
        return jax.vmap(lambda key: treatment.reset(key, task)[0].noise_factor)(keys)

    first, second = factors(Treatment())
    assert np.abs(first - second).max() > 0.1
    first, second = factors(Treatment(covariance="fixed"))
    np.testing.assert_array_equal(first, second)
    other, _ = factors(Treatment(covariance="fixed", covariance_seed=1))
    assert np.abs(first - other).max() > 0.1


def test_the_fixed_covariance_is_uniform_over_correlation_matrices():
    count = 10_000
    factors = np.asarray(
        jax.jit(jax.vmap(treatment.uniform_correlation_factor))(
            jax.random.split(jax.random.key(5), count)
        ),
        np.float64,
    )
    correlations = factors @ factors.transpose(0, 2, 1)
    np.testing.assert_allclose(np.diagonal(correlations, axis1=1, axis2=2), 1, rtol=1e-6)
    # Each entry of a uniform 8×8 correlation matrix is 2B − 1, B ~ Beta(4, 4).
    for row, column in ((1, 0), (4, 2), (7, 0), (7, 6)):
        entry = (correlations[:, row, column] + 1) / 2
        assert scipy.stats.kstest(entry, scipy.stats.beta(4, 4).cdf).pvalue > LEVEL
    # Its determinant is a product of independent Beta((9 − k)/2, k/2), k = 1..7 (Joe 2006).
    k = np.arange(1, 8)
    oracle = np.random.default_rng(6).beta((9 - k) / 2, k / 2, (count, 7)).prod(axis=1)
    assert scipy.stats.ks_2samp(np.linalg.det(correlations), oracle).pvalue > LEVEL


def test_the_fixed_covariance_of_the_task_has_full_rank():
    state, _ = treatment.reset(jax.random.key(0), Treatment(covariance="fixed"))
    sigma = np.asarray(state.noise_factor, np.float64) @ np.asarray(state.noise_factor).T
    np.testing.assert_allclose(np.diag(sigma), 0.5, rtol=1e-6)
    assert np.linalg.eigvalsh(sigma)[0] > 1e-3


@pytest.mark.parametrize(
    ("initial_state", "law"),
    [("uniform", scipy.stats.uniform(-1, 2)), ("normal", scipy.stats.norm(0, 0.5))],
)
def test_the_law_of_the_initial_latent_state(initial_state, law):
    task = Treatment(initial_state=initial_state)
    keys = jax.random.split(jax.random.key(7), 4000)
    state, observation = jax.jit(jax.vmap(lambda key: treatment.reset(key, task)))(keys)
    for component in np.asarray(state.latent).T:
        assert scipy.stats.kstest(component, law.cdf).pvalue > LEVEL
    noise = np.asarray(observation - state.latent)
    assert scipy.stats.kstest(noise[:, 3], scipy.stats.norm(0, math.sqrt(0.5)).cdf).pvalue > LEVEL


def test_the_initial_latent_state_can_be_zero():
    state, _ = treatment.reset(jax.random.key(0), Treatment(initial_state="zero"))
    np.testing.assert_array_equal(state.latent, np.zeros(8))


# Returns over 24 steps, measured independently over at least 4,000 episodes: the dose (None:
# uniform behaviour), the mean and half a unit of its last digit.
SPECIFIED_RETURNS = {
    "quadratic": [
        (None, -9.37, 0.005), (0.0, -0.1, 0.05), (0.2, 3.6, 0.05), (0.4, 5.14, 0.005),
        (0.441, 5.20, 0.005), (0.6, 4.5, 0.05), (1.0, -3.3, 0.05), (-1.0, -51.0, 0.5),
        (2.0, -61.0, 0.5), (-2.0, -157.0, 0.5),
    ],
    "cubic": [
        (None, -0.2, 0.05), (0.1, 6.1, 0.05), (0.5, 8.71, 0.005), (1.0, 8.91, 0.005),
        (2.0, 8.92, 0.005), (-1.0, -9.0, 0.05),
    ],
}  # fmt: skip


@pytest.mark.parametrize("reward", ["quadratic", "cubic"])
def test_returns_agree_with_independent_measurements(reward):
    task = Treatment(reward=reward)
    wide = dataclasses.replace(task, dose_low=-2.0, dose_high=2.0)
    for dose, mean, rounding in SPECIFIED_RETURNS[reward]:
        policy = treatment.uniform_behaviour(task) if dose is None else always(dose)
        returns = treatment.rollout(jax.random.key(8), policy, wide, 10_000).returns
        deviation = float(jnp.std(returns))
        tolerance = rounding + DEVIATIONS * deviation * math.sqrt(1 / 10_000 + 1 / 4_000)
        assert abs(float(jnp.mean(returns)) - mean) < tolerance, f"dose {dose}"


def test_the_cost_of_policy_variance_agrees_with_algebra():
    task = Treatment(reward="quadratic", dose_low=-10.0, dose_high=10.0)

    def policy(deviation, key, observation):
        return 0.441 + deviation * jax.random.normal(key, (1,))

    for spread, mean in ((0.1, 4.87), (0.2, 4.03), (0.3, 2.65), (0.5, -1.76)):
        noisy = jax.tree_util.Partial(policy, jnp.float32(spread))
        result = treatment.rollout(jax.random.key(9), noisy, task, 10_000)
        deviation = float(jnp.std(result.returns))
        tolerance = DEVIATIONS * deviation * math.sqrt(1 / 10_000 + 1 / 4_000)
        assert abs(float(jnp.mean(result.returns)) - mean) < tolerance
        np.testing.assert_allclose(result.measures["dose_mean"], 0.441, atol=0.006)
        np.testing.assert_allclose(result.measures["dose_variance"], spread**2, rtol=0.02)


def test_vmap_agrees_with_a_loop():
    task = Treatment(reward="quadratic")
    keys = jax.random.split(jax.random.key(10), 4)
    actions = jnp.linspace(-1.5, 1.5, 4)[:, None]

    @jax.jit
    def two_calls(key, action):
        state, observation = treatment.reset(key, task)
        return observation, treatment.step(key, state, action, task)

    together = jax.jit(jax.vmap(two_calls))(keys, actions)
    for patient in range(4):
        alone = two_calls(keys[patient], actions[patient])
        for one, many in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(one, many[patient], rtol=1e-5, atol=1e-6)


def test_a_rollout_depends_only_on_its_key_not_on_the_number_of_episodes():
    task = Treatment(reward="quadratic")
    policy = treatment.uniform_behaviour(task)
    few = treatment.rollout(jax.random.key(11), policy, task, 3)
    again = treatment.rollout(jax.random.key(11), policy, task, 3)
    other = treatment.rollout(jax.random.key(12), policy, task, 3)
    many = treatment.rollout(jax.random.key(11), policy, task, 17)
    np.testing.assert_array_equal(few.returns, again.returns)
    np.testing.assert_array_equal(few.doses, again.doses)
    assert np.abs(few.returns - other.returns).min() > 0
    np.testing.assert_array_equal(few.doses, many.doses[:3])
    np.testing.assert_allclose(few.returns, many.returns[:3], rtol=1e-5, atol=1e-5)
    assert len(np.unique(many.returns)) == 17


def test_all_policies_get_the_same_patients_and_noise():
    task = Treatment(initial_state="zero")

    @jax.jit
    def simulate(dose):
        def begin(start):
            return lambda key, observation, state: dose[None]

        return treatment.trajectories(jax.random.key(14), begin, task, 3)

    def noise(dose):
        path = simulate(jnp.float32(dose))
        latents = numpy_latents(np.zeros(8), np.full(task.horizon, dose))
        return np.asarray(path.observation[:, 0]), np.asarray(path.next_observation) - latents

    for one, other in zip(noise(0.25), noise(-0.75), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_a_rollout_compiles_once_for_a_pytree_and_can_be_nested():
    task = Treatment(horizon=3)
    traces = []

    def policy(dose, key, observation):
        traces.append(dose)
        return dose[None]

    key = jax.random.key(15)
    low, high = (
        treatment.rollout(key, jax.tree_util.Partial(policy, dose), task, 2)
        for dose in jnp.array([0.125, 0.5])
    )
    assert len(traces) == 1
    np.testing.assert_array_equal(high.doses, np.full((2, 3), 0.5))

    nested = jax.jit(
        jax.vmap(lambda dose: treatment.rollout(key, lambda _, __: dose[None], task, 2))
    )(jnp.array([0.125, 0.5]))
    np.testing.assert_allclose(nested.returns[0], low.returns, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(nested.returns[1], high.returns, rtol=1e-5, atol=1e-6)


def test_measures_keep_leading_axes():
    doses = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    over = doses > 0.5
    result = treatment.Rollout(
        returns=jnp.zeros((2, 3)),
        doses=jnp.asarray(doses),
        dose_limit_exceeded=jnp.asarray(over),
        cumulative_limit_exceeded=jnp.asarray(over[..., 0]),
    )
    for batch in range(2):
        np.testing.assert_allclose(
            result.measures["dose_mean"][batch], doses[batch].mean(), rtol=1e-5
        )
        np.testing.assert_allclose(
            result.measures["dose_variance"][batch], doses[batch].var(), rtol=1e-5
        )
        np.testing.assert_allclose(
            result.measures["dose_limit_rate"][batch], over[batch].mean(), rtol=1e-6
        )
        np.testing.assert_allclose(
            result.measures["cumulative_limit_rate"][batch], over[batch, :, 0].mean(), rtol=1e-6
        )


def test_the_log_is_consistent():
    task = Treatment(reward="quadratic", dose_low=-0.5, dose_high=1.5)
    log = treatment.log(jax.random.key(16), task)
    assert {name: array.shape for name, array in log.items()} == {
        "observation": (1200, 8),
        "action": (1200, 1),
        "reward": (1200,),
        "next_observation": (1200, 8),
        "continuation": (1200,),
        "episode_start": (50,),
    }
    np.testing.assert_array_equal(log["episode_start"], 24 * np.arange(50))
    np.testing.assert_array_equal(log["continuation"], np.ones(1200))
    within = np.setdiff1d(np.arange(1200), np.asarray(log["episode_start"]))
    np.testing.assert_array_equal(log["observation"][within], log["next_observation"][within - 1])
    assert np.abs(log["observation"][24] - log["next_observation"][23]).min() > 0
    actions = np.asarray(log["action"])[:, 0]
    assert scipy.stats.kstest(actions, scipy.stats.uniform(-0.5, 2).cdf).pvalue > LEVEL
    np.testing.assert_allclose(
        log["reward"],
        numpy_reward("quadratic", log["next_observation"], actions),
        rtol=1e-4,
        atol=1e-4,
    )


def test_the_log_depends_only_on_its_key():
    task = Treatment()
    first, again, other = (treatment.log(jax.random.key(seed), task, 5) for seed in (1, 1, 2))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert np.abs(first["action"] - other["action"]).min() > 0


def test_limits_are_flagged_when_exceeded_but_not_when_equalled():
    task = Treatment(dose_low=-2.0, dose_high=2.0, dose_limit=0.5, cumulative_dose_limit=1.0)
    state, _ = treatment.reset(jax.random.key(17), task)
    expected = [
        (0.5, False, False),
        (-0.5, False, False),
        (0.0, False, False),
        (0.001, False, True),
        (-0.501, True, True),
        (0.501, True, True),
    ]
    for dose, over, cumulative_over in expected:
        state, _, _, info = treatment.step(jax.random.key(0), state, jnp.float32([dose]), task)
        assert bool(info.dose_limit_exceeded) is over
        assert bool(info.cumulative_limit_exceeded) is cumulative_over


def test_a_nan_dose_counts_as_exceeding_the_limits():
    state, _ = treatment.reset(jax.random.key(0), Treatment())
    *_, reward, info = treatment.step(
        jax.random.key(0), state, jnp.array([jnp.nan]), Treatment(reward="quadratic")
    )
    assert bool(info.dose_limit_exceeded)
    assert bool(info.cumulative_limit_exceeded)
    assert np.isnan(reward)


def test_limit_rates_of_the_uniform_behaviour_agree_with_theory():
    # |U(−1, 1)| is U(0, 1): above .88 with probability .12. The sum of 24 is symmetric about 12.
    task = Treatment()
    result = treatment.rollout(jax.random.key(18), treatment.uniform_behaviour(task), task, 4000)
    over = int(result.dose_limit_exceeded.sum())
    assert scipy.stats.binomtest(over, 4000 * 24, 0.12).pvalue > LEVEL
    cumulative = int(result.cumulative_limit_exceeded.sum())
    assert scipy.stats.binomtest(cumulative, 4000, 0.5).pvalue > LEVEL
    np.testing.assert_array_equal(
        result.dose_limit_exceeded, np.abs(result.doses) > np.float32(0.88)
    )


@pytest.mark.parametrize(("asked", "given"), [(5.0, 2.0), (-5.0, -0.25), (0.75, 0.75)])
def test_a_dose_is_clipped_to_the_box(asked, given):
    task = Treatment(reward="quadratic", dose_low=-0.25, dose_high=2.0)
    state, _ = treatment.reset(jax.random.key(19), task)
    after = treatment.step(jax.random.key(20), state, jnp.array([asked]), task)
    assert float(after[3].dose) == given
    wide = dataclasses.replace(task, dose_low=-10.0, dose_high=10.0)
    unclipped = treatment.step(jax.random.key(20), state, jnp.array([given]), wide)
    for one, other in zip(jax.tree.leaves(after[:3]), jax.tree.leaves(unclipped[:3]), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reward", "linear"),
        ("covariance", "none"),
        ("covariance_seed", -1),
        ("covariance_seed", 1),
        ("covariance_seed", 0.5),
        ("initial_state", "one"),
        ("dose_low", 1.0),
        ("dose_low", -math.inf),
        ("dose_low", "-1"),
        ("dose_high", -1.0),
        ("dose_high", math.nan),
        ("horizon", 0),
        ("horizon", 24.0),
        ("horizon", True),
        ("discount", 1.0),
        ("discount", -0.1),
        ("dose_limit", 0.0),
        ("dose_limit", math.nan),
        ("cumulative_dose_limit", -12.0),
        ("cumulative_dose_limit", None),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_the_error_about_an_invalid_setting_names_it(field, value):
    with pytest.raises(ValueError, match=field):
        Treatment(**{field: value})


def test_limits_can_be_infinite():
    task = Treatment(dose_limit=math.inf, cumulative_dose_limit=math.inf)
    result = treatment.rollout(jax.random.key(0), always(1.0), task, 2)
    assert float(result.measures["dose_limit_rate"]) == 0.0
    assert float(result.measures["cumulative_limit_rate"]) == 0.0


def test_variants_are_found_by_name():
    assert treatment.by_name("treatment/cubic") == Treatment(reward="cubic")
    assert treatment.by_name("treatment/quadratic") == Treatment(reward="quadratic")
    assert treatment.by_name("treatment/quadratic-fixed-normal") == Treatment(
        reward="quadratic", covariance="fixed", initial_state="normal"
    )
    assert len(set(treatment.VARIANTS.values())) == len(treatment.VARIANTS) == 12
    with pytest.raises(ValueError, match="treatment/quartic") as error:
        treatment.by_name("treatment/quartic")
    assert all(name in str(error.value) for name in treatment.VARIANTS)


@pytest.mark.usefixtures("without_type_checks")
def test_wrong_shapes_and_counts_are_refused():
    task = Treatment()
    with pytest.raises(ValueError, match=r"shape \(1,\), got \(\)"):
        treatment.rollout(jax.random.key(0), lambda key, observation: observation[0], task, 2)
    with pytest.raises(ValueError, match="episodes"):
        treatment.rollout(jax.random.key(0), always(0.0), task, 0)


def test_the_simulation_does_not_import_gymnasium():
    program = (
        "import sys, fat2thin, fat2thin.envs.treatment, fat2thin.envs.treatment_reference; "
        "sys.exit('gymnasium' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_fixed_covariance_does_not_depend_on_the_precision():
    task = Treatment(covariance="fixed")
    single, _ = treatment.reset(jax.random.key(0), task)
    with jax.enable_x64(True):
        double, _ = treatment.reset(jax.random.key(0), task)
    assert double.latent.dtype == np.float64
    np.testing.assert_allclose(single.noise_factor, double.noise_factor, rtol=1e-6)
