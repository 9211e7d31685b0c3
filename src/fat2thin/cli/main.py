"""The command line: a thin layer that turns arguments into calls of the package.

Each command imports what it needs when it is called, so that `fat2thin --help` is quick. A new
command is a function with a docstring and `@command(GROUP)` above it.
"""

import atexit
import functools
import gc
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from fat2thin import __version__
from fat2thin.cli import data as data_cli
from fat2thin.cli.certificates import certify
from fat2thin.cli.commands import DESCRIPTION, app, command, find, overview, prepare_help
from fat2thin.cli.deploy import decide, export, map_states
from fat2thin.cli.dossier import dossier
from fat2thin.cli.experiments import RunFolders, claims, report, reproduce, sweep
from fat2thin.cli.judge import value
from fat2thin.cli.reading import (
    check_arguments,
    command_options,
    merge_repeated,
    read_options,
    read_run,
    read_settings,
    read_value,
    refuse_file,
)
from fat2thin.cli.track import track
from fat2thin.engine import compilation_cache
from fat2thin.settings.options import RunOptions
from fat2thin.terminal_text import (
    plain_errors,
    printable,
    printable_lines,
    use_for_logs_and_warnings,
)

if TYPE_CHECKING:
    from fat2thin.training import Run

    TrainOptions = Any
else:
    TrainOptions = command_options(RunOptions)

command("Data", "data", data_cli.DESCRIPTION)(data_cli.app)

_AlgorithmName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ALGORITHM")]
_RunFolder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


@command("Paper")
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


@command("Train")
def train(
    algorithm: _AlgorithmName,
    dataset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")],
    /,
    options: Annotated[TrainOptions, tyro.conf.arg(name="")],
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="NAME=VALUE ...")] = (),
    checkpoint_seconds: float = 60.0,
) -> None:
    """Train a policy on a data set, for several seeds at once.

    Its evaluation is shown at the end.

    Example: fat2thin train fttpo treatment/quadratic --steps 20000 --seeds 10 --out runs/x

    Args:
        algorithm: Name of the algorithm, for example fttpo.
        dataset: Name of the data set, for example treatment/quadratic, or path of a log.
        out: Run folder. If it holds a finished run, that run is shown; an interrupted run resumes.
        settings: Settings of the algorithm, for example: --set temperature=0.1 hidden=64,64. They
            override those of --settings-from and drop those that would have no effect.
            `fat2thin settings ALGORITHM` explains them.
        checkpoint_seconds: About how many seconds of work a crash may lose. Ctrl-C loses nothing.
    """
    from fat2thin import data, training
    from fat2thin.envs import TaskFailed
    from fat2thin.settings.spec import choose_spec, find_settings
    from fat2thin.training import progress

    load = functools.cache(data.load)
    with plain_errors(ValueError, training.TrainingDiverged, TaskFailed):
        given = read_settings(settings)
        spec, chosen = choose_spec(algorithm, dataset, None, given, load, **read_options(options))
        found = find_settings(algorithm, dataset, spec.settings_from, given.get("policy"))
        if found.sources:
            print(f"settings from {spec.settings_from}: {' '.join(found.sources)}")
        if chosen:
            print(printable_lines(chosen))
        try:
            shown = progress.for_terminal(otherwise=progress.Lines)
            run = training.execute(spec, out, shown, checkpoint_seconds, load)
        except training.Interrupted as stopped:
            print(f"fat2thin: {printable(stopped)}", file=sys.stderr)
            sys.exit(stopped.status)
        _print(run)
        run.keep_references()


@command("Judge")
def evaluate(
    folder: _RunFolder,
    /,
    episodes: int = 100,
    draw: int = 0,
    limits: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    fallback: Annotated[str | None, tyro.conf.arg(metavar="practice|NUMBER,...")] = None,
    distance: float = 1.0,
    disagreement: float = 0.25,
    seed: int | None = None,
) -> None:
    """Evaluate the final policies of a run on fresh episodes.

    They are compared with reference policies or, with --fallback, with leaving referred states to
    the fallback.

    Args:
        folder: Run folder.
        episodes: Episodes per seed and policy.
        draw: Number of the set of fresh episodes; another number gives other episodes.
        limits: TOML file with a table [limits] to put around the policies.
        fallback: Show the price of caution: all seeds decide together, and a state that they refer
            gets this action, one number per action, or "practice", the mean logged action of
            similar states.
        distance: With --fallback: largest distance from the log that is not referred.
        disagreement: With --fallback: largest distance between the centres of two seeds, as a share
            of the action box.
        seed: With --fallback: decide by one seed instead of all.
    """
    from fat2thin.envs import TaskFailed
    from fat2thin.policies.decision import PRACTICE, Thresholds

    with plain_errors(ValueError, TaskFailed):
        run = read_run(folder, limits)
        if fallback is None:
            print(run.evaluate(episodes, draw))
            return
        action = fallback if fallback == PRACTICE else read_value(fallback)
        thresholds = Thresholds(distance, disagreement)
        print(run.price_of_caution(action, episodes, draw, thresholds, seed))


