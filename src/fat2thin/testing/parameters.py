"""The parameters of a distribution by name, and the same distribution with other values of them."""

import copy
import inspect
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpyro.distributions import (
    Distribution,
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
    TransformedDistribution,
)
from numpyro.distributions.constraints import Constraint

Parameters = dict[str, Array]

_WRAPPERS = (Independent, ExpandedDistribution, MaskedDistribution, TransformedDistribution)


def innermost(distribution: Distribution) -> Distribution:
    """The distribution that owns the parameters, under `to_event`, `expand`, `mask`, ..."""
    while type(distribution) in _WRAPPERS:
        distribution = distribution.base_dist
    return distribution


def rebuild(distribution: Distribution, parameters: Mapping[str, Any]) -> Distribution:
    """The same distribution with these values of its parameters, which may be traced."""
    base = getattr(distribution, "base_dist", None)
    if type(distribution) is Independent:
        rebuilt = Independent(
            rebuild(base, parameters), distribution.reinterpreted_batch_ndims, validate_args=False
        )
    elif type(distribution) is ExpandedDistribution:
        rebuilt = rebuild(base, parameters).expand(distribution.batch_shape)
    elif type(distribution) is MaskedDistribution:
        rebuilt = rebuild(base, parameters).mask(distribution._mask)
    elif type(distribution) is TransformedDistribution:
        rebuilt = TransformedDistribution(
            rebuild(base, parameters), distribution.transforms, validate_args=False
        )
    else:
        rebuilt = _construct(distribution, parameters)
    rebuilt._validate_args = distribution._validate_args
    return rebuilt


def _construct(distribution: Distribution, parameters: Mapping[str, Any]) -> Distribution:
    accepted = inspect.signature(type(distribution)).parameters
    if not set(parameters) <= set(accepted):
        changed = copy.copy(distribution)
        for name, value in parameters.items():
            setattr(changed, name, value)
        return changed
    others = {
        name: distribution.__dict__[name]
        for name in accepted
        if name not in parameters
        and name in distribution.__dict__
        and not _is_parameter(distribution, name)
    }
    if "validate_args" in accepted:
        others["validate_args"] = False
    return type(distribution)(**parameters, **others)


def _is_parameter(distribution: Distribution, name: str) -> bool:
    value = distribution.__dict__.get(name)
    if name in distribution.arg_constraints:
        return value is not None
    return isinstance(value, float) or (
        hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)
    )


def event_dim(constraint: Constraint) -> int:
    """How many trailing axes of a parameter belong together; 0 where that is not said."""
    try:
        return constraint.event_dim
    except NotImplementedError:
        return 0


def parameters_of(distribution: Distribution, dtype: Any) -> Parameters:
    """The parameters by name, each expanded to the batch so that every element has its own.

    Where a distribution keeps several forms of one parameter (a covariance and its Cholesky
    factor), the first set of them is taken from which it can be built again.
    """
    owner = innermost(distribution)
    accepted = inspect.signature(type(owner)).parameters
    names = [name for name in accepted if _is_parameter(owner, name)]
    if not names:
        names = [name for name in owner.arg_constraints if owner.__dict__.get(name) is not None]
    values = {}
    for name in names:
        value = jnp.asarray(owner.__dict__[name], dtype)
        constraint = owner.arg_constraints.get(name)
        trailing = 0 if constraint is None else event_dim(constraint)
        event_shape = value.shape[value.ndim - trailing :]
        values[name] = jnp.broadcast_to(value, owner.batch_shape + event_shape)
    for size in range(len(names), 0, -1):
        for chosen in combinations(names, size):
            candidate = {name: values[name] for name in chosen}
            if _can_be_built(owner, candidate):
                return candidate
    return {}


def _can_be_built(owner: Distribution, candidate: Parameters) -> bool:
    try:
        rebuilt = _construct(owner, candidate)
    except (AssertionError, TypeError, ValueError):
        return False
    return rebuilt.shape() == owner.shape()


def element_parameters(parameters: Parameters, batch_shape: tuple[int, ...], element: int) -> str:
    """The parameters of one element of the batch, for a report."""
    if not batch_shape:
        return ""
    index = np.unravel_index(element, batch_shape)
    parts = [f"element {tuple(int(i) for i in index)}"]
    for name, value in parameters.items():
        if value.shape[: len(index)] == batch_shape:
            parts.append(f"{name}={_short(np.asarray(value)[index])}")
    return " ".join(parts)


def _short(value: np.ndarray | np.floating) -> str:
    if value.size == 1:
        return f"{float(value):.9g}"
    return "[" + " ".join(f"{float(entry):.4g}" for entry in value.ravel()[:6]) + "]"
