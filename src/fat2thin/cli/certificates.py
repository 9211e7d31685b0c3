"""The command that certifies a policy."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from fat2thin.cli.reading import read_value
from fat2thin.terminal_text import plain_errors, printable

_TEXTS = tuple[str, ...]


def certify(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    box: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BOX.toml")],
    /,
    below: Annotated[_TEXTS, tyro.conf.arg(metavar="NUMBER|ACTION=NUMBER ...")] = (),
    above: Annotated[_TEXTS, tyro.conf.arg(metavar="NUMBER|ACTION=NUMBER ...")] = (),
    table: Annotated[_TEXTS, tyro.conf.arg(metavar="COLUMN=NUMBER,... ...")] = (),
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.json")] = None,
    overwrite: bool = False,
    seconds: float = 60.0,
    gap: float = 0.05,
    seed: int | None = None,
    ensemble: Annotated[str | None, tyro.conf.arg(metavar="median|consensus")] = None,
    limits: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    arithmetic: Annotated[str, tyro.conf.arg(metavar="float32|float64")] = "float32",
) -> None:
    """Prove bounds on every action that a policy can take.

    They hold for all states in a box: a TOML file with a table [box] and a line for each column
    that is not free within the range of the log, such as `severity = [0, 4]` or `weight = 70`. The
    proof covers the rounding of the deployed policy.

    Example: fat2thin certify runs/x box.toml --below 0.8

    Args:
        folder: Run folder. All seeds act together.
        box: TOML file with the ranges of columns.
        below: Prove or refute that no action is above a number. The exit status is 1 if it is
            refuted or not decided.
        above: The same for no action below a number.
        table: Show the bounds by values of a column, for example: --table severity=0,1,2,3,4. A
            range is written 0:1. Several columns give one row per combination.
        out: JSON file to write the certificate to, with its proof in FILE.json.proof. `fat2thin
            verify FILE.json` proves it again.
        overwrite: Replace an existing file.
        seconds: Time after which the search stops. The bounds hold at any time.
        gap: Stop where a bound is this close to the worst action found, as a share of the range of
            actions found.
        seed: Certify one seed instead of all together.
        ensemble: How seeds are combined: median or consensus.
        limits: TOML file with a table [limits] to put around the policy.
        arithmetic: float32, in which policies act, or float64.
    """
    from fat2thin import safety
    from fat2thin.safety.certify import checked_plain
    from fat2thin.training import load

    with plain_errors(ValueError):
        for name, number in {"seconds": seconds, "gap": gap}.items():
            if not number >= 0:
                raise ValueError(f"--{name} must be at least 0, got {number:g}")
        if out is not None and out.exists() and not overwrite:
            raise ValueError(f"{printable(out)} exists; --overwrite replaces it")
        if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
            raise ValueError(f"--out {printable(out)}: it must be a file in an existing folder")
        run = load(folder)
        policy = run.policy(seed, ensemble=ensemble)
        policy = policy if limits is None else policy.with_limits(limits)
        options: dict[str, Any] = {
            "ranges": run.columns.ranges.get("observation"), "gap": gap, "seconds": seconds,
            "arithmetic": arithmetic,
        }  # fmt: skip
        columns = dict(map(_values, table))
        states = safety.read_box(box, checked_plain(policy), options["ranges"])
        for name, values in columns.items():  # before any work starts
            for value in values:
                states.with_column(name, *(value if isinstance(value, tuple) else (value, value)))
        claims = {"below": _claim(below), "above": _claim(above)}
        with _progress() as shown:
            found = safety.certify(policy, states, **claims, progress=shown, **options)
            by_column = columns and safety.table(policy, states, columns, progress=shown, **options)
        print(found.table(), *_claims(found), sep="\n")
        if by_column:
            print("", by_column, sep="\n")
        if out is not None:
            named = {"folder": _relative(folder, out), "seed": seed, "ensemble": ensemble}
            safety.save_certificate(found, out, named)
            print(f"\nsaved in {printable(out)}")
    if any(claim.result != safety.PROVEN for claim in found.claims):
        sys.exit(1)


def _relative(folder: Path, out: Path) -> str:
    """Return the path of a folder as seen from a file, if that has no drive or root to cross."""
    return os.path.relpath(folder.resolve(), out.resolve().parent)


def _claims(found: Any) -> Iterator[str]:
    for claim in found.claims:
        yield f"\n{printable(claim)}"
        if claim.counterexample is not None:
            action = f"{printable(claim.action)} = {claim.counterexample.value:.6g}"
            yield f"counterexample: {action} where"
            state = claim.counterexample.state.items()
            yield from (f"  {printable(name)} = {value!r}" for name, value in state)


def _claim(texts: Sequence[str]) -> Any:
    """Return a claim: a number, or numbers by action."""
    if not texts:
        return None
    named = dict(text.rpartition("=")[::2] for text in texts)
    if any("=" not in text for text in texts):
        if len(texts) > 1:
            raise ValueError("several claims name their actions, such as dose=0.8")
        return _number(texts[0])
    return {name: _number(text) for name, text in named.items()}


def _number(text: str) -> float:
    value = read_value(text)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"expected a number, got {text!r}")
    return float(value)


def _values(text: str) -> tuple[str, list[Any]]:
    """Return column and values of `severity=0,1,2:3`."""
    # A name may have "=" in it, such as the column of a category, "sex=f".
    name, equals, values = text.rpartition("=")
    if not equals:
        raise ValueError(f"a table is written COLUMN=NUMBER,NUMBER, got {text!r}")
    parts = [[_number(end) for end in one.split(":")] for one in values.split(",")]
    if any(len(part) > 2 for part in parts):
        raise ValueError(f"a range is written LOW:HIGH, got {text!r}")
    return name, [part[0] if len(part) == 1 else tuple(part) for part in parts]


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """Show how much of the time has passed, on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}", markup=False)
    columns = SpinnerColumn(), text, BarColumn(), TimeElapsedColumn()
    console, hidden = Console(stderr=True), not sys.stderr.isatty()
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task("certify", total=1.0)
        yield lambda what, share: bar.update(task, description=printable(what), completed=share)
