"""Settings by the log: which are used when, and what is reported to the user."""

import dataclasses
import itertools
import logging
import re

import numpy as np
import pytest

import fat2thin
from choices import choices
from fat2thin import algorithms, data
from fat2thin.cli.main import main
from fat2thin.data import Dataset, readers
from fat2thin.settings import automatic
from fat2thin.settings.automatic import SMALL_STEPS, enough_steps, resolve, settings_for
from fat2thin.settings.spec import describe_settings
from fat2thin.training import Run, make_spec
from fat2thin.training import runner as run

ROWS, LENGTH = 40, 10
WANTED = {"hidden": (16, 16), "weight_decay": 3.0, "learning_rate": 3e-4}
"""Settings of every algorithm on a small noisy log."""
BAND = {"temperature": 0.35, "actor_loss": "closed_form", "kept_mass": 0.3}
DEEP = {"hidden": (256, 256, 256), "layer_norm": True}
ALGORITHMS = tuple(algorithms.names())
IQL = algorithms.get("iql").config()


def assert_scaled(spec):
    assert spec.standardise and spec.reward_scale == "deviation"
    assert spec.centre_values == (spec.algorithm in ("fttpo", "fttpo-spot"))


def made_up_log(noisy):
    """Return a log whose next observation is random, or moves in the direction of the action."""
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


ALONE = {"seeds": 1, "holdout": 0.0}
"""What a data set with a name gets by default."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A noisy log."""
    path = tmp_path_factory.mktemp("logs") / "clinic.npz"
    data.save_npz(made_up_log(noisy=True), path)
    return str(path)


@pytest.fixture(scope="module")
def clear():
    """A data set with a name and deterministic dynamics."""

    def read(name, seed):
        return dataclasses.replace(made_up_log(noisy=False), name=name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "_READERS", dict(readers._READERS))
        data.register_reader(data.Reader("machine/", read))
        yield "machine/log"


@pytest.fixture
def limit(monkeypatch):
    """Set the maximum number of rows of a small log."""
    return lambda rows: monkeypatch.setattr(automatic, "SMALL_ROWS", rows)


@pytest.fixture
def asked(monkeypatch):
    """Record the specifications of runs instead of computing them."""
    seen = []

    def execute(spec, *_, **__):
        seen.append(spec)
        return object.__new__(Run)

    monkeypatch.setattr(run, "execute", execute)
    return seen


def test_a_log_is_small_up_to_25000_rows():
    assert automatic.SMALL_ROWS == 25_000
    assert resolve("auto", "bc", "treatment/quadratic@1041") == "small"  # 24,984 rows
    assert resolve("auto", "bc", "treatment/quadratic@1042") == "large"  # 25,008 rows


@pytest.mark.parametrize(
    ("most", "found"), [(ROWS - 1, "large"), (ROWS, "small"), (ROWS + 1, "small")]
)
def test_the_number_of_rows_decides_whether_a_log_is_small(path, limit, most, found):
    limit(most)
    assert resolve("auto", "fttpo", path) == resolve("auto", "iql", path) == found


@pytest.mark.parametrize(
    ("most", "found"), [(ROWS - 1, "large"), (ROWS, "small-clear"), (ROWS + 1, "small-clear")]
)
def test_a_small_predictable_log_gets_its_own_settings(clear, limit, most, found):
    limit(most)
    assert resolve("auto", "fttpo", clear) == found


def test_your_own_log_gets_seeds_and_held_out_episodes(path, asked, caplog):
    with caplog.at_level(logging.WARNING):
        fat2thin.train("fttpo", path)
        fat2thin.train("fttpo", path, steps=7, seeds=[2], holdout=0.5)
        fat2thin.train("fttpo", "treatment/quadratic", task="none")
    own, given, named = asked
    assert (own.seeds, own.holdout, own.steps) == ((0, 1, 2, 3, 4), 0.2, 2_500)
    assert own.to_json()["seeds"] == [0, 1, 2, 3, 4] and own.to_json()["holdout"] == 0.2
    assert (given.seeds, given.holdout, given.steps) == ((2,), 0.5, 7)
    assert (named.seeds, named.holdout) == ((0,), 0.0)
    lines = [record.message.split("\n")[0] for record in caplog.records]
    assert lines[0] == (
        "Chosen for your own log: 5 seeds, 20 % of the episodes held out, 2,500 updates per seed "
        "(--seeds, --holdout, --steps to change)."
    )
    assert not any(line.startswith("Chosen") for line in lines[1:])


