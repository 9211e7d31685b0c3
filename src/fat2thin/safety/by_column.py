"""Tables of proven bounds by values of columns."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from fat2thin.policies.policy import Policy
from fat2thin.runs.result import Run
from fat2thin.safety.box import read_box
from fat2thin.safety.certify import certify, checked_plain
from fat2thin.tables import Table


def table(
    policy: Policy | Run, box: Any, columns: Mapping[str, Sequence[Any]], *,
    seconds: float | int = 60.0, ranges: Sequence[tuple[float, float]] | None = None,
    **options: Any,
) -> Table:  # fmt: skip
    """Return the proven bounds by values of columns: a row for each combination.

    A column with the values a, b and c has three rows, at a, b and c, and the box is that of
    `certify` otherwise. A pair (low, high) instead of a number is a range.
    """
    if isinstance(policy, Run):
        ranges = policy.columns.ranges.get("observation") if ranges is None else ranges
        policy = policy.policy()
    states = read_box(box, checked_plain(policy), ranges)
    choices = [*itertools.product(*columns.values())]
    if not choices:
        raise ValueError("a table needs at least one column with values")
    rows: list[dict[str, Any]] = []
    for choice in choices:
        here = states
        for name, value in zip(columns, choice, strict=True):
            ends = value if isinstance(value, Sequence) else (value, value)
            here = here.with_column(name, *map(float, ends))
        found = certify(policy, here, seconds=seconds / len(choices), **options)
        for action in found.actions:
            row: dict[str, Any] = {
                name: _label(value) for name, value in zip(columns, choice, strict=True)
            }
            if len(found.actions) > 1:
                row["action"] = action
            rows.append(
                row
                | {
                    "never_below": found.shown(action, "low"),
                    "never_above": found.shown(action, "high"),
                    "highest_found": found.shown_worst(action, "high"),
                    "gap_percent": 100.0 * found.gaps[action],
                }
            )  # fmt: skip
    notes = (f"for {found.arithmetic} arithmetic, rounding included",)
    return Table("bounds on every action, by " + " and ".join(columns), tuple(rows), notes)


def _label(value: Any) -> str:
    return f"{value[0]:g} to {value[1]:g}" if isinstance(value, Sequence) else f"{value:g}"
