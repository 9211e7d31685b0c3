"""Names, units and transforms of columns from a log through training to the run folder."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fat2thin
from fat2thin import data
from fat2thin.columns import Column, Transform
from fat2thin.data import Box, RawLog, Reader, assemble
from fat2thin.data.dataset import transformed
from fat2thin.data.operations import reachable_returns
from fat2thin.training import execute, make_spec, verify

SETTINGS = {"hidden": (8, 8)}


def ward_log(rows=240, log=True):
    """Doses that spread over three decades, and a weight."""
    draw = np.random.default_rng(5)
    seen = np.c_[draw.normal(size=rows), np.exp(draw.normal(4.0, 0.2, rows))]
    dose = np.exp(draw.normal(0.0, 1.5, rows)).clip(0.0, 50.0)[:, None]
    cut = np.arange(1, rows + 1) % 12 == 0
    one = Transform("log", 0.1) if log else None
    columns = (Column("severity"), Column("weight", "kg", Transform("scale", 0.01)))
    raw = RawLog(
        seen, dose, -np.square(np.log(dose[:, 0] + 0.1) - seen[:, 0]), np.zeros(rows, bool), cut,
        observation_columns=columns if log else (),
        action_columns=(Column("dose", "mg", one),),
    )  # fmt: skip
    return assemble("ward", raw, Box((0.0,), (50.0,), 0.9))


@pytest.fixture
def ward(own_registries):
    log = ward_log()
    data.register_reader(Reader("ward", lambda name, seed: log))
    return log


def test_a_log_is_learned_from_on_its_transformed_scale():
    log = ward_log()
    learned = transformed(log)
    np.testing.assert_allclose(learned.action, np.log(log.action + 0.1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(learned.observation[:, 1], log.observation[:, 1] / 100, rtol=1e-5)
    np.testing.assert_allclose(
        [*learned.action_low, *learned.action_high], np.log([0.1, 50.1]), rtol=1e-6
    )
    assert transformed(learned) is learned
    assert [column.name for column in learned.action_columns] == ["dose"]


def test_the_hash_depends_on_transforms_and_not_on_names():
    plain, log = ward_log(log=False), ward_log()
    renamed = dataclasses.replace(plain, action_columns=(Column("bolus", "ml"),))
    assert plain.sha256 == renamed.sha256 != log.sha256


def test_the_hash_tells_an_observation_s_transform_from_an_action_s():
    log, one = ward_log(log=False), Transform("log", 100.0)
    log = dataclasses.replace(
        log, observation=log.observation[:, 1:], next_observation=log.next_observation[:, 1:],
        observation_columns=(Column("weight"),),
    )  # fmt: skip
    seen = dataclasses.replace(log, observation_columns=(Column("weight", "", one),))
    done = dataclasses.replace(log, action_columns=(Column("dose", "", one),))
    assert len({log.sha256, seen.sha256, done.sha256}) == 3
    assert type(Transform("log", np.float64(1)).number) is float


def test_values_that_a_logarithm_does_not_allow_are_refused():
    log = ward_log(log=False)
    columns = (Column("severity", transform=Transform("log", 0.0)), Column("weight"))
    with pytest.raises(ValueError, match=r"column 'severity' reaches down to -.*larger offset"):
        dataclasses.replace(log, observation_columns=columns)
    with pytest.raises(ValueError, match=r"the box of 'dose' reaches down to 0"):
        dataclasses.replace(log, action_columns=(Column("dose", "mg", Transform("log", 0.0)),))
    with pytest.raises(ValueError, match=r"take a larger offset"):  # zero in float32
        dataclasses.replace(log, action_columns=(Column("dose", "", Transform("log", 1e-40)),))
    with pytest.raises(ValueError, match=r"must name 2 columns, not 1"):
        dataclasses.replace(log, observation_columns=(Column("severity"),))
    with pytest.raises(ValueError, match=r"'a' 2 times"):
        dataclasses.replace(log, observation_columns=(Column("a"), Column("a")))


def test_columns_travel_into_the_folder_and_the_policy(ward, tmp_path):
    spec = make_spec(
        "fttpo", "ward", steps=20, seeds=2, settings=SETTINGS, holdout=0.2, standardise=True
    )
    run = execute(spec, tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    (dose,) = about["columns"]["action"]
    assert (dose["name"], dose["unit"], dose["transform"]) == (
        "dose", "mg", {"kind": "log", "number": 0.1},
    )  # fmt: skip
    assert dose["low"] == ward.action.min() and dose["high"] == ward.action.max()
    loaded = fat2thin.load(tmp_path / "run")
    assert loaded.columns == run.columns
    policy, again = run.policy(1), loaded.policy(1)
    assert [column.label for column in again.observation_columns] == ["severity", "weight (kg)"]
    seen = ward.observation[:50]
    np.testing.assert_array_equal(policy.act(seen), again.act(seen))
    drawn = again.act(seen, jax.random.key(0))
    low, high = again.support(seen)
    assert ((low <= drawn) & (drawn <= high) & (drawn >= 0.0) & (drawn <= 50.0)).all()
    assert np.isfinite(again(seen).log_prob(drawn)).all()
    assert verify(tmp_path / "run").passed


def test_a_damaged_description_of_columns_is_refused(ward, tmp_path):
    execute(make_spec("bc", "ward", steps=4, settings=SETTINGS), tmp_path)
    about = json.loads((tmp_path / "run.json").read_text())
    (dose,) = about["columns"]["action"]
    number = {"kind": "log", "number": []}
    huge = {"kind": "log", "number": 10**400}
    wrong = [{"transform": one} for one in ({"kind": "eval"}, number, huge)]
    for broken in ([], *([dose | one] for one in (*wrong, {"name": 3}))):
        (tmp_path / "run.json").write_text(json.dumps({**about, "columns": {"action": broken}}))
        with pytest.raises(ValueError, match=r"run\.json"):
            fat2thin.load(tmp_path)


def test_a_run_of_an_earlier_version_has_numbered_columns(ward, tmp_path):
    execute(make_spec("bc", "ward", steps=4, settings=SETTINGS), tmp_path)
    about = json.loads((tmp_path / "run.json").read_text())
    del about["columns"]
    (tmp_path / "run.json").write_text(json.dumps(about))
    assert [column.name for column in fat2thin.load(tmp_path).columns.observation] == [
        "observation_0", "observation_1",
    ]  # fmt: skip


@pytest.mark.parametrize("algorithm", ["iql", "fttpo"])
def test_clipped_targets_stay_within_what_rewards_allow(ward, algorithm):
    # All rewards are negative: with critics that start high, only clipping keeps targets low.
    settings = {**SETTINGS, "clip_targets": True, "learning_rate": 0.02}
    spec = make_spec(algorithm, "ward", steps=60, settings=settings)
    allowed = reachable_returns(ward)
    q = execute(spec).metrics["q_mean"]
    assert (q[-1] >= allowed.low).all() and allowed.high <= 0.0


def test_clipping_changes_only_what_lies_outside(ward):
    from fat2thin.algorithms import steps
    from fat2thin.algorithms.base import Batch, Problem
    from fat2thin.algorithms.iql import IQLConfig

    rows, value = jnp.zeros((3, 1)), jnp.array([10.0, 0.5, -10.0])
    batch = Batch(rows, rows, jnp.array([0.0, 1.0, -1.0]), rows, jnp.ones(3))
    problem = Problem(1, (-1.0,), (1.0,), 0.5, value_range=jnp.array([-2.0, 2.0]))
    plain = steps.critic_target(batch, value, problem, IQLConfig())
    clipped = steps.critic_target(batch, value, problem, IQLConfig(clip_targets=True))
    np.testing.assert_allclose(plain, [5.0, 1.25, -6.0])
    np.testing.assert_allclose(clipped, [2.0, 1.25, -2.0])


@pytest.mark.parametrize(
    ("algorithm", "settings", "reason"),
    [("inac", {}, "entropy"), ("fttpo", {"published": True}, "authors' critics")],
)
def test_clipping_is_refused_where_it_has_no_meaning(algorithm, settings, reason):
    with pytest.raises(ValueError, match=rf"clip_targets=True has no effect: .*{reason}"):
        make_spec(
            algorithm, "treatment/cubic", steps=1, settings={**settings, "clip_targets": True}
        )
