"""Commands for many runs: sweeps, the paper's figures and claims, and the HTML report."""

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
from fat2thin.experiments.clusters.options import ClusterOptions
from fat2thin.settings.options import AUTO, SweepOptions
from fat2thin.terminal_text import counted, plain_errors, printable

if TYPE_CHECKING:
    CommandOptions = Any
    ClusterArguments = Any
else:
    CommandOptions = command_options(SweepOptions)
    ClusterArguments = command_options(ClusterOptions)

_Text = Annotated[str, tyro.conf.Positional]
RunFolders = Annotated[
    tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER [FOLDER ...]")
]
SWEEP_STEPS = 10_000  # maximum number of updates of a sweep's runs by default
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
    cluster: Annotated[ClusterArguments, tyro.conf.arg(name="")],
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="NAME=VALUE ...")] = (),
) -> None:
    """Try a grid of settings, and train the best with fresh seeds.

    Example: fat2thin sweep fttpo treatment/quadratic --grid learning_rate=3e-4,1e-4,3e-5
    temperature=1,0.5,0.1,0.01 --seeds 5

    The cost of the search is reported. Runs that differ only in real-valued settings share one
    compiled program. Finished runs are reused.

    Args:
        algorithm: Name of the algorithm.
        dataset: Name of the data set, or path of a log.
        grid: Values to try for each setting; every combination is tried.
        out: Folder for all runs; sweeps/ALGORITHM-DATASET by default.
        settings: Settings of the algorithm that are the same in all runs.
    """
    from fat2thin import data
    from fat2thin.experiments.clusters import driver
    from fat2thin.experiments.sweep import Sweep, parse_grid, run_sweeps
    from fat2thin.settings.automatic import enough_steps, is_centred, resolve
    from fat2thin.settings.spec import describe_settings, expand_seeds
    from fat2thin.training import make_spec

    with _plain_messages():
        compute = driver.on(ClusterOptions(**vars(cluster)))
        load = functools.cache(data.load)
        given, asked = read_settings(settings), read_options(options)
        select, reporting = asked.pop("select"), asked.pop("report_seeds")
        automatic = asked["settings_from"] == AUTO
        values = parse_grid(grid, read_value)
        if twice := sorted({*given} & {*values}):
            raise ValueError(f"{twice[0]} is given by --set and by --grid: leave one of them out")
        example = {name: several[0] for name, several in values.items()}
        origin = resolve(asked["settings_from"], algorithm, dataset, load)
        asked["settings_from"] = origin
        if asked.get("steps") is None:
            centred = is_centred(algorithm, origin, asked.get("centre_values"))
            enough = enough_steps(None, origin, dataset, centred, load)
            asked["steps"] = min(enough, SWEEP_STEPS)
        base = make_spec(algorithm, dataset, settings={**given, **example}, **asked)
        if isinstance(reporting, int):
            first = max(base.seeds) + 1
            reporting = list(range(first, first + len(expand_seeds(reporting))))
        wanted = Sweep(base, values, expand_seeds(reporting), select, given)
        specs = [wanted.spec(one) for one in wanted.settings]
        if described := describe_settings(specs, [*given, *values, *asked], automatic, load):
            print(printable(described))
        root = out or Path("sweeps") / f"{algorithm}-{dataset.strip('/').replace('/', '-')}"
        (result,) = run_sweeps({".": wanted}, root, None, compute).values()
        print(result.table())
        if result.run.evaluations.policies:
            print(f"\n{result.run.table()}")
            result.run.keep_references()
        print(f"\nsaved in {printable(root)}")


def reproduce(
    preset: Annotated[Preset, tyro.conf.Positional],
    /,
    cluster: Annotated[ClusterArguments, tyro.conf.arg(name="")],
    scale: ScaleName = "small",
    data: Literal["regenerated", "d4rl", "minari"] = "regenerated",
    seeds: int | None = None,
    steps: int | None = None,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
) -> None:
    """Reproduce a figure or a table of the FtTPO paper.

    The runs it needs are computed. Existing runs are reused, and figures share runs.

    Args:
        preset: fig1 to fig9: a figure of the paper. treatment: every method on that task.
            ablation: figures 6 and 8. time: training time. selection: how well a log alone selects
            checkpoints and settings. small-logs: every method with the settings for small logs.
            hyperparameters, hyperparameters-treatment: the paper's sweeps, or only those on the
            treatment task. all: everything in the paper except the sweeps.
        scale: Size of the runs: smoke takes minutes on two cores, small an evening; paper is the
            paper's ten seeds and numbers of updates.
        data: Source of the robot data: regenerated sets, which are made if they are missing (this
            needs the extra mujoco), or files of D4RL or Minari that you have downloaded.
        seeds: Number of seeds; overrides the scale.
        steps: Updates of learning curves; overrides the scale.
        out: Folder for runs, tables and figures; reproduction/SCALE by default.
    """
    from fat2thin.experiments.clusters import driver
    from fat2thin.paper import reproduction
    from fat2thin.paper.presets import Reproduction, scale_of

    with _plain_messages():
        asked = Reproduction(scale_of(scale), data, seeds, steps)
        root = out or ROOT / scale
        options = ClusterOptions(**vars(cluster))
        if preset == reproduction.TIME and options != ClusterOptions():
            raise ValueError("times are measured by this process: leave out options of clusters")
        outcome = reproduction.reproduce(
            preset, asked, root, compute=driver.on(options), dry_run=options.dry_run
        )
    for table in outcome.tables:
        print(f"\n{table}")
    print("", *map(printable, outcome.pictures), "", f"saved in {printable(root)}", sep="\n")


