"""Hundreds of damaged and hostile run folders are loaded or refused, and do nothing else.

What is refused names its file. Nothing is unpickled, imported or opened that a file names, and the
memory taken has a limit. The many are read in a child process, whose crash is seen. Run by hand:
python tests/runs/test_fuzz_folder.py FOLDER SEED
"""

import collections
import contextlib
import copy
import functools
import hashlib
import io
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from fat2thin import algorithms
from fat2thin.engine import loop
from fat2thin.engine.pack import jobs_of, make_program
from fat2thin.evaluation.returns import Evaluation, Reference
from fat2thin.runs import checkpoints, files, folder
from fat2thin.runs.checkpoints import Place
from fat2thin.runs.folder import RunFolder
from fat2thin.runs.identity import identity_of
from fat2thin.runs.result import MetricColumns
from fat2thin.runs.verification import FAILED, NOT_POSSIBLE, OK, verify
from fat2thin.settings.spec import make_spec
from fat2thin.training import load
from fat2thin.training.runner import execute

MOST_MEMORY = 2**28
"""Bytes that reading one mutant may take; the files of the run have a few thousand."""
SECONDS = 30
"""Time after which reading one mutant counts as a hang: a thousand times the usual."""
SEEDS = (0, 1)
DEEP = "<deep>"
"""Placeholder for a hundred thousand nested lists in the text of a JSON file."""

Mutation = Callable[[bytes, random.Random], bytes]


# Bytes


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def insert(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + rng.randbytes(rng.choice([1, 2, 8, 300])) + data[place:]


def delete(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + data[place + rng.choice([1, 2, 8, 300]) :]


def swap(data: bytes, rng: random.Random) -> bytes:
    """Exchange two pieces, as if blocks of a disk were mixed up."""
    first, second, third, fourth = sorted(rng.randrange(len(data) + 1) for _ in range(4))
    middle = data[second:third]
    return data[:first] + data[third:fourth] + middle + data[first:second] + data[fourth:]


def overwrite_number(data: bytes, rng: random.Random) -> bytes:
    """Replace a size, count or address by an extreme one."""
    width = rng.choice([1, 2, 4, 8])
    number = rng.choice([0, 1, 127, 255, 2**16 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1])
    # The first bytes matter most.
    place = rng.choice([0, rng.randrange(len(data))])
    return (
        data[:place] + (number % 2 ** (8 * width)).to_bytes(width, "little") + data[place + width :]
    )


BYTES: tuple[Mutation, ...] = (flip_bits, truncate, insert, delete, swap, overwrite_number)


# JSON


VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 0.5, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf,
    10**9, 2**31, 2**63, 10**30, 10**400, "", "x", "x" * 10_000, "\0", "\ud800", "../../other", "/",
    "nan", "1", "running", "diverged", "treatment/cubic", "d4rl/hopper-medium-v2", "os:Task-v0",
    [], {}, [[]], [{}], [None], {"": None}, [10**9, 10**9], [10**30], [-1], [0], [1, 1], [4, 4],
    ["x"], [math.nan], [1e308], list(range(3000)), [[[[[[[]]]]]]], DEEP, {"step": DEEP},
)  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key or index) in a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def change_json(value: Any, rng: random.Random) -> Any:
    """Return a copy with some values replaced, removed, renamed, repeated or exchanged."""
    changed = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        found = list(places(changed))
        if not found:
            return rng.choice(VALUES)
        where, key = rng.choice(found)
        match rng.randrange(8):
            case 0:
                del where[key]
            case 1 if isinstance(where, dict):
                where[rng.choice(["", "x", "step", "__class__", "a" * 5000])] = where.pop(key)
            case 2 if isinstance(where, list):
                where.extend([copy.deepcopy(where[key])] * rng.choice([1, 2, 300]))
            case 3:
                other, name = rng.choice(found)
                with contextlib.suppress(KeyError, IndexError):  # a moved value may be gone
                    where[key] = copy.deepcopy(other[name])
            case _:
                where[key] = copy.deepcopy(rng.choice(VALUES))
    return changed


def as_text(value: Any, **options: Any) -> bytes:
    deep = "[" * 100_000 + "]" * 100_000
    return json.dumps(value, **options).replace(json.dumps(DEEP), deep).encode()


