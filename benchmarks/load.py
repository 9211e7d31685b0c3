"""Stress tests: a million updates, 200 seeds, 256 environments, 1,000 run folders.

    python benchmarks/load.py                    all four, as a table
    python benchmarks/load.py memory seeds       only these two

Memory is the resident memory of the process as reported by Linux. `memory` reads it ten times
during the run, so that growth with the number of updates is visible.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import fat2thin
from fat2thin.data import Dataset
from fat2thin.data.formats.npz import save_npz
from fat2thin.training.progress import Silent

MEBI = 2**20


def resident() -> float:
    """Return the resident memory in mebibytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MEBI


def folder_size(folder: Path) -> float:
    """Return the size of all files in mebibytes."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / MEBI


class Watch(Silent):
    """Records the resident memory after every tenth of the updates."""

    def __init__(self) -> None:
        self.held: dict[int, float] = {}

    def begin(self, steps: int, seeds: int, part: str = "") -> None:
        self._every = steps // 10

    def advance(self, step: int) -> None:
        if step % self._every == 0:
            self.held[step] = resident()


def memory(folder: Path) -> str:
    """Train a small run for a million updates with checkpoints and evaluations."""
    watch, began = Watch(), time.perf_counter()
    fat2thin.train(
        "fttpo", "treatment/quadratic", steps=1_000_000, batch_size=8, hidden=(4,),
        settings_from="default",
        evaluate_every=50_000, episodes=4, log_every=500, out=folder / "long", progress=watch,
    )  # fmt: skip
    held = [watch.held[step] for step in sorted(watch.held)]
    return (
        f"1,000,000 updates in {time.perf_counter() - began:,.0f} s: "
        f"{', '.join(f'{one:.0f}' for one in held)} MiB after each tenth, "
        f"{held[-1] - held[1]:+.1f} MiB from the second to the last; "
        f"folder {folder_size(folder / 'long'):.1f} MiB"
    )


def seeds(folder: Path) -> str:
    """Train 200 seeds in one call, each with its own log."""
    began = time.perf_counter()
    run = fat2thin.train(
        "fttpo", "treatment/quadratic", steps=100, seeds=200, hidden=(64, 64),
        settings_from="default",
        evaluate_every=100, episodes=4, out=folder / "seeds", progress=Silent(),
    )  # fmt: skip
    returns = run.evaluations["actor_sampled"].returns
    assert returns.shape == (2, 200, 4) and np.all(np.isfinite(returns))
    return (
        f"200 seeds × 100 updates, 2 evaluations of 4 episodes, in "
        f"{time.perf_counter() - began:,.0f} s; {resident():,.0f} MiB resident, folder "
        f"{folder_size(folder / 'seeds'):.0f} MiB"
    )


def environments(folder: Path) -> str:
    """Evaluate two policies in two ways with 64 episodes each: 256 Gymnasium environments."""
    generator = np.random.default_rng(0)
    observation = generator.normal(size=(400, 3)).astype(np.float32)
    log = Dataset(
        name="made up", observation=observation,
        action=generator.uniform(-2.0, 2.0, (400, 1)).astype(np.float32),
        reward=generator.normal(size=400).astype(np.float32),
        next_observation=np.roll(observation, -1, axis=0),
        continuation=np.ones(400, np.float32), episode_start=np.arange(0, 400, 200),
        action_low=(-2.0,), action_high=(2.0,), discount=0.99,
    )  # fmt: skip
    save_npz(log, folder / "pendulum.npz")
    began = time.perf_counter()
    run = fat2thin.train(
        "fttpo", str(folder / "pendulum.npz"), steps=100, hidden=(16,), evaluate_every=50,
        settings_from="default", seeds=1, holdout=0.0,
        episodes=64, task="Pendulum-v1", out=folder / "environments", progress=Silent(),
    )  # fmt: skip
    played = run.about["rollouts"]
    assert run.evaluations["actor_sampled"].returns.shape == (3, 1, 64)
    return (
        f"3 evaluations in 256 parallel environments of Pendulum-v1: {played['steps']:,} steps, "
        f"{played['steps_a_second']:,.0f} per second; {time.perf_counter() - began:,.0f} s in "
        f"total, {resident():,.0f} MiB resident"
    )


def folders(folder: Path) -> str:
    """Show 1,000 run folders in one table."""
    fat2thin.train(
        "bc", "treatment/quadratic", steps=100, hidden=(4,), episodes=2, evaluate_every=50,
        settings_from="default",
        out=folder / "many" / "run_0000", progress=Silent(),
    )  # fmt: skip
    places = [folder / "many" / f"run_{number:04d}" for number in range(1000)]
    for place in places[1:]:
        shutil.copytree(places[0], place)
    began = time.perf_counter()
    command = [sys.executable, "-m", "fat2thin", "show", *map(str, places)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = sum("run_" in line for line in shown.stdout.splitlines())
    assert lines == len(places), lines
    return f"`fat2thin show` with 1,000 run folders: {time.perf_counter() - began:.1f} s"


LOADS: dict[str, Callable[[Path], str]] = {
    one.__name__: one for one in (memory, seeds, environments, folders)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("loads", nargs="*", help=f"any of {', '.join(LOADS)}; default: all")
    parser.add_argument("--here", action="store_true", help="run in this process and print JSON")
    options = parser.parse_args()
    for name in options.loads or LOADS:
        with tempfile.TemporaryDirectory() as folder:
            if options.here:
                print(json.dumps(LOADS[name](Path(folder))))
                continue
            command = [sys.executable, __file__, name, "--here"]
            found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            print(f"| {name} | {json.loads(found.stdout.splitlines()[-1])} |", flush=True)


if __name__ == "__main__":
    main()
