"""The command that values a policy from a log alone."""

import json
from pathlib import Path
from typing import Annotated

import tyro

from fat2thin.cli.reading import read_value, refuse_file
from fat2thin.cli.working import working
from fat2thin.terminal_text import plain_errors, printable


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
