"""The command line: a thin layer that turns arguments into calls of the package.

Each command imports what it needs when it is called, so that `fat2thin --help` is quick. A new
command is a function with a docstring and `@app.command` above it.
"""

import functools
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.extras import SubcommandApp

from fat2thin.cli import data as data_cli
from fat2thin.cli.experiments import COMMANDS, RunFolders
from fat2thin.cli.reading import command_options, merge_repeated, read_options, read_settings
from fat2thin.engine import compilation_cache
from fat2thin.settings.options import RunOptions
from fat2thin.terminal_text import plain_errors, printable, use_for_logs_and_warnings

if TYPE_CHECKING:
    from fat2thin.training import Run

    TrainOptions = Any
else:
    TrainOptions = command_options(RunOptions)

app = SubcommandApp()
app.command(data_cli.app, name="data", help=data_cli.DESCRIPTION)

DESCRIPTION = (
    "Offline reinforcement learning with sparse policies: "
    "exactly zero probability outside a narrow band of actions."
)

_AlgorithmName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ALGORITHM")]
_RunFolder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


@app.command
def gallery(
    out: Path = Path("gallery"), formats: tuple[Literal["png", "pdf"], ...] = ("png",)
) -> None:
    """Draw the policy gallery: the q-Gaussian family, fat against thin, and the published sampler.

    Args:
        out: Folder the pictures are written to; it is made when it is missing.
        formats: File formats, one or both.
    """
    from fat2thin.report.distribution_figures import save_gallery

    for path in save_gallery(out, formats):
        print(printable(path))


@app.command
def train(
    algorithm: _AlgorithmName,
    dataset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")],
    /,
    options: Annotated[TrainOptions, tyro.conf.arg(name="")],
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="NAME=VALUE ...")] = (),
    checkpoint_seconds: float = 60.0,
) -> None:
    """Learn a policy from a data set, for several seeds at once, and show how good it is.

    Example: fat2thin train fttpo treatment/quadratic --steps 20000 --seeds 10 --out runs/x

    Args:
        algorithm: Name of the algorithm, for example fttpo.
        dataset: Name of the data set, for example treatment/quadratic, or path of a log.
        out: Run folder. A finished run that is already there is shown and not computed again; an
            interrupted one resumes from its newest checkpoint.
        settings: Settings of the algorithm, for example: --set temperature=0.1 hidden=64,64. They
            override those of settings_from, and drop those that they leave without effect.
            `fat2thin settings fttpo` explains them all.
        checkpoint_seconds: About how much work may be lost if the machine dies. Ctrl-C loses
            nothing.
    """
    from fat2thin import data, training
    from fat2thin.envs import TaskFailed
    from fat2thin.evaluation.returns import TaskError
    from fat2thin.settings.spec import choose_spec, find_settings
    from fat2thin.training import progress

    load = functools.cache(data.load)
    with plain_errors(ValueError, data.DataFileError):
        given = read_settings(settings)
        spec, chosen = choose_spec(algorithm, dataset, None, given, load, **read_options(options))
        found = find_settings(algorithm, dataset, spec.settings_from, given.get("policy"))
    if found.sources:
        print(f"settings from {spec.settings_from}: {' '.join(found.sources)}")
    if chosen:
        print(printable(chosen))
    with plain_errors(
        training.TrainingDiverged, data.DataFileError, TaskError, TaskFailed,
        training.OtherRunError, training.NoRunError, training.DamagedError,
        training.FolderInUseError, training.NewerFormatError,
    ):  # fmt: skip
        try:
            shown = progress.for_terminal(otherwise=progress.Lines)
            run = training.execute(spec, out, shown, checkpoint_seconds, load)
        except training.Interrupted as stopped:
            print(f"fat2thin: {printable(stopped)}", file=sys.stderr)
            sys.exit(stopped.status)
        _print(run)
        run.keep_references()


@app.command
def evaluate(folder: _RunFolder, /, episodes: int = 100, draw: int = 0) -> None:
    """Judge the final policies of a run on fresh episodes, beside the reference rows.

    Args:
        folder: Run folder.
        episodes: Episodes a seed and a policy.
        draw: Which fresh episodes; another number, other episodes.
    """
    from fat2thin.envs import TaskFailed
    from fat2thin.training import load

    with plain_errors(ValueError, TaskFailed):
        print(load(folder).evaluate(episodes, draw))


@app.command
def show(folders: RunFolders, /, follow: bool = False) -> None:
    """Show a run: its last evaluation and metrics, or how far it is; of several, a line each.

    Args:
        folders: Run folders.
        follow: Go on showing how far a run is until it is over.
    """
    from fat2thin.report import run_status
    from fat2thin.runs.status import StatusReader
    from fat2thin.training import load

    with plain_errors(ValueError):
        if not folders or (follow and len(folders) > 1):
            raise ValueError("show wants a run folder, and with --follow no more than one")
        if len(folders) > 1:
            print(run_status.overview(folders))
            return
        (folder,) = folders
        if follow and not run_status.follow(folder):
            return
        status = StatusReader(folder).read()
        if status.running:
            print(run_status.describe(status))
        else:
            _print(load(folder))


