"""Fault injection: after any fault, a resumed run has the same bits as an undisturbed one.

    pytest -m slow tests/training/test_torture.py -n 0 -s

prints a table at the end. FAT2THIN_KILLS is the number of random kills, 20 by default; half as many
hit writes. The oracle is an undisturbed run.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="watches the process through /proc"),
]

KILLS = int(os.environ.get("FAT2THIN_KILLS", "20"))
MOST_KILLS_OF_A_RUN = 5
DRIVER = Path(__file__).with_name("torture.py")
PATIENCE = 600
OF_THE_DAY = ("started", "seconds", "resumed", "files")
"""Fields of run.json that differ between equal runs."""
NOT_PERMITTED = 99
IN_A_MOUNT = """
mount {options} "$1" || exit {not_permitted}
shift
"$@"
status=$?
cp -a "$FOLDER/." "$KEPT"
exit $status
"""


class Table:
    """Counts of faults and their outcomes."""

    def __init__(self):
        self.times, self.equal = Counter(), Counter()

    def add(self, fault, differences, times=1):
        self.times[fault] += times
        self.equal[fault] += 0 if differences else times
        assert not differences, f"{fault}: {differences}"

    def __str__(self):
        head = ["| fault | times | same bits afterwards | lost |", "|---|---:|---:|---:|"]
        rows = [
            f"| {fault} | {times} | {self.equal[fault]} | {times - self.equal[fault]} |"
            for fault, times in self.times.items()
        ]
        return "\n".join([*head, *rows])


class World:
    """Starts training processes, and provides reference runs and interrupted folders."""

    def __init__(self, root, table):
        self.root, self.table = root, table
        self.environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(root / "compiled"),
            "OMP_NUM_THREADS": "1",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        }
        self._made = 0

    def folder(self):
        self._made += 1
        return self.root / f"folder_{self._made}"

    def command(self, case, *folders, **more):
        order = {"case": case, "folders": [str(folder) for folder in folders], **more}
        return [sys.executable, str(DRIVER), json.dumps(order)]

    def start(self, command):
        return subprocess.Popen(
            command, env=self.environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip

    def train(self, case, *folders, fails=False, **more):
        """Train in a process, wait for its end, and return its error output."""
        return self.wait(self.start(self.command(case, *folders, **more)), fails)

    def wait(self, process, fails=False):
        with process:
            _, said = process.communicate(timeout=PATIENCE)
        assert (process.returncode != 0) == fails, said
        return said

    @functools.cached_property
    def seconds(self):
        """Duration of an undisturbed process."""
        began = time.perf_counter()
        self.train("run", self.folder())
        return time.perf_counter() - began

    @functools.cache  # noqa: B019
    def reference(self, case):
        folder = self.folder()
        self.train(case, folder)
        return folder

    @functools.cache  # noqa: B019
    def frozen(self, case):
        """Return folders as kills before and after each change would leave them, and the calls."""
        into = self.folder()
        into.mkdir()
        self.train(case, self.folder(), fault={"kind": "freeze", "into": str(into)})
        calls = json.loads((into / "calls.json").read_text())
        return sorted(path for path in into.iterdir() if path.is_dir()), calls

    def interrupted(self, case):
        """Return a copy of a folder with two checkpoints and later results."""
        stages = [
            stage
            for stage in self.frozen(case)[0]
            if all(unfinished(run) for run in runs(case, stage))
        ]
        return shutil.copytree(stages[len(stages) * 3 // 4], self.folder())

    def differences(self, case, folder):
        """Return the files that differ from those of the reference run."""
        return [
            f"{folder.name}/{name}"
            for wanted, found in zip(
                runs(case, self.reference(case)), runs(case, folder), strict=True
            )
            for name, same in compared(wanted, found).items()
            if not same
        ]

    def finish(self, case, folders, fault):
        """Resume all of these in a new process, and compare."""
        said = self.train(case, *folders)
        for folder in folders:
            self.table.add(fault, self.differences(case, folder))
        return said


def runs(case, folder):
    return [folder / "0", folder / "1"] if case == "pack" else [folder]


def compared(wanted, found):
    """Return by file whether its bytes are equal; run.json is compared without its times."""
    names = ["metrics.jsonl", "evaluations.npz", "state.safetensors"]
    snapshots, others = ({file.name for file in (run / "snapshots").glob("*")}
                         for run in (wanted, found))  # fmt: skip
    names += [f"snapshots/{name}" for name in snapshots]
    same = {
        name: (found / name).is_file()
        and (found / name).read_bytes() == (wanted / name).read_bytes()
        for name in names
    }
    if not (found / "run.json").is_file():
        return {**same, "run.json": False}
    about, of_wanted = (json.loads((run / "run.json").read_text()) for run in (found, wanted))
    finished = about["status"] == "finished"
    return {
        **same,
        "run.json": finished and lasting(about) == lasting(of_wanted),
        "snapshots": snapshots == others,
        "leftovers": not [*found.rglob("*.partial")],
    }


def lasting(about):
    kept = {name: value for name, value in about.items() if name not in OF_THE_DAY}
    # A full disk adds a warning and changes nothing else.
    others = [line for line in about.get("warnings", []) if not line.startswith("no checkpoint")]
    return {**kept, "warnings": others}


def checkpoints(folder):
    """Return the checkpoints, newest first."""
    return sorted((folder / "checkpoints").glob("[a-z]*_*"), reverse=True)


def unfinished(folder):
    """Whether a run is unfinished and has two checkpoints."""
    file = folder / "run.json"
    return len(checkpoints(folder)) == 2 and '"running"' in file.read_text()


def until(condition, process):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None and time.monotonic() < end, process.stderr.read()
        time.sleep(0.01)


def wrote_metrics(folder):
    file = folder / "metrics.jsonl"
    return file.exists() and file.stat().st_size > 0


@pytest.fixture(scope="module")
def table():
    table = Table()
    yield table
    print(f"\n\n{table}")


@pytest.fixture(scope="module")
def world(tmp_path_factory, table):
    return World(tmp_path_factory.mktemp("torture"), table)


def test_two_undisturbed_runs_are_equal(world):
    folder = world.folder()
    world.train("run", folder)
    assert not world.differences("run", folder)


@pytest.mark.parametrize("case", ["short", "pack", "preparation"])
def test_a_run_killed_at_any_change_of_its_folder_resumes(world, case):
    """The folder is copied before and after each change, and every copy is resumed."""
    stages, calls = world.frozen(case)
    assert len(stages) > 50 and {name for name, _ in calls} >= {"fsync", "rename", "replace"}
    folders = [shutil.copytree(stage, world.folder()) for stage in stages]
    world.finish(case, folders, f"kill at each change of a folder, {WHAT[case]}")


WHAT = {"short": "one run", "pack": "a pack of two", "preparation": "with a preparation"}


@pytest.mark.parametrize("case", ["short", "pack", "preparation"])
def test_a_run_killed_inside_a_write_resumes(world, case):
    """The process kills itself at changes that are evenly spread over its life."""
    _, calls = world.frozen(case)
    count = max(2, KILLS // 6)
    folders = []
    for number in np.linspace(0, 2 * len(calls) - 1, count).astype(int):
        folders.append(world.folder())
        when = ("before", "after")[number % 2]
        fault = {"kind": "kill", "call": int(number) // 2, "when": when}
        world.train(case, folders[-1], fault=fault, fails=True)
    world.finish(case, folders, f"kill -9 inside a write, {WHAT[case]}")


def test_a_run_killed_at_random_times_resumes(world):
    """Kills are uniform over the life of the process; a run may be killed several times."""
    random, killed, folder, phases = np.random.default_rng(2026), [], None, Counter()
    world.reference("run")
    while sum(phases.values()) < KILLS:
        if folder is None:
            folder, killed = world.folder(), []
        file = world.root / "phases"
        file.unlink(missing_ok=True)
        with world.start(world.command("run", folder, phases=str(file))) as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(random.uniform(0.0, world.seconds))
            process.kill()
            said = process.stderr.read()
        assert process.returncode in (0, -signal.SIGKILL), said
        if process.returncode:
            lines = file.read_text().splitlines() if file.exists() else []
            killed.append(lines[-1] if lines else "import")
            phases[killed[-1]] += 1
        if process.returncode == 0 or len(killed) == MOST_KILLS_OF_A_RUN:
            world.train("run", folder)
            settle(world, killed, folder)
            folder = None
    if folder:
        world.train("run", folder)
        settle(world, killed, folder)
    print(f"\nrandom kills by phase: {dict(phases)}")
    assert phases.total() == KILLS


def settle(world, killed, folder):
    differences = world.differences("run", folder)
    for phase, times in Counter(killed).items():
        world.table.add(f"kill -9 at a random moment: {phase}", differences, times)


ARGUMENTS = [
    "fttpo", "treatment/quadratic", "--steps", "600", "--seeds", "2", "--batch-size", "16",
    "--episodes", "4", "--log-every", "20", "--evaluate-every", "100", "--snapshots", "0", "300",
    "--settings-from", "default", "--set", "hidden=8,", "--out",
]  # fmt: skip


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGINT] * 2])
def test_a_signal_stops_a_run_after_a_checkpoint(world, signals):
    folder = world.folder()
    command = [sys.executable, "-m", "fat2thin", "train", *ARGUMENTS, str(folder)]
    process = world.start(command)
    until(lambda: wrote_metrics(folder), process)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.001)
    said = world.wait(process, fails=True)
    if len(signals) == 1:
        assert process.returncode == 128 + signals[0]
        assert "run the same command again to resume" in said and str(folder) in said
        assert checkpoints(folder)
    world.finish("run", [folder], " and ".join(number.name for number in signals))


def test_a_second_process_on_the_folder_is_refused(world):
    folder = world.folder()
    first = world.start(world.command("run", folder))
    until(lambda: wrote_metrics(folder), first)
    # Paused, so that it cannot finish before the other one starts.
    first.send_signal(signal.SIGSTOP)
    said = world.train("run", folder, fails=True)
    assert f"process {first.pid} trains into it" in said
    first.send_signal(signal.SIGCONT)
    world.wait(first)
    world.table.add("a second process on the folder", world.differences("run", folder))


def flip_a_bit(file):
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 1
    file.write_bytes(contents)


def cut_off(file):
    os.truncate(file, file.stat().st_size // 2)


def empty(file):
    os.truncate(file, 0)


DAMAGES = {
    "removed": Path.unlink,
    "cut off": cut_off,
    "emptied": empty,
    "a bit flipped": flip_a_bit,
}
PARTS = ("manifest.json", "state.safetensors", "metrics.jsonl", "evaluations.npz")


def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(world):
    folders = []
    for part in PARTS:
        for damage in DAMAGES.values():
            folders.append(world.interrupted("short"))
            damage(checkpoints(folders[-1])[0] / part)
    befores = [checkpoints(folder)[1].name for folder in folders]
    said = world.finish("short", folders, "newest checkpoint damaged")
    for folder, before in zip(folders, befores, strict=True):
        assert f"{folder}/checkpoints/" in said
        assert f"{folder} resumes from step {int(before.removeprefix('step_'))}\n" in said


def test_checkpoints_after_the_resumed_step_are_removed(world):
    """A later checkpoint, damaged or not, would displace those that are needed."""
    folder = world.interrupted("short")
    newest = checkpoints(folder)[0]
    cut_off(newest / "state.safetensors")
    newest.rename(newest.with_name("step_000000159"))
    world.finish("short", [folder], "newest checkpoint damaged")
    assert [checkpoint.name for checkpoint in checkpoints(folder)] == ["step_000000140"]


def test_a_checkpoint_of_another_run_is_not_used(world):
    foreign, renamed, forged = (world.interrupted("short") for _ in range(3))
    other, newest = (
        checkpoints(folder)[0] for folder in (world.interrupted("pack") / "0", foreign)
    )
    shutil.rmtree(newest)
    shutil.copytree(other, newest)
    moved = checkpoints(renamed)[0].rename(renamed / "checkpoints" / "step_000000150")
    manifest = checkpoints(forged)[0] / "manifest.json"
    values = json.loads(manifest.read_text())
    del values["checksum"]
    values["spec"]["batch_size"] += 1
    checksum = hashlib.sha256(as_json(values)).hexdigest()
    manifest.write_bytes(as_json({**values, "checksum": checksum}))
    said = world.finish("short", [foreign, renamed, forged], "checkpoint of another run")
    step = int(newest.name.removeprefix("step_"))
    assert f"the checkpoint of step {step} cannot be used: {foreign}/" in said
    assert f"{moved} is damaged: its manifest says step" in said
    assert f"{manifest.parent} is of another run and is not used" in said


def target(path):
    """Return the final name of a file that is being written."""
    return re.sub(r"^\.(.+)\.[0-9a-f]{16}\.partial$", r"\1", path)


def as_json(values):
    return (json.dumps(values, indent=2) + "\n").encode()


def test_damaged_metrics_evaluations_and_snapshots_are_restored(world):
    """A checkpoint has copies of metrics and evaluations; snapshots are computed again."""
    folders = []
    for part in ("metrics.jsonl", "evaluations.npz", "snapshots/step_000000080.safetensors"):
        for damage in DAMAGES.values():
            folders.append(world.interrupted("short"))
            damage(folders[-1] / part)
    world.finish("short", folders, "metrics, evaluations or snapshots damaged")


def test_a_run_with_only_damaged_checkpoints_starts_again(world):
    folder = world.interrupted("short")
    for checkpoint in checkpoints(folder):
        cut_off(checkpoint / "state.safetensors")
    said = world.finish("short", [folder], "all checkpoints damaged")
    assert "it starts again" in said


def test_a_later_format_is_refused_and_not_changed(world):
    folder = world.interrupted("short")
    manifest = checkpoints(folder)[0] / "manifest.json"
    before = manifest.read_bytes()
    manifest.write_bytes(before.replace(b'"format": 1', b'"format": 2', 1))
    names = sorted(folder.rglob("*"))
    said = world.train("short", folder, fails=True)
    assert "has format 2; this version reads up to 1" in said and str(manifest.parent) in said
    assert sorted(folder.rglob("*")) == names
    manifest.write_bytes(before)
    world.finish("short", [folder], "checkpoint of a later format")


def test_a_damaged_run_json_is_named(world):
    folder = world.interrupted("short")
    before = (folder / "run.json").read_bytes()
    cut_off(folder / "run.json")
    said = world.train("short", folder, fails=True)
    assert str(folder / "run.json") in said
    (folder / "run.json").write_bytes(before)
    world.finish("short", [folder], "run.json damaged, and restored")


@pytest.mark.parametrize(
    ("count", "fault"), [(15, "no space for a while"), (10**9, "no space any more")]
)
def test_a_run_survives_a_full_disk(world, count, fault):
    """From some change on: the run ends with a clear message, or logs a warning and continues."""
    folders, (_, calls) = [], world.frozen("short")
    for share in (0.1, 0.5, 0.9):
        folders.append(world.folder())
        order = {"kind": "full", "call": int(share * len(calls)), "count": count}
        with world.start(world.command("short", folders[-1], fault=order)) as process:
            _, said = process.communicate(timeout=PATIENCE)
        assert "No space left on device" in said and "Traceback" not in said
    world.finish("short", folders, fault)


def in_a_mount(world, options, source, folder, command):
    """Run a command with a private mount, then copy its contents."""
    kept = world.folder()
    script = IN_A_MOUNT.format(options=options, not_permitted=NOT_PERMITTED)
    process = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(source), *command],
        env={**world.environment, "FOLDER": str(folder), "KEPT": str(kept)},
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    if process.returncode == NOT_PERMITTED or "unshare" in process.stderr:
        pytest.skip(f"nothing can be mounted here: {process.stderr}")
    return kept, process


@pytest.mark.parametrize("pages", [12, 20, 28])
def test_a_run_survives_a_real_full_file_system(world, pages):
    folder = world.folder()
    folder.mkdir()
    world.reference("short")
    options = f"-t tmpfs -o size={pages * 4}k tmpfs"
    kept, process = in_a_mount(world, options, folder, folder, world.command("short", folder))
    assert "No space left on device" in process.stderr and "Traceback" not in process.stderr
    world.finish("short", [kept], "a file system that is full")


def test_a_read_only_folder_is_refused_before_training(world):
    """The error comes before anything is computed."""
    folder, phases = world.interrupted("short"), world.root / "phases of reading"
    command = world.command("short", folder, phases=str(phases))
    options = f"--bind {folder} {folder} && mount -o remount,ro,bind"
    kept, process = in_a_mount(world, options, folder, folder, command)
    assert process.returncode != 0 and "Read-only file system" in process.stderr
    assert "Traceback" not in process.stderr
    assert not {"compilation", "training"} & set(phases.read_text().split())
    world.finish("short", [kept], "a folder that cannot be written")


def test_a_removed_folder_ends_the_run(world):
    """The run ends with a clear message, and never leaves a partial run that looks complete."""
    _, calls = world.frozen("short")

    def replaced(file):
        return [
            n for n, (name, path) in enumerate(calls) if (name, target(path)) == ("replace", file)
        ]

    evaluated = next(n for n in replaced("evaluations.npz") if n >= len(calls) // 3) + 1
    kept = next(n for n, (name, _) in enumerate(calls) if name == "rename")
    written = next(n for n, (_, path) in enumerate(calls) if path.endswith("manifest.json"))
    finished = replaced("state.safetensors")[-1]
    folders = []
    for call in (evaluated, kept, written, finished):
        folders.append(world.folder())
        fault = {"kind": "vanish", "call": call}
        said = world.train("short", folders[-1], fault=fault, fails=True)
        assert "Traceback" not in said and "No such file or directory" in said
        assert not folders[-1].exists()
    world.finish("short", folders, "the folder removed underneath")


@pytest.mark.parametrize("years", [-20, 20])
def test_a_clock_that_jumps_changes_nothing(world, years):
    fresh, begun = world.folder(), world.interrupted("short")
    world.train("short", fresh, fault={"kind": "clock", "years": years})
    world.train("short", begun, fault={"kind": "clock", "years": years})
    assert re.search(r'"started": "20[04]', (fresh / "run.json").read_text())
    for folder in (fresh, begun):
        world.table.add("a clock that jumps", world.differences("short", folder))