@command("Judge")
def show(folders: RunFolders, /, follow: bool = False) -> None:
    """Show the progress, last evaluation and metrics of a run.

    Several runs get one line each. The folder of a sweep or of another plan shows how many of its
    runs are done. Only files are read, so this works on any machine that sees the folder.

    Args:
        folders: Run folders, or the folder of a plan.
        follow: Keep showing the progress of a run or of a plan until it ends.
    """
    from fat2thin.report import plan_status, run_status
    from fat2thin.runs.status import StatusReader
    from fat2thin.training import load

    with plain_errors(ValueError):
        if not folders or (follow and len(folders) > 1):
            raise ValueError("show needs a run folder, and exactly one with --follow")
        if len(folders) > 1:
            print(run_status.overview(folders))
            return
        (folder,) = folders
        if plan_status.has_many_runs(folder):
            plan_status.show_plan(folder, follow)
            return
        if follow and not run_status.follow(folder):
            return
        status = StatusReader(folder).read()
        if status.running:
            print(run_status.describe(status))
        else:
            _print(load(folder))


@command("Judge")
def figures(folder: _RunFolder, /, out: Path = Path("pictures"), seed: int | None = None) -> None:
    """Draw the learning curves of a run.

    On the treatment task its policies and doses are drawn too.

    Args:
        folder: Run folder of a run that was evaluated on a task.
        out: Folder for the pictures; created if missing.
        seed: Seed whose policies are drawn; the first seed by default.
    """
    from fat2thin.report.run_figures import save_run_figures
    from fat2thin.training import load

    with plain_errors(ValueError):
        refuse_file(out)
        for path in save_run_figures(load(folder), out, seed):
            print(printable(path))


@command("Train")
def demo(out: Path = Path("demo")) -> None:
    """Train a dosing policy, draw it, and make a dossier of one.

    The first policy learns from 1,200 logged steps per seed and is evaluated on the simulator. The
    second learns from one made-up log of 4,800 steps, like a log of your own, and gets a dossier.
    Together they take about two minutes on two cores. Finished runs in the folder are reused.

    Args:
        out: Folder for runs, pictures and dossier; created if missing.
    """
    from fat2thin import data

    steps = 2500
    options = TrainOptions(
        steps=steps, seeds="5", evaluate_every=200, episodes=40, log_every=100,
        snapshots=(0, 100, 200, 300, 400, steps),
    )  # fmt: skip
    train("fttpo", "treatment/quadratic", options, out=out / "run")
    print("\npictures:")
    figures(out / "run", out=out)
    log = out / "doses.npz"
    if not log.exists():
        data.save_npz(data.load("treatment/quadratic@200"), log)
    print(f"\none log, as if it were your own: {printable(log)}")
    train("fttpo", str(log), TrainOptions(), out=out / "own")
    print()
    dossier(out / "own", minutes=1.0)


@command("Train", "algorithms")
def list_algorithms() -> None:
    """List the algorithms.

    `fat2thin settings NAME` explains the settings of one.
    """
    from fat2thin import algorithms
    from fat2thin.tables import Table

    rows = ({"name": name, "summary": algorithms.get(name).summary} for name in algorithms.names())
    print(Table("", tuple(rows), headings=False))


@command("Train")
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
    print(f"Its settings; change one with `fat2thin train {algorithm} ... --set NAME=VALUE`.")
    for name, default, sentence in explain(chosen.config):
        print(f"\n{name} = {default!r}")
        print(textwrap.fill(sentence, initial_indent="    ", subsequent_indent="    "))


@command("Train")
def published(
    algorithm: Annotated[
        str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[ALGORITHM]")
    ] = None,
    /,
    dataset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
) -> None:
    """List published settings with their sources.

    `fat2thin train ... --settings-from` uses them.

    Args:
        algorithm: Name of an algorithm; all by default.
        dataset: Name of a data set: show only the settings that a run on it would use.
    """
    from fat2thin.settings.published import listing, rows

    with plain_errors(ValueError):
        found = rows(algorithm, dataset)
    print(listing(found))


@command("Judge")
def validate(
    folder: _RunFolder,
    dataset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")],
    /,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    seed: int | None = None,
    limits: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
) -> None:
    """Evaluate a run on held-out logged steps.

    It reports coverage, TD error and likelihood, how often limits bind, and the share of states
    that are referred.

    Example: fat2thin validate runs/x held_out.csv --out pictures

    Args:
        folder: Run folder.
        dataset: Path or name of a data set with the same observations and action box as the
            training data.
        out: Folder for pictures of the policy and the log; none are drawn by default.
        seed: Seed whose policy is drawn; the first seed by default.
        limits: TOML file with a table [limits] to put around the policies, instead of those that
            the run learned within.
    """
    from fat2thin import data
    from fat2thin.evaluation.held_out import training_log
    from fat2thin.evaluation.held_out import validate as compare

    with plain_errors(ValueError):
        refuse_file(out)
        run, log = read_run(folder, limits), data.load(dataset)
        print(compare(run, log, training_log(run)))
        if run.program.problem.limits is not None:
            print("", run.limits_on([log]).table(f"limits on {log.name}"), sep="\n")
        print("", run.referrals_on(log), sep="\n")
        asked = f"fat2thin value {printable(folder)} {printable(dataset)}"
        print("", f"What the policy is worth beside practice: `{asked}`", sep="\n")
        if out is not None:
            from fat2thin.report.log_figures import save_log_figures

            print("", *map(printable, save_log_figures(run, log, out, seed)), sep="\n")


