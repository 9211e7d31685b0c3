"""Question 5: for whom the policy refuses to decide; and question 6, whether its seeds agree."""

from typing import Any

import numpy as np

from fat2thin.data.operations import episode_lengths
from fat2thin.evaluation.caution import share_of
from fat2thin.policies.decision import CONFLICT, DISAGREE, FORBIDDEN
from fat2thin.report.dossier.answer import LEVEL, Answer, NotRun, interval, joined, percent
from fat2thin.report.dossier.behaviour import FEWEST_EPISODES, FEWEST_ROWS, SHOWN_COLUMNS
from fat2thin.report.dossier.influence import Influence
from fat2thin.report.dossier.subject import Subject
from fat2thin.report.state_map import map_states
from fat2thin.tables import Table
from fat2thin.terminal_text import counted

GRID = 40  # points along each axis of the map
MOST_CASES = 10  # referred steps that `show_cases` lists
_SHADES = 6  # levels of density on the map
_DEEPEST = 12.0
_BINS = 20


def refusals(subject: Subject, influence: Influence, show_cases: bool) -> Answer:
    """Return the answer to the fifth question. Only `show_cases` shows rows of single patients."""
    found, log = subject.bands.decision, subject.judged
    rows, facts = [], {}
    masks = {"referred": found.referred, **found.because}
    for name, mask in masks.items():
        if name in (CONFLICT, FORBIDDEN) and subject.policy.limits is None:
            continue
        share = share_of(mask, log)
        ends = float(share.low), float(share.high)
        rows.append(
            {"reason": name, "states": int(mask.sum()), "share (%)": 100 * float(share.share)}
            | {f"low (%, {LEVEL})": 100 * ends[0], f"high (%, {LEVEL})": 100 * ends[1]}
        )
        facts[name] = float(share.share)
        facts |= {f"{name} low": ends[0], f"{name} high": ends[1]}
    reasons = {name: facts[name] for name in found.because if facts.get(name)}
    most = max(reasons, key=lambda name: reasons[name]) if reasons else None
    sentence = (
        f"It refers {percent(facts['referred'])} of the states on which it was judged "
        f"({interval(100 * facts['referred low'], 100 * facts['referred high'], '%')}) to a person"
    )
    sentence += f"; the most frequent reason is: {most}." if most else "."
    coverage = subject.policy.referral.coverage
    parts = counted(coverage.episodes, "episode")
    if subject.log.episode_start.size == 1:
        parts = f"{coverage.episodes} parts of the only episode"
    how = (
        f"Every one of the {log.rows:,} states of {subject.whose} was decided. A state outside the "
        f"log is farther from it than {percent(coverage.share)} of new states like those of the "
        f"log, by a threshold that was calibrated on {parts}; at "
        f"most {percent(1 - coverage.share)} of such states are referred for that reason. "
        "Intervals are bootstrap intervals over episodes, or exact ones of as many episodes where "
        "no state or every state is referred; one episode has none."
    )
    tables = {"referrals": Table("referrals by reason", tuple(rows))}
    if (cases := _typical_cases(subject, influence)) is not None:
        tables["typical_referred"] = cases
    if show_cases:
        tables["referred_cases"] = _single_cases(subject)
    picture, missing = _map(subject, influence)
    return Answer(sentence, how, facts, tables, picture, missing)


def _typical_cases(subject: Subject, influence: Influence) -> Table | None:
    """Return what referred states have in common, by reason; groups that are too small are out."""
    found, log = subject.bands.decision, subject.judged
    episode = np.repeat(np.arange(log.episode_start.size), episode_lengths(log))
    states = np.asarray(log.observation[:], np.float64)
    columns = influence.most(SHOWN_COLUMNS)
    usual, rows = ~found.referred, []
    for name, mask in {"not referred": usual, **found.because}.items():
        small = mask.sum() < FEWEST_ROWS or np.unique(episode[mask]).size < FEWEST_EPISODES
        if small:
            continue
        row: dict[str, Any] = {"states": name, "count": int(mask.sum())}
        for column in columns:
            values = states[mask, column]
            label = subject.policy.observation_columns[column].label
            row[f"{label}: mean"] = float(values.mean())
            row[f"{label}: standard deviation"] = float(values.std())
        rows.append(row)
    if len(rows) < 2:
        return None
    note = (
        f"groups of fewer than {FEWEST_ROWS} steps or {FEWEST_EPISODES} episodes are left out, so "
        "that no line is a patient"
    )
    return Table("typical referred states", tuple(rows), (note,))


def _single_cases(subject: Subject) -> Table:
    """Return the referred steps that are farthest from the log: rows of single patients."""
    found, log, policy = subject.bands.decision, subject.judged, subject.policy
    distance = np.where(found.referred, np.nan_to_num(found.distance, nan=np.inf), -1.0)
    worst = np.argsort(-distance)[: min(MOST_CASES, int(found.referred.sum()))]
    rows = []
    for place in worst.tolist():
        row: dict[str, Any] = {"step": f"{place}", "reasons": "; ".join(found.reasons(place))}
        row["distance (thresholds)"] = found.distance[place]
        for kind, columns in (
            ("observation", policy.observation_columns), ("action", policy.action_columns)
        ):  # fmt: skip
            values = getattr(log, kind)[place]
            given = {one.label: float(v) for one, v in zip(columns, values, strict=True)}
            row = joined(row, given)
        rows.append(row)
    return Table("referred steps: rows of single patients", tuple(rows))


