"""One call for a sample and its log density, whatever the distribution offers."""

import jax.numpy as jnp
from jaxtyping import Array, Key
from numpyro.distributions import Distribution, Independent


def sample_with_log_prob(
    distribution: Distribution, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()
) -> tuple[Array, Array]:
    """Samples and their log density, by the distribution's own stable way where it has one."""
    if isinstance(distribution, Independent):
        values, log_density = sample_with_log_prob(distribution.base_dist, key, sample_shape)
        event = tuple(range(-distribution.reinterpreted_batch_ndims, 0))
        return values, jnp.sum(log_density, axis=event)
    if hasattr(distribution, "sample_with_log_prob"):
        return distribution.sample_with_log_prob(key, sample_shape)
    values = distribution.sample(key, sample_shape)
    return values, distribution.log_prob(values)
