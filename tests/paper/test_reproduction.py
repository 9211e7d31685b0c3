"""Presets produce their runs, tables and figures."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.made_up_runs import ConstantPolicy, MadeUpPolicies, evaluation
from fat2thin import algorithms, data
from fat2thin.algorithms.base import Problem
from fat2thin.data import DataFileError
from fat2thin.data.formats.d4rl import ROBOT_SETS, place_of
from fat2thin.data.writers import write_hdf5
from fat2thin.envs import regenerate
from fat2thin.envs.rollouts import ROBOTS
from fat2thin.evaluation.returns import TaskError
from fat2thin.evaluation.statistics import ratio
from fat2thin.experiments import comparison, plan
from fat2thin.experiments.plan import PlanProgress
from fat2thin.paper import claims_table, policy_figures, presets, reproduction, studies
from fat2thin.paper.claims import NOT_RUN, Reproduced
from fat2thin.paper.presets import (
    PRESETS,
    SCALES,
    CurveSizes,
    Method,
    Reproduction,
    method,
    options_of,
)
from fat2thin.paper.reproduction import NAMES, STUDIES, reproduce
from fat2thin.policies.families import HeavyTailed, Sparse, Squashed
from fat2thin.report import style
from fat2thin.runs.result import Evaluations
from report.page_runs import two_coordinates

SCALE = SCALES["smoke"]._replace(hidden=(4,), timed_updates=2)
ASKED = Reproduction(SCALE)
STEPS = (0, 1, 2)


def no_computing(*given):
    raise AssertionError("this was to be reused")


@pytest.fixture(scope="module")
def third(tmp_path_factory):
    """Return Figure 3 with one method and two updates, the only training in this file."""
    root = tmp_path_factory.mktemp("reproduction")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduction, "EVOLUTION_STEPS", STEPS)
        patch.setitem(PRESETS, "fig3", one_method)
        outcome = reproduce("fig3", ASKED, root, PlanProgress())
        times = {path: path.stat().st_mtime_ns for path in root.glob("**/run.json")}
        patch.setattr(plan, "execute_together", no_computing)
        patch.setattr(style, "save_figure", lambda figure, path: None)
        again = reproduce("fig3", ASKED, root, PlanProgress())
    return SimpleNamespace(root=root, outcome=outcome, again=again, times=times)


def one_method(asked):
    """Use behaviour cloning instead of FtTPO, since it compiles faster."""
    cloned = Method("fttpo", "bc")
    return [asked.evolution("treatment/quadratic", "treatment-quadratic", cloned, STEPS)]


def test_figures_are_written_as_png_and_pdf(third):
    names = [path.name for path in third.outcome.pictures]
    assert names == ["fig3_left.png", "fig3_left.pdf", "fig3_right.png", "fig3_right.pdf"]
    for path in third.outcome.pictures:
        assert path.parent == third.root / "figures"
        begin = {".png": b"\x89PNG", ".pdf": b"%PDF"}[path.suffix]
        assert path.read_bytes().startswith(begin)


def test_runs_are_saved_where_claims_look_for_them(third):
    (kept,) = third.times
    assert (
        Reproduced(third.root).evolution("treatment-quadratic", presets.FTTPO).folder == kept.parent
    )


def test_a_second_call_reuses_the_runs_and_gives_the_same_output(third):
    assert third.again.pictures == third.outcome.pictures
    assert {path: path.stat().st_mtime_ns for path in third.times} == third.times


def test_an_unknown_preset_is_an_error_that_lists_the_presets(tmp_path):
    with pytest.raises(ValueError, match=r"no preset is called 'fig33'; there are fig1, .*, all"):
        reproduce("fig33", ASKED, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    """Have a machine without any robot data."""
    (tmp_path / "nothing").mkdir()
    for variable in ("FAT2THIN_DATA", "MINARI_DATASETS_PATH"):
        monkeypatch.setenv(variable, str(tmp_path / "nothing"))
    return tmp_path / "nothing"


@pytest.mark.parametrize("name", ["fig1", "fig4", "fig5", "fig6", "fig7", "hyperparameters", "all"])
@pytest.mark.parametrize(
    ("source", "commands"),
    [
        ("d4rl", ("curl --create-dirs -o", "halfcheetah_medium_expert-v2.hdf5", "FAT2THIN_DATA")),
        ("minari", ("minari download mujoco/halfcheetah/expert-v0", "MINARI_DATASETS_PATH")),
    ],
)
def test_missing_data_is_an_error_before_anything_is_written(
    name, source, commands, no_data, tmp_path
):
    with pytest.raises(DataFileError) as error:
        reproduce(name, Reproduction(SCALE, source), tmp_path / "new")
    assert all(words in str(error.value) for words in commands)
    missing = 1 if name in ("fig1", "fig5", "fig7") else 9
    assert str(error.value).count(" not found") == missing
    assert not (tmp_path / "new").exists()


def test_without_mujoco_the_error_names_the_extra(no_data, tmp_path, monkeypatch):
    monkeypatch.setattr(regenerate, "mujoco_is_installed", lambda: False)
    with pytest.raises(ValueError, match=r'pip install "fat2thin\[mujoco\]"'):
        reproduce("all", ASKED, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("asked", "amount"),
    [
        (ASKED, "2 data sets, 4,000 rows, 1 MB, about "),
        # Rows of 62 bytes (15 numbers, 2 flags) and of 98 (24 numbers, 2 flags).
        (Reproduction(SCALES["small"]), "2 data sets, 600,000 rows, 52 MB, about "),
    ],
)
def test_missing_regenerated_data_are_made_after_saying_how_much(
    asked, amount, no_data, capsys, monkeypatch
):
    made = []

    def make(names, progress):
        assert amount in capsys.readouterr().out
        made.extend(names)
        for name in names:
            write_hdf5(two_coordinates(), place_of(name))

    monkeypatch.setattr(regenerate, "mujoco_is_installed", lambda: True)
    monkeypatch.setattr(regenerate, "make", make)
    runs = [
        *(asked.robot(name, presets.FTTPO) for name in ("hopper-medium", "walker2d-medium-expert")),
        asked.treatment("cubic", presets.FTTPO),
    ]
    specs = [dataclasses.replace(run.spec, task="none") for run in runs]
    reproduction.provide_data(specs)
    wanted = [asked.robot_data("hopper-medium"), asked.robot_data("walker2d-medium-expert")]
    assert made == wanted
    reproduction.provide_data(specs)
    assert made == wanted and capsys.readouterr().out == ""


def test_a_task_that_cannot_be_simulated_is_an_error_before_anything_runs(no_data, monkeypatch):
    run = ASKED.robot("hopper-medium", presets.FTTPO)
    write_hdf5(two_coordinates(), place_of(run.spec.dataset))
    monkeypatch.setitem(ROBOTS, "hopper", "Nowhere-v5")
    with pytest.raises(TaskError, match="Nowhere-v5"):
        reproduction.provide_data([run.spec])


# The output of each preset, from made-up runs.


@pytest.fixture(scope="module")
def robot_log(tmp_path_factory):
    path = tmp_path_factory.mktemp("logs") / "robot.npz"
    data.save_npz(two_coordinates(), path)
    return data.load(str(path))


def stand_in(planned):
    """Return a planned run with made-up scores: FtTPO ends at 50, others a tenth below."""
    spec = planned.spec
    robot = not spec.dataset.startswith("treatment/")
    ours = spec.algorithm == "fttpo"
    low, high = ((-2.0, 0.0), (2.0, 10.0)) if robot else ((-1.0,), (1.0,))
    middle, scale = np.zeros(len(low)), np.full(len(low), 0.2)
    level = 50.0 if ours else 45.0
    scores = level + np.array([[-9.0, -8.0], [-1.0, 1.0]])
    proposes = spec.algorithm.startswith(("fttpo", "tawac-ht"))
    policies = {
        "actor_sampled": evaluation(spec.dataset, scores),
        "actor_centre": evaluation(spec.dataset, scores + 1.0),
        **({"proposal_sampled": evaluation(spec.dataset, scores - 10.0)} if proposes else {}),
    }
    steps = (0, spec.steps)
    return MadeUpPolicies(
        spec=dataclasses.replace(spec, seeds=(0, 1)), step=spec.steps, folder=None, measured={},
        about={}, evaluations=Evaluations(steps, policies),
        program=SimpleNamespace(
            algorithm=algorithms.get(spec.algorithm),
            problem=Problem(3 if robot else 30, low, high, 0.9),
        ),
        actors=ConstantPolicy(Sparse() if ours else Squashed(), middle, scale, low, high),
        proposals=ConstantPolicy(HeavyTailed(), middle, scale, low, high),
    )  # fmt: skip


PICTURES = {
    "fig1": ["fig1_left", "fig1_middle", "fig1_right", "fig1_right_published"],
    "fig2": ["fig2_left", "fig2_left_published", "fig2_middle_quadratic", "fig2_right_quadratic",
             "fig2_middle_cubic", "fig2_right_cubic"],
    "fig3": ["fig3_left", "fig3_right"],
    "fig4": ["fig4", "fig4_published"],
    "fig5": ["fig5"],
    "fig6": ["fig6", "fig6_published"],
    "fig7": ["fig7_left", "fig7_right_quadratic", "fig7_right_cubic"],
    "fig8": ["fig8_upper", "fig8_lower"],
    "fig9": ["fig9"],
    "treatment": [],
    "ablation": ["fig6", "fig6_published", "fig8_upper", "fig8_lower"],
}  # fmt: skip
TABLES = {"fig1": 1, "fig2": 2, "fig4": 10, "fig6": 1, "treatment": 2, "ablation": 1}


@pytest.fixture
def made_up(monkeypatch, robot_log):
    """Replace the computation of planned runs by made-up runs."""
    monkeypatch.setattr(reproduction, "provide_data", lambda specs: None)
    monkeypatch.setattr(reproduction, "carry_out", lambda planned, root, progress: None)
    monkeypatch.setattr(
        reproduction,
        "load_runs",
        lambda planned, root: {one.name: stand_in(one) for one in planned},
    )
    monkeypatch.setattr(reproduction.data, "load", lambda name, seed=0: robot_log)
    monkeypatch.setattr(style, "save_figure", lambda figure, path: path.touch())
    # Skipped: it simulates thousands of futures and has its own tests.
    monkeypatch.setattr(policy_figures, "first_action_return", lambda run, seed: Figure())


def test_every_preset_has_an_output():
    assert {*PICTURES} == {*PRESETS}
    assert {*PRESETS, *STUDIES} == {*reproduction._SHOWN}


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize("name", PICTURES)
def test_a_preset_writes_its_figures_and_tables(name, tmp_path):
    outcome = reproduce(name, ASKED, tmp_path)
    expected = [f"{picture}.{kind}" for picture in PICTURES[name] for kind in ("png", "pdf")]
    assert [path.name for path in outcome.pictures] == expected
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == sorted(expected)
    assert len(outcome.tables) == TABLES.get(name, 0)
    kept = tmp_path / "tables" / f"{name}.md"
    assert kept.exists() == bool(outcome.tables)
    if outcome.tables:
        assert kept.read_text().count("**") == 2 * len(outcome.tables)


@pytest.mark.usefixtures("made_up")
def test_the_options_are_saved_for_the_commands_of_claims(tmp_path):
    reproduce("treatment", Reproduction(SCALES["smoke"], "d4rl", seeds=3), tmp_path)
    assert options_of(tmp_path) == "--scale smoke --data d4rl --seeds 3"


@pytest.mark.usefixtures("made_up")
def test_numbers_reach_the_tables(tmp_path):
    (first,) = reproduce("fig1", ASKED, tmp_path).tables
    assert first["fttpo"]["mean"] == pytest.approx(50.0)
    assert first["rar"]["mean"] == pytest.approx(45.0)
    assert first["fttpo"]["proposal"] == pytest.approx(40.0)
    assert "| fttpo | 50.0 [49.0, 51.0] |" in (tmp_path / "tables" / "fig1.md").read_text()


def test_shares_are_in_per_cent_of_fttpo():
    runs = {"a": {one.algorithm: stand_in(ASKED.robot("hopper-medium", one))
                  for one in (presets.FTTPO, method("fttpo-spot"))}}  # fmt: skip
    ((name, share),) = reproduction._shares(runs, published=False)["a"].items()
    assert (name, share.value) == ("fttpo-spot", pytest.approx(90.0))
    variant, fttpo = (comparison.final(runs["a"][one], "actor_sampled") for one in (name, "fttpo"))
    assert share == pytest.approx(100.0 * np.asarray(ratio(variant, fttpo)))
    assert share.low < 90.0 < share.high


def test_published_shares_use_proposals():
    methods = (presets.FTTPO_PUBLISHED, method("fttpo-spot", published=True))
    runs = {"a": {one.folder: stand_in(ASKED.robot("hopper-medium", one))
                  for one in methods}}  # fmt: skip
    ((name, share),) = reproduction._shares(runs, published=True)["a"].items()
    assert (name, share.value) == ("fttpo-spot", pytest.approx(100.0 * 35.0 / 40.0))


def test_the_published_part_includes_methods_without_a_published_form():
    runs = {"a": dict.fromkeys(("fttpo", "fttpo-published", "iql"), MadeUpPolicies())}
    assert [*reproduction._part(runs, published=False)["a"]] == ["fttpo", "iql"]
    assert [*reproduction._part(runs, published=True)["a"]] == ["fttpo-published", "iql"]


def test_all_runs_every_preset_and_the_times(tmp_path, monkeypatch, made_up):
    shown = []
    monkeypatch.setattr(reproduction, "_show", lambda name, runs: (shown.append(name) or [], {}))
    monkeypatch.setattr(reproduction, "_time", lambda *given: (shown.append("time") or [], {}))
    reproduce("all", ASKED, tmp_path)
    assert shown == [*PRESETS, "time"]
    others = {"time", "all", "hyperparameters", "hyperparameters-treatment"}
    assert set(NAMES) == {*PRESETS, "selection", "small-logs", *others}


@pytest.mark.slow
@pytest.mark.long
def test_everything_in_the_paper_runs_on_a_machine_without_data(no_data, tmp_path):
    """With the extra mujoco: every figure, table and claim, with few updates and rows."""
    pytest.importorskip("mujoco", reason="the extra mujoco is not installed")
    tiny = SCALE._replace(
        treatment=CurveSizes(steps=4, seeds=2, evaluations=2, episodes=2),
        robots=CurveSizes(steps=4, seeds=2, evaluations=2, episodes=1),
        clipped_steps=4, robot_evolution=1, regenerated_rows=300,
    )  # fmt: skip
    outcome = reproduce("all", Reproduction(tiny), tmp_path / "new", PlanProgress())
    assert {path.stem for path in no_data.iterdir()} == {f"{name}@300" for name in ROBOT_SETS}
    drawn = {name for names in PICTURES.values() for name in names} | {"time"}
    assert {path.stem for path in outcome.pictures} == drawn
    assert all(path.stat().st_size for path in outcome.pictures)
    assert len(outcome.tables) == sum(TABLES.values()) + 1
    found = claims_table.verdicts(tmp_path / "new")
    assert [one.claim.name for one in found if one.verdict == NOT_RUN] == []


# Times


TIMES = {
    "device": "a clock",
    "methods": {
        "fttpo": {"seconds_an_update": 0.054, "seconds_an_action": 3e-6},
        "iql": {"seconds_an_update": 0.0216, "seconds_an_action": 2e-6},
    },
}


def test_times_are_hours_and_ratios():
    """The paper's hours for a million updates: 15 and 6."""
    fttpo, iql = studies.times_table(TIMES)
    assert fttpo["hours_per_million_updates"] == pytest.approx(15.0)
    assert iql["hours_per_million_updates"] == pytest.approx(6.0)
    assert fttpo["times_iql"] == pytest.approx(2.5)
    assert fttpo["microseconds_per_action"] == pytest.approx(3.0)


def test_times_are_measured_in_interleaved_rounds_and_the_best_is_kept(tmp_path, monkeypatch):
    order = []

    class Subject:
        def __init__(self, planned, updates):
            assert updates == 2
            self.name, self.updates, self.actions = planned.spec.algorithm, [], []

        def round(self):
            order.append(self.name)
            self.updates.append(1.0 / len(order))
            self.actions.append(float(len(order)))

    monkeypatch.setattr(studies, "_TimedMethod", Subject)
    outcome = reproduce("time", ASKED, tmp_path)
    names = ["fttpo", "inac", "tawac", "iql"]
    assert order == names * studies.ROUNDS
    kept = json.loads((tmp_path / "times.json").read_text())
    assert [*kept["methods"]] == names
    last = len(order) - 4 + 1
    assert kept["methods"]["fttpo"] == {"seconds_an_update": 1.0 / last, "seconds_an_action": 1.0}
    assert [path.name for path in outcome.pictures] == ["time.png", "time.pdf"]
    assert kept["device"] in outcome.tables[0].title