def test_a_small_log_of_your_own_gets_small_networks(tmp_path, clear):
    own = str(tmp_path / "machine.npz")
    data.save_npz(data.load(clear), own)
    assert resolve("auto", "fttpo", own) == "small"
    assert resolve("auto", "fttpo", clear) == "small-clear"
    assert "and it is your own: settings for small" in sentence("fttpo", own, "small")


def test_a_log_of_one_episode_has_nothing_to_hold_out(tmp_path, asked, caplog):
    one = str(tmp_path / "one.npz")
    data.save_npz(data.load("treatment/cubic@1"), one)
    with caplog.at_level(logging.WARNING):
        fat2thin.train("fttpo", one)
    assert asked[0].holdout == 0.0 and len(asked[0].seeds) == 5
    assert "no episode held out, because there is only one" in caplog.text
    assert "has 1 episode, none is held out: too few to say what the policy is worth" in caplog.text


def test_a_log_with_few_held_out_episodes_says_that_nothing_can_be_judged(tmp_path, asked, caplog):
    def notes(episodes, **options):
        log = str(tmp_path / f"{episodes}.npz")
        data.save_npz(data.load(f"treatment/cubic@{episodes}"), log)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            fat2thin.train("fttpo", log, **options)
        return caplog.text

    assert (
        "About 39 of 195 episodes are held out: too few to say what the policy is worth. "
        "`fat2thin value` and the dossier need at least 40, here or in another log."
    ) in notes(195)
    assert "too few" not in notes(200)
    assert "too few" not in notes(50, task="treatment/cubic")
    assert "too few" in notes(50, task="none")


def test_other_algorithms_get_their_defaults_on_scaled_logs(clear, asked, limit):
    for most, origin in ((ROWS, "small-clear"), (ROWS - 1, "large")):
        limit(most)
        for algorithm in ALGORITHMS:
            assert resolve("auto", algorithm, clear) == origin
        fat2thin.train("iql", clear, steps=3, **ALONE)
        assert asked.pop() == make_spec("iql", clear, steps=3, settings_from=origin)
        assert_scaled(make_spec("iql", clear, steps=3, settings_from=origin))
        assert settings_for("iql", origin) == {}


def test_equal_rewards_have_no_scale(tmp_path):
    ones, path = np.ones(ROWS, np.float32), str(tmp_path / "log.npz")
    log = dataclasses.replace(made_up_log(noisy=True), reward=ones)
    ended = log.continuation.copy()
    ended[-1] = 0
    data.save_npz(dataclasses.replace(log, continuation=ended), path)
    assert resolve("auto", "fttpo", path) == "default"
    # Without true ends, nothing tells policies apart. An hour of updates would not either.
    data.save_npz(dataclasses.replace(log, continuation=ones), path)
    with pytest.raises(ValueError, match=r"log.npz is 1, and no episode truly ends, so all"):
        resolve("auto", "fttpo", path)
    assert resolve("auto", "bc", path) == "default"


@pytest.mark.parametrize("given", ["default", "small", "small-clear", "large", "own", "fttpo"])
def test_an_explicit_source_of_settings_is_kept(given):
    """The log is not read: it need not exist."""
    assert resolve(given, "fttpo", "nowhere.npz") == given


def test_a_small_log_gets_settings_for_and_scales(path, asked):
    fat2thin.train("iql", path)
    (spec,) = asked
    assert {name: getattr(spec.config, name) for name in WANTED} == WANTED
    assert_scaled(spec)
    assert spec.settings_from == "small" and spec.steps == SMALL_STEPS[False] == 6_000
    usual = {name: getattr(IQL, name) for name in settings_for("iql")}
    assert dataclasses.replace(spec.config, **usual) == IQL


def test_a_clear_log_gets_a_small_band_and_the_usual_networks(clear, asked):
    fat2thin.train("fttpo", clear)
    (spec,) = asked
    usual = algorithms.get("fttpo").config()
    assert spec.config == dataclasses.replace(usual, **BAND)
    assert_scaled(spec)
    assert spec.settings_from == "small-clear" and spec.steps == 2_500
    assert type(spec).from_json(spec.to_json()) == spec


