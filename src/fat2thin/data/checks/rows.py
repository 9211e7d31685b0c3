"""Checks of rows and episodes: order, repeated rows, ends and lengths."""

from collections.abc import Iterator, Sequence

import numpy as np

from fat2thin.data.checks.findings import Finding, in_rows
from fat2thin.data.checks.log import CheckedLog
from fat2thin.data.row_arrays import FIRST_ROWS, FoundRows, Rows, blocks, find_places

DUPLICATE_SHARE = 0.01
"""Share of repeated rows that suggests a file joined to itself: none repeat by chance."""
MOST_COMPARED = 2**23
"""Rows among which repeated ones are looked for, about: 200 MB. Of longer logs it is a sample."""
CHAIN_TOLERANCE = 1e-4
"""Allowed difference of a next observation from the row below, as a share of the column's range:
rounding."""
FEWEST_EQUAL = 10
"""Episodes that end after the same number of rows from which on that is no coincidence."""
SHORT_EPISODE_SHARE = 0.01
"""Share of the median length below which an episode is very short: an interrupted recording."""


def chain(log: CheckedLog) -> Iterator[Finding]:
    """Yield a warning about next observations that are not those of the row below."""
    if "next_observation" not in log.arrays:
        return
    observation, following = log.arrays["observation"], log.arrays["next_observation"]
    seen = log.extremes["observation"]
    allowed = CHAIN_TOLERANCE * (seen.high - seen.low)

    def broken(rows: slice) -> np.ndarray:
        below = observation[rows.start + 1 : rows.stop + 1]
        far = np.zeros((rows.stop - rows.start, *allowed.shape), bool)
        far[: len(below)] = (
            np.abs(following[rows][: len(below)].astype(np.float64) - below) > allowed
        )
        return far & log.follows(rows)[:, None]

    yield from in_rows(
        "broken_chain", "next_observation", find_places(observation, broken),
        "is not the observation of the row below in {count} of "
        f"{log.rows - log.breaks.size} steps inside episodes",
        "Rows may be out of order, steps missing, or episodes joined without a mark; sort the "
        "rows, or mark where an episode is cut.", log.in_file,
    )  # fmt: skip


