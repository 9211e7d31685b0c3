"""Summary of a data set: episodes, returns, and distributions of actions and observations."""

import dataclasses

import numpy as np

from fat2thin.columns import have_names
from fat2thin.data import long_work
from fat2thin.data.checks.box import EDGE_WIDTH
from fat2thin.data.checks.log import never_changes
from fat2thin.data.column_statistics import quantiles
from fat2thin.data.dataset import Dataset, extremes
from fat2thin.data.operations import episode_lengths, episode_returns
from fat2thin.data.row_arrays import Rows, blocks
from fat2thin.tables import Table
from fat2thin.terminal_text import counted, printable

HISTOGRAM_BINS = 16

_BLOCKS = " ▁▂▃▄▅▆▇█"
_LISTED_COLUMNS = 12
_SPREAD = {"min": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "max": 1.0}
"""Headings and quantiles, in the order of the fields of `Column`."""


@dataclasses.dataclass(frozen=True)
class Column:
    """Quantiles of one column."""

    low: float
    percentile_5: float
    median: float
    percentile_95: float
    high: float


@dataclasses.dataclass(frozen=True)
class ActionColumn(Column):
    """Quantiles of one action dimension, and its distribution over the box."""

    box: tuple[float, float]
    """Lower and upper end of the box."""
    share_at_low_edge: float
    """Share of rows within a thousandth of the box's width of its lower end."""
    share_at_high_edge: float
    """Share of rows within a thousandth of the box's width of its upper end."""
    histogram: tuple[int, ...]
    """Number of rows in each of `HISTOGRAM_BINS` equal parts of the box, lowest first."""


@dataclasses.dataclass(frozen=True)
class Summary:
    """The result of `summarise`; its `str` is a page of text."""

    name: str
    rows: int
    episodes: int
    lengths: tuple[int, float, int]
    """Rows per episode: minimum, median, maximum."""
    return_mean: float
    """Mean undiscounted episode return."""
    return_quartiles: tuple[float, float, float, float, float]
    """Undiscounted episode returns: minimum, lower quartile, median, upper quartile, maximum."""
    discount: float
    discounted_return_mean: float
    """Mean discounted episode return."""
    true_ends: float
    """Share of episodes with a true end; the others were cut."""
    actions: tuple[ActionColumn, ...]
    observations: tuple[Column, ...]
    constant_observations: tuple[int, ...]
    """Numbers of the observation columns that never change."""
    sha256: str
    """Content hash of the data set."""
    propensity: tuple[float, float] | None = None
    """Minimum and maximum propensity, if known."""
    action_names: tuple[str, ...] = ()
    """Names of the actions, with units."""
    observation_names: tuple[str, ...] = ()
    """Names of the observation columns, with units."""
    unnamed: tuple[str, ...] = ()
    """Which of "observation" and "action" have numbered names, because the log gives none."""

    def __str__(self) -> str:
        fewest, middle, most = self.lengths
        lengths = f"{fewest:,} to {most:,} rows, median {middle:,g}"
        lengths = counted(most, "row") if fewest == most else lengths
        worst, quarter, median, three_quarters, best = self.return_quartiles
        facts = {
            "return": f"mean {self.return_mean:.4g}, best {best:.4g}, worst {worst:.4g}, "
            f"quartiles {quarter:.4g} / {median:.4g} / {three_quarters:.4g}",
            "discounted": f"mean {self.discounted_return_mean:.4g}, factor {self.discount:g}",
        }
        if self.propensity is not None:
            facts["propensity"] = "{:.4g} to {:.4g}".format(*self.propensity)
        facts["sha256"] = self.sha256
        rows = tuple({"fact": name, "value": value} for name, value in facts.items())
        lines = (
            printable(self.name),
            f"{counted(self.rows, 'row')} in {counted(self.episodes, 'episode')} of {lengths}",
            f"{100 * self.true_ends:.3g} % of the episodes truly end, the others are cut",
            str(Table("", rows, headings=False)),
        )
        note = [f"The log has no names for its {' and '.join(self.unnamed)} columns."]
        tables = ["", self._action_text(), "", self._observation_text()]
        return "\n".join([*lines, *(note if self.unnamed else []), *tables])

    def _action_text(self) -> str:
        rows = tuple(
            {
                "action": printable(name),
                **_spread(column),
                "at low": f"{100 * column.share_at_low_edge:.3g} %",
                "at high": f"{100 * column.share_at_high_edge:.3g} %",
                "box": f"{column.box[0]:g} to {column.box[1]:g}",
                "histogram": f"|{histogram_text(column.histogram)}|",
            }
            for name, column in zip(self.action_names[:_LISTED_COLUMNS], self.actions, strict=False)
        )
        return str(Table("actions", rows, _left_out(len(self.actions))))

    def _observation_text(self) -> str:
        rows = tuple(
            {
                "observation": printable(name),
                **_spread(column),
                "constant": "yes" if number in self.constant_observations else "-",
            }
            for number, (name, column) in enumerate(
                zip(self.observation_names[:_LISTED_COLUMNS], self.observations, strict=False)
            )
        )
        size, constant = len(self.observations), len(self.constant_observations)
        title = f"observations: {size} column{'s' * (size != 1)}, {constant} of them constant"
        return str(Table(title, rows, _left_out(size)))


