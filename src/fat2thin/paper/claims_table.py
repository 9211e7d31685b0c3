"""All claims in order, and the table of their verdicts."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fat2thin.paper import claims_learning, claims_policies, claims_structure
from fat2thin.paper.claims import Verdict, as_row, command, effect_words, judge_all, published_words
from fat2thin.tables import Table

CLAIMS = tuple(
    sorted(
        (*claims_learning.CLAIMS, *claims_policies.CLAIMS, *claims_structure.CLAIMS),
        key=lambda claim: int(claim.name[1:]),
    )
)


def verdicts(root: str | Path) -> list[Verdict]:
    """The verdict of every claim, from the runs below a folder."""
    return judge_all(root, CLAIMS)


def table(found: Sequence[Verdict]) -> Table:
    """A line a claim, for a terminal."""
    rows = tuple(
        {
            "claim": one.claim.name,
            "verdict": one.verdict,
            "effect": effect_words(one.corrected) if one.corrected else "–",
            "as published": published_words(one),
            "statement": one.claim.statement,
        }
        for one in found
    )
    counts = Counter(one.verdict for one in found)
    return Table("claims of the paper", rows, (summary(counts),))


def summary(counts: Counter) -> str:
    """How many of each verdict."""
    return ", ".join(f"{verdict}: {count}" for verdict, count in counts.most_common())


_HEAD = """\
# What the paper claims, and what was measured

This page is made by `fat2thin claims {root} --markdown docs/claims.md` from run
folders; nobody writes in it. Each claim is looked at with the mathematics corrected, and where the
authors' code differs also as that computes it: there FtTPO is judged by its proposal, which is what
the published curves show. Brackets are 95 % bootstrap intervals over seeds. *Undecided* means that
the interval leaves it open, and *not run* that runs are missing below that folder. Trained on
{devices}.

{summary}.

| claim | verdict | effect | as published | what the effect is, and what is wanted | seeds | runs |
|---|---|---|---|---|---:|---|
"""


def document(found: Sequence[Verdict], root: str, options: str, devices: Sequence[str]) -> str:
    """The page of all verdicts, in Markdown."""
    counts = Counter(one.verdict for one in found)
    head = _HEAD.format(
        root=root, devices=" and ".join(devices) or "nothing yet", summary=summary(counts)
    )
    return head + "".join(f"| {' | '.join(_cells(one, options))} |\n" for one in found)


def _cells(one: Verdict, options: str) -> list[str]:
    row = as_row(one, options)
    return [
        f"**{one.claim.name}** {one.claim.statement}",
        one.verdict,
        effect_words(one.corrected) if one.corrected else "–",
        published_words(one),
        row["meaning"] or "–",
        str(row["seeds"] or "–"),
        f"`{command(one.claim, options)}`",
    ]
