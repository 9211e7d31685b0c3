"""Commands for data sets: `fat2thin data info`, `check`, `template`, `convert`, `split`, `make`."""

import dataclasses
import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.extras import SubcommandApp

from fat2thin.terminal_text import counted, plain_errors, printable

if TYPE_CHECKING:
    from fat2thin.data import Dataset
    from fat2thin.envs.rollouts import Act, Task

app = SubcommandApp()

DESCRIPTION = "Inspect, check, describe, convert, split and create data sets."
ROWS = 100_000  # default length of a recording

_Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE")]
_Out = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT|minari/ID")]


@app.command
def info(
    source: Annotated[
        str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME|FILE]")
    ] = None,
    /,
    seed: int = 0,
) -> None:
    """Summarise a data set: episodes, returns, and ranges of actions and observations.

    Args:
        source: Name of a data set, for example treatment/cubic, or the path of a file. Without it,
            the known names are listed.
        seed: Seed of the log, for data sets that are generated per seed.
    """
    from fat2thin import data
    from fat2thin.cli.working import working
    from fat2thin.data.summary import summarise

    if source is None:
        print(*data.names(), sep="\n")
        return
    with plain_errors(ValueError):
        dataset = _load(source, seed)
        with working(f"summarising {source}"):
            summary = summarise(dataset)
    print(summary)


@app.command
def check(source: _Source, /, seed: int = 0) -> None:
    """Check a data set for errors before training; the exit status is 1 if there are any.

    Args:
        source: Name of a data set, for example treatment/cubic, or the path of a file.
        seed: Seed of the log, for data sets that are generated per seed.
    """
    from fat2thin.cli.working import working
    from fat2thin.data.checks import check as check_log

    with plain_errors(ValueError):
        dataset = _load(source, seed)
        with working(f"checking {source}"):
            report = check_log(dataset)
    print(report)
    if report.errors:
        sys.exit(1)


@app.command
def template(
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    /,
    out: Annotated[Path | None, tyro.conf.arg(metavar="TOML")] = None,
    overwrite: bool = False,
) -> None:
    """Write a draft of the TOML that describes the columns of a table.

    It is guessed from the column names and the logged actions. Replace every "?" in it, and the
    action box by the real limits.

    Args:
        file: Path of a .csv or .parquet file.
        out: Path to write to; by default next to the table, with the same name and .toml.
        overwrite: Replace an existing file.
    """
    from fat2thin.atomic_files import writing
    from fat2thin.data.formats.table import draft

    with plain_errors(ValueError):
        place = file.with_suffix(".toml") if out is None else out
        if place.suffix.lower() != ".toml":
            raise ValueError(f"{place}: the suffix must be .toml")
        if place.is_dir() or not place.parent.is_dir():
            raise ValueError(f"{place} cannot be written: choose a file in an existing folder")
        if place.exists() and not overwrite:
            raise ValueError(f"{place} exists; --overwrite replaces it")
        text = draft(file, place.parent)
        with writing(place) as stream:
            stream.write(text.encode())
    print(printable(place))
    print('Replace every "?" and check the action box.')


