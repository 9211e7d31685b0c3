"""`check_distribution`, its report, and the checks that scalars and vectors share.

Gradients through samples are compared with finite differences of the density. For a smooth
bounded f and a parameter t, d/dt E[f(X_t)] equals both the mean of f'(x) dx/dt over reparametrised
samples and the derivative of the integral of f p_t, which does not use the sampler.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Key
from numpyro.distributions import Distribution, biject_to

from fat2thin.tables import Table
from fat2thin.testing.scalar import SCALAR_CHECKS, study_scalar
from fat2thin.testing.study import NOT_OFFERED, STEP, Measurement, Study, named
from fat2thin.testing.subject import TOLERANCE, Parameters, Subject, Values, event_dim, quick_jit
from fat2thin.testing.vector import VECTOR_CHECKS, study_vector

_FEWEST_SAMPLES = 2_000
_PRECISION_POINTS = 99
_PAIRS = 20_000
_SCORES = 512


@dataclass(frozen=True)
class ConformanceCheck:
    """One line of a report, with the measurement that is worst relative to its tolerance."""

    name: str
    status: Literal["pass", "FAIL", "not offered"]
    """`"not offered"` means that the distribution lacks the method."""
    measured: float | None
    """The error of the worst measurement."""
    tolerance: float | None
    """The largest error that passes."""
    where: str
    """What was measured there, or why the check is not offered."""


@dataclass(frozen=True)
class ConformanceReport:
    """The checks of one distribution; `print(report)` shows them as a table."""

    distribution: str
    """Class, batch shape and dtype."""
    checks: tuple[ConformanceCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed. Methods that the distribution lacks do not count."""
        return not self.failures

    @property
    def failures(self) -> list[str]:
        """Names of the checks that failed."""
        return [check.name for check in self.checks if check.status == "FAIL"]

    def raise_if_failed(self) -> None:
        """Raise an AssertionError that contains the table if a check failed."""
        if not self.passed:
            raise AssertionError(f"{', '.join(self.failures)} failed\n{self}")

    def __str__(self) -> str:
        rows = [
            {
                "check": check.name,
                "result": check.status,
                "measured": _number(check.measured),
                "tolerance": _number(check.tolerance),
                "worst case": check.where,
            }
            for check in self.checks
        ]
        return str(Table(self.distribution, tuple(rows)))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def check_distribution(
    distribution: Distribution,
    key: Key[Array, ""],
    *,
    samples: int = 100_000,
    false_alarm: float = 1e-6,
    tolerance: float | None = None,
    skip: Sequence[str] = (),
) -> ConformanceReport:
    """Check a continuous NumPyro distribution and return a report. Batch elements are all checked.

    The checks (all but `mass` first divide the density by its mass):

    - `mass`: the density integrates to 1.
    - `samples`: samples follow the density (chi-square; means of bounded functions for vectors).
    - `cdf`: it is the integral of the density, 0 and 1 at the ends, and its slope is the density.
    - `icdf`: the density has mass u below icdf(u).
    - `entropy`, `moments`: they equal -E[log p], mean and variance of the density, and are not
      finite only where the integral diverges.
    - `gradients`: pathwise derivatives match finite differences of the density. A sampler of
      another distribution fails here as well as in `samples`.
    - `support`: samples are in the support, and log_prob is exactly -inf outside.
    - `edges`: log_prob and its gradient are not NaN at, around and far from the ends.
    - `precision`: float32 and float64 agree for the same parameters.
    - `sample_with_log_prob`: if this method exists, it agrees with log_prob of the samples.

    Scalar events are compared with quadrature, vectors with importance sampling.

    Args:
        distribution: the distribution; its batch may have any shape.
        key: the random key. The same key gives the same report.
        samples: samples per batch element (fewer for a very large batch), at least 2000.
        false_alarm: the probability that a correct distribution fails by chance, over all checks
            and the whole batch.
        tolerance: the allowed error of quadrature, 2e-5 in float32 and 1e-9 in float64 by default.
            What the dtype cannot resolve is added to it.
        skip: names of checks to skip.

    Examples:
        >>> import jax
        >>> from numpyro.distributions import Normal
        >>> from fat2thin.testing import check_distribution
        >>> options = {"samples": 2000, "skip": ["gradients", "edges", "precision", "icdf"]}
        >>> report = check_distribution(Normal(0.0, 1.0), jax.random.key(0), **options)
        >>> report.passed, [check.name for check in report.checks if check.status == "pass"]
        (True, ['mass', 'samples', 'cdf', 'entropy', 'moments', 'support'])
    """
    if samples < _FEWEST_SAMPLES:
        raise ValueError(f"samples must be at least {_FEWEST_SAMPLES}, got {samples}")
    subject = Subject(distribution, samples, tolerance, false_alarm)
    functions = (*(SCALAR_CHECKS if subject.scalar else VECTOR_CHECKS), *COMMON_CHECKS)
    checks = {function.__name__.removeprefix("check_"): function for function in functions}
    unknown = set(skip) - set(checks)
    if unknown:
        raise ValueError(
            f"unknown checks in skip: {', '.join(sorted(unknown))}; known are {', '.join(checks)}"
        )
    study: Study = (study_scalar if subject.scalar else study_vector)(subject, key)
    lines = tuple(_run(study, n, check) for n, check in checks.items() if n not in skip)
    shape = f" of batch shape {subject.batch_shape}" if subject.batch_shape else ""
    return ConformanceReport(f"{type(distribution).__name__}{shape}, {subject.dtype}", lines)


