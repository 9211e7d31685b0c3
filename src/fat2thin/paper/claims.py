"""Verdicts on the claims of the paper, from run folders.

Claims have the numbers of the project's specification. Each is checked with the corrected
mathematics and, where the authors' code differs, also with their form ("published"), which is
evaluated by the proposal's returns, as in the published curves.
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
"""Algorithms for which the authors' code has a form of its own."""


class Evidence(NamedTuple):
    """The measurement behind a verdict."""

    holds: bool | None
    """Whether the claim holds; None if the interval contains the threshold."""
    effect: Interval
    """The measured effect with its interval."""
    meaning: str
    """What the effect is, and the criterion for the claim to hold."""
    seeds: int = 0
    """Number of seeds measured."""


class Mode(NamedTuple):
    """Whether a claim is checked with the corrected mathematics or as published."""

    published: bool
    """True for the form of the authors' code."""

    def method(self, algorithm: str) -> Method:
        """Return the algorithm as a method; in published mode the authors' form if there is one."""
        return method(algorithm, published=self.published and algorithm in _PUBLISHED)

    def policy(self, run: Run) -> str:
        """Return the name of the policy whose returns count."""
        has_proposal = "proposal_sampled" in run.evaluations.policies
        return "proposal_sampled" if self.published and has_proposal else "actor_sampled"


CORRECTED, AS_PUBLISHED = Mode(False), Mode(True)


class Reproduced:
    """The runs and measurements of a reproduction, read on demand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._run = functools.cache(self._load)

    def curve(self, dataset: str, which: Method) -> Run | None:
        """Return the run of a learning curve; None if it is missing or unfinished."""
        return self._run(f"curves/{dataset}/{which.folder}")

    def evolution(self, dataset: str, which: Method) -> Run | None:
        """Return the run of an evolution of policies; None if it is missing or unfinished."""
        return self._run(f"evolution/{dataset}/{which.folder}")

    def times(self) -> dict[str, Any] | None:
        """Return the results of `fat2thin reproduce time`; None if it was not run."""
        place = self.root / TIMES
        return files.read_json(place) if place.exists() else None

    def _load(self, name: str) -> Run | None:
        try:
            return load(self.root / name)
        except (NoRunError, FileNotFoundError):
            return None


Check = Callable[[Reproduced, Mode], Evidence | None]
"""Checks a claim; returns None if runs that it needs are missing."""


class Claim(NamedTuple):
    """A statement of the paper, and how it is checked."""

    name: str
    """Number of the claim, for example "C1"."""
    statement: str
    """The claim in words."""
    preset: str
    """Preset of `fat2thin reproduce` that computes the runs; empty if none are needed."""
    check: Check
    """Function that measures the claim."""
    both_modes: bool = True
    """Whether the claim is also checked as published."""


class Verdict(NamedTuple):
    """A claim with its verdict."""

    claim: Claim
    """The claim."""
    verdict: str
    """One of `HOLDS`, `FAILS`, `ONLY_PUBLISHED`, `UNDECIDED` and `NOT_RUN`."""
    corrected: Evidence | None
    """Evidence with the corrected mathematics."""
    published: Evidence | None
    """Evidence with the form of the authors' code."""
    why: str = ""
    """Why the claim could not be checked."""


def judge(claim: Claim, kept: Reproduced) -> Verdict:
    """Return the verdict on a claim; an unreadable run makes it "not run"."""
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
    """Return whether all effects are above a limit; None if an interval contains it."""
    if any(effect.high < limit for effect in effects):
        return False
    return True if all(effect.low > limit for effect in effects) else None


def weakest(effects: Sequence[Interval]) -> Interval:
    """Return the smallest effect, on which a claim about all of them depends."""
    return min(effects, key=lambda effect: effect.value)


def number(value: float | int) -> Interval:
    """Return an exact number as an interval without width."""
    return Interval(float(value), float(value), float(value))
