"""Measure time and memory of loading a large log, compared with plain readers.

A synthetic log with 40 numbers per row (30 observations, 8 actions, the reward, and one for the
terminal and time-limit flags) is written as HDF5 in D4RL's layout, uncompressed and with gzip, as
npz, and as Parquet and CSV with a TOML file. Each file is read in two separate processes: by h5py,
NumPy or pyarrow alone, into arrays of the same shapes, and by `fat2thin.data.load`. The files have
no next observations; `load` computes them, 30 more numbers per row, and checks every number.

A process first reads its file once, which gives the peak memory (the maximum resident size,
including the interpreter and packages). It then reads the file a few more times, which gives the
median time. The first read also waits for the disk and for memory from the operating system, which
can take seconds on a virtual machine; its time is in the JSON file.
"""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet
import tyro
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from fat2thin.data import Dataset

OBSERVATION, ACTION, EPISODE_ROWS, BLOCK_ROWS = 30, 8, 1_000, 2**17
WIDE = {"observation": OBSERVATION, "action": ACTION}
ARRAYS = ("observation", "action", "reward", "terminal", "cut")
D4RL = dict(
    zip(ARRAYS, ("observations", "actions", "rewards", "terminals", "timeouts"), strict=True)
)
COLUMNS = {
    **{key: [f"{key}_{number}" for number in range(size)] for key, size in WIDE.items()},
    **{key: [key] for key in ARRAYS if key not in WIDE},
}
TOML = """observation = ["observation_*"]
action = ["action_*"]
reward = "reward"
end = "terminal"
cut = "cut"
action_low = -1
action_high = 1
discount = 0.99
"""
GIB = 2**30


@dataclass(frozen=True)
class Cost:
    """Time and memory of one task in a separate process."""

    seconds: float
    first_seconds: float
    peak_gib: float
    arrays_gib: float
    """Size of the loaded arrays."""
    start_gib: float
    """Resident memory before the task."""


@dataclass(frozen=True)
class Row:
    """One row of the table: a file format, or a task on the loaded log."""

    what: str
    rows: int
    file_gib: float
    plain: Cost | None
    ours: Cost


