"""Compiled programs: kept on disk for later processes, released before Linux runs out of mappings.

JAX stores and finds programs on disk; `use` only sets the folder, and which programs are kept. The
files are programs that JAX runs, so only the user can write to the folder. It can be removed at any
time.

In memory, JAX keeps every program that it compiled. On a CPU one trained program takes about 1,500
memory mappings, and Linux allows a process 65,530 by default. Beyond that it ends the process.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

MAPPINGS = Path("/proc/self/maps")  # one line per mapping of this process; only Linux has this file
LIMIT = Path("/proc/sys/vm/max_map_count")
DEFAULT_LIMIT = 65_530  # used if the file cannot be read
HALF, MOST = 0.5, 0.75
"""Shares of the limit above which the programs of the loop, and all programs, are released."""
GROWTH = 0.1  # share of the mappings free after a release that must be used before the next release

_FOLDER = "jax_compilation_cache_dir"
_KEPT = {
    "jax_persistent_cache_min_compile_time_secs": 0.1,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
"""Keep programs that compile in 0.1 s or more, not JAX's 1 s: a run has twenty below 1 s."""

_log = logging.getLogger(__name__)
_after_release = 0  # mappings in use after the last release


def use() -> None:
    """Let JAX keep compiled programs in $XDG_CACHE_HOME/fat2thin/jax, or under ~/.cache.

    If a folder is chosen already ($JAX_COMPILATION_CACHE_DIR, or JAX's own configuration), nothing
    changes. If the folder cannot be written, nothing is kept, and that is logged.
    """
    if _chosen():
        return
    try:
        caches = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(caches) if os.path.isabs(caches) else Path.home() / ".cache"
        folder = base / "fat2thin" / "jax"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_others(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError) as error:
        _log.warning("compiled programs are not kept: %s", error)
        return
    for option, value in {_FOLDER: str(folder), **_KEPT}.items():
        if option.upper() in os.environ:
            continue
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(option, value)
        else:
            # JAX reads the environment when it is loaded.
            os.environ[option.upper()] = str(value)


def _refuse_others(folder: Path) -> None:
    """Refuse a folder that others can write to: JAX would run their programs."""
    status = folder.stat()
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise PermissionError(f"other users can write to {folder}; remove it, or `chmod go-w` it")


def _chosen() -> bool:
    if _FOLDER.upper() in os.environ:
        return True
    return "jax" in sys.modules and sys.modules["jax"].config.jax_compilation_cache_dir is not None


def make_room(functions: Iterable[Callable]) -> None:
    """Release compiled programs if this process has used much of its memory mappings.

    Above half of the limit this releases the programs of `functions`, which are jitted. If more
    than three quarters are still in use, it releases everything that JAX has compiled in this
    process. What is needed again is compiled again, or loaded from JAX's cache on disk. Where
    mappings of other code fill half of the limit, the next release waits until a tenth of those
    left free are used. Systems other than Linux have no such limit: nothing is released there.
    """
    global _after_release
    import jax  # not above: the command line imports this module before it sets up JAX

    before, limit = _used(), _limit()
    _after_release = min(_after_release, before)
    if before <= max(HALF * limit, _after_release + GROWTH * (limit - _after_release)):
        return
    for function in functions:
        # The method is not documented: a version of JAX without it releases everything.
        getattr(function, "clear_cache", jax.clear_caches)()
    if _used() > MOST * limit:
        jax.clear_caches()
    after = _after_release = _used()
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
