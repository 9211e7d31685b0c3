"""The table of value: which episodes it is about, what it refuses, and what it prints."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest

import fat2thin
from fat2thin import data
from fat2thin.cli.main import main
from fat2thin.columns import Column, Transform
from fat2thin.data.operations import concatenate, episode_returns, reachable_returns
from fat2thin.evaluation import refusal, value_rows
from fat2thin.evaluation.padding import SMOOTHED, actions_of, band_around, pad
from fat2thin.evaluation.unseen import shared_episodes, training_parts
from fat2thin.evaluation.value import value
from fat2thin.policies.families import HeavyTailed, Sparse
from fat2thin.policies.networks import PolicyNetwork
from fat2thin.policies.policy import unit_policy

EPISODES = 12  # of each part, so that all logs have one shape and share the compiled programs
OPTIONS = {"steps": 2, "seeds": 2, "hidden": (4,), "batch_size": 8, "task": "none"}


@pytest.fixture(scope="module", autouse=True)
def short():
    """Few units and candidates: programs compile sooner."""
    patch = pytest.MonkeyPatch()
    patch.setattr(value_rows, "MOST_UNITS", 4)
    patch.setattr(value_rows, "CANDIDATES", 2)
    patch.setattr(refusal, "LEAST_EPISODES", 8)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A run, the file that it learned half of, and fresh episodes with known densities."""
    folder = tmp_path_factory.mktemp("value")
    whole = data.load(f"treatment/quadratic@{2 * EPISODES}", seed=3)
    data.save_npz(whole, folder / "log.npz")
    options = OPTIONS | {"holdout": 0.5, "out": folder / "run", "settings_from": "default"}
    run = fat2thin.train("fttpo", str(folder / "log.npz"), **options)
    fresh = data.load(f"treatment/quadratic@{EPISODES}", seed=4)
    dense = dataclasses.replace(
        fresh, propensity=np.full(fresh.rows, 0.5, np.float32), propensity_is_density=True
    )
    return run, fresh, dense


@pytest.fixture(scope="module")
def held_out(world):
    return value(world[0])


def test_without_a_log_it_is_about_the_held_out_episodes(world, held_out):
    run, _, _ = world
    parts = training_parts(run)
    assert held_out.episodes == parts.held_out.episode_start.size == EPISODES
    assert held_out.seen_episodes == 0
    returns = episode_returns(parts.held_out, parts.held_out.discount)
    np.testing.assert_allclose(held_out.practice.estimate, returns.mean(), rtol=1e-5)
    assert held_out.practice.low < returns.mean() < held_out.practice.high
    assert (held_out.horizon, held_out.discount) == (24, 0.9)
    assert [row.kind for row in held_out.rows] == ["policy", "practice", "constant"]
    np.testing.assert_allclose(
        held_out.allowed, reachable_returns(parts.held_out, horizon=24), rtol=1e-5
    )


def test_the_result_is_json_and_a_table(held_out):
    again = json.loads(json.dumps(held_out.to_json(), allow_nan=False))
    assert again["rows"][1]["estimate"] == held_out.practice.estimate
    assert {*again} == {field.name for field in dataclasses.fields(held_out)}
    assert held_out.table["practice"]["value"] == held_out.practice.estimate
    assert "Verdict" in str(held_out) and "<table" in held_out._repr_html_()


def test_numbers_are_there_or_refused_and_never_outside_what_rewards_allow(world):
    run, _, dense = world
    found = value(run, dense, against={"first": run.policy(seed=0)}, seeds=True)
    low, high = found.allowed
    assert [row.name for row in found.rows][-1] == "first"
    assert sum(row.kind == "seed" for row in found.rows) == 2
    for row in (*found.rows, *found.estimates):
        numbers = (row.estimate, row.low, row.high)
        if row.refused is None:
            assert low <= row.low <= row.estimate <= row.high <= high
        else:
            assert set(numbers) == {None} and row.difference_bound is None
    assert len(found.estimates) == len(value_rows.ORDER)
    assert len(found.surviving_episodes) == 24
    # A seed of the run beside it has the numbers of the same policy given by name.
    twins = [row for row in found.rows if row.name in ("seed 0", "first")]
    assert twins[0].estimate == twins[1].estimate


