"""Commands that judge a run: its progress, evaluations, value, pictures and integrity."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fat2thin.cli.experiments import RunFolders
from fat2thin.cli.reading import read_run, read_value, refuse_file
from fat2thin.cli.working import working
from fat2thin.terminal_text import plain_errors, printable

if TYPE_CHECKING:
    from fat2thin.training import Run

_RunFolder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


def evaluate(
    folder: _RunFolder,
    /,
    episodes: int = 100,
    draw: int = 0,
    limits: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    fallback: Annotated[str | None, tyro.conf.arg(metavar="practice|NUMBER,...")] = None,
    distance: float = 1.0,
    disagreement: float = 0.25,
    seed: int | None = None,
) -> None:
    """Evaluate the final policies of a run on fresh episodes.

    They are compared with reference policies or, with --fallback, with leaving referred states to
    the fallback.

    Args:
        folder: Run folder.
        episodes: Episodes per seed and policy.
        draw: Number of the set of fresh episodes; another number gives other episodes.
        limits: TOML file with a table [limits] to put around the policies.
        fallback: Show the price of caution: all seeds decide together, and a state that they refer
            gets this action, one number per action, or "practice", the mean logged action of
            similar states.
        distance: With --fallback: largest distance from the log that is not referred.
        disagreement: With --fallback: largest distance between the centres of two seeds, as a share
            of the action box.
        seed: With --fallback: decide by one seed instead of all.
    """
    from fat2thin.envs import TaskFailed
    from fat2thin.policies.decision import PRACTICE, Thresholds

    with plain_errors(ValueError, TaskFailed):
        run = read_run(folder, limits)
        if fallback is None:
            print(run.evaluate(episodes, draw))
            return
        action = fallback if fallback == PRACTICE else read_value(fallback)
        thresholds = Thresholds(distance, disagreement)
        print(run.price_of_caution(action, episodes, draw, thresholds, seed))


def show(folders: RunFolders, /, follow: bool = False) -> None:
    """Show the progress, last evaluation and metrics of a run.

    Several runs get one line each. The folder of a sweep or of another plan shows how many of its
    runs are done. Only files are read, so this works on any machine that sees the folder.

    Args:
        folders: Run folders, or the folder of a plan.
        follow: Keep showing the progress of a run or of a plan until it ends.
    """
    from fat2thin.report import plan_status, run_status
    from fat2thin.runs.status import StatusReader
    from fat2thin.training import load

    with plain_errors(ValueError):
        if not folders or (follow and len(folders) > 1):
            raise ValueError("show needs a run folder, and exactly one with --follow")
        if len(folders) > 1:
            print(run_status.overview(folders))
            return
        (folder,) = folders
        if plan_status.has_many_runs(folder):
            plan_status.show_plan(folder, follow)
            return
        if follow and not run_status.follow(folder):
            return
        status = StatusReader(folder).read()
        if status.running:
            print(run_status.describe(status))
        else:
            print_run(load(folder))


def figures(folder: _RunFolder, /, out: Path = Path("pictures"), seed: int | None = None) -> None:
    """Draw the learning curves of a run.

    On the treatment task its policies and doses are drawn too.

    Args:
        folder: Run folder of a run that was evaluated on a task.
        out: Folder for the pictures; created if missing.
        seed: Seed whose policies are drawn; the first seed by default.
    """
    from fat2thin.report.run_figures import save_run_figures
    from fat2thin.training import load

    with plain_errors(ValueError):
        refuse_file(out)
        for path in save_run_figures(load(folder), out, seed):
            print(printable(path))


def validate(
    folder: _RunFolder,
    dataset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")],
    /,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    seed: int | None = None,
    limits: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
) -> None:
    """Evaluate a run on held-out logged steps.

    It reports coverage, TD error and likelihood, how often limits bind, and the share of states
    that are referred.

    Example: fat2thin validate runs/x held_out.csv --out pictures

    Args:
        folder: Run folder.
        dataset: Path or name of a data set with the same observations and action box as the
            training data.
        out: Folder for pictures of the policy and the log; none are drawn by default.
        seed: Seed whose policy is drawn; the first seed by default.
        limits: TOML file with a table [limits] to put around the policies, instead of those that
            the run learned within.
    """
    from fat2thin import data
    from fat2thin.evaluation.held_out import training_log
    from fat2thin.evaluation.held_out import validate as compare

    with plain_errors(ValueError):
        refuse_file(out)
        run, log = read_run(folder, limits), data.load(dataset)
        print(compare(run, log, training_log(run)))
        if run.program.problem.limits is not None:
            print("", run.limits_on([log]).table(f"limits on {log.name}"), sep="\n")
        print("", run.referrals_on(log), sep="\n")
        asked = f"fat2thin value {printable(folder)} {printable(dataset)}"
        print("", f"What the policy is worth beside practice: `{asked}`", sep="\n")
        if out is not None:
            from fat2thin.report.log_figures import save_log_figures

            print("", *map(printable, save_log_figures(run, log, out, seed)), sep="\n")


def value(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    dataset: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[LOG]")] = None,
    /,
    against: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN ...")] = (),
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    horizon: int | None = None,
    rewards: Annotated[str | None, tyro.conf.arg(metavar="LOWEST,HIGHEST")] = None,
    seeds: bool = False,
    confidence: float = 0.95,
    limits: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
) -> None:
    """Estimate what a policy is worth from a log, beside practice.

    The table has the policy, logged practice, the best constant action, and other runs: the
    discounted sum of rewards over one horizon, with intervals, and the difference to practice on
    the same episodes. Where the log cannot answer, it says why.

    Example: fat2thin value runs/doses new_patients.csv --against runs/other --out value

    Args:
        folder: Run folder. All seeds are one policy.
        dataset: Path or name of a log; by default the held-out episodes of the run. Episodes that
            the run has learned from are left out.
        against: Other run folders, one row each.
        out: Folder for value.json and pictures; none are written by default.
        horizon: Steps that are counted; by default those of the longest episode.
        rewards: Lowest and highest possible reward; by default those of the log.
        seeds: Show each seed as well.
        confidence: Confidence of the intervals, from 0.5 to below 1.
        limits: TOML file with a table [limits] to put around the policies.
    """
    from fat2thin import data
    from fat2thin.atomic_files import write
    from fat2thin.evaluation.value import value as estimate
    from fat2thin.training import load

    with plain_errors(ValueError):
        refuse_file(out)
        reward_range = None if rewards is None else _range(rewards)
        run, others = load(folder), {str(one): load(one) for one in against}
        if limits is not None:
            run = run.with_limits(limits)
            others = {name: one.with_limits(limits) for name, one in others.items()}
        log = None if dataset is None else data.load(dataset)
        with working("value"):
            found = estimate(
                run, log, against=others, seeds=seeds, horizon=horizon, reward_range=reward_range,
                confidence=confidence,
            )  # fmt: skip
    print(found)
    if out is not None:
        from fat2thin.report.value_figures import save_value_figures

        out.mkdir(parents=True, exist_ok=True)
        place = out / "value.json"
        write(place, json.dumps(found.to_json(), indent=1).encode())
        print("", *map(printable, (place, *save_value_figures(found, out))), sep="\n")


def _range(text: str) -> tuple[float, float]:
    ends = read_value(text)
    if not isinstance(ends, tuple) or len(ends) != 2:
        raise ValueError(f"--rewards takes the lowest and the highest, such as -15,1; got {text!r}")
    return float(ends[0]), float(ends[1])


def verify(
    folder: _RunFolder,
    /,
    replay: int | None = None,
    run: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    certificate: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    dossier: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
) -> None:
    """Check the integrity of a run, certificate, export or dossier.

    Nothing is changed. A certificate is proven again by an independent checker. The exit status is
    1 on failure.

    Args:
        folder: Run folder of a finished or unfinished run, the folder of an export, or the JSON
            file of a certificate or a dossier.
        run: With a certificate: the run folder of its policy, if it has moved.
        certificate: With an export: the certificate that it must name.
        dossier: With an export: the dossier that it must name.
        replay: Recompute at least this many steps from the start and compare bits, and also the
            steps after the newest checkpoint if they are no more; 0 disables. By default the steps
            of the first metrics row.
    """
    from fat2thin.export.verification import is_export, verify_export
    from fat2thin.report.dossier.twin import verify_dossier
    from fat2thin.runs.dossier_file import is_dossier
    from fat2thin.safety import is_certificate, verify_certificate
    from fat2thin.training import verify as check

    with plain_errors(ValueError):
        kinds = {"export": is_export, "certificate": is_certificate, "dossier": is_dossier}
        kind = next((name for name, fits in kinds.items() if fits(folder)), "run")
        options = {
            "replay": (replay, "run"), "run": (run, "certificate"),
            "certificate": (certificate, "export"), "dossier": (dossier, "export"),
        }  # fmt: skip
        for name, (given, needed) in options.items():
            if given is not None and kind != needed:
                raise ValueError(f"--{name} is for a {needed}; {folder} is a {kind}")
        match kind:
            case "export":
                found = verify_export(folder, certificate, dossier)
            case "certificate":
                found = verify_certificate(folder, run)
            case "dossier":
                found = verify_dossier(folder)
            case _ if not folder.is_dir():
                why = "is none of these, or damaged" if folder.exists() else "does not exist"
                raise ValueError(
                    f"{folder} {why}: give the folder of a run or an export, or the JSON file of a "
                    "certificate or a dossier"
                )
            case _:
                found = check(folder, replay)
    print(found)
    if not found.passed:
        sys.exit(1)


def print_run(run: "Run") -> None:
    """Print the evaluation of a run, its metrics, limits, warnings and folder."""
    from fat2thin.report.run_status import remarks
    from fat2thin.runs.status import outline

    if run.evaluations.steps and run.evaluations.policies:
        print(run.table(), end="\n\n")
    if len(run.metrics["step"]):
        print(run.last_metrics())
    if (limits := run.limit_report) is not None:
        print("", limits.table("limits on the training log"), sep="\n")
    if lines := [*remarks(outline(run.about))]:
        print("", *lines, sep="\n")
    if "rollouts" in run.about:
        steps, pace = (run.about["rollouts"][name] for name in ("steps", "steps_a_second"))
        print(f"\nevaluations: {steps:,} steps of the task, {pace:,.0f} per second")
    if run.folder:
        print(f"\nsaved in {printable(run.folder)}")
