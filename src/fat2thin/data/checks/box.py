"""Checks of the actions against the action box, and of the values that they take."""

import functools
from collections.abc import Iterator

import numpy as np

from fat2thin.columns import LOG, have_names
from fat2thin.data.checks.findings import NAMED_COLUMNS, Finding, in_rows
from fat2thin.data.checks.log import CheckedLog, never_changes
from fat2thin.data.dataset import outside_box as outside_ends
from fat2thin.data.formats.table_columns import column_line
from fat2thin.data.row_arrays import Rows, blocks

OTHER_UNIT = 1.0
"""Excess over the box, in box widths, above which actions seem to be in another unit; noise leaves
the box by a fraction of its width."""
NARROW_SHARE = 0.01
"""Used share of the box below which the range is narrow: percent against fractions is 100 : 1."""
BEYOND_SHARE = 0.25
"""Untried share of the box on one side of all logged actions above which the box is too wide: doses
from 0 to 1 leave half of a box of ±1 untried, uniform actions almost nothing."""
EDGE_WIDTH = 1e-3
"""Share of the box's width that counts as its edge: a tanh in float32 does not reach ±1, and only
two in a thousand uniform actions are that close to an end."""
EDGE_SHARE = 0.05
"""Share of actions at one edge that is reported: 50 times that of uniform actions. Many actions at
one point have no density, so a policy with a density cannot fit them."""
EDGE_ROWS = 10
"""Least actions in a pile at an end of the logged range, which a short log reaches by chance."""
LOG_SHARE = 0.01
"""Offset of an offered logarithm above the low end of the box, as a share of the logged range: the
pile and the largest action are then a factor of about 100 apart, or 4.6 on the new scale."""
FEW_VALUES, FEW_VALUES_ROWS = 10, 100
"""Most distinct values that count as few, and the rows from which on that is odd: a pump or a
prescription in a few fixed steps. Among 100 continuous actions, hardly any two are equal."""
_FIRST_LOOK = 1000  # rows that show most columns to be continuous


def outside_box(log: CheckedLog) -> Iterator[Finding]:
    """Yield errors for actions outside the box."""
    low, high, logged = log.low, log.high, log.extremes["action"]
    excess = np.maximum(low - logged.low, logged.high - high)
    far = np.flatnonzero(excess > OTHER_UNIT * (high - low))
    near = np.setdiff1d(np.flatnonzero(excess > 0), far)
    unit = "Actions and box seem to be in different units: convert one of them, or correct the box."
    mistake = (
        "Widen the box if such actions are allowed, correct them if they are mistakes; clip them "
        "only if rounding put them there."
    )
    for code, columns, way_out in (("other_unit", far, unit), ("outside_box", near, mistake)):
        if not columns.size:
            continue
        ends = [np.full(low.size, end) for end in (-np.inf, np.inf)]
        for end, of_box in zip(ends, (low, high), strict=True):
            end[columns] = of_box[columns]
        wrong = log.find("action", functools.partial(outside_ends, low=ends[0], high=ends[1]))
        yield from in_rows(
            code, log.names.text("action", columns), wrong,
            f"leaves the box in {{count}} of {log.rows} rows: logged from "
            f"{logged.low[columns].min():g} to {logged.high[columns].max():g}, box from "
            f"{low[columns].min():g} to {high[columns].max():g}",
            way_out, log.in_file,
        )  # fmt: skip


def narrow(log: CheckedLog) -> Iterator[Finding]:
    """Yield a warning about actions that use a very small part of the box."""
    logged = log.extremes["action"]
    used = (logged.high - logged.low) / (log.high - log.low)
    narrow = np.flatnonzero((used < NARROW_SHARE) & ~never_changes(logged))
    if narrow.size:
        yield log.in_columns(
            "narrow_actions", "action", narrow,
            f"uses at most {100 * used[narrow].max():.2g} % of the box",
            "Check that actions and box are in the same unit; if so, narrow the box to the allowed "
            "actions.",
        )  # fmt: skip


def wide_box(log: CheckedLog) -> Iterator[Finding]:
    """Yield warnings about a box that reaches far beyond the logged actions on one side."""
    low, high, logged = log.low, log.high, log.extremes["action"]
    # Constant and narrow columns have findings of their own.
    varied = ~never_changes(logged) & (logged.high - logged.low >= NARROW_SHARE * (high - low))
    for side, beyond, end in (
        ("below", (logged.low - low) / (high - low), logged.low),
        ("above", (high - logged.high) / (high - low), logged.high),
    ):
        columns = np.flatnonzero((beyond > BEYOND_SHARE) & varied)
        if columns.size:
            worst = int(columns[np.argmax(beyond[columns])])
            where = f" ({log.names.each('action', [worst])[0]})" if columns.size > 1 else ""
            yield log.in_columns(
                "wide_box", "action", columns,
                f"is never {side} {end[worst]:g}, but {100 * beyond[worst]:.3g} % of the box from "
                f"{low[worst]:g} to {high[worst]:g} lies there{where}",
                "A policy may act where nothing was tried: set the box to the real limits, or to "
                "the range of the logged actions.",
            )  # fmt: skip


