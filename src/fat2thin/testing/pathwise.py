"""Gradients through samples against difference quotients of the density.

For a smooth bounded f and a parameter t, d/dt E[f(X_t)] can be had in two ways: as the mean of
f'(x) dx/dt over reparametrised samples, and as the difference quotient of the integral of f p_t.
The second knows nothing of the sampler.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key
from numpyro.distributions import biject_to
from scipy import stats

from fat2thin.testing.features import names_of, slopes_of
from fat2thin.testing.parameters import Parameters, event_dim, innermost
from fat2thin.testing.report import Finding
from fat2thin.testing.study import STEP, Statistics, Study
from fat2thin.testing.subject import Subject, quick_jit

_SCORES = 512


def check_gradients(study: Study, key: Key[Array, ""], false_alarm: float) -> list[Finding]:
    """Pathwise derivatives are finite, and their mean is the derivative of the expectation."""
    subject = study.subject
    names = [n for n in _reparametrised(subject) if n in subject.parameters]
    if not names:
        raise NotImplementedError("no parameter is reparametrised")
    labels = names_of(study.views)
    level = false_alarm / (len(names) * len(labels) * subject.elements)
    width = stats.norm.isf(level / 2.0)
    program = Program(subject)
    findings: list[Finding] = []
    for name, keys in zip(names, jax.random.split(key, (len(names), 2)), strict=True):
        step = _exact_step(study, program, name, keys[0])
        expected = study.difference(partial(_moved, subject.parameters, name, step))
        mean, standard_error, finite = _pathwise(study, program, keys[1], name, step)
        allowed = width * np.hypot(standard_error, expected.standard_error) + expected.slack
        findings += _compared(name, labels, np.abs(mean - expected.value), allowed, finite)
    return findings


def _compared(
    name: str,
    labels: list[str],
    error: Statistics,
    allowed: Statistics,
    finite: Float[np.ndarray, " elements"],
) -> list[Finding]:
    return [
        Finding(error, allowed, lambda row, _: f"d/d{name} of E[{labels[row]}]"),
        Finding(
            1.0 - finite[None],
            np.zeros((1, len(finite))),
            lambda _row, _element: f"derivatives of samples in {name} are not finite",
        ),
    ]


class Program:
    """Derivatives along tangents of all parameters at once, so that each is compiled once."""

    def __init__(self, subject: Subject) -> None:
        def score(values: Array, tangents: Parameters) -> Array:
            def log_prob(parameters: Parameters) -> Array:
                return subject.rebuilt(parameters).log_prob(values)

            return jax.jvp(log_prob, (subject.parameters,), (tangents,))[1]

        def sample(key: Key[Array, ""], tangents: Parameters, rows: int) -> tuple[Array, Array]:
            def draw(parameters: Parameters) -> Array:
                return subject.rebuilt(parameters).sample(key, (rows,))

            return jax.jvp(draw, (subject.parameters,), (tangents,))

        self.score = subject.program(score)
        self.sample = quick_jit(sample, static_argnums=2)


def _tangents(parameters: Parameters, name: str, tangent: ArrayLike) -> Parameters:
    """A tangent of one parameter, and zero for the others."""
    return {
        other: jnp.asarray(tangent, value.dtype) if other == name else jnp.zeros_like(value)
        for other, value in parameters.items()
    }


def _reparametrised(subject: Subject) -> list[str]:
    own = list(subject.distribution.reparametrized_params)
    return own or list(innermost(subject.distribution).reparametrized_params)


def _moved(parameters: Parameters, name: str, step: np.ndarray, offset: int) -> Parameters:
    value = parameters[name]
    moved = np.asarray(value, np.float64) + offset * step
    return {**parameters, name: jnp.asarray(moved, value.dtype)}


def _exact_step(study: Study, program: Program, name: str, key: Key[Array, ""]) -> np.ndarray:
    """A step of the parameter that rounding leaves alone, `STEP` natural lengths long.

    The natural length is one over the root mean square of the score, so that a step changes the
    density by about `STEP` of itself whatever the parameter means.
    """
    subject = study.subject
    value = subject.parameters[name]
    direction = _direction(subject, name, key)
    scores = program.score(study.typical(_SCORES), _tangents(subject.parameters, name, direction))
    with np.errstate(invalid="ignore", over="ignore"):
        square = np.mean(np.where(np.isfinite(scores), scores, 0.0) ** 2, axis=0)
    length = np.where((square > 0.0) & np.isfinite(square), square, 1.0) ** -0.5
    shape = subject.batch_shape
    if value.shape[: len(shape)] != shape:
        length, shape = length.min(keepdims=True), ()
    length = length.reshape(shape + (1,) * (value.ndim - len(shape)))
    unit = 4.0 * subject.spacing(np.asarray(value, np.float64))
    step = STEP * length * np.asarray(direction, np.float64)
    unit = np.maximum(unit, 1e-30 * np.abs(step))
    with np.errstate(invalid="ignore"):
        steps = np.maximum(np.rint(np.abs(step) / unit), 1.0)
    return np.asarray(np.where(step == 0.0, 0.0, np.sign(step) * unit * steps))


def _direction(subject: Subject, name: str, key: Key[Array, ""]) -> Array:
    """All elements alike for scalars; for vectors a random direction that keeps the constraint."""
    value = subject.parameters[name]
    if subject.scalar:
        return jnp.ones_like(value)
    constraint = innermost(subject.distribution).arg_constraints.get(name)
    if constraint is None or not event_dim(constraint):
        return jax.random.normal(key, value.shape, value.dtype)
    transform = biject_to(constraint)
    free = transform.inv(value)
    push = jax.random.normal(key, free.shape, free.dtype)
    return jax.jvp(transform, (free,), (push,))[1]


def _pathwise(
    study: Study, program: Program, key: Key[Array, ""], name: str, step: np.ndarray
) -> tuple[Statistics, Statistics, Float[np.ndarray, " elements"]]:
    """Mean and standard error of the derivatives of the features, and whether all are finite."""
    subject = study.subject
    tangents = _tangents(subject.parameters, name, step / STEP)

    def draw(key: Key[Array, ""], rows: int) -> tuple[Array, Array]:
        return program.sample(key, tangents, rows)

    count, finite = 0, np.ones(subject.elements)
    shape = (len(names_of(study.views)), subject.elements)
    total, squares = np.zeros(shape), np.zeros(shape)
    for drawn, derivatives in subject.chunks(key, subject.samples // 2, draw):
        slopes = subject.flatten(derivatives)
        flat = slopes.reshape(len(slopes), subject.elements, -1)
        finite = finite * np.isfinite(flat).all((0, 2))
        z = study.standardise(np.nan_to_num(subject.flatten(drawn)))
        dz = study.standardise_slope(np.nan_to_num(slopes))
        for row, derivative in enumerate(slopes_of(study.views, z, dz)):
            total[row] += derivative.sum(0)
            squares[row] += (derivative**2).sum(0)
        count += len(slopes)
    mean = total / count
    variance = np.maximum(squares / count - mean**2, 0.0)
    return mean, np.sqrt(variance / count), finite
