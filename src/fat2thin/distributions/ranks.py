"""Equal ranks where a sample shape meets a batch shape.

NumPyro lets values have axes in front of a distribution's batch. Here the missing axes are added
explicitly, so that tests can let JAX refuse shapes of unequal rank (`jax_numpy_rank_promotion`).
"""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike
from numpyro.distributions import Distribution

AnyDistribution = TypeVar("AnyDistribution", bound=Distribution)


def expand_to_rank(x: Any, rank: int) -> Any:
    """Put axes of length 1 in front of `x`, up to `rank` axes; a scalar stays a scalar."""
    present = np.ndim(x)
    if not 0 < present < rank:
        return x
    axes = tuple(range(rank - present))
    if not isinstance(x, jax.Array):
        return np.expand_dims(x, axes)
    if isinstance(x, jax.core.Tracer):
        return jnp.expand_dims(x, axes)
    # A known index stays known inside a traced function.
    with jax.ensure_compile_time_eval():
        return jnp.expand_dims(x, axes)


def lift(distribution: AnyDistribution, rank: int) -> AnyDistribution:
    """The same distribution with axes of length 1 in front of its batch, up to `rank` axes."""
    missing = rank - len(distribution.batch_shape)
    if missing <= 0 or not distribution.shape():
        return distribution
    lifted = copy.copy(distribution)
    for name, value in distribution.get_args().items():
        setattr(lifted, name, expand_to_rank(value, np.ndim(value) + missing))
    lifted._batch_shape = (1,) * missing + distribution.batch_shape
    return lifted


def at_equal_ranks(method: Callable[..., Any]) -> Callable[..., Any]:
    """Give a method's distribution and its first argument, the values, equal ranks."""
    name = list(inspect.signature(method).parameters)[1]

    @functools.wraps(method)
    def aligned(self: Distribution, *arguments: Any, **named: Any) -> Any:
        value: ArrayLike
        value, *rest = arguments or (named.pop(name),)
        events = len(self.event_shape)
        value = expand_to_rank(value, len(self.batch_shape) + events)
        return method(lift(self, np.ndim(value) - events), value, *rest, **named)

    return aligned
