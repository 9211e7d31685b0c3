"""What every part of a dossier consists of: an answer in words, with its tables and its picture."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fat2thin.tables import Table

QUESTIONS = (
    "What does it do?",
    "What is the largest dose it can ever give, and to whom?",
    "Which limits does it obey, and how often do they bind?",
    "How much better than current practice is it, and how sure are we?",
    "For whom does it refuse to decide?",
    "Do the seeds agree?",
    "How was it made?",
    "What could be wrong?",
)
"""The questions of a dossier, in order; their numbers start with 1."""
LEVEL = "95 %"
"""The level of every interval that is not labelled otherwise."""


class NotRun(NamedTuple):
    """A part that was not computed."""

    what: str
    why: str
    command: str
    """The command that computes it."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer to one question. Every number of it is also in the JSON twin."""

    sentence: str
    how: str
    """How we know."""
    facts: Mapping[str, Any]
    """Numbers by name, unrounded; None is not known. The rules of the verdict read only these."""
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)
    """By the name of the CSV file."""
    picture: Mapping[str, Any] | None = None
    """What the script of the page draws, with its "kind"."""
    not_run: tuple[NotRun, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        tables = {
            name: {"title": one.title, "rows": [*one.rows], "notes": [*one.notes]}
            for name, one in self.tables.items()
        }
        return plain_numbers(
            {
                "sentence": self.sentence, "how": self.how, "facts": self.facts, "tables": tables,
                "picture": self.picture, "not_run": [one._asdict() for one in self.not_run],
            }
        )  # fmt: skip


def joined(row: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return both; columns of a log may be named like a heading of ours."""
    return {**row, **{f"{name} (column)" if name in row else name: of for name, of in more.items()}}


def plain_numbers(value: Any) -> Any:
    """Return values as JSON has them; a number that is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(key): plain_numbers(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return plain_numbers(value.tolist())
    if isinstance(value, list | tuple):
        return [plain_numbers(one) for one in value]
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        number = float(value)
        # 32-bit numbers are written with the digits that they have.
        number = float(str(value)) if isinstance(value, np.float32) else number
        return number if math.isfinite(number) else None
    return value


def number(value: float | None, unit: str = "", digits: int = 3) -> str:
    """Return a number with its unit, as sentences show it."""
    if value is None or not math.isfinite(value):
        return "not known"
    value = value or 0.0  # never −0
    size = abs(value)
    text = f"{value:.{digits}g}" if 1e-4 <= size < 1e5 or not size else f"{value:.{digits - 1}e}"
    if "e" in text and 1e-4 <= size < 1e5:
        text = f"{value:,.0f}"
    return f"{text} {unit}".replace("-", "−").strip()


def percent(share: float | None, digits: int = 3) -> str:
    """Return a share in per cent."""
    if share is None or not math.isfinite(share):
        return "not known"
    return number(100.0 * share, "%", digits)


def interval(low: float | None, high: float | None, unit: str = "", level: str = LEVEL) -> str:
    """Return an interval with its level."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return f"no {level} interval"
    return f"{level} interval {number(low)} to {number(high, unit)}"
