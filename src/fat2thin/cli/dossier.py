"""The command that makes a dossier, and its progress."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as RichProgress

from fat2thin.terminal_text import plain_errors, printable


def dossier(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")],
    /,
    log: Annotated[str | None, tyro.conf.arg(metavar="DATASET")] = None,
    limits: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    against: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FOLDER ...")] = (),
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    minutes: float = 5.0,
    show_cases: bool = False,
) -> None:
    """Write the page that a committee needs to judge a policy.

    It answers what the policy does, how much it can ever give, which limits it obeys, what it is
    worth, whom it refers, whether seeds agree, how it was made, and what could be wrong. It starts
    with a verdict from stated rules. A JSON file beside it has every number. What is missing is
    computed; a part that there is no time for is named with its command.

    Example: fat2thin dossier runs/doses

    Args:
        folder: Run folder of a run on your own log.
        log: Name or path of a log to judge the policy on; by default the held-out episodes of the
            log that it learned from.
        limits: TOML file with a table [limits] to put around the policy, instead of those that it
            learned within.
        against: Run folders to compare with.
        out: HTML file to write; FOLDER/dossier.html by default. The JSON file is beside it.
        minutes: Time that it takes at most.
        show_cases: Also show the referred steps that are farthest from the log. These are rows of
            single patients.
    """
    from fat2thin.report.dossier.assemble import Request, make_dossier
    from fat2thin.training import load

    _refuse_early(against, out)
    asked = Request(folder, log, limits, against, minutes, show_cases)
    try:
        with plain_errors(ValueError, OSError), _Bar() as shown:
            found = make_dossier(load(folder), asked, out, shown.begin)
    except KeyboardInterrupt:
        print("fat2thin: Interrupted. No dossier was written.", file=sys.stderr)
        sys.exit(130)
    print(f"{found.verdict}: {printable(folder)}")
    for one in found.findings:
        if one.state != "holds":
            print(printable(f"  {one.state}: {one.rule} ({one.measured})"))
    print(f"\n{printable(found.page)} ({found.page.stat().st_size / 1e6:.1f} MB)")
    print(f"{printable(found.twin)} (SHA-256 {found.sha256[:16]}...)")


def _refuse_early(against: Sequence[Path], out: Path | None) -> None:
    """Refuse what would otherwise be found after minutes of work."""
    from fat2thin.runs.folder import RunFolder

    with plain_errors(ValueError, OSError):
        for other in against:
            RunFolder(other).about()
        if out is not None and not out.parent.is_dir():
            raise ValueError(f"folder {out.parent} does not exist: create it, or choose another")


class _Bar:
    """A bar over the parts of a dossier on a terminal; one line per part elsewhere."""

    def __init__(self) -> None:
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn()
        timed = MofNCompleteColumn(), TimeElapsedColumn()
        self._on_terminal = sys.stderr.isatty()
        self._bar = RichProgress(
            *columns, *timed, console=Console(stderr=True), disable=not self._on_terminal,
            transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> "_Bar":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def begin(self, part: str, done: int, of: int) -> None:
        """Show that a part begins."""
        if self._on_terminal:
            self._bar.update(self._task, description=part, completed=done, total=of)
        else:
            print(f"{done + 1} of {of}: {part}", flush=True)