def _run(study: Any, name: str, check: Callable[[Any], Iterator[Measurement]]) -> ConformanceCheck:
    """Run a check, which passes if every error is within its tolerance."""
    try:
        measurements = list(check(study))
    except NOT_OFFERED as missing:
        reason = (str(missing) or type(missing).__name__).splitlines()[0]
        return ConformanceCheck(name, "not offered", None, None, reason)
    worst = -np.inf
    line: ConformanceCheck | None = None
    for measurement in measurements:
        errors = np.atleast_2d(measurement.error)
        error, tolerance = np.broadcast_arrays(errors, measurement.tolerance)
        passed = error <= tolerance
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = error / np.maximum(tolerance, 1e-300)
        # NaN counts as worse than any other error.
        ratio = np.where(
            passed, np.nan_to_num(np.minimum(ratio, 1.0)), np.nan_to_num(ratio, nan=np.inf)
        )
        row, element = (int(index) for index in np.unravel_index(np.argmax(ratio), ratio.shape))
        if ratio[row, element] > worst:
            # If every error is 0, there is no worst case to describe.
            where: tuple[str, ...] = ()
            if error[row, element] != 0.0:
                where = (measurement.describe(row, element), study.subject.element_name(element))
            worst = ratio[row, element]
            line = ConformanceCheck(
                name,
                "pass" if passed.all() else "FAIL",
                float(error[row, element]),
                float(tolerance[row, element]),
                ", ".join(filter(None, where)),
            )
    if line is None:
        raise ValueError(f"check {name} returned no measurements")
    return line


def _at(what: str, values: Values) -> Callable[[int, int], str]:
    """Return a function that describes a row by its value."""

    def describe(row: int, element: int) -> str:
        value = np.asarray(values[row, element])
        return f"{what} {np.array2string(value, precision=8, max_line_width=10**6)}"

    return describe


def _never(bad: Bool[np.ndarray, "rows elements"], values: Values, what: str) -> Measurement:
    """Return a measurement that fails where `bad` is true in any row and names the first one."""
    row, name = np.argmax(bad, axis=0), _at(what, values)
    error = np.any(bad, axis=0).astype(np.float64)
    return Measurement(error, 0.0, lambda _, element: name(int(row[element]), element))


def check_support(study: Study) -> Iterator[Measurement]:
    """Check that samples lie in the support with a finite log density, which is -inf outside."""
    subject, samples = study.subject, study.second
    outside = study.outside()
    leaks = ~np.isneginf(subject.log_prob(outside)) & ~subject.in_support(outside)
    yield _never(~subject.in_support(samples), samples, "outside the support: sample")
    yield _never(~np.isfinite(subject.log_prob(samples)), samples, "log_prob not finite: sample")
    yield _never(leaks, outside, "log_prob is not -inf outside, at")


def check_edges(study: Study) -> Iterator[Measurement]:
    """Check that log_prob and its gradient in value and parameters are not NaN."""
    subject, points = study.subject, study.edge_points()
    huge = subject.rounded(np.sign(points[-2:]) * float(subject.limits.max) / 2.0)

    @quick_jit
    @jax.vmap
    def slopes(point: Array) -> dict[str, Array]:
        def total(arguments: dict[str, Array]) -> Array:
            parameters = {name: arguments[name] for name in subject.parameters}
            return jnp.sum(subject.rebuilt(parameters).log_prob(arguments["value"]))

        return jax.grad(total)({**subject.parameters, "value": point})

    yield _never(np.isnan(subject.log_prob(points)), points, "log_prob is NaN at")
    yield _never(np.isnan(subject.log_prob(huge)), huge, "log_prob is NaN at")
    for name, slope in slopes(subject.to_device(points)).items():
        bad = np.isnan(np.asarray(slope)).reshape(len(points), -1)
        if bad.shape[1] % subject.elements:
            bad = np.repeat(bad.any(1, keepdims=True), subject.elements, axis=1)
        bad = bad.reshape(len(points), subject.elements, -1).any(-1)
        yield _never(bad, points, f"the gradient in {name} is NaN at")