def test_episodes_that_the_run_has_learned_from_are_left_out(world):
    run, fresh, _ = world
    parts = training_parts(run)
    mixed = concatenate([parts.learned, fresh])
    found = value(run, mixed, constant=False)
    assert found.seen_episodes == EPISODES and found.episodes == EPISODES
    alone = value(run, fresh, constant=False)
    assert found.practice.estimate == pytest.approx(alone.practice.estimate, rel=1e-6)
    assert "learned from" in " ".join(found.notes)
    with pytest.raises(ValueError, match="learned from every episode"):
        value(run, parts.learned)


def test_rows_that_repeat_in_the_training_log_identify_nothing():
    arrays = {"action": [0.5] * 4, "reward": [1.0] * 4, "episode": [0, 0, 1, 1], "cut": [0] * 4}
    box = {"action_low": 0.0, "action_high": 1.0}
    made = data.Dataset.from_arrays(
        [0.0, 1.0, 0.0, 1.0], next_observation=[1.0, 2.0, 1.0, 2.0], **arrays, **box
    )
    other = data.Dataset.from_arrays(
        [0.0, 1.0, 7.0, 8.0], next_observation=[1.0, 2.0, 8.0, 9.0], **arrays, **box
    )
    assert not shared_episodes(made, made).any()
    assert shared_episodes(other, other).tolist() == [True, True]
    assert shared_episodes(made, other).all()
    assert not shared_episodes(other, made).any()


def test_seeds_with_different_logs_are_refused_with_the_way_out():
    run = fat2thin.train("bc", "treatment/quadratic@4", **OPTIONS)
    with pytest.raises(ValueError, match="fat2thin data make"):
        value(run)


def test_a_run_without_held_out_episodes_needs_a_log(world):
    run, fresh, _ = world
    without = dataclasses.replace(run, spec=dataclasses.replace(run.spec, holdout=0.0))
    with pytest.raises(ValueError, match=r"--holdout 0\.2, or give a log"):
        value(without)
    gone = dataclasses.replace(
        run, spec=dataclasses.replace(run.spec, dataset="gone.npz"), data=None
    )
    with pytest.raises(ValueError, match="missing or has changed"):
        value(gone)
    assert "is not known" in " ".join(value(gone, fresh, constant=False).notes)
    with pytest.raises(ValueError, match="needs a log"):
        value(run.policy())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"horizon": 25}, "horizon must be from 1 to 24"),
        ({"reward_range": (0.0, 1.0)}, "outside the range from 0 to 1"),
        ({"confidence": 1.0}, "confidence must be"),
    ],
)
def test_questions_without_an_answer_are_refused_before_work_starts(world, given, words):
    with pytest.raises(ValueError, match=words):
        value(world[0], world[1], **given)


def test_a_guarantee_needs_every_condition(world):
    run, fresh, dense = world
    wide = {"reward_range": (-40.0, 40.0), "constant": False}
    found = value(run, dense, **wide)
    assert found.guarantee is not None and "guaranteed" in found.guarantee.label
    assert found.allowed[0] <= found.guarantee.value < found.practice.estimate + 50.0
    assert value(run, dense, constant=False).guarantee is None
    assert value(run, fresh, **wide).guarantee is None
    assert value(run.policy(), dense, **wide).guarantee is None


EVIDENCE = refusal.Evidence(0.5, (0.0, 1.0), 50, (60.0, 55.0), (50.0, 40.0))