def claims(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER]")] = ROOT
    / "small",
    /,
    markdown: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json", metavar="FILE")] = None,
) -> None:
    """Check the paper's claims against existing runs.

    A verdict is printed for each.

    Args:
        folder: Folder with the runs of `fat2thin reproduce`.
        markdown: Markdown file to write, with effects, intervals and commands.
        json_file: JSON file to write; `fat2thin report --claims` reads it.
    """
    from fat2thin.paper import claims_table
    from fat2thin.paper.presets import options_of
    from fat2thin.runs.folder import RunFolder

    with _plain_messages():
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder: `fat2thin reproduce` creates one")
        found, options = claims_table.verdicts(folder), options_of(folder)
        print(claims_table.table(found))
        if markdown is not None:
            abouts = (RunFolder(path).about() for path in run_folders(folder))
            devices = {str(about["device"]) for about in abouts if about.get("device")}
            text = claims_table.document(found, str(folder), options, sorted(devices))
            write(markdown, text.encode())
        if json_file is not None:
            write(json_file, claims_table.to_json(found, options).encode())


def gallery(
    out: Path = Path("gallery"), formats: tuple[Literal["png", "pdf"], ...] = ("png",)
) -> None:
    """Draw the q-Gaussian family, a fat and a thin policy.

    The published sampler is drawn too.

    Args:
        out: Folder for the pictures; created if missing.
        formats: File formats: png, pdf or both.
    """
    from fat2thin.report.distribution_figures import save_gallery

    for path in save_gallery(out, formats):
        print(printable(path))


def report(
    folders: RunFolders,
    /,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("report.html"),
    claims: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    overwrite: bool = False,
) -> None:
    """Write an HTML page to explore runs.

    It shows learning curves, policies in any state, and doses. The page needs no network and
    contains the data behind every plot.

    Args:
        folders: Run folders, or folders that contain run folders at any depth.
        out: HTML file to write.
        claims: File written by `fat2thin claims --json`, to show as a table.
        overwrite: Replace an existing file.
    """
    from fat2thin.report.page import refuse_existing, save_page
    from fat2thin.training import load

    with _plain_messages():
        if not folders:
            raise ValueError("report needs a run folder, or a folder that contains some")
        refuse_existing(out, overwrite)
        found = [path for folder in folders for path in run_folders(folder)]
        if not found:
            raise ValueError(f"no finished run in or below {', '.join(map(str, folders))}")
        verdicts = []
        if claims is not None:
            with open_regular(claims) as file:
                verdicts = json.load(file)
        path = save_page([load(one) for one in found], out, verdicts)
    runs, size = counted(len(found), "run"), path.stat().st_size / 1e6
    print(f"{printable(path)}: {runs}, {size:.1f} MB")


def run_folders(folder: Path) -> list[Path]:
    """Return the folder if it holds a run, or the runs below it; unfinished runs are left out."""
    from fat2thin.runs.folder import RUNNING, RunFolder

    inside = [folder] if (folder / "run.json").exists() else []
    below = [path.parent for path in sorted(folder.glob("**/run.json"))]
    kept = [path for path in inside or below if "checkpoints" not in path.relative_to(folder).parts]
    return [path for path in kept if RunFolder(path).about()["status"] != RUNNING]


@contextmanager
def _plain_messages() -> Iterator[None]:
    """End a command with a one-line message after a user error or Ctrl-C."""
    from fat2thin.envs import TaskFailed
    from fat2thin.experiments.clusters.driver import NothingComputed
    from fat2thin.training import TrainingDiverged

    with plain_errors(ValueError, TaskFailed, TrainingDiverged):
        try:
            yield
        except NothingComputed:
            sys.exit(0)
        except KeyboardInterrupt as stopped:
            what = str(stopped) or "Interrupted. Run the same command again to resume."
            print(f"fat2thin: {printable(what)}", file=sys.stderr)
            sys.exit(getattr(stopped, "status", 130))
