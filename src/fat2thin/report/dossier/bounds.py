"""Question 2: the largest dose that the policy can ever give; and question 3, its limits."""

import dataclasses
import itertools
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from fat2thin.data import Dataset
from fat2thin.data.operations import episode_lengths
from fat2thin.report.dossier.answer import Answer, NotRun, joined, number, percent
from fat2thin.report.dossier.behaviour import FEWEST_EPISODES
from fat2thin.report.dossier.influence import Influence
from fat2thin.report.dossier.subject import Subject, outward
from fat2thin.safety.by_column import table as certified_table
from fat2thin.safety.certify import Certificate, certify
from fat2thin.safety.ends import NotCertified
from fat2thin.tables import Table

LEAST_SECONDS = 5.0  # time below which no certificate is started
MOST_SECONDS = 60.0  # of a proof, however much time is left
GAP = 0.05  # a proof ends where bounds and worst doses found differ by this share of the range
TABLED = 2  # columns that have a table of bounds: those that move the band most
WORTH_SAYING = 0.02  # difference of bounds between ranges, as a share of the box, for the sentence
DIGITS = 4  # of bounds in tables, which are rounded outward
FEW_VALUES = 6  # values of a column up to which each has its own line


def largest_dose(
    subject: Subject, influence: Influence, found: Mapping[str, Any], seconds: float, command: str
) -> tuple[Answer, Certificate | None]:
    """Return the answer to the second question, and the certificate that it rests on.

    `found` are the facts of the first question. `seconds` is the time that is left: half of it
    proves bounds over the range of the log, half the tables by the columns that matter most.
    """
    ends = time.perf_counter() + seconds
    if seconds < LEAST_SECONDS:
        why = f"it takes at least {LEAST_SECONDS:.0f} s, and {max(seconds, 0):.0f} s were left"
        return _without(subject, found, NotRun("the certificate", why, command)), None
    try:
        made = certify(
            subject.policy, {}, gap=GAP, seconds=min(seconds / 2.0, MOST_SECONDS),
            ranges=subject.ranges,
        )  # fmt: skip
    except NotCertified as error:
        why = str(error).removeprefix("not certified: ")
        return _without(subject, found, NotRun("the certificate", why, command)), None
    tables, missing = [], []
    for place in influence.varied(subject)[:TABLED]:
        column, parts = subject.policy.observation_columns[place], _parts(subject, place)
        left, why = ends - time.perf_counter(), "the proof over all states took all the time"
        if left >= LEAST_SECONDS / 2.0:
            table = _by_column(subject, made, place, parts, min(left / 2.0, MOST_SECONDS))
            if table is not None:
                tables.append(table)
                continue
            why = "no bounds were proven"
        words = ",".join(
            ":".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in parts
        )
        again = f"{command} --table {shlex.quote(f'{column.name}={words}')}"
        missing.append(NotRun(f"the bounds by {column.label}", why, again))
    answer = _with(subject, made, tables, found)
    return dataclasses.replace(answer, not_run=tuple(missing)), made


def _parts(subject: Subject, place: int) -> list[Any]:
    """Return the values of a column, or the ranges between its quartiles in the log."""
    values = np.asarray(subject.sample.observation[:, place], np.float64)
    if (shared := _shared_values(values, subject.sample)) is not None:
        return shared
    cuts = [float(f"{one:.3g}") for one in np.quantile(values, (0.25, 0.5, 0.75))]
    ends = np.unique([subject.ranges[place][0], *cuts, subject.ranges[place][1]]).tolist()
    return [*itertools.pairwise(ends)]


