"""Checks of single columns: constant ones, scales, unit changes, and leaks from the future."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fat2thin.columns import transform, transforms_of
from fat2thin.data.checks.findings import NAMED_COLUMNS, Finding, in_rows
from fat2thin.data.checks.log import CheckedLog, never_changes, size_of
from fat2thin.data.column_statistics import ranked
from fat2thin.data.dataset import Extremes
from fat2thin.data.row_arrays import FIRST_ROWS, MappedRows, blocks

REWARD_RATIO = 1000.0
"""Largest |reward| over the median of those that are not 0: above it, squared errors differ by a
factor of a million, and a critic learns only the few large ones."""
OBSERVATION_MAGNITUDE = 1e4
"""Magnitude above which a column dominates the first layer of a network."""
OBSERVATION_RATIO = 100.0
"""Magnitude of a column over that of the smallest one: below it, one learning rate suits both."""
LEAK_SHARE = 0.999
"""Share of rows in which an observation equals the action or reward that counts as a leak; the rest
may be rounding or mistakes."""
LEAK_INFORMATIVE_SHARE, LEAK_LEAST_ROWS = 0.99, 10
"""The same share among the rows in which one of the two differs from the most common value, and how
many of these are needed: two columns that are nearly always 0 are equal without a leak."""
LEAK_TOLERANCE = 1e-6
"""Relative difference that counts as equal: a few units in the last place of float32."""
SCALE_JUMP = 10.0
"""Ratio of the median sizes of two parts that looks like another unit: mg/dL to mmol/L is 18 for
glucose and 88 for creatinine, g to mg 1000. Smaller ratios are common between phases and groups."""
SCALE_JUMP_PART = 0.1
"""Least share of rows in each part: a short start or a few outliers are no change of unit."""
SCALE_JUMP_ROWS = 50
"""Least rows (with values other than 0) in each part, so that medians and quantiles are stable."""
SCALE_JUMP_EPISODES = 5
"""Least episodes in each part of a jump between episodes: two patients may differ by a factor of
10, but 5 of one kind followed by 5 of the other are unlikely by chance (2 in 252)."""
SCALE_JUMP_WINDOW = 5
"""Values on each side of the jump, whose medians must differ by the same ratio: a drift does not
jump anywhere, so the values next to its middle are almost equal."""
SCALE_JUMP_DRIFT = 1 / 3
"""Largest distance, on a log scale and as a share of the jump, of the values next to it from the
median of their part: an exponential decay has one half."""
SCALE_JUMP_VALUES = 10
"""Parts with at most this many distinct values hold codes, such as the number of a ward."""
_SAMPLE_ROWS, _LEAST_SAMPLE_ROWS, _SAMPLE_CELLS = 2**14, 2**10, 2**22  # bounds time and memory


def constant(log: CheckedLog) -> Iterator[Finding]:
    """Yield warnings about columns that never change."""
    ways_out = {
        "observation": "It carries no information; leave it out, or find out why it is constant.",
        "action": "Nothing can be learned about untried actions; leave the column out, or find the "
        "one that was varied.",
        "reward": "All policies look equally good; find the right column.",
    }
    for name, way_out in ways_out.items():
        columns = np.flatnonzero(never_changes(log.extremes[name]))
        if not columns.size or log.rows == 1:
            continue
        label = "reward" if name == "reward" else log.names.text(name, columns)
        first = log.arrays[name][:1].reshape(-1)[columns[0]]
        value = f"is {first:g} in every row" if columns.size == 1 else "never change"
        yield Finding("constant", label, columns.size, (), f"{value}, to six digits", way_out)


def reward_scale(log: CheckedLog) -> Iterator[Finding]:
    """Yield a warning about a few rewards that are much larger than the others."""
    largest, reward = float(size_of(log.extremes["reward"])[0]), log.arrays["reward"]
    if not largest:
        return
    zeros = sum(int((reward[rows] == 0).sum()) for rows in blocks(reward))
    middle = [zeros + (log.rows - zeros - 1) // 2, zeros + (log.rows - zeros) // 2]
    median = float(ranked(MappedRows(np.abs, reward), middle).mean())
    yield from in_rows(
        "reward_scale", "reward",
        log.find("reward", lambda part: np.abs(part.astype(np.float64)) > REWARD_RATIO * median),
        f"is up to {largest / median:.3g} times as large as its median size {median:.3g}",
        "Check whether units were mixed or a code marks missing values; otherwise scale or clip "
        "rewards, and state the rule.", log.in_file,
    )  # fmt: skip


def observation_scale(log: CheckedLog) -> Iterator[Finding]:
    """Yield a warning about observations much larger than the others, on the scale learned on."""
    transforms = transforms_of(log.names.observation)
    seen = Extremes(*(transform(end, transforms) for end in log.extremes["observation"]))
    size = size_of(seen)
    varied = ~never_changes(seen)
    if not varied.any():
        return
    smallest = size[varied].min()
    bound = max(OBSERVATION_MAGNITUDE, OBSERVATION_RATIO * smallest)
    large = np.flatnonzero(varied & (size > bound))
    if large.size:
        yield log.in_columns(
            "observation_scale", "observation", large,
            f"reaches {size[large].max():.3g}, while another column stays within {smallest:.3g}",
            "Standardise the observations, or choose units with similar ranges; a time stamp or a "
            "patient number is not an observation.",
        )  # fmt: skip


def leaks(log: CheckedLog) -> Iterator[Finding]:
    """Yield warnings about observations that equal the action or reward of the same row.

    The action of the row above is a legitimate observation.
    """
    observation = log.arrays["observation"]
    sample = _sample(len(observation), observation.shape[1])
    varied = ~never_changes(log.extremes["observation"])
    for name in ("action", "reward"):
        sampled = log.arrays[name][sample].reshape(sample.size, -1)
        changes = np.flatnonzero(~never_changes(log.extremes[name]))
        pairs = []
        for column in changes.tolist():
            likely = _same(observation[sample], sampled[:, column, None]).mean(axis=0)
            seen = np.flatnonzero(varied & (likely >= LEAK_INFORMATIVE_SHARE)).tolist()
            pairs += [(at, column) for at in seen if _leaks(log, at, name, column)]
        if pairs:
            columns, equal = (np.array(part) for part in zip(*pairs, strict=True))
            which = f" ({log.names.text('action', equal)})" if name == "action" else ""
            yield Finding(
                "leak", log.names.text("observation", columns), columns.size, (),
                f"(observation) equals the {name} of the same row{which}",
                f"A policy does not know the {name} of a row before it acts: leave the column out, "
                f"or take the {name} of the row above.",
            )  # fmt: skip


def _leaks(log: CheckedLog, at: int, name: str, column: int) -> bool:
    """Return whether an observation equals a column of `name`, and not that of the row above."""
    observation, target = log.arrays["observation"], log.arrays[name]
    sample = observation[_sample(log.rows, 1)][:, at]
    values, times = np.unique(sample, return_counts=True)
    common = float(values[times.argmax()])
    counts = np.zeros(5, int)
    for rows in blocks(observation):
        # With the row below, which could hold the target of a row.
        seen = observation[rows.start : rows.stop + 1][:, at]
        other = target[rows.start : rows.stop + 1].reshape(len(seen), -1)[:, column]
        count = rows.stop - rows.start
        same = _same(seen[:count], other[:count])
        odd = ~(_same(seen[:count], common) & _same(other[:count], common))
        below = np.flatnonzero(log.follows(rows)) + 1
        of_row, of_above = _same(seen[below], other[below]), _same(seen[below], other[below - 1])
        counts += [np.count_nonzero(mask) for mask in (same, odd, same & odd, of_row, of_above)]
    equal, informative, informative_equal, follows_same, follows_above = counts.tolist()
    return (
        equal >= LEAK_SHARE * log.rows
        and informative >= LEAK_LEAST_ROWS
        and informative_equal >= LEAK_INFORMATIVE_SHARE * informative
        and follows_same >= follows_above
    )


def _same(one: np.ndarray, other: np.ndarray | float) -> np.ndarray:
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    size = np.maximum(np.abs(one), np.abs(other))
    return np.abs(one - other) <= LEAK_TOLERANCE * size


def _sample(rows: int, columns: int) -> np.ndarray:
    """Return the numbers of evenly spaced rows: all of a short log, a bounded number of cells."""
    most = min(_SAMPLE_ROWS, max(_LEAST_SAMPLE_ROWS, _SAMPLE_CELLS // columns), rows)
    return np.arange(most) * rows // most


class _Jump(NamedTuple):
    """A place where the scale of a column changes."""

    name: str
    row: int
    above: float  # median size of the values above and below it, without zeros
    below: float


def unit_changes(log: CheckedLog) -> Iterator[Finding]:
    """Yield a warning about columns whose scale jumps between two parts of the log."""
    found = []
    for array in ("observation", "action", "reward"):
        table = log.arrays[array]
        sample = _sample(log.rows, table.size // log.rows)
        values = np.abs(table[sample].reshape(sample.size, -1).astype(np.float64))
        for at in np.flatnonzero(~never_changes(log.extremes[array])).tolist():
            jump = _jump(values[:, at])
            if jump is None:
                continue
            last, first, above, below = jump
            between = np.arange(sample[last] + 1, sample[first] + 1)
            # The middle on a log scale divides the values of both parts.
            around = table[between].reshape(between.size, -1)[:, at]
            beyond = np.abs(around) > np.sqrt(above * below)
            row = int(between[np.argmax(beyond == (below > above))])
            if _not_between_few_episodes(log, row):
                found.append(_Jump(log.names.each(array, [at])[0], row, above, below))
    if found:
        names, left = [jump.name for jump in found[:NAMED_COLUMNS]], len(found) - NAMED_COLUMNS
        sizes = [
            f"{jump.above:.3g} above and {jump.below:.3g} below" for jump in found[:NAMED_COLUMNS]
        ]
        yield Finding(
            "unit_change", ", ".join(names) + (f" and {left} more" if left > 0 else ""),
            len(found),
            tuple(log.in_file(np.array([jump.row for jump in found[:FIRST_ROWS]])).tolist()),
            f"changes its scale midway: the median size is {'; '.join(sizes)} the jump",
            "If the unit changed, convert one part to the unit of the other. (scale, under "
            "[columns] of the TOML, converts a whole column only.)",
        )  # fmt: skip


def _jump(size: np.ndarray) -> tuple[int, int, float, float] | None:
    """Return the places around a jump in the scale of a column, and both medians; None if none.

    The jump is the best split of the log sizes into two parts by least squares. Zeros have no scale
    and are left out.
    """
    used = np.flatnonzero(size)
    least = max(SCALE_JUMP_ROWS, int(SCALE_JUMP_PART * used.size))
    if used.size < 2 * least:
        return None
    scale = np.log10(size[used])
    first = np.arange(least, used.size - least + 1)
    centred = np.cumsum(scale - scale.mean())[first - 1]
    split = int(first[np.argmax(centred**2 / (first * (used.size - first)))])
    above, below = scale[:split], scale[split:]
    middles = np.median(above), np.median(below)
    jump = abs(middles[1] - middles[0])
    smaller, larger = (above, below) if middles[0] < middles[1] else (below, above)
    next_to = np.median(above[-SCALE_JUMP_WINDOW:]), np.median(below[:SCALE_JUMP_WINDOW])
    drift = max(abs(near - middle) for near, middle in zip(next_to, middles, strict=True))
    if (
        jump <= np.log10(SCALE_JUMP)
        or abs(next_to[1] - next_to[0]) <= np.log10(SCALE_JUMP)
        or drift > SCALE_JUMP_DRIFT * jump
        # Nearly all values of one part are smaller than nearly all of the other.
        or np.quantile(smaller, 0.95) >= np.quantile(larger, 0.05)
        or min(np.unique(above).size, np.unique(below).size) <= SCALE_JUMP_VALUES
    ):
        return None
    return int(used[split - 1]), int(used[split]), float(10 ** middles[0]), float(10 ** middles[1])


def _not_between_few_episodes(log: CheckedLog, row: int) -> bool:
    """Return whether a jump lies inside an episode, or between parts of several episodes."""
    ends = log.breaks + 1
    above = int(np.searchsorted(ends, row, side="right"))
    start = ends[above - 1] if above else 0
    inside = min(row - start, ends[above] - row) >= SCALE_JUMP_WINDOW
    return inside or min(above, ends.size - above) >= SCALE_JUMP_EPISODES
