"""Question 2: the largest dose that the policy can ever give; and question 3, its limits."""

from typing import Any

from fat2thin.report.dossier.answer import Answer, NotRun, number, percent
from fat2thin.report.dossier.subject import Subject
from fat2thin.tables import Table


def largest_found(subject: Subject, facts: dict[str, Any], missing: tuple[NotRun, ...]) -> Answer:
    """Return the answer to the second question without a certificate: what was found so far."""
    policy = subject.policy
    rows, words = [], []
    for place, column in enumerate(policy.action_columns):
        unit, box = column.unit, (float(policy.low[place]), float(policy.high[place]))
        found = [facts.get(name) for name in ("smallest_found", "largest_found")]
        ends = [None if one is None else one[place] for one in found]
        rows.append(
            {"action": column.label, "lowest found": ends[0], "highest found": ends[1]}
            | {"box: lowest": box[0], "box: highest": box[1]}
        )
        words.append(
            f"at most {number(box[1], unit)} of {column.name} (the end of the action box) can ever "
            f"be given; in the {subject.judged.rows:,} states on which it was judged the largest "
            f"possible dose was {number(ends[1], unit)}"
        )
    text = "; ".join(words)
    how = (
        "The action box holds by construction: no action outside it has any probability. What was "
        "found in logged states is no bound for others: that needs a certificate."
    )
    table = Table("largest and smallest possible doses", tuple(rows))
    return Answer(
        f"{text[:1].upper()}{text[1:]}.", how, {"inside": None, "certified_words": None},
        {"largest_doses": table}, None, missing,
    )  # fmt: skip


def limits(subject: Subject) -> Answer:
    """Return the answer to the third question."""
    policy, run = subject.policy, subject.run
    bound = policy.limits
    if bound is None:
        return Answer(
            "No limits were stated, so it obeys the action box alone.",
            "Limits are stated in a TOML file, before training or afterwards.",
            {"limits": 0},
            not_run=(
                NotRun(
                    "limits", "no file with limits was given",
                    "fat2thin train ... --limits FILE, or fat2thin dossier RUN --limits FILE",
                ),
            ),
        )  # fmt: skip
    report = run.limits_on([subject.judged])
    rows = tuple(
        {
            "limit": one.name, "text": one.text, "applies (% of states)": 100 * one.applies,
            "excludes (% of logged actions)": 100 * one.excluded,
            "binds (% of states)": None if one.binds is None else 100 * one.binds,
        }
        for one in report.limits
    )  # fmt: skip
    most = max(report.limits, key=lambda one: one.binds or 0.0)
    names = ", ".join(f"{one.name} ({one.text})" for one in report.limits)
    sentence = (
        f"It obeys {len(report.limits)} limits by construction: {names}. The one that binds most, "
        f"{most.name}, binds in {percent(most.binds)} of the states; together they exclude "
        f"{report.excluded_words}."
    )
    if report.without_action:
        sentence += f" They leave no action in {report.without_action:,} of the logged states."
    how = (
        f"Each limit was evaluated in the {report.rows:,} states of {subject.whose}. A limit binds "
        "where it excludes an action that the policy could take without limits (mean over seeds). "
        "The band is placed inside the limits before an action is drawn, so none can break them."
    )
    facts = {"limits": len(report.limits), **report.to_json()}
    return Answer(sentence, how, facts, {"limits": Table("limits", rows)})
