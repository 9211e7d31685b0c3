"""Gradients through samples against difference quotients of the density.

For a smooth bounded f and a parameter t, d/dt E[f(X_t)] can be had in two ways: as the mean of
f'(x) dx/dt over reparametrised samples, and as the difference quotient of the integral of f p_t.
The second knows nothing of the sampler.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

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
from fat2thin.testing.subject import Subject, Values, quick_jit

_SCORES = 512


def check_gradients(study: Study, key: Key[Array, ""], false_alarm: float) -> list[Finding]:
    """Pathwise derivatives are finite, and their mean is the derivative of the expectation."""
    subject = study.subject
    names = [name for name in _reparametrised(subject) if name in subject.parameters]
    if not names:
        raise NotImplementedError("no parameter is reparametrised")
    labels = names_of(study.views)
    level = false_alarm / (len(names) * len(labels) * subject.elements)
    width = stats.norm.isf(level / 2.0)
    sample_key, *keys = jax.random.split(key, 1 + len(names))
    score = _score_program(subject)
    steps = {n: _exact_step(study, score, n, k) for n, k in zip(names, keys, strict=True)}
    estimates = _pathwise(study, sample_key, steps)
    findings: list[Finding] = []
    for name, estimate in zip(names, estimates, strict=True):
        expected = study.difference(partial(_moved, subject.parameters, name, steps[name]))
        error = np.abs(estimate.mean - expected.value)
        spread = np.hypot(estimate.standard_error, expected.standard_error)
        allowed = width * spread + expected.slack
        findings += _compared(name, labels, error, allowed, estimate.finite)
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


def _score_program(subject: Subject) -> Callable[..., Values]:
    """Derivative of log_prob along tangents of the parameters."""

    def score(values: Array, tangents: Parameters) -> Array:
        def log_prob(parameters: Parameters) -> Array:
            return subject.rebuilt(parameters).log_prob(values)

        return jax.jvp(log_prob, (subject.parameters,), (tangents,))[1]

    return subject.program(score)


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


def _exact_step(
    study: Study, score: Callable[..., Values], name: str, key: Key[Array, ""]
) -> np.ndarray:
    """A step of the parameter that rounding leaves alone, `STEP` natural lengths long.

    The natural length is one over the root mean square of the score, so that a step changes the
    density by about `STEP` of itself whatever the parameter means.
    """
    subject = study.subject
    value = subject.parameters[name]
    direction = _direction(subject, name, key)
    scores = score(study.typical(_SCORES), _tangents(subject.parameters, name, direction))
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


class _Estimate(NamedTuple):
    """Mean and standard error of the derivatives of the features, and whether all are finite."""

    mean: Statistics
    standard_error: Statistics
    finite: Float[np.ndarray, " elements"]


def _pathwise(study: Study, key: Key[Array, ""], steps: dict[str, np.ndarray]) -> list[_Estimate]:
    """Derivatives of the same samples along the steps of all parameters."""
    subject = study.subject
    tangents = [_tangents(subject.parameters, n, step / STEP) for n, step in steps.items()]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *tangents)

    @partial(quick_jit, static_argnums=1)
    def draw(key: Key[Array, ""], rows: int) -> tuple[Array, Array]:
        def sample(parameters: Parameters) -> Array:
            return subject.rebuilt(parameters).sample(key, (rows,))

        # What is costly in a derivative does not depend on the direction, and is done once.
        drawn, along = jax.linearize(sample, subject.parameters)
        return drawn, jax.vmap(along)(stacked)

    count, shape = 0, (len(steps), len(names_of(study.views)), subject.elements)
    total, squares = np.zeros(shape), np.zeros(shape)
    finite = np.ones((len(steps), subject.elements))
    for drawn, derivatives in subject.chunks(key, subject.samples // 2, draw):
        z = study.standardise(np.nan_to_num(subject.flatten(drawn)))
        count += len(z)
        for number, derivative in enumerate(derivatives):
            slopes = subject.flatten(derivative)
            flat = slopes.reshape(len(slopes), subject.elements, -1)
            finite[number] *= np.isfinite(flat).all((0, 2))
            dz = study.standardise_slope(np.nan_to_num(slopes))
            for row, value in enumerate(slopes_of(study.views, z, dz)):
                total[number, row] += value.sum(0)
                squares[number, row] += (value**2).sum(0)
    mean = total / count
    error = np.sqrt(np.maximum(squares / count - mean**2, 0.0) / count)
    return [_Estimate(*parts) for parts in zip(mean, error, finite, strict=True)]
