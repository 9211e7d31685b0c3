"""The registry of algorithms: look one up by name, or add your own."""

import difflib

from fat2thin.algorithms import fttpo
from fat2thin.algorithms.base import Algorithm, Batch, Metrics, Problem

_REGISTRY: dict[str, Algorithm] = {}


def register(algorithm: Algorithm) -> Algorithm:
    """Add an algorithm under its name; a name can be taken once."""
    if algorithm.name in _REGISTRY:
        raise ValueError(f"an algorithm called {algorithm.name!r} is already registered")
    _REGISTRY[algorithm.name] = algorithm
    return algorithm


def names() -> tuple[str, ...]:
    """The names of all algorithms."""
    return tuple(sorted(_REGISTRY))


def get(name: str) -> Algorithm:
    """The algorithm of this name, or an error that lists the right ones."""
    if name not in _REGISTRY:
        close = difflib.get_close_matches(name, _REGISTRY, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"no algorithm is called {name!r}{hint}; there are {', '.join(names())}")
    return _REGISTRY[name]


register(fttpo.ALGORITHM)

__all__ = ["Algorithm", "Batch", "Metrics", "Problem", "get", "names", "register"]
