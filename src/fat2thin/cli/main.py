"""The command line: a thin layer that turns arguments into calls of the package.

Each command imports what it needs when it is called, so that `fat2thin --help` is quick. A new
command is a function with a docstring, and a line in `COMMANDS`.
"""

import atexit
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fat2thin import __version__
from fat2thin.cli import data
from fat2thin.cli.certificates import certify
from fat2thin.cli.commands import DESCRIPTION, Group, app, command, find, overview, prepare_help
from fat2thin.cli.deploy import decide, export, map_states
from fat2thin.cli.dossier import dossier
from fat2thin.cli.experiments import claims, gallery, report, reproduce, sweep
from fat2thin.cli.judge import evaluate, figures, show, validate, value, verify
from fat2thin.cli.reading import check_arguments, merge_repeated
from fat2thin.cli.track import track
from fat2thin.cli.train import demo, list_algorithms, published, settings, train
from fat2thin.engine import compilation_cache
from fat2thin.terminal_text import plain_errors, use_for_logs_and_warnings

COMMANDS: Mapping[Group, Sequence[Callable[..., Any]]] = {
    "Train": (train, demo, list_algorithms, settings, published, sweep, track),
    "Judge": (evaluate, show, figures, validate, value, verify, report, dossier),
    "Deploy": (decide, certify, export, map_states),
    "Paper": (gallery, reproduce, claims),
}
"""The commands by group, in the order of `fat2thin --help`; those of data sets are one."""
_NAMES = {list_algorithms: "algorithms", map_states: "map"}

command("Data", "data", data.DESCRIPTION)(data.app)
for _group, _functions in COMMANDS.items():
    for _function in _functions:
        command(_group, _NAMES.get(_function))(_function)


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
    with plain_errors(OSError):
        try:
            _run(given)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of the output, such as `head`, has closed the pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(given: Sequence[str]) -> None:
    if given == ["--version"]:
        print(f"fat2thin {__version__}")
        return
    if not given or given[0] in ("-h", "--help"):
        print(overview(), flush=True)
        sys.exit(0 if given else 2)
    with plain_errors(ValueError):
        path, function = find(given)
        given = merge_repeated(given)
        if function is not None:
            if {"-h", "--help"} & {*given}:
                prepare_help(function)
            words = check_arguments(" ".join(path), function, given[len(path) - 1 :])
            given = [*path[1:], *words]
    app.cli(prog="fat2thin", description=DESCRIPTION, args=given)
