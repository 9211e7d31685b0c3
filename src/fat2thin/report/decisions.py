"""Decide on every row of a table of states, and write the decisions as a table."""

import io
import itertools
import math
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet

from fat2thin.atomic_files import write
from fat2thin.data.dataset import Dataset
from fat2thin.data.nearest_cases import LoggedCases
from fat2thin.data.states import States
from fat2thin.export.deployed import DeployedPolicy
from fat2thin.policies.decision import CONFLICT, FORBIDDEN, INVALID, REASONS, Decision
from fat2thin.policies.policy import Policy
from fat2thin.tables import Table

ACT, REFER = "act", "refer"
SUFFIXES = (".csv", ".parquet")
_BLOCK = 100_000  # states that are decided at once
_OWN = ("row", "decision", "reasons", "distance", "disagreement", "limits")
"""Columns of decisions that keep their names whatever other columns are called."""


def decisions_table(
    policy: Policy | DeployedPolicy,
    states: States,
    cases: LoggedCases | None = None,
    nearest: int = 10,
) -> tuple[pa.Table, Table]:
    """Return one row per state, and how many were referred for each reason.

    The columns are "row" (from 1), those that were kept, "decision", the actions, their band
    ("dose_low", "dose_high"), "reasons", "distance" and "disagreement". Actions and bands are empty
    where the state is referred. With limits, "limits" has the names of those that bind.

    With the log, the means of the `nearest` logged steps follow: what was done ("cases_dose"), the
    discounted return that followed ("cases_return"), the distance of the farthest of them in
    standard deviations ("cases_distance"), and the share of their actions in the band
    ("cases_inside"). A column with the name of another gets a word before it, for example
    "kept_decision" or "policy_dose".
    """
    starts = range(0, max(len(states.observation), 1), _BLOCK)
    parts = [
        _columns(policy, states, slice(start, start + _BLOCK), cases, nearest) for start in starts
    ]
    columns: dict[str, Any] = {"row": np.arange(1, len(states.observation) + 1)}
    columns |= {_free(name, _OWN, "kept"): values for name, values in states.kept.items()}
    joined = {name: np.concatenate([part[0][name] for part in parts]) for name in parts[0][0]}
    for name, values in joined.items():
        columns[_free(name, columns, "policy")] = _arrow(values)
    counts = {name: sum(part[1][name] for part in parts) for name in parts[0][1]}
    every = len(states.observation)
    named = {"all": every, ACT: every - counts["referred"], REFER: counts.pop("referred")}
    named |= {f"{REFER}: {name}": counts[name] for name in REASONS}
    named |= {name: count for name, count in counts.items() if name not in REASONS}
    shown = (
        {"what": name, "states": f"{count:,}", "share": count / every if every else math.nan}
        for name, count in named.items()
    )
    return pa.table(columns), Table(
        "decisions", tuple(shown), ("a state may have several reasons",)
    )


def save_decisions(table: pa.Table, out: Path) -> None:
    """Write decisions as CSV or Parquet, completely or not at all."""
    buffer = io.BytesIO()
    if out.suffix.lower() == ".parquet":
        arrow_parquet.write_table(table, buffer)
    else:
        arrow_csv.write_csv(table, buffer, arrow_csv.WriteOptions(quoting_style="needed"))
    write(out, buffer.getvalue())


def cases_table(policy: Policy, states: States, cases: LoggedCases, nearest: int = 10) -> pa.Table:
    """Return the nearest logged steps of each state, one per row. These are rows of the log.

    The columns are "row" (of the states, from 1), "case" (from 1, nearest first), "log_row" (of the
    log's files, from 1, counting rows that the data set does not have), "distance" in standard
    deviations, "inside" (whether the policy could have taken the
    action), "reward", "return" (the discounted sum of rewards from there), the observations and the
    actions. States that cannot be read have no cases.
    """
    decided = policy.decide(states.observation, last=states.last)
    known = np.flatnonzero(~decided.because[INVALID])
    seen = states.observation[known]
    found = cases.nearest(seen, nearest)
    count = found.row.shape[1]
    low, high = policy.support(seen, None if states.last is None else states.last[known])
    ends = (np.asarray(end)[:, None, :] for end in (low, high))
    inside = _between(found.action, *ends)
    columns: dict[str, Any] = {
        "row": np.repeat(known + 1, count),
        "case": np.tile(np.arange(1, count + 1), len(known)),
        "log_row": _file_rows(cases.dataset)[found.row.ravel()],
        "distance": found.distance.ravel(),
    }
    columns |= {"inside": inside.ravel(), "reward": found.reward.ravel()}
    columns["return"] = found.later_return.ravel()
    for kind, values in (("observation", found.observation), ("action", found.action)):
        for place, column in enumerate(getattr(policy, f"{kind}_columns")):
            columns[_free(column.name, columns, "logged")] = values[..., place].ravel()
    return pa.table(columns)