def _map(subject: Subject, influence: Influence) -> tuple[dict[str, Any] | None, tuple]:
    """Return the map of the two columns that move the band most."""
    policy = subject.policy
    varied = influence.varied(subject)
    if len(varied) < 2:
        why = "a map needs two columns that vary"
        return None, (NotRun("the map of states", why, "fat2thin map RUN X Y"),)
    x, y = (policy.observation_columns[place] for place in varied[:2])
    found = map_states(policy, x.name, y.name, subject.ranges, grid=GRID)
    density = np.maximum(found.log_density - found.log_density.max(), -_DEEPEST)
    shade = np.rint((density / _DEEPEST + 1.0) * (_SHADES - 1)).astype(int)
    middle = np.where(
        found.decision.referred[..., None], np.nan, (found.low + found.high) / 2.0
    )[..., 0]  # fmt: skip
    return {
        "kind": "map", "x_label": x.label, "y_label": y.label, "x": found.x, "y": found.y,
        "logged": [subject.ranges[place] for place in varied[:2]],
        "shade": shade, "shades": _SHADES, "referred": found.decision.referred.astype(int),
        "dose": middle.astype(np.float32), "dose_label": policy.action_columns[0].label,
    }, ()  # fmt: skip


def agreement(subject: Subject) -> Answer:
    """Return the answer to the sixth question."""
    bands, log = subject.bands, subject.judged
    if subject.seeds < 2:
        return Answer(
            "One seed alone cannot be compared with others.",
            "Seeds have their own networks and draw their own batches from the same log.",
            {"agree": None, "seeds": subject.seeds},
            not_run=(
                NotRun("agreement of seeds", "the run has one seed",
                       "fat2thin train ... --seeds 5"),
            ),
        )  # fmt: skip
    apart = bands.decision.because[DISAGREE]
    share = share_of(~apart, log)
    distance = bands.decision.disagreement
    known = distance[np.isfinite(distance)]
    edges = np.linspace(0.0, max(float(known.max(initial=0.0)), 1e-3), _BINS + 1)
    counts = np.histogram(known, edges)[0]
    thresholds = subject.policy.referral.thresholds
    levels = (0.5, 0.9, 0.95, 1.0)
    quantiles = np.quantile(known, levels) if known.size else np.full(len(levels), np.nan)
    facts = {
        "agree": float(share.share), "agree_low": float(share.low), "agree_high": float(share.high),
        "seeds": subject.seeds, "median_disagreement": float(quantiles[0]),
        "threshold": thresholds.disagreement,
    }  # fmt: skip
    sentence = (
        f"The {subject.seeds} seeds agree in {percent(facts['agree'])} of the states "
        f"({interval(100 * facts['agree_low'], 100 * facts['agree_high'], '%')}); in half of the "
        f"states the centres of their bands differ by less than {percent(quantiles[0])} of the "
        "action box."
    )
    overlap = getattr(subject.policy.network, "rule", None) == "consensus"
    if overlap:
        disjoint = apart & (distance <= thresholds.disagreement)
        facts["no_action_in_common"] = float(disjoint.mean())
        if disjoint.any():
            sentence += (
                f" In {percent(facts['no_action_in_common'])} of the states their centres are "
                "close enough, but their bands have no action in common."
            )
    how = (
        f"In each of the {log.rows:,} states of {subject.whose}, seeds agree if the centres of no "
        f"two bands are farther apart than {percent(thresholds.disagreement)} of the action box"
        + (", and all bands have an action in common." if overlap else ".")
        + " The seeds learned from the same log, with their own networks and batches."
    )
    rows = tuple(
        {"share of states (%)": f"{100 * level:g}",
         "centres differ by at most (% of the box)": 100 * float(value)}
        for level, value in zip(levels, quantiles, strict=True)
    )  # fmt: skip
    picture = {
        "kind": "histogram", "edges": 100 * edges, "counts": 100 * counts / max(known.size, 1),
        "threshold": 100 * thresholds.disagreement,
        "x_label": "distance between seeds (% of the action box)",
        "y_label": "states (%)",
    }  # fmt: skip
    tables = {"disagreement": Table("distance between seeds", rows), "seeds": _per_seed(subject)}
    return Answer(sentence, how, facts, tables, picture)


def _per_seed(subject: Subject) -> Table:
    """Return what each seed alone does in the judged states."""
    run, log = subject.run, subject.judged
    rows = np.unique(np.linspace(0, log.rows - 1, min(2000, log.rows)).astype(int))
    states, stopped = np.asarray(log.observation[rows], np.float32), run.about.get("stopped", {})
    lines = []
    for seed in run.spec.seeds:
        policy = run.policy(seed)
        box = np.asarray(policy.low, np.float64), np.asarray(policy.high, np.float64)
        low, high = (
            np.clip(np.asarray(end, np.float64), *box) for end in policy.support(states, None)
        )
        row: dict[str, Any] = {"seed": f"{seed}{' (stopped)' if str(seed) in stopped else ''}"}
        for place, column in enumerate(policy.action_columns):
            ends = low[:, place], high[:, place]
            known = np.isfinite(ends[0])
            for name, values in (
                ("mean centre", (ends[0] + ends[1]) / 2), ("mean width", ends[1] - ends[0])
            ):  # fmt: skip
                mean = float(values[known].mean()) if known.any() else np.nan
                row[f"{column.name}: {name}" + (f" ({column.unit})" if column.unit else "")] = mean
        lines.append(row)
    return Table("each seed alone", tuple(lines), (f"over {len(rows):,} judged states",))