def test_a_large_log_gets_the_same_band_and_deep_networks(path, asked, limit, caplog):
    limit(ROWS - 1)
    fat2thin.train("fttpo", path)
    (spec,) = asked
    usual = algorithms.get("fttpo").config()
    assert spec.config == dataclasses.replace(usual, **BAND, **DEEP)
    assert_scaled(spec)
    assert (spec.settings_from, spec.steps) == ("large", 100_000)
    (record,) = caplog.records
    assert f"{path} has 40 rows and is large: settings for large logs" in record.message


def test_given_settings_override_those_for_automatic(path, asked):
    fat2thin.train(
        "fttpo", path, steps=7, hidden=(8,), kept_mass=0.5, standardise=False, reward_scale=2.0
    )
    (spec,) = asked
    assert (spec.steps, spec.config.hidden, spec.config.kept_mass) == (7, (8,), 0.5)
    assert (spec.standardise, spec.reward_scale) == (False, 2.0)
    # The other settings are still those for small logs.
    assert (spec.config.temperature, spec.config.weight_decay) == (0.35, 3.0)


def test_a_given_config_is_not_changed(path, asked):
    fat2thin.train("iql", path, steps=2, config=IQL, **ALONE)
    assert asked == [make_spec("iql", path, steps=2, config=IQL)]


def test_a_config_together_with_settings_for_is_refused(path):
    with pytest.raises(ValueError, match="give a config or settings_from='small', not both"):
        make_spec("iql", path, steps=2, config=IQL, settings_from="small")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_accepts_its_settings_for(algorithm, path):
    spec = make_spec(algorithm, path, steps=5, settings_from="small")
    for name, value in settings_for(algorithm).items():
        assert getattr(spec.config, name) == value
    assert WANTED.items() <= settings_for(algorithm).items()
    assert_scaled(spec)
    assert type(spec).from_json(spec.to_json()) == spec


def test_algorithms_add_their_own_settings_for():
    assert settings_for("fttpo") == {**WANTED, **BAND}
    assert settings_for("fttpo", "small-clear") == BAND
    assert settings_for("bc") == WANTED
    assert [*settings_for("iql")] == [*WANTED, "temperature"]


def test_a_registered_algorithm_keeps_its_defaults(path, asked):
    assert resolve("auto", "stand_in", path) == "default"
    fat2thin.train("stand_in", path, steps=2, **ALONE)
    assert asked == [make_spec("stand_in", path, steps=2)]
    with pytest.raises(ValueError, match=r"'small' is known for .*, fttpo, .* not for stand_in"):
        settings_for("stand_in")


def test_an_unknown_algorithm_is_named():
    with pytest.raises(ValueError, match="no algorithm is called 'nobody'"):
        settings_for("nobody")


@pytest.mark.parametrize("origin", ["default", "small", "small-clear", "large", "own", "fttpo"])
def test_given_steps_are_kept(origin):
    assert enough_steps(12, origin, "nowhere.npz", centred=True) == 12


@pytest.mark.parametrize("origin", ["small", "small-clear", "default", "own"])
@pytest.mark.parametrize(
    ("centred", "discount", "steps"),
    # 250 / (1 - discount) or, from zero, 600 / (1 - discount), within bounds.
    [(True, 0.0, 2_500), (True, 0.9, 2_500), (True, 0.95, 5_000), (True, 0.99, 25_000),
     (False, 0.5, 6_000), (False, 0.9, 6_000), (False, 0.95, 12_000), (False, 0.99, 60_000),
     (False, 0.999, 100_000), (True, 1.0, 100_000)],
)  # fmt: skip
def test_updates_grow_with_the_horizon_of_the_discount(tmp_path, origin, centred, discount, steps):
    log = dataclasses.replace(made_up_log(noisy=True), discount=discount)
    data.save_npz(log, tmp_path / "log.npz")
    # On clear logs no more updates were tried.
    most = 12_000 if origin == "small-clear" else steps
    path = str(tmp_path / "log.npz")
    assert enough_steps(None, origin, path, centred) == min(steps, most)


def test_a_large_log_gets_100000_updates_from_any_settings(path, asked, limit):
    limit(ROWS - 1)
    fat2thin.train("iql", path)
    fat2thin.train("iql", path, settings_from="default")
    assert [spec.steps for spec in asked] == [100_000, 100_000]