@pytest.mark.parametrize(
    ("estimator", "changes", "words"),
    [
        ("marginal", {"episodes": 7}, "7 episodes are too few"),
        ("marginal", {"effective": (60.0, 9.0)}, "step 2 the weights are worth 9 episodes"),
        ("importance", {"effective": (60.0, 49.0)}, "40 of 50 episodes have only actions"),
        ("importance", {"cut": 0.02}, "2 % of the episodes were cut"),
        ("doubly_robust", {"estimate": 1.1}, r"outside what the rewards allow, \[0, 1\]"),
        ("marginal", {"estimate": float("nan")}, "outside what the rewards allow"),
        ("marginal", {"clipped": 0.2}, "20 % of the first states"),
        ("marginal", {"steps": (8.0, 5.2)}, "by them, 5.2 discounted steps .* 8 were logged"),
        ("marginal", {"steps": (8.0, float("nan"))}, "the states do not explain"),
        ("marginal", {"before": 0.025}, "the step before explains 2.5 %"),
    ],
)
def test_each_rule_refuses_with_its_reason(estimator, changes, words):
    assert refusal.reason(estimator, EVIDENCE) is None
    found = refusal.reason(estimator, dataclasses.replace(EVIDENCE, **changes))
    assert found is not None and re.search(words, found)


def small_policy(family):
    network = PolicyNetwork(jax.random.key(0), 8, 1, (4,))
    return unit_policy(network, family, (0.2, 0.3)).in_box((-1.0,), (1.0,))


def test_densities_of_logged_actions_are_those_of_the_policy(world):
    padded = pad(world[1])
    policy = small_policy(Sparse())
    actions = actions_of(policy, padded)
    rows = padded.place
    found = actions.log_density[rows[:, 0], rows[:, 1]]
    low, high = policy.support(world[1].observation)
    inside = ((low <= world[1].action) & (world[1].action <= high)).all(axis=-1)
    assert (np.isfinite(found) == np.asarray(inside)).all() and inside.any() and not inside.all()
    expected = policy(world[1].observation).log_prob(world[1].action)
    np.testing.assert_allclose(found[inside], expected[inside], rtol=1e-4, atol=1e-4)
    # A draw of the first state lies in its band, on the padded scale.
    first = padded.place[world[1].episode_start, 0]
    ends = [padded.standardise(end[world[1].episode_start]) for end in map(np.asarray, (low, high))]
    start = actions.start[first]
    assert (start >= ends[0][:, None] - 1e-5).all() and (start <= ends[1][:, None] + 1e-5).all()
    assert actions_of(small_policy(HeavyTailed()), padded).log_density is None


def test_a_band_around_one_action_is_a_density_per_raw_unit():
    """It integrates to 1 over raw actions, also where a policy learned their logarithm."""
    grid = np.linspace(0.2, 6.0, 4000)
    log = data.Dataset.from_arrays(
        np.arange(4000.0), grid, np.zeros(4000), next_observation=np.arange(4000.0),
        action_low=0.1, action_high=7.0, action_names=[Column("dose", "", Transform("log", 0.5))],
    )  # fmt: skip
    padded = pad(log)
    centre = np.zeros((*padded.episodes.here.shape, 1))
    actions = band_around(centre[:, 0], centre, centre, padded)
    logs = actions.log_density[padded.place[:, 0], padded.place[:, 1]]
    assert np.trapezoid(np.exp(logs), grid) == pytest.approx(1.0, abs=0.01)
    assert np.abs(actions.start).max() < SMOOTHED


def test_the_command_prints_a_table_and_writes_pictures(world, tmp_path, capsys):
    run, _, dense = world
    data.save_npz(dense, tmp_path / "fresh.npz")
    out = tmp_path / "out"
    main(["value", str(run.folder), str(tmp_path / "fresh.npz"), "--out", str(out)])
    said = capsys.readouterr().out
    assert "practice" in said and "Verdict" in said and str(out / "value.json") in said
    assert {"value.json", "value.png", "sample_size.png"} <= {file.name for file in out.iterdir()}
    assert json.loads((out / "value.json").read_text())["horizon"] == 24
    with pytest.raises(SystemExit, match="--rewards takes the lowest and the highest"):
        main(["value", str(run.folder), "--rewards", "3"])
