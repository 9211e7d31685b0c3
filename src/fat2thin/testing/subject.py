"""`Subject`, the distribution under test with named parameters and a flattened batch."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from itertools import chain, combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Key
from numpyro.distributions import (
    Distribution,
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
    TransformedDistribution,
)
from numpyro.distributions.constraints import Constraint

# Numbers per call of a compiled program: small enough for any memory, large enough that the
# overhead of a call does not matter.
_BLOCK = 2**20
_MOST_ROWS = 4096
_FEW_ROWS = 64
# Maximum number of entries of an array on the host.
_KEPT = 5 * 10**7
TOLERANCE = {np.dtype(np.float32): 2e-5, np.dtype(np.float64): 1e-9}
_WRAPPERS = (Independent, ExpandedDistribution, MaskedDistribution, TransformedDistribution)


def quick_jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile with few optimisations and with rank promotion, which NumPyro needs."""

    @wraps(function)
    def with_promotion(*arguments: Any) -> Any:
        with jax.numpy_rank_promotion("allow"):
            return function(*arguments)

    # Most programs run only once or twice, so compilation dominates.
    return jax.jit(
        with_promotion, compiler_options={"xla_backend_optimization_level": 1}, **options
    )


Parameters = dict[str, Array]
Values = Float[np.ndarray, "rows elements ..."]


def innermost(distribution: Distribution) -> Distribution:
    """Return the distribution inside wrappers such as `to_event`, `expand` and `mask`."""
    while type(distribution) in _WRAPPERS:
        distribution = distribution.base_dist
    return distribution


def rebuild(distribution: Distribution, parameters: Mapping[str, Any]) -> Distribution:
    """Return the distribution with other parameter values, which may be traced."""
    kind = type(distribution)
    base = rebuild(distribution.base_dist, parameters) if kind in _WRAPPERS else None
    if base is None:
        rebuilt = _construct(distribution, parameters)
    elif kind is Independent:
        rebuilt = Independent(base, distribution.reinterpreted_batch_ndims, validate_args=False)
    elif kind is ExpandedDistribution:
        rebuilt = base.expand(distribution.batch_shape)
    elif kind is MaskedDistribution:
        rebuilt = base.mask(distribution._mask)
    else:
        rebuilt = TransformedDistribution(base, distribution.transforms, validate_args=False)
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
        name: value
        for name, value in distribution.__dict__.items()
        if name in accepted and name not in parameters and not _is_parameter(distribution, name)
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


def event_dim(constraint: Constraint | None) -> int:
    """Return the number of event axes of a constraint; 0 if unknown."""
    try:
        return 0 if constraint is None else constraint.event_dim
    except NotImplementedError:
        return 0


def parameters_of(distribution: Distribution, dtype: Any) -> Parameters:
    """Return the parameters by name, broadcast so that every batch element has its own.

    If a parameter has several forms (a covariance and its Cholesky factor), the first set that can
    rebuild the distribution is used.
    """
    owner = innermost(distribution)
    accepted = inspect.signature(type(owner)).parameters
    names = [name for name in accepted if _is_parameter(owner, name)]
    if not names:
        names = [name for name in owner.arg_constraints if owner.__dict__.get(name) is not None]
    values = {}
    for name in names:
        value = jnp.asarray(owner.__dict__[name], dtype)
        event_shape = value.shape[value.ndim - event_dim(owner.arg_constraints.get(name)) :]
        values[name] = jnp.broadcast_to(value, owner.batch_shape + event_shape)
    for chosen in chain.from_iterable(combinations(names, n) for n in range(len(names), 0, -1)):
        candidate = {name: values[name] for name in chosen}
        with suppress(AssertionError, TypeError, ValueError):
            if _construct(owner, candidate).shape() == owner.shape():
                return candidate
    return {}


