"""The registry of algorithms: look one up by name, or add your own."""

import dataclasses
import difflib
import typing
from typing import Any

from fat2thin import plugins
from fat2thin.algorithms import (
    awac,
    bc,
    fttpo,
    inac,
    iql,
    sparse_reverse_kl,
    spot,
    sql,
    tawac,
    td3_bc,
    xql,
)
from fat2thin.algorithms.base import Algorithm, Batch, Metrics, Problem, with_published
from fat2thin.algorithms.published import fttpo as published_fttpo
from fat2thin.algorithms.published import sparse_reverse_kl as published_sparse_reverse_kl
from fat2thin.algorithms.published import spot as published_spot
from fat2thin.algorithms.published import tawac as published_tawac
from fat2thin.algorithms.published import xql as published_xql

_REGISTRY: dict[str, Algorithm] = {}


def register(algorithm: Algorithm) -> Algorithm:
    """Add an algorithm under its name; a name can be taken once."""
    if algorithm.name in _REGISTRY:
        raise ValueError(f"an algorithm called {algorithm.name!r} is already registered")
    _REGISTRY[algorithm.name] = algorithm
    return algorithm


def variant(name: str, of: str, summary: str, **defaults: Any) -> Algorithm:
    """Add an algorithm that is another one with other defaults of its settings."""
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
    return register(base._replace(name=name, summary=summary, config=config, variant_of=of))


def names() -> tuple[str, ...]:
    """The names of all algorithms, variants among them."""
    plugins.load()
    return tuple(sorted(_REGISTRY))


def get(name: str) -> Algorithm:
    """The algorithm of this name, or an error that lists the right ones."""
    if name not in _REGISTRY:
        plugins.load()
    if name not in _REGISTRY:
        close = difflib.get_close_matches(name, _REGISTRY, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"no algorithm is called {name!r}{hint}; there are {', '.join(names())}")
    return _REGISTRY[name]


register(with_published(fttpo.ALGORITHM, published_fttpo.ALGORITHM))
register(with_published(tawac.ALGORITHM, published_tawac.ALGORITHM))
register(awac.ALGORITHM)
register(iql.ALGORITHM)
register(with_published(xql.ALGORITHM, published_xql.ALGORITHM))
register(sql.ALGORITHM)
register(inac.ALGORITHM)
register(td3_bc.ALGORITHM)
register(with_published(spot.ALGORITHM, published_spot.ALGORITHM))
register(bc.ALGORITHM)
register(with_published(sparse_reverse_kl.ALGORITHM, published_sparse_reverse_kl.ALGORITHM))

variant(
    "fttpo-spot", "fttpo", "FtTPO whose actor goes uphill on Q, held to the proposal",
    actor_loss="spot",
)  # fmt: skip
variant(
    "fttpo-sg", "fttpo", "FtTPO with a squashed Gaussian as the proposal",
    proposal_family="squashed_gaussian",
)  # fmt: skip
variant(
    "fttpo-greedy", "fttpo", "FtTPO whose actor learns from the best of its own samples (GreedyAC)",
    actor_loss="greedy",
)  # fmt: skip
variant("tawac-ht", "tawac", "TAWAC with a heavy-tailed q-Gaussian policy", policy="q_gaussian")
variant(
    "rar", "tawac", "Random action replacement: a sparse policy by regression on what it can take",
    policy="sparse_q_gaussian", outside_support="replace",
)  # fmt: skip

__all__ = ["Algorithm", "Batch", "Metrics", "Problem", "get", "names", "register", "variant"]
