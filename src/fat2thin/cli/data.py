"""The commands about data sets: `fat2thin data info`, `check`, `convert` and `make`."""

import contextlib
import dataclasses
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.extras import SubcommandApp

from fat2thin.terminal_text import plain_errors, printable

if TYPE_CHECKING:
    from fat2thin.data import Dataset
    from fat2thin.envs.rollouts import Act, Task

app = SubcommandApp()

DESCRIPTION = "Look at data sets, check them, make them, and write them in another format."
ROWS = 100_000  # of a recording, where nobody says how many

_Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE")]
_Out = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT|minari/ID")]


@app.command
def info(source: _Source, /, seed: int = 0) -> None:
    """Show what is in a data set: episodes, returns, where actions and observations lie.

    Args:
        source: Name of a data set, for example treatment/cubic, or the path of a file.
        seed: Which log, where every seed has its own.
    """
    from fat2thin import data
    from fat2thin.data.summary import summarise

    with plain_errors(ValueError):
        dataset = data.load(source, seed)
    print(summarise(dataset))


@app.command
def check(source: _Source, /, seed: int = 0) -> None:
    """Check a data set before anything is learned from it; errors make the exit status 1.

    Args:
        source: Name of a data set, for example treatment/cubic, or the path of a file.
        seed: Which log, where every seed has its own.
    """
    from fat2thin import data
    from fat2thin.data.checks import check as check_log

    with plain_errors(ValueError):
        report = check_log(data.load(source, seed))
    print(report)
    if report.errors:
        sys.exit(1)


@app.command
def convert(source: _Source, out: _Out, /, overwrite: bool = False) -> None:
    """Write a data set in another format, which the suffix says.

    There are .npz, .csv and .parquet (with a .toml beside it that says what the columns are) and
    .hdf5 (laid out as D4RL's). Only .npz keeps the content hash for certain. minari/ID, for example
    minari/own/doses/log-v0, is a data set of Minari's, in the folder it keeps them in.

    Args:
        source: Path of a file, or the name of a data set.
        out: Path to write to, or minari/ and an id.
        overwrite: Replace what is there.
    """
    from fat2thin import data
    from fat2thin.data.writers import refuse

    with plain_errors(ValueError):
        refuse(out, overwrite, source)
        _write(data.load(source), out, _specification(source))


@app.command
def make(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|TASK")],
    out: _Out,
    /,
    policy: Annotated[str | None, tyro.conf.arg(metavar="uniform|FOLDER")] = None,
    rows: int | None = None,
    seed: int = 0,
    way: Literal["sampled", "centre", "proposal"] | None = None,
    discount: float | None = None,
    overwrite: bool = False,
) -> None:
    """Make a log and write it; the formats are those of `convert`.

    A task of ours draws its own log. In a task of Gymnasium's a policy is recorded.

    Example: fat2thin data make treatment/cubic log.npz --seed 3

    Example: fat2thin data make Hopper-v5 log.hdf5 --policy runs/x --rows 200000

    Args:
        name: Name of a data set that every seed has its own log of, for example treatment/cubic;
            or a task of Gymnasium's, for example Hopper-v5 or package.module:Name-v0.
        out: Path to write to, or minari/ and an id.
        policy: Who acts in the task: uniform (the default) draws every action from the box; a run
            folder is the policy of the run's first seed.
        rows: Steps to record in the task, 100,000 by default; the last episode is cut there.
        seed: Which log.
        way: How the policy of a run acts: by a sample (the default), at its centre, or by a sample
            of the proposal.
        discount: The discount factor that training is to use, 0.99 by default.
        overwrite: Replace what is there.
    """
    from fat2thin import data
    from fat2thin.data.writers import refuse
    from fat2thin.envs import TaskFailed
    from fat2thin.envs.record import DISCOUNT, record

    with plain_errors(ValueError, TaskFailed):
        recorded = _is_task(name)
        of_recordings = {"policy": policy, "rows": rows, "way": way, "discount": discount}
        given = [f"--{option}" for option, value in of_recordings.items() if value is not None]
        if not recorded and given:
            useless = f"for which {given[0]} means nothing: leave it out"
            raise ValueError(f"{name} draws its own log, {useless}")
        refuse(out, overwrite)
        if not recorded:
            _write(data.load(name, seed), out, _specification(name))
            return
        task = _describe(name, out)
        act = _acting(task, policy or "uniform", way, seed)
        rows = ROWS if rows is None else rows
        discount = DISCOUNT if discount is None else discount
        began = time.perf_counter()
        with _bar(task.name, rows) as progress:
            dataset = record(task, act, rows, seed, discount=discount, progress=progress)
        pace = dataset.rows / (time.perf_counter() - began)
        _write(dataset, out, task.specification, f", {pace:,.0f} rows a second")


def _is_task(name: str) -> bool:
    """Whether it is for Gymnasium to know; what is neither that nor made by us is refused."""
    from fat2thin import data

    try:
        found = data.reader(name)
    except ValueError as error:
        if re.search(r"-v\d+$", name):
            return True
        raise ValueError(
            f"{error}. A task of Gymnasium's has a version at its end, as Hopper-v5 has"
        ) from error
    if not found.one_a_seed:
        raise ValueError(f"{name} is not made by us; `fat2thin data convert` copies it")
    return False


def _describe(name: str, out: Path) -> "Task":
    """The task; one that Minari could not make again is refused where it is asked to."""
    from fat2thin.data.writers import minari_id
    from fat2thin.envs.rollouts import describe

    task = describe(name)
    if minari_id(out) is not None:
        try:
            task.specification.to_json()
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{name}: Minari keeps how a task is made, and this one's way cannot be written "
                f"down: {error} Register it with an entry_point in words "
                '("package.module:Class") and plain arguments, or choose another format'
            ) from error
    return task


def _acting(task: "Task", policy: str, way: str | None, seed: int) -> "Act":
    """Who acts; a run of another task is refused."""
    from fat2thin.envs.record import from_policy, uniform

    if policy == "uniform":
        if way is not None:
            raise ValueError("--way is for the policy of a run: name its folder with --policy")
        return uniform(task, seed)
    from fat2thin.training import load

    run = load(policy)
    learned = run.program.problem
    box = learned.action_low, learned.action_high
    task.check(learned.observation_size, *box, f"the run in {policy}")
    if way == "proposal":
        return from_policy(run.proposal(), seed)
    return from_policy(run.policy(), seed, way or "sampled")


@contextlib.contextmanager
def _bar(title: str, rows: int) -> Iterator[Callable[[int], None] | None]:
    """A bar with rows and rows a second, where somebody can see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    pace = TextColumn("{task.fields[pace]}")
    began = time.perf_counter()
    with Progress(*columns, pace, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=rows, pace="")

        def progress(done: int) -> None:
            rate = done / (time.perf_counter() - began)
            bar.update(task, completed=done, pace=f"{rate:,.0f} rows/s")

        yield progress


def _specification(name: str) -> Any:
    """How Gymnasium makes the task of a data set, where that is known."""
    from fat2thin.envs import treatment

    if not treatment.is_name(name):
        return None
    import gymnasium

    import fat2thin.envs.gym  # noqa: F401

    return dataclasses.replace(gymnasium.spec("fat2thin/Treatment-v0"), kwargs={"task": name})


def _write(dataset: "Dataset", out: Path, specification: Any, pace: str = "") -> None:
    from fat2thin.data.writers import write

    for path in write(dataset, out, specification):
        print(printable(path))
    print(f"{dataset.rows:,} rows in {dataset.episode_start.size:,} episodes{pace}")
