"""Commands that train, and those that explain algorithms and their settings."""

import functools
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from fat2thin.cli.dossier import dossier
from fat2thin.cli.judge import figures, print_run
from fat2thin.cli.reading import command_options, read_options, read_settings
from fat2thin.settings.options import RunOptions
from fat2thin.terminal_text import plain_errors, printable, printable_lines

if TYPE_CHECKING:
    TrainOptions = Any
else:
    TrainOptions = command_options(RunOptions)

_AlgorithmName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ALGORITHM")]


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
        print_run(run)
        run.keep_references()


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


def list_algorithms() -> None:
    """List the algorithms.

    `fat2thin settings NAME` explains the settings of one.
    """
    from fat2thin import algorithms
    from fat2thin.tables import Table

    rows = ({"name": name, "summary": algorithms.get(name).summary} for name in algorithms.names())
    print(Table("", tuple(rows), headings=False))


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
