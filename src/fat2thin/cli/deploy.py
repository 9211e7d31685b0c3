"""Commands that use a finished policy."""

import shlex
from pathlib import Path
from typing import Annotated

import tyro

from fat2thin.cli.reading import read_run, read_settings, read_value
from fat2thin.terminal_text import did_you_mean, plain_errors, printable


def decide(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")],
    states: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STATES")],
    /,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("decisions.csv"),
    seed: int | None = None,
    ensemble: str | None = None,
    keep: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN ...")] = (),
    columns: Annotated[Path | None, tyro.conf.arg(metavar="TOML")] = None,
    limits: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    distance: float = 1.0,
    disagreement: float = 0.25,
    log: Annotated[str | None, tyro.conf.arg(metavar="DATASET")] = None,
    cases: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    nearest: int = 10,
    overwrite: bool = False,
) -> None:
    """Decide on every row of a table of states: an action or a referral.

    Every row of the table gives one row of the result. A row that cannot be read is referred, and
    the message names it.

    Example: fat2thin decide runs/x patients.csv --out decisions.csv --keep patient

    Args:
        folder: Run folder, whose seeds decide together, or the folder of an export, which has its
            own limits and thresholds.
        states: CSV or Parquet file with one column per observation.
        out: CSV or Parquet file to write.
        seed: Decide by one seed instead of all.
        ensemble: How seeds are combined: median or consensus.
        keep: Columns of the table to copy, for example: --keep patient day.
        columns: TOML of the log, whose categories encode columns of texts.
        limits: TOML file with a table [limits], instead of the limits of the run. If a limit
            depends on the last action, the table of states needs its column, such as last_dose,
            empty at the first step of an episode.
        distance: Largest distance from the log: 1 refers 5 % of new states like those of the log.
        disagreement: Largest distance between the centres of two seeds, as a share of the box.
        log: Name or path of the log, to compare every state with what was done in similar ones: the
            result has means over the nearest logged steps.
        cases: CSV or Parquet file to write with the nearest logged steps of every state. They are
            rows of single episodes of the log.
        nearest: Number of nearest logged steps.
        overwrite: Replace an existing file.
    """
    from fat2thin import data
    from fat2thin.data.nearest_cases import LoggedCases
    from fat2thin.data.states import read_states
    from fat2thin.evaluation.held_out import check_fits
    from fat2thin.export.deployed import DeployedPolicy
    from fat2thin.export.verification import is_export
    from fat2thin.policies.decision import Thresholds, with_referral
    from fat2thin.policies.limit_language import LAST
    from fat2thin.policies.policy import Policy
    from fat2thin.report import decisions

    with plain_errors(ValueError):
        for file in filter(None, (out, cases)):
            if file.suffix.lower() not in decisions.SUFFIXES:
                suffixes = " or ".join(decisions.SUFFIXES)
                raise ValueError(f"{file}: tables are written as {suffixes}")
            if file.exists() and not overwrite:
                raise ValueError(f"{file} exists; --overwrite replaces it")
        files = [file.resolve() for file in (states, out, cases) if file is not None]
        if len({*files}) < len(files):
            raise ValueError("the states, --out and --cases must be different files")
        if cases is not None and log is None:
            raise ValueError("--cases needs the log: give its name or path with --log")
        policy: Policy | DeployedPolicy
        if is_export(folder):
            chosen = seed, ensemble, limits, distance, disagreement, log
            if chosen != (None, None, None, 1.0, 0.25, None):
                raise ValueError(
                    f"{folder} is an export, which has its own limits and thresholds: --seed, "
                    "--ensemble, --limits, --distance, --disagreement and --log need the run folder"
                )
            policy = DeployedPolicy(folder)
        else:
            run = read_run(folder, limits)
            policy = with_referral(
                run.policy(seed, ensemble=ensemble), thresholds=Thresholds(distance, disagreement)
            )
        rates = policy.needs_last_action
        last = [f"{LAST}{column.name}" for column in policy.action_columns if rates]
        found = read_states(states, policy.observation_columns, columns, keep, last)
        logged = None
        if log is not None:
            dataset = data.load(log)
            check_fits(run, dataset)
            logged = LoggedCases(dataset, run.coverage)
        table, summary = decisions.decisions_table(policy, found, logged, nearest)
        if cases is not None and logged is not None and isinstance(policy, Policy):
            decisions.save_decisions(decisions.cases_table(policy, found, logged, nearest), cases)
        decisions.save_decisions(table, out)
    print(summary)
    if lines := found.named_faults():
        print("", *map(printable, lines), sep="\n")
    print(f"\n{printable(out)}: one row per state")
    if cases is not None:
        print(f"{printable(cases)}: {nearest} logged steps per state, rows of single episodes")


