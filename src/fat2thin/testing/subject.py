"""The distribution under test, seen as rows of values by elements of its batch."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Key
from numpyro.distributions import Distribution

from fat2thin.testing.parameters import Parameters, element_parameters, parameters_of, rebuild

# Numbers that one call of a compiled program sees: small enough for any memory, large enough
# that the calls themselves cost nothing.
_BLOCK = 2**20
_MOST_ROWS = 4096
_FEW_ROWS = 64
# Numbers of one array that is kept on the host.
_KEPT = 5 * 10**7


def quick_jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile with few optimisations; the code of NumPyro's distributions promotes ranks."""

    @wraps(function)
    def with_promotion(*arguments: Any) -> Any:
        with jax.numpy_rank_promotion("allow"):
            return function(*arguments)

    # Most programs here run once or twice: compiling them is what takes the time.
    return jax.jit(
        with_promotion, compiler_options={"xla_backend_optimization_level": 1}, **options
    )


Values = Float[np.ndarray, "rows elements ..."]
RowFunction = Callable[..., Array]


class Subject:
    """A continuous distribution whose batch is flattened to `elements`, its event to `dimension`.

    Values go in and come out as float64 arrays (rows, elements) for scalar events and
    (rows, elements, dimension) for others; the distribution itself sees its own dtype.
    """

    def __init__(self, distribution: Distribution, samples: int) -> None:
        if distribution.is_discrete:
            raise ValueError(
                f"{type(distribution).__name__} is discrete: "
                "check_distribution tests densities, that is continuous distributions."
            )
        self.distribution = distribution
        self.batch_shape = tuple(distribution.batch_shape)
        self.event_shape = tuple(distribution.event_shape)
        self.elements = int(np.prod(self.batch_shape))
        self.dimension = int(np.prod(self.event_shape))
        self.scalar = not self.event_shape
        drawn = jax.eval_shape(distribution.sample, jax.random.key(0))
        self.dtype = np.dtype(drawn.dtype)
        if not np.issubdtype(self.dtype, np.floating):
            raise ValueError(f"{type(distribution).__name__} draws {self.dtype}, not real numbers.")
        self.limits = np.finfo(self.dtype)
        self.parameters: Parameters = parameters_of(distribution, self.dtype)
        numbers = self.elements * self.dimension
        self.samples = min(samples, _KEPT // numbers)
        self.rows = max(1, min(_MOST_ROWS, _BLOCK // numbers))
        self.log_prob = self.program(distribution.log_prob)
        self.log_prob_with = self.program(
            lambda values, parameters: self.rebuilt(parameters).log_prob(values)
        )
        self._draw = quick_jit(
            lambda key, rows: distribution.sample(key, (rows,)), static_argnums=1
        )
        self.ends = self.support_ends(distribution)

    def element_name(self, element: int) -> str:
        """Where an element is in the batch, and its parameters."""
        return element_parameters(self.parameters, self.batch_shape, element)

    def rebuilt(self, parameters: Parameters) -> Distribution:
        """The distribution with other values of its parameters."""
        return rebuild(self.distribution, parameters) if parameters else self.distribution

    def program(self, function: RowFunction) -> Callable[..., Values]:
        """Compile function(values, *arguments) once, and apply it to any number of rows."""
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

    def to_device(self, values: Values) -> Array:
        """Values of the distribution's own dtype and shape (rows, *batch, *event)."""
        shape = (values.shape[0], *self.batch_shape)
        if values.ndim == 3:
            shape = (*shape, *self.event_shape)
        with np.errstate(over="ignore"):
            return jnp.asarray(values.reshape(shape).astype(self.dtype))

    def flatten(self, values: Array) -> Values:
        """Back to (rows, elements) or (rows, elements, dimension), in float64."""
        rows = values.shape[0]
        array = np.asarray(values, np.float64)
        if self.event_shape and array.ndim == 1 + len(self.batch_shape) + len(self.event_shape):
            return array.reshape(rows, self.elements, self.dimension)
        return np.broadcast_to(array, (rows, *self.batch_shape)).reshape(rows, self.elements)

    def per_element(self, values: ArrayLike) -> Float[np.ndarray, "elements ..."]:
        """Something of shape (*batch, *event) as (elements,) or (elements, dimension)."""
        if np.ndim(values) > len(self.batch_shape):
            return self.flatten(jnp.asarray(values)[None])[0]
        return self.flatten(jnp.broadcast_to(values, self.batch_shape)[None])[0]

    def rounded(self, values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """The nearest numbers that the distribution's dtype has, kept finite."""
        most = float(self.limits.max)
        return np.asarray(np.clip(values, -most, most), self.dtype).astype(np.float64)

    def spacing(self, values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Distance to the next number of the dtype, and never below its smallest normal number."""
        numbers = self.rounded(values)
        _, exponent = np.frexp(numbers)
        steps = np.where(numbers == 0.0, 0.0, np.ldexp(float(self.limits.eps), exponent - 1))
        return np.asarray(np.maximum(steps, float(self.limits.tiny)))

    def chunks(
        self, key: Key[Array, ""], count: int, draw: Callable[[Key[Array, ""], int], Any]
    ) -> Iterator[Any]:
        """draw(key, rows) again and again until `count` rows are drawn."""
        rows = min(count, max(1, 2 * _BLOCK // (self.elements * self.dimension)))
        for chunk in jax.random.split(key, -(-count // rows)):
            yield draw(chunk, rows)

    def sample(self, key: Key[Array, ""], count: int) -> Values:
        """Independent samples, a row each."""
        chunks = [self.flatten(chunk) for chunk in self.chunks(key, count, self._draw)]
        return np.concatenate(chunks)[:count]

    def in_support(self, values: Values) -> Bool[np.ndarray, "rows elements"]:
        """Whether the distribution's own constraint accepts the values."""
        support = self.distribution.support
        if support is None:
            return np.ones(values.shape[:2], bool)
        answer = np.asarray(support(self.to_device(values)))
        shape = (values.shape[0], *self.batch_shape)
        return np.broadcast_to(answer, shape).reshape(values.shape[:2])

    def support_ends(self, distribution: Distribution) -> Float[np.ndarray, "2 elements"]:
        """Ends of the support of the distribution or of one rebuilt from it; infinite for none."""
        support = distribution.support if self.scalar else None
        ends = getattr(support, "lower_bound", -np.inf), getattr(support, "upper_bound", np.inf)
        return np.stack(
            [np.broadcast_to(np.asarray(end, float), self.batch_shape).reshape(-1) for end in ends]
        )
