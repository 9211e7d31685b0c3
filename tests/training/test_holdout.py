"""The held-out part of a log: whole episodes, the signals on them, and selection by these."""

import dataclasses
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin import data
from fat2thin.cli.main import main
from fat2thin.data import Dataset
from fat2thin.data.formats.npz import save_npz
from fat2thin.engine.pack import watched_rows
from fat2thin.engine.selection import NO_SCORE, SelectedState, choose
from fat2thin.runs.identity import read_logs
from fat2thin.runs.verification import FAILED, OK, verify
from fat2thin.training import execute, execute_together, load, make_spec
from fat2thin.training.progress import Silent

OPTIONS = {"steps": 12, "seeds": [3, 5], "log_every": 3, "batch_size": 16, "holdout": 0.3}
NAN = float("nan")
ROWS = ("observation", "action", "reward", "next_observation", "continuation")


def make_log(seed=0, lengths=(4, 9, 1, 7, 12, 5, 8), far=0.0):
    """Return a log; the first component of an observation is its row number in thousandths."""
    rng = np.random.default_rng(seed)
    rows = sum(lengths)
    observation = rng.normal(far, 1.0, size=(rows, 3)).astype(np.float32)
    observation[:, 0] = np.arange(rows) / 1000.0
    return Dataset(
        name="log",
        observation=observation,
        action=rng.uniform(-2.0, 4.0, size=(rows, 2)).astype(np.float32),
        reward=rng.normal(size=rows).astype(np.float32),
        next_observation=(observation + rng.normal(size=(rows, 3))).astype(np.float32),
        continuation=np.ones(rows, np.float32),
        episode_start=np.cumsum([0, *lengths[:-1]]),
        action_low=(-2.0, -2.0),
        action_high=(4.0, 4.0),
        discount=0.9,
    )


def spec_of(dataset, algorithm="stand_in", **changes):
    return make_spec(algorithm, str(dataset), **{**OPTIONS, **changes})


def run_of(dataset, folder=None, **changes):
    return execute(spec_of(dataset, **changes), folder, Silent(), checkpoint_seconds=0.0)


@pytest.fixture
def path(tmp_path):
    save_npz(make_log(), tmp_path / "log.npz")
    return tmp_path / "log.npz"


def parts_of(spec):
    ((log, *others),) = read_logs([spec])
    assert not others
    return log


def rows_of(part):
    return np.rint(1000.0 * part.observation[:, 0]).astype(int)


@pytest.mark.parametrize("holdout", [1e-6, 0.2, 0.5, 0.999])
def test_the_parts_are_whole_episodes_without_overlap(path, holdout):
    log = parts_of(spec_of(path, holdout=holdout))
    whole = make_log()
    numbers = [rows_of(part) for part in (log.learned, log.held_out)]
    assert sorted(np.concatenate(numbers)) == list(range(whole.rows))
    bounds = [*whole.episode_start, whole.rows]
    for part, rows in zip((log.learned, log.held_out), numbers, strict=True):
        assert len(rows) > 0
        for start, end in itertools.pairwise(bounds):
            among = np.isin(np.arange(start, end), rows)
            assert among.all() or not among.any()
        np.testing.assert_array_equal(rows[part.episode_start], np.intersect1d(rows, bounds))
        for name in ROWS:
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[rows])
    # The share is exact up to half an episode, unless a part would be empty.
    if 0.1 < holdout < 0.9:
        assert abs(len(numbers[1]) - holdout * whole.rows) <= 12 / 2


def test_without_a_holdout_the_whole_log_is_used(path):
    log = parts_of(spec_of(path, holdout=0))
    assert log.held_out is None and log.learned.sha256 == make_log().sha256
    assert not [name for name in run_of(path, holdout=0).metrics if name.startswith("held_out")]


def test_the_log_of_each_seed_is_split_separately():
    ((one, other),) = read_logs([spec_of("tiny/own")])
    for seed, log in ((3, one), (5, other)):
        whole = data.load("tiny/own", seed)
        rows = np.concatenate([log.learned.reward, log.held_out.reward])
        assert sorted(rows) == sorted(whole.reward)


