"""All claims in order, and their verdicts as a table, a page and data."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fat2thin.paper import claims_learning, claims_policies
from fat2thin.paper.claims import NOT_RUN, Evidence, Reproduced, Verdict, judge
from fat2thin.tables import Table, markdown_rows

CLAIMS = sorted(
    claims_learning.CLAIMS + claims_policies.CLAIMS, key=lambda claim: int(claim.name[1:])
)
_HEAD = """\
# What the paper claims, and what was measured

This page is made by `fat2thin claims {root} --markdown docs/results/claims.md` from run
folders; nobody writes in it. Each claim is looked at with the mathematics corrected, and where the
authors' code differs also as that computes it: there FtTPO is judged by its proposal, which is what
the published curves show. Brackets are 95 % bootstrap intervals over seeds. *Undecided* means that
the interval leaves it open, and *not run* that runs are missing below that folder. Trained on
{devices}.

{summary}.

"""


def verdicts(root: str | Path) -> list[Verdict]:
    """The verdict of every claim, from the runs below a folder."""
    kept = Reproduced(Path(root))
    return [judge(claim, kept) for claim in CLAIMS]


def table(found: Sequence[Verdict]) -> Table:
    """One row per claim, for a terminal."""
    rows = tuple(
        {"claim": one.claim.name, **_effects(one), "statement": one.claim.statement}
        for one in found
    )
    return Table("claims of the paper", rows, (_summary(found),))


def document(found: Sequence[Verdict], root: str, options: str, devices: Sequence[str]) -> str:
    """The page of all verdicts, in Markdown; `options` are those of the reproduction."""
    trained_on = " and ".join(devices) or "nothing yet"
    head = _HEAD.format(root=root, devices=trained_on, summary=_summary(found))
    rows = [
        {
            "claim": f"**{one.claim.name}** {one.claim.statement}",
            **_effects(one),
            "what the effect is, and what is wanted": data["meaning"] or "–",
            "seeds": data["seeds"] or math.nan,
            "runs": f"`{data['command']}`",
        }
        for one in found
        for data in [as_row(one, options)]
    ]
    return head + "\n".join([*markdown_rows(rows), ""])


def to_json(verdicts: Sequence[Verdict], options: str) -> str:
    """The verdicts as a JSON file."""
    return json.dumps([as_row(verdict, options) for verdict in verdicts], indent=1)


def as_row(verdict: Verdict, options: str) -> dict[str, Any]:
    """A verdict as plain values, with both effects and the command that makes its runs."""
    claim, shown = verdict.claim, verdict.corrected
    command = f"reproduce {claim.preset} {options}" if claim.preset else "claims"
    ends = shown.effect if shown else (math.nan,) * 3
    effect, low, high = (round(end, 6) if math.isfinite(end) else None for end in ends)
    return {
        "claim": claim.name,
        "statement": claim.statement,
        "verdict": verdict.verdict,
        "effect": effect,
        "low": low,
        "high": high,
        "meaning": shown.meaning if shown else verdict.why,
        "seeds": shown.seeds if shown else 0,
        "published_effect": _effects(verdict)["as published"],
        "command": f"fat2thin {command}",
    }


def _effects(one: Verdict) -> dict[str, str]:
    """The verdict and both effects in words; a missing one is not run, or has no such form."""
    missing = NOT_RUN if one.claim.both_modes else "–"
    return {
        "verdict": one.verdict,
        "effect": effect_words(one.corrected) if one.corrected else "–",
        "as published": effect_words(one.published) if one.published else missing,
    }


def effect_words(found: Evidence) -> str:
    """ "1.23 [0.80, 1.61]", or the number alone where it was computed."""
    value, low, high = found.effect
    if math.isnan(value):
        return "–"
    if low == high or math.isnan(low):
        return f"{value:.3g}".replace("-", "−")
    return f"{value:.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")


def _summary(found: Sequence[Verdict]) -> str:
    counts = Counter(one.verdict for one in found)
    return ", ".join(f"{verdict}: {count}" for verdict, count in counts.most_common())