def check_precision(study: Study) -> Iterator[Measurement]:
    """Check that float32 and float64 agree where most of the mass is, for float32 parameters."""
    subject = study.subject
    if not subject.parameters:
        raise NotImplementedError("the distribution's parameters are unknown")
    points = study.typical(_PRECISION_POINTS)
    largest = float(np.finfo(np.float32).max) / 4.0
    # Values beyond the range of float32 are not compared.
    in_range = (np.abs(points) < largest).reshape(*points.shape[:2], -1).all(-1)
    points = np.clip(points, -largest, largest).astype(np.float32)
    methods = ["log_prob", *(["cdf"] if _offers_cdf(subject) else [])]
    low = _evaluated(subject, methods, points, np.float32)
    high = _evaluated(subject, methods, points, np.float64)
    for method in methods:
        one, other = low[method], high[method]
        with np.errstate(invalid="ignore"):
            error = np.where(one == other, 0.0, np.abs(one - other))
        yield Measurement(
            np.where(in_range, error, 0.0),
            TOLERANCE[np.dtype(np.float32)] * (1.0 + np.nan_to_num(np.abs(other), posinf=0.0)),
            _at(f"{method} at", points),
        )


def _offers_cdf(subject: Subject) -> bool:
    try:
        jax.eval_shape(subject.distribution.cdf, jnp.zeros(subject.batch_shape, subject.dtype))
    except NOT_OFFERED:
        return False
    return subject.scalar


def _evaluated(
    subject: Subject, methods: list[str], points: np.ndarray, dtype: type
) -> dict[str, Float[np.ndarray, "rows elements"]]:
    """Return the methods evaluated in a dtype, with parameters rounded to float32."""
    single = {name: np.asarray(value, np.float32) for name, value in subject.parameters.items()}
    with jax.enable_x64(dtype is np.float64):
        parameters = {name: jnp.asarray(value, dtype) for name, value in single.items()}
        shape = (len(points), *subject.batch_shape, *subject.event_shape)
        values = jnp.asarray(points.reshape(shape), dtype)

        @quick_jit
        def evaluate(parameters: dict[str, Array], values: Array) -> dict[str, Array]:
            distribution = subject.rebuilt(parameters)
            return {method: getattr(distribution, method)(values) for method in methods}

        answers = evaluate(parameters, values)
        return {method: subject.flatten(answer) for method, answer in answers.items()}


