"""From a preset's name to runs, tables and figures: what `fat2thin reproduce` does."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

from fat2thin import data
from fat2thin.atomic_files import write
from fat2thin.data import normalised_score
from fat2thin.evaluation.statistics import Interval, ratio
from fat2thin.experiments import comparison as outcomes
from fat2thin.experiments.plan import Planned, carry_out, is_over, load_runs
from fat2thin.experiments.plan_progress import PlanProgress
from fat2thin.experiments.sweep import Result, run_sweeps
from fat2thin.paper import figures as draw
from fat2thin.paper import grids, selection_study, timing
from fat2thin.paper import signal_quality as choices
from fat2thin.paper import small_log_study as small_study
from fat2thin.paper.claims import ASKED
from fat2thin.paper.presets import EVOLUTION_STEPS, PRESETS, REWARDS, Preset, Reproduction
from fat2thin.paper.selection_figure import draw_regret
from fat2thin.report.distribution_figures import STYLE, save_figure
from fat2thin.runs import files
from fat2thin.tables import Table
from fat2thin.training import Run

TIME, ALL = "time", "all"
STUDIES: dict[str, Preset] = {"selection": selection_study.plan, "small-logs": small_study.plan}
"""What is not in the paper, and so not in `all`."""
SWEEPS = {"hyperparameters": True, "hyperparameters-treatment": False}
"""Whether the sweeps on robots are among them."""
NAMES = (*PRESETS, *STUDIES, TIME, *SWEEPS, ALL)
FORMATS = ("png", "pdf")
_IN_STATE = "for the patient whose measurements are all 0"

Figures = dict[str, Figure]
Runs = Mapping[str, Run]
"""By the name of their folder."""


class Outcome(NamedTuple):
    """What a preset gave."""

    tables: list[Table]
    pictures: list[Path]


def reproduce(
    name: str, asked: Reproduction, root: str | Path, progress: PlanProgress | None = None
) -> Outcome:
    """Carry out a preset below `root`: what is there is reused, and what is missing is run.

    Tables go to `root/tables` as Markdown, figures to `root/figures` as PNG and PDF.
    """
    root = Path(root)
    if name not in NAMES:
        raise ValueError(f"no preset is called {name!r}; there are {', '.join(NAMES)}")
    if name == TIME:
        return _keep(name, root, *_time(asked, root))
    if name in SWEEPS:
        results = run_sweeps(grids.sweeps(asked, robots=SWEEPS[name]), root, progress)
        return _keep(name, root, _sweep_tables(results), {})
    wanted = [*PRESETS] if name == ALL else [name]
    planned = {one: {**PRESETS, **STUDIES}[one](asked) for one in wanted}
    every = [run for several in planned.values() for run in several]
    refuse_missing_data([run for run in every if not is_over(run, root)])
    _remember(asked, root)
    carry_out(every, root, progress)
    shown = [_keep(one, root, *_show(one, load_runs(planned[one], root))) for one in wanted]
    if name == ALL:
        shown.append(reproduce(TIME, asked, root, progress))
    return Outcome(
        [table for outcome in shown for table in outcome.tables],
        [picture for outcome in shown for picture in outcome.pictures],
    )


def _sweep_tables(results: Mapping[str, Result]) -> list[Table]:
    """How the settings did, then what the chosen ones reach on fresh seeds, a table a data set."""
    reports: dict[str, dict[str, Run]] = {}
    for name, result in results.items():
        _, dataset, algorithm = name.split("/")
        reports.setdefault(dataset, {})[algorithm] = result.run
    chosen = [
        outcomes.methods_table(f"best settings on {name}", of) for name, of in reports.items()
    ]
    return [*chosen, *(result.table() for result in results.values())]


def _remember(asked: Reproduction, root: Path) -> None:
    """Write down what was asked for, so that claims can name the command."""
    root.mkdir(parents=True, exist_ok=True)
    write(root / ASKED, files.as_json(asked.options))


def refuse_missing_data(planned: Sequence[Planned]) -> None:
    """Every data set is looked for before anything is run; the error says how to get one."""
    for name in dict.fromkeys(run.spec.dataset for run in planned):
        data.load(name)


def _keep(name: str, root: Path, tables: Sequence[Table], figures: Figures) -> Outcome:
    (root / "figures").mkdir(parents=True, exist_ok=True)
    (root / "tables").mkdir(exist_ok=True)
    if tables:
        text = "\n".join(map(outcomes.markdown, tables))
        write(root / "tables" / f"{name}.md", text.encode())
    pictures = [root / "figures" / f"{title}.{kind}" for title in figures for kind in FORMATS]
    with matplotlib.style.context(STYLE):
        for path in pictures:
            save_figure(figures[path.stem], path)
    return Outcome([*tables], pictures)


def _show(name: str, runs: Runs) -> tuple[list[Table], Figures]:
    """The tables and figures of a preset, from its runs."""
    with matplotlib.style.context(STYLE):
        shown = _SHOWN[name](runs)
    for run in runs.values():
        run.keep_references()
    return shown


def _curves(runs: Runs) -> dict[str, dict[str, Run]]:
    names = [name for name in runs if name.startswith("curves/")]
    return outcomes.by_dataset(names, runs)


def _part(runs: Mapping[str, Mapping[str, Run]], published: bool) -> dict[str, dict[str, Run]]:
    """The corrected methods, or those as published beside the ones that have no such form."""
    return {
        name: {
            label: run
            for label, run in of_set.items()
            if label.endswith("-published") == published
            or (published and f"{label}-published" not in of_set)
        }
        for name, of_set in runs.items()
    }


def _both(
    name: str, runs: Mapping[str, Mapping[str, Run]], normalise: Callable | None = None
) -> Figures:
    """Learning curves of the actor with the mathematics corrected, and as the paper has them."""
    label = "score" if normalise else None
    corrected, published = _part(runs, published=False), _part(runs, published=True)
    return {
        name: draw.curves(corrected, normalise=normalise, ylabel=label),
        f"{name}_published": draw.curves(
            published, policy="proposal", normalise=normalise, ylabel=label
        ),
    }


def _tables(runs: Mapping[str, Mapping[str, Run]]) -> list[Table]:
    return [outcomes.methods_table(name, of_set) for name, of_set in runs.items()]


def _nobody(run: Run) -> np.ndarray:
    """The patient whose measurements are all 0, the mean of all patients."""
    return np.zeros(run.program.problem.observation_size, np.float32)


def _first_state(run: Run) -> np.ndarray:
    return data.load(run.spec.dataset).observation[0]


def _first(runs: Runs) -> tuple[list[Table], Figures]:
    curves = _curves(runs)
    return _tables(curves), {
        "fig1_left": draw.outside_actions(),
        "fig1_middle": draw.replaced_actions(),
        **_both("fig1_right", curves, normalised_score),
    }


def _second(runs: Runs) -> tuple[list[Table], Figures]:
    curves = _curves(runs)
    figures = _both("fig2_left", curves)
    for reward in REWARDS:
        methods = _part(curves, published=False)[f"treatment-{reward}"]
        seed, state = methods["fttpo"].spec.seeds[0], _nobody(methods["fttpo"])
        figures |= {
            f"fig2_middle_{reward}": draw.final_policies(methods, state, seed, where=_IN_STATE),
            f"fig2_right_{reward}": draw.actor_and_proposal(
                methods["fttpo"], state, seed, where=_IN_STATE
            ),
        }
    return _tables(curves), figures


def _third(runs: Runs) -> tuple[list[Table], Figures]:
    methods = {name.rsplit("/", 1)[1]: run for name, run in runs.items()}
    state = _nobody(methods["fttpo"])
    return [], {
        "fig3_left": draw.evolution(
            {"fttpo": methods["fttpo"]}, state, None, EVOLUTION_STEPS, where=_IN_STATE
        ),
        "fig3_right": draw.evolution(methods, state, None, EVOLUTION_STEPS, where=_IN_STATE),
    }


def _fourth(runs: Runs) -> tuple[list[Table], Figures]:
    curves = _curves(runs)
    return [outcomes.scores_table("final scores", curves), *_tables(curves)], _both(
        "fig4", curves, normalised_score
    )


def _robot_evolution(name: str, every: bool) -> Callable[[Runs], tuple[list[Table], Figures]]:
    def show(runs: Runs) -> tuple[list[Table], Figures]:
        (run,) = runs.values()
        size = len(run.program.problem.action_low) if every else 1
        figure = draw.evolution(
            {"fttpo": run}, _first_state(run), None, run.spec.snapshots, range(size),
            where="in the first state of the log",
        )  # fmt: skip
        return [], {name: figure}

    return show


def _variants(runs: Runs) -> tuple[list[Table], Figures]:
    curves = _curves(runs)
    return [outcomes.scores_table("final scores", curves)], {
        "fig6": draw.ablation(_shares(_part(curves, published=False))),
        "fig6_published": draw.ablation(
            {
                name: {label.removesuffix("-published"): share for label, share in of_set.items()}
                for name, of_set in _shares(_part(curves, published=True), "-published").items()
            }
        ),
    }


def _shares(runs: Mapping[str, Mapping[str, Run]], suffix: str = "") -> dict:
    """What each variant reaches of FtTPO, by data set; as published by the proposals' returns."""
    policy = "proposal_sampled" if suffix else "actor_sampled"

    def final(run: Run) -> np.ndarray:
        known = run.evaluations.policies
        return outcomes.final(run, policy if policy in known else "actor_sampled")

    return {
        name: {
            label: _per_cent(ratio(final(run), final(of_set[f"fttpo{suffix}"])))
            for label, run in of_set.items()
            if label != f"fttpo{suffix}"
        }
        for name, of_set in runs.items()
    }


