"""The episodes of a log that a run has not learned from.

Rows are compared by hashes of their observation, action and reward. An episode counts as seen if at
least `SHARED` of its rows are rows of the training log. Rows that the training log has several
times, as logs of a few discrete states do, identify nothing and do not count.

The run's own held-out episodes were not learned from, whatever some of their rows are equal to.
Only a copy of a whole episode counts as seen there.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from fat2thin import data
from fat2thin.data import long_work
from fat2thin.data.dataset import Dataset
from fat2thin.data.operations import episode_lengths, keep_episodes, learned_and_held_out
from fat2thin.data.row_arrays import blocks
from fat2thin.evaluation.held_out import FinishedRun, check_fits
from fat2thin.terminal_text import counted

SHARED = 0.1
_MULTIPLIER = 0x9E3779B97F4A7C15


class Unseen(NamedTuple):
    """The episodes of a log that no run has learned from."""

    dataset: Dataset
    seen_episodes: int
    """Episodes that were left out, because a run learned from them."""
    notes: tuple[str, ...]
    unseen: bool
    """Whether nothing was learned or chosen with these episodes, as far as the folders tell."""


class TrainingLog(NamedTuple):
    """The log of a run, in the two parts that the run made of it."""

    whole: Dataset
    learned: Dataset
    held_out: Dataset | None


def training_parts(run: FinishedRun) -> TrainingLog | None:
    """Load the log of a run; None if it is missing or has changed.

    All seeds must have learned from the same log.
    """
    spec = run.spec
    seed = spec.seeds[0] if data.reader(spec.dataset).one_a_seed else 0
    whole = getattr(run, "data", None)
    try:
        whole = data.load(spec.dataset, seed) if whole is None else whole
    except (OSError, ValueError):
        return None
    if run.about.get("sha256") != [whole.sha256]:
        return None
    return TrainingLog(whole, *learned_and_held_out(whole, spec.holdout, seed))


def unseen_episodes(runs: Sequence[FinishedRun], log: Dataset | None) -> Unseen:
    """Return the episodes of a log, or of the runs' held-out part, that no run has learned from."""
    parts = [training_parts(run) for run in runs]
    if log is None:
        log = _held_out(runs[0], parts[0])
    hashed = [log, *(part.learned for part in parts if part is not None)]
    long_work.expect(sum(one.observation.size for one in hashed))
    for run in runs:
        check_fits(run, log)
    seen = np.zeros(log.episode_start.size, bool)
    notes, clean = [], True
    for run, part in zip(runs, parts, strict=True):
        name = run.spec.dataset
        if part is None:
            clean = False
            notes.append(
                f"the training log {name} is missing or has changed, so whether the policy has "
                "seen these episodes is not known"
            )
            continue
        own = part.held_out is not None and part.held_out.sha256 == log.sha256
        copied = shared_episodes(log, part.learned, 1.0 if own else SHARED)
        seen |= copied & (episode_lengths(log) > 1) if own else copied
        chosen_by = part.held_out if run.spec.select == "offline" else None
        if chosen_by is not None and shared_episodes(log, chosen_by).any():
            clean = False
            notes.append(
                "held-out episodes chose the step of the policy (--select offline), so its "
                "estimate may be too high"
            )
    count = int(seen.sum())
    if seen.all():
        raise ValueError(
            f"the policy has learned from every episode of {log.name}. Give a log that it has not "
            "seen, or train with a held-out part: `fat2thin train ... --holdout 0.2`"
        )
    if count:
        first = int(log.episode_start[np.flatnonzero(seen)[0]])
        notes.append(
            f"{counted(count, 'episode')} of {log.name} left out, because the policy learned from "
            f"their rows (the first in row {first})"
        )
        log = keep_episodes(log, np.flatnonzero(~seen), "unseen")
    return Unseen(log, count, tuple(dict.fromkeys(notes)), clean)


def _held_out(run: FinishedRun, part: TrainingLog | None) -> Dataset:
    name = run.spec.dataset
    if part is None:
        raise ValueError(
            f"the training log {name} is missing or has changed, so its held-out episodes are not "
            "known: give a log that the policy has not seen"
        )
    if part.held_out is None:
        raise ValueError(
            "the run has no held-out episodes: train with --holdout 0.2, or give a log that the "
            "policy has not seen"
        )
    return part.held_out


def shared_episodes(log: Dataset, training: Dataset, share: float = SHARED) -> ndarray:
    """Return of which episodes a share of the rows are those of a training log."""
    hashes, times = np.unique(row_hashes(training), return_counts=True)
    shared = np.isin(row_hashes(log), hashes[times == 1])
    counts = np.add.reduceat(shared.astype(float), log.episode_start)
    return counts >= np.maximum(share * episode_lengths(log), 1.0)


def row_hashes(log: Dataset) -> ndarray:
    """Return one number per row, equal for equal observations, actions and rewards."""
    found = []
    for rows in blocks(log.observation):
        arrays: list[Any] = [log.observation[rows], log.action[rows], log.reward[rows]]
        columns = np.concatenate([np.asarray(x).reshape(len(x), -1) for x in arrays], axis=1)
        bits = columns.astype("<f4").view("<u4").astype(np.uint64)
        mixed = np.zeros(len(bits), np.uint64)
        with np.errstate(over="ignore"):
            for column in bits.T:
                mixed = (mixed ^ column) * np.uint64(_MULTIPLIER)
                mixed ^= mixed >> np.uint64(29)
        found.append(mixed)
    return np.concatenate(found)
