"""How a claim of the paper is judged from run folders, whichever way the verdict falls.

Claims have the numbers of the project's specification. Each is checked with the mathematics
corrected and, where the authors' code differs, also as that computes it ("published"): there by the
proposal's returns, which is what the published curves show.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fat2thin.evaluation.statistics import Interval
from fat2thin.paper.presets import Method, method
from fat2thin.paper.studies import TIMES
from fat2thin.runs import files
from fat2thin.training import NoRunError, Run, load

HOLDS, FAILS, ONLY_PUBLISHED = "holds", "does not hold", "holds only in published mode"
UNDECIDED, NOT_RUN = "undecided", "not run"
_PUBLISHED = (
    "fttpo", "fttpo-spot", "fttpo-sg", "tawac-ht", "xql", "spot", "rar", "sparse_reverse_kl",
)  # fmt: skip
"""Algorithms of which the authors' code has a form of its own."""


class Evidence(NamedTuple):
    """What was measured about a claim."""

    holds: bool | None
    """None where the interval contains the threshold."""
    effect: Interval
    meaning: str
    """What the effect is, and what would make the claim hold."""
    seeds: int = 0


class Mode(NamedTuple):
    """The mathematics corrected, or as published."""

    published: bool

    def method(self, algorithm: str) -> Method:
        """The algorithm; in published mode the authors' form of it, where there is one."""
        return method(algorithm, published=self.published and algorithm in _PUBLISHED)

    def policy(self, run: Run) -> str:
        """The policy whose returns count."""
        has_proposal = "proposal_sampled" in run.evaluations.policies
        return "proposal_sampled" if self.published and has_proposal else "actor_sampled"


CORRECTED, AS_PUBLISHED = Mode(False), Mode(True)


class Reproduced:
    """The runs and measurements of a reproduction, read when they are asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._run = functools.cache(self._load)

    def curve(self, dataset: str, which: Method) -> Run | None:
        """The run of a learning curve; None where it is missing or not finished."""
        return self._run(f"curves/{dataset}/{which.folder}")

    def evolution(self, dataset: str, which: Method) -> Run | None:
        """The run of an evolution of policies."""
        return self._run(f"evolution/{dataset}/{which.folder}")

    def times(self) -> dict[str, Any] | None:
        """What `fat2thin reproduce time` measured."""
        place = self.root / TIMES
        return files.read_json(place) if place.exists() else None

    def _load(self, name: str) -> Run | None:
        try:
            return load(self.root / name)
        except (NoRunError, FileNotFoundError):
            return None


Check = Callable[[Reproduced, Mode], Evidence | None]
"""Returns None where runs that it needs are missing."""


class Claim(NamedTuple):
    """A statement of the paper, and how it is checked."""

    name: str
    statement: str
    preset: str
    """What makes the runs: `fat2thin reproduce PRESET`; empty where none are needed."""
    check: Check
    both_modes: bool = True


class Verdict(NamedTuple):
    """A claim with its verdict."""

    claim: Claim
    verdict: str
    corrected: Evidence | None
    published: Evidence | None
    why: str = ""
    """Why it could not be judged."""


def judge(claim: Claim, kept: Reproduced) -> Verdict:
    """Judge one claim; a run that cannot be read leaves only this claim open."""
    try:
        corrected = claim.check(kept, CORRECTED)
        published = claim.check(kept, AS_PUBLISHED) if claim.both_modes else None
    except (ValueError, OSError) as error:
        return Verdict(claim, NOT_RUN, None, None, str(error))
    return Verdict(claim, _verdict(corrected, published), corrected, published)


def _verdict(corrected: Evidence | None, published: Evidence | None) -> str:
    if corrected is None:
        return NOT_RUN
    if corrected.holds is None:
        return UNDECIDED
    if corrected.holds:
        return HOLDS
    return ONLY_PUBLISHED if published is not None and published.holds else FAILS


def above(effects: Sequence[Interval], limit: float = 0.0) -> bool | None:
    """Whether all effects are above a limit: False if one lies below it, None if one is open."""
    if any(effect.high < limit for effect in effects):
        return False
    return True if all(effect.low > limit for effect in effects) else None


def weakest(effects: Sequence[Interval]) -> Interval:
    """The effect that a claim about all of them depends on."""
    return min(effects, key=lambda effect: effect.value)


def number(value: float | int) -> Interval:
    """A number that was computed and not estimated."""
    return Interval(float(value), float(value), float(value))
