"""Multivariate q-Gaussians: ellipsoidal for an index below 1, Student-t above it.

With m² = (a - mu)' Sigma^-1 (a - mu) and h = 1 - q > 0 the ellipsoidal density is

    p(a) = exp_q(-m² / 2) / Z,    zero outside the ellipsoid m² <= 2 / h.

For q >= 1 + 2/n its integral diverges. The heavy-tailed counterpart is the multivariate Student-t,
whose one-dimensional marginals are all q-Gaussians with the same index.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, ArrayLike, Bool, Float, Key
from numpyro.distributions import MultivariateStudentT, constraints
from numpyro.distributions.util import promote_shapes, validate_sample
from numpyro.util import not_jax_tracer

from fat2thin.distributions.base import Law, at_equal_ranks, expand_to_rank, lift
from fat2thin.distributions.q_math import log1p_ratio, log_expm1_ratio
from fat2thin.distributions.standard_q_gaussian import entropy_excess, log_normaliser

_LOG_2_PI = math.log(2.0 * math.pi)
_Draw = tuple[Array, Array, Array]


def student_t_parameters(entropic_index: ArrayLike) -> tuple[Array, Array]:
    """Return degrees of freedom (3 - q) / (q - 1) and scale factor sqrt(2 / (3 - q)), 1 < q < 3.

    A q-Gaussian with scale sigma is the Student-t with scale sigma times this factor.
    """
    if not_jax_tracer(entropic_index):
        known = np.asarray(entropic_index)
        if np.any((known <= 1.0) | (known >= 3.0)):
            raise ValueError(
                f"entropic_index must be strictly between 1 and 3 for a Student-t, got {known}."
            )
    index = jnp.asarray(entropic_index, jnp.result_type(entropic_index, float))
    return (3.0 - index) / (index - 1.0), jnp.sqrt(2.0 / (3.0 - index))


def index_from_degrees_of_freedom(degrees_of_freedom: ArrayLike) -> Float[Array, "..."]:
    """Return the entropic index (nu + 3) / (nu + 1) of a Student-t with nu degrees of freedom."""
    dtype = jnp.result_type(degrees_of_freedom, float)
    return 1.0 + 2.0 / (jnp.asarray(degrees_of_freedom, dtype) + 1.0)


def multivariate_student_t(
    loc: ArrayLike,
    scale_tril: ArrayLike,
    entropic_index: ArrayLike,
    *,
    validate_args: bool | None = None,
) -> MultivariateStudentT:
    """Return the multivariate Student-t whose marginals are q-Gaussians with this index, 1 < q < 3.

    The marginal along a direction v is QGaussian(v'loc, |scale_tril' v|, entropic_index). Shapes:
    loc (*batch, n), scale_tril (*batch, n, n), entropic_index (*batch).
    """
    freedom, factor = student_t_parameters(entropic_index)
    lower, factor = promote_shapes(jnp.asarray(scale_tril), factor[..., None, None])
    return MultivariateStudentT(freedom, loc, lower * factor, validate_args=validate_args)


@functools.partial(jnp.vectorize, signature="(n,n),(n)->(n)")
def _solve(lower: Array, vector: Array) -> Array:
    return solve_triangular(lower, vector, lower=True)


def _multiply(matrix: Array, vector: Array) -> Array:
    # With an accelerator's default precision, samples could fall outside the support.
    return jnp.einsum("...ij,...j->...i", matrix, vector, precision=lax.Precision.HIGHEST)


class Ellipsoid(constraints.Constraint):
    """The constraint |L^-1 (x - loc)| <= radius.

    `scale` is L: lower triangular (*batch, n, n), or a diagonal (*batch, n) if `diagonal`. A point
    within rounding error of the ellipsoid (a few units in the last place of x) counts as inside. So
    samples are never outside, even if the ellipsoid is tiny compared to its location.
    """

    event_dim = 1
    _fields = ("loc", "scale", "radius")

    def __init__(self, loc: Array, scale: Array, radius: Array, *, diagonal: bool) -> None:
        self.loc, self.scale, self.radius, self.diagonal = loc, scale, radius, diagonal

    def __call__(self, x: ArrayLike) -> Bool[Array, "..."]:
        """Return whether each event lies in the ellipsoid; maps (..., n) to (...)."""
        points = lax.stop_gradient(jnp.asarray(x, jnp.result_type(x, self.scale)))
        points = expand_to_rank(points, self.loc.ndim)
        lifted = Ellipsoid(
            expand_to_rank(self.loc, points.ndim),
            expand_to_rank(self.scale, points.ndim if self.diagonal else points.ndim + 1),
            expand_to_rank(self.radius, points.ndim - 1),
            diagonal=self.diagonal,
        )
        whitened = lax.stop_gradient(lifted.whiten(points))
        slack = jnp.linalg.norm(lax.stop_gradient(lifted._rounding(points, whitened)), axis=-1)
        return jnp.linalg.norm(whitened, axis=-1) - slack <= lifted.radius

    def whiten(self, x: Float[Array, "... n"]) -> Float[Array, "... n"]:
        """Return L^-1 (x - loc)."""
        return (x - self.loc) / self.scale if self.diagonal else _solve(self.scale, x - self.loc)

    def colour(self, whitened: Float[Array, "... n"]) -> Float[Array, "... n"]:
        """Return loc + L whitened, the inverse of `whiten`."""
        moved = self.scale * whitened if self.diagonal else _multiply(self.scale, whitened)
        return self.loc + moved

    def feasible_like(self, prototype: ArrayLike) -> Array:
        """Return the centre, in the shape of `prototype`."""
        return jnp.broadcast_to(self.loc, jnp.shape(prototype))

    def eq(self, other: object, static: bool = False) -> ArrayLike:
        """Compare ellipsoids by value, or with `static` by identity of their arrays."""
        if not isinstance(other, Ellipsoid) or self.diagonal != other.diagonal:
            return False
        pairs = [(getattr(self, name), getattr(other, name)) for name in self._fields]
        if static:
            return all(first is second for first, second in pairs)
        return jnp.all(jnp.stack([jnp.array_equal(first, second) for first, second in pairs]))

    def tree_flatten(self) -> tuple[tuple, tuple]:
        """Return the children and their names in the format of NumPyro's constraints."""
        children = tuple(getattr(self, name) for name in self._fields)
        return children, (self._fields, {"diagonal": self.diagonal})

    def _rounding(self, x: Array, whitened: Array) -> Array:
        """Return a bound on the error of whitened, w: |L^-1| eps (|x| + (n + 2) |L| |w|)."""
        dimension = whitened.shape[-1]
        epsilon = jnp.finfo(whitened.dtype).eps
        weight = (dimension + 2) * jnp.abs(whitened)
        if self.diagonal:
            return epsilon * (jnp.abs(x) / jnp.abs(self.scale) + weight)
        # Solving for a row of the identity gives a column of the inverse.
        identity = expand_to_rank(jnp.eye(dimension, dtype=whitened.dtype), self.scale.ndim)
        inverse = jnp.swapaxes(_solve(self.scale[..., None, :, :], identity), -1, -2)
        absolute = jnp.abs(x) + _multiply(jnp.abs(self.scale), weight)
        return epsilon * _multiply(jnp.abs(inverse), absolute)