command("Judge")(value)


@command("Judge")
def verify(
    folder: _RunFolder,
    /,
    replay: int | None = None,
    run: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    certificate: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    dossier: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
) -> None:
    """Check the integrity of a run, certificate, export or dossier.

    Nothing is changed. A certificate is proven again by an independent checker. The exit status is
    1 on failure.

    Args:
        folder: Run folder of a finished or unfinished run, the folder of an export, or the JSON
            file of a certificate or a dossier.
        run: With a certificate: the run folder of its policy, if it has moved.
        certificate: With an export: the certificate that it must name.
        dossier: With an export: the dossier that it must name.
        replay: Recompute at least this many steps from the start and compare bits, and also the
            steps after the newest checkpoint if they are no more; 0 disables. By default the steps
            of the first metrics row.
    """
    from fat2thin.export.verification import is_export, verify_export
    from fat2thin.report.dossier.twin import verify_dossier
    from fat2thin.runs.dossier_file import is_dossier
    from fat2thin.safety import is_certificate, verify_certificate
    from fat2thin.training import verify as check

    with plain_errors(ValueError):
        kinds = {"export": is_export, "certificate": is_certificate, "dossier": is_dossier}
        kind = next((name for name, fits in kinds.items() if fits(folder)), "run")
        options = {
            "replay": (replay, "run"), "run": (run, "certificate"),
            "certificate": (certificate, "export"), "dossier": (dossier, "export"),
        }  # fmt: skip
        for name, (given, needed) in options.items():
            if given is not None and kind != needed:
                raise ValueError(f"--{name} is for a {needed}; {folder} is a {kind}")
        match kind:
            case "export":
                found = verify_export(folder, certificate, dossier)
            case "certificate":
                found = verify_certificate(folder, run)
            case "dossier":
                found = verify_dossier(folder)
            case _ if not folder.is_dir():
                why = "is none of these, or damaged" if folder.exists() else "does not exist"
                raise ValueError(
                    f"{folder} {why}: give the folder of a run or an export, or the JSON file of a "
                    "certificate or a dossier"
                )
            case _:
                found = check(folder, replay)
    print(found)
    if not found.passed:
        sys.exit(1)


command("Train")(sweep)
command("Train")(track)
command("Judge")(report)
command("Judge")(dossier)
command("Deploy")(decide)
command("Deploy")(certify)
command("Deploy")(export)
command("Deploy", "map")(map_states)
command("Paper")(reproduce)
command("Paper")(claims)


def _print(run: "Run") -> None:
    from fat2thin.report.run_status import remarks
    from fat2thin.runs.status import outline

    if run.evaluations.steps and run.evaluations.policies:
        print(run.table(), end="\n\n")
    if len(run.metrics["step"]):
        print(run.last_metrics())
    if (limits := run.limit_report) is not None:
        print("", limits.table("limits on the training log"), sep="\n")
    if lines := [*remarks(outline(run.about))]:
        print("", *lines, sep="\n")
    if "rollouts" in run.about:
        steps, pace = (run.about["rollouts"][name] for name in ("steps", "steps_a_second"))
        print(f"\nevaluations: {steps:,} steps of the task, {pace:,.0f} per second")
    if run.folder:
        print(f"\nsaved in {printable(run.folder)}")


def _collect_garbage_seldom() -> None:
    """Spare short commands most searches for garbage: nearly all of their objects are modules.

    They took 0.3 to 0.6 s of every command, half of it at the end of the process.
    """
    gc.set_threshold(100_000, 10, 10)
    atexit.register(gc.freeze)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; a user error ends it with a one-line message and a non-zero status.

    Without `arguments` it reads the command line, caches compiled programs on disk and collects
    garbage seldom. Called by a program with `arguments`, it does not change that program's
    configuration of JAX.
    """
    if arguments is None:
        _collect_garbage_seldom()
        compilation_cache.use()
        use_for_logs_and_warnings()
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    if given == ["--version"]:
        print(f"fat2thin {__version__}")
        return
    if not given or given[0] in ("-h", "--help"):
        print(overview())
        sys.exit(0 if given else 2)
    with plain_errors(ValueError):
        path, function = find(given)
        given = merge_repeated(given)
        if function is not None and {"-h", "--help"} & {*given}:
            prepare_help(function)
        if function is not None:
            words = check_arguments(" ".join(path), function, given[len(path) - 1 :])
            given = [*path[1:], *words]
    with plain_errors(OSError):
        try:
            app.cli(prog="fat2thin", description=DESCRIPTION, args=given)
        except BrokenPipeError:
            # The reader of the output, such as `head`, has closed the pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
