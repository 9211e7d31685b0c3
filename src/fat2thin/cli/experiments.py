"""Commands about many runs: sweeps, the paper's figures and claims, a page to explore."""

import functools
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from fat2thin.atomic_files import open_regular, write
from fat2thin.cli.reading import command_options, read_options, read_settings, read_value
from fat2thin.settings.options import AUTO, SweepOptions
from fat2thin.terminal_text import plain_errors, printable

if TYPE_CHECKING:
    CommandOptions = Any
else:
    CommandOptions = command_options(SweepOptions)

_Text = Annotated[str, tyro.conf.Positional]
RunFolders = Annotated[
    tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER [FOLDER ...]")
]
ScaleName = Literal["smoke", "small", "paper"]
Preset = Literal[
    "fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "treatment", "ablation",
    "selection", "small-logs", "time", "hyperparameters", "hyperparameters-treatment", "all",
]  # fmt: skip
ROOT = Path("reproduction")


def sweep(
    algorithm: Annotated[_Text, tyro.conf.arg(metavar="ALGORITHM")],
    dataset: Annotated[_Text, tyro.conf.arg(metavar="DATASET")],
    /,
    grid: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE,VALUE ...")],
    options: Annotated[CommandOptions, tyro.conf.arg(name="")],
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="NAME=VALUE ...")] = (),
) -> None:
    """Try a grid of settings, then run the best with fresh seeds, and say what choosing cost.

    Example: fat2thin sweep fttpo treatment/quadratic --grid learning_rate=3e-4,1e-4,3e-5
    temperature=1,0.5,0.1,0.01 --seeds 5

    Settings that are real numbers share one compiled program. Finished runs are reused.

    Args:
        algorithm: Name of the algorithm.
        dataset: Name of the data set, or path of a log.
        grid: Values by setting; every combination is tried.
        out: Folder for all runs; sweeps/ALGORITHM-DATASET by default.
        settings: Settings that do not vary.
    """
    from fat2thin import data
    from fat2thin.experiments.sweep import Sweep, parse_grid, run_sweeps
    from fat2thin.settings.small_logs import resolve
    from fat2thin.settings.spec import describe_settings, expand_seeds
    from fat2thin.training import make_spec

    with _told_plainly():
        load = functools.cache(data.load)
        given, asked = read_settings(settings), read_options(options)
        select, reporting = asked.pop("select"), asked.pop("report_seeds")
        automatic = asked["settings_from"] == AUTO
        values = parse_grid(grid, read_value)
        if twice := sorted({*given} & {*values}):
            raise ValueError(f"{twice[0]} is given by --set and by --grid: leave one of them out")
        example = {name: several[0] for name, several in values.items()}
        asked["settings_from"] = resolve(asked["settings_from"], algorithm, dataset, load)
        base = make_spec(algorithm, dataset, settings={**given, **example}, **asked)
        if isinstance(reporting, int):
            first = max(base.seeds) + 1
            reporting = list(range(first, first + len(expand_seeds(reporting))))
        wanted = Sweep(base, values, expand_seeds(reporting), select, given)
        specs = [wanted.spec(one) for one in wanted.settings]
        if told := describe_settings(specs, [*given, *values, *asked], automatic, load):
            print(printable(told))
        root = out or Path("sweeps") / f"{algorithm}-{dataset.strip('/').replace('/', '-')}"
        (result,) = run_sweeps({".": wanted}, root).values()
        print(result.table())
        if result.run.evaluations.policies:
            print(f"\n{result.run.table()}")
            result.run.keep_references()
        print(f"\nkept in {printable(root)}")


