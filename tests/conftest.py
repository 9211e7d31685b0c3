"""Test configuration: a cache of compiled programs, and a rotating sample of the slow tests."""

import atexit
import gc
import os
import signal
import subprocess
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parents[1]

# Tests compile the same small programs again and again. Each worker has its own cache, since JAX
# does not write cache entries atomically.
_COMPILED = ROOT / ".pytest_cache" / "compiled"
_chosen = os.environ.get("JAX_COMPILATION_CACHE_DIR")
# A worker may find the value set by its parent process instead of one set by the user.
if _chosen is None or Path(_chosen).parent == _COMPILED:
    _own = _COMPILED / os.environ.get("PYTEST_XDIST_WORKER", "alone")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_own)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Programs without the Python lines that they come from are lowered, hashed and stored sooner.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

# Broadcasting between ranks is an error, here and in the processes that tests start.
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"

# A background process (nohup, a shell job) ignores SIGINT, and its children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Deterministic examples, and no deadline: the first example compiles.
hypothesis.settings.register_profile("fat2thin", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("fat2thin")


def pytest_collection_finish():
    """Search for garbage seldom: modules, tests and compiled programs stay, and there are many."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)
    atexit.register(gc.freeze)


@pytest.fixture
def no_hang():
    """Fail a test that blocks after 60 seconds."""

    def ring(*_):
        raise AssertionError("the test is blocked")

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


# Every sample contains one case of each function with at least MANY_CASES slow cases (these cover
# all algorithms or families) and OTHERS_A_TURN cases of the other functions.
MANY_CASES, OTHERS_A_TURN = 10, 3


def pytest_addoption(parser):
    parser.addoption(
        "--slow-sample", type=int, metavar="TURN",
        help="number of the sample of slow tests that -m sampled runs; default: number of commits",
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
    """Mark the slow tests of this sample, before -m selects."""
    functions = {}
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("long"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for item in sample([*functions.values()], config.option.slow_sample):
        item.add_marker("sampled")


def sample(functions, turn):
    """Return the cases of a sample; as many samples as there are cases cover all of them."""
    chosen = [cases[turn % len(cases)] for cases in functions if len(cases) >= MANY_CASES]
    others = [case for cases in functions if len(cases) < MANY_CASES for case in cases]
    apart = max(1, -(-len(others) // OTHERS_A_TURN))
    places = range(turn, turn + len(others), apart)
    return chosen + [others[place % len(others)] for place in places]