def edit_json(data: bytes, rng: random.Random) -> bytes:
    return as_text(change_json(json.loads(data), rng), indent=2)


def edit_manifest(data: bytes, rng: random.Random) -> bytes:
    """Return a changed manifest with a correct checksum."""
    changed = change_json(json.loads(data), rng)
    if not isinstance(changed, dict):
        return as_text(changed)
    changed.pop("checksum", None)
    changed["checksum"] = hashlib.sha256(as_text(changed, indent=2) + b"\n").hexdigest()
    return as_text(changed, indent=2)


def edit_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines()
    match rng.randrange(4):
        case 0:
            rng.shuffle(lines)
        case 1:
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
        case _:
            place = rng.randrange(len(lines))
            lines[place] = as_text(change_json(json.loads(lines[place]), rng))
    return b"\n".join(lines) + b"\n"


# Arrays


def edit_header(data: bytes, rng: random.Random) -> bytes:
    """Return a safetensors file with another header, of the right or an absurd length."""
    length = int.from_bytes(data[:8], "little")
    header, numbers = json.loads(data[8 : 8 + length]), data[8 + length :]
    if rng.random() < 0.3:
        listed = json.loads(header["__metadata__"][files.TREE_FORMAT])
        header["__metadata__"][files.TREE_FORMAT] = as_text(change_json(listed, rng)).decode()
    elif rng.random() < 0.5:
        name = rng.choice([name for name in header if name != "__metadata__"])
        types = ["F64", "F32", "I32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "U64", "BOOL", "X"]
        offsets = [0, 4, 8, 2**40, 2**63, 2**64 - 1, len(numbers)]
        header[name][rng.choice(["dtype", "shape", "data_offsets"])] = rng.choice(
            [rng.choice(types), [rng.choice(offsets), rng.choice(offsets)], [2**32, 2**32]]
        )
    else:
        header = change_json(header, rng)
    text = as_text(header)
    said = rng.choice([len(text)] * 6 + [0, 2**27, 2**63, 2**64 - 1])
    return said.to_bytes(8, "little") + text + numbers


def hostile_arrays(rng: random.Random) -> tuple[Any, ...]:
    zeros = np.zeros((rng.choice([0, 1, 2]), rng.choice([1, 2]), rng.choice([0, 2])), np.float32)
    return (
        zeros, zeros[..., 0:0], zeros.astype(np.int8), np.zeros(()), np.zeros(2), np.zeros((3, 2)),
        np.zeros((2, 10**6)), np.array([0, 2**62]), np.array([4, 0]), np.array([-1, 4]),
        np.array(["a", "b"]), np.array([b"a"]), np.zeros(2, complex), np.zeros(2, "M8[s]"),
        np.zeros(2, [("a", "f4")]), np.array([Pickled(), None], object), np.full((2, 2, 2), np.nan),
    )  # fmt: skip


def edit_arrays(data: bytes, rng: random.Random) -> bytes:
    """Return an intact .npz with other arrays, other names, pickles, or far more zeros."""
    with np.load(io.BytesIO(data)) as file:
        arrays = dict(file)
    names = list(arrays)
    for _ in range(rng.choice([1, 1, 2])):
        name = rng.choice(names)
        match rng.randrange(5):
            case 0:
                arrays.pop(name, None)
            case 1:
                new = rng.choice(["", "x", "a/b/c", "/", "../x", "steps/returns", "x/returns"])
                arrays[new] = arrays.pop(name, np.zeros(2))
            case _:
                arrays[name] = rng.choice(hostile_arrays(rng))
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def edit_member(data: bytes, rng: random.Random) -> bytes:
    """Damage a member before it is zipped, so that its checksum is right."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        chosen = rng.randrange(len(old.namelist()))
        for number, name in enumerate(old.namelist()):
            member = old.read(name)
            new.writestr(name, rng.choice(BYTES)(member, rng) if number == chosen else member)
    return out.getvalue()


class Pickled:
    """An object that runs code if it is unpickled."""

    def __reduce__(self) -> tuple:
        return os.system, ("true",)


# Reading


class Kind:
    """A file of a run, how it is changed, and what reads it."""

    def __init__(
        self, path: Path, read: Callable[[], Any], *mutations: Mutation, share: int = 1
    ) -> None:
        self.path, self.read = path, read
        # Mutations that know the format alternate with those that do not.
        self.mutations = [*BYTES, *(mutation for mutation in mutations for _ in range(share))]
        self.valid = path.read_bytes()

    def mutants(self, rng: random.Random, count: int) -> Iterator[bytes]:
        for number in range(count):
            yield self.mutations[number % len(self.mutations)](self.valid, rng)


def kinds(run: Path) -> dict[str, Kind]:
    """Return the kinds of files by name, each with the reader that checks it most closely."""
    here = RunFolder(run)
    about = here.about()
    state, policies = like(run)
    ((place, step),) = checkpoints.listed(run)

    def metrics() -> None:
        found = MetricColumns(len(SEEDS), here.metrics_rows(SEEDS)).arrays()
        assert all(len(values) == len(found["step"]) for values in found.values())

    def evaluations() -> None:
        steps, found = here.evaluations(len(SEEDS))
        assert all(one.returns.shape[:2] == (len(steps), len(SEEDS)) for one in found.values())

    def arrays(path: Path, like: Any) -> Callable[[], None]:
        def read() -> None:
            found = files.load_tree(path, like)
            same = jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), found, like)
            assert all(jax.tree.leaves(same))

        return read

    def whole_run() -> None:
        found = load(run)
        said = json.loads((run / folder.RUN).read_bytes())["spec"]
        made = found.spec.to_json()["config"]
        assert all(_real(made[name]) == _real(value) for name, value in said["config"].items())
        assert list(found.spec.seeds) == said["seeds"]

    snapshot = run / "snapshots" / "step_000000002.safetensors"
    assert about["status"] == folder.FINISHED
    return {
        "run": Kind(run / folder.RUN, whole_run, edit_json, share=18),
        "metrics": Kind(run / folder.METRICS, metrics, edit_lines, share=6),
        "evaluations": Kind(
            run / folder.EVALUATIONS, evaluations, edit_arrays, edit_member, share=4
        ),
        "references": Kind(run / folder.REFERENCES, here.references, edit_json, share=12),
        "state": Kind(run / folder.STATE, arrays(run / folder.STATE, state), edit_header, share=12),
        "snapshot": Kind(snapshot, arrays(snapshot, policies), edit_header, share=12),
        "manifest": Kind(
            step / checkpoints.MANIFEST, lambda: checkpoints.read(step, place),
            edit_manifest, edit_json, share=9,
        ),
    }  # fmt: skip


def _real(value: Any) -> Any:
    """Return a whole number as a float, as it is after loading."""
    return float(value) if type(value) is int else value


def like(run: Path) -> tuple[Any, Any]:
    """Return the shapes of the states and of the policies of a run."""
    spec, problem, scales = identity_of(run / folder.RUN, RunFolder(run).about())
    program, jobs = make_program(spec, problem), jobs_of(spec, scales)
    state = eqx.filter_eval_shape(lambda jobs: loop.init(jobs, program=program), jobs)
    policies = eqx.filter_eval_shape(lambda *of: loop.policies(*of, program=program), state, jobs)
    return state, policies


class Forbidden:
    """Records forbidden actions of the process: it may only read files of a run."""

    listening: "Forbidden | None" = None

    def __init__(self, run: Path) -> None:
        self.run = str(run)
        self.seen: list[str] = []

    def hear(self, event: str, arguments: tuple) -> None:
        if event.startswith(FORBIDDEN) or (event == "import" and "gymnasium" in str(arguments[0])):
            self.seen.append(f"{event} {arguments}")
        if event == "open" and isinstance(arguments[0], str | bytes):
            path = os.fsdecode(arguments[0])
            ours = path.startswith((self.run, sys.prefix, sys.base_prefix, str(SOURCES)))
            if not ours or (path.startswith(self.run) and arguments[2] & os.O_ACCMODE):
                self.seen.append(f"open {path}")

    def __enter__(self) -> "Forbidden":
        _listen()
        self.seen, Forbidden.listening = [], self
        return self

    def __exit__(self, *_: object) -> None:
        Forbidden.listening = None


@functools.cache
def _listen() -> None:
    """Install the audit hook once: it cannot be removed."""

    def hear(event: str, arguments: tuple) -> None:
        if Forbidden.listening is not None:
            Forbidden.listening.hear(event, arguments)

    sys.addaudithook(hear)


FORBIDDEN = (
    "socket", "subprocess", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pickle", "shutil",
)  # fmt: skip
SOURCES = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def memory_limit() -> Iterator[None]:
    """Limit the memory to what the process has now, plus `MOST_MEMORY`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_MEMORY, limits[1])
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


