"""Commands that use a finished policy."""

from pathlib import Path
from typing import Annotated

import tyro

from fat2thin.terminal_text import plain_errors, printable


def decide(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")],
    states: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STATES")],
    /,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("decisions.csv"),
    seed: int | None = None,
    keep: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN ...")] = (),
    columns: Annotated[Path | None, tyro.conf.arg(metavar="TOML")] = None,
    limits: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    distance: float = 1.0,
    disagreement: float = 0.25,
    overwrite: bool = False,
) -> None:
    """Decide on every row of a table of states: an action or a referral.

    Every row of the table gives one row of the result. A row that cannot be read is referred, and
    the message names it.

    Example: fat2thin decide runs/x patients.csv --out decisions.csv --keep patient

    Args:
        folder: Run folder. All seeds decide together.
        states: CSV or Parquet file with one column per observation.
        out: CSV or Parquet file to write.
        seed: Decide by one seed instead of all.
        keep: Columns of the table to copy, for example: --keep patient day.
        columns: TOML of the log, whose categories encode columns of texts.
        limits: TOML file with a table [limits]. If a limit depends on the last action, the table of
            states needs its column, such as last_dose, empty at the first step of an episode.
        distance: Largest distance from the log: 1 refers 5 % of new states like those of the log.
        disagreement: Largest distance between the centres of two seeds, as a share of the box.
        overwrite: Replace an existing file.
    """
    from fat2thin.data.states import read_states
    from fat2thin.policies.decision import Thresholds, with_referral
    from fat2thin.policies.limit_language import LAST
    from fat2thin.report import decisions
    from fat2thin.training import load

    with plain_errors(ValueError):
        if out.suffix.lower() not in decisions.SUFFIXES:
            raise ValueError(f"{out}: decisions are written as {' or '.join(decisions.SUFFIXES)}")
        if out.exists() and not overwrite:
            raise ValueError(f"{out} exists; --overwrite replaces it")
        policy = load(folder).policy(seed)
        policy = with_referral(policy, thresholds=Thresholds(distance, disagreement))
        policy = policy if limits is None else policy.with_limits(limits)
        rates = policy.limits is not None and policy.limits.needs_last_action
        last = [f"{LAST}{column.name}" for column in policy.action_columns if rates]
        found = read_states(states, policy.observation_columns, columns, keep, last)
        table, summary = decisions.decisions_table(policy, found)
        decisions.save_decisions(table, out)
    print(summary)
    if lines := found.named_faults():
        print("", *map(printable, lines), sep="\n")
    print(f"\n{printable(out)}: one row per state")
