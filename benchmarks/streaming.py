"""Training from a window of a log against the whole log on the device: rate and memory.

    python benchmarks/streaming.py                                     20 million rows, one seed
    python benchmarks/streaming.py --rows 100000000 --seeds 10         for a GPU
    python benchmarks/streaming.py --rows 2000000 --rounds 3           quick
    python benchmarks/streaming.py --sampling                          scores, on four logs

Makes a robot log (17 observations, 6 actions) in --folder if it is not there, in bounded memory.
Then two processes train FtTPO from the same memory-mapped files, one with all rows on the device,
one with a window of --window rows (a tenth by default). They take turns, so both see the same load
of the machine. The peak is that of anonymous memory (RssAnon), sampled every 20 ms: pages of the
files are not part of it, arrays on a CPU device are. "Between chunks" is the share of the time in
which the device waits for rows. The last lines extrapolate to a billion rows.

`--sampling` compares returns: FtTPO with automatic settings on three logs, ten seeds from all rows
and from a window of a tenth of them; on the robot, 10,000 updates of 64 × 64 networks. A fourth log
is too small for a window: 50 patients, 3,000 updates with batches of 16. Policies are evaluated on
2,000 fresh patients, the same for all, or on 20 episodes. The last column is the mean difference of
a seed, with a 95 % bootstrap interval over seeds. It needs the extra mujoco and `fat2thin data make
regenerated/hopper-medium@100000`, and its data go to docs/results/streaming_sampling.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fat2thin
from fat2thin import data
from fat2thin.data import Dataset, save_mapped
from fat2thin.data.row_arrays import FollowingRows, RowArray
from fat2thin.engine.devices import JobScheduler
from fat2thin.engine.pack import make_pack
from fat2thin.engine.window import StreamedLog
from fat2thin.envs import treatment
from fat2thin.evaluation.returns import SCORE
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.policies.policy import Sampled
from fat2thin.runs.identity import read_logs
from fat2thin.settings.spec import make_spec
from fat2thin.tables import Table

OBSERVATIONS, ACTIONS, EPISODE = 17, 6, 1000
DIFFERENT, CHUNK, WARM_UP = 2**18, 250, 2
MODES = ("whole log", "window")
SEEDS, PATIENTS = 10, 2000
ROBOT = {"steps": 10_000, "evaluate_every": 10_000, "episodes": 20, "hidden": (64, 64)}
LOGS: dict[str, dict[str, Any]] = {
    "treatment/cubic@500": {},
    "treatment/quadratic@500": {},
    "regenerated/hopper-medium@100000": ROBOT,
    "treatment/cubic@50": {"batch_size": 16, "steps": 3000},
}
RESULTS = Path("docs/results/streaming_sampling.json")


class Repeated(RowArray):
    """A table of random numbers that repeats, each time with another sign and scale."""

    def __init__(self, rows: int, table: np.ndarray) -> None:
        self._table = table
        self.shape, self.dtype = (rows, *table.shape[1:]), table.dtype

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        found = self._table[numbers % DIFFERENT]
        factor = np.cos(numbers // DIFFERENT).astype(np.float32)
        return found * factor.reshape(-1, *(1,) * (found.ndim - 1))


class Ones(RowArray):
    """Continuations of a task without end."""

    def __init__(self, rows: int) -> None:
        self.shape, self.dtype = (rows,), np.dtype(np.float32)

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        return np.ones(rows.stop - rows.start if isinstance(rows, slice) else len(rows), np.float32)


def make_log(rows: int, folder: Path) -> None:
    """Write a log with episodes of `EPISODE` rows."""
    draw = np.random.default_rng(0)
    walk = np.cumsum(draw.normal(size=(DIFFERENT, OBSERVATIONS)), axis=0, dtype=np.float32)
    observation = Repeated(rows, walk / np.abs(walk).max(axis=0))
    starts = np.arange(0, rows, EPISODE)
    last = np.append(starts[1:], rows) - 1
    ends = draw.normal(size=(last.size, OBSERVATIONS)).astype(np.float32)
    action = draw.uniform(-1, 1, (DIFFERENT, ACTIONS)).astype(np.float32)
    reward = draw.normal(size=DIFFERENT).astype(np.float32)
    log = Dataset(
        name=str(folder), observation=observation, action=Repeated(rows, action),
        reward=Repeated(rows, reward), next_observation=FollowingRows(observation, last, ends),
        continuation=Ones(rows), episode_start=starts, action_low=(-1.0,) * ACTIONS,
        action_high=(1.0,) * ACTIONS, discount=0.99,
    )  # fmt: skip
    save_mapped(log, folder)


class Peak(threading.Thread):
    """Samples the anonymous memory of this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0

    def run(self) -> None:
        while True:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    self.bytes = max(self.bytes, int(line.split()[1]) * 1024)
            time.sleep(0.02)


