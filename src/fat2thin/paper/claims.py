"""What the paper claims, each with a verdict from run folders, whichever way it falls.

The claims are numbered as in the project's specification. Each is looked at twice where that has a
meaning: with the mathematics corrected, and as the authors' code computes it ("published"), there
by the proposal's returns, since those are what the published curves show.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fat2thin.evaluation.statistics import Interval
from fat2thin.paper import timing
from fat2thin.paper.presets import Method, method
from fat2thin.runs import files
from fat2thin.training import NoRunError, Run, load

HOLDS, FAILS, ONLY_PUBLISHED = "holds", "does not hold", "holds only in published mode"
UNDECIDED, NOT_RUN = "undecided", "not run"
ASKED = "reproduction.json"
"""File in which a reproduction keeps what it was asked for."""


class Finding(NamedTuple):
    """What was measured about a claim."""

    holds: bool | None
    """None where the interval holds the threshold, and so leaves it open."""
    effect: Interval
    meaning: str
    """What the effect is, and what would make the claim hold."""
    seeds: int = 0


class Mode(NamedTuple):
    """One of the two ways in which the mathematics is looked at."""

    published: bool

    def method(self, algorithm: str) -> Method:
        """The authors' form of an algorithm in published mode, where they have one of their own."""
        own = self.published and algorithm in _PUBLISHED
        return method(algorithm, published=own)

    def policy(self, run: Run) -> str:
        """Whose returns count: the actor's, or those that the published curves show."""
        has_proposal = "proposal_sampled" in run.evaluations.policies
        return "proposal_sampled" if self.published and has_proposal else "actor_sampled"


_PUBLISHED = (
    "fttpo", "fttpo-spot", "fttpo-sg", "tawac-ht", "xql", "spot", "rar", "sparse_reverse_kl",
)  # fmt: skip
CORRECTED, AS_PUBLISHED = Mode(False), Mode(True)


class Kept:
    """The runs and measurements of a reproduction, read when they are asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._runs: dict[str, Run | None] = {}

    def curve(self, dataset: str, which: Method) -> Run | None:
        """The run of a learning curve, None where it is not there or not finished."""
        return self._run(f"curves/{dataset}/{which.folder}")

    def evolution(self, dataset: str, which: Method) -> Run | None:
        """The run of an evolution of policies."""
        return self._run(f"evolution/{dataset}/{which.folder}")

    def times(self) -> dict[str, Any] | None:
        """What `fat2thin reproduce time` measured."""
        place = self.root / timing.RESULT
        return files.read_json(place) if place.exists() else None

    def _run(self, name: str) -> Run | None:
        if name not in self._runs:
            try:
                self._runs[name] = load(self.root / name)
            except (NoRunError, FileNotFoundError):
                self._runs[name] = None
        return self._runs[name]


Check = Callable[[Kept, Mode], Finding | None]


class Claim(NamedTuple):
    """A statement of the paper, and how it is checked."""

    name: str
    statement: str
    preset: str
    """What makes the runs: `fat2thin reproduce PRESET`; empty where none are needed."""
    check: Check
    both_modes: bool = True


class Verdict(NamedTuple):
    """A claim and what became of it."""

    claim: Claim
    verdict: str
    corrected: Finding | None
    published: Finding | None
    why: str = ""
    """Why it was not judged, where something was in the way."""


def judge(claim: Claim, kept: Kept) -> Verdict:
    """The verdict of one claim; what cannot be read leaves that claim open and no other."""
    try:
        corrected = claim.check(kept, CORRECTED)
        published = claim.check(kept, AS_PUBLISHED) if claim.both_modes else None
    except (ValueError, OSError) as error:
        return Verdict(claim, NOT_RUN, None, None, str(error))
    return Verdict(claim, _verdict(corrected, published), corrected, published)


def _verdict(corrected: Finding | None, published: Finding | None) -> str:
    if corrected is None:
        return NOT_RUN
    if corrected.holds is None:
        return UNDECIDED
    if corrected.holds:
        return HOLDS
    return ONLY_PUBLISHED if published is not None and published.holds else FAILS


def judge_all(root: str | Path, claims: Sequence[Claim]) -> list[Verdict]:
    """Every claim, from the runs below a folder."""
    kept = Kept(Path(root))
    return [judge(claim, kept) for claim in claims]


def asked(root: Path) -> str:
    """The options of the reproduction that a folder holds, as a command line says them."""
    place = root / ASKED
    options = files.read_json(place) if place.exists() else {"scale": "small"}
    return " ".join(f"--{name} {value}" for name, value in options.items())


def command(claim: Claim, options: str) -> str:
    """What makes the runs that a verdict rests on."""
    return f"fat2thin reproduce {claim.preset} {options}" if claim.preset else "fat2thin claims"


def above(effects: Sequence[Interval]) -> bool | None:
    """Whether all effects are above 0: no as soon as one interval lies below it."""
    if any(effect.high < 0.0 for effect in effects):
        return False
    return True if all(effect.low > 0.0 for effect in effects) else None


def weakest(effects: Sequence[Interval]) -> Interval:
    """The effect that a claim about all of them hangs on."""
    return min(effects, key=lambda effect: effect.value)


def number(value: float | int) -> Interval:
    """A number that was computed and not estimated."""
    return Interval(float(value), float(value), float(value))


def to_json(verdicts: Sequence[Verdict], options: str) -> str:
    """The verdicts as a file keeps them."""
    return json.dumps([as_row(verdict, options) for verdict in verdicts], indent=1)


def as_row(verdict: Verdict, options: str) -> dict[str, Any]:
    """A verdict as plain values, both findings in it."""
    shown = verdict.corrected
    return {
        "claim": verdict.claim.name,
        "statement": verdict.claim.statement,
        "verdict": verdict.verdict,
        "effect": None if shown is None else _plain(shown.effect.value),
        "low": None if shown is None else _plain(shown.effect.low),
        "high": None if shown is None else _plain(shown.effect.high),
        "meaning": verdict.why if shown is None else shown.meaning,
        "seeds": 0 if shown is None else shown.seeds,
        "published_effect": published_words(verdict),
        "command": command(verdict.claim, options),
    }


def _plain(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def published_words(verdict: Verdict) -> str:
    """The effect as published, or that it was not run, or that there is no such form."""
    if verdict.published is not None:
        return effect_words(verdict.published)
    return NOT_RUN if verdict.claim.both_modes else "–"


def effect_words(finding: Finding) -> str:
    """ "1.23 [0.80, 1.61]", or the number alone where it was computed."""
    value, low, high = finding.effect
    if math.isnan(value):
        return "–"
    if low == high or math.isnan(low):
        return f"{value:.3g}".replace("-", "−")
    return f"{value:.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
