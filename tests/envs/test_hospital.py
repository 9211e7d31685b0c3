"""The simulated wards: the law of practice, dynamics, logs, and a policy that is better."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from fat2thin import data
from fat2thin.envs import hospital
from fat2thin.envs.hospital_wards import INSULIN, SEPSIS, SEPSIS_HIDDEN, WARDS, Practice
from fat2thin.evaluation.returns import HospitalEvaluator, TaskError, evaluator

PATIENTS = 1000
MIXTURE = Practice(
    jnp.array([0.3, 0.7]), jnp.array([[0.1, 900.0], [-0.4, 300.0]]),
    jnp.array([[0.09, 180.0], [0.09, 400.0]]),
)  # fmt: skip


def scipy_density(action, law, ward):
    """Return the density of a mixture of truncated normals, by SciPy."""
    low, high = np.asarray(ward.action_low), np.asarray(ward.action_high)
    total = 0.0
    for weight, centre, scale in zip(*map(np.asarray, law), strict=True):
        ends = (low - centre) / scale, (high - centre) / scale
        total += weight * np.prod(scipy.stats.truncnorm.pdf(action, *ends, centre, scale))
    return total


@pytest.fixture(scope="module", params=[INSULIN, SEPSIS_HIDDEN], ids=lambda ward: ward.name)
def ward(request):
    return request.param


@pytest.fixture(scope="module")
def log(ward):
    return jax.tree.map(np.asarray, hospital.log(jax.random.key(5), ward, PATIENTS))


def test_the_density_is_that_of_scipy():
    actions = np.random.default_rng(0).uniform([0, 0], [1, 1000], (20, 2)).astype(np.float32)
    density = jax.vmap(lambda action: hospital.log_density(action, MIXTURE, SEPSIS))(actions)
    expected = [scipy_density(action.astype(float), MIXTURE, SEPSIS) for action in actions]
    np.testing.assert_allclose(np.exp(density), expected, rtol=2e-4)


def test_samples_have_the_density():
    # The probability of a false alarm is 1e-4 for each of the two columns.
    keys = jax.random.split(jax.random.key(1), 2000)
    actions = np.asarray(jax.vmap(lambda key: hospital.sample(key, MIXTURE, SEPSIS))(keys))
    for place, (low, high) in enumerate(zip(SEPSIS.action_low, SEPSIS.action_high, strict=True)):

        def cdf(values, place=place, low=low, high=high):
            total = 0.0
            for weight, centre, scale in zip(*map(np.asarray, MIXTURE), strict=True):
                ends = (np.array([low, high]) - centre[place]) / scale[place]
                law = scipy.stats.truncnorm(*ends, centre[place], scale[place])
                total = total + weight * law.cdf(values)
            return total

        assert scipy.stats.kstest(actions[:, place], cdf).pvalue > 1e-4


def test_glucose_changes_by_what_a_hand_calculation_gives():
    # 200 − .35 (200 − 117.5) + .75 · 2.2 · 40 − 25 / (1 + 50/150) · (.75 · 4 + .5 · 1)
    expected = 200 - 0.35 * 82.5 + 66 - 18.75 * 3.5
    patient = jnp.array([200.0, 1.0, 40.0 * 80.0 / 82.0, 50.0, 80.0, 80.0, 60.0])
    keys = jax.random.split(jax.random.key(2), 4000)
    dose, none = jnp.array([4.0]), jnp.zeros(())
    found = jax.vmap(lambda key: INSULIN.respond(key, patient, dose, none))(keys)
    glucose = np.asarray(found.observation[:, 0])
    # The noise has standard deviation 18; five standard errors.
    np.testing.assert_allclose(glucose.mean(), expected, atol=5 * 18 / np.sqrt(4000))
    np.testing.assert_allclose(found.observation[:, 1], 0.25 * 4 + 0.3 * 1, rtol=1e-6)


def test_a_log_has_what_estimators_rely_on(ward, log):
    present = log.present
    assert present[:, 0].all() and not (present[:, 1:] & ~present[:, :-1]).any()
    ended = present & (log.continuation == 0)
    assert not (ended[:, :-1] & present[:, 1:]).any()  # nothing follows a true end
    assert ended.sum() > log.died.sum() > 5 and (~ended[:, -1] & present[:, -1]).sum() > 5
    low, high = ward.reward_range
    assert low <= log.reward[present].min() and log.reward[present].max() <= high
    inside = (np.asarray(ward.action_low) <= log.action) & (log.action <= ward.action_high)
    assert inside.all()
    # Cuts before the horizon are transfers, which only the insulin ward has.
    lengths = present.sum(axis=1)
    transferred = (lengths < ward.horizon) & ~ended.any(axis=1)
    at_risk = (present[:, :-1] & ~ended[:, :-1]).sum()
    rate = ward.transfer_rate
    assert abs(transferred.sum() - rate * at_risk) <= 4 * np.sqrt(rate * at_risk)


def test_logged_propensities_are_those_of_the_practice_that_acted(ward, log):
    rows = [(3, 0), (10, 0), (11, 0)]
    for row in rows:
        law = ward.practice(jnp.asarray(log.observation[row]), jnp.asarray(log.impression[row]))
        expected = scipy_density(log.action[row].astype(float), law, ward)
        np.testing.assert_allclose(np.exp(log.log_propensity[row]), expected, rtol=1e-3)


def test_the_impression_changes_densities_and_deaths_as_stated():
    patient = SEPSIS.admit(jax.random.key(0))
    actions = jnp.stack([jnp.linspace(0, 1, 50), jnp.linspace(0, 1000, 50)], axis=1)

    def density(impression):
        law = SEPSIS.practice(patient, jnp.asarray(impression))
        return jax.vmap(lambda action: hospital.log_density(action, law, SEPSIS))(actions)

    ratio = np.exp(density(1.0) - density(0.0))
    assert 2 / 3 - 1e-3 <= ratio.min() < 0.7 and 1.3 < ratio.max() <= 4 / 3 + 1e-3
    assert not SEPSIS.hidden and SEPSIS_HIDDEN.hidden
    log = hospital.log(jax.random.key(5), SEPSIS_HIDDEN, PATIENTS)
    steps, end = log.present, log.present & (log.continuation == 0) & (log.died[:, None] > 0)
    seen = [log.impression == one for one in (1.0, -1.0)]
    worse, better = (jnp.sum(end & one) / jnp.sum(steps & one) for one in seen)
    assert worse > 2 * better


@pytest.mark.parametrize(
    "name", ["hospital/insulin", pytest.param("hospital/sepsis", marks=pytest.mark.slow)]
)
def test_the_guideline_is_better_than_practice(name):
    task, key = evaluator(name), jax.random.key(7)
    ward = task.ward
    practice = hospital.practice_rollout(key, ward, 4000)
    better = hospital.rollout(key, hospital.guideline(ward), ward, 4000)
    difference = np.asarray(better.discounted - practice.discounted, np.float64)
    assert difference.mean() > 2.5 * difference.std() / np.sqrt(4000)
    assert better.measures["death_rate"] < practice.measures["death_rate"]


def test_a_policy_of_observations_is_evaluated_without_transfers():
    # Practice, as a policy of observations, has the return of the clinicians on other draws.
    key = jax.random.key(3)

    def act(key, observation):
        return hospital.sample(key, INSULIN.practice(observation, jnp.zeros(())), INSULIN)

    found = hospital.rollout(key, act, INSULIN, 4000)
    clinicians = hospital.practice_rollout(key, INSULIN, 4000)
    np.testing.assert_allclose(found.returns, clinicians.returns, rtol=1e-4, atol=1e-3)
    assert (np.asarray(found.discounted) >= np.asarray(found.returns) - 1e-4).all()


def test_a_log_is_read_by_its_name():
    first = data.load("hospital/insulin@20", 3)
    assert first.sha256 == data.load("hospital/insulin@20", 3).sha256
    assert first.sha256 != data.load("hospital/insulin@20", 4).sha256
    assert first.episode_start.size == 20 and first.propensity_is_density
    assert first.observation_columns[0].label == "glucose (mg/dL)"
    hidden = data.load("hospital/sepsis-hidden@5")
    assert hidden.propensity is None and hidden.action_size == 2
    for name in WARDS:
        assert name in data.names() and hospital.by_name(f"{name}@7") is WARDS[name]


@pytest.mark.parametrize("name", ["hospital/insulin@", "hospital/insulin@x", "hospital/stroke"])
def test_an_unknown_ward_is_refused(name):
    with pytest.raises(ValueError, match="no ward is called"):
        hospital.by_name(name)


def test_a_log_of_too_many_patients_is_refused():
    with pytest.raises(ValueError, match="1 to 100,000 patients"):
        data.load("hospital/insulin@100001")


def test_a_policy_of_another_size_is_refused():
    with pytest.raises(TaskError, match="7 observations"):
        HospitalEvaluator(INSULIN).check(6, (0.0,), (20.0,))
    HospitalEvaluator(INSULIN).check(7, (0.0,), (20.0,))
