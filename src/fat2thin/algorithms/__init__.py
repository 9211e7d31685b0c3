"""The registry of algorithms: look one up by name or add your own."""

import dataclasses
import typing
from typing import Any

from fat2thin import plugins
from fat2thin.algorithms import (
    awac,
    bc,
    edac,
    fttpo_published,
    inac,
    iql,
    quasi_optimal,
    rebrac,
    sparse_reverse_kl,
    spot,
    sql,
    tawac,
    td3_bc,
    xql,
)
from fat2thin.algorithms.base import Algorithm, Automatic, Batch, Metrics, Problem

_REGISTRY: dict[str, Algorithm] = {}


def register(algorithm: Algorithm) -> Algorithm:
    """Add an algorithm to the registry and return it; its name must be new.

    Also available as `fat2thin.register_algorithm`.

    Examples:
        >>> from fat2thin import algorithms
        >>> mine = algorithms.get("bc")._replace(name="my_bc", summary="My behaviour cloning")
        >>> algorithms.register(mine).name
        'my_bc'
        >>> "my_bc" in algorithms.names()
        True
        >>> _ = _REGISTRY.pop("my_bc")  # only to undo this example
    """
    if algorithm.name in _REGISTRY:
        raise ValueError(f"an algorithm called {algorithm.name!r} is already registered")
    _REGISTRY[algorithm.name] = algorithm
    return algorithm


def variant(
    name: str, of: str, summary: str, automatic: Automatic | None = None, **defaults: Any
) -> Algorithm:
    """Register the algorithm `of` under another name, with other defaults of its settings.

    Everything else is inherited, except `automatic`, which depend on the defaults.
    """
    base = get(of)
    kinds = typing.get_type_hints(base.config)
    fields = {field.name: field for field in dataclasses.fields(base.config)}
    config = dataclasses.make_dataclass(
        base.config.__name__,
        [
            (name, kinds[name], dataclasses.field(default=value, metadata=fields[name].metadata))
            for name, value in defaults.items()
        ],
        bases=(base.config,),
        frozen=True,
        namespace={"__doc__": f"Settings of {name}."},
    )
    inherited = base._replace(name=name, summary=summary, config=config, variant_of=of)
    return register(inherited._replace(automatic=automatic or Automatic()))


def names() -> tuple[str, ...]:
    """Return the names of all algorithms, including variants and plug-ins, in sorted order.

    Examples:
        >>> from fat2thin import algorithms
        >>> "fttpo" in algorithms.names()
        True
    """
    plugins.load()
    return tuple(sorted(_REGISTRY))


def get(name: str) -> Algorithm:
    """Return the algorithm of this name; raise a ValueError that lists the closest names.

    Examples:
        >>> from fat2thin import algorithms
        >>> algorithms.get("iql").config().expectile
        0.7
    """
    return plugins.find(_REGISTRY, name, "algorithm", "fat2thin algorithms")


for _module in (
    fttpo_published, tawac, awac, iql, xql, sql, inac, td3_bc, rebrac, edac, spot,
    bc, sparse_reverse_kl, quasi_optimal,
):  # fmt: skip
    register(_module.ALGORITHM)

variant(
    "fttpo-spot", "fttpo", "FtTPO whose actor maximises Q, kept close to the proposal",
    Automatic({"temperature": 0.35}, centre_values=True), actor_loss="spot",
)  # fmt: skip
variant(
    "fttpo-sg", "fttpo", "FtTPO with a squashed Gaussian as the proposal",
    Automatic({"temperature": 0.1}), proposal_family="squashed_gaussian",
)  # fmt: skip
variant(
    "fttpo-greedy", "fttpo", "FtTPO whose actor learns from the best of its own samples (GreedyAC)",
    Automatic({"temperature": 0.2}), actor_loss="greedy",
)  # fmt: skip
variant(
    "tawac-ht", "tawac", "TAWAC with a heavy-tailed q-Gaussian policy",
    Automatic({"temperature": 0.05}), policy="q_gaussian",
)  # fmt: skip
variant(
    "rar", "tawac", "Random action replacement: weighted regression for a sparse policy",
    Automatic({"temperature": 0.01}), policy="sparse_q_gaussian", outside_support="replace",
)  # fmt: skip
variant(
    "sac_n", "edac", "SAC-N: soft actor-critic with a pessimistic ensemble of critics",
    Automatic({}), diversity=0.0,
)  # fmt: skip

__all__ = ["Algorithm", "Batch", "Metrics", "Problem", "get", "names", "register", "variant"]
