"""Settings for small logs: who gets them, and what is said of it."""

import dataclasses
import logging

import numpy as np
import pytest

import fat2thin
from fat2thin import algorithms, data
from fat2thin.cli import main
from fat2thin.data import Dataset
from fat2thin.training import Run, make_spec, run, small_logs
from fat2thin.training.small_logs import (
    OPTIONS,
    SMALL_STEPS,
    enough_steps,
    resolve,
    sentence,
    small_settings,
)

ROWS, LENGTH = 40, 10
WANTED = {"hidden": (16, 16), "weight_decay": 3.0, "learning_rate": 3e-4}
"""What every algorithm has on a small log that is noisy."""
BAND = {"temperature": 0.35, "actor_loss": "closed_form", "kept_mass": 0.3}
ALGORITHMS = tuple(algorithms.names())
IQL = algorithms.get("iql").config()


def made_up_log(noisy):
    """What comes next is anything, or a step from here in the direction of the action."""
    rng = np.random.default_rng(0)
    observation = rng.normal(size=(ROWS, 2)).astype(np.float32)
    action = rng.uniform(-1.0, 1.0, size=(ROWS, 1)).astype(np.float32)
    following = rng.permutation(observation) if noisy else 0.9 * observation + action
    return Dataset(
        name="clinic.npz",
        observation=observation,
        action=action,
        reward=rng.normal(size=ROWS).astype(np.float32),
        next_observation=following,
        continuation=np.ones(ROWS, np.float32),
        episode_start=np.arange(0, ROWS, LENGTH),
        action_low=(-1.0,),
        action_high=(1.0,),
        discount=0.9,
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A log that is noisy."""
    path = tmp_path_factory.mktemp("logs") / "clinic.npz"
    data.save_npz(made_up_log(noisy=True), path)
    return str(path)


@pytest.fixture(scope="module")
def clear(tmp_path_factory):
    """A log of something that moves by rule."""
    path = tmp_path_factory.mktemp("logs") / "machine.npz"
    data.save_npz(made_up_log(noisy=False), path)
    return str(path)


@pytest.fixture
def limit(monkeypatch):
    """Says up to how many rows a log is small."""
    return lambda rows: monkeypatch.setattr(small_logs, "SMALL_ROWS", rows)


@pytest.fixture
def asked(monkeypatch):
    """Specifications that would have been computed."""
    seen = []

    def execute(spec, *_):
        seen.append(spec)
        return object.__new__(Run)

    monkeypatch.setattr(run, "execute", execute)
    return seen


def test_a_log_is_small_up_to_twenty_five_thousand_rows():
    assert small_logs.SMALL_ROWS == 25_000
    assert resolve("auto", "bc", "treatment/quadratic@1041") == "small"  # 24,984 rows
    assert resolve("auto", "bc", "treatment/quadratic@1042") == "default"  # 25,008 rows


@pytest.mark.parametrize(
    ("most", "found"), [(ROWS - 1, "default"), (ROWS, "small"), (ROWS + 1, "small")]
)
def test_the_log_decides_at_the_limit(path, limit, most, found):
    limit(most)
    assert resolve("auto", "fttpo", path) == resolve("auto", "iql", path) == found


@pytest.mark.parametrize(
    ("most", "found"), [(ROWS - 1, "default"), (ROWS, "small-clear"), (ROWS + 1, "small-clear")]
)
def test_a_small_log_that_is_not_noisy_has_settings_of_its_own(clear, limit, most, found):
    limit(most)
    assert resolve("auto", "fttpo", clear) == found


def test_algorithms_that_were_not_tried_on_clear_logs_have_their_defaults(clear, asked):
    for algorithm in ALGORITHMS:
        if algorithm != "fttpo":
            assert resolve("auto", algorithm, clear) == "default"
    with pytest.raises(ValueError, match="'small-clear' is known of fttpo, not of iql"):
        small_settings("iql", "small-clear")
    fat2thin.train("iql", clear, steps=3)
    assert asked == [make_spec("iql", clear, steps=3)]


@pytest.mark.parametrize("given", ["default", "small", "small-clear", "own", "fttpo"])
def test_whoever_says_what_settings_are_from_is_believed(given):
    """Nobody looks at the log: it need not even be there."""
    assert resolve(given, "fttpo", "nowhere.npz") == given


def test_a_small_log_has_small_settings_and_scales(path, asked):
    fat2thin.train("iql", path)
    (spec,) = asked
    assert {name: getattr(spec.config, name) for name in WANTED} == WANTED
    assert {name: getattr(spec, name) for name in OPTIONS} == OPTIONS
    assert spec.settings_from == "small" and spec.steps == SMALL_STEPS == 6_000
    usual = {name: getattr(IQL, name) for name in small_settings("iql")}
    assert dataclasses.replace(spec.config, **usual) == IQL


def test_a_clear_log_has_a_small_band_and_the_usual_networks(clear, asked):
    fat2thin.train("fttpo", clear)
    (spec,) = asked
    usual = algorithms.get("fttpo").config()
    assert spec.config == dataclasses.replace(usual, **BAND)
    assert {name: getattr(spec, name) for name in OPTIONS} == OPTIONS
    assert spec.settings_from == "small-clear" and spec.steps == SMALL_STEPS
    assert type(spec).from_json(spec.to_json()) == spec


def test_a_large_log_has_the_defaults(path, asked, limit, caplog):
    limit(ROWS - 1)
    fat2thin.train("iql", path, steps=3)
    (spec,) = asked
    assert spec == make_spec("iql", path, steps=3)
    assert spec.config == IQL and not spec.standardise and spec.reward_scale == 1.0
    assert not caplog.records


def test_what_was_given_wins(path, asked):
    fat2thin.train(
        "fttpo", path, steps=7, hidden=(8,), kept_mass=0.5, standardise=False, reward_scale=2.0
    )
    (spec,) = asked
    assert (spec.steps, spec.config.hidden, spec.config.kept_mass) == (7, (8,), 0.5)
    assert (spec.standardise, spec.reward_scale) == (False, 2.0)
    # The others are those for small logs all the same.
    assert (spec.config.temperature, spec.config.weight_decay) == (0.35, 3.0)


def test_a_config_is_taken_as_it_is(path, asked):
    fat2thin.train("iql", path, steps=2, config=IQL)
    assert asked == [make_spec("iql", path, steps=2, config=IQL)]


def test_settings_and_a_config_are_not_mixed(path):
    with pytest.raises(ValueError, match="give a config or settings_from='small', not both"):
        make_spec("iql", path, steps=2, config=IQL, settings_from="small")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_takes_its_small_settings(algorithm, path):
    spec = make_spec(algorithm, path, steps=5, settings_from="small")
    for name, value in small_settings(algorithm).items():
        assert getattr(spec.config, name) == value
    assert WANTED.items() <= small_settings(algorithm).items()
    assert {name: getattr(spec, name) for name in OPTIONS} == OPTIONS
    assert type(spec).from_json(spec.to_json()) == spec


def test_algorithms_have_settings_of_their_own():
    assert small_settings("fttpo") == {**WANTED, **BAND}
    assert small_settings("fttpo", "small-clear") == BAND
    assert small_settings("bc") == WANTED
    assert [*small_settings("iql")] == [*WANTED, "temperature"]


def test_an_algorithm_of_ones_own_keeps_its_defaults(path, asked):
    assert resolve("auto", "stand_in", path) == "default"
    fat2thin.train("stand_in", path, steps=2)
    assert asked == [make_spec("stand_in", path, steps=2)]
    with pytest.raises(ValueError, match=r"'small' is known of fttpo, .* not of stand_in"):
        small_settings("stand_in")


def test_an_algorithm_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="no algorithm is called 'nobody'"):
        small_settings("nobody")


@pytest.mark.parametrize("origin", ["default", "small", "small-clear", "own", "fttpo"])
def test_steps_are_those_asked_for(origin):
    assert enough_steps(12, origin, "nowhere.npz") == 12


@pytest.mark.parametrize("origin", ["small", "small-clear"])
@pytest.mark.parametrize(
    ("discount", "steps"),
    # Six hundred over one minus the discount, within bounds; without a discount there is no end.
    [(0.0, 6_000), (0.5, 6_000), (0.9, 6_000), (0.95, 12_000), (0.99, 60_000), (0.999, 100_000),
     (1.0, 100_000)],
)  # fmt: skip
def test_the_further_a_log_looks_ahead_the_more_updates(tmp_path, origin, discount, steps):
    log = dataclasses.replace(made_up_log(noisy=True), discount=discount)
    data.save_npz(log, tmp_path / "log.npz")
    # On clear logs no more were tried.
    most = 12_000 if origin == "small-clear" else steps
    assert enough_steps(None, origin, str(tmp_path / "log.npz")) == min(steps, most)


@pytest.mark.parametrize("origin", ["default", "own", "fttpo"])
def test_without_steps_the_error_says_what_to_do(origin, path):
    with pytest.raises(ValueError, match=r"say how many updates \(steps.*settings_from='small'"):
        enough_steps(None, origin, path)


def test_a_large_log_without_steps_is_an_error_before_anything_is_computed(path, asked, limit):
    limit(ROWS - 1)
    with pytest.raises(ValueError, match="say how many updates"):
        fat2thin.train("iql", path)
    with pytest.raises(ValueError, match="say how many updates"):
        fat2thin.train("iql", path, settings_from="default")
    with pytest.raises(SystemExit, match="fat2thin: say how many updates"):
        main(["train", "iql", path])
    assert not asked


def test_the_line_names_the_log_its_rows_the_settings_and_the_way_out(path):
    line = sentence("fttpo", path, "small", ())
    assert line.startswith(f"{path} has 40 rows, and what comes next in it is noisy: settings for")
    assert "(hidden=16,16, weight_decay=3.0, learning_rate=0.0003, temperature=0.35" in line
    assert "kept_mass=0.3, standardise=True, reward_scale=deviation). " in line
    assert line.endswith("--settings-from default has the usual ones.")
    assert "treatment/cubic@42 has 1,008 rows" in sentence("bc", "treatment/cubic@42", "small", ())
    clear = sentence("fttpo", path, "small-clear", ())
    assert "what comes next in it can be predicted: settings" in clear
    assert "(temperature=0.35, actor_loss=closed_form, kept_mass=0.3, standardise=" in clear
    assert "standardise" not in sentence("fttpo", path, "small", ["standardise"])


def test_who_did_not_ask_for_small_settings_is_told(path, clear, asked, caplog):
    with caplog.at_level(logging.WARNING):
        fat2thin.train("iql", path)
        fat2thin.train("fttpo", clear)
    assert [record.message for record in caplog.records] == [
        sentence("iql", path, "small", ()), sentence("fttpo", clear, "small-clear", ()),
    ]  # fmt: skip
    caplog.clear()
    fat2thin.train("iql", path, settings_from="small")
    fat2thin.train("iql", path, settings_from="default", steps=2)
    assert not caplog.records and len(asked) == 4


def test_the_command_line_takes_them_and_says_so(path, capsys, tmp_path):
    folder = tmp_path / "run"
    options = ["--steps", "2", "--batch-size", "4", "--out", str(folder), "--set", "hidden=4,4"]
    main(["train", "bc", path, *options])
    told = capsys.readouterr().out
    assert sentence("bc", path, "small", ["hidden"]) in told and "hidden=16,16" not in told
    spec = fat2thin.load(folder).spec
    assert spec.settings_from == "small" and spec.config.hidden == (4, 4)
    assert spec.config.weight_decay == 3.0
    assert spec.standardise and spec.reward_scale == "deviation"


def test_rewards_that_never_differ_have_no_scale_and_get_the_defaults(tmp_path):
    path = tmp_path / "equal.npz"
    log = made_up_log(noisy=True)
    data.save_npz(dataclasses.replace(log, reward=np.full_like(log.reward, 0.1)), path)
    assert resolve("auto", "bc", str(path)) == "default"
