"""Measure the cost of held-out signals: the same run with and without them, interleaved.

    python benchmarks/signals.py
    python benchmarks/signals.py --hidden 16,16 --dataset treatment/quadratic

A chunk has 250 updates, the default. Only the compiled chunks are timed, and the fastest of a few
rounds is reported.
"""

import argparse
import time

import jax
import numpy as np

from fat2thin.engine.devices import JobScheduler
from fat2thin.engine.pack import make_pack
from fat2thin.runs.identity import read_logs
from fat2thin.training import make_spec

CHUNK = 250


class Timed:
    """A run that is trained chunk by chunk."""

    def __init__(self, dataset: str, hidden: tuple[int, ...], holdout: float) -> None:
        select = "offline" if holdout else "last"
        spec = make_spec(
            "fttpo", dataset, steps=CHUNK, settings={"hidden": hidden}, holdout=holdout,
            select=select,
        )  # fmt: skip
        pack = make_pack([spec], read_logs([spec]))
        self._scheduler = JobScheduler(pack.program, pack.jobs, pack.data_size)
        self._data = pack.data(self._scheduler.replicated).at(0, CHUNK)
        self._states, self._step = self._scheduler.init(), 0

    def chunk(self) -> float:
        """Train the next chunk and return its seconds."""
        begun = time.perf_counter()
        self._states, report = self._scheduler.chunk(self._states, self._data, self._step, CHUNK)
        jax.block_until_ready(report)
        self._step += CHUNK
        return time.perf_counter() - begun


def main() -> None:
    """Time both runs interleaved and print the relative cost."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--dataset", default="treatment/quadratic")
    arguments.add_argument("--hidden", default="256,256")
    arguments.add_argument("--rounds", type=int, default=8)
    asked = arguments.parse_args()
    hidden = tuple(map(int, asked.hidden.split(",")))
    runs = {
        name: Timed(asked.dataset, hidden, share)
        for name, share in (("without", 0.0), ("with", 0.2))
    }
    for run in runs.values():
        run.chunk()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(asked.rounds):
        for name, run in runs.items():
            seconds[name].append(run.chunk())
    best = {name: min(of) for name, of in seconds.items()}
    print(f"{asked.dataset}, hidden {asked.hidden}, {jax.devices()[0].device_kind}")
    for name, of in seconds.items():
        print(f"{name:8s} {1e3 * best[name]:8.1f} ms per chunk (median {1e3 * np.median(of):.1f})")
    print(f"held-out signals and selection cost {100 * (best['with'] / best['without'] - 1):.1f} %")


if __name__ == "__main__":
    main()
