"""Fuzzing with damaged and hostile files: reading gives a data set or a DataFileError.

Files are read in a child process with a memory limit, so that a crash is noticed. Run by hand:
python tests/data/test_fuzz_arrays.py SEED COUNT KIND...
"""

import collections
import io
import json
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

ROWS, OBSERVATION, ACTION = 12, 3, 2
MEMORY_LIMIT = 2**22
"""Memory limit of a reader in bytes; the files are smaller than a thousandth of it."""
MOST_MEMORY = 2**26
"""Largest growth of the child's memory: the limit plus overhead of the interpreter."""
SECONDS = 20
"""Time after which reading a file counts as a hang: about a thousand times the usual."""
NUMBERS = (0, 1, 2, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def columns(rng: np.random.Generator) -> dict[str, np.ndarray]:
    observation = rng.normal(size=(ROWS + 1, OBSERVATION)).astype(np.float32)
    end = np.arange(ROWS) % 4 == 3
    return {
        "observation": observation[:-1],
        "action": rng.uniform(-1, 1, (ROWS, ACTION)).astype(np.float32),
        "reward": rng.normal(size=ROWS),
        "terminal": end & (np.arange(ROWS) < 6),
        "cut": end & (np.arange(ROWS) > 6),
        "next_observation": observation[1:],
    }


def npz(rng: np.random.Generator, compressed: bool) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **columns(rng))
    return file.getvalue()


def hdf5(rng: np.random.Generator, latest: bool, **storage) -> bytes:
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    file = io.BytesIO()
    with h5py.File(file, "w", libver="latest" if latest else "earliest") as out:
        for name, column in zip(names, columns(rng).values(), strict=True):
            out.create_dataset(name, data=column, **storage)
        out.attrs["action_low"] = np.full(ACTION, -1.0)
        out.attrs["action_high"] = np.full(ACTION, 1.0)
        out.create_dataset("infos/goal", data=np.zeros(3))
    return file.getvalue()


PACKED = {"chunks": True, "compression": "gzip", "shuffle": True}
KINDS: dict[str, Callable[[np.random.Generator], bytes]] = {
    "npz": lambda rng: npz(rng, compressed=True),
    "npz-stored": lambda rng: npz(rng, compressed=False),
    "hdf5": lambda rng: hdf5(rng, latest=False),
    "hdf5-packed": lambda rng: hdf5(rng, latest=False, **PACKED),
    "hdf5-latest": lambda rng: hdf5(rng, latest=True, **PACKED),
}


def flip_bits(data: bytearray, rng: np.random.Generator) -> bytearray:
    for place in rng.integers(0, len(data), rng.integers(1, 9)):
        data[place] ^= 1 << int(rng.integers(8))
    return data


def truncate(data: bytearray, rng: np.random.Generator) -> bytearray:
    return data[: int(rng.integers(0, len(data)))]