def reproduce(
    preset: Annotated[Preset, tyro.conf.Positional],
    /,
    scale: ScaleName = "small",
    data: Literal["regenerated", "d4rl"] = "regenerated",
    seeds: int | None = None,
    steps: int | None = None,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
) -> None:
    """Make a figure or a table of the FtTPO paper, with the runs it needs.

    Runs that are there already are reused, so that figures share them.

    Args:
        preset: A figure; treatment (every method on that task); ablation (figures 6 and 8); time;
            hyperparameters (the paper's sweeps, or those on the treatment task alone); selection
            (how well a log alone chooses among checkpoints and settings); small-logs (every method
            with the settings for them); or all of the paper but the sweeps.
        scale: smoke takes minutes on two cores, small an evening, paper is its ten seeds and all
            its updates.
        data: Where the robots' data come from; both are looked for in $FAT2THIN_DATA.
        seeds: How many, instead of the scale's.
        steps: Updates of learning curves, instead of the scale's.
        out: Folder for runs, tables and figures; reproduction/SCALE by default.
    """
    from fat2thin.paper import reproduction
    from fat2thin.paper.presets import Reproduction, scale_of

    with _told_plainly():
        asked = Reproduction(scale_of(scale), data, seeds, steps)
        root = out or ROOT / scale
        outcome = reproduction.reproduce(preset, asked, root)
    for table in outcome.tables:
        print(f"\n{table}")
    print("", *map(printable, outcome.pictures), "", f"kept in {printable(root)}", sep="\n")


def claims(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER]")] = ROOT
    / "small",
    /,
    markdown: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json", metavar="FILE")] = None,
) -> None:
    """Check the paper's claims against existing runs: a verdict for each.

    Args:
        folder: Where `fat2thin reproduce` kept its runs.
        markdown: File for the table with effects, intervals and commands.
        json_file: File for the same as data; `fat2thin report --claims` shows it.
    """
    from fat2thin.paper import claims_table
    from fat2thin.paper.presets import options_of
    from fat2thin.runs.folder import RunFolder

    with _told_plainly():
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder: `fat2thin reproduce` makes one")
        found, options = claims_table.verdicts(folder), options_of(folder)
        print(claims_table.table(found))
        if markdown is not None:
            abouts = (RunFolder(path).about() for path in run_folders(folder))
            devices = {str(about["device"]) for about in abouts if about.get("device")}
            text = claims_table.document(found, str(folder), options, sorted(devices))
            write(markdown, text.encode())
        if json_file is not None:
            write(json_file, claims_table.to_json(found, options).encode())


def report(
    folders: RunFolders,
    /,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("report.html"),
    claims: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
) -> None:
    """Make one HTML page to explore runs: curves, policies over time, any state, doses.

    It opens without a network, and holds the data behind every plot.

    Args:
        folders: Run folders, or folders with run folders below them.
        out: The page.
        claims: What `fat2thin claims --json` wrote, to be shown as a table.
    """
    from fat2thin.report.page import save_page
    from fat2thin.training import load

    with _told_plainly():
        found = [path for folder in folders for path in run_folders(folder)]
        if not found:
            raise ValueError(f"no finished run is in or below {', '.join(map(str, folders))}")
        verdicts = []
        if claims is not None:
            with open_regular(claims) as file:
                verdicts = json.load(file)
        path = save_page([load(one) for one in found], out, verdicts)
    print(f"{printable(path)}: {len(found)} runs, {path.stat().st_size / 1e6:.1f} MB")


def run_folders(folder: Path) -> list[Path]:
    """The folder itself where it holds a run, or those below it that do; unfinished ones not."""
    from fat2thin.runs.folder import RUNNING, RunFolder

    inside = [folder] if (folder / "run.json").exists() else []
    below = [path.parent for path in sorted(folder.glob("**/run.json"))]
    kept = [path for path in inside or below if "checkpoints" not in path.relative_to(folder).parts]
    return [path for path in kept if RunFolder(path).about()["status"] != RUNNING]


@contextmanager
def _told_plainly() -> Iterator[None]:
    """What a user can mend ends a command with a line; Ctrl-C with what to do next."""
    from fat2thin.envs import TaskFailed
    from fat2thin.training import TrainingDiverged

    with plain_errors(ValueError, TaskFailed, TrainingDiverged):
        try:
            yield
        except KeyboardInterrupt as stopped:
            what = str(stopped) or "Interrupted. Run the same command again to resume."
            print(f"fat2thin: {printable(what)}", file=sys.stderr)
            sys.exit(getattr(stopped, "status", 130))


COMMANDS: tuple[Any, ...] = (sweep, reproduce, claims, report)