@app.command
def split(
    source: _Source,
    first: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TRAIN")],
    rest: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="REST")],
    /,
    share: float = 0.8,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Split a data set into two by whole episodes.

    The output formats are those of `fat2thin data convert`.

    Example: fat2thin data split log.csv train.npz held_out.npz --share 0.8

    Args:
        source: Path of a file, or the name of a data set.
        first: Path of the first part, or minari/ followed by an id.
        rest: Path of the other part.
        share: Share of the rows in the first part, off by at most half an episode.
        seed: Seed of the draw of episodes.
        overwrite: Replace existing files.
    """
    from fat2thin import data
    from fat2thin.data import operations
    from fat2thin.data.writers import destinations, refuse

    with plain_errors(ValueError):
        places = [{path.resolve() for path in destinations(out)} for out in (first, rest)]
        if places[0] & places[1]:
            raise ValueError(f"{first} and {rest} would be written to the same file: rename one")
        if {path.resolve() for path in _files_of(source)} & (places[0] | places[1]):
            raise ValueError(f"{source} would be replaced by a part of it: choose another name")
        for out in (first, rest):
            refuse(out, overwrite, source)
        parts = operations.split(data.load(source), share, seed)
        new = [path for path in destinations(first) if not path.exists()]
        _write(parts[0], first, _specification(source))
        try:
            _write(parts[1], rest, _specification(source))
        except BaseException:
            # Without the rest, the first part would look like a finished split.
            for path in new:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            raise


@app.command
def convert(source: _Source, out: _Out, /, overwrite: bool = False) -> None:
    """Convert a data set to the format given by the suffix of the output.

    Formats: .npz; .npy, a folder that is read in parts, for logs larger than the memory; .csv and
    .parquet, each with a .toml file that describes the columns; .hdf5 in the layout of D4RL. Only
    .npz and .npy always keep the content hash. minari/ID, for example minari/own/doses/log-v0,
    writes a Minari data set to Minari's folder.

    Args:
        source: Path of a file, or the name of a data set.
        out: Path to write to, or minari/ followed by an id.
        overwrite: Replace existing files.
    """
    from fat2thin.data import long_work
    from fat2thin.data.writers import destinations, refuse

    with plain_errors(ValueError):
        read = {path.resolve() for path in _files_of(source)}
        if read & {path.resolve() for path in destinations(out)}:
            # A table may have columns and rows that no data set keeps.
            raise ValueError(f"{source} would be replaced by its conversion: choose another name")
        refuse(out, overwrite, source)
        with long_work.arrays_on_disk(_folder_of(out)):
            _write(_load(source), out, _specification(source))


@app.command
def make(
    names: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="NAME|TASK [NAME ...] [OUT|minari/ID]"),
    ],
    /,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE|FOLDER")] = None,
    policy: Annotated[str | None, tyro.conf.arg(metavar="uniform|FOLDER")] = None,
    rows: int | None = None,
    seed: int = 0,
    way: Literal["sampled", "centre", "proposal"] | None = None,
    discount: float | None = None,
    workers: int | None = None,
    overwrite: bool = False,
) -> None:
    """Create a log: generate one for a built-in task, or record a policy in a Gymnasium task.

    The output formats are those of `fat2thin data convert`.

    Example: fat2thin data make treatment/cubic log.npz --seed 3

    Example: fat2thin data make Hopper-v5 log.hdf5 --policy runs/x --rows 200000

    Example: fat2thin data make regenerated/hopper-medium regenerated/walker2d-medium

    regenerated/ROBOT-SET rolls out stored actors in MuJoCo (extra mujoco); regenerated/all is all
    nine. The HDF5 files go to the folder $FAT2THIN_DATA, or else to ./data.

    Args:
        names: A data set that is generated per seed, for example treatment/cubic; a Gymnasium task,
            for example Hopper-v5 or package.module:Name-v0; or regenerated sets. At the end the
            path to write to, or minari/ followed by an id; not needed for regenerated sets.
        out: The path to write to, instead of at the end; for regenerated sets also a folder.
        policy: Policy to record: uniform (the default) draws actions uniformly from the action box;
            a run folder means the policy of the run's first seed.
        rows: Steps to record; the last episode is truncated there. 100,000 by default; regenerated
            sets have 200,000 and medium-expert 400,000, or else the number in their name (@2000).
        seed: Seed of the log.
        way: How the policy of a run acts: sampled (the default), at its centre, or as a sample of
            the proposal.
        discount: Discount factor stored in the log for training, 0.99 by default.
        workers: Processes for several regenerated sets, one per CPU by default. The files do not
            depend on it.
        overwrite: Replace existing files.
    """
    from fat2thin import data
    from fat2thin.data.writers import refuse
    from fat2thin.envs import TaskFailed
    from fat2thin.envs.record import DISCOUNT, record
    from fat2thin.training.progress import recording

    with plain_errors(ValueError, TaskFailed):
        regenerated, name, out = _read_names(names, out)
        recorded = not regenerated and _is_task(name)
        of_recordings = {"policy": policy, "rows": rows, "way": way, "discount": discount}
        of_regenerated = {"rows": rows, "workers": workers}
        accepted = of_regenerated if regenerated else of_recordings if recorded else {}
        for option, value in (of_recordings | of_regenerated).items():
            if value is not None and option not in accepted:
                raise ValueError(f"--{option} has no effect for {name}: leave it out")
        if regenerated:
            _regenerate(regenerated, out, rows, seed, workers, overwrite)
            return
        if out is None:
            raise ValueError(f"name the file for {name}, for example `data make {name} log.npz`")
        refuse(out, overwrite)
        if not recorded:
            _write(data.load(name, seed), out, _specification(name))
            return
        task = _describe(name, out)
        act = _acting(task, policy or "uniform", way, seed)
        rows = ROWS if rows is None else rows
        discount = DISCOUNT if discount is None else discount
        began = time.perf_counter()
        with recording(task.name, rows) as progress:
            dataset = record(task, act, rows, seed, discount=discount, progress=progress)
        pace = dataset.rows / (time.perf_counter() - began)
        _write(dataset, out, task.specification, f", {pace:,.0f} rows per second")


def _is_task(name: str) -> bool:
    """Return whether a name is a Gymnasium task; raise an error if no log can be created for it."""
    from fat2thin import data

    try:
        found = data.reader(name)
    except ValueError as error:
        if re.search(r"-v\d+$", name):
            return True
        raise ValueError(
            f"{error}. The name of a Gymnasium task ends with a version, as in Hopper-v5"
        ) from error
    if not found.one_a_seed:
        raise ValueError(f"{name} cannot be created, only read; `fat2thin data convert` copies it")
    return False


def _describe(name: str, out: Path) -> "Task":
    """Return the task; raise an error if Minari is to store it but cannot recreate it."""
    from fat2thin.data.writers import minari_id
    from fat2thin.envs.rollouts import describe

    task = describe(name)
    if minari_id(out) is not None:
        try:
            task.specification.to_json()
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{name}: Minari stores how to create a task, which is not possible here: {error} "
                'Register the task with a text entry_point ("package.module:Class") and plain '
                "arguments, or choose another format"
            ) from error
    return task


def _acting(task: "Task", policy: str, way: str | None, seed: int) -> "Act":
    """Return the function that acts; raise an error for a run of another task."""
    from fat2thin.envs.record import from_policy, uniform

    if policy == "uniform":
        if way is not None:
            raise ValueError("--way needs the policy of a run: give its folder with --policy")
        return uniform(task, seed)
    from fat2thin.training import load

    run = load(policy)
    learned = run.program.problem
    box = learned.action_low, learned.action_high
    task.check(learned.observation_size, *box, f"the run in {policy}")
    if way == "proposal":
        return from_policy(run.proposal(), seed)
    return from_policy(run.policy(run.spec.seeds[0]), seed, way or "sampled")


def _read_names(names: tuple[str, ...], out: Path | None) -> tuple[list[str], str, Path | None]:
    """Return the regenerated sets to make, or else the name of one other log; and where to."""
    from fat2thin.data.formats.d4rl import REGENERATED

    if not names:
        raise ValueError("name a data set or a Gymnasium task: see `fat2thin data make --help`")
    regenerated = [name for name in names if name.startswith(REGENERATED)]
    rest = names[len(regenerated) or 1 :]
    if regenerated and [*names[: len(regenerated)]] != regenerated:
        raise ValueError(f"{regenerated[-1]} is not made together with {names[0]}: make it alone")
    if len(rest) > (out is None):
        raise ValueError(f"{rest[-1]!r} is one too many: one file is written, or named by --out")
    return regenerated, names[0], Path(rest[0]) if rest else out


def _regenerate(
    names: list[str],
    out: Path | None,
    rows: int | None,
    seed: int,
    workers: int | None,
    overwrite: bool,
) -> None:
    """Make regenerated data sets; an interruption leaves complete files only."""
    from fat2thin.envs import regenerate
    from fat2thin.training.progress import recording

    sets = [*regenerate.check(names, rows, out, overwrite)]
    print(f"{regenerate.describe_work(sets, workers)}.", file=sys.stderr, flush=True)
    title = sets[0].name if len(sets) == 1 else counted(len(sets), "data set")
    try:
        with recording(title, sum(one.rows for one in sets)) as progress:
            made = regenerate.make(
                names, rows, seed, out=out, overwrite=overwrite, workers=workers, progress=progress
            )
    except KeyboardInterrupt:
        print("fat2thin: Interrupted. Only finished files were kept.", file=sys.stderr)
        sys.exit(130)
    for one in made:
        print(f"{printable(one.path)}: {one.name}, {one}")


def _files_of(source: str) -> list[Path]:
    """Return the files, or the Minari folder, that a data set is read from."""
    from fat2thin.data.formats.table_schema import read_schema
    from fat2thin.data.writers import destinations, minari_id

    path = Path(source)
    if minari_id(path) is not None:
        return [*destinations(path)]
    described = path.with_suffix(".toml")
    if path.suffix.lower() in (".toml", ".csv", ".parquet") and described.is_file():
        return [path, described, *read_schema(described).find_files()]
    return [path]


def _specification(name: str) -> Any:
    """Return the Gymnasium specification of a data set's task; None if it is not known."""
    from fat2thin.envs import treatment

    if not treatment.is_name(name):
        return None
    import gymnasium

    import fat2thin.envs.gym  # noqa: F401

    return dataclasses.replace(gymnasium.spec("fat2thin/Treatment-v0"), kwargs={"task": name})


def _load(source: str, seed: int = 0) -> "Dataset":
    from fat2thin import data
    from fat2thin.cli.working import working

    with working(f"reading {source}"):
        return data.load(source, seed)


def _folder_of(out: Path) -> Path:
    """Return the folder on whose disk a data set will be written."""
    from fat2thin.data.writers import destinations

    (place, *_) = destinations(out)
    return next(folder for folder in place.absolute().parents if folder.is_dir())


def _write(dataset: "Dataset", out: Path, specification: Any, pace: str = "") -> None:
    from fat2thin.cli.working import working
    from fat2thin.data.writers import write

    with working(f"writing {out}"):
        paths = write(dataset, out, specification)
    for path in paths:
        print(printable(path))
    episodes = counted(dataset.episode_start.size, "episode")
    print(f"{counted(dataset.rows, 'row')} in {episodes}{pace}")
