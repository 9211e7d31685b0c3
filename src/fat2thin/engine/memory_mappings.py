"""Room for compiled programs: Linux limits the number of memory mappings of a process.

JAX keeps every program that it compiled. On a CPU one trained program takes about 1,500 mappings,
and Linux allows 65,530 by default. Beyond that the process is aborted.
"""

import logging
from pathlib import Path

import jax

from fat2thin.engine import loop

MAPPINGS = Path("/proc/self/maps")
"""One line per mapping of this process; only Linux has this file."""
LIMIT = Path("/proc/sys/vm/max_map_count")
DEFAULT_LIMIT = 65_530
"""Where the file cannot be read."""
HALF, MOST = 0.5, 0.75
"""Shares of the limit above which our own programs, and those of everybody, are released."""

_log = logging.getLogger(__name__)


def make_room() -> None:
    """Release compiled programs if this process has used much of its memory mappings.

    Above half of the limit this releases the programs of the training loop. If more than three
    quarters are still in use, it releases everything that JAX has compiled in this process, by
    `jax.clear_caches()`. What is needed again is compiled again, or loaded from JAX's cache on
    disk. Systems other than Linux have no such limit, and nothing is released there.
    """
    before, limit = _used(), _limit()
    if before <= HALF * limit:
        return
    for function in (loop.init, loop.chunk, loop.policies, loop.evaluate):
        # The method is not documented: a version of JAX without it releases everything.
        getattr(function, "clear_cache", jax.clear_caches)()
    if _used() > MOST * limit:
        jax.clear_caches()
    after = _used()
    _log.info("released compiled programs: %d memory mappings, before %d", after, before)
    if after > MOST * limit:
        _log.warning(
            "%d of %d memory mappings are in use after releasing every compiled program. Linux "
            "ends a process that needs more: raise vm.max_map_count", after, limit,
        )  # fmt: skip


def _used() -> int:
    try:
        return MAPPINGS.read_bytes().count(b"\n")
    except OSError:
        return 0


def _limit() -> int:
    try:
        return int(LIMIT.read_text())
    except (OSError, ValueError):
        return DEFAULT_LIMIT
