"""Compiled programs kept on disk: a run of shapes that were seen before need not compile again.

JAX keeps and finds them; this module only says where, and what is worth keeping. The files are
programs that JAX runs, so the folder belongs to its user alone. It may be removed at any time.
"""

import logging
import os
import sys
import tempfile
from pathlib import Path

_FOLDER = "jax_compilation_cache_dir"
_KEPT = {
    "jax_persistent_cache_min_compile_time_secs": 0.1,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
"""What takes 0.1 s, not JAX's 1 s: a run has twenty programs below and few above. Of any size."""

_log = logging.getLogger(__name__)


def use() -> None:
    """Let JAX keep what it compiles in $XDG_CACHE_HOME/fat2thin/jax, or under ~/.cache.

    Where a folder is chosen already ($JAX_COMPILATION_CACHE_DIR, or JAX's own configuration)
    nothing is changed; where ours cannot be written, nothing is kept, and that is logged.
    """
    if _chosen():
        return
    try:
        folder = _default_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_others(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError) as error:
        _log.warning("compiled programs are not kept: %s", error)
        return
    _set(_FOLDER, str(folder))
    for option, value in _KEPT.items():
        _set(option, value)


def _refuse_others(folder: Path) -> None:
    """Programs of somebody else would be run as if they were ours."""
    if not hasattr(os, "getuid"):
        return
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"others may write to {folder}; remove it, or `chmod go-w` it")


def _chosen() -> bool:
    if _FOLDER.upper() in os.environ:
        return True
    return "jax" in sys.modules and sys.modules["jax"].config.jax_compilation_cache_dir is not None


def _default_folder() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(caches) if os.path.isabs(caches) else Path.home() / ".cache"
    return base / "fat2thin" / "jax"


def _set(option: str, value: str | float | int) -> None:
    """Set an option of JAX, unless the environment does; what is not loaded yet reads it there."""
    if option.upper() in os.environ:
        return
    if "jax" in sys.modules:
        sys.modules["jax"].config.update(option, value)
    else:
        os.environ[option.upper()] = str(value)
