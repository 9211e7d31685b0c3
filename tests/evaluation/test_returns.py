"""Returns on the treatment task, the registry of evaluators, and the tables of results."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from fat2thin.envs import Reference, treatment, treatment_reference
from fat2thin.evaluation import returns
from fat2thin.evaluation.returns import REFERENCE_EPISODES, evaluate_policies, evaluator
from fat2thin.evaluation.table import make_table, metrics_table
from fat2thin.policies.families import Head, Squashed
from fat2thin.policies.policy import Policy

TASK = treatment.by_name("treatment/quadratic")
EPISODES = 50


class Constant(eqx.Module):
    centre: Array

    def __call__(self, observation):
        centre = jnp.broadcast_to(self.centre, (*observation.shape[:-1], 1))
        return Head(centre, jnp.full_like(centre, -30.0))


def constant_policy(dose):
    return Policy(Constant(jnp.arctanh(jnp.float32(dose))), -jnp.ones(1), jnp.ones(1), Squashed())


def always(dose, key, observation):
    return dose[None]


@pytest.fixture(scope="module")
def key():
    return jax.random.key(3)


@pytest.fixture(scope="module")
def found(key):
    policies = {"actor": constant_policy(0.9), "proposal": constant_policy(0.4)}
    return evaluate_policies(policies, evaluator("treatment/quadratic"), key, EPISODES)


def test_both_policies_are_evaluated_in_both_ways(found):
    assert set(found) == {"actor_sampled", "actor_centre", "proposal_sampled", "proposal_centre"}


@pytest.mark.parametrize(("name", "dose"), [("actor", 0.9), ("proposal", 0.4)])
def test_returns_equal_those_of_the_task(found, key, name, dose):
    rollout = treatment.rollout(
        key, jax.tree_util.Partial(always, jnp.float32(dose)), TASK, EPISODES
    )
    for way in ("sampled", "centre"):
        evaluation = found[f"{name}_{way}"]
        assert evaluation.returns.shape == (EPISODES,)
        np.testing.assert_allclose(evaluation.returns, rollout.returns, rtol=1e-4, atol=1e-4)


def test_measures_of_a_constant_dose_are_known(found):
    high = found["actor_centre"].measures
    low = found["proposal_centre"].measures
    np.testing.assert_allclose([high["dose_mean"], low["dose_mean"]], [0.9, 0.4], rtol=1e-5)
    np.testing.assert_allclose([high["dose_variance"], low["dose_variance"]], 0.0, atol=1e-10)
    # The limits are .88 per step and 12 per episode of 24 steps.
    assert (high["dose_limit_rate"], high["cumulative_limit_rate"]) == (1.0, 1.0)
    assert (low["dose_limit_rate"], low["cumulative_limit_rate"]) == (0.0, 0.0)


def test_a_data_set_without_a_task_has_no_evaluator():
    assert evaluator("clinic/2024") is None


def test_an_evaluator_can_be_registered_once(monkeypatch):
    monkeypatch.setattr(returns, "_EVALUATORS", dict(returns._EVALUATORS))
    judge = returns.TreatmentEvaluator(TASK)
    returns.register_evaluator("clinic/", lambda name: judge)
    assert evaluator("clinic/2024") is judge
    with pytest.raises(ValueError, match="already have an evaluator"):
        returns.register_evaluator("clinic/", lambda name: judge)


@pytest.fixture
def references(monkeypatch):
    """The reference rows, from a stub: the real measurement takes half a minute."""
    asked = []

    def rows(key, task, episodes):
        asked.append((jax.random.key_data(key).tolist(), task, episodes))
        measures = {
            "dose_mean": 0.44,
            "dose_variance": 0.0,
            "dose_limit_rate": 0.0,
            "cumulative_limit_rate": 0.25,
        }
        return {"best constant": Reference(5.0, 0.1, measures, "the same dose", episodes)}

    monkeypatch.setattr(treatment_reference, "reference_rows", rows)
    monkeypatch.setattr(returns, "stored_references", dict)
    returns._treatment_references.cache_clear()
    yield evaluator("treatment/quadratic").references()
    returns._treatment_references.cache_clear()
    stated = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 6), 0)
    assert asked == [(jax.random.key_data(stated).tolist(), TASK, REFERENCE_EPISODES)]


def test_references_have_the_measures_of_an_evaluation(references, found):
    row = references["best constant"]
    assert (row.mean, row.standard_error, row.rule) == (5.0, 0.1, "the same dose")
    assert row.measures == {
        "dose_mean": 0.44,
        "dose_variance": 0.0,
        "dose_limit_rate": 0.0,
        "cumulative_limit_rate": 0.25,
    }
    assert set(row.measures) == set(found["actor_centre"].measures)


def test_the_table_holds_policies_and_references(references, found):
    seeds = jax.tree.map(lambda values: jnp.stack([values, values + 1.0]), found)
    table = make_table("a title", seeds, references)
    assert [row["policy"] for row in table] == [*sorted(found), "best constant"]
    row = table["actor_centre"]
    interval = np.mean(found["actor_centre"].returns) + np.array([0.0, 0.5, 1.0])
    np.testing.assert_allclose([row["low"], row["mean"], row["high"]], interval, rtol=1e-5)
    assert row["dose_mean"] == pytest.approx(0.9 + 0.5, rel=1e-4)
    reference = table["best constant"]
    np.testing.assert_allclose([reference["low"], reference["high"]], [4.804, 5.196], atol=1e-3)


def test_the_printed_table_is_aligned_and_rounded(references, found):
    seeds = jax.tree.map(lambda values: values[None], found)
    lines = str(make_table("a title", seeds, references)).splitlines()
    assert lines[0] == "a title"
    assert re.split("  +", lines[2].strip()) == [
        "policy", "mean", "low", "high", "iqm",
        "cumulative limit rate", "dose limit rate", "dose mean", "dose variance",
    ]  # fmt: skip
    assert len({len(line) for line in lines[2:9]}) == 1
    assert re.split("  +", lines[8]) == [
        "best constant", "5.000", "4.804", "5.196", "-", "0.250", "0.000", "0.440", "0.000",
    ]  # fmt: skip
    assert lines[-1] == "best constant: the same dose"


def test_a_missing_row_raises_an_error_that_lists_the_others():
    table = metrics_table("t", {"loss": np.array([1.0, 3.0])})
    assert table["loss"] == {"metric": "loss", "mean": 2.0, "lowest": 1.0, "highest": 3.0}
    with pytest.raises(KeyError, match="there are loss"):
        table["los"]
