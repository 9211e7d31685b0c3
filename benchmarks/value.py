"""How often are the intervals of `fat2thin value` right, and what do they refuse?

    python benchmarks/value.py                          print the tables
    python benchmarks/value.py --run --jobs 14          measure what is missing, in 14 processes
    python benchmarks/value.py --run --share 0.1        a tenth of the logs
    python benchmarks/value.py --docs                   write the table of docs/results/value.md

For each case of `value_cases.py` and each size of log, every estimator values every policy on fresh
logs. The tables compare with the true values: bias, width and coverage of 95 % intervals, one-sided
lower bounds, false claims to be better than practice, and the share refused. "shown" is what
`value` shows: the first estimator of its order that is not refused. The last lines say whether the
binomial tests pass.

The numbers of every log are kept in --raw, in parts; a part that is there is not measured again.
The summaries are in docs/results/value.json (--out). `--prepare` trains the policies that are
valued on the treatment task into runs/value, which can be carried to another machine.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from value_cases import Case, cases
from value_log import Truth
from value_study import study
from value_summary import markdown, show, summary

RESULTS, PAGE = Path("docs/results/value.json"), Path("docs/results/value.md")
LOGS = {200: 500, 1_000: 500, 20_000: 20}
"""Logs per size."""
PER_PART = {200: 500, 1_000: 100, 20_000: 4}
BEGIN, END = "<!-- coverage -->", "<!-- end of coverage -->"
COSTS = {"tabular": 1, "treatment": 3, "hospital": 4}
"""Rough costs, which order the parts."""


class Part(NamedTuple):
    """Some logs of one size of one case, or its true values (0 rows)."""

    case: str
    rows: int
    first: int = 0
    last: int = 0

    @property
    def file(self) -> str:
        """The name of the file that holds it."""
        stem = self.case.replace("/", "-")
        return f"{stem}-{self.rows}-{self.first}.npz" if self.rows else f"{stem}-truth.json"

    @property
    def place(self) -> tuple[float, ...]:
        """What sorts parts: true values, then those that compile a program, the biggest first."""
        cost = COSTS[self.case.partition("/")[0]] * self.rows**1.5 * (self.last - self.first)
        return (self.rows > 0, self.first > 0, -cost)

    def done(self, folder: Path) -> bool:
        """Return whether it has been measured, with all of its logs."""
        file = folder / self.file
        if not self.rows or not file.exists():
            return file.exists()
        with np.load(file) as raw:
            return len(raw["practice"]) == self.last - self.first

    def measure(self, folder: Path) -> None:
        """Write the file; it is there only if it is complete."""
        case = cases()[self.case]
        policies = case.policies()
        made = folder / f"new-{self.file}"
        if self.rows:
            raw: dict[str, Any] = study(case, self.rows, range(self.first, self.last), policies)
            np.savez_compressed(made, policies=np.array([*policies]), **raw)
        else:
            made.write_text(json.dumps(case.truths(policies)))
        made.replace(folder / self.file)


def parts_of(chosen: list[str], sizes: list[int], share: float) -> list[Part]:
    """Return all parts, the ones to start with first."""
    found = [Part(name, 0) for name in chosen]
    for name in chosen:
        for rows in sizes:
            logs = max(2, round(share * LOGS[rows]))
            found += [
                Part(name, rows, first, min(first + PER_PART[rows], logs))
                for first in range(0, logs, PER_PART[rows])
            ]
    return sorted(found, key=lambda part: part.place)


def measure(parts: list[Part], folder: Path, jobs: int) -> bool:
    """Measure parts in processes with one core each, and return whether all succeeded."""
    began, waiting, good = time.perf_counter(), [*parts], True
    running: dict[subprocess.Popen, tuple[Part, int, float]] = {}
    cores = sorted(os.sched_getaffinity(0))
    free = [cores[place % len(cores)] for place in range(jobs)]
    settings = os.environ | {
        "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
        "JAX_COMPILATION_CACHE_DIR": str(folder.resolve() / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1",
    }  # fmt: skip
    while waiting or running:
        while waiting and free:
            part, core = waiting.pop(0), free.pop(0)
            command = [sys.executable, __file__, "--raw", str(folder), "--part", *map(str, part)]
            process = subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL)
            os.sched_setaffinity(process.pid, {core})
            running[process] = part, core, time.perf_counter()
        time.sleep(0.2)
        for process in [one for one in running if one.poll() is not None]:
            part, core, started = running.pop(process)
            free.append(core)
            good &= process.returncode == 0
            now = time.perf_counter()
            failed = "" if process.returncode == 0 else ", FAILED"
            print(f"{now - began:5.0f} s  {part.file}: {now - started:.0f} s{failed}", flush=True)
    return good


def prepare(chosen: list[str]) -> None:
    """Train the policies that are valued, where that was not done."""
    for name in chosen:
        cases()[name].policies()


def collected(folder: Path) -> list[dict[str, Any]]:
    """Return the summaries of all parts in a folder."""
    rows: list[dict[str, Any]] = []
    for name, case in cases().items():
        known = folder / Part(name, 0).file
        if known.exists():
            truths = {key: Truth(*one) for key, one in json.loads(known.read_text()).items()}
            for size in LOGS:
                raw = raw_numbers(folder, case, size)
                rows += [] if raw is None else summary(case, size, raw, truths)
    return rows


def raw_numbers(folder: Path, case: Case, rows: int) -> dict[str, np.ndarray] | None:
    """Return the numbers of all logs of one size, or None if none were measured."""
    found = sorted(folder.glob(f"{case.name.replace('/', '-')}-{rows}-*.npz"))
    if not found:
        return None
    parts = [dict(np.load(file)) for file in found]
    policies = parts[0].pop("policies")
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return joined | {"policies": policies}


def main() -> None:
    """Measure, summarise and print, as asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", action="store_true", help="measure what --raw lacks")
    parser.add_argument("--prepare", action="store_true", help="train the policies that are valued")
    parser.add_argument("--again", action="store_true", help="summarise --raw again")
    parser.add_argument("--cases", nargs="*", default=[*cases()])
    parser.add_argument("--sizes", type=int, nargs="*", default=[*LOGS], choices=[*LOGS])
    parser.add_argument("--share", type=float, default=1.0, help="share of the logs")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--raw", type=Path, default=Path("runs/value/raw"))
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the summaries")
    parser.add_argument("--docs", action="store_true", help=f"write the table of {PAGE}")
    parser.add_argument("--brief", action="store_true", help="print no table of single policies")
    parser.add_argument("--part", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        name, *numbers = options.part
        Part(name, *map(int, numbers)).measure(options.raw)
        return
    if options.prepare:
        return prepare(options.cases)
    good = True
    if options.run:
        options.raw.mkdir(parents=True, exist_ok=True)
        prepare(options.cases)
        parts = parts_of(options.cases, options.sizes, options.share)
        missing = [part for part in parts if not part.done(options.raw)]
        good = measure(missing, options.raw, options.jobs)
    if options.run or options.again:
        options.out.write_text(json.dumps({"rows": collected(options.raw)}, indent=0) + "\n")
    rows = json.loads(options.out.read_text())["rows"]
    if options.docs:
        before, rest = PAGE.read_text().split(BEGIN)
        made = f"{before}{BEGIN}\n\n{markdown(rows)}\n{END}{rest.partition(END)[2]}"
        PAGE.write_text(made)
    show(rows, whole=not options.brief)
    if not good:
        sys.exit("some parts failed; the same command measures them again")


if __name__ == "__main__":
    main()