def _per_cent(share: Interval) -> Interval:
    return Interval(*(100.0 * end for end in share))


def _variant_curves(runs: Runs) -> tuple[list[Table], Figures]:
    curves = _part(_curves(runs), published=False)

    def only(*labels: str) -> dict[str, dict[str, Run]]:
        return {name: {label: of[label] for label in labels} for name, of in curves.items()}

    return [], {
        "fig8_upper": draw.curves(
            only("fttpo", "fttpo-spot", "fttpo-sg"), normalise=normalised_score, ylabel="score"
        ),
        "fig8_lower": draw.curves(
            only("fttpo", "tawac-ht"), normalise=normalised_score, ylabel="score"
        ),
    }


def _seventh(runs: Runs) -> tuple[list[Table], Figures]:
    clipped = {
        name.rsplit("/", 1)[1]: run for name, run in runs.items() if name.startswith("evolution/")
    }
    any_run = next(iter(clipped.values()))
    figures = {
        "fig7_left": draw.evolution(
            clipped, _first_state(any_run), None, any_run.spec.snapshots,
            where="in the first state of the log, first coordinate",
        )
    }  # fmt: skip
    for reward in REWARDS:
        run = runs[f"curves/treatment-{reward}/fttpo"]
        figures[f"fig7_right_{reward}"] = draw.first_action_return(run, run.spec.seeds[0])
    return [], figures