def duplicates(log: CheckedLog) -> Iterator[Finding]:
    """Yield warnings about rows that repeat the row above, and about many other repeated rows."""
    above = find_places(log.arrays["observation"], lambda rows: _repeats_above(log, rows))
    count = above.number + log.copies.size
    if count:
        first = np.union1d(log.in_file(above.first), log.copies)[:FIRST_ROWS]
        yield Finding(
            "repeats_above", "observation, action and reward", count, tuple(first.tolist()),
            f"repeat those of the row above in {count} of {log.rows + log.copies.size} rows",
            "Drop the rows that were entered twice: they count twice in every mean, and as steps "
            "on which nothing changed. Rows of different times may be equal if values are carried "
            "forward.",
        )  # fmt: skip
    one_in = -(-log.rows // MOST_COMPARED)
    repeated, compared = repeated_rows(tuple(log.arrays.values()), one_in)
    if above.number:
        repeated = repeated[~_among(log, repeated)]
    share = repeated.size / max(compared, 1)
    if share >= DUPLICATE_SHARE:
        about = "" if one_in == 1 else "about "
        sample = "" if one_in == 1 else f" (of a sample of {compared:,})"
        count = round(share * log.rows)
        found = FoundRows(count, count, np.zeros(0, int), repeated[:FIRST_ROWS])
        yield from in_rows(
            "duplicates", "all columns", found,
            f"repeat an earlier row in {about}{100 * share:.3g} % of the rows{sample}",
            "Check whether a file was joined to itself, and drop the copies: they count twice in "
            "every mean.", log.in_file,
        )  # fmt: skip


def _among(log: CheckedLog, numbers: np.ndarray) -> np.ndarray:
    """Return whether each of these rows, in increasing order, repeats the row above."""
    found = np.zeros(numbers.size, bool)
    for rows in blocks(log.arrays["observation"]):
        first, last = np.searchsorted(numbers, (rows.start, rows.stop))
        if first < last:
            found[first:last] = _repeats_above(log, rows)[numbers[first:last] - rows.start]
    return found


def _repeats_above(log: CheckedLog, rows: slice) -> np.ndarray:
    """Return a mask of the rows equal to the row above in their episode, compared in float32.

    Next observations taken from the row below are not compared: those of a row and of its copy
    differ. Where they were logged, a step on which nothing changed is not a copy.
    """
    arrays = dict(log.arrays)
    following = arrays.pop("next_observation", None)
    first = max(rows.start - 1, 0)
    repeats = np.ones(rows.stop - first, bool)
    repeats[0] = False
    repeats[1:] = log.follows(slice(first, rows.stop - 1))
    if following is not None and not log.shifted:
        arrays["next_observation"] = following
        repeats &= _differ(following[first : rows.stop], arrays["observation"][first : rows.stop])
    for array in arrays.values():
        if not repeats.any():
            break
        part = array[first : rows.stop]
        repeats[1:] &= ~_differ(part[1:], part[:-1])
    return repeats[rows.start - first :]


def _differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return a mask of the rows that differ in float32."""
    cells = one.astype(np.float32, copy=False) != other.astype(np.float32, copy=False)
    return cells.reshape(len(cells), -1).any(axis=1)


def no_end(log: CheckedLog) -> Iterator[Finding]:
    """Yield a warning about a log without a true end, unless a time limit explains it."""
    # A time limit gives all episodes the same length, except a last one that was interrupted.
    *others, last = log.lengths.tolist()
    time_limit = len({*others}) == 1 and last <= others[0]
    if not log.ends and not time_limit:
        episodes = log.lengths.size
        yield Finding(
            "no_end", "terminal", episodes, (),
            "is never true, and no time limit explains where "
            + ("the only episode stops" if episodes == 1 else f"{episodes} episodes stop"),
            "Mark the rows where the task truly ended; otherwise values are learned as if episodes "
            "continued after their end. If the task has no end, ignore this warning.",
        )  # fmt: skip


def ends_by_time(log: CheckedLog) -> Iterator[Finding]:
    """Yield a warning about true ends that all come after the same number of rows.

    Values take an end as a result of the state and the action, here with the same chance in every
    row (Pardo et al. 2018). A column that tells the last row from the others makes it one.
    """
    episodes, rows = log.lengths.size, int(log.lengths.max())
    alike = log.ends == episodes >= FEWEST_EQUAL and 1 < rows == log.lengths.min()
    if not alike or _last_rows_show(log):
        return
    yield Finding(
        "ends_by_time", "terminal", episodes, (),
        f"is true after exactly {rows} rows in all {episodes} episodes",
        "If recording just stops there, mark the last rows as cut, not as ends. If the task truly "
        "ends then, add the time to the observation: without it, values expect an end in every "
        "row.",
    )  # fmt: skip


def _last_rows_show(log: CheckedLog) -> bool:
    """Return whether a column has values in the last rows of episodes that no other row has."""
    observation = log.arrays["observation"]
    ends = {place: [np.inf, -np.inf] for place in (False, True)}
    for rows in blocks(observation):
        part, follows = np.asarray(observation[rows]), log.follows(rows)
        for place, mask in ((False, follows), (True, ~follows)):
            low, high = ends[place]
            ends[place] = [
                np.minimum(low, part[mask].min(axis=0, initial=np.inf)),
                np.maximum(high, part[mask].max(axis=0, initial=-np.inf)),
            ]
    (low, high), (last_low, last_high) = ends[False], ends[True]
    return bool(np.any((last_low > high) | (last_high < low)))


def one_episode(log: CheckedLog) -> Iterator[Finding]:
    """Yield a warning about a log with a single episode."""
    if log.lengths.size == 1:
        yield Finding(
            "one_episode", "log", 1, (), "has only one episode",
            "Nothing can be held out, and no interval over episodes can be given. Check the "
            "column that labels episodes, or mark where they end.",
        )  # fmt: skip


def short_episodes(log: CheckedLog) -> Iterator[Finding]:
    """Yield a warning about episodes much shorter than the others."""
    median = float(np.median(log.lengths))
    short = log.lengths <= max(1.0, SHORT_EPISODE_SHARE * median)
    if short.any():
        count, first = int(short.sum()), log.starts[short][:FIRST_ROWS]
        longest = int(log.lengths[short].max())
        yield Finding(
            "short_episodes", "episodes", count, tuple(first.tolist()),
            f"are very short in {count} of {short.size} cases: at most {longest} "
            f"row{'s' * (longest != 1)}, the median is {median:g}",
            "Check whether recordings were interrupted or episodes marked wrongly. If the task has "
            "one step, ignore this warning.",
        )  # fmt: skip


def repeated_rows(arrays: Sequence[Rows], one_in: int = 1) -> tuple[np.ndarray, int]:
    """Return the numbers of the rows that repeat an earlier row, and how many were compared.

    The arrays must be finite; they are compared in float32. Rows with equal 64-bit hashes are
    compared cell by cell. Of one hash in `one_in`, all rows are compared, and no other ones.
    """
    row, hashes = _hashes(arrays, one_in)
    repeated, left = [np.zeros(0, np.int64)], np.arange(row.size)
    while left.size:
        order = left[np.argsort(hashes[left], stable=True)]
        begins = np.append(True, np.diff(hashes[order]) != 0)
        first = order[begins][np.cumsum(begins) - 1]
        later, first = order[~begins], first[~begins]
        equal = _equal(arrays, row[later], row[first])
        repeated.append(row[later[equal]])
        left = np.sort(later[~equal])
    return np.sort(np.concatenate(repeated)), row.size


def _hashes(arrays: Sequence[Rows], one_in: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of rows and their 64-bit hashes, those of one hash in `one_in`.

    A hash is the sum of the row's 32-bit words times random odd numbers.
    """
    # Collisions only cost time, so any seed will do.
    draw = np.random.default_rng(0)
    widths = [array.size // len(array) for array in arrays]
    factors = [draw.integers(2**63, size=width, dtype=np.uint64) * 2 + 1 for width in widths]
    found, most = [], np.uint64((2**64 - 1) // one_in)
    for rows in blocks(arrays[0]):
        hashes = np.zeros(rows.stop - rows.start, np.uint64)
        for array, factor in zip(arrays, factors, strict=True):
            # Adding 0 turns −0 into 0: equal numbers with different bytes.
            table = array[rows].reshape(len(hashes), -1).astype(np.float32) + np.float32(0)
            hashes += table.view(np.uint32).astype(np.uint64) @ factor
        chosen = np.flatnonzero(hashes <= most)
        found.append((chosen + rows.start, hashes[chosen]))
    numbers, kept = zip(*found, strict=True)
    return np.concatenate(numbers), np.concatenate(kept)


def _equal(arrays: Sequence[Rows], row: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return, per pair of row numbers, whether the two rows are equal."""
    equal = np.ones(len(row), bool)
    for array in arrays:
        width = array.size // len(array)
        for pairs in blocks(np.broadcast_to(row[:, None], (len(row), width))):
            equal[pairs] &= ~_differ(array[row[pairs]], array[other[pairs]])
    return equal