def check_sample_with_log_prob(study: Study) -> Iterator[Measurement]:
    """Check that the log density returned with a sample is finite and matches log_prob."""
    subject = study.subject
    draw = quick_jit(subject.distribution.sample_with_log_prob, static_argnums=1)
    rows = max(1, min(_PAIRS, 2 * 10**6 // (subject.elements * subject.dimension)))
    drawn, density = draw(study.keys[1], (rows,))
    values, brought = subject.flatten(drawn), subject.flatten(density)
    expected = subject.log_prob(values)
    inwards = study.inwards(values)
    with np.errstate(invalid="ignore"):
        noise = np.abs(subject.log_prob(inwards) - expected)
        noise = noise + np.abs(subject.log_prob(2.0 * values - inwards) - expected)
        error = np.where(brought == expected, 0.0, np.abs(brought - expected))
    allowed = np.nan_to_num(subject.tolerance * (1.0 + np.abs(expected)) + 4.0 * noise, nan=np.inf)
    # Close to an edge the rounded sample has lost digits that its log density still has.
    allowed = np.where(study.near_end(values), np.inf, allowed)
    yield _never(~np.isfinite(brought), values, "log density not finite, returned with")
    yield Measurement(error, allowed, _at("log density returned with", values))


def check_gradients(study: Study) -> Iterator[Measurement]:
    """Check that pathwise derivatives are finite and average to the expectation's derivative."""
    subject = study.subject
    own = subject.distribution.reparametrized_params or subject.owner.reparametrized_params
    names = [name for name in own if name in subject.parameters]
    if not names:
        raise NotImplementedError("no parameter is reparametrised")
    labels = study.feature_names
    width = study.threshold(len(names) * len(labels) * subject.elements)
    sample_key, *keys = jax.random.split(study.keys[0], 1 + len(names))
    # The derivative of log_prob along parameter tangents.
    score = subject.program(
        lambda values, tangents: jax.jvp(
            lambda parameters: subject.rebuilt(parameters).log_prob(values),
            (subject.parameters,),
            (tangents,),
        )[1]
    )
    steps = {n: _exact_step(study, score, n, k) for n, k in zip(names, keys, strict=True)}
    differences = [study.difference(partial(_moved, subject.parameters, *s)) for s in steps.items()]
    estimates = _pathwise(study, sample_key, steps)
    for name, expected, mean, error, finite in zip(names, differences, *estimates, strict=True):
        allowed = width * np.hypot(error, expected.standard_error) + expected.slack
        error = np.abs(mean - expected.value)
        yield Measurement(error, allowed, named([f"d/d{name} of E[{label}]" for label in labels]))
        missing = named([f"derivatives of samples in {name} are not finite"])
        yield Measurement(1.0 - finite, 0.0, missing)


def _tangents(parameters: Parameters, name: str, tangent: ArrayLike) -> Parameters:
    """Return tangents that are zero except for one parameter."""
    return {
        other: jnp.asarray(tangent, value.dtype) if other == name else jnp.zeros_like(value)
        for other, value in parameters.items()
    }


def _moved(parameters: Parameters, name: str, step: np.ndarray, offset: int) -> Parameters:
    value = parameters[name]
    moved = np.asarray(value, np.float64) + offset * step
    return {**parameters, name: jnp.asarray(moved, value.dtype)}


def _exact_step(
    study: Study, score: Callable[..., Values], name: str, key: Key[Array, ""]
) -> np.ndarray:
    """Return a step of the parameter that is representable and `STEP` natural lengths long.

    The natural length is 1 / RMS(score), so a step changes the density by a fraction of about
    `STEP`, whatever the parameter means.
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
    """Return ones for scalars, or a random direction within the constraint for vectors."""
    value = subject.parameters[name]
    if subject.scalar:
        return jnp.ones_like(value)
    constraint = subject.owner.arg_constraints.get(name)
    if not event_dim(constraint):
        return jax.random.normal(key, value.shape, value.dtype)
    transform = biject_to(constraint)
    free = transform.inv(value)
    return jax.jvp(transform, (free,), (jax.random.normal(key, free.shape, free.dtype),))[1]


def _pathwise(
    study: Study, key: Key[Array, ""], steps: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Estimate the features' derivatives along all parameter steps, on the same samples.

    Return mean and standard error, with shape (parameters, features, elements), and whether all
    derivatives are finite, with shape (parameters, elements).
    """
    subject = study.subject
    tangents = [_tangents(subject.parameters, n, step / STEP) for n, step in steps.items()]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *tangents)

    @partial(quick_jit, static_argnums=1)
    def draw(key: Key[Array, ""], rows: int) -> tuple[Array, Array]:
        def sample(parameters: Parameters) -> Array:
            return subject.rebuilt(parameters).sample(key, (rows,))

        # Linearise once: the expensive part does not depend on the direction.
        drawn, along = jax.linearize(sample, subject.parameters)
        return drawn, jax.vmap(along)(stacked)

    count, shape = 0, (len(steps), len(study.feature_names), subject.elements)
    total, squares = np.zeros(shape), np.zeros(shape)
    finite = np.ones((len(steps), subject.elements))
    for drawn, derivatives in subject.chunks(key, subject.samples // 2, draw):
        values = np.nan_to_num(subject.flatten(drawn))
        count += len(values)
        for number, derivative in enumerate(derivatives):
            slopes = subject.flatten(derivative)
            flat = slopes.reshape(len(slopes), subject.elements, -1)
            finite[number] *= np.isfinite(flat).all((0, 2))
            for row, value in enumerate(study.feature_slopes(values, np.nan_to_num(slopes))):
                total[number, row] += value.sum(0)
                squares[number, row] += (value**2).sum(0)
    mean = total / count
    return mean, np.sqrt(np.maximum(squares / count - mean**2, 0.0) / count), finite


COMMON_CHECKS = (
    check_gradients,
    check_support,
    check_edges,
    check_precision,
    check_sample_with_log_prob,
)