@app.command
def figures(folder: _RunFolder, /, out: Path = Path("pictures"), seed: int | None = None) -> None:
    """Draw a run: learning curves; on the treatment task also the policies and their doses.

    Args:
        folder: Run folder, of a run that was judged on a task.
        out: Folder the pictures are written to; it is made when it is missing.
        seed: Whose policies are shown; the run's first seed by default.
    """
    from fat2thin.report.run_figures import save_run_figures
    from fat2thin.training import load

    with plain_errors(ValueError):
        for path in save_run_figures(load(folder), out, seed):
            print(printable(path))


@app.command
def demo(out: Path = Path("demo")) -> None:
    """Learn to dose from 1,200 logged steps a seed, compare, and draw it: about a minute.

    A finished run that is already there is not computed again.

    Args:
        out: Folder for the run and the pictures; it is made when it is missing.
    """
    steps = 6000
    options = TrainOptions(
        steps=steps, seeds="5", evaluate_every=200, episodes=40, log_every=100,
        snapshots=(0, 100, 200, 300, 400, steps),
    )  # fmt: skip
    train("fttpo", "treatment/quadratic", options, out=out / "run")
    print("\npictures:")
    figures(out / "run", out=out)


@app.command(name="algorithms")
def list_algorithms() -> None:
    """List the algorithms with a line each; `fat2thin settings NAME` explains one of them."""
    from fat2thin import algorithms
    from fat2thin.tables import Table

    rows = ({"name": name, "summary": algorithms.get(name).summary} for name in algorithms.names())
    print(Table("", tuple(rows), headings=False))


@app.command
def settings(algorithm: _AlgorithmName, /) -> None:
    """Explain the settings of an algorithm and their defaults.

    Args:
        algorithm: Name of the algorithm, for example fttpo.
    """
    from fat2thin import algorithms
    from fat2thin.settings.options import explain

    with plain_errors(ValueError):
        chosen = algorithms.get(algorithm)
    print(f"{chosen.summary}.")
    print(f"Set them with `fat2thin train {algorithm} ... --set NAME=VALUE ...`.")
    for name, default, sentence in explain(chosen.config):
        print(f"\n{name} = {default!r}")
        print(textwrap.fill(sentence, initial_indent="    ", subsequent_indent="    "))


@app.command
def published(
    algorithm: Annotated[
        str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[ALGORITHM]")
    ] = None,
    /,
    dataset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
) -> None:
    """List published settings with their sources, for `fat2thin train ... --settings-from`.

    Args:
        algorithm: Name of the algorithm; all of them without.
        dataset: Name of a data set: then the records are merged into what a run on it gets.
    """
    from fat2thin.settings.published import listing, rows

    with plain_errors(ValueError):
        found = rows(algorithm, dataset)
    print(listing(found))


@app.command
def validate(
    folder: _RunFolder,
    dataset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")],
    /,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    seed: int | None = None,
) -> None:
    """Check a run on logged steps that it did not learn from: coverage, TD error, likelihood.

    Example: fat2thin validate runs/x held_out.csv --out pictures

    Args:
        folder: Run folder.
        dataset: Path of a file, or name of a data set, with the observations and the action box of
            the one that the run learned from.
        out: Folder for pictures of the policy against the log; without it none are drawn.
        seed: Whose policy the pictures show; the run's first seed by default.
    """
    from fat2thin import data
    from fat2thin.evaluation.held_out import training_log
    from fat2thin.evaluation.held_out import validate as compare
    from fat2thin.training import load

    with plain_errors(ValueError):
        run, log = load(folder), data.load(dataset)
        print(compare(run, log, training_log(run)))
        if out is not None:
            from fat2thin.report.log_figures import save_log_figures

            print("", *map(printable, save_log_figures(run, log, out, seed)), sep="\n")


@app.command
def verify(folder: _RunFolder, /, replay: int | None = None) -> None:
    """Check that a run folder is what it says, and change nothing in it; status 1 where it is not.

    Args:
        folder: Run folder, of a run that is finished or not.
        replay: Recompute at least this many steps from the start and compare bits, and those from
            the newest checkpoint to the end if they are no more; 0 disables. By default as many
            as the first metrics row averages.
    """
    from fat2thin.training import verify as check

    with plain_errors(ValueError):
        found = check(folder, replay)
    print(found)
    if not found.passed:
        sys.exit(1)


for _command in COMMANDS:
    app.command(_command)


def _print(run: "Run") -> None:
    from fat2thin.report.run_status import remarks
    from fat2thin.runs.status import outline

    if run.evaluations.steps and run.evaluations.policies:
        print(run.table(), end="\n\n")
    if len(run.metrics["step"]):
        print(run.last_metrics())
    if told := [*remarks(outline(run.about))]:
        print("", *told, sep="\n")
    if "rollouts" in run.about:
        steps, pace = (run.about["rollouts"][name] for name in ("steps", "steps_a_second"))
        print(f"\nevaluations: {steps:,} steps of the task, {pace:,.0f} a second")
    if run.folder:
        print(f"\nkept in {printable(run.folder)}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; what a user can mend ends it with a plain message and a non-zero status.

    Without `arguments` it is the program itself, and keeps what it compiles for the next time;
    called with some, by a program, it leaves that program's configuration of JAX alone.
    """
    if arguments is None:
        compilation_cache.use()
        use_for_logs_and_warnings()
    with plain_errors(ValueError):
        given = merge_repeated(sys.argv[1:] if arguments is None else arguments)
    with plain_errors(OSError):
        try:
            app.cli(prog="fat2thin", description=DESCRIPTION, args=given)
        except BrokenPipeError:
            # Whoever reads has seen enough, as `head` has; there is nobody left to tell.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