def log(rows: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the log in blocks of rows; half of the episodes terminate, half hit a time limit."""
    for start in range(0, rows, BLOCK_ROWS):
        size = min(BLOCK_ROWS, rows - start)
        draw = np.random.default_rng(start)
        episode, step = np.divmod(np.arange(start, start + size), EPISODE_ROWS)
        over = step == EPISODE_ROWS - 1
        yield {
            "observation": draw.standard_normal((size, OBSERVATION), np.float32),
            "action": draw.uniform(-0.99, 0.99, (size, ACTION)).astype(np.float32),
            "reward": draw.standard_normal(size, np.float32),
            "terminal": over & (episode % 2 == 0),
            "cut": over & (episode % 2 == 1),
        }


def write_hdf5(path: Path, rows: int, compression: str | None = None) -> None:
    """Write an HDF5 file with D4RL's names."""
    with h5py.File(path, "w") as file:
        start = 0
        for block in log(rows):
            for key, array in block.items():
                if not start:
                    shape = (rows, *array.shape[1:])
                    file.create_dataset(D4RL[key], shape, array.dtype, compression=compression)
                file[D4RL[key]][start : start + len(array)] = array
            start += len(block["reward"])


def write_gzip(path: Path, rows: int) -> None:
    """Write an HDF5 file with gzip compression, like D4RL's own files."""
    write_hdf5(path, rows, "gzip")


def write_npz(path: Path, rows: int) -> None:
    """Write the format of numpy.savez, block by block."""
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for key in ARRAYS:
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                for number, block in enumerate(log(rows)):
                    array = block[key]
                    if not number:
                        header = {
                            "descr": array.dtype.str,
                            "fortran_order": False,
                            "shape": (rows, *array.shape[1:]),
                        }
                        np.lib.format.write_array_header_1_0(member, header)
                    member.write(array.tobytes())


def write_parquet(path: Path, rows: int) -> None:
    """Write a Parquet file with pyarrow's defaults, and its TOML file."""
    _write_table(path, rows, arrow_parquet.ParquetWriter)


def write_csv(path: Path, rows: int) -> None:
    """Write a CSV file and its TOML file."""
    _write_table(path, rows, arrow_csv.CSVWriter)


def _write_table(path: Path, rows: int, writer: Callable) -> None:
    path.with_suffix(".toml").write_text(f'files = ["{path.name}"]\n{TOML}')
    tables = (_table(block) for block in log(rows))
    first = next(tables)
    with writer(path, first.schema) as file:
        file.write_table(first)
        for table in tables:
            file.write_table(table)


def _table(block: dict[str, np.ndarray]) -> pa.Table:
    return pa.table(
        {
            name: column
            for key, names in COLUMNS.items()
            for name, column in zip(names, block[key].reshape(len(block[key]), -1).T, strict=True)
        }
    )


def read_hdf5(path: Path) -> dict[str, np.ndarray]:
    """Read the log with h5py."""
    with h5py.File(path) as file:
        return {key: file[name][:] for key, name in D4RL.items()}


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read the log with NumPy."""
    with np.load(path) as file:
        return {key: file[key] for key in ARRAYS}


def read_parquet(path: Path) -> dict[str, np.ndarray]:
    """Read the log with pyarrow."""
    return _arrays(arrow_parquet.read_table(path))


def read_csv(path: Path) -> dict[str, np.ndarray]:
    """Read the log with pyarrow."""
    return _arrays(arrow_csv.read_csv(path))


def _arrays(table: pa.Table) -> dict[str, np.ndarray]:
    arrays = {}
    for key, names in COLUMNS.items():
        columns = [table[name].to_numpy() for name in names]
        arrays[key] = np.stack(columns, axis=1, dtype=np.float32, casting="unsafe")
    return arrays


@dataclass(frozen=True)
class Format:
    """A file format with its writer and plain reader."""

    name: str
    file: str
    write: Callable[[Path, int], None]
    read: Callable[[Path], dict[str, np.ndarray]]


FORMATS = (
    Format("HDF5", "plain.hdf5", write_hdf5, read_hdf5),
    Format("HDF5, gzip", "gzip.hdf5", write_gzip, read_hdf5),
    Format("npz", "log.npz", write_npz, read_npz),
    Format("Parquet", "parquet.parquet", write_parquet, read_parquet),
    Format("CSV", "csv.csv", write_csv, read_csv),
)
TASKS = ("write", "plain", "ours", "check", "summarise")


def run_task(task: str, chosen: Format, path: Path, rows: int, repetitions: int) -> Cost:
    """Run one task in this process and return its cost."""
    work, dataset = _prepared(task, chosen, path, rows)
    start_gib = _peak_gib()
    first_seconds, size = _timed(work)
    peak_gib = _peak_gib()
    seconds = [_timed(work)[0] for _ in range(repetitions)] or [first_seconds]
    arrays_gib = (size if dataset is None else _size(dataset)) / GIB
    return Cost(statistics.median(seconds), first_seconds, peak_gib, arrays_gib, start_gib)


def _timed(work: Callable[[], Any]) -> tuple[float, int]:
    """Return the seconds of `work` and the bytes of the arrays it returned, which are freed."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, _size(result)


def _prepared(
    task: str, chosen: Format, path: Path, rows: int
) -> tuple[Callable[[], Any], "Dataset | None"]:
    """Return the function to time, and the data set loaded before it, if any."""
    if task == "write":
        return lambda: chosen.write(path, rows), None
    if task == "plain":
        return lambda: chosen.read(path), None
    # Imported here so that it does not add to the memory of the plain readers.
    from fat2thin import data
    from fat2thin.data.checks import check
    from fat2thin.data.summary import summarise

    if task == "ours":
        return lambda: data.load(str(path)), None
    dataset = data.load(str(path))

    def look() -> Any:
        # The hash is cached; remove it so that every repetition computes it.
        vars(dataset).pop("sha256", None)
        return check(dataset) if task == "check" else summarise(dataset)

    return look, dataset


def _size(held: Any) -> int:
    """Return the bytes of the arrays of a log; 0 for anything else."""
    arrays = held if isinstance(held, dict) else vars(held) if held is not None else {}
    return sum(array.nbytes for array in arrays.values() if isinstance(array, np.ndarray))


def _peak_gib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / GIB


def measured(task: str, chosen: Format, path: Path, rows: int, repetitions: int = 0) -> Cost:
    """Run one task in a separate process and return its cost."""
    command = [sys.executable, __file__, task, chosen.name, str(path), str(rows), str(repetitions)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"{task}, {chosen.name}: {answer.stderr}")
    return Cost(**json.loads(answer.stdout))


def measure(folder: Path, rows: int, csv_rows: int, repetitions: int) -> list[Row]:
    """Write, read and delete the log in each format; also check and summarise the npz log."""
    found = []
    for chosen in FORMATS:
        count = csv_rows if chosen.name == "CSV" else rows
        path = folder / chosen.file
        measured("write", chosen, path, count)
        size = path.stat().st_size / GIB
        plain = measured("plain", chosen, path, count, repetitions)
        ours = measured("ours", chosen, path, count, repetitions)
        found.append(Row(chosen.name, count, size, plain, ours))
        if chosen.name == "npz":
            for task in ("check", "summarise"):
                cost = measured(task, chosen, path, count, repetitions)
                found.append(Row(task, count, size, None, cost))
        path.unlink()
        path.with_suffix(".toml").unlink(missing_ok=True)
    return found


def show(rows: list[Row], repetitions: int) -> None:
    """Print the table."""
    title = f"{rows[0].rows:,} rows of 40 numbers, median of {repetitions}"
    table = Table(title=title)
    table.add_column("format")
    headings = ("rows", "file, GiB", "plain, s", "ours, s", "ratio")
    memory = ("plain peak, GiB", "ours peak, GiB", "ratio", "ours arrays, GiB")
    for heading in (*headings, *memory):
        table.add_column(heading, justify="right")
    for row in rows:
        plain, ours = row.plain, row.ours
        table.add_row(
            row.what,
            f"{row.rows:,}",
            f"{row.file_gib:.2f}",
            f"{plain.seconds:.1f}" if plain else "-",
            f"{ours.seconds:.1f}",
            f"{ours.seconds / plain.seconds:.1f}" if plain else "-",
            f"{plain.peak_gib:.2f}" if plain else "-",
            f"{ours.peak_gib:.2f}",
            f"{ours.peak_gib / plain.peak_gib:.1f}" if plain else "-",
            f"{ours.arrays_gib:.2f}",
        )
    Console(width=120).print(table)


def main(
    rows: int = 10_000_000,
    csv_rows: int = 200_000,
    repetitions: int = 3,
    folder: Path | None = None,
    out: Path | None = None,
) -> None:
    """Measure and print the table, and write the numbers to a JSON file if given.

    Args:
        rows: Rows of the log.
        csv_rows: Rows of the CSV log, which is slower.
        repetitions: Timed reads after the first.
        folder: Parent folder of the temporary files.
        out: JSON file for the numbers.
    """
    with tempfile.TemporaryDirectory(dir=folder) as place:
        found = measure(Path(place), rows, csv_rows, repetitions)
    show(found, repetitions)
    if out is not None:
        result = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "versions": {
                "numpy": np.__version__,
                "h5py": h5py.__version__,
                "pyarrow": pa.__version__,
            },
            "repetitions": repetitions,
            "rows": [asdict(row) for row in found],
        }
        out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in TASKS:
        wanted = next(one for one in FORMATS if one.name == sys.argv[2])
        cost = run_task(sys.argv[1], wanted, Path(sys.argv[3]), *map(int, sys.argv[4:]))
        print(json.dumps(asdict(cost)))
    else:
        tyro.cli(main)
