"""The registry of algorithms: look one up by name, or add your own."""

import dataclasses
import typing
from typing import Any

from fat2thin import plugins
from fat2thin.algorithms import (
    awac,
    bc,
    fttpo_published,
    inac,
    iql,
    sparse_reverse_kl,
    spot,
    sql,
    tawac,
    td3_bc,
    xql,
)
from fat2thin.algorithms.base import Algorithm, Batch, Metrics, Problem, SmallLogs

_REGISTRY: dict[str, Algorithm] = {}


def register(algorithm: Algorithm) -> Algorithm:
    """Add an algorithm under its name; a name can be taken once."""
    if algorithm.name in _REGISTRY:
        raise ValueError(f"an algorithm called {algorithm.name!r} is already registered")
    _REGISTRY[algorithm.name] = algorithm
    return algorithm


def variant(
    name: str, of: str, summary: str, small_logs: SmallLogs | None = None, **defaults: Any
) -> Algorithm:
    """Add an algorithm that is another one with other defaults of its settings.

    All else is inherited but the settings for small logs, which were tried with other defaults.
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
    return register(inherited._replace(small_logs=small_logs or SmallLogs()))


def names() -> tuple[str, ...]:
    """The names of all algorithms, variants among them."""
    plugins.load()
    return tuple(sorted(_REGISTRY))


def get(name: str) -> Algorithm:
    """The algorithm of this name, or an error that lists the right ones."""
    return plugins.find(_REGISTRY, name, "algorithm")


for _module in (
    fttpo_published, tawac, awac, iql, xql, sql, inac, td3_bc, spot, bc, sparse_reverse_kl,
):  # fmt: skip
    register(_module.ALGORITHM)

variant(
    "fttpo-spot", "fttpo", "FtTPO whose actor goes uphill on Q, held to the proposal",
    SmallLogs({"temperature": 0.35}), actor_loss="spot",
)  # fmt: skip
variant(
    "fttpo-sg", "fttpo", "FtTPO with a squashed Gaussian as the proposal",
    SmallLogs({"temperature": 0.1}), proposal_family="squashed_gaussian",
)  # fmt: skip
variant(
    "fttpo-greedy", "fttpo", "FtTPO whose actor learns from the best of its own samples (GreedyAC)",
    SmallLogs({"temperature": 0.2}), actor_loss="greedy",
)  # fmt: skip
variant(
    "tawac-ht", "tawac", "TAWAC with a heavy-tailed q-Gaussian policy",
    SmallLogs({"temperature": 0.05}), policy="q_gaussian",
)  # fmt: skip
variant(
    "rar", "tawac", "Random action replacement: a sparse policy by regression on what it can take",
    SmallLogs({"temperature": 0.01}), policy="sparse_q_gaussian", outside_support="replace",
)  # fmt: skip

__all__ = ["Algorithm", "Batch", "Metrics", "Problem", "get", "names", "register", "variant"]
