"""Question 7: how the policy was made; and question 8, what could be wrong."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fat2thin.data.checks import Report, check
from fat2thin.data.operations import episode_lengths
from fat2thin.report.dossier.answer import Answer, NotRun
from fat2thin.report.dossier.subject import Subject
from fat2thin.runs.result import Run
from fat2thin.settings.spec import plain
from fat2thin.tables import Table, listed
from fat2thin.terminal_text import counted

ASSUMPTIONS = (
    "The next patients are like those of the log: referral notices a state that is far from it, "
    "not a hospital whose practice or case mix has changed.",
    "The columns of the log contain what the people who decided knew. A reason for a dose that is "
    "not in a column (unobserved confounding) can turn a comparison with practice around.",
    "The reward measures what matters. A policy that earns more of it is better only by it.",
    "The rows of an episode are in order, and its end is a true end only where the log says so.",
    "The action box has real ends: the policy may take any action in it that a band reaches.",
)
"""What no part of a dossier can test."""


def origin(subject: Subject, hashes: Mapping[str, str | None], commands: Sequence[str]) -> Answer:
    """Return the answer to the seventh question."""
    run, log, judged = subject.run, subject.log, subject.judged
    spec, about = run.spec, run.about
    report = check(log)
    lengths = episode_lengths(log)
    rows = [
        {"fact": "log", "value": Path(subject.given or spec.dataset).name},
        {"fact": "rows", "value": f"{log.rows:,}"},
        {"fact": "episodes", "value": f"{log.episode_start.size:,} of {lengths.min():,} to "
         f"{lengths.max():,} rows"},
        {"fact": "judged on", "value": f"{judged.rows:,} rows in "
         f"{counted(judged.episode_start.size, 'episode')}: {subject.whose}"},
        {"fact": "algorithm", "value": spec.algorithm},
        {"fact": "updates per seed", "value": f"{run.step:,}"},
        {"fact": "seeds", "value": listed(spec.seeds)},
        {"fact": "device", "value": str(about.get("device", "not recorded"))},
        *({"fact": f"SHA-256 of the {name}", "value": one or "none"}
          for name, one in hashes.items()),
    ]  # fmt: skip
    settings = plain(dataclasses.asdict(spec.config))
    options = {
        name: value for name, value in spec.to_json().items()
        if name not in ("config", "algorithm", "dataset", "limits")
    }  # fmt: skip
    chosen = tuple(
        {"name": name, "value": _text(value)} for name, value in {**options, **settings}.items()
    )
    versions = tuple(
        {"package": name, "version": version} for name, version in about.get("versions", {}).items()
    )
    facts = {
        "rows": log.rows, "episodes": int(log.episode_start.size),
        "judged_rows": judged.rows, "judged_episodes": int(judged.episode_start.size),
        "unseen": subject.unseen, "errors": len(report.errors),
        "log_warnings": len(report.warnings), "commands": [*commands],
    }  # fmt: skip
    sentence = (
        f"{spec.algorithm} was trained on a log of {log.rows:,} steps in "
        f"{counted(log.episode_start.size, 'episode')}, with {run.step:,} updates of each of "
        f"{counted(len(spec.seeds), 'seed')}; the check of the log gave "
        f"{counted(len(report.errors), 'error')} and {counted(len(report.warnings), 'warning')}."
    )
    how = (
        "The run folder records the specification, the hash of the log, versions and device. "
        "`fat2thin verify` recomputes the hashes and says whether all still belong together."
    )
    tables = {
        "origin": Table("origin", tuple(rows)), "settings": Table("settings", chosen),
        "versions": Table("versions", versions), "log_check": _findings(report),
        "commands": Table("to repeat this", tuple({"command": one} for one in commands)),
    }  # fmt: skip
    return Answer(sentence, how, facts, {name: one for name, one in tables.items() if one.rows})


def _findings(report: Report) -> Table:
    rows = tuple(
        {"kind": kind, "finding": f"{one.column} {one.sentence}", "what to do": one.way_out}
        for kind, found in (("error", report.errors), ("warning", report.warnings))
        for one in found
    )
    return Table("what the check of the log found", rows, (report.note,) if report.note else ())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def training_warnings(run: Run) -> list[str]:
    """Return what training warned of, and the seeds that stopped."""
    stopped = run.about.get("stopped", {})
    lines = [
        f"seed {seed} stopped at step {one['step']:,}: {one['why']}"
        for seed, one in stopped.items()
    ]
    return [*lines, *run.about.get("warnings", [])]


def doubts(
    subject: Subject, assumptions: Sequence[str], missing: Sequence[NotRun],
    of_log: Sequence[str],
) -> Answer:  # fmt: skip
    """Return the answer to the last question: warnings, assumptions and what was not tested.

    `assumptions` are those of the parts that were run, `missing` the parts that were not, and
    `of_log` what the check of the log warned of.
    """
    warnings, remarks = training_warnings(subject.run), (*subject.remarks, *of_log)
    every = (*ASSUMPTIONS, *assumptions)
    tested = [f"{one.what}: {one.why}" for one in missing]
    tested.append("the policy was never tried: nothing here was measured on the real system")
    tables = {
        "warnings": Table(
            "warnings", tuple({"warning": one} for one in (*warnings, *remarks)),
        ),
        "assumptions": Table("assumptions", tuple({"assumption": one} for one in every)),
        "not_tested": Table("not tested", tuple({"what": one} for one in tested)),
    }  # fmt: skip
    count = len(warnings) + len(remarks)
    sentence = (
        f"There {'is' if count == 1 else 'are'} {counted(count, 'warning')}, everything rests on "
        f"{len(every)} assumptions that the log cannot test, and "
        f"{counted(len(tested), 'thing')} {'was' if len(tested) == 1 else 'were'} not tested."
    )
    how = (
        "Warnings come from training, from choosing the episodes, and from the check of the log. "
        "Assumptions are those of the methods that were used."
    )
    facts = {
        "training_warnings": len(warnings), "remarks": len(remarks), "assumptions": len(every),
        "not_tested": len(tested),
    }  # fmt: skip
    return Answer(sentence, how, facts, {name: one for name, one in tables.items() if one.rows})


def training_command(run: Run, folder: str) -> str:
    """Return a command that trains a run with the same options and settings again."""
    spec = run.spec
    words = ["fat2thin", "train", spec.algorithm, spec.dataset, "--out", folder]
    seeds = spec.seeds
    alike = seeds == tuple(range(len(seeds)))
    given: dict[str, Any] = {
        "steps": spec.steps, "seeds": len(seeds) if alike else ",".join(map(str, seeds)) + ",",
        "settings-from": "default", "batch-size": spec.batch_size,
        "evaluate-every": spec.evaluate_every, "log-every": spec.log_every,
        "reward-scale": spec.reward_scale, "holdout": spec.holdout, "select": spec.select,
        "precision": spec.precision,
    }  # fmt: skip
    words += [f"--{name}={value}" for name, value in given.items()]
    for name in ("standardise", "centre_values"):
        dashes = name.replace("_", "-")
        words.append(f"--{dashes}" if getattr(spec, name) else f"--no-{dashes}")
    if spec.limits is not None:
        words += ["--limits", "LIMITS.toml"]
    default = type(spec.config)()
    changed = {
        field.name: getattr(spec.config, field.name)
        for field in dataclasses.fields(spec.config)
        if getattr(spec.config, field.name) != getattr(default, field.name)
    }
    if changed:
        words += ["--set", *(f"{name}={_word(value)}" for name, value in changed.items())]
    return shlex.join(words)


def _word(value: Any) -> str:
    # A list of one number needs its comma.
    several = isinstance(value, tuple | list)
    return ",".join(map(str, value)) + "," * (len(value) == 1) if several else str(value)
