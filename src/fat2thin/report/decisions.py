"""Decide on every row of a table of states, and write the decisions as a table."""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet

from fat2thin.atomic_files import write
from fat2thin.data.states import States
from fat2thin.policies.decision import CONFLICT, FORBIDDEN, INVALID, Decision
from fat2thin.policies.policy import Policy
from fat2thin.tables import Table

ACT, REFER = "act", "refer"
SUFFIXES = (".csv", ".parquet")
_BLOCK = 100_000  # states that are decided at once


def decisions_table(policy: Policy, states: States) -> tuple[pa.Table, Table]:
    """Return one row per state, and how many were referred for each reason.

    The columns are "row" (from 1), those that were kept, "decision", the actions, their band
    ("dose_low", "dose_high"), "reasons", "distance" and "disagreement". Actions and bands are empty
    where the state is referred.
    """
    starts = range(0, max(len(states.observation), 1), _BLOCK)
    parts = [_columns(policy, states, slice(start, start + _BLOCK)) for start in starts]
    names = [column.name for column in policy.action_columns]
    columns: dict[str, Any] = {"row": np.arange(1, len(states.observation) + 1)}
    columns |= states.kept
    joined = {name: np.concatenate([part[0][name] for part in parts]) for name in parts[0][0]}
    for name, values in joined.items():
        taken = name in columns and name in names
        columns[f"policy_{name}" if taken else name] = _arrow(values)
    counts = {name: sum(part[1][name] for part in parts) for name in parts[0][1]}
    every = len(states.observation)
    named = {"all": every, ACT: every - counts["referred"], REFER: counts.pop("referred")}
    named |= {f"{REFER}: {name}": count for name, count in counts.items()}
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


def _columns(policy: Policy, states: States, rows: slice) -> tuple[dict[str, Any], dict[str, int]]:
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
        columns[column.name] = found.action[:, place]
        columns[f"{column.name}_low"] = low[:, place]
        columns[f"{column.name}_high"] = high[:, place]
    columns["reasons"] = np.asarray(
        [_reasons(found, row, fault) for row, fault in enumerate(faults)], object
    )
    columns |= {"distance": found.distance, "disagreement": found.disagreement}
    masks = {"referred": found.referred, **found.because}
    return columns, {name: int(mask.sum()) for name, mask in masks.items()}


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