def _without(subject: Subject, found: Mapping[str, Any], missing: NotRun) -> Answer:
    """Return the answer without a certificate: the action box, and what was found so far."""
    policy = subject.policy
    words = []
    for place, column in enumerate(policy.action_columns):
        largest = found.get("largest_found")
        words.append(
            f"at most {number(float(policy.high[place]), column.unit)} of {column.name} (the end "
            "of the action box) can ever be given; in the "
            f"{subject.judged.rows:,} states on which it was judged the largest possible dose was "
            f"{number(None if largest is None else largest[place], column.unit)}"
        )
    text = "; ".join(words)
    how = (
        "The action box holds by construction: no action outside it has any probability. What was "
        "found in logged states is no bound for others: that needs a certificate."
    )
    facts = {"inside": None, "certified_words": f"no certificate: {missing.why}"}
    tables = {"largest_doses": _largest(subject, found, None)}
    return Answer(f"{text[:1].upper()}{text[1:]}.", how, facts, tables, None, (missing,))


def _with(
    subject: Subject, made: Certificate, tables: Sequence["_ByColumn"], found: Mapping[str, Any]
) -> Answer:
    """Return the answer that a certificate gives."""
    policy, words, inside = subject.policy, [], True
    for place, column in enumerate(policy.action_columns):
        low, high = float(made.low[place]), float(made.high[place])
        slack = 1e-5 * float(policy.high[place] - policy.low[place])
        inside &= float(policy.low[place]) - slack <= low
        inside &= high <= float(policy.high[place]) + slack
        words.append(
            f"between {number_text(made.shown(column.name, 'low'), '')} and "
            f"{number_text(made.shown(column.name, 'high'), column.unit)} of {column.name}"
        )
        ends = float(policy.low[place]) + slack, float(policy.high[place]) - slack
        if low <= ends[0] and high >= ends[1] and made.gaps[column.name] > GAP:
            found_high = made.worst[column.name][1]
            most_found = None if found_high is None else found_high.value
            words[-1] += (
                " (the whole action box: nothing tighter was proven in the time, and the largest "
                f"dose that was found is {number(most_found, column.unit)})"
            )
    gap = max((one for one in made.gaps.values() if math.isfinite(one)), default=math.nan)
    proven = "; ".join(words)
    most = [one.words for one in tables if one.words]
    sentence = (
        f"For every patient in the range of the log, it is proven to give {proven}"
        + (f"; {'; '.join(most)}" if most else "")
        + "."
    )
    how = (
        f"A certificate for {made.arithmetic} arithmetic, rounding included, over all states in "
        "the range of every column of the log, also combinations that nobody had. The bounds and "
        f"the worst doses found differ by {percent(gap)} of the range found; the proof took "
        f"{made.seconds:.0f} s. Limits and the action box are inside the policy that was proven."
    )
    facts = {
        "inside": inside, "certified_words": f"certified: {proven}",
        "certified_low": made.low.tolist(), "certified_high": made.high.tolist(),
        "gap": gap, "arithmetic": made.arithmetic, "seconds": made.seconds,
        "box": made.box.ranges(), "box_sha256": made.box.sha256,
        "policy_sha256": made.plain.policy_hash,
    }  # fmt: skip
    shown = {"largest_doses": _largest(subject, found, made)}
    shown |= {f"by_{one.column}": one.table for one in tables}
    if (where := _where(subject, made)) is not None:
        shown["where"] = where
    return Answer(sentence, how, facts, shown, tables[0].picture if tables else None)


def _largest(subject: Subject, found: Mapping[str, Any], made: Certificate | None) -> Table:
    policy, rows = subject.policy, []
    for place, column in enumerate(policy.action_columns):
        ends = [found.get(name) for name in ("smallest_found", "largest_found")]
        row: dict[str, Any] = {"action": column.label}
        if made is not None:
            row["proven: never below"] = outward(float(made.low[place]), -1, DIGITS)
            row["proven: never above"] = outward(float(made.high[place]), 1, DIGITS)
        row |= {
            f"judged states: {name}": None if one is None else float(one[place])
            for name, one in zip(("lowest", "highest"), ends, strict=True)
        }
        row |= {"box: lowest": float(policy.low[place]), "box: highest": float(policy.high[place])}
        rows.append(row)
    return Table("largest and smallest possible doses", tuple(rows))