def _free(name: str, taken: Container[str], before: str) -> str:
    """Return a name that no column has yet: with a word before it where it is taken."""
    while name in taken:
        name = f"{before}_{name}"
    return name


def _file_rows(dataset: Dataset) -> np.ndarray:
    """Return the row of its files, from 1, that each row of a data set was."""
    origin = dataset.origin
    kept = np.arange(dataset.rows) if origin is None else np.flatnonzero(origin.kept)
    return kept + 1


def _between(action: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.all((low <= action) & (action <= high), axis=-1)


def _columns(
    policy: Policy | DeployedPolicy,
    states: States,
    rows: slice,
    cases: LoggedCases | None,
    nearest: int,
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the columns of some rows, and the number of referrals by reason."""
    seen, faults = states.observation[rows], states.faults[rows]
    last = None if states.last is None else states.last[rows]
    found = policy.decide(seen, last=last)
    low, high = (np.full(found.action.shape, np.nan) for _ in range(2))
    acts = ~found.referred
    if acts.any():
        before = None if last is None else last[acts]
        low[acts], high[acts] = policy.support(seen[acts], before)
    columns: dict[str, Any] = {"decision": np.where(found.referred, REFER, ACT)}
    for place, column in enumerate(policy.action_columns):
        for end, values in (("", found.action), ("_low", low), ("_high", high)):
            columns[_free(f"{column.name}{end}", (*columns, *_OWN), "policy")] = values[:, place]
    columns["reasons"] = np.asarray(
        [_reasons(found, row, fault) for row, fault in enumerate(faults)], object
    )
    columns |= {"distance": found.distance, "disagreement": found.disagreement}
    masks = {"referred": found.referred, **found.because}
    limits = policy.limits
    if limits is not None and found.binding is not None:
        names = limits.names
        bound = (", ".join(itertools.compress(names, row)) for row in found.binding)
        columns["limits"] = np.asarray([*bound], object)
        masks |= {
            f"limit {name} binds": of for name, of in zip(names, found.binding.T, strict=True)
        }
    if cases is not None:
        columns |= _cases(policy, found, seen, (low, high), cases, nearest)
    return columns, {name: int(mask.sum()) for name, mask in masks.items()}


def _cases(
    policy: Policy | DeployedPolicy, found: Decision, seen: np.ndarray,
    band: tuple[np.ndarray, np.ndarray], cases: LoggedCases, nearest: int,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Return means of the nearest logged steps; nan for a state that cannot be read."""
    known = ~found.because[INVALID]
    near = cases.nearest(seen[known], nearest)
    inside = near.share_inside(*(end[known] for end in band))
    means = {
        "cases_return": near.later_return.mean(axis=1),
        "cases_distance": near.distance[:, -1],
        "cases_inside": np.where(found.referred[known], np.nan, inside),
    }
    for place, column in enumerate(policy.action_columns):
        name = _free(f"cases_{column.name}", means, "policy")
        means[name] = near.action[..., place].mean(axis=1)
    columns = {name: np.full(len(known), np.nan) for name in means}
    for name, values in means.items():
        columns[name][known] = values
    return columns


def _reasons(found: Decision, row: int, fault: str) -> str:
    limits = ", ".join(found.blocked_by(row))
    details = {INVALID: fault, CONFLICT: limits, FORBIDDEN: limits}
    names = ((name, details.get(name)) for name in found.reasons(row))
    return "; ".join(f"{name}: {detail}" if detail else name for name, detail in names)


def _arrow(values: np.ndarray) -> pa.Array:
    """Return an Arrow array; nan becomes an empty cell."""
    if values.dtype.kind == "f":
        return pa.array(values, mask=np.isnan(values))
    return pa.array(values.tolist(), pa.string())
