"""Make the regenerated robot data sets: roll out stored actors, and write D4RL's layout.

Each data set is made in a process of its own, with one thread: its bytes depend on the seed, the
machine and the versions of the simulator, and not on the number of processes.
"""

import collections
import importlib.util
import math
import os
import selectors
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from fat2thin.atomic_files import write
from fat2thin.data.formats.d4rl import REGENERATED, ROBOT_SETS, SUFFIXES, place_of
from fat2thin.envs import TaskFailed
from fat2thin.envs.actor_rollouts import load_actors, plan, row_type
from fat2thin.envs.rollouts import ROBOTS, processors, start_process
from fat2thin.random_streams import LARGEST_SEED
from fat2thin.terminal_text import closest_first, counted, did_you_mean

NAMES = tuple(f"{REGENERATED}{name}" for name in ROBOT_SETS)
ALL = f"{REGENERATED}all"
ROWS = 200_000  # per actor of medium and medium-expert, and in medium-replay
RATE, START = 3_000, 2.0
"""Rows per second and seconds to start a process, for estimates: 2,300 (walker2d) to 4,400
(halfcheetah) rows per second of CPU time were measured on an x86 server."""
_MODULE = "fat2thin.envs.actor_rollouts"
_READ_AT_ONCE = 2**20  # bytes


class RobotSet(NamedTuple):
    """A data set to make."""

    name: str
    """Such as "regenerated/hopper-medium", with "@rows" unless it has the usual size."""
    robot: str
    level: str
    rows: int

    @property
    def size(self) -> int:
        """Bytes of its rows. The file is compressed, and a little smaller."""
        return self.rows * row_type(load_actors(self.robot)).itemsize


class MadeSet(NamedTuple):
    """A data set that was made."""

    name: str
    path: Path
    rows: int
    returns: np.ndarray
    """Sums of rewards, one per episode."""

    def __str__(self) -> str:
        episodes = counted(self.returns.size, "episode")
        mean, deviation = self.returns.mean(), self.returns.std()
        return f"{counted(self.rows, 'row')} in {episodes}, return {mean:.0f} ± {deviation:.0f}"


def robot_sets(names: Iterable[str], rows: int | None = None) -> list[RobotSet]:
    """Return the data sets of these names; "regenerated/all" stands for all nine.

    Without `rows`, a set has 200,000, and medium-expert 400,000. Any other number becomes part of
    the name ("regenerated/hopper-medium@2000"), so that no set is taken for a larger one.
    """
    found: dict[str, RobotSet] = {}
    for given in names:
        whole, at, number = given.partition("@")
        if whole not in (*NAMES, ALL) or (at and not number.isdecimal()):
            known = (*NAMES, ALL)
            hint, there = did_you_mean(whole, known), closest_first(whole, known)
            raise ValueError(f"no data set {given!r} can be made{hint}; there are {there}")
        if at and rows not in (None, int(number)):
            raise ValueError(f"{given} has {int(number):,} rows: leave out the {rows:,}")
        for name in NAMES if whole == ALL else (whole,):
            one = _robot_set(name, int(number) if at else rows)
            # A name with a number of rows is loaded by that name, whatever the usual size is.
            one = one._replace(name=f"{name}@{one.rows}") if at else one
            found[one.name] = one
    if not found:
        raise ValueError(f"name a data set to make: {closest_first('', (*NAMES, ALL))}")
    return [*found.values()]


def _robot_set(name: str, rows: int | None) -> RobotSet:
    robot, _, level = name.removeprefix(REGENERATED).partition("-")
    actors = plan(load_actors(robot), level)
    usual = ROWS * len(actors) if level == "medium-expert" else ROWS
    rows = usual if rows is None else rows
    if rows < 2 * len(actors):
        complaint = f"{name} needs at least {2 * len(actors)} rows"
        raise ValueError(f"{complaint}, two per actor, and not {rows}")
    return RobotSet(name if rows == usual else f"{name}@{rows}", robot, level, rows)


def _processes(workers: int | None) -> int:
    """Return the number of worker processes, one per CPU by default."""
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    return workers or processors()


def describe_work(sets: Sequence[RobotSet], workers: int | None = None) -> str:
    """Return how many rows and megabytes these data sets have, and how long they will take."""
    workers = min(_processes(workers), len(sets))
    lasts = [START + one.rows / RATE for one in sets]
    seconds = max(sum(lasts) / workers, max(lasts))
    words = f"{math.ceil(seconds)} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    size = max(1, round(sum(one.size for one in sets) / 1e6))
    rows = counted(sum(one.rows for one in sets), "row")
    return (
        f"{counted(len(sets), 'data set')}, {rows}, {size} MB, about {words} in "
        f"{workers} process{'es' * (workers != 1)} if each makes {RATE:,} rows per second"
    )


def make(
    names: str | Iterable[str],
    rows: int | None = None,
    seed: int = 0,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[MadeSet]:
    """Make regenerated data sets where `fat2thin.data.load` finds them, and return what was made.

    For names and `rows` see `robot_sets`. `out` is an HDF5 file for a single set, or a folder.
    Existing files are an error unless `overwrite` is true. Sets are made in parallel by at most
    `workers` processes, one per CPU by default. `progress` is called with the number of rows so
    far. A file appears when it is complete; after an error the finished ones stay.
    """
    wanted = check(names, rows, out, overwrite)
    processes = _processes(workers)
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"the seed must lie in [0, {LARGEST_SEED}], not {seed}")
    for folder in {path.parent for path in wanted.values()}:
        folder.mkdir(parents=True, exist_ok=True)
    return _make_all(wanted, seed, processes, progress)


