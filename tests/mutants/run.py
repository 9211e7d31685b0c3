"""Plant one bug at a time and check that the quick tests fail.

`make mutants` tries all of mutants.toml, `make mutants ARGS="-k NAME"` those whose names contain
NAME. Every bug is planted in a copy of the tree. The tests that import the changed module run there
until one fails: first the test recorded in results.json, then the nearest ones. A failure counts if
that test passes without the bug.
"""

import argparse
import ast
import collections
import concurrent.futures
import functools
import itertools
import json
import os
import queue
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
LIST, RESULTS = (Path(__file__).with_name(name) for name in ("mutants.toml", "results.json"))
LEFT_OUT = (".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "demo", "runs")
GOLDEN = ("tests/algorithms/test_contract.py::test_contract",)
"""Tests that compare with stored results of the code. They detect any change, not only errors, so
they do not count here."""
KILLED, SURVIVED, TIMEOUT = "killed", "survived", "timeout"
Row = dict[str, Any]


class Mutant(NamedTuple):
    """One planted bug."""

    name: str
    breaks: str
    """The consequence, in one sentence."""
    old: str
    """Text that occurs exactly once in src ..."""
    new: str
    """... and its replacement."""


def read_mutants(path: Path = LIST) -> list[Mutant]:
    """Return the mutants of a list."""
    return [Mutant(**fields) for fields in tomllib.loads(path.read_text())["mutant"]]


def read_sources(root: Path = ROOT) -> dict[Path, str]:
    """Return the source text of the modules below src."""
    return {path: path.read_text() for path in sorted((root / "src").rglob("*.py"))}


def locate(mutant: Mutant, sources: Mapping[Path, str]) -> Path:
    """Return the module that a mutant changes; raise an error if its text does not occur once."""
    counts = {path: text.count(mutant.old) for path, text in sources.items() if mutant.old in text}
    if not counts:
        raise ValueError(
            f"mutant {mutant.name!r}: its old text is not in src any more. Update or remove the "
            f"mutant: {mutant.old!r}"
        )
    if sum(counts.values()) > 1:
        places = ", ".join(f"{count} in {path.name}" for path, count in counts.items())
        raise ValueError(f"mutant {mutant.name!r}: its old text must be unique, found {places}")
    return next(iter(counts))


def near_tests(module: Path, root: Path = ROOT) -> dict[Path, int]:
    """Return test files that import a module directly (1) or indirectly (2, ...), nearest first.

    Among equally near ones, the test file of the module and then those of its folder are first.
    """
    importers: dict[Path, set[Path]] = collections.defaultdict(set)
    for importer, imported in _imports(root).items():
        for one in imported:
            importers[one].add(importer)
    distance, left = {module: 0}, collections.deque([module])
    while left:
        near = left.popleft()
        for far in importers[near] - distance.keys():
            distance[far] = distance[near] + 1
            left.append(far)
    found = {path: steps for path, steps in distance.items() if path.name.startswith("test_")}
    folder = module.relative_to(root / "src").parts[1:-1]

    def order(path: Path) -> tuple:
        other_name = path.stem.removeprefix("test_") != module.stem
        other_folder = path.relative_to(root / "tests").parts[:-1] != folder
        return found[path], other_name, other_folder, path

    return {path: found[path] for path in sorted(found, key=order)}


@functools.cache
def _imports(root: Path) -> dict[Path, set[Path]]:
    """Return the imported files of src and tests, for each file of src and tests."""
    modules = {}
    for top in ("src", "tests"):
        for path in (root / top).rglob("*.py"):
            parts = path.relative_to(root / top).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    files, found = {*modules.values()}, {}
    for path in files:
        names = set(_imported_names(ast.parse(path.read_text())))
        found[path] = {modules[name] for name in names if name in modules}
        # Tests import what their conftest imports.
        found[path] |= files & {folder / "conftest.py" for folder in path.parents}
    return found


def _imported_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def run_pytest(tree: Path, arguments: Iterable[str], timeout: float) -> tuple[str, list[str]]:
    """Run tests in a copy of the tree; return the result and the tests that failed or timed out.

    A test times out if pytest prints nothing for `timeout` seconds.
    """
    command = [
        sys.executable, "-m", "pytest", "-n", "0", "-v", "--tb=no", "--no-header",
        "--ignore=tests/mutants", *(f"--deselect={test}" for test in GOLDEN), *arguments,
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        # Kept between calls; a changed program has another key.
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".pytest_cache" / f"mutants-{tree.name}"),
    }
    output = ""
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    ) as process, selectors.DefaultSelector() as waiting:  # fmt: skip
        assert process.stdout is not None
        waiting.register(process.stdout, selectors.EVENT_READ)
        try:
            while waiting.select(timeout):
                chunk = os.read(process.stdout.fileno(), 2**16)
                if not chunk:
                    break
                output += chunk.decode(errors="replace")
            else:
                running = re.findall(r"^(tests/\S+::.*?)(?: [A-Z]+ |\s*$)", output, re.MULTILINE)
                return TIMEOUT, running[-1:]
            status = process.wait()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", output, re.MULTILINE)
    # 4: a test recorded in results.json is gone. 5: all of these tests are slow.
    if not failed and status not in (0, 4, 5):
        raise RuntimeError(f"pytest ended with status {status}:\n{output[-3000:]}")
    return (KILLED if failed else SURVIVED), failed