class MultivariateQGaussian(Law):
    """Ellipsoidal q-Gaussian over vectors of n coordinates, with an index below 1.

    Shapes: loc (*batch, n), entropic_index (*batch), and either scale_tril (*batch, n, n), the
    Cholesky factor of Sigma, or scale_diag (*batch, n), the square roots of a diagonal Sigma. Sigma
    is not the covariance. With a diagonal Sigma the coordinates are uncorrelated but never
    independent. With h = 1 - q, the marginals have the index 1 - h / (1 + h (n - 1) / 2), which is
    above q. A concrete index of 1 or above raises a ValueError; a traced one gives NaN. Samples are
    smooth in the index up to 1.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fat2thin.distributions import MultivariateQGaussian
        >>> disc = MultivariateQGaussian(jnp.zeros(2), 0.0, scale_diag=jnp.ones(2))
        >>> print(disc.half_width, disc.support_mask(jnp.array([[0.9, 0.9], [1.1, 1.1]])))
        [1.4142135 1.4142135] [ True False]
    """

    arg_constraints = {  # noqa: RUF012  (NumPyro's convention)
        "loc": constraints.real_vector,
        "entropic_index": constraints.open_interval(-np.inf, 1.0),
        "scale_tril": constraints.lower_cholesky,
        "scale_diag": constraints.independent(constraints.positive, 1),
    }
    reparametrized_params = list(arg_constraints)  # noqa: RUF012

    def __init__(
        self,
        loc: ArrayLike,
        entropic_index: ArrayLike,
        *,
        scale_tril: ArrayLike | None = None,
        scale_diag: ArrayLike | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if (scale_tril is None) == (scale_diag is None):
            raise ValueError("Give exactly one of scale_tril and scale_diag.")
        scales = {"scale_tril": scale_tril, "scale_diag": scale_diag}
        given = {"loc": loc, "entropic_index": entropic_index, **scales}
        batch_shape, dimension = _shapes(
            {name: jnp.shape(value) for name, value in given.items() if value is not None}
        )
        _refuse_index(entropic_index, dimension)
        vector = (*batch_shape, dimension)
        (self.loc,) = promote_shapes(loc, shape=vector)
        (self.entropic_index,) = promote_shapes(entropic_index, shape=batch_shape)
        self.scale_tril = self.scale_diag = None
        if scale_tril is not None:
            (self.scale_tril,) = promote_shapes(scale_tril, shape=(*vector, dimension))
        else:
            (self.scale_diag,) = promote_shapes(scale_diag, shape=vector)
        super().__init__(batch_shape, (dimension,), validate_args=validate_args)

    def get_args(self) -> dict[str, ArrayLike]:
        """Return the given parameters by name, with only one of the two scales."""
        return {name: value for name, value in super().get_args().items() if value is not None}

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> Ellipsoid:
        """The ellipsoid m² <= 2 / (1 - q)."""
        loc = jnp.asarray(self.loc, self._dtype())
        radius = jnp.sqrt(2.0 / self._sparsity())
        return Ellipsoid(loc, self._scale(), radius, diagonal=self._is_diagonal)

    @at_equal_ranks
    def support_mask(self, value: ArrayLike) -> Bool[Array, "..."]:
        """Return whether each event lies in the support, surface included; (..., n) to (...)."""
        return self.support(self._as_event(value))

    @property
    def half_width(self) -> Float[Array, "*batch n"]:
        """Half-widths of the bounding box of the support, sqrt(2 / (1 - q)) sqrt(diag Sigma)."""
        radius = jnp.sqrt(2.0 / self._sparsity())[..., None]
        return jnp.broadcast_to(radius * jnp.sqrt(self._diagonal()), self.shape())

    @at_equal_ranks
    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: list | None = None) -> Float[Array, "..."]:
        """Return the log density: exactly -inf outside the support, with a zero gradient there.

        Inside, 1 - h m² / 2 is clamped to at least the machine epsilon, so the result is finite.
        """
        value = self._as_event(value)
        support, sparsity = self.support, self._sparsity()
        outside = ~(support(value) | jnp.isnan(sparsity))
        whitened = jnp.where(outside[..., None], 0.0, support.whiten(value))
        energy = jnp.sum(whitened**2, axis=-1) / 2.0
        floor = jnp.finfo(energy.dtype).eps - 1.0
        kernel = -energy * log1p_ratio(jnp.maximum(-sparsity * energy, floor))
        return jnp.where(outside, -jnp.inf, kernel - self._log_normaliser())

    def _log_density(self, draw: _Draw) -> Array:
        _, radial, left_out = draw
        sparsity = self._sparsity()
        energy = jnp.exp(_log_energy(radial, sparsity)) * (1.0 - left_out)
        central = sparsity * energy < 0.5
        inner = jnp.where(central, energy, 0.0)
        # 1 - h m² / 2 = left_out + (1 - left_out) exp(-h radial): no subtraction.
        remainder = jnp.logaddexp(jnp.log(left_out), jnp.log1p(-left_out) - sparsity * radial)
        near_edge = remainder / jnp.where(central, 1.0, sparsity)
        kernel = jnp.where(central, -inner * log1p_ratio(-sparsity * inner), near_edge)
        return kernel - self._log_normaliser()

    def entropy(self) -> Float[Array, "*batch"]:
        """Return the entropy log Z + e (digamma(e + 1 + n/2) - digamma(e + 1)), with e = 1 / h."""
        sparsity = self._sparsity()
        excess = jnp.sum(1.0 / (1.0 + sparsity[..., None] * self._steps()), axis=-1)
        if self._is_odd:
            excess = excess + entropy_excess(1.0 - sparsity)
        return jnp.broadcast_to(self._log_normaliser() + excess, self.batch_shape)

    @property
    def mean(self) -> Float[Array, "*batch n"]:
        """The location."""
        return jnp.broadcast_to(jnp.asarray(self.loc, self._dtype()), self.shape())

    mode = mean

    @property
    def variance(self) -> Float[Array, "*batch n"]:
        """The diagonal of the covariance."""
        return jnp.broadcast_to(self._shrinkage()[..., None] * self._diagonal(), self.shape())

    @property
    def covariance_matrix(self) -> Float[Array, "*batch n n"]:
        """The covariance, Sigma 2 / ((n + 2) h + 2)."""
        if self._is_diagonal:
            identity = jnp.eye(self.event_shape[0], dtype=self._dtype())
            squared = self._diagonal()[..., None]
            sigma = squared * expand_to_rank(identity, squared.ndim)
        else:
            lower = self._scale()
            sigma = jnp.einsum("...ik,...jk->...ij", lower, lower, precision=lax.Precision.HIGHEST)
        value = self._shrinkage()[..., None, None] * sigma
        return jnp.broadcast_to(value, (*self.shape(), *self.event_shape))

    @property
    def _is_diagonal(self) -> bool:
        return self.scale_tril is None

    @property
    def _is_odd(self) -> bool:
        return self.event_shape[0] % 2 == 1

    def _scale(self) -> Float[Array, "..."]:
        return jnp.asarray(self.scale_diag if self._is_diagonal else self.scale_tril, self._dtype())

    def _diagonal(self) -> Float[Array, "... n"]:
        """The diagonal of Sigma."""
        squared = self._scale() ** 2
        return squared if self._is_diagonal else jnp.sum(squared, axis=-1)

    def _as_event(self, value: ArrayLike) -> Float[Array, "... n"]:
        value = self._as_value(value)
        if value.shape[-1:] != self.event_shape:
            raise ValueError(
                f"The last axis of value must have length {self.event_shape[0]}, "
                f"got shape {value.shape}."
            )
        return value

    def _sparsity(self) -> Float[Array, "..."]:
        """Return h = 1 - q, or NaN where it is not positive."""
        index = jnp.asarray(self.entropic_index, self._dtype())
        if index.ndim == 0:
            index = index.reshape((1,) * len(self.batch_shape))
        return jnp.where(index < 1.0, 1.0 - index, jnp.nan)

    def _steps(self) -> np.ndarray:
        """Return the steps of the Gamma recurrence: 1, 2, ..., n/2 or 3/2, 5/2, ..., n/2."""
        steps = np.arange(1, self.event_shape[0] // 2 + 1) + self._is_odd / 2
        return expand_to_rank(steps, len(self.batch_shape) + 1)

    def _log_normaliser(self) -> Float[Array, "..."]:
        """Return log Z by the recurrence of the Gamma function from n = 0 or 1; smooth as h -> 0.

        Z = |Sigma|^(1/2) (2 pi / h)^(n/2) Gamma(e + 1) / Gamma(e + 1 + n/2), with e = 1 / h.
        """
        sparsity, steps = self._sparsity(), self._steps()
        scale = self._scale()
        roots = scale if self._is_diagonal else jnp.diagonal(scale, axis1=-2, axis2=-1)
        logarithms = jnp.broadcast_to(jnp.log(roots), (*roots.shape[:-1], *self.event_shape))
        ladder = jnp.sum(jnp.log1p(sparsity[..., None] * steps), axis=-1)
        value = jnp.sum(logarithms, axis=-1) + steps.size * _LOG_2_PI - ladder
        return value + log_normaliser(1.0 - sparsity) if self._is_odd else value

    def _shrinkage(self) -> Float[Array, "..."]:
        """Return the ratio of the covariance to Sigma."""
        return 2.0 / ((self.event_shape[0] + 2) * self._sparsity() + 2.0)

    def _draw(self, key: Key[Array, ""], sample_shape: tuple[int, ...]) -> _Draw:
        """Return a direction in the unit ball, `radial` > 0, and the squared length left out.

        In an even dimension, 1 - h m² / 2 = exp(-h radial) is a product of powers of uniforms: a
        Beta(e + 1, n/2) variable is a product of Beta(e + j, 1) variables, j = 1 ... n/2. The case
        n = 2 is the generalised Box-Muller map. An odd dimension n is the dimension n + 1 with an
        exponent smaller by 1/2, with one coordinate dropped; its squared length is left out.
        """
        (dimension,) = self.event_shape
        pairs = (dimension + 1) // 2
        radial_key, direction_key = jax.random.split(key)
        shape, dtype = (*sample_shape, *self.batch_shape), self._dtype()
        tiny = jnp.finfo(dtype).tiny
        exponentials = jax.random.exponential(radial_key, (*shape, pairs), dtype)
        steps = np.arange(1, pairs + 1) - self._is_odd / 2
        law = lift(self, len(shape))
        rates = 1.0 + law._sparsity()[..., None] * expand_to_rank(steps, len(shape) + 1)
        radial = jnp.sum(jnp.maximum(exponentials, tiny) / rates, axis=-1)
        normals = jax.random.normal(direction_key, (*shape, 2 * pairs), dtype)
        squared = jnp.maximum(jnp.sum(normals**2, axis=-1), tiny)
        direction = normals[..., :dimension] / jnp.sqrt(squared)[..., None]
        left_out = jnp.sum(normals[..., dimension:] ** 2, axis=-1) / squared
        return direction, radial, left_out

    def _place(self, draw: _Draw) -> Array:
        direction, radial, _ = draw
        radius = jnp.exp((math.log(2.0) + _log_energy(radial, self._sparsity())) / 2.0)
        return self.support.colour(direction * radius[..., None])


def _log_energy(radial: Array, sparsity: Array) -> Array:
    """Return log((1 - exp(-h radial)) / h), which tends to log(radial) as h -> 0."""
    return jnp.log(radial) + log_expm1_ratio(-sparsity * radial)


def _shapes(shapes: dict[str, tuple[int, ...]]) -> tuple[tuple[int, ...], int]:
    """Return the batch shape and the dimension, or raise an error with names and shapes."""
    listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    matrix = shapes.get("scale_tril")
    if matrix is not None and (len(matrix) < 2 or matrix[-1] != matrix[-2]):
        raise ValueError(f"scale_tril must be a square matrix: {listed}.")
    rows = matrix[:-1] if matrix is not None else shapes["scale_diag"]
    index = (*shapes["entropic_index"], 1)
    try:
        *batch_shape, dimension = np.broadcast_shapes(shapes["loc"], rows, index)
    except ValueError:
        raise ValueError(f"Parameters do not broadcast to one shape: {listed}.") from None
    if matrix is not None and dimension != matrix[-1]:
        raise ValueError(f"The dimensions of scale_tril and loc differ: {listed}.")
    return tuple(batch_shape), dimension


def _refuse_index(entropic_index: ArrayLike, dimension: int) -> None:
    """Raise an error for a concrete index of 1 or above, with the distribution to use instead."""
    if not not_jax_tracer(entropic_index) or not np.any(np.asarray(entropic_index) >= 1.0):
        return
    largest = np.nanmax(entropic_index)
    limit = 1.0 + 2.0 / dimension
    student_t = (
        "use fat2thin.distributions.multivariate_student_t(loc, scale_tril, entropic_index), "
        "whose one-dimensional marginals all have the given index"
    )
    if largest == 1.0:
        advice = "1 is the Gaussian: use numpyro.distributions.MultivariateNormal"
    elif largest >= limit:
        advice = f"for an index of 1 + 2/n = {limit:g} or above no density exists: {student_t}"
    else:
        advice = f"above 1 the index of its marginals changes with the dimension: {student_t}"
    raise ValueError(
        f"MultivariateQGaussian needs an entropic_index below 1, got {largest:g} "
        f"in n = {dimension} dimensions; {advice}."
    )
