"""Critics that start at the log's own level of values."""

import dataclasses
import functools
import json

import jax.numpy as jnp
import numpy as np
import pytest

import fat2thin
from fat2thin import data
from fat2thin.algorithms import td3_bc
from fat2thin.algorithms.base import Problem
from fat2thin.algorithms.steps import watch_weight
from fat2thin.data.operations import discounted_returns
from fat2thin.data.scaling import centred, value_level
from fat2thin.evaluation.held_out import held_out
from fat2thin.settings.spec import make_spec
from fat2thin.training import DamagedError, execute
from fat2thin.training.run_warnings import FEWEST_ROWS, Health

LOG = "treatment/quadratic@20"
OPTIONS = {
    "steps": 20, "task": "none", "batch_size": 16, "log_every": 10,
    "settings": {"hidden": (8, 8)}, "reward_scale": "deviation",
}  # fmt: skip


def shifted(name, seed, shift):
    log = data.load(name, seed)
    return dataclasses.replace(log, reward=(log.reward + shift).astype(np.float32))


@functools.cache
def trained(shift, centre_values=True):
    spec = make_spec("fttpo", LOG, centre_values=centre_values, **OPTIONS)
    return execute(spec, load=functools.partial(shifted, shift=shift))


def test_centred_rewards_lower_every_return_by_the_level():
    """Exact where episodes end: no reward after the end makes up for the level."""
    log = data.load(LOG)
    ends = np.append(log.episode_start[1:], log.rows) - 1
    continuation = np.ones(log.rows, np.float32)
    continuation[ends] = 0.0
    log = dataclasses.replace(log, continuation=continuation)
    lowered = discounted_returns(log) - discounted_returns(centred(log, 3.0))
    np.testing.assert_allclose(lowered, 3.0, rtol=1e-4)


@pytest.mark.parametrize("ending", [0.0, 0.3])
def test_the_level_is_the_best_constant_q(ending):
    """It leaves the errors of a constant Q with a mean of zero, found here by least squares."""
    log = data.load(LOG)
    over = np.random.default_rng(0).uniform(size=log.rows) < ending
    log = dataclasses.replace(log, continuation=(~over).astype(np.float32))
    feature = 1.0 - log.discount * log.continuation.astype(np.float64)
    expected = np.linalg.solve([[feature.sum()]], [log.reward.astype(np.float64).sum()])[0]
    np.testing.assert_allclose(value_level(log), expected, rtol=1e-6)
    endless = dataclasses.replace(log, discount=1.0, continuation=np.ones(log.rows, np.float32))
    assert value_level(endless) == 0.0


def test_a_shift_of_all_rewards_changes_nothing_but_the_level():
    run, other = trained(0.0), trained(-10.0)
    states = jnp.asarray(data.load(LOG).observation[:50])
    np.testing.assert_allclose(
        run.policy(0).act(states), other.policy(0).act(states), rtol=1e-3, atol=1e-3
    )
    factor = run.about["scales"][0]["reward"]["factor"]
    lower = -10.0 * factor / (1.0 - data.load(LOG).discount)
    for name in ("q_mean", "v_mean"):
        change = other.metrics[name] - run.metrics[name]
        np.testing.assert_allclose(change, lower, rtol=1e-3)
    np.testing.assert_allclose(
        other.metrics["proposal_loss"], run.metrics["proposal_loss"], rtol=1e-2, atol=1e-3
    )


def test_critics_start_at_the_level_of_the_log():
    level = trained(-10.0).about["scales"][0]["level"]
    start, plain = trained(-10.0).metrics["q_mean"][0], trained(-10.0, False).metrics["q_mean"][0]
    assert level < -5.0 and abs(start[0] - level) < 2.0 and abs(plain[0]) < 2.0


def test_metrics_on_a_log_have_the_level_too():
    run = trained(-10.0)
    found = held_out(run, shifted(LOG, 0, -10.0))
    np.testing.assert_allclose(found["q_mean"], run.metrics["q_mean"][-1], atol=1.0)


def test_held_out_values_are_discounted_returns():
    """The value of the same policy on shifted rewards is lower by shift / (1 - discount)."""
    found = []
    for shift in (0.0, -10.0):
        spec = make_spec("fttpo", LOG, centre_values=True, holdout=0.3, **OPTIONS)
        run = execute(spec, load=functools.partial(shifted, shift=shift))
        factor = run.about["scales"][0]["reward"]["factor"]
        found.append(run.metrics["held_out_value"][-1] / factor)
    lower = -10.0 / (1.0 - data.load(LOG).discount)
    np.testing.assert_allclose(found[1] - found[0], lower, rtol=0.02)


def test_methods_that_divide_by_q_divide_by_returns():
    values = jnp.array([-1.0, 3.0])
    problem = Problem(1, (-1.0,), (1.0,), 0.9, value_level=jnp.float32(-5.0))
    np.testing.assert_allclose(td3_bc.scaled_value(values, problem), -4.0 / 4.0)
    plain = dataclasses.replace(problem, value_level=None)
    np.testing.assert_allclose(td3_bc.scaled_value(values, plain), 1.0 / 2.0)


def test_a_folder_keeps_the_level_and_refuses_one_that_is_no_number(tmp_path):
    options = {**OPTIONS, **OPTIONS["settings"]}
    del options["settings"]
    fat2thin.train("fttpo", LOG, centre_values=True, out=tmp_path / "run", **options)
    run = fat2thin.load(tmp_path / "run")
    assert run.jobs.value_level[0] == np.float32(run.about["scales"][0]["level"])
    assert run.spec.centre_values
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    for level in ("high", 1e300):
        about["scales"][0]["level"] = level
        (tmp_path / "run" / "run.json").write_text(json.dumps(about))
        with pytest.raises(DamagedError, match=r"scales\.level must be a number"):
            fat2thin.load(tmp_path / "run")


@pytest.mark.parametrize(
    "weight", [[1.0, 1.0, 1.0, 1.0], [4.0, 0, 0, 0], [1e30, 2e30, 0, 3], [0.0] * 4]
)
def test_the_effective_share_of_rows(weight):
    exact = np.asarray(weight, np.float64)
    expected = exact.sum() ** 2 / (4 * (exact**2).sum()) if exact.any() else 0.0
    found = watch_weight(jnp.asarray(weight, jnp.float32))["effective_share"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_lasting_small_share_of_rows_is_warned_of_once():
    health, given = Health([3, 4], 100.0), []
    for row in range(FEWEST_ROWS + 5):
        shares = np.array([0.01, 0.01 if row % 5 else 0.5])
        given += health.look(row, {"effective_share": shares})
    (warning,) = given
    assert "seed 3" in warning and "1 % of the rows" in warning and "temperature" in warning
