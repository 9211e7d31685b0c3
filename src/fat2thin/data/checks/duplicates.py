"""Rows that are there more than once: found by a hash of 64 bits, confirmed by their numbers."""

from collections.abc import Sequence

import numpy as np

from fat2thin.data.blocks import blocks

_SEED = 0
"""Rows of different numbers and the same hash cost time, not truth, so any will do."""


def repeated_rows(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Shape (rows,), bool: in float32 the row equals one above it, in all of these finite arrays.

    Rows of one hash are compared with the first of them; those that differ from it go round again
    without it, so that the answer is exact.
    """
    tables = [array.reshape(len(array), -1) for array in arrays]
    hashes = _hashes(tables)
    repeated = np.zeros(len(hashes), bool)
    left = np.arange(len(hashes))
    while left.size:
        order = left[np.argsort(hashes[left], stable=True)]
        begins = np.append(True, np.diff(hashes[order]) != 0)
        first = order[begins][np.cumsum(begins) - 1]
        row, first = order[~begins], first[~begins]
        equal = _equal(tables, row, first)
        repeated[row[equal]] = True
        left = np.sort(row[~equal])
    return repeated


def _hashes(tables: list[np.ndarray]) -> np.ndarray:
    """A number of 64 bits for each row: its own words of 32 bits times random odd numbers."""
    draw = np.random.default_rng(_SEED)
    hashes = np.zeros(len(tables[0]), np.uint64)
    for table in tables:
        factors = draw.integers(2**63, size=table.shape[1], dtype=np.uint64) * 2 + 1
        for rows in blocks(table):
            # The sum turns −0 into 0: equal numbers, different bytes.
            words = (table[rows].astype(np.float32) + 0.0).view(np.uint32)
            hashes[rows] += words.astype(np.uint64) @ factors
    return hashes


def _equal(tables: list[np.ndarray], row: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether the rows of these two numbers are equal, pair by pair."""
    equal = np.ones(len(row), bool)
    for table in tables:
        for pairs in blocks(np.broadcast_to(row[:, None], (len(row), table.shape[1]))):
            one, two = (table[numbers[pairs]].astype(np.float32) for numbers in (row, other))
            equal[pairs] &= (one == two).all(axis=1)
    return equal
