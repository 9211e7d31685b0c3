"""Run a preset and write its tables and figures, as `fat2thin reproduce` does."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fat2thin import data
from fat2thin.atomic_files import write
from fat2thin.data import normalised_score
from fat2thin.data.formats.d4rl import REGENERATED, place_of
from fat2thin.envs import regenerate
from fat2thin.evaluation.returns import evaluator
from fat2thin.evaluation.statistics import Interval, ratio
from fat2thin.experiments import comparison
from fat2thin.experiments.plan import CarryOut, PlanProgress, carry_out, is_over, load_runs
from fat2thin.experiments.sweep import SweepResult, run_sweeps
from fat2thin.paper import policy_figures, studies
from fat2thin.paper.claims import Mode
from fat2thin.paper.presets import EVOLUTION_STEPS, PRESETS, REWARDS, Preset, Reproduction, sweeps
from fat2thin.paper.score_figures import ablation, curves, draw_regret, training_time
from fat2thin.report.style import save_figures, styled
from fat2thin.tables import Table
from fat2thin.terminal_text import printable
from fat2thin.training import Run, RunSpec
from fat2thin.training.progress import recording

TIME, ALL = "time", "all"
STUDIES: dict[str, Preset] = {
    "selection": studies.selection_plan,
    "small-logs": studies.small_log_plan,
}
"""Studies that are not in the paper, and therefore not in `all`."""
SWEEPS = {"hyperparameters": True, "hyperparameters-treatment": False}
"""Whether a preset includes the sweeps on robot data."""
NAMES = (*PRESETS, *STUDIES, TIME, *SWEEPS, ALL)
FORMATS = ("png", "pdf")
_IN_STATE = "for the patient whose measurements are all 0"

Runs = Mapping[str, Run]  # by the name of their folder
Methods = Mapping[str, Mapping[str, Run]]  # runs of learning curves, by data set and method
Shown = tuple[list[Table], dict[str, Figure]]


class PresetOutput(NamedTuple):
    """The output of a preset."""

    tables: list[Table]
    """Its tables."""
    pictures: list[Path]
    """Files of its figures."""


def reproduce(
    name: str, asked: Reproduction, root: str | Path, progress: PlanProgress | None = None,
    compute: CarryOut | None = None, dry_run: bool = False,
) -> PresetOutput:  # fmt: skip
    """Run a preset below `root`, reusing finished runs, and write its tables and figures there.

    `compute` computes the runs, here by default; times are always measured here. In a `dry_run` it
    ends with an exception instead, and nothing is written before.
    """
    compute = compute or carry_out
    root = Path(root)
    if name not in NAMES:
        raise ValueError(f"no preset is called {name!r}; there are {', '.join(NAMES)}")
    if name == TIME:
        return _keep(name, root, *_time(asked, root))
    if name in SWEEPS:
        wanted_sweeps = sweeps(asked, robots=SWEEPS[name])
        provide_data([sweep.base for sweep in wanted_sweeps.values()])
        results = run_sweeps(wanted_sweeps, root, progress, compute)
        return _keep(name, root, _sweep_tables(results), {})
    wanted = [*PRESETS] if name == ALL else [name]
    planned = {one: {**PRESETS, **STUDIES}[one](asked) for one in wanted}
    every = [run for several in planned.values() for run in several]
    provide_data([run.spec for run in every if not is_over(run, root)])
    if not dry_run:
        asked.write(root)
    compute(every, root, progress)
    shown = [_keep(one, root, *_show(one, load_runs(planned[one], root))) for one in wanted]
    if name == ALL:
        shown.append(reproduce(TIME, asked, root, progress))
    return PresetOutput(
        [table for outcome in shown for table in outcome.tables],
        [picture for outcome in shown for picture in outcome.pictures],
    )


def _sweep_tables(results: Mapping[str, SweepResult]) -> list[Table]:
    """Return tables of the selected settings on fresh seeds, then of all settings."""
    chosen = [
        comparison.methods_table(f"best settings on {name}", {one: of[one].run for one in of})
        for name, of in comparison.by_dataset(results).items()
    ]
    return [*chosen, *(result.table() for result in results.values())]


def provide_data(specs: Sequence[RunSpec]) -> None:
    """Make missing regenerated data sets, after saying how much that is.

    Raises an error before anything runs if another data set is missing (it says how to get it), or
    if a task cannot be simulated.
    """
    names = dict.fromkeys(spec.dataset for spec in specs)
    ours = [name for name in names if name.startswith(REGENERATED)]
    if missing := [name for name in ours if not place_of(name).is_file()]:
        sets = regenerate.check(missing)
        folder = printable(next(iter(sets.values())).parent)
        print(f"Making data in {folder}: {regenerate.describe_work([*sets])}.", flush=True)
        with recording("rows", sum(one.rows for one in sets)) as shown:
            regenerate.make(missing, progress=shown)
    problems = []
    for name in names:
        try:
            data.load(name)
        except data.DataFileError as problem:
            problems.append(str(problem))
    if problems:
        raise data.DataFileError("\n".join(problems))
    for dataset, task in dict.fromkeys((spec.dataset, spec.task) for spec in specs):
        evaluator(dataset, task)


@styled
def _keep(
    name: str, root: Path, tables: Sequence[Table], figures: dict[str, Figure]
) -> PresetOutput:
    pictures = save_figures(figures, root / "figures", FORMATS)
    (root / "tables").mkdir(exist_ok=True)
    if tables:
        text = "\n".join(map(Table.markdown, tables))
        write(root / "tables" / f"{name}.md", text.encode())
    return PresetOutput([*tables], pictures)


@styled
def _show(name: str, runs: Runs) -> Shown:
    """Return the tables and figures of a preset."""
    shown = _SHOWN[name](runs)
    for run in runs.values():
        run.keep_references()
    return shown


@styled
def _time(asked: Reproduction, root: Path) -> Shown:
    found = studies.measure_times(asked, root)
    rates = {name: 1.0 / of["seconds_an_update"] for name, of in found["methods"].items()}
    return [studies.times_table(found)], {"time": training_time(rates)}


def _curves(runs: Runs) -> dict[str, dict[str, Run]]:
    """Return the runs of learning curves by data set and method."""
    return comparison.by_dataset(
        {name: run for name, run in runs.items() if name.startswith("curves/")}
    )


def _part(runs: Methods, published: bool) -> dict[str, dict[str, Run]]:
    """Return the corrected methods, or the published forms with the methods that have none."""
    return {
        name: {
            label: run
            for label, run in of_set.items()
            if label.endswith("-published") == published
            or (published and f"{label}-published" not in of_set)
        }
        for name, of_set in runs.items()
    }


_draw_scores = functools.partial(curves, normalise=normalised_score)


def _both(name: str, runs: Methods, draw: Callable[..., Figure]) -> dict[str, Figure]:
    """Return learning curves of the corrected actor, and of the published proposal."""
    return {
        name: draw(_part(runs, published=False)),
        f"{name}_published": draw(_part(runs, published=True), policy="proposal"),
    }


def _tables(runs: Methods) -> list[Table]:
    return [comparison.methods_table(name, of_set) for name, of_set in runs.items()]


def _mean_patient(run: Run) -> np.ndarray:
    return np.zeros(run.program.problem.observation_size, np.float32)


def _first(runs: Runs) -> Shown:
    by_method = _curves(runs)
    return _tables(by_method), {
        "fig1_left": policy_figures.outside_actions(),
        "fig1_middle": policy_figures.replaced_actions(),
        **_both("fig1_right", by_method, _draw_scores),
    }


def _second(runs: Runs) -> Shown:
    by_method = _curves(runs)
    figures = _both("fig2_left", by_method, curves)
    for reward in REWARDS:
        methods = _part(by_method, published=False)[f"treatment-{reward}"]
        fttpo = methods["fttpo"]
        state, seed = _mean_patient(fttpo), fttpo.spec.seeds[0]
        figures[f"fig2_middle_{reward}"] = policy_figures.final_policies(
            methods, state, seed, where=_IN_STATE
        )
        figures[f"fig2_right_{reward}"] = policy_figures.actor_and_proposal(
            fttpo, state, seed, where=_IN_STATE
        )
    return _tables(by_method), figures


def _third(runs: Runs) -> Shown:
    (methods,) = comparison.by_dataset(runs).values()
    state = _mean_patient(methods["fttpo"])
    shown = {"fig3_left": {"fttpo": methods["fttpo"]}, "fig3_right": methods}
    return [], {
        name: policy_figures.evolution(of, state, None, EVOLUTION_STEPS, where=_IN_STATE)
        for name, of in shown.items()
    }


def _fourth(runs: Runs) -> Shown:
    by_method = _curves(runs)
    tables = [comparison.scores_table("final scores", by_method), *_tables(by_method)]
    return tables, _both("fig4", by_method, _draw_scores)


def _evolved(name: str, runs: Runs, where: str = "", every: bool = False) -> Shown:
    """Return evolutions in the first state of a robot log, for one coordinate or all."""
    methods = {
        path.rsplit("/", 1)[1]: run for path, run in runs.items() if path.startswith("evolution/")
    }
    run = next(iter(methods.values()))
    state, steps = data.load(run.spec.dataset).observation[0], run.spec.snapshots
    dimensions = range(len(run.program.problem.action_low) if every else 1)
    where = f"in the first state of the log{where}"
    figure = policy_figures.evolution(methods, state, None, steps, dimensions, where=where)
    return [], {name: figure}


def _variants(runs: Runs) -> Shown:
    by_method = _curves(runs)
    return [comparison.scores_table("final scores", by_method)], {
        "fig6": ablation(_shares(by_method, published=False)),
        "fig6_published": ablation(_shares(by_method, published=True)),
    }


def _shares(runs: Methods, published: bool) -> dict[str, dict[str, Interval]]:
    """Return each variant's score in per cent of FtTPO's, by data set; published: proposals."""
    mode, found = Mode(published), {}
    for name, of_set in _part(runs, published).items():
        scores = {
            label.removesuffix("-published"): comparison.final(run, mode.policy(run))
            for label, run in of_set.items()
        }
        fttpo = scores.pop("fttpo")
        shares = {label: 100.0 * np.array(ratio(of, fttpo)) for label, of in scores.items()}
        found[name] = {label: Interval(*share) for label, share in shares.items()}
    return found


def _variant_curves(runs: Runs) -> Shown:
    by_method = _part(_curves(runs), published=False)
    halves = {"upper": ("fttpo", "fttpo-spot", "fttpo-sg"), "lower": ("fttpo", "tawac-ht")}
    return [], {
        f"fig8_{half}": _draw_scores(
            {name: {label: of[label] for label in labels} for name, of in by_method.items()}
        )
        for half, labels in halves.items()
    }


def _seventh(runs: Runs) -> Shown:
    tables, figures = _evolved("fig7_left", runs, ", first coordinate")
    for reward in REWARDS:
        run, name = runs[f"curves/treatment-{reward}/fttpo"], f"fig7_right_{reward}"
        figures[name] = policy_figures.first_action_return(run, run.spec.seeds[0])
    return tables, figures


def _ablation(runs: Runs) -> Shown:
    (tables, bars), (_, curves_of_variants) = _variants(runs), _variant_curves(runs)
    return tables, bars | curves_of_variants


def _selection(runs: Runs) -> Shown:
    scored = studies.scores(studies.candidates(runs))
    return studies.selection_tables(scored), {"selection": draw_regret(scored)}


_SHOWN: dict[str, Callable[[Runs], Shown]] = {
    "fig1": _first,
    "fig2": _second,
    "fig3": _third,
    "fig4": _fourth,
    "fig5": functools.partial(_evolved, "fig5"),
    "fig6": _variants,
    "fig7": _seventh,
    "fig8": _variant_curves,
    "fig9": functools.partial(_evolved, "fig9", every=True),
    "treatment": lambda runs: (_tables(_curves(runs)), {}),
    "ablation": _ablation,
    "selection": _selection,
    "small-logs": lambda runs: (studies.small_log_tables(runs), {}),
}
