"""Compiled programs are kept between runs; `make test` takes a sample of the slow tests."""

import os
import signal
import subprocess
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parents[1]

# Tests compile the same small programs again and again. Each worker keeps its own, since JAX does
# not write them so that another process may read them at any moment.
_COMPILED = ROOT / ".pytest_cache" / "compiled"
_chosen = os.environ.get("JAX_COMPILATION_CACHE_DIR")
# What a worker finds may be what the process that started it set, and not its user.
if _chosen is None or Path(_chosen).parent == _COMPILED:
    _own = _COMPILED / os.environ.get("PYTEST_XDIST_WORKER", "alone")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_own)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# A shape that is broadcast by accident is an error, here and in the processes that tests start.
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"

# Started in the background (nohup, a job of a shell), a process ignores Ctrl-C, and so would every
# process that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Same examples every time, and no limit on an example's time: the first one compiles.
hypothesis.settings.register_profile("fat2thin", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("fat2thin")


@pytest.fixture
def no_hang():
    """A test that waits for what never comes fails after a while instead."""

    def ring(*_):
        raise AssertionError("this takes forever")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def own_registries(monkeypatch):
    """Forget after the test which algorithms, families, readers and tasks it registers."""
    from fat2thin import algorithms, plugins
    from fat2thin.data import readers
    from fat2thin.evaluation import returns
    from fat2thin.policies import families

    plugins.load()
    for module, name in (
        (algorithms, "_REGISTRY"), (families, "_REGISTRY"), (readers, "_READERS"),
        (readers, "_SUFFIXES"), (readers, "_FOLDERS"), (returns, "_TASKS"),
        (returns, "_EVALUATORS"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, dict(getattr(module, name)))


# A function with at least this many slow cases has one of them in every sample: it goes through all
# algorithms or families. Of the cases of other functions, a sample has this number.
MANY_CASES, OTHERS_A_TURN = 10, 3


def pytest_addoption(parser):
    parser.addoption(
        "--slow-sample", type=int, metavar="TURN",
        help="which slow tests -m sampled takes; by default the number of commits",
    )  # fmt: skip


def pytest_configure(config):
    if config.option.slow_sample is None:
        config.option.slow_sample = _commits()


def _commits():
    command = ["git", "rev-list", "--count", "HEAD"]
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(found.stdout)


def pytest_report_header(config):
    turn = config.option.slow_sample
    return f"slow tests: sample {turn} (repeat it with -m sampled --slow-sample {turn})"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the slow tests whose turn it is, before -m selects."""
    functions = {}
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("long"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for item in sample([*functions.values()], config.option.slow_sample):
        item.add_marker("sampled")


def sample(functions, turn):
    """The cases of a turn: all have been taken after as many turns as there are cases at most."""
    chosen = [cases[turn % len(cases)] for cases in functions if len(cases) >= MANY_CASES]
    others = [case for cases in functions if len(cases) < MANY_CASES for case in cases]
    apart = max(1, -(-len(others) // OTHERS_A_TURN))
    places = range(turn, turn + len(others), apart)
    return chosen + [others[place % len(others)] for place in places]