def _where(subject: Subject, made: Certificate) -> Table | None:
    """Return the state in which the largest action was found."""
    rows = []
    for name, (_, highest) in made.worst.items():
        if highest is None:
            continue
        columns = subject.policy.observation_columns, subject.policy.action_columns
        labels, actions = ({one.name: one.label for one in kind} for kind in columns)
        row: dict[str, Any] = {"largest dose of": actions.get(name, name), "dose": highest.value}
        state = {labels.get(key, key): value for key, value in highest.state.items()}
        rows.append(joined(row, state))
    note = "a state that the search made up, not a patient"
    return Table("where the largest dose was found", tuple(rows), (note,)) if rows else None


class _ByColumn(NamedTuple):
    """Bounds by ranges of one column."""

    column: str
    table: Table
    picture: dict[str, Any]
    words: str


def _by_column(
    subject: Subject, whole: Certificate, place: int, parts: Sequence[Any], seconds: float
) -> _ByColumn | None:
    """Return proven bounds by parts of a column. Those over all states hold in each part, too."""
    column = subject.policy.observation_columns[place]
    try:
        made = certified_table(
            subject.policy, {}, {column.name: parts}, seconds=seconds, ranges=subject.ranges,
            gap=GAP,
        )  # fmt: skip
    except NotCertified:
        return None
    actions = subject.policy.action_columns
    rows: list[dict[str, Any]] = []
    picture: dict[str, list[Any]] = {name: [] for name in ("names", "low", "high", "found")}
    for row in made.rows:
        action = row.get("action", actions[0].name)
        label = next(one.label for one in actions if one.name == action)
        dimension = [one.name for one in actions].index(action)
        low, high, worst = (
            _float(row[name]) for name in ("never_below", "never_above", "highest_found")
        )
        if low is not None and high is not None:
            low = outward(max(low, float(whole.low[dimension])), -1, DIGITS)
            high = outward(min(high, float(whole.high[dimension])), 1, DIGITS)
        never = low, high, worst
        proven = {
            "action": label, "proven: never below": never[0], "proven: never above": never[1],
            "highest found": never[2],
        }  # fmt: skip
        # The column comes first.
        heading = joined(proven, {column.label: row[column.name]}).popitem()
        rows.append(dict([heading]) | proven)
        if action == actions[0].name:
            for name, value in zip(
                ("names", "low", "high", "found"), (row[column.name], *never), strict=True
            ):
                picture[name].append(value)
    pairs = zip(picture["high"], picture["names"], strict=True)
    known = sorted((high, name) for high, name in pairs if high is not None)
    words = ""
    box = float(subject.policy.high[0] - subject.policy.low[0])
    if known and known[-1][0] - known[0][0] > WORTH_SAYING * box:
        each = (
            f"{number(high, actions[0].unit, 4)} where {column.name} is "
            f"{number_text(name, column.unit)}"
            for high, name in (known[-1], known[0])
        )
        words = f"{actions[0].name} of at most " + ", and at most ".join(each)
    table = Table(f"proven bounds by {column.label}", tuple(rows), made.notes)
    return _ByColumn(
        column.name, table,
        {"kind": "ranges", "x_label": column.label, "y_label": actions[0].label, **picture}, words,
    )  # fmt: skip


def _shared_values(values: ndarray, log: Dataset) -> list[float] | None:
    """Return the values of a column if they are few, and none is that of a few patients only."""
    distinct, which = np.unique(values, return_inverse=True)
    if len(distinct) > FEW_VALUES:
        return None
    episode = np.repeat(np.arange(log.episode_start.size), episode_lengths(log))
    episodes = np.bincount(np.unique(np.stack([which, episode]), axis=1)[0])
    return distinct.tolist() if episodes.min() >= FEWEST_EPISODES else None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # no action was found


def number_text(text: str, unit: str) -> str:
    """Return a number that is already text, with its unit."""
    return f"{text} {unit}".replace("-", "−").strip()


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