def train(folder: str, seeds: int, window: int, updates: int) -> None:
    """Train rounds of updates, one per line of the standard input, and report each as JSON."""
    peak = Peak()
    peak.start()
    began = time.perf_counter()
    spec = make_spec(
        "fttpo", folder, steps=10**7, seeds=seeds, settings={"hidden": (256, 256)}, window=window,
        standardise=True, reward_scale="deviation", log_every=CHUNK, evaluate_every=10**6,
        task="none",
    )  # fmt: skip
    logs = read_logs([spec])
    pack = make_pack([spec], logs)
    scheduler = JobScheduler(pack.program, pack.jobs, pack.data_size)
    source = pack.data(scheduler.replicated)
    states, step, waited = scheduler.init(), 0, 0.0

    def advance() -> None:
        nonlocal states, step, waited
        timed = time.perf_counter()
        rows = source.at(step, CHUNK)
        waited += time.perf_counter() - timed
        states, report = scheduler.chunk(states, rows, step, CHUNK)
        jax.block_until_ready(report)
        step += CHUNK

    for _ in range(WARM_UP):
        advance()
    about: dict[str, Any] = {"bytes": pack.data_size, "ready": time.perf_counter() - began}
    if window:
        (log,) = logs[0]
        scaled = log.scales.apply(log.learned)
        streamed = StreamedLog(scaled, log.dataset.sha256, window, spec.batch_size, CHUNK)
        timed = time.perf_counter()
        streamed.read(streamed.order[-1])
        about["rows_read_a_second"] = streamed.blocks.size / (time.perf_counter() - timed)
    print(json.dumps(about), flush=True)
    for _ in sys.stdin:
        timed, waited = time.perf_counter(), 0.0
        for _ in range(updates // CHUNK):
            advance()
        took = time.perf_counter() - timed
        found = {"rate": updates / took, "waited": waited / took, "peak": peak.bytes}
        print(json.dumps(found), flush=True)
    source.close()


def sampling() -> Table:
    """Return mean returns after training from all rows, and from a tenth of them at a time."""
    rows, results = [], {}
    for name, options in LOGS.items():
        log = data.load(name, 0)
        learn = _on_patients if treatment.is_name(name) else _on_robot
        returns = [learn(name, log, window=window, **options) for window in (0, log.rows // 10)]
        whole, streamed = np.asarray(returns)
        results[name] = {"rows": log.rows, "whole log": returns[0], "window": returns[1]}
        rows.append(
            {
                "log": name,
                "rows": f"{log.rows:,}",
                "batches in the window": f"{log.rows / 10 / options.get('batch_size', 256):.1f}",
                "whole log": _interval(whole),
                "window": _interval(streamed),
                "window - whole": _interval(streamed - whole),
            }
        )
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    title = f"Mean return of FtTPO, {SEEDS} seeds, a window of a tenth of the rows"
    return Table(title, tuple(rows))


def _on_patients(name: str, log: Dataset, **options: Any) -> list[float]:
    run = fat2thin.train("fttpo", log, seeds=SEEDS, holdout=0.0, task="none", **options)
    task = treatment.by_name(name)
    found = [
        treatment.rollout(jax.random.key(1), Sampled(run.policy(one)), task, PATIENTS)
        for one in run.spec.seeds
    ]
    return [float(one.returns.mean()) for one in found]


def _on_robot(name: str, log: Dataset, **options: Any) -> list[float]:
    run = fat2thin.train("fttpo", name, seeds=SEEDS, **options)
    return run.evaluations[SCORE].returns[-1].tolist()


def _interval(values: np.ndarray) -> str:
    found = seed_interval(values[:, None])
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


class Child:
    """A process that trains in one way."""

    def __init__(self, mode: str, *arguments: object) -> None:
        command = [sys.executable, __file__, "--train", *map(str, arguments)]
        environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        self.mode, self.peak = mode, 0
        self.rates: list[float] = []
        self.waited: list[float] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.about = self._answer()
        print(f"{mode}: ready after {self.about['ready']:.0f} s", flush=True)

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def round(self) -> None:
        """Train a round of updates."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        found = self._answer()
        self.rates.append(found["rate"])
        self.waited.append(found["waited"])
        self.peak = max(self.peak, int(found["peak"]))

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--window", type=int, default=0, help="rows; a tenth by default")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=2000, help="per round")
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--sampling", action="store_true", help="compare returns instead")
    options = parser.parse_args()
    if options.sampling:
        print(sampling())
        return
    if options.train:
        train(options.train[0], *map(int, options.train[1:]))
        return
    window = options.window or options.rows // 10
    place = options.folder / f"robot-{options.rows}.npy"
    if not place.exists():
        began = time.perf_counter()
        make_log(options.rows, place)
        print(f"{place}: made in {time.perf_counter() - began:.0f} s", flush=True)
    size = sum(file.stat().st_size for file in place.iterdir())
    print(f"{options.rows:,} rows, {size / options.rows:.1f} bytes each on disk", flush=True)
    both = [
        Child(mode, place, options.seeds, rows, options.updates)
        for mode, rows in zip(MODES, (0, window), strict=True)
    ]
    for _ in range(options.rounds):
        for child in both:
            child.round()
    whole, streamed = both
    ratios = [one / two for one, two in zip(streamed.rates, whole.rates, strict=True)]
    rows = tuple(
        {
            "training from": child.mode,
            "rows on the device": f"{count:,}",
            "GiB of them": f"{child.about['bytes'] / 2**30:.2f}",
            "updates/s": f"{statistics.median(child.rates):,.0f}",
            "of the whole log's": f"{statistics.median(of_whole):.3f} "
            f"({min(of_whole):.3f} to {max(of_whole):.3f})",
            "between chunks": f"{100 * statistics.median(child.waited):.1f} %",
            "peak anonymous GiB": f"{child.peak / 2**30:.2f}",
        }
        for child, count, of_whole in (
            (whole, options.rows, [1.0]),
            (streamed, window, ratios),
        )
    )
    device = jax.devices()[0].device_kind
    title = f"FtTPO, {options.seeds} seed(s), {options.rows:,} rows, {device}"
    print(Table(title, rows, (f"median of {options.rounds} rounds of {options.updates} updates",)))
    rate = statistics.median(streamed.rates)
    drawn, read = rate * 256, streamed.about["rows_read_a_second"]
    print(f"The window takes in {drawn:,.0f} rows/s; one thread reads {read:,.0f} rows/s.")
    disk, hours = 1e9 * size / options.rows / 2**30, 1e9 / drawn / 3600
    print(f"On paper, a billion rows: {disk:.0f} GiB on disk, {hours:.1f} h for one pass of the")
    print("window. Its memory is that above: it depends on the window, not on the log.")
    for child in both:
        child.end()


if __name__ == "__main__":
    main()
