"""The law of actions whose transformed columns have a known law."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Key
from numpyro.distributions import Distribution, constraints

from fat2thin.columns import LOG, Transforms, inverse_transform, transform
from fat2thin.distributions.base import expand_to_rank

Ends = tuple[Array, Array]


class TransformedColumns(Distribution):
    """Raw actions x, of event shape (action,), for which y = transform(x) has the law `base`.

    `ends` are the lowest and the highest y, `raw_ends` the same of x; both have the shape of `base`
    and may be infinite. With the increasing transforms of `fat2thin.columns` the density is

        log p(x) = log p_base(y) + Σ_i log(dy_i / dx_i),

    where the slope is 1 / (x_i + offset) = exp(−y_i) for a logarithm.
    """

    pytree_data_fields = ("base", "ends", "raw_ends")
    pytree_aux_fields = ("transforms",)

    def __init__(self, base: Distribution, transforms: Transforms, ends: Ends, raw_ends: Ends):
        self.base, self.transforms, self.ends, self.raw_ends = base, transforms, ends, raw_ends
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        """The box between the raw ends."""
        return constraints.independent(constraints.interval(*self.raw_ends), 1)

    def sample(
        self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()
    ) -> Float[Array, "..."]:
        """Draw raw actions; rounding carries none of them over an end.

        Where there is no end, a sample saturates at the last number that has a density.
        """
        drawn = self.base.sample(key, sample_shape)
        low, high = (expand_to_rank(end, drawn.ndim) for end in self.raw_ends)
        unbounded = expand_to_rank(jnp.isinf(self.ends[0]), drawn.ndim)
        low = jnp.where(unbounded, jnp.nextafter(low, jnp.inf), low)
        high = jnp.minimum(high, jnp.finfo(drawn.dtype).max)
        return jnp.clip(inverse_transform(drawn, self.transforms, jnp), low, high)

    def log_prob(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the log density per unit of the raw actions, −inf outside the ends.

        Whether an action lies inside is decided in raw units, so that none of one's own samples is
        outside by rounding.
        """
        value = jnp.asarray(value)
        rank = max(value.ndim, self.ends[0].ndim)
        value, low, high, raw_low, raw_high = (
            expand_to_rank(part, rank) for part in (value, *self.ends, *self.raw_ends)
        )
        y = transform(value, self.transforms, jnp)
        inside = (raw_low <= value) & (value <= raw_high) & ~jnp.isnan(y)
        # Any point of the support will do outside of it: it is dropped, and so is its gradient.
        bounded = jnp.isfinite(low) & jnp.isfinite(high)
        middle = jnp.where(bounded, (jnp.where(bounded, low, 0.0) + high) / 2.0, 0.0)
        y = jnp.where(inside, jnp.clip(jnp.where(inside, y, middle), low, high), middle)
        slopes = jnp.stack([*map(_log_slope, jnp.moveaxis(y, -1, 0), self.transforms)], axis=-1)
        # The density of a point mass is a probability: units do not change it.
        slopes = jnp.where(raw_low < raw_high, slopes, 0.0)
        density = self.base.log_prob(y) + jnp.sum(slopes, axis=-1)
        return jnp.where(jnp.all(inside, axis=-1), density, -jnp.inf)

    def entropy(self) -> Float[Array, "..."]:
        """Return the entropy in nats per raw unit; a column that is a point mass adds 0."""
        mean = self.base.base_dist.mean
        slopes = jnp.stack([*map(_log_slope, jnp.moveaxis(mean, -1, 0), self.transforms)], axis=-1)
        spread = self.raw_ends[0] < self.raw_ends[1]
        return self.base.entropy() - jnp.sum(jnp.where(spread, slopes, 0.0), axis=-1)


def _log_slope(y: Array, one: Any) -> Array:
    """Return log(dy / dx) of one column, from its transformed values."""
    if one is None:
        return jnp.zeros_like(y)
    return -y if one.kind == LOG else jnp.full_like(y, jnp.log(one.number))
