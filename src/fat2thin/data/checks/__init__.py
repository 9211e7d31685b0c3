"""Checks of a log before training; they report errors and warnings.

An error means that the log cannot be used, or that training would certainly learn something wrong.
A warning may be harmless: a task without end has no end marks. A finding covers all its rows. Each
threshold is a constant with its reason.
"""

import dataclasses

import numpy as np

from fat2thin.columns import Column
from fat2thin.data import long_work
from fat2thin.data.checks import form
from fat2thin.data.checks.box import edges, few_values, narrow, outside_box, wide_box
from fat2thin.data.checks.columns import (
    constant,
    leaks,
    observation_scale,
    reward_scale,
    unit_changes,
)
from fat2thin.data.checks.findings import Finding, Names, Report
from fat2thin.data.checks.form import Arrays, Order
from fat2thin.data.checks.log import prepare, unusable_rows
from fat2thin.data.checks.rows import (
    chain,
    duplicates,
    ends_by_time,
    no_end,
    one_episode,
    short_episodes,
)
from fat2thin.data.dataset import Dataset, Origin
from fat2thin.data.operations import Box, RawLog
from fat2thin.data.row_arrays import MappedRows, MarkedRows

__all__ = ["Finding", "Order", "Report", "check"]

_OF_BOX = (narrow, wide_box, edges)
_OF_ALL = (
    few_values, leaks, unit_changes, chain, duplicates, no_end, ends_by_time, one_episode,
    short_episodes, reward_scale, observation_scale,
)  # fmt: skip


def check(log: Dataset | RawLog, box: Box | None = None, order: Order | None = None) -> Report:
    """Return the errors and warnings about a log.

    `box` is the action box of a raw log; without it, actions are not compared with a box. A
    `Dataset` has its own. `order` holds the episode and time columns of a table, which a raw log
    does not contain. Rows are those of the file that a data set was read from.

    Examples:
        >>> from fat2thin.data import load
        >>> report = check(load("treatment/cubic@10"))
        >>> report.errors, report.codes
        ((), ())
    """
    arrays, columns = _arrays(log)
    origin = log.origin if isinstance(log, Dataset) else None
    if isinstance(log, Dataset):
        box = Box(log.action_low, log.action_high, log.discount)
    if wrong_form := tuple(form.wrong_forms(arrays, box, order)):
        return Report(wrong_form)
    names = Names.of(arrays, columns)
    report = _findings(arrays, names, box, origin, log.propensity_is_density)
    if isinstance(log, Dataset) and (changed := tuple(form.other_hash(log))):
        report = dataclasses.replace(report, errors=(*changed, *report.errors))
    if origin is not None and origin.places is not None:
        report = report.with_places(origin.places)
    return report


def _findings(
    arrays: Arrays, names: Names, box: Box | None, origin: Origin | None, is_density: bool
) -> Report:
    cells = sum(arrays[name].size for name in form.number_arrays(arrays))
    # What the checks below read of a log in which they find nothing.
    wide = 5 * arrays["observation"].size + 4 * arrays["action"].size
    long_work.expect(cells + wide + 10 * len(arrays["reward"]))
    unusable = unusable_rows(arrays)
    errors = tuple(form.wrong_values(arrays, names, not unusable.size, is_density))
    log = prepare(arrays, unusable, names, box, origin)
    if not log.rows:
        return Report(errors, note=names.note(errors))
    outside = outside_box(log) if box else ()
    checks = (constant, *(_OF_BOX if box else ()), *_OF_ALL)
    errors = (*errors, *outside)
    odd = tuple(finding for find in checks for finding in find(log))
    return Report(errors, odd, names.note((*errors, *odd)))


def _arrays(log: Dataset | RawLog) -> tuple[Arrays, dict[str, tuple[Column, ...]]]:
    """Return the arrays of a log, and its columns by array."""
    columns = {"observation": log.observation_columns, "action": log.action_columns}
    if isinstance(log, Dataset):
        ends = np.append(log.episode_start[1:], log.rows) - 1
        present = {name: getattr(log, name) for name in log.row_arrays}
        continuation = present.pop("continuation")
        present["terminal"] = MappedRows(lambda part: part == 0, continuation, dtype=np.dtype(bool))
        present["cut"] = MarkedRows(log.rows, ends)
        return present, columns
    present = {
        name: np.asarray(array)
        for name, array in log._asdict().items()
        if array is not None and not name.endswith(("_columns", "_is_density"))
    }
    return present, columns
