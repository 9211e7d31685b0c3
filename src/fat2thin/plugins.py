"""Code that registers algorithms, families, readers and tasks, loaded when it is first needed.

Another package offers its own under the entry-point group `fat2thin.plugins`: a module that
registers on import, or a function without arguments that does.
"""

import importlib
import importlib.metadata
import logging

GROUP = "fat2thin.plugins"
_BUILT_IN = ("fat2thin.envs.treatment_logs",)
_loaded = False

_log = logging.getLogger(__name__)


def load() -> None:
    """Load every plug-in once. A broken one is logged by name, and the others still load."""
    global _loaded
    if _loaded:
        return
    # Set first: a plug-in may look up names itself.
    _loaded = True
    for module in _BUILT_IN:
        importlib.import_module(module)
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            register = entry.load()
            if callable(register):
                register()
        except Exception as error:
            _log.warning("plug-in %s (%s) cannot be loaded: %s", entry.name, entry.value, error)