def test_scales_are_computed_from_training_rows(path):
    spec = spec_of(path, standardise=True, reward_scale="deviation")
    log = parts_of(spec)
    seen = log.learned
    assert log.scales.reward.factor == pytest.approx(1.0 / np.std(np.float64(seen.reward)))
    np.testing.assert_allclose(
        log.scales.observation.mean, seen.observation.mean(axis=0), rtol=1e-5
    )
    # Changed held-out rows do not change the scales.
    changed = make_log()
    rows = rows_of(log.held_out)
    changed.reward[rows] *= 100.0
    changed.observation[rows, 1:] += 100.0
    save_npz(changed, path)
    again = parts_of(spec)
    assert again.scales == log.scales
    np.testing.assert_array_equal(again.learned.observation, seen.observation)


def deterministic(log):
    """Return the same log with deterministic dynamics."""
    following = 0.9 * log.observation
    following[:, :2] += log.action
    return dataclasses.replace(log, next_observation=following)


def test_noise_is_measured_on_training_rows():
    chance, rule = make_log(lengths=(10,) * 8), deterministic(make_log(1, lengths=(10,) * 8))
    np.testing.assert_array_equal(watched_rows([chance, rule], [rule, chance]).noisy, [True, False])


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def signals_of(run):
    return {name: values for name, values in run.metrics.items() if name.startswith("held_out")}


IQL = {
    "algorithm": "iql", "settings": {"hidden": (4,)}, "seeds": [3], "standardise": True,
    "reward_scale": "deviation",
}  # fmt: skip


@pytest.fixture(scope="module")
def iql_runs(tmp_path_factory):
    """IQL on a log, with changed held-out rows, and with held-out rows without rewards."""
    folder = tmp_path_factory.mktemp("runs")
    path, runs = folder / "log.npz", []
    for number, (factor, shift) in enumerate([(1.0, 0.0), (0.5, 3.0), (0.0, 0.0)]):
        log = make_log()
        save_npz(log, path)
        rows = rows_of(parts_of(spec_of(path, **IQL)).held_out)
        log.reward[rows] = factor * log.reward[rows] + shift * np.linspace(-1.0, 1.0, len(rows))
        log.action[rows] *= factor
        save_npz(log, path)
        runs.append(run_of(path, folder / f"{number}", **IQL))
    return runs


def test_held_out_rows_change_only_the_signals(iql_runs):
    one, other, _ = iql_runs
    assert one.about["sha256"] != other.about["sha256"]
    assert_same(one.states, other.states)
    for name, values in one.metrics.items():
        if name in ("held_out_inside", "held_out_inside_least", "held_out_spread"):
            continue
        changed = not np.array_equal(values, other.metrics[name])
        assert changed == name.startswith("held_out"), name


def test_signals_are_finite_after_every_chunk(iql_runs):
    """Values may be nan: this log is too small for all of them to be estimable."""
    for name, values in signals_of(iql_runs[0]).items():
        assert values.shape == (4, 1)
        if "value" in name:
            largest = np.abs(make_log().reward).max() / (1.0 - 0.9)
            factor = iql_runs[0].about["scales"][0]["reward"]["factor"]
            assert (np.abs(values[np.isfinite(values)]) <= factor * largest).all()
            assert np.isfinite(values).any()
        else:
            assert np.isfinite(values).all()


def test_a_run_does_not_depend_on_the_other_runs_of_its_program(tmp_path):
    paths = [tmp_path / name for name in ("short.npz", "long.npz")]
    save_npz(make_log(1), paths[0])
    save_npz(make_log(2, lengths=(300, 500, 400, 600)), paths[1])
    specs = [spec_of(path, select="offline") for path in paths]
    together = execute_together(specs, progress=Silent())
    for spec, run in zip(specs, together, strict=True):
        alone = execute(spec, None, Silent())
        assert_same(run.states, alone.states)
        assert_same(run.metrics, alone.metrics)
        assert run.about["selected"] == alone.about["selected"]


def test_runs_with_different_holdouts_do_not_share_a_program(path):
    with pytest.raises(ValueError, match=r"different holdout \(0.3 and 0.5\).*run them separately"):
        execute_together([spec_of(path), spec_of(path, holdout=0.5)], progress=Silent())


NOT_THE_LAST = {"settings": {"learning_rate": 0.7, "noise": 0.5}, "seeds": [3, 5, 6, 7]}
"""A learning rate at which the best policy is not the last one."""


