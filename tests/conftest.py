import os
import signal
from pathlib import Path

import hypothesis
import pytest

# Tests compile the same small programs again and again. Each worker keeps its own, since JAX does
# not write them so that another process may read them at any moment.
_COMPILED = Path(__file__).parents[1] / ".pytest_cache" / "compiled"
_chosen = os.environ.get("JAX_COMPILATION_CACHE_DIR")
# What a worker finds may be what the process that started it set, and not its user.
if _chosen is None or Path(_chosen).parent == _COMPILED:
    _own = _COMPILED / os.environ.get("PYTEST_XDIST_WORKER", "alone")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_own)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

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
