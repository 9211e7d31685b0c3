"""Measure what a newcomer waits for: the first command, with an empty and a warm program cache.

    python benchmarks/first_result.py
    python benchmarks/first_result.py --repetitions 1 --cores 2 --out first.json

The command is `fat2thin train fttpo treatment/quadratic --steps 20 --seeds 2 --set hidden=8,8`. It
runs in new processes: each time with an empty cache of compiled programs, then each time with a
full one. `fat2thin show` of the finished run and `import fat2thin.training` are measured too. The
tables show medians of processor time (user and system, all threads) and of wall time, for each
number of cores, and the load of the machine: with other load, only processor time means something.

One more run of each kind, watched from outside as in `run.py`, shows where the time goes and what
is compiled. Watching costs a few hundredths of a second.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import run

COMMAND = (
    "train", "fttpo", "treatment/quadratic", "--steps", "20", "--seeds", "2",
    "--set", "hidden=8,8",
)  # fmt: skip
CACHES = ("empty cache", "warm cache")
LISTED = 8  # programs that are listed by name


def measure(folder: Path, repetitions: int) -> dict[str, dict[str, Any]]:
    """Return the seconds of all repetitions of every command, and the load during them."""
    fat2thin = [sys.executable, "-m", "fat2thin"]
    commands = {
        "fat2thin train, empty cache": [*fat2thin, *COMMAND],
        "fat2thin train, warm cache": [*fat2thin, *COMMAND],
        "fat2thin show": [*fat2thin, "show"],
        "import fat2thin.training": [sys.executable, "-c", "import fat2thin.training"],
    }
    found: dict[str, dict[str, Any]] = {}
    for name, command in commands.items():
        times, load = [], []
        for number in range(repetitions):
            out, cache = folder / f"{len(found)}_{number}", folder / "cache"
            if "empty" in name:
                cache = folder / f"cache_{number}"
            elif number == 0:
                run.timed_process([*fat2thin, *COMMAND, "--out", str(folder / "run")], cache)
            if command[-1] == "show":
                arguments = [*command, str(folder / "run")]
            else:
                arguments = [*command, "--out", str(out)] if command[1] == "-m" else command
            times.append(run.timed_process(arguments, cache))
            load.append(os.getloadavg()[0])
        wall, processor = zip(*times, strict=True)
        found[name] = {"wall": wall, "processor": processor, "load": load}
    return found


def totals(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return a table with one row per command and number of cores."""
    lines = ["| command | cores | processor, s | wall, s | load |", "|---|---|---|---|---|"]
    for cores, commands in found.items():
        for name, seconds in commands.items():
            medians = (statistics.median(seconds[key]) for key in ("processor", "wall", "load"))
            processor, wall, load = medians
            lines.append(f"| {name} | {cores} | {processor:.2f} | {wall:.2f} | {load:.1f} |")
    return "\n".join(lines)


def parts(watched: dict[str, dict[str, Any]]) -> str:
    """Return a table of processor seconds by part, with the number of compiled programs."""
    lines = [f"| part, processor s | {' | '.join(watched)} |", "|---" * (len(watched) + 1) + "|"]

    def add(name: str, values: Sequence[float | str]) -> None:
        texts = [value if isinstance(value, str) else f"{value:.2f}" for value in values]
        lines.append(f"| {name} | {' | '.join(texts)} |")

    for part in run.PARTS:
        add(part, [one["processor"][part] for one in watched.values()])
    add("total", [one["total_processor"] for one in watched.values()])
    add("programs", [str(sum(row[1] for row in one["programs"])) for one in watched.values()])
    return "\n".join(lines)


def compiled(name: str, programs: Sequence[Sequence[Any]]) -> str:
    """Return a table of the programs that took longest to compile or to load."""
    lines = [f"| {name}: program | times | processor, s | wall, s |", "|---|---|---|---|"]
    listed, rest = [*programs[:LISTED]], programs[LISTED:]
    if rest:
        listed.append(("all others", *(sum(row[place] for row in rest) for place in (1, 2, 3))))
    for program, count, wall, processor in listed:
        lines.append(f"| {program} | {count} | {processor:.2f} | {wall:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--cores", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    available, found = sorted(os.sched_getaffinity(0)), {}
    for cores in options.cores:
        os.sched_setaffinity(0, available[:cores])
        with tempfile.TemporaryDirectory() as place:
            found[str(cores)] = measure(Path(place), options.repetitions)
    os.sched_setaffinity(0, available)
    with tempfile.TemporaryDirectory() as place:
        watched = {
            name: run.measure(Path(place), name.replace(" ", "_"), [*COMMAND]) for name in CACHES
        }
    print(totals(found), end="\n\n")
    print(parts(watched), end="\n\n")
    print(*(compiled(name, one["programs"]) for name, one in watched.items()), sep="\n\n")
    if options.out:
        content = {"commands": found, "watched": watched}
        options.out.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