class Subject:
    """A continuous distribution with its batch flattened to `elements` and event to `dimension`.

    Methods take and return float64 arrays: (rows, elements) for scalar events and
    (rows, elements, dimension) for others. The distribution itself is evaluated in its own dtype.
    """

    def __init__(
        self,
        distribution: Distribution,
        samples: int,
        tolerance: float | None = None,
        false_alarm: float = 1e-6,
    ) -> None:
        if distribution.is_discrete:
            raise ValueError(
                f"{type(distribution).__name__} is discrete; "
                "check_distribution needs a continuous distribution."
            )
        self.distribution = distribution
        self.owner = innermost(distribution)
        self.batch_shape = tuple(distribution.batch_shape)
        self.event_shape = tuple(distribution.event_shape)
        self.elements = int(np.prod(self.batch_shape))
        self.dimension = int(np.prod(self.event_shape))
        self.scalar = not self.event_shape
        self.dtype = np.dtype(jax.eval_shape(distribution.sample, jax.random.key(0)).dtype)
        if not np.issubdtype(self.dtype, np.floating):
            raise ValueError(
                f"{type(distribution).__name__} has samples of dtype {self.dtype}; "
                "check_distribution needs a real floating-point dtype."
            )
        self.limits = np.finfo(self.dtype)
        self.tolerance = TOLERANCE[self.dtype] if tolerance is None else tolerance
        # The statistical checks share the false-alarm level: two for scalars, five for vectors.
        self.false_alarm = false_alarm / (2 if self.scalar else 5)
        self.parameters: Parameters = parameters_of(distribution, self.dtype)
        numbers = self.elements * self.dimension
        self.samples = min(samples, _KEPT // numbers)
        self.rows = max(1, min(_MOST_ROWS, _BLOCK // numbers))
        self._log_prob = self.program(lambda values, with_: self.rebuilt(with_).log_prob(values))
        self._draw = quick_jit(lambda key, n: distribution.sample(key, (n,)), static_argnums=1)

    def element_name(self, element: int) -> str:
        """Return the index of an element in the batch and its parameters, as text."""
        if not self.batch_shape:
            return ""
        index = np.unravel_index(element, self.batch_shape)
        parts = [f"element {tuple(int(i) for i in index)}"]
        for name, value in self.parameters.items():
            if value.shape[: len(index)] == self.batch_shape:
                parts.append(f"{name}={_short(np.asarray(value)[index])}")
        return " ".join(parts)

    def rebuilt(self, parameters: Parameters) -> Distribution:
        """Return the distribution with other parameter values."""
        return rebuild(self.distribution, parameters) if parameters else self.distribution

    def program(self, function: Callable[..., Array]) -> Callable[..., Values]:
        """Return function(values, *arguments), compiled once for any number of rows."""
        compiled = quick_jit(function)

        def apply(values: Values, *arguments: Any) -> Values:
            count = values.shape[0]
            rows = min(_FEW_ROWS, self.rows) if count <= _FEW_ROWS else self.rows
            padded = np.concatenate([values, np.repeat(values[-1:], -count % rows, axis=0)])
            blocks = [
                self.flatten(compiled(self.to_device(padded[start : start + rows]), *arguments))
                for start in range(0, count, rows)
            ]
            return np.concatenate(blocks)[:count]

        return apply

    def log_prob(self, values: Values, parameters: Parameters | None = None) -> Values:
        """Return log densities (rows, elements), with other parameters if given."""
        return self._log_prob(values, parameters or {})

    def to_device(self, values: Values) -> Array:
        """Return values in the distribution's own dtype and shape (rows, *batch, *event)."""
        event_shape = self.event_shape if values.ndim == 3 else ()
        shaped = values.reshape(len(values), *self.batch_shape, *event_shape)
        with np.errstate(over="ignore"):
            return jnp.asarray(shaped.astype(self.dtype))

    def flatten(self, values: Array) -> Values:
        """Invert `to_device`: return (rows, elements) or (rows, elements, dimension) in float64."""
        rows, array = values.shape[0], np.asarray(values, np.float64)
        if self.event_shape and array.ndim == 1 + len(self.batch_shape) + len(self.event_shape):
            return array.reshape(rows, self.elements, self.dimension)
        return np.broadcast_to(array, (rows, *self.batch_shape)).reshape(rows, self.elements)

    def per_element(self, values: ArrayLike) -> Float[np.ndarray, "elements ..."]:
        """Flatten an array of shape (*batch, *event) to (elements,) or (elements, dimension)."""
        if np.ndim(values) > len(self.batch_shape):
            return self.flatten(jnp.asarray(values)[None])[0]
        return self.flatten(jnp.broadcast_to(values, self.batch_shape)[None])[0]

    def rounded(self, values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Round values to the distribution's dtype and clip them to finite numbers."""
        most = float(self.limits.max)
        return np.asarray(np.clip(values, -most, most), self.dtype).astype(np.float64)

    def spacing(self, values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Return the distance to the next number of the dtype, at least the smallest normal one."""
        numbers = self.rounded(values)
        exponent = np.frexp(numbers)[1]
        steps = np.where(numbers == 0.0, 0.0, np.ldexp(float(self.limits.eps), exponent - 1))
        return np.asarray(np.maximum(steps, float(self.limits.tiny)))

    def chunks(
        self, key: Key[Array, ""], count: int, draw: Callable[[Key[Array, ""], int], Any]
    ) -> Iterator[Any]:
        """Yield draw(key, rows) until at least `count` rows are drawn."""
        rows = min(count, max(1, 2 * _BLOCK // (self.elements * self.dimension)))
        for chunk in jax.random.split(key, -(-count // rows)):
            yield draw(chunk, rows)

    def sample(self, key: Key[Array, ""], count: int) -> Values:
        """Return independent samples, one per row."""
        return np.concatenate([*map(self.flatten, self.chunks(key, count, self._draw))])[:count]

    def in_support(self, values: Values) -> Bool[np.ndarray, "rows elements"]:
        """Return whether values satisfy the distribution's support constraint."""
        support = self.distribution.support
        if support is None:
            return np.ones(values.shape[:2], bool)
        with jax.numpy_rank_promotion("allow"):
            answer = np.asarray(support(self.to_device(values)))
        shape = (values.shape[0], *self.batch_shape)
        return np.broadcast_to(answer, shape).reshape(values.shape[:2])

    def ends(self, parameters: Parameters | None = None) -> Float[np.ndarray, "2 elements"]:
        """Return the ends of the support, infinite if unbounded, with other parameters if given."""
        support = self.rebuilt(parameters or {}).support if self.scalar else None
        ends = getattr(support, "lower_bound", -np.inf), getattr(support, "upper_bound", np.inf)
        flat = [np.broadcast_to(end, self.batch_shape).reshape(-1) for end in ends]
        return np.stack(flat, dtype=float)


def _short(value: np.ndarray | np.floating) -> str:
    if value.size == 1:
        return f"{float(value):.9g}"
    return "[" + " ".join(f"{float(entry):.4g}" for entry in value.ravel()[:6]) + "]"
