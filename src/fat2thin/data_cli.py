"""The commands about data sets: `fat2thin data info`, `check`, `convert` and `make`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.extras import SubcommandApp

from fat2thin.plain_errors import plain_errors

if TYPE_CHECKING:
    from fat2thin.data import Dataset

app = SubcommandApp()

DESCRIPTION = "Look at data sets, check them, and write them as files of another format."

_Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE")]
_Out = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]


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
    """Write a data set as a file of another format, which the suffix says.

    There are .npz, .csv and .parquet (with a .toml beside it that says what the columns are) and
    .hdf5 (laid out as D4RL's). Only .npz keeps the content hash for certain.

    Args:
        source: Path of a file, or the name of a data set.
        out: Path to write to.
        overwrite: Replace what is there.
    """
    from fat2thin import data

    with plain_errors(ValueError):
        _refuse(out, overwrite, source)
        _write(data.load(source), out)


@app.command
def make(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    out: _Out,
    /,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Make a log of a task of ours and write it; the formats are those of `convert`.

    Example: fat2thin data make treatment/cubic log.npz --seed 3

    Args:
        name: Name of a data set that every seed has its own log of, for example treatment/cubic.
        out: Path to write to.
        seed: Which log.
        overwrite: Replace what is there.
    """
    from fat2thin import data

    with plain_errors(ValueError):
        _refuse(out, overwrite)
        if not data.reader(name).one_a_seed:
            raise ValueError(f"{name} is not made by us; `fat2thin data convert` copies it")
        _write(data.load(name, seed), out)


def _refuse(out: Path, overwrite: bool, source: str = "") -> None:
    from fat2thin.data.writers import places

    # What says what the source's columns are: written anew, the source could not be read again.
    needed = Path(source).with_suffix(".toml").resolve() if source else None
    for path in places(out):
        if path.resolve() == needed and out.resolve() != Path(source).resolve():
            raise ValueError(
                f"{path} describes {source} and would be replaced: choose another name"
            )
        if path.exists() and not overwrite:
            raise ValueError(f"{path} is there already; --overwrite replaces it")


def _write(dataset: "Dataset", out: Path) -> None:
    from fat2thin.data.writers import write

    for path in write(dataset, out):
        print(path)
    print(f"{dataset.rows:,} rows in {dataset.episode_start.size:,} episodes")
