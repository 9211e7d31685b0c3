"""Checks of a log before anything is learned from it: what is wrong, and what is odd.

An error is what no data set can be made of, or what would be learned wrongly for certain. A warning
may be right: a task that never ends has no ends. A finding is one line, however many rows it is in.
"""

import numpy as np

from fat2thin.data.checks import contents, form
from fat2thin.data.checks.form import Finding, Order, Report
from fat2thin.data.dataset import Dataset, extremes, rows_where
from fat2thin.data.operations import Box, RawLog

__all__ = ["Finding", "Order", "Report", "check"]

_RANGED = ("observation", "action", "reward")


def check(log: Dataset | RawLog, box: Box | None = None, order: Order | None = None) -> Report:
    """Return what is wrong and what is odd about a log.

    A data set brings its box; for a raw log it is given, and without it nothing is said about the
    box. `order` has the columns of a table that a raw log no longer shows.
    """
    arrays, box = _arrays(log, box)
    wrong_form = tuple(form.form(arrays, box, order))
    if wrong_form:
        return Report(wrong_form)
    errors = tuple(form.values(arrays))
    prepared = _prepare(arrays, box)
    if not prepared.row.size:
        return Report(errors)
    outside = contents.outside_box(prepared) if box else ()
    return Report((*errors, *outside), tuple(contents.warnings(prepared)))


def _arrays(log: Dataset | RawLog, box: Box | None) -> tuple[dict[str, np.ndarray], Box | None]:
    if isinstance(log, Dataset):
        cut = np.zeros(log.rows, bool)
        cut[np.append(log.episode_start[1:], log.rows) - 1] = True
        box = Box(log.action_low, log.action_high, log.discount)
        terminal = log.continuation == 0
        log = RawLog(
            log.observation, log.action, log.reward, terminal, cut, log.next_observation,
            log.propensity,
        )  # fmt: skip
    present = {name: array for name, array in log._asdict().items() if array is not None}
    return {name: np.asarray(array) for name, array in present.items()}, box


def _prepare(arrays: dict[str, np.ndarray], box: Box | None) -> contents.Log:
    terminal = arrays["terminal"] == 1
    last = terminal | (arrays["cut"] == 1)
    last[-1] = True
    starts = np.flatnonzero(np.append(True, last[:-1]))
    numbers = {name: arrays[name] for name in form.numbers(arrays)}
    unusable = np.any([rows_where(form.not_in_float32, one) for one in numbers.values()], axis=0)
    row = np.flatnonzero(~unusable)
    if unusable.any():
        numbers = {name: array[row] for name, array in numbers.items()}
    return contents.Log(
        row=row,
        arrays=numbers,
        extremes={name: extremes(numbers[name]) for name in _RANGED if row.size},
        follows=~last[row] & np.append(np.diff(row) == 1, False)[: row.size],
        lengths=np.diff(starts, append=len(last)),
        starts=starts,
        ends=int(terminal.sum()),
        low=np.asarray(box.low if box else ()),
        high=np.asarray(box.high if box else ()),
    )
