"""Loading of plug-ins: other packages that register algorithms, families, readers and tasks.

A package declares its plug-in under the entry-point group `fat2thin.plugins`: a module that
registers on import, or a function without arguments that registers when called. Plug-ins are loaded
when a name is looked up that is not registered yet.
"""

import importlib
import importlib.metadata
import logging
import threading
from collections.abc import Mapping
from typing import TypeVar

from fat2thin.terminal_text import closest_first, did_you_mean

GROUP = "fat2thin.plugins"
_BUILT_IN = ("fat2thin.envs.treatment", "fat2thin.envs.hospital")
_loaded = False
_lock = threading.RLock()

Registered = TypeVar("Registered")
_log = logging.getLogger(__name__)


def load() -> None:
    """Load every plug-in once. If one fails, log a warning and load the others."""
    global _loaded
    with _lock:
        if _loaded:
            return
        # Set first: a plug-in may look up names while it loads.
        _loaded = True
        try:
            for module in _BUILT_IN:
                importlib.import_module(module)
        except BaseException:
            _loaded = False
            raise
        for entry in importlib.metadata.entry_points(group=GROUP):
            try:
                register = entry.load()
                if callable(register):
                    register()
            except (Exception, SystemExit) as error:
                _log.warning("plug-in %s (%s) cannot be loaded: %s", entry.name, entry.value, error)


def find(registry: Mapping[str, Registered], name: str, what: str, listing: str = "") -> Registered:
    """Return the entry of a registry, or raise an error that lists the closest names.

    `listing` is the command that lists all of them.
    """
    if name not in registry:
        load()
    if name not in registry:
        hint, there = did_you_mean(name, registry), closest_first(name, registry, listing)
        raise ValueError(f"no {what} is called {name!r}{hint}; there are {there}")
    return registry[name]