def test_values_that_start_at_zero_get_more_updates(path, asked):
    fat2thin.train("fttpo", path)
    fat2thin.train("fttpo", path, centre_values=False)
    fat2thin.train("fttpo", path, settings_from="default")
    assert [spec.steps for spec in asked] == [2_500, 6_000, 6_000]


def sentence(algorithm, log, origin, given=()):
    """Return the note about the settings that `auto` uses for a log of this kind."""
    spec = make_spec(algorithm, log, steps=1, settings_from=origin)
    return describe_settings([spec], given, automatic=True)


def test_the_note_names_the_log_its_rows_the_settings_and_the_way_out(path):
    line = sentence("fttpo", path, "small")
    assert line.startswith(f"{path} has 40 rows, and it is your own: settings for small noisy logs")
    assert "(hidden=16,16, weight_decay=3.0, learning_rate=0.0003, temperature=0.35" in line
    assert "kept_mass=0.3, standardise=True, reward_scale=deviation, centre_values=True). " in line
    assert line.endswith("Use --settings-from default for the algorithm's defaults.")
    assert "treatment/cubic@42 has 1,008 rows" in sentence("bc", "treatment/cubic@42", "small")
    clear = sentence("fttpo", path, "small-clear")
    assert "its next observations are predictable: settings" in clear
    assert "(temperature=0.35, actor_loss=closed_form, kept_mass=0.3, standardise=" in clear
    assert "standardise" not in sentence("fttpo", path, "small", ["standardise"])


def test_automatic_settings_for_are_logged(path, clear, asked, caplog):
    with caplog.at_level(logging.WARNING):
        fat2thin.train("iql", path, steps=2, **ALONE)
        fat2thin.train("fttpo", clear, steps=2, **ALONE)
    assert [record.message for record in caplog.records] == [
        sentence("iql", path, "small"), sentence("fttpo", clear, "small-clear"),
    ]  # fmt: skip
    caplog.clear()
    fat2thin.train("iql", path, settings_from="small", steps=2, **ALONE)
    fat2thin.train("iql", path, settings_from="default", steps=2, **ALONE)
    assert not caplog.records and len(asked) == 4


def test_the_command_line_uses_settings_for_and_prints_them(path, capsys, tmp_path):
    """The given actor_loss leaves one of the settings for small logs without effect."""
    given = ["--set", "hidden=4,4", "--set", "actor_loss=exact"]
    main(
        [
            "train",
            "fttpo",
            path,
            "--steps",
            "2",
            "--batch-size",
            "4",
            "--out",
            str(tmp_path),
            *given,
        ]
    )
    printed = capsys.readouterr().out
    assert "(weight_decay=3.0, learning_rate=0.0003, temperature=0.35, standardise=True" in printed
    assert "because a given setting rules them out: kept_mass=0.3.\n" in printed
    spec = fat2thin.load(tmp_path).spec
    assert spec.settings_from == "small" and spec.config.hidden == (4, 4)
    assert (spec.config.weight_decay, spec.config.kept_mass) == (3.0, None)
    assert spec.standardise and spec.reward_scale == "deviation"


# Given settings in combination with those for small logs


def every_choice(algorithm):
    """Return each choice, alone and with published=True; in pairs if `auto` sets one of them."""
    single = choices(algorithm)
    pairs = [one | other for one, other in itertools.combinations(single, 2) if {*one} != {*other}]
    if not any({*one} <= {*settings_for(algorithm)} for one in single):
        pairs = [pair for pair in pairs if pair.get("published")]
    return [*single, *pairs]


def attempt(algorithm, log, given, origin):
    """Return the specification, or the error message."""
    try:
        return make_spec(algorithm, log, steps=1, settings=given, settings_from=origin)
    except ValueError as error:
        return str(error)