def check(
    names: str | Iterable[str],
    rows: int | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> dict[RobotSet, Path]:
    """Return the data sets that `make` would make, and their files; raise its errors."""
    sets = robot_sets([names] if isinstance(names, str) else names, rows)
    wanted = dict(zip(sets, _destinations(sets, out), strict=True))
    for path in wanted.values():
        if path.is_dir():
            raise ValueError(f"{path} is a folder: choose another name")
        if path.exists() and not overwrite:
            raise ValueError(f"{path} exists; --overwrite replaces it")
    if not mujoco_is_installed():
        raise ValueError(
            "regenerated data sets are rolled out in MuJoCo, which is not installed: "
            'pip install "fat2thin[mujoco]"'
        )
    return wanted


def mujoco_is_installed() -> bool:
    """Return whether the simulator is there, without importing it."""
    return importlib.util.find_spec("mujoco") is not None


def _destinations(sets: Sequence[RobotSet], out: str | Path | None) -> list[Path]:
    if out is None:
        return [place_of(one.name) for one in sets]
    out = Path(out)
    if out.is_dir():
        return [out / place_of(one.name).name for one in sets]
    if out.suffix.lower() not in SUFFIXES or len(sets) > 1:
        kinds = "an existing folder" if len(sets) > 1 else f"a file that ends in {SUFFIXES[0]}"
        what = counted(len(sets), "data set")
        raise ValueError(f"{what} cannot be written to {out}: name {kinds}")
    if not out.parent.is_dir():
        raise ValueError(f"folder {out.parent} does not exist: create it, or choose another one")
    return [out]


class _Maker:
    """A process that makes one data set, and the rows that it has sent."""

    def __init__(self, wanted: RobotSet, path: Path, seed: int) -> None:
        self.wanted, self.path, self._seed = wanted, path, seed
        self._weights = load_actors(wanted.robot)
        self._rows = np.empty(wanted.rows, row_type(self._weights))
        self._bytes, self._received = self._rows.view(np.uint8), 0
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115
        order = {**wanted._asdict(), "task": ROBOTS[wanted.robot], "seed": seed}
        del order["name"]
        self.process = start_process(_MODULE, order, stderr=self._messages)
        assert self.process.stdout is not None
        self.output = self.process.stdout

    @property
    def done(self) -> int:
        """Number of rows received."""
        return self._received // self._rows.itemsize

    def receive(self) -> bool:
        """Store what the process has sent; return False if it has ended."""
        sent = os.read(self.output.fileno(), _READ_AT_ONCE)
        place = slice(self._received, self._received + len(sent))
        self._bytes[place] = np.frombuffer(sent, np.uint8)
        self._received += len(sent)
        return bool(sent)

    def finish(self) -> MadeSet:
        """Write the file, once the process has ended; raise an error if rows are missing."""
        if self.process.wait() != 0 or self._received != len(self._bytes):
            self._messages.seek(0)
            lines = self._messages.read().decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else "its process ended without a message"
            raise TaskFailed(f"{self.wanted.name} cannot be made: {reason}")
        columns = {name: np.ascontiguousarray(self._rows[name]) for name in self._rows.dtype.names}
        with h5py.File(self.path.name, "w", driver="core", backing_store=False) as file:
            for name, column in columns.items():
                file.create_dataset(name, data=column, compression="gzip", shuffle=True)
            file.attrs.update(self._about())
            file.flush()
            write(self.path, file.id.get_file_image())
        ends = np.flatnonzero(columns["terminals"] | columns["timeouts"])
        starts = np.concatenate([[0], ends[:-1] + 1])
        returns = np.add.reduceat(columns["rewards"].astype(np.float64), starts)
        return MadeSet(self.wanted.name, self.path, self.wanted.rows, returns)

    def _about(self) -> dict[str, Any]:
        level, robot = self.wanted.level, self.wanted.robot
        actors = str(plan(self._weights, level))
        return {"task": ROBOTS[robot], "level": level, "seed": self._seed, "actors": actors}

    def close(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.output, self._messages):
            if stream is not None:
                stream.close()


def _make_all(
    wanted: Mapping[RobotSet, Path],
    seed: int,
    workers: int,
    progress: Callable[[int], None] | None,
) -> list[MadeSet]:
    # The longest first: they end last.
    waiting = collections.deque(sorted(wanted.items(), key=lambda pair: -pair[0].rows))
    running: list[_Maker] = []
    made: list[MadeSet] = []
    try:
        with selectors.DefaultSelector() as sending:
            while waiting or running:
                while waiting and len(running) < workers:
                    running.append(_Maker(*waiting.popleft(), seed))
                    sending.register(running[-1].output, selectors.EVENT_READ, running[-1])
                for key, _ in sending.select():
                    maker = key.data
                    if not maker.receive():
                        sending.unregister(maker.output)
                        made.append(maker.finish())
                        maker.close()
                        running.remove(maker)
                if progress is not None:
                    rows = sum(one.rows for one in made)
                    progress(rows + sum(maker.done for maker in running))
    finally:
        for maker in running:
            maker.close()
    paths = [*wanted.values()]
    return sorted(made, key=lambda one: paths.index(one.path))