def _all_on_treatment(runs: Runs) -> tuple[list[Table], Figures]:
    return _tables(_curves(runs)), {}


def _selection(runs: Runs) -> tuple[list[Table], Figures]:
    scored = choices.scores(selection_study.candidates(runs))
    return selection_study.tables(scored), {"selection": draw_regret(scored)}


def _merged(*parts: Callable[[Runs], tuple[list[Table], Figures]]):
    def show(runs: Runs) -> tuple[list[Table], Figures]:
        shown = [part(runs) for part in parts]
        return [table for tables, _ in shown for table in tables], {
            name: figure for _, figures in shown for name, figure in figures.items()
        }

    return show


_SHOWN: dict[str, Callable[[Runs], tuple[list[Table], Figures]]] = {
    "fig1": _first,
    "fig2": _second,
    "fig3": _third,
    "fig4": _fourth,
    "fig5": _robot_evolution("fig5", every=False),
    "fig6": _variants,
    "fig7": _seventh,
    "fig8": _variant_curves,
    "fig9": _robot_evolution("fig9", every=True),
    "treatment": _all_on_treatment,
    "ablation": _merged(_variants, _variant_curves),
    "selection": _selection,
    "small-logs": lambda runs: (small_study.tables(runs), {}),
}


def _time(asked: Reproduction, root: Path) -> tuple[list[Table], Figures]:
    found = timing.measure(asked, root)
    rows = timing.table(found)
    title = f"time of an update and of an action, one seed, on {found['device']}"
    with matplotlib.style.context(STYLE):
        figure = draw.training_time(
            {name: 1.0 / of["seconds_an_update"] for name, of in found["methods"].items()}
        )
    return [Table(title, tuple(rows))], {"time": figure}