def export(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")],
    /,
    to: Annotated[tuple[str, ...], tyro.conf.arg(metavar="numpy|onnx|c|stablehlo ...")] = (
        "numpy",
    ),
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    seed: int | None = None,
    ensemble: str | None = None,
    limits: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    distance: float = 1.0,
    disagreement: float = 0.25,
    fallback: Annotated[str | None, tyro.conf.arg(metavar="NUMBER,...")] = None,
    certificate: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    dossier: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
) -> None:
    """Write a policy for NumPy, ONNX, C or StableHLO.

    Standardisation, limits, referral and all seeds are inside: raw observations go in, an action or
    a referral comes out. `fat2thin verify` checks the folder, `fat2thin decide` uses it.

    Example: fat2thin export runs/x --to numpy c --out deployed

    Args:
        folder: Run folder. All seeds decide together.
        to: Formats to write.
        out: New folder; export in the run folder by default.
        seed: Export one seed instead of all.
        ensemble: How seeds are combined: median or consensus.
        limits: TOML file with a table [limits] to put around the policy.
        distance: Largest distance from the log: 1 refers 5 % of new states like those of the log.
        disagreement: Largest distance between the centres of two seeds, as a share of the box.
        fallback: Action of referred states, one number per action; by default that of the limits,
            or nan.
        certificate: Certificate of this policy, whose hash the export names.
        dossier: Dossier of this policy, whose hash the export names; by default dossier.json in the
            run folder, if it is about this very policy.
    """
    from fat2thin.export.folder import export_run
    from fat2thin.policies.decision import Thresholds, with_referral
    from fat2thin.runs.dossier_file import dossier_about, refuse_other_dossier
    from fat2thin.safety import is_certificate

    out = folder / "export" if out is None else out
    words = ["fat2thin", "export", str(folder), "--to", *to, "--out", str(out)]
    options = {
        "seed": (seed, None), "ensemble": (ensemble, None), "limits": (limits, None),
        "distance": (distance, 1.0),
        "disagreement": (disagreement, 0.25), "fallback": (fallback, None),
        "certificate": (certificate, None), "dossier": (dossier, None),
    }  # fmt: skip
    for name, (value, default) in options.items():
        words += [f"--{name}", str(value)] if value != default else []
    with plain_errors(ValueError):
        if certificate is not None and not is_certificate(certificate):
            raise ValueError(f"{certificate} is not a certificate of `fat2thin certify --out`")
        run = read_run(folder, limits)
        policy = with_referral(
            run.policy(seed, ensemble=ensemble), thresholds=Thresholds(distance, disagreement)
        )
        action = None if fallback is None else read_value(fallback)
        if dossier is None:
            dossier = dossier_about(folder, policy)
        else:
            refuse_other_dossier(dossier, policy)
        metadata = export_run(
            run, out, to, seed, fallback=action, command=shlex.join(words),
            certificate=certificate, dossier=dossier, policy=policy,
        )  # fmt: skip
    for name, stamp in metadata["files"].items():
        print(f"{printable(out / name)}  {stamp['bytes']:,} bytes")
    print(f"sampling: {metadata['sampling']['how']}")
    if dossier is not None:
        print(f"names the dossier {printable(dossier)}")


def map_states(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")],
    x: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="X")],
    y: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="Y")],
    /,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("map.png"),
    at: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = (),
    action: str | None = None,
    seed: int | None = None,
    limits: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    distance: float = 1.0,
    disagreement: float = 0.25,
    overwrite: bool = False,
) -> None:
    """Draw what a policy does over two columns, and where it refers.

    The picture has the density of the log with the referrals, the middle and the width of the band,
    and the limits that bind. The other columns have their typical values for these two.

    Example: fat2thin map runs/x severity weight --out map.png --at sex=1

    Args:
        folder: Run folder. All seeds decide together.
        x: Column of the horizontal axis.
        y: Column of the vertical axis.
        out: PNG or PDF file to write.
        at: Fixed values of other columns, for example: --at weight=70.
        action: Action that is shown; the first by default.
        seed: Decide by one seed instead of all.
        limits: TOML file with a table [limits], instead of the limits of the run. Limits on changes
            do not apply on a map.
        distance: Largest distance from the log: 1 refers 5 % of new states like those of the log.
        disagreement: Largest distance between the centres of two seeds, as a share of the box.
        overwrite: Replace an existing file.
    """
    from fat2thin.policies.decision import Thresholds, with_referral
    from fat2thin.report import state_map

    with plain_errors(ValueError):
        if out.suffix.lower() not in (".png", ".pdf"):
            raise ValueError(f"{out}: a map is written as .png or .pdf")
        if out.exists() and not overwrite:
            raise ValueError(f"{out} exists; --overwrite replaces it")
        run = read_run(folder, limits)
        policy = with_referral(run.policy(seed), thresholds=Thresholds(distance, disagreement))
        if "observation" not in run.columns.ranges:
            raise ValueError(f"{folder} was written by an earlier version: train again for a map")
        fixed = read_settings(at)
        for name, value in fixed.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
                raise ValueError(f"--at {name}={value}: this must be a number")
        names = [column.name for column in policy.action_columns]
        if action is not None and action not in names:
            hint = did_you_mean(action, names)
            raise ValueError(f"there is no action {action!r}{hint}; there are {', '.join(names)}")
        ranges = run.columns.ranges["observation"]
        found = state_map.map_states(policy, x, y, ranges, fixed)
        title = f"{run.spec.algorithm} on {Path(run.spec.dataset).name}"
        place = 0 if action is None else names.index(action)
        state_map.save_state_map(found, policy, ranges, title, out, place)
    print(printable(out))