class Hang(BaseException):
    pass


def ring(*_: object) -> None:
    raise Hang


def outcome(kind: Kind, forbidden: Forbidden) -> str:
    """Return the result of reading a file: "loaded", the name of the error, or what is wrong."""
    signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    result = "loaded"
    try:
        with memory_limit(), forbidden:
            kind.read()
    except OSError:
        result = "OSError"
    except ValueError as error:
        ours = type(error) is ValueError or type(error).__module__.startswith("fat2thin")
        named = forbidden.run in str(error)
        result = type(error).__name__ if ours and named else f"{type(error).__name__}! {error}"
    except BaseException as error:
        result = f"{type(error).__name__}! {error}"
    finally:
        signal.alarm(0)
    return f"forbidden! {forbidden.seen}" if forbidden.seen else result


def report(kind: Kind, forbidden: Forbidden, seed: int, count: int) -> collections.Counter[str]:
    """Read `count` mutants, and return how often each outcome happened."""
    counts: collections.Counter[str] = collections.Counter()
    assert outcome(kind, forbidden) == "loaded"
    for number, mutant in enumerate(kind.mutants(random.Random(seed), count)):
        kind.path.write_bytes(mutant)
        what = outcome(kind, forbidden)
        if "!" in what:
            what = f"mutant {number}: {what[:1000]}"
        counts[what] += 1
        if number % 1000 == 999:
            jax.clear_caches()
    kind.path.write_bytes(kind.valid)
    return counts