def left_out(specs, given):
    """Return the names of the settings that the note lists as not used."""
    note = describe_settings(specs, given, automatic=False)
    return {*re.findall(r"(\w+)=", note)}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_automatic_setting_prevents_a_choice(algorithm, path, clear, limit):
    """`auto` refuses exactly the choices that the defaults refuse, with the same message.

    A setting of `auto` is either used or, if the algorithm would refuse it, dropped and named.
    """
    limit(ROWS - 1)
    large = resolve("auto", algorithm, path)
    limit(ROWS)
    origins = {large, resolve("auto", algorithm, path), resolve("auto", algorithm, clear)}
    assert origins == {"large", "small", "small-clear"}
    chosen = algorithms.get(algorithm)
    for given in every_choice(algorithm):
        usual = attempt(algorithm, path, given, "default")
        for origin in sorted(origins - {"default"}):
            found = attempt(algorithm, path, given, origin)
            if isinstance(usual, str):
                assert found == usual
                continue
            brought = settings_for(algorithm, origin)
            wanted = {name: brought[name] for name in brought if name not in given}
            dropped = {name for name in wanted if getattr(found.config, name) != wanted[name]}
            kept = {name: wanted[name] for name in wanted if name not in dropped}
            assert found.config == dataclasses.replace(usual.config, **kept)
            assert left_out([found], given) == dropped
            for name in dropped:
                with pytest.raises(ValueError, match=name):
                    chosen.check(dataclasses.replace(found.config, **{name: wanted[name]}))


@pytest.mark.parametrize(
    ("algorithm", "given", "dropped"),
    [
        *(("fttpo", {"actor_loss": loss}, {"kept_mass": None})
          for loss in ("exact", "sampled", "spot", "greedy")),
        *(("fttpo", given, {"actor_loss": "exact", "kept_mass": None})
          for given in ({"published": True}, {"proposal_family": "squashed_gaussian"},
                        {"proposal_family": "beta", "box": "inside"})),
        ("fttpo", {"proposal_family": "student_t", "degrees_of_freedom": 3.0}, {}),
        ("fttpo", {"kept_mass": 0.5, "weight_decay": 0.0}, {}),
        ("fttpo-sg", {"published": True}, {}),
        ("xql", {"published": True}, {"value_temperature": 2.0}),
        ("spot", {"published": True}, {}),
        ("iql", {"policy": "sparse_q_gaussian", "outside_support": "project"}, {}),
    ],
)  # fmt: skip
def test_given_settings_drop_automatic_ones_without_effect(
    algorithm, given, dropped, path, asked, caplog
):
    fat2thin.train(algorithm, path, steps=2, **given)
    (spec,) = asked
    expected = {**settings_for(algorithm), **dropped, **given}
    assert spec.config == dataclasses.replace(algorithms.get(algorithm).config(), **expected)
    assert spec.settings_from == "small" and type(spec).from_json(spec.to_json()) == spec
    (note,) = (record.message for record in caplog.records)
    taken, _, left = note.partition("Not used, because a given setting rules them out: ")
    assert {*re.findall(r"(\w+)=", left)} == {*dropped}
    for name in {*settings_for(algorithm)} - {*given}:
        assert (f"{name}=" in taken) == (name not in dropped)


def test_dropped_settings_are_logged_even_with_explicit_settings_for(path, asked, caplog):
    fat2thin.train("fttpo", path, settings_from="small", actor_loss="exact", steps=2, **ALONE)
    assert [record.message for record in caplog.records] == [
        "Not used, because a given setting rules them out: kept_mass=0.3."
    ]


@pytest.mark.parametrize(
    ("algorithm", "given", "message"),
    [
        ("fttpo", {"actor_loss": "exact", "kept_mass": 0.3}, "^kept_mass=0.3 has no effect"),
        ("fttpo", {"greedy_samples": 20}, "^greedy_samples=20 has no effect"),
        ("fttpo", {"temperature": -1.0}, "^temperature must lie in"),
        ("fttpo", {"actor_los": "exact"}, "no setting 'actor_los'"),
        ("fttpo", {"published": True, "actor_loss": "closed_form"}, "^published=True supports"),
        ("xql", {"published": True, "value_temperature": 1.0}, "^value_temperature=1.0 has no eff"),
    ],
)
def test_given_settings_without_effect_are_refused(algorithm, given, message, path, asked):
    with pytest.raises(ValueError, match=message):
        fat2thin.train(algorithm, path, steps=2, **given)
    assert not asked


def test_logs_with_constant_rewards_get_the_defaults(tmp_path):
    path = tmp_path / "equal.npz"
    log = made_up_log(noisy=True)
    data.save_npz(dataclasses.replace(log, reward=np.full_like(log.reward, 0.1)), path)
    assert resolve("auto", "bc", str(path)) == "default"
