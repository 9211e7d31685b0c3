"""The ellipsoid as a NumPyro constraint: the support of a multivariate q-Gaussian."""

import functools

import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, ArrayLike, Bool, Float
from numpyro.distributions import constraints

from fat2thin.distributions.ranks import expand_to_rank


@functools.partial(jnp.vectorize, signature="(n,n),(n)->(n)")
def _solve(lower: Array, vector: Array) -> Array:
    return solve_triangular(lower, vector, lower=True)


def _multiply(matrix: Array, vector: Array) -> Array:
    # An accelerator's default precision would put a sample outside its own support.
    return jnp.einsum("...ij,...j->...i", matrix, vector, precision=lax.Precision.HIGHEST)


class Ellipsoid(constraints.Constraint):
    """|L^-1 (x - loc)| <= radius, L lower triangular (*batch, n, n) or a diagonal (*batch, n).

    A point counts as inside when a point within its rounding error is: a sample of one's own
    never falls outside, however small the ellipsoid beside its location. The slack is a few
    units in the last place of x.
    """

    event_dim = 1
    _fields = ("loc", "scale", "radius")

    def __init__(
        self,
        loc: Float[Array, "... n"],
        scale: Float[Array, "..."],
        radius: Float[Array, "..."],
        *,
        diagonal: bool,
    ) -> None:
        self.loc = loc
        self.scale = scale
        self.radius = radius
        self.diagonal = diagonal

    def __call__(self, x: ArrayLike) -> Bool[Array, "..."]:
        """Whether each event lies in the ellipsoid: (..., n) to (...)."""
        points = lax.stop_gradient(jnp.asarray(x, jnp.result_type(x, self.scale)))
        points = expand_to_rank(points, self.loc.ndim)
        lifted = self._at_rank(points.ndim)
        whitened = lax.stop_gradient(lifted.whiten(points))
        slack = jnp.linalg.norm(lax.stop_gradient(lifted._rounding(points, whitened)), axis=-1)
        return jnp.linalg.norm(whitened, axis=-1) - slack <= lifted.radius

    def whiten(self, x: Float[Array, "... n"]) -> Float[Array, "... n"]:
        """L^-1 (x - loc)."""
        return (x - self.loc) / self.scale if self.diagonal else _solve(self.scale, x - self.loc)

    def colour(self, whitened: Float[Array, "... n"]) -> Float[Array, "... n"]:
        """The inverse of whiten, loc + L whitened."""
        moved = self.scale * whitened if self.diagonal else _multiply(self.scale, whitened)
        return self.loc + moved

    def feasible_like(self, prototype: ArrayLike) -> Array:
        """The centre, in the shape of `prototype`."""
        return jnp.broadcast_to(self.loc, jnp.shape(prototype))

    def eq(self, other: object, static: bool = False) -> ArrayLike:
        """Whether the other is the same ellipsoid; `static` asks for one and the same arrays."""
        if not isinstance(other, Ellipsoid) or self.diagonal != other.diagonal:
            return False
        pairs = [(getattr(self, name), getattr(other, name)) for name in self._fields]
        if static:
            return all(first is second for first, second in pairs)
        return jnp.all(jnp.stack([jnp.array_equal(first, second) for first, second in pairs]))

    def tree_flatten(self) -> tuple[tuple, tuple]:
        """Children and their names, as NumPyro's constraints have them."""
        children = tuple(getattr(self, name) for name in self._fields)
        return children, (self._fields, {"diagonal": self.diagonal})

    def _at_rank(self, rank: int) -> "Ellipsoid":
        """The same ellipsoid, for points with this number of axes."""
        return Ellipsoid(
            expand_to_rank(self.loc, rank),
            expand_to_rank(self.scale, rank if self.diagonal else rank + 1),
            expand_to_rank(self.radius, rank - 1),
            diagonal=self.diagonal,
        )

    def _rounding(self, x: Array, whitened: Array) -> Array:
        """Bound of the error of each whitened coordinate: |L^-1| eps (|x| + (n + 2) |L| |w|)."""
        dimension = whitened.shape[-1]
        epsilon = jnp.finfo(whitened.dtype).eps
        weight = (dimension + 2) * jnp.abs(whitened)
        if self.diagonal:
            return epsilon * (jnp.abs(x) / jnp.abs(self.scale) + weight)
        # Solving for the rows of the identity gives the columns of the inverse.
        identity = expand_to_rank(jnp.eye(dimension, dtype=whitened.dtype), self.scale.ndim)
        inverse = jnp.swapaxes(_solve(self.scale[..., None, :, :], identity), -1, -2)
        absolute = jnp.abs(x) + _multiply(jnp.abs(self.scale), weight)
        return epsilon * _multiply(jnp.abs(inverse), absolute)