class Workshop:
    """Copies of the tree to plant bugs in, one per job, and one without bugs."""

    def __init__(self, folder: Path, asked: argparse.Namespace) -> None:
        self._folder, self._asked = folder, asked
        self._sources = read_sources()
        self._trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for job in range(asked.jobs):
            self._trees.put(self._copy(str(job)))
        self._clock = itertools.count(10**9)
        self.unsound: set[str] = set()
        """Tests that fail without a bug."""

    def attempt(self, mutant: Mutant, remembered: str) -> Row:
        """Plant a mutant, run the tests near it, and remove it again."""
        module = locate(mutant, self._sources)
        place, text = module.relative_to(ROOT), self._sources[module]
        near = near_tests(module).items()
        files = [str(path.relative_to(ROOT)) for path, steps in near if steps <= self._asked.reach]
        stages = [[remembered] if remembered not in ("", *self.unsound) else [], files]
        stages += [["tests"]] if self._asked.whole else []
        tree, began = self._trees.get(), time.monotonic()
        self._write(tree / place, text.replace(mutant.old, mutant.new))
        result, tests = SURVIVED, [""]
        try:
            for stage in filter(None, stages):
                leave_out = [f"--deselect={test}" for test in self.unsound]
                result, tests = run_pytest(tree, ["-x", *leave_out, *stage], self._asked.timeout)
                if result != SURVIVED:
                    break
        finally:
            self._write(tree / place, text)
            self._trees.put(tree)
        return {
            "mutant": mutant.name, "file": str(place.relative_to("src")), "result": result,
            "test": next(iter(tests), ""), "seconds": round(time.monotonic() - began, 1),
        }  # fmt: skip

    def find_unsound(self, tests: Iterable[str]) -> set[str]:
        """Return the tests that fail without a bug."""
        tree = self._folder / "pristine"
        tree = tree if tree.exists() else self._copy(tree.name)
        return {*run_pytest(tree, sorted(tests), self._asked.timeout)[1]}

    def _copy(self, name: str) -> Path:
        tree = self._folder / name
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT))
        return tree

    def _write(self, file: Path, text: str) -> None:
        """Change a module; a new modification time makes Python recompile it."""
        file.write_text(text)
        moment = next(self._clock)
        os.utime(file, (moment, moment))


def try_all(mutants: Sequence[Mutant], shop: Workshop, jobs: int) -> Iterator[Row]:
    """Yield a row per mutant; repeat mutants that were killed only by a test that always fails."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    remembered = {row["mutant"]: row["test"] for row in kept}
    left, sound = list(mutants), {""}
    while left:
        rows = []
        with concurrent.futures.ThreadPoolExecutor(jobs) as threads:
            known = (remembered.get(one.name, "") for one in left)
            for row in (threads.map if jobs > 1 else map)(shop.attempt, left, known):
                rows.append(row)
                yield row
        killers = {row["test"] for row in rows}
        broken = shop.find_unsound(killers - sound) if killers - sound else set()
        sound |= killers - broken
        shop.unsound |= broken
        left = [one for one, row in zip(left, rows, strict=True) if row["test"] in broken]


def table(rows: Iterable[Row]) -> str:
    """Return one line per mutant and the share that was killed."""
    rows = list(rows)
    columns = ("mutant", "file", "result", "test", "seconds")
    lines = [columns, *(tuple(str(row[column]) for column in columns) for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    counts = collections.Counter(row["result"] for row in rows)
    dead = counts[KILLED] + counts[TIMEOUT]
    share = f"{dead} of {len(rows)} killed ({100 * dead / max(1, len(rows)):.1f} %), "
    slow = f"{counts[TIMEOUT]} of them by a test that took too long; {counts[SURVIVED]} survived"
    return "\n".join([*text, "", share + slow])


def keep(rows: Mapping[str, Row]) -> None:
    """Write rows to results.json, keeping those of mutants that were not tried."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    merged = {row["mutant"]: row for row in kept} | rows
    listed = [merged[mutant.name] for mutant in read_mutants() if mutant.name in merged]
    RESULTS.write_text(json.dumps(listed, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-k", metavar="NAME", action="append", help="mutants whose names contain this"
    )
    parser.add_argument("--jobs", type=int, default=1, help="mutants in parallel")
    parser.add_argument("--timeout", type=float, default=240.0, help="maximum seconds per test")
    parser.add_argument("--reach", type=int, default=2, help="maximum distance of imports")
    parser.add_argument("--whole", action="store_true", help="run all quick tests for survivors")
    asked = parser.parse_args()
    # A background process ignores SIGINT, and the tests that send it would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = [one for one in read_mutants() if any(part in one.name for part in asked.k or [""])]
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        shop = Workshop(Path(folder), asked)
        for row in try_all(chosen, shop, asked.jobs):
            rows[row["mutant"]] = row
            print(*(row[name] for name in ("mutant", "result", "test", "seconds")), flush=True)
            keep(rows)
    print("", table(rows.values()), sep="\n")
    sys.exit(any(row["result"] == SURVIVED for row in rows.values()))


if __name__ == "__main__":
    main()