def test_the_policy_with_the_largest_signal_acts(path, tmp_path):
    every = [3, 6, 9, 12]
    last = run_of(path, snapshots=every, **NOT_THE_LAST)
    chosen = run_of(path, tmp_path / "chosen", select="offline", **NOT_THE_LAST)
    np.testing.assert_array_equal(chosen.metrics["held_out_value"], last.metrics["held_out_value"])
    selected = chosen.about["selected"]
    assert {*selected.values()} <= {*every} and {*selected.values()} != {12}
    for place, seed in enumerate(chosen.spec.seeds):
        best = every[int(np.nanargmax(last.metrics["held_out_value"][:, place]))]
        assert selected[str(seed)] == best
        assert_same(chosen.policy(seed), last.policy(seed, step=best))
        assert_same(chosen.proposal(seed), last.proposal(seed, step=best))
    again = load(tmp_path / "chosen")
    assert_same(again.states, chosen.states)
    assert again.about["selected"] == selected


def hospital():
    """Return few patients with many columns: costs from 0.011 to 7.9; about half of them die."""
    rng, rows, starts = np.random.default_rng(5), [], []
    for _ in range(7):
        starts.append(len(rows))
        state, died = rng.normal(size=10), rng.random() < 0.4
        stay = int(rng.integers(4, 12))
        for hour in range(stay):
            dose = np.clip(0.4 + 0.2 * state[0] + 0.1 * rng.normal(), 0.0, 1.0)
            after = 0.9 * state + 0.3 * rng.normal(size=10)
            after[0] += 0.2 - 0.5 * dose
            over = died and hour == stay - 1
            cost = np.clip(state[0] ** 2 + 5.0 * over, 0.011, 7.9)
            rows.append((state, [dose], -cost, after, 0.0 if over else 1.0))
            state = after
    columns = (np.asarray(column, np.float32) for column in zip(*rows, strict=True))
    return Dataset("hospital", *columns, np.asarray(starts), (0.0,), (1.0,), 0.99)


@pytest.mark.parametrize("reward_scale", [1.0, 3.0])
def test_values_of_costs_are_never_impossible(tmp_path, reward_scale):
    """Without the check, the best of 64 constants would have value 64; all rewards are negative."""
    log = hospital()
    assert log.reward.max() == np.float32(-0.011) and log.reward.min() > -7.9
    save_npz(log, tmp_path / "log.npz")
    options = {"seeds": [0], "steps": 2, "log_every": 2, "standardise": True}
    run = run_of(tmp_path / "log.npz", holdout=0.2, reward_scale=reward_scale, **options)
    for name in ("held_out_value", "held_out_value_unseen"):
        (values,) = run.metrics[name]
        assert (values <= reward_scale * log.reward.max()).all(), name
        assert (values >= 100.001 * reward_scale * log.reward.min()).all(), name
    said = " ".join(run.about.get("warnings", []))
    worth = re.findall(r"constants are worth (\S+), the policy (\S+) ", said)
    assert all(100.001 * log.reward.min() <= float(x) <= -0.011 for pair in worth for x in pair)


@pytest.fixture
def endless(tmp_path):
    """A log with positive rewards and discount 1: returns are not bounded."""
    log = make_log()
    log = dataclasses.replace(log, reward=np.abs(log.reward) + 0.1, discount=1.0)
    save_npz(log, tmp_path / "endless.npz")
    return tmp_path / "endless.npz"


def test_without_any_estimable_value_the_last_policy_acts(endless, tmp_path, capsys):
    run = run_of(endless, tmp_path / "run", select="offline", steps=6)
    assert np.isnan(run.metrics["held_out_value"]).all()
    assert run.about["selected"] == {"3": 6, "5": 6}
    nothing, value = run.about["warnings"]
    assert nothing.startswith("seeds 3, 5: no held-out signal was a number after any step")
    assert nothing.endswith("the last policy acts")
    assert (
        "seeds 3, 5: the value of the policy is not estimable: outside what the rewards " in value
    )
    assert "allow [inf, inf]" in value
    assert "null" in (tmp_path / "run" / "metrics.jsonl").read_text()
    main(["show", str(tmp_path / "run")])
    shown = capsys.readouterr().out
    assert re.search(r"^held_out_value +- +- +-$", shown, re.MULTILINE)
    assert "held_out_value: not estimable: outside what the rewards allow, 2 of 2 seeds" in shown
    assert verify(tmp_path / "run", 0).passed