def summarise(dataset: Dataset) -> Summary:
    """Return a summary of a data set; print it for a page of text.

    Examples:
        >>> from fat2thin.data import load
        >>> summary = summarise(load("treatment/cubic@2"))
        >>> summary.rows, summary.episodes, summary.lengths
        (48, 2, (24, 24.0, 24))
    """
    # Ranges and quantiles take two passes each, a histogram one.
    long_work.expect(4 * dataset.observation.size + 3 * dataset.action.size)
    lengths, returns, known = episode_lengths(dataset), episode_returns(dataset), dataset.propensity
    last_rows = dataset.episode_start + lengths - 1
    low, high = dataset.action_low, dataset.action_high
    constant = never_changes(extremes(dataset.observation))
    return Summary(
        name=dataset.name,
        rows=dataset.rows,
        episodes=lengths.size,
        lengths=(int(lengths.min()), float(np.median(lengths)), int(lengths.max())),
        return_mean=float(returns.mean()),
        return_quartiles=tuple(np.quantile(returns, (0, 0.25, 0.5, 0.75, 1)).tolist()),
        discount=dataset.discount,
        discounted_return_mean=float(episode_returns(dataset, dataset.discount).mean()),
        true_ends=float(np.mean(dataset.continuation[last_rows] == 0)),
        actions=_action_columns(dataset.action, low, high),
        observations=tuple(Column(*row) for row in _quantiles(dataset.observation)),
        constant_observations=tuple(np.flatnonzero(constant).tolist()),
        sha256=dataset.sha256,
        propensity=None if known is None else (float(known.min()), float(known.max())),
        action_names=tuple(column.label for column in dataset.action_columns),
        observation_names=tuple(column.label for column in dataset.observation_columns),
        unnamed=tuple(
            kind
            for kind in ("observation", "action")
            if not have_names(kind, getattr(dataset, f"{kind}_columns"))
        ),
    )


def histogram_text(counts: tuple[int, ...]) -> str:
    """Return one block character per count, scaled to the largest; only 0 is blank."""
    largest = max(*counts, 1)
    return "".join(_BLOCKS[-(-count * (len(_BLOCKS) - 1) // largest)] for count in counts)


def _action_columns(
    action: Rows, low: tuple[float, ...], high: tuple[float, ...]
) -> tuple[ActionColumn, ...]:
    lower, upper = np.asarray(low), np.asarray(high)
    margin = EDGE_WIDTH * (upper - lower)
    counts = np.zeros((len(low), HISTOGRAM_BINS), np.int64)
    at_low, at_high = np.zeros((2, len(low)), np.int64)
    for rows in blocks(action):
        part = action[rows].astype(np.float64)
        at_low += (part <= lower + margin).sum(axis=0)
        at_high += (part >= upper - margin).sum(axis=0)
        for one, column, least, most in zip(counts, part.T, low, high, strict=True):
            one += np.histogram(column, HISTOGRAM_BINS, (least, most))[0]
    return tuple(
        ActionColumn(
            *spread,
            box=(low[at], high[at]),
            share_at_low_edge=float(at_low[at] / len(action)),
            share_at_high_edge=float(at_high[at] / len(action)),
            histogram=tuple(counts[at].tolist()),
        )
        for at, spread in enumerate(_quantiles(action))
    )


def _quantiles(table: Rows) -> list[tuple[float, float, float, float, float]]:
    return [tuple(row) for row in quantiles(table, tuple(_SPREAD.values())).tolist()]


def _spread(column: Column) -> dict[str, str]:
    values = dataclasses.astuple(column)[: len(_SPREAD)]
    return {name: f"{value:.3g}" for name, value in zip(_SPREAD, values, strict=True)}


def _left_out(columns: int) -> tuple[str, ...]:
    left = columns - _LISTED_COLUMNS
    return (f"and {left} more column{'s' * (left != 1)}",) if left > 0 else ()