def overwrite_number(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Replace a size, count or address of 1 to 8 bytes by an extreme value."""
    width = int(rng.choice([1, 2, 4, 8]))
    number = int(NUMBERS[rng.integers(len(NUMBERS))]) % 2 ** (8 * width)
    place = int(rng.integers(0, len(data) - width))
    data[place : place + width] = number.to_bytes(width, "little")
    return data


def move_bytes(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Copy a piece of the file over another, like mixed-up disk blocks."""
    width = int(rng.integers(1, 65))
    source, place = (int(start) for start in rng.integers(0, len(data) - width, 2))
    data[place : place + width] = data[source : source + width]
    return data


def edit_header(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Change words of a header: shape, type or name."""
    words = {
        b"(12, 3)": (b"(-2, 3)", b"(12, 9)", b"(3, 12)", b"(99999)", b"(12,,3)"),
        b"(12, 2)": (b"(12, 0)", b"(0, 02)", b"(1 , 2)"),
        b"(12,)": (b"(99,)", b"(12 )", b"(1e9)"),
        b"<f4": (b"|O8", b">f4", b"<i4", b"<U1", b"<c8", b"<f2"),
        b"<f8": (b"<i8", b"<M8", b"|V8", b"<u8"),
        b"|b1": (b"|i1", b"|S1", b"|O1"),
        b"False": (b"True ", b"False", b"None "),
        b"obs": (b"../", b"/tm", b"act"),
        b"PK": (b"KP", b"PP"),
        b"TREE": (b"SNOD", b"FREE"),
        b"OHDR": (b"OCHK", b"FRHP"),
    }
    for _ in range(int(rng.integers(1, 4))):
        old = list(words)[int(rng.integers(len(words)))]
        places = [place for place in range(len(data)) if data.startswith(old, place)]
        if places:
            place = int(rng.choice(places))
            new = words[old][int(rng.integers(len(words[old])))]
            data[place : place + len(old)] = new.ljust(len(old))[: len(old)]
    return data


def edit_member(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Damage a member of a valid zip before compression, so that its checksum is right."""
    if not data.startswith(b"PK"):
        return overwrite_number(flip_bits(data, rng), rng)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        chosen = int(rng.integers(len(old.namelist())))
        change = MUTATIONS[int(rng.integers(len(MUTATIONS) - 1))]
        for number, name in enumerate(old.namelist()):
            member = bytearray(old.read(name))
            new.writestr(name, bytes(change(member, rng) if number == chosen else member))
    return bytearray(out.getvalue())


MUTATIONS = (flip_bits, truncate, overwrite_number, move_bytes, edit_header, edit_member)


def mutants(kind: str, seed: int, count: int) -> Iterator[bytes]:
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    valid = KINDS[kind](rng)
    for number in range(count):
        yield bytes(MUTATIONS[number % len(MUTATIONS)](bytearray(valid), rng))


def outcome(path: Path) -> str:
    """Return the outcome of reading a file: "read", "refused", or what went wrong."""
    from fat2thin import data

    read = data.read_npz if path.suffix == ".npz" else data.read_hdf5
    try:
        dataset = read(path, memory_limit=MEMORY_LIMIT)
    except data.DataFileError as error:
        return "refused" if str(path) in str(error) else f"nameless: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    sizes = (dataset.observation_size, dataset.action_size)
    if sizes != (OBSERVATION, ACTION) or not 1 <= dataset.rows <= ROWS:
        return f"another structure: {sizes}, {dataset.rows} rows"
    return "read"


class Hang(BaseException):
    pass


def ring(*_):
    raise Hang


def report(kind: str, seed: int, count: int) -> dict:
    """Read every mutant; return the counts of outcomes and the growth of memory in bytes."""
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"mutant.{'npz' if kind.startswith('npz') else 'hdf5'}"
        path.write_bytes(KINDS[kind](np.random.default_rng(seed)))
        assert outcome(path) == "read"
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number, mutant in enumerate(mutants(kind, seed, count)):
            path.write_bytes(mutant)
            # Identifies the mutant if the process crashes.
            print(kind, number, file=sys.stderr)
            signal.alarm(SECONDS)
            what = outcome(path)
            signal.alarm(0)
            counts[what if what in ("read", "refused") else f"mutant {number}: {what}"] += 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return {"counts": counts, "grown": grown}


def child(seed: int, count: int, *kinds: str) -> None:
    """Print the reports of these kinds as JSON."""
    from fat2thin import data  # noqa: F401 (so that its memory does not count)

    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".*only .* ends episodes")
    warnings.filterwarnings("ignore", message=".*has no action box")
    signal.signal(signal.SIGALRM, ring)
    print(json.dumps({kind: report(kind, seed, count) for kind in kinds}))


def check(kinds: Iterable[str], seed: int, count: int, seconds: int) -> None:
    command = [sys.executable, __file__, str(seed), str(count), *kinds]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr[-500:]}"
    for kind, found in json.loads(done.stdout).items():
        counts = found["counts"]
        assert set(counts) == {"read", "refused"}, (kind, counts)
        assert sum(counts.values()) == count
        # If too few files are refused, the mutations do nothing.
        assert counts["refused"] > count / 10, (kind, counts)
        assert found["grown"] < MOST_MEMORY, kind


def test_a_damaged_file_is_read_or_refused():
    check(KINDS, seed=1, count=120, seconds=600)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_files_are_read_or_refused(kind):
    check([kind], seed=2, count=20_000, seconds=3600)


if __name__ == "__main__":
    child(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