def test_a_state_without_a_value_is_not_selected():
    """The best finite score is selected; without one, the newest state."""
    state = {"weight": jnp.zeros(())}
    for scores, expected in (
        ([NAN, 1.0, NAN, 0.5], 2), ([NAN, -3e30, NAN, NAN], 2), ([NAN, NAN, NAN], 3),
        ([2.0, 3.0], 2),
    ):  # fmt: skip
        kept = SelectedState(state, state, jnp.float32(NO_SCORE), jnp.int32(0))
        for step, score in enumerate(scores, start=1):
            new = {"weight": jnp.float32(step)}
            kept = choose(kept, new, jnp.float32(score), jnp.int32(step), jnp.array(True))
        assert (int(kept.step), float(kept.best["weight"])) == (expected, expected)
        assert bool(kept.unscored) == np.isnan(scores).all()


class InterruptAt(Silent):
    def __init__(self, step):
        self.step = step

    def advance(self, step):
        if step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("step", [6, 12])
def test_an_interrupted_run_selects_the_same_policy(path, tmp_path, step):
    spec = spec_of(path, select="offline", snapshots=[3, 9], **NOT_THE_LAST)
    execute(spec, tmp_path / "reference", Silent(), checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        execute(spec, tmp_path / "run", InterruptAt(step), checkpoint_seconds=0.0)
    run = execute(spec, tmp_path / "run", Silent(), checkpoint_seconds=0.0)
    assert run.about["resumed"] == [f"step {step - 3}"]
    for name in ("metrics.jsonl", "state.safetensors", "snapshots/step_000000009.safetensors"):
        kept, expected = (
            (tmp_path / folder / name).read_bytes() for folder in ("run", "reference")
        )
        assert kept == expected, name
    assert run.about["selected"] == load(tmp_path / "reference").about["selected"]


def assert_verified(folder):
    found = verify(folder, 12)
    assert {check.name: check.what for check in found.checks if check.result == FAILED} == {}
    assert found["replay"].result == OK, found["replay"].what


def test_a_run_with_selection_can_be_verified(path, tmp_path):
    run_of(path, tmp_path / "run", select="offline", snapshots=[6], **NOT_THE_LAST)
    assert_verified(tmp_path / "run")


def test_a_run_with_constant_held_out_returns_can_be_verified(iql_runs):
    run = iql_runs[2]
    assert (run.metrics["held_out_calibration"] == 0.0).all()
    assert_verified(run.folder)


@pytest.mark.parametrize("holdout", [-0.1, 1.0, 1.5, float("nan"), True, "much"])
def test_an_invalid_holdout_is_refused(path, holdout):
    with pytest.raises(ValueError, match="holdout must be a number of at least 0 and below 1"):
        spec_of(path, holdout=holdout)


def test_invalid_selections_are_refused(path):
    with pytest.raises(ValueError, match=r"select='offline' needs.*for example holdout=0.2"):
        spec_of(path, holdout=0.0, select="offline")
    with pytest.raises(ValueError, match=r"select must be one of 'last', 'offline', got 'best'"):
        spec_of(path, select="best")


def test_a_log_of_one_episode_cannot_be_split(tmp_path):
    save_npz(make_log(lengths=(30,)), tmp_path / "one.npz")
    with pytest.raises(ValueError, match=r"holdout=0.3.*one episode.*holdout=0"):
        run_of(tmp_path / "one.npz")
    assert run_of(tmp_path / "one.npz", holdout=0.0, steps=3).step == 3


def test_a_specification_with_a_holdout_survives_json(path):
    spec = spec_of(path, select="offline")
    assert type(spec).from_json(spec.to_json()) == spec
    older = {
        name: value for name, value in spec.to_json().items() if name not in ("holdout", "select")
    }
    assert type(spec).from_json(older) == dataclasses.replace(spec, holdout=0.0, select="last")


def test_spot_prepares_on_training_rows(path):
    settings = {"hidden": (4,), "vae_hidden": (4,), "vae_steps": 4}
    options = {"algorithm": "spot", "settings": settings, "seeds": [3], "steps": 6}
    run = run_of(path, **options, select="offline")
    assert run.about["preparation"]["steps"] == 4
    assert run.about["selected"]["3"] in (3, 6)
    changed = make_log()
    rows = rows_of(parts_of(spec_of(path, **options)).held_out)
    changed.action[rows] = 0.0
    save_npz(changed, path)
    other = run_of(path, **options, select="offline")
    assert other.about["preparation"] == run.about["preparation"]
    assert_same(other.states.density, run.states.density)