def check(counts: dict[str, int], count: int) -> None:
    bad = {what: number for what, number in counts.items() if "!" in what}
    assert not bad, json.dumps(bad, indent=1)[:5000]
    assert sum(counts.values()) == count
    # Most damage must be detected, or the mutations do nothing.
    assert counts.get("loaded", 0) < count / 2, counts


# Folders


def imitate(place: Path, run: Path, algorithm: str) -> Path:
    """Make the folder of another algorithm, with networks of zeros."""
    about = json.loads((run / folder.RUN).read_bytes())
    spec = make_spec(algorithm, "treatment/quadratic", steps=4, seeds=len(SEEDS), data_needed=False)
    about["spec"] = spec.to_json()
    for name, value in about["spec"]["config"].items():
        if "hidden" in name:
            about["spec"]["config"][name] = [4] * len(value)
    place.mkdir()
    (place / folder.RUN).write_bytes(files.as_json(about))
    (place / folder.STATE).write_bytes(
        files.dump_tree(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like(place)[0]))
    )
    return place


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny run, with every kind of file."""
    place = tmp_path_factory.mktemp("strangers") / "run"
    # Without a task: compiling its rollouts would take longer than all of the quick tests.
    spec = make_spec(
        "bc", "treatment/quadratic", steps=4, seeds=len(SEEDS), settings={"hidden": (4,)},
        batch_size=4, log_every=2, snapshots=(2,), task="none",
    )  # fmt: skip
    execute(spec, place, checkpoint_seconds=0.0)
    here = RunFolder(place)
    here.write_references({"nothing": Reference(1.0, 0.5, {"dose_mean": 0.0}, "no dose", 16)})
    made = Evaluation(np.ones((2, 2, 3), np.float32), {"dose_mean": np.ones((2, 2), np.float32)})
    here.write_evaluations([0, 4], {"actor_sampled": made, "actor_centre": made})
    return place


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may damage."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


QUICK = {
    "run": 90,
    "metrics": 100,
    "evaluations": 60,
    "references": 50,
    "state": 60,
    "manifest": 90,
}
MANY = {
    "run": 8_000, "metrics": 10_000, "evaluations": 10_000, "references": 2_000, "state": 25_000,
    "snapshot": 5_000, "manifest": 30_000,
}  # fmt: skip
MANY_OF_ALGORITHMS = 10_000


def test_a_damaged_folder_is_loaded_or_refused(run, without_type_checks):
    forbidden, of_run = Forbidden(run), kinds(run)
    for name, count in QUICK.items():
        check(report(of_run[name], forbidden, 1, count), count)


@pytest.mark.slow
@pytest.mark.long
def test_many_damaged_folders_are_loaded_or_refused(run):
    command = [sys.executable, __file__, str(run), "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr[-500:]}"
    print(done.stdout)
    counts = json.loads(done.stdout)
    assert sum(sum(found["counts"].values()) for found in counts.values()) == 100_000
    for found in counts.values():
        check(found["counts"], sum(found["counts"].values()))


# Cases that fuzzing found, and others that must stay refused


def refused(run: Path, read: Callable[[], Any] | None = None) -> str:
    """Return the error of a refused folder: ours, naming it, with no forbidden action."""
    with (
        pytest.raises(ValueError, match=re.escape(str(run))) as error,
        memory_limit(),
        Forbidden(run) as forbidden,
    ):
        read() if read else load(run)
    assert not forbidden.seen
    assert type(error.value) is ValueError or type(error.value).__module__.startswith("fat2thin")
    return str(error.value)


def put(file: Path, place: str, value: Any) -> None:
    """Put a value into a JSON file, at a place such as "spec.seeds"."""
    *outer, last = place.split(".")
    about = json.loads(file.read_bytes())
    functools.reduce(dict.__getitem__, outer, about)[last] = value
    file.write_bytes(edit_checksum(as_text(about, indent=2)))


def edit_checksum(data: bytes) -> bytes:
    """Return a manifest with a correct checksum; other files are returned unchanged."""
    values = json.loads(data) if b"checksum" in data and b"[[[[[[" not in data else {}
    if "checksum" not in values:
        return data
    del values["checksum"]
    values["checksum"] = hashlib.sha256(as_text(values, indent=2) + b"\n").hexdigest()
    return as_text(values, indent=2)


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        ("spec.config.hidden", [10**9, 10**9], "fewer than the"),
        ("spec.config.hidden", [2**31 - 1] * 3, "fewer than the"),
        ("spec.config.hidden", [10**30], "hidden must not be larger"),
        ("spec.config.hidden", [4] * 100_000, "at most 256 entries"),
        ("spec.config.hidden", [10**4000], "hidden must not be larger"),
        ("spec.config.actor_decay_steps", 10**30, "actor_decay_steps must not be larger"),
        ("spec.config.learning_rate", 10**400, "learning_rate must not be larger"),
        ("spec.config." + "e" * 100_000, 1, "has no setting"),
        ("spec.seeds", 10**9, "seeds of a specification cannot be"),
        ("spec.seeds", [0, 2**40], "seeds must be different numbers"),
        ("spec.steps", 10**30, "steps must be a whole number of at most"),
        ("spec.snapshots", 10**9, "snapshots of a specification cannot be"),
        ("spec.reward_scale", 10**400, "reward_scale must be positive and finite"),
        ("spec.algorithm", "none", "no algorithm is called 'none'"),
        ("spec.algorithm", ["bc"], "algorithm of a specification cannot be"),
        ("spec.device", 1, "has no 'device'"),
        ("spec", [], "its 'spec' is []"),
        ("problem.observation_size", 10**30, "problem.observation_size must be"),
        ("problem.observation_size", 2**31 - 1, "fewer than the"),
        ("problem.observation_size", -1, "problem.observation_size must be"),
        ("problem.action_low", [-1.0] * 100_000, "problem.action_low must be below"),
        ("problem.action_low", [math.nan], "must be a list of finite numbers"),
        ("problem.discount", math.inf, "problem.discount must lie in"),
        ("problem.discount", "0.9", "problem.discount must lie in"),
        ("scales", [], "scales must be one, or one per seed"),
        ("scales", [{"observation": {"mean": [0], "scale": [1]}, "reward": None}], "8 means"),
        ("stopped", {"x": {}}, "its 'stopped' is"),
        ("status", "asleep", "its status is 'asleep'"),
        ("step", 5, "step must be a whole number of at most 4"),
        ("seconds", DEEP, "not a JSON file"),
        ("seconds", [[[[[[[]]]]]]] * 2, "its 'seconds' is"),
    ],
)
def test_absurd_fields_are_refused_and_named(run, without_type_checks, place, value, complaint):
    put(run / folder.RUN, place, value)
    assert complaint in refused(run)


@pytest.mark.parametrize("name", ["status", "spec", "problem", "sha256", "step"])
def test_missing_fields_are_named(run, name):
    about = json.loads((run / folder.RUN).read_bytes())
    del about[name]
    (run / folder.RUN).write_bytes(as_text(about))
    assert f"it has no {name}" in refused(run)


def test_absurd_sizes_are_refused_before_tracing(trained, tmp_path, without_type_checks):
    place = imitate(tmp_path / "iql", trained, "iql")
    load(place)
    put(place / folder.RUN, "spec.config.hidden", [10**30, 10**30])
    assert "hidden must not be larger" in refused(place)


def nested(depth: int) -> Any:
    return functools.reduce(lambda inner, _: [inner], range(depth), 0)


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        ("place", [], "its place is []"),
        ("place", {"training": 1, "step": 2}, "its place is"),
        ("place", {"training": True, "step": 10**30}, "its place is"),
        ("files", [], "its 'files' is []"),
        ("files", {"state.safetensors": {"bytes": -1}}, "its 'files' is"),
        ("files", {"../run.json": {"bytes": 1, "sha256": ""}}, "unexpected file: '../run.json'"),
        ("files", {"a\0.json": {"bytes": 1, "sha256": ""}}, "unexpected file"),
        ("beside", {"/etc/hostname": {"bytes": 1, "sha256": ""}}, "unexpected file"),
        ("beside", {"snapshots/../run.json": {"bytes": 1, "sha256": ""}}, "unexpected file"),
        ("warnings", nested(200), "deeper than 32 levels"),
        ("spec", {}, "its 'spec' is"),
        ("seconds", math.nan, "its 'seconds' is nan"),
        ("format", 10**9, "format 1000000000"),
    ],
)
def test_a_manifest_with_a_correct_checksum_is_still_checked(
    run, without_type_checks, place, value, complaint
):
    step = run / checkpoints.FOLDER / "step_000000002"
    checkpoints.read(step, Place(training=True, step=2))
    put(step / checkpoints.MANIFEST, place, value)
    assert complaint in refused(run, lambda: checkpoints.read(step, Place(training=True, step=2)))


@pytest.mark.parametrize("name", [folder.RUN, folder.METRICS, folder.EVALUATIONS, folder.STATE])
def test_endless_files_are_not_read(run, name):
    (run / name).unlink()
    (run / name).symlink_to("/dev/zero")
    refused(run)
    (run / name).unlink()
    os.mkfifo(run / name)
    refused(run)


def test_a_pickle_is_not_loaded(run):
    arrays = {"steps": np.array([0, 4]), "actor_sampled/returns": np.array([Pickled()] * 2, object)}
    np.savez(run / folder.EVALUATIONS, **arrays)
    assert "Python objects, which could run code" in refused(run)


def test_arrays_above_the_limit_are_not_unpacked(run, monkeypatch):
    monkeypatch.setattr(folder, "LARGEST_LOG", 2**20)
    arrays = {"steps": np.array([0, 4]), "actor_sampled/returns": np.zeros((2, 2, 10**6))}
    np.savez_compressed(run / folder.EVALUATIONS, **arrays)
    assert (run / folder.EVALUATIONS).stat().st_size < 2**16
    assert "the limit is 1,048,576" in refused(run)


def test_a_state_too_small_for_its_seeds_is_refused(run):
    """A seed has 46 weights of four bytes, two moments for each, and a count: 556 bytes."""
    put(run / folder.RUN, "scales", [{"observation": None, "reward": None}])
    put(run / folder.RUN, "spec.seeds", [*range(100_000)])
    assert "fewer than the 55,600,000 of the arrays" in refused(run)


def test_networks_larger_than_their_file_are_not_made_for_verification(run, without_type_checks):
    """Two layers of 40,000 would take 25.6 GB, but the saved state has a few kilobytes."""
    assert verify(run, 0)["data"].result == OK
    put(run / folder.RUN, "spec.config.hidden", [40_000, 40_000])
    with memory_limit():
        found = verify(run)
    assert found["data"].result == OK and found["weights"].result == FAILED
    assert found["replay"].result == NOT_POSSIBLE and "state.safetensors" in found["replay"].what


def test_names_in_a_run_are_neither_opened_nor_imported(run):
    put(run / folder.RUN, "spec.task", "os:Task-v0")
    put(run / folder.RUN, "spec.dataset", "/etc/hostname")
    with Forbidden(run) as forbidden:
        assert load(run).known_references()["nothing"].mean == 1.0
    assert not forbidden.seen


def test_an_array_type_unknown_to_numpy_is_refused(run):
    data = (run / folder.STATE).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(b'"I32"', b'"F8_E4M3"')
    assert header != data[8 : 8 + length]
    (run / folder.STATE).write_bytes(
        len(header).to_bytes(8, "little") + header + data[8 + length :]
    )
    assert "state.safetensors" in refused(run)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"step": 4, "seed": 1}', "its metrics are not those of the first line"),
        ('{"seed": 1}', "not an object with a step and a seed"),
        ('{"step": 1e3, "seed": 1}', "not an object with a step and a seed"),
        ("[]", "not an object with a step and a seed"),
        ("[" * 10**5, "recursion"),
        ("1" * 2**20, "longer than 1,048,576 bytes"),
    ],
)
def test_a_refused_line_of_metrics_is_named_by_its_number(run, line, complaint):
    lines = (run / folder.METRICS).read_text().splitlines()
    (run / folder.METRICS).write_text("\n".join([*lines[:3], line, ""]))
    assert complaint in (message := refused(run)) and "line 4" in message


@pytest.mark.parametrize("value", ["10" + "0" * 400, '"1"', "true", "[]"])
def test_a_metric_that_is_not_a_number_is_refused(run, value):
    lines = (run / folder.METRICS).read_text()
    (run / folder.METRICS).write_text(
        re.sub(r'"actor_loss": [^,]*', f'"actor_loss": {value}', lines)
    )
    assert "actor_loss is" in refused(run)


def test_metrics_without_all_seeds_are_refused(run):
    lines = (run / folder.METRICS).read_text().splitlines(keepends=True)
    (run / folder.METRICS).write_text("".join(lines[:3]))
    assert "missing for some seeds" in refused(run)
    (run / folder.METRICS).write_text("".join([lines[1], lines[0], *lines[2:]]))
    assert "line 1, is damaged: it is not of seed 0" in refused(run)
    (run / folder.METRICS).write_text("".join([*lines[2:], *lines[:2]]))
    assert "does not follow step" in refused(run)


@pytest.mark.parametrize("mean", ["1", None, True, 10**400, []])
def test_references_of_wrong_types_are_refused(run, mean):
    about = {"standard_error": None, "measures": {}, "rule": "", "mean": 1.5}
    (run / folder.REFERENCES).write_bytes(as_text({"rows": {"nothing": about}}))
    assert RunFolder(run).references()["nothing"].mean == 1.5
    (run / folder.REFERENCES).write_bytes(as_text({"rows": {"nothing": {**about, "mean": mean}}}))
    assert "references.json is damaged" in refused(run, RunFolder(run).references)


def child(run: Path, seed: int) -> None:
    """Print the counts of all kinds as JSON."""
    found = {}

    def keep(name: str, counts: Callable[[], collections.Counter[str]]) -> None:
        began = time.monotonic()
        found[name] = {"counts": counts(), "seconds": round(time.monotonic() - began)}
        print(name, found[name], file=sys.stderr, flush=True)

    forbidden, of_run = Forbidden(run), kinds(run)
    for name, count in MANY.items():
        keep(name, lambda name=name, count=count: report(of_run[name], forbidden, seed, count))
    names = algorithms.names()
    for number, algorithm in enumerate(names):
        place = imitate(run.parent / algorithm, run, algorithm)
        kind = Kind(place / folder.RUN, lambda place=place: load(place), edit_json, share=30)
        count = len(range(number, MANY_OF_ALGORITHMS, len(names)))
        keep(
            f"run of {algorithm}",
            lambda kind=kind, place=place, count=count: report(kind, Forbidden(place), seed, count),
        )
    print(json.dumps(found))


if __name__ == "__main__":
    child(Path(sys.argv[1]), int(sys.argv[2]))
