import warnings

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils import seeding
from gymnasium.utils.env_checker import check_env

import fat2thin.envs.gym
from fat2thin.envs import treatment
from fat2thin.envs.gym import IDENTIFIERS, TreatmentEnv


@pytest.mark.parametrize("identifier", IDENTIFIERS)
def test_gymnasium_accepts_the_environment(identifier):
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        check_env(gymnasium.make(identifier).unwrapped)
    # The checker warns about unbounded observations, but Gaussian ones are unbounded.
    assert len(remarks) == 2
    assert all("infinity" in str(remark.message) for remark in remarks)


@pytest.mark.parametrize(("identifier", "name"), IDENTIFIERS.items())
def test_an_episode_agrees_with_the_pure_functions(identifier, name):
    task = treatment.by_name(name)
    environment = gymnasium.make(f"fat2thin.envs.gym:{identifier}")
    first, report = environment.reset(seed=5)
    assert report == {}

    generator, _ = seeding.np_random(5)
    key, noise_key = jax.random.split(jax.random.key(int(generator.integers(2**31))))
    state, observation = treatment.reset(key, task)
    np.testing.assert_allclose(first, observation, rtol=1e-5, atol=1e-6)

    actions = np.random.default_rng(0).uniform(-1, 1, (task.horizon, 1)).astype(np.float32)
    for time, action in enumerate(actions):
        observation, reward, terminated, truncated, report = environment.step(action)
        state, expected, expected_reward, info = treatment.step(
            jax.random.fold_in(noise_key, time), state, jax.numpy.asarray(action), task
        )
        np.testing.assert_allclose(observation, expected, rtol=1e-5, atol=1e-6)
        assert observation in environment.observation_space
        np.testing.assert_allclose(reward, expected_reward, rtol=1e-4, atol=1e-5)
        assert report == pytest.approx({k: v.item() for k, v in info._asdict().items()})
        assert terminated is False
        assert truncated is (time == task.horizon - 1)


def test_a_seed_determines_this_and_later_episodes():
    environment = TreatmentEnv()
    first = [environment.reset(seed=1)[0], environment.reset()[0], environment.reset()[0]]
    again = [environment.reset(seed=1)[0], environment.reset()[0], environment.reset()[0]]
    np.testing.assert_array_equal(first, again)
    assert np.abs(first[0] - first[1]).min() > 0
    assert np.abs(first[0] - environment.reset(seed=2)[0]).min() > 0


def test_spaces_and_clipping_follow_the_task():
    task = treatment.Treatment(dose_low=-0.5, dose_high=3.0, dose_limit=2.0)
    environment = TreatmentEnv(task)
    assert environment.action_space == gymnasium.spaces.Box(-0.5, 3.0, (1,), np.float32)
    assert environment.observation_space == gymnasium.spaces.Box(-np.inf, np.inf, (8,), np.float32)
    environment.reset(seed=0)
    report = environment.step(np.array([7.0]))[4]
    assert report == {
        "dose": 3.0,
        "cumulative_dose": 3.0,
        "dose_limit_exceeded": True,
        "cumulative_limit_exceeded": False,
    }


def test_a_variant_can_be_given_by_name():
    environment = gymnasium.make("fat2thin/Treatment-v0", task="treatment/quadratic-fixed-zero")
    assert environment.unwrapped.task == treatment.by_name("treatment/quadratic-fixed-zero")


def test_registering_twice_has_no_effect():
    before = {identifier: gymnasium.spec(identifier) for identifier in IDENTIFIERS}
    fat2thin.envs.gym.register()
    assert {identifier: gymnasium.spec(identifier) for identifier in IDENTIFIERS} == before


def test_invalid_calls_are_refused():
    with pytest.raises(gymnasium.error.ResetNeeded):
        TreatmentEnv().step(np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="options"):
        TreatmentEnv().reset(options={"latent": 0})
    with pytest.raises(ValueError, match="treatment/cubic"):
        TreatmentEnv("treatment/none")
