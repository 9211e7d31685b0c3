"""Code that registers algorithms and readers of data, loaded when a name is not known yet.

Another package offers its own under the entry-point group `fat2thin.plugins`: a module that
registers on import, or a function without arguments that does.
"""

import importlib
import importlib.metadata
import logging
import threading

GROUP = "fat2thin.plugins"
_BUILT_IN = ("fat2thin.envs.treatment",)
_loaded = False
_lock = threading.RLock()

_log = logging.getLogger(__name__)


def load() -> None:
    """Load every plug-in once. A broken one is logged by name, and the others still load."""
    global _loaded
    with _lock:
        if _loaded:
            return
        # Set first: a plug-in may look up names itself.
        _loaded = True
        try:
            for module in _BUILT_IN:
                importlib.import_module(module)
        except BaseException:
            _loaded = False
            raise
        for entry in importlib.metadata.entry_points(group=GROUP):
            _load(entry)


def _load(entry: importlib.metadata.EntryPoint) -> None:
    try:
        register = entry.load()
        if callable(register):
            register()
    except Exception as error:
        _log.warning("plug-in %s (%s) cannot be loaded: %s", entry.name, entry.value, error)
