"""plan.json: the runs of a plan, so that every machine that sees its folder can show its progress.

The run folders say what was computed; this file only says which of them there will be, and which
could not be computed.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fat2thin.atomic_files import write
from fat2thin.runs import files
from fat2thin.runs.files import DamagedError
from fat2thin.runs.lock import in_use

PLAN = "plan.json"
SESSIONS = ".cluster"
"""Folder below a plan with a folder per driver of a cluster, which holds its lock."""
FORMAT = 1

_is_plan = files.fields(runs=files.each(files.is_count), failed=files.each(str))


class PlanFile(NamedTuple):
    """The runs of a plan."""

    updates: Mapping[str, int]
    """Updates of all seeds, by run folder relative to the folder of the plan."""
    failed: Mapping[str, str] = {}
    """Why a run could not be computed, by run folder."""

    def write(self, root: Path) -> None:
        """Write plan.json."""
        root.mkdir(parents=True, exist_ok=True)
        known = {"format": FORMAT, "runs": dict(self.updates), "failed": dict(self.failed)}
        write(root / PLAN, files.as_json(known))


def has_driver(root: Path) -> bool:
    """Return whether the driver of a cluster works on a plan, on any machine."""
    with contextlib.suppress(OSError):  # its folder may just have been removed
        return any(map(in_use, (root / SESSIONS).iterdir()))
    return False


def read_plan(root: Path) -> PlanFile | None:
    """Return the plan of a folder, or None if there is none."""
    file = root / PLAN
    try:
        found = files.read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found.get("format") != FORMAT or not _is_plan(found):
        raise DamagedError(f"{file} is damaged, or of another version: remove it")
    for name in found["runs"]:
        # Only folders below the plan: the file may come from someone else.
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise DamagedError(f"{file} is damaged: {files.shortened(name)} is not below it")
    return PlanFile(found["runs"], found["failed"])
