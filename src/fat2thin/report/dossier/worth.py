"""Question 4: how much better than current practice the policy is, and how sure we are."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fat2thin.data.operations import reachable_returns
from fat2thin.data.scaling import Scales
from fat2thin.evaluation.held_out import run_batch
from fat2thin.report.dossier.answer import Answer, NotRun, interval, number
from fat2thin.report.dossier.subject import Subject
from fat2thin.report.dossier.value_process import value_within
from fat2thin.tables import Table
from fat2thin.terminal_text import counted

SECONDS, SECONDS_PER_ROW = 15.0, 1.5e-3
"""Time that the value of one policy takes at least, and per judged row, on two cores."""
MOST_STATES = 20_000  # states in which Q is compared with what rewards allow
SLACK = 0.01
"""Share of the possible range by which Q may leave it: networks are not exact."""


def worth(
    subject: Subject, limits: Path | None, against: Sequence[Path], seconds: float, command: str
) -> Answer:
    """Return the answer to the fourth question; `seconds` is the time that is left."""
    ends = time.perf_counter() + seconds
    facts = value_facts(subject)
    seconds = ends - time.perf_counter()
    needed = SECONDS + SECONDS_PER_ROW * subject.judged.rows
    if needed > seconds:
        why = f"it takes at least {needed:.0f} s, and {max(seconds, 0.0):.0f} s were left"
        return _unknown(facts, why, command)
    valued = value_within(subject, limits, against, seconds)
    cut = f"it was stopped after {seconds:.0f} s, which was all the time that was left"
    if valued.found is None:
        return _unknown(facts, valued.error or cut, command)
    answer = _answer(subject, valued.found, facts)
    if valued.complete:
        return answer
    what = "the best constant action" + (" and the runs of --against" if against else "")
    return dataclasses.replace(answer, not_run=(NotRun(what, valued.error or cut, command),))


def _unknown(facts: dict[str, Any], why: str, command: str) -> Answer:
    return Answer(
        "How much better than current practice it is was not estimated.",
        "The value is estimated from episodes that no update saw, without a simulator.",
        {**facts, "gain_low": None, "why_unknown": f"not estimated: {why}"},
        not_run=(NotRun("the value of the policy", why, command),),
    )


def _answer(subject: Subject, found: Mapping[str, Any], facts: dict[str, Any]) -> Answer:
    """Return the answer that the fields of a `PolicyValue` give."""
    unit = found["reward_unit"] or "reward"
    level, steps = f"{100 * found['confidence']:g} %", counted(found["horizon"], "step")
    rows = found["rows"]
    own, practice = rows[0], next(row for row in rows if row["kind"] == "practice")
    if own["refused"] is not None:
        sentence = f"The log cannot say: {own['refused']}."
    else:
        gain = number(own["difference"], unit)
        sentence = (
            f"It is worth {number(own['estimate'], unit)} "
            f"({interval(own['low'], own['high'], unit, level)}) over {steps}, "
            f"and current practice {number(practice['estimate'], unit)} "
            f"({interval(practice['low'], practice['high'], unit, level)}): a gain of {gain}, at "
            f"least {number(own['difference_bound'], unit)} with {level} confidence (one-sided). "
            f"{_in_words(own['difference_bound'], own['difference_high'])}"
        )
    shown = tuple(
        {
            "who": row["name"] if row["action"] is None else f"{row['name']} "
            f"({_listed(subject, row['action'])})",
            f"value ({unit})": row["estimate"],
            f"low ({level})": row["low"], f"high ({level})": row["high"],
            f"minus practice ({unit})": row["difference"],
            f"at least (one-sided {level})": row["difference_bound"],
            "estimator": row["estimator"].replace("_", " "), "refused": row["refused"] or "",
        }
        for row in rows
    )  # fmt: skip
    every = tuple(
        {
            "estimator": row["estimator"].replace("_", " "), f"value ({unit})": row["estimate"],
            f"low ({level})": row["low"], f"high ({level})": row["high"],
            "refused": row["refused"] or "",
        }
        for row in found["estimates"]
    )  # fmt: skip
    assumption = found["assumption"]
    how = (
        f"Discounted by {found['discount']:g} per step, over {steps} from the first states of "
        f"{counted(found['episodes'], 'episode')} ({counted(found['steps'], 'step')}) that no "
        f"update saw. The difference to practice is on the same episodes. Intervals are "
        f"{found['interval']}. Assumption: {assumption}. The rewards allow values from "
        f"{number(found['allowed'][0])} to {number(found['allowed'][1], unit)}."
    )
    facts = {
        **facts, "value": found, "unit": unit, "gain_level": level, "gain": own["difference"],
        "gain_low": own["difference_bound"], "gain_high": own["difference_high"],
        "why_unknown": None if own["refused"] is None else f"the log cannot say: {own['refused']}",
        "assumptions": [assumption[:1].upper() + assumption[1:] + "."],
    }  # fmt: skip
    known = [row for row in rows if row["estimate"] is not None]
    picture = {
        "kind": "intervals", "x_label": f"discounted {unit} over {steps}",
        "level": level, "names": [row["name"] for row in known],
        "value": [row["estimate"] for row in known],
        "low": [row["low"] for row in known], "high": [row["high"] for row in known],
        "reference": practice["estimate"],
    }  # fmt: skip
    tables = {
        "value": Table("what each policy is worth", shown, tuple(found["notes"])),
        "estimators": Table("what every estimator says about the policy", every),
    }
    return Answer(sentence, how, facts, tables, picture if known else None)


def _in_words(bound: float | None, high: float | None) -> str:
    if bound is not None and bound > 0:
        return "It is better than practice, as far as the log can tell."
    if high is not None and high < 0:
        return "It is worse than practice."
    return "The log does not show that it is better than practice."


def _listed(subject: Subject, action: Sequence[float]) -> str:
    columns = zip(subject.policy.action_columns, action, strict=True)
    return ", ".join(f"{column.name} {number(one, column.unit)}" for column, one in columns)


def value_facts(subject: Subject) -> dict[str, Any]:
    """Return how far Q stays within what rewards allow, and how well it predicts returns."""
    return {"possible": _possible(subject), "calibration": _calibration(subject)}


def _calibration(subject: Subject) -> float | None:
    """Return the correlation of Q with held-out returns at the end of training, over seeds."""
    measured = subject.run.metrics.get("held_out_calibration")
    if measured is None or not len(measured):
        return None
    last = np.asarray(measured[-1], np.float64)
    return float(np.median(last[np.isfinite(last)])) if np.isfinite(last).any() else None


def _possible(subject: Subject) -> float | None:
    """Return the share of judged states and seeds whose Q is a possible discounted return."""
    run = subject.run
    algorithm, problem = run.program.algorithm, run.program.problem
    if algorithm.critics is None:
        return None
    shares = []
    for place in range(len(run.spec.seeds)):
        kept = run.about.get("scales") or [Scales().to_json()]
        scales = Scales.from_json(kept[place if len(kept) > 1 else 0])
        log = subject.log if scales.reward is None else scales.reward.apply(subject.log)
        bounds = reachable_returns(log)
        rows = run_batch(run, subject.judged, place)
        chosen = np.unique(np.linspace(0, len(rows.reward) - 1, MOST_STATES).astype(int))
        state = jax.tree.map(lambda leaf, place=place: jnp.asarray(leaf)[place], run.states)
        critics = algorithm.critics(state, problem, run.program.config)
        values = critics.minimum(
            *(jnp.asarray(part[chosen]) for part in (rows.observation, rows.action))
        )
        found = np.asarray(values, np.float64) + scales.level
        slack = SLACK * (bounds.high - bounds.low)
        shares.append(np.mean((bounds.low - slack <= found) & (found <= bounds.high + slack)))
    return float(np.mean(shares))
