"""Check whether killed and resumed runs are bit-identical to uninterrupted ones on this device.

    python benchmarks/resume.py                      a table
    python benchmarks/resume.py --kills 8 --out resume.json

There are four ways of compiling: with and without XLA's deterministic operations on a GPU, with
compiled programs cached on disk or compiled again by each process. For each, an uninterrupted run
is compared with a second one, and with runs that were killed with SIGKILL and finished by a new
process. Metrics, evaluations and the final state of all seeds are compared byte for byte.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FILES = ("metrics.jsonl", "evaluations.npz", "state.safetensors")
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


class Machine:
    """Trains in processes that compile in one of the four ways."""

    def __init__(self, root: Path, options: argparse.Namespace, deterministic: bool, kept: bool):
        self.root, self.options = root, options
        flags = os.environ.get("XLA_FLAGS", "")
        self.environment = {
            **os.environ,
            "XLA_FLAGS": f"{flags} {DETERMINISTIC}" if deterministic else flags,
            "JAX_COMPILATION_CACHE_DIR": str(root / "compiled"),
            "JAX_ENABLE_COMPILATION_CACHE": str(kept).lower(),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }

    def start(self, folder: Path) -> subprocess.Popen:
        options = self.options
        settings = ["--set", f"hidden={options.hidden},{options.hidden}"]
        command = [
            sys.executable, "-m", "fat2thin", "train", options.algorithm, options.dataset,
            "--steps", str(options.steps), "--seeds", str(options.seeds),
            "--evaluate-every", str(options.steps // 4), "--episodes", "20",
            "--log-every", str(options.steps // 20), "--checkpoint-seconds", "0",
            "--out", str(folder), *settings,
        ]  # fmt: skip
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def whole(self, name: str) -> Path:
        folder = self.root / name
        finish(self.start(folder))
        return folder

    def killed(self, number: int) -> tuple[Path, int]:
        """Kill a run when part of its metrics is written, then finish it; return where it was."""
        folder = self.root / f"killed_{number}"
        rows = self.options.seeds * round(20 * (number + 0.5) / self.options.kills)
        process = self.start(folder)
        while process.poll() is None and lines(folder / "metrics.jsonl") < rows:
            time.sleep(0.005)
        process.kill()
        process.communicate()
        done = lines(folder / "metrics.jsonl") // self.options.seeds
        finish(self.start(folder))
        return folder, done * (self.options.steps // 20)


def finish(process: subprocess.Popen) -> None:
    _, errors = process.communicate()
    if process.returncode:
        sys.exit(errors.decode())


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def differing(one: Path, other: Path) -> list[str]:
    return [name for name in FILES if (one / name).read_bytes() != (other / name).read_bytes()]


def measure(options: argparse.Namespace) -> list[dict]:
    rows = []
    for deterministic, kept in itertools.product((True, False), (True, False)):
        with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(options.workers) as pool:
            machine = Machine(Path(root), options, deterministic, kept)
            reference = machine.whole("reference")
            about = json.loads((reference / "run.json").read_text())
            again = pool.submit(machine.whole, "again")
            killed = [*pool.map(machine.killed, range(options.kills))]
            row = {
                "deterministic operations": deterministic,
                "programs": "cached on disk" if kept else "compiled by each process",
                "device": about["device"],
                "second run equal": not differing(reference, again.result()),
                "killed": len(killed),
                "killed after": [step for _, step in killed],
                "equal": sum(not differing(reference, folder) for folder, _ in killed),
                "differing": sorted(
                    {name for folder, _ in killed for name in differing(reference, folder)}
                ),
            }
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", default="fttpo")
    parser.add_argument("--dataset", default="treatment/quadratic")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="parallel processes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = measure(options)
    print(
        f"{options.algorithm} on {options.dataset}, {options.seeds} seeds, {options.steps:,} steps"
    )
    print(f"on {rows[0]['device']}\n")
    print("| deterministic operations | programs | second run equal | killed | equal |")
    print("|---|---|---|---:|---:|")
    for row in rows:
        yes = {True: "yes", False: "no"}
        print(
            f"| {yes[row['deterministic operations']]} | {row['programs']} "
            f"| {yes[row['second run equal']]} | {row['killed']} | {row['equal']} |"
        )
    if options.out:
        options.out.write_text(json.dumps({"options": vars(options) | {"out": None}, "rows": rows}))


if __name__ == "__main__":
    main()
