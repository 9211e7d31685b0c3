"""Trains in a separate process and injects a fault: see test_torture.

    python torture.py '{"case": "run", "folders": ["a"], "fault": {"kind": "kill", "call": 7}}'

A case is one run or several that share a program; the folder of a pack has a subfolder per run.
Several folders are computed one after the other. Faults count the calls that change a folder.
"""

import contextlib
import datetime
import errno
import functools
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

CHANGES = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")
"""Functions of `os` that change a folder."""
_SMALL = {"seeds": 2, "batch_size": 16, "episodes": 4, "log_every": 20}
_SHORT = {**_SMALL, "steps": 160, "evaluate_every": 80, "snapshots": (0, 80)}
CASES = {
    "run": [("fttpo", "treatment/quadratic", {
        **_SMALL, "steps": 600, "evaluate_every": 100, "snapshots": (0, 300),
        "settings": {"hidden": (8,)},
    })],
    "short": [("fttpo", "treatment/quadratic", {**_SHORT, "settings": {"hidden": (8,)}})],
    "pack": [
        ("bc", "treatment/quadratic", {**_SHORT, "settings": {"hidden": (8,)}}),
        ("bc", "treatment/cubic", {**_SHORT, "settings": {"hidden": (8,), "learning_rate": 1e-3}}),
    ],
    "preparation": [("spot", "treatment/quadratic", {
        **_SHORT, "steps": 80,
        "settings": {"hidden": (8,), "vae_hidden": (8,), "vae_steps": 120},
    })],
}  # fmt: skip
YEAR = 365 * 86_400.0


def run_folders(case, folder):
    """Return the folders of the runs of a case."""
    runs = CASES[case]
    return [folder] if len(runs) == 1 else [folder / str(number) for number in range(len(runs))]


class Calls:
    """Counts changes below a folder; `before` and `after` get the number, function and path."""

    def __init__(self, root, before, after):
        self.root, self.before, self.after = os.path.realpath(root), before, after
        self.count = 0
        self.busy = False
        for name in CHANGES:
            setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name, function):
        @functools.wraps(function)
        def changed(target, *arguments, **options):
            path = _path(target, options.get("dir_fd"))
            if self.busy or os.path.commonpath([self.root, path]) != self.root:
                return function(target, *arguments, **options)
            number, self.count = self.count, self.count + 1
            self._notify(self.before, number, name, path)
            result = function(target, *arguments, **options)
            self._notify(self.after, number, name, path)
            return result

        return changed

    def _notify(self, listener, *event):
        self.busy = True
        try:
            listener(*event)
        finally:
            self.busy = False


def _path(target, folder):
    if isinstance(target, int):
        return os.path.realpath(f"/proc/self/fd/{target}")
    if folder is not None:
        return os.path.join(os.path.realpath(f"/proc/self/fd/{folder}"), target)
    return os.path.abspath(target)


def _nothing(number, name, path):
    pass


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def kill(root, call, when):
    """Kill the process right before or right after a change."""

    def die(number, name, path):
        if number == call:
            _die()

    Calls(root, **{"before": _nothing, "after": _nothing, when: die})


def freeze(root, into):
    """Copy what SIGKILL before and after every change would leave, without duplicates."""
    into, seen, calls = Path(into), set(), []

    def keep(when, number, name, path):
        if not os.path.exists(root):
            return
        contents = hashlib.sha256()
        for file in sorted(Path(root).rglob("*")):
            contents.update(str(file.relative_to(root)).encode())
            contents.update(file.read_bytes() if file.is_file() else b"/")
        if contents.digest() not in seen:
            seen.add(contents.digest())
            shutil.copytree(root, into / f"{number:04d}_{when}")

    def before(number, name, path):
        calls.append([name, os.path.relpath(path, root)])
        keep("before", number, name, path)

    Calls(root, before, functools.partial(keep, "after"))
    return lambda: (into / "calls.json").write_text(json.dumps(calls))


def full(root, call, count):
    """Raise "no space left" in the changes that need space, from `call` for `count` calls."""

    def refuse(number, name, path):
        if call <= number < call + count and name in ("fsync", "mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    Calls(root, refuse, _nothing)


def vanish(root, call):
    """Remove the folder."""

    def remove(number, name, path):
        if number == call:
            shutil.rmtree(root)

    Calls(root, _nothing, remove)


def clock(root, years):
    """Move the wall clock ahead and behind by turns, at every call."""
    jumps = {"now": years * YEAR}

    def jump():
        jumps["now"] = -jumps["now"]
        return jumps["now"]

    true_time, true_date = time.time, datetime.datetime

    class Date(true_date):
        @classmethod
        def now(cls, tz=None):
            return true_date.now(tz) + datetime.timedelta(seconds=jump())

    time.time = lambda: true_time() + jump()
    datetime.datetime = Date


FAULTS = {
    "kill": kill,
    "freeze": freeze,
    "full": full,
    "vanish": vanish,
    "clock": clock,
}


class Phases:
    """Writes the current phase of training to a file."""

    def __init__(self, file):
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if file else None
        self._stack = []

    def enter(self, name):
        self._stack.append(name)
        self._write()

    def leave(self):
        self._stack.pop()
        self._write()

    def _write(self):
        if self._file is not None and self._stack:
            os.write(self._file, f"{self._stack[-1]}\n".encode())

    @contextlib.contextmanager
    def during(self, name):
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def watch(self, owner, function, name, first=None):
        """Make every call of a function a phase; the first call may have another name."""
        original, names = getattr(owner, function), [first or name]

        @functools.wraps(original)
        def watched(*arguments, **options):
            with self.during(names[0]):
                names[0] = name
                return original(*arguments, **options)

        setattr(owner, function, watched)


def main():
    """Train as the only argument, a JSON object, says."""
    order = json.loads(sys.argv[1])
    folders = [Path(folder) for folder in order["folders"]]
    fault = dict(order.get("fault") or {})
    kind = fault.pop("kind", None)
    phases = Phases(order.get("phases"))
    phases.enter("import")
    if kind == "clock":
        clock(folders[0], **fault)
    import jax

    from fat2thin.engine import devices
    from fat2thin.runs import folder
    from fat2thin.training import evaluation_queue, execute_together, make_spec, run_writer

    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    phases.watch(devices.JobScheduler, "chunk", "training", first="compilation")
    phases.watch(evaluation_queue.EvaluationQueue, "evaluate", "evaluation")
    phases.watch(folder, "write", "writing")
    phases.watch(run_writer.RunWriter, "checkpoint", "checkpoint")
    done = FAULTS[kind](folders[0], **fault) if kind and kind != "clock" else None
    phases.enter("start")
    specs = [
        make_spec(algorithm, data, **options) for algorithm, data, options in CASES[order["case"]]
    ]
    for place in folders:
        try:
            execute_together(specs, run_folders(order["case"], place), checkpoint_seconds=0.0)
        except (OSError, ValueError) as error:
            if len(folders) == 1:
                sys.exit(f"{type(error).__name__}: {error}")
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
    if done:
        done()
    phases.enter("over")


if __name__ == "__main__":
    # Tests that run in the background ignore Ctrl-C; this process must not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