def edges(log: CheckedLog) -> Iterator[Finding]:
    """Yield warnings about actions piled up at an edge of the box or at an end of their range."""
    action, logged = log.arrays["action"], log.extremes["action"]
    used, width = logged.high - logged.low, log.high - log.low
    # Narrow ranges, few values and actions outside the box have findings of their own.
    candidates = ~never_changes(logged) & (used >= NARROW_SHARE * width)
    candidates &= (logged.low >= log.low) & (logged.high <= log.high)
    candidates[list(_few(log))] = False
    at_box = {
        "low": logged.low - log.low <= EDGE_WIDTH * width,
        "high": log.high - logged.high <= EDGE_WIDTH * width,
    }
    margin = {edge: EDGE_WIDTH * np.where(at, width, used) for edge, at in at_box.items()}
    limits = {
        "low": np.where(at_box["low"], log.low, logged.low) + margin["low"],
        "high": np.where(at_box["high"], log.high, logged.high) - margin["high"],
    }
    piles = {
        edge: candidates & _piled_up(action, limit, edge, at_box[edge])
        for edge, limit in limits.items()
    }
    for edge, limit in limits.items():
        for box_edge in (True, False):
            columns = np.flatnonzero(piles[edge] & (at_box[edge] == box_edge))
            if columns.size:
                yield from _pile(log, edge, columns, limit, piles, box_edge)


def _pile(
    log: CheckedLog, edge: str, columns: np.ndarray, limit: np.ndarray,
    piles: dict[str, np.ndarray], box_edge: bool,
) -> Iterator[Finding]:  # fmt: skip
    action = log.arrays["action"]
    share = _count_beyond(action, limit, edge)[columns].max() / len(action)
    wrong = log.find("action", lambda part: _beyond(part[:, columns], limit[columns], edge))
    place = f"the {edge} edge of the box" if box_edge else f"its {edge}est logged value"
    widen = " If actions were clipped to the box, widen it." if box_edge else ""
    only_low = columns[~piles["high"][columns]] if edge == "low" else columns[:0]
    yield from in_rows(
        "at_edge", log.names.text("action", columns), wrong,
        f"lies at {place} in {100 * share:.3g} % of the rows",
        "Say so with your results: a policy whose support lies inside the box puts a band there, "
        f"not a point.{widen}{_offer(log, only_low)}", log.in_file,
    )  # fmt: skip


def _piled_up(action: Rows, limit: np.ndarray, edge: str, at_box: np.ndarray) -> np.ndarray:
    """Return a mask of the columns with many actions beyond the limit."""
    count = _count_beyond(action, limit, edge)
    # There is always one action at an end of the logged range.
    return (count >= EDGE_SHARE * len(action)) & (at_box | (count >= EDGE_ROWS))


def _count_beyond(action: Rows, limit: np.ndarray, edge: str) -> np.ndarray:
    """Return the number of rows at or beyond the limit, shape (columns,)."""
    count = np.zeros(action.shape[1], int)
    for rows in blocks(action):
        count += _beyond(action[rows], limit, edge).sum(axis=0)
    return count


def _beyond(action: np.ndarray, limit: np.ndarray, edge: str) -> np.ndarray:
    return action <= limit if edge == "low" else action >= limit


def _offer(log: CheckedLog, columns: np.ndarray) -> str:
    """Return an offer to learn these actions, piled up at their low end, on a logarithmic scale."""
    free = [at for at in columns.tolist() if not log.names.action[at].transform]
    lines = [_log_line(log, at) for at in free[:NAMED_COLUMNS]]
    if not lines:
        return ""
    if not have_names("action", log.names.action):
        return f" Or learn on a logarithmic scale, which resolves small actions: {lines[0]}."
    return (
        " Or learn on a logarithmic scale, which makes the band narrow there: add to the TOML, "
        f"under [columns], {'; '.join(lines)}"
    )


def _log_line(log: CheckedLog, at: int) -> str:
    """Return the setting of a logarithm whose offset is a small share of the logged range."""
    column, logged = log.names.action[at], log.extremes["action"]
    step = LOG_SHARE * (logged.high[at] - logged.low[at])
    # One digit is enough, and is easy to read and to justify.
    step = float(f"{step:.0e}")
    offset = float(f"{step - log.low[at]:.10g}")
    if not have_names("action", log.names.action):
        return f'give {column.name} the transform Transform("log", {offset:.10g})'
    unit = {"unit": column.unit} if column.unit else {}
    return column_line(column.name, {**unit, LOG: offset})


def few_values(log: CheckedLog) -> Iterator[Finding]:
    """Yield a warning about actions that take few distinct values."""
    found = _few(log)
    if found:
        columns = np.array([*found])
        names = log.names.each("action", columns[:NAMED_COLUMNS])
        lists = [", ".join(f"{value:g}" for value in values) for values in found.values()]
        shown = [
            values if columns.size == 1 else f"{name}: {values}"
            for name, values in zip(names, lists, strict=False)
        ]
        yield log.in_columns(
            "few_values", "action", columns,
            f"takes few distinct values ({'; '.join(shown)})",
            "A policy with a continuous action will act between them. Check that such actions are "
            "possible; if they are categories, no policy of this package fits them.",
        )  # fmt: skip


def _few(log: CheckedLog) -> dict[int, np.ndarray]:
    """Return the values of the action columns with at least 2 and at most `FEW_VALUES` of them."""
    action = log.arrays["action"]
    if len(action) < FEW_VALUES_ROWS:
        return {}
    found = {
        at: np.unique(action[:_FIRST_LOOK, at])
        for at in np.flatnonzero(~never_changes(log.extremes["action"])).tolist()
    }
    for rows in blocks(action):
        found = {at: values for at, values in found.items() if values.size <= FEW_VALUES}
        if not found:
            break
        part = action[rows]
        for at, values in found.items():
            new = part[:, at]
            found[at] = np.union1d(values, new[~np.isin(new, values)])
    return {at: values for at, values in found.items() if values.size <= FEW_VALUES}
