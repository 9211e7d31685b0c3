"""How far runs are, in words: one run that is not finished, or a line each of many."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fat2thin.evaluation.table import make_table, metrics_table
from fat2thin.runs import checkpoints, files
from fat2thin.runs.checkpoints import Checkpoint
from fat2thin.runs.files import DamagedError, NoRunError
from fat2thin.runs.folder import RunFolder
from fat2thin.runs.result import Evaluations
from fat2thin.runs.status import RunOutline, RunStatus, StatusReader
from fat2thin.tables import listed
from fat2thin.terminal_text import printable

_HEADINGS = ("folder", "algorithm", "dataset", "seeds", "actor sampled", "status")
_LONGEST_SEEDS = 20


def describe(standing: RunStatus) -> str:
    """A run that is not finished: how far it is, its last evaluation and metrics, its worries."""
    # While a process writes and removes checkpoints they are left alone.
    checkpoint = None if standing.in_use else checkpoints.newest(standing.folder)
    outline = standing.outline.including(checkpoint) if checkpoint else standing.outline
    now = "a process trains into it now" if standing.in_use else broken_off(checkpoint)
    parts = [f"{title(outline)}: {progress(standing)}\n{now}"]
    if standing.stopped:
        parts.append(f"{stopped_seeds(standing)}; what follows leaves them out")
    steps, policies = RunFolder(standing.folder).evaluations(len(outline.seeds))
    if steps and policies:
        last = Evaluations(tuple(steps), policies).last()
        parts.append(str(make_table(f"evaluation after step {steps[-1]:,}", last, {})))
    if standing.row:
        parts.append(str(metrics_table(f"metrics at step {standing.step:,}", standing.row.metrics)))
    else:
        parts.append("no metrics yet")
    if told := [*remarks(outline)]:
        parts.append("\n".join(told))
    return "\n\n".join(parts)


def remarks(outline: RunOutline) -> Iterator[str]:
    """A line for each seed that stopped, and for each warning."""
    for seed, stop in outline.stopped.items():
        yield printable(
            f"seed {seed} stopped at step {stop['step']:,}: {stop['metric']} was not finite. Its "
            f"state after step {stop['last_good_step']:,} is kept."
        )
    for warning in outline.warnings:
        yield printable(f"warning: {warning}")


def title(outline: RunOutline) -> str:
    """What is learned from what."""
    return printable(f"{outline.algorithm} on {outline.dataset}, seeds {_seeds(outline)}")


def progress(standing: RunStatus) -> str:
    """Steps done of all steps."""
    return f"step {standing.step:,} of {standing.outline.steps:,} ({standing.percent} %)"


def stopped_seeds(standing: RunStatus) -> str:
    """How many of the seeds go no further."""
    count = len(standing.outline.seeds)
    return f"{standing.stopped} of {count} seed{'s' if count > 1 else ''} stopped"


def broken_off(checkpoint: Checkpoint | None) -> str:
    """Where a run that nobody is at would go on: at its newest checkpoint, if it has one."""
    place = checkpoint.place if checkpoint else "the start"
    return f"broken off: the command that began it goes on from {place}"


def overview(folders: Sequence[Path]) -> str:
    """A line a folder, in the order given, whatever is in it."""
    rows = [_HEADINGS, *map(_row, folders)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _row(folder: Path) -> tuple[str, ...]:
    try:
        standing = StatusReader(folder).read()
        if not standing.running:
            _check_sizes(standing)
    except (ValueError, OSError) as error:
        what = str(error).removeprefix(f"{folder}/").removeprefix(f"{folder} ")
        kind = "" if isinstance(error, NoRunError) else "damaged: "
        return printable(str(folder)), "", "", "", "", printable(kind + what)
    outline, score = standing.outline, standing.score
    shown = "-" if score is None else f"{score.mean:.3f}"
    status = _status(standing) + (f", {stopped_seeds(standing)}" if standing.stopped else "")
    texts = (str(folder), outline.algorithm, outline.dataset, _seeds(outline), shown, status)
    return tuple(map(printable, texts))


def _status(standing: RunStatus) -> str:
    if not standing.running:
        return standing.outline.status
    if standing.in_use:
        return f"running {standing.percent} %"
    return f"broken off at step {standing.step:,}"


def _check_sizes(standing: RunStatus) -> None:
    """See that the files of a run that is over are there; that they are whole is not asked."""
    for name, stamp in standing.outline.files.items():
        path = standing.folder / name
        with files.opened(path, required=True) as file:
            size = files.size_of(file)
        if size != stamp.get("bytes"):
            raise DamagedError(f"{path} is cut off or was changed")


def _seeds(outline: RunOutline) -> str:
    text = listed(outline.seeds)
    return text if len(text) <= _LONGEST_SEEDS else f"{len(outline.seeds)} of them"
