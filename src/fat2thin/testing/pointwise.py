"""Checks at single values: support, edges, precision, and samples that bring their density."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from fat2thin.testing.report import Finding
from fat2thin.testing.study import Study
from fat2thin.testing.subject import Subject, Values, quick_jit

# What a distribution raises for something that it does not have.
NOT_OFFERED = (NotImplementedError, AttributeError, ImportError)
_PRECISION_POINTS = 99
_PAIRS = 20_000


def _text(value: np.ndarray | np.floating) -> str:
    return np.array2string(np.asarray(value), precision=8, max_line_width=10**6)


def _never(bad: Bool[np.ndarray, "rows elements"], values: Values, what: str) -> Finding:
    """Something that must not happen at any row; the first at which it does is named."""
    row = np.argmax(bad, axis=0)
    return Finding(
        np.any(bad, axis=0, keepdims=True).astype(np.float64),
        np.zeros((1, bad.shape[1])),
        lambda _, element: f"{what} {_text(values[int(row[element]), element])}",
    )


def check_support(study: Study) -> list[Finding]:
    """Samples lie in the support and have a finite log density; outside it is exactly -inf."""
    subject, samples = study.subject, study.second
    outside = study.outside()
    leaks = ~np.isneginf(subject.log_prob(outside)) & ~subject.in_support(outside)
    return [
        _never(~subject.in_support(samples), samples, "outside the support: sample"),
        _never(~np.isfinite(subject.log_prob(samples)), samples, "log_prob not finite: sample"),
        _never(leaks, outside, "log_prob is not -inf outside, at"),
    ]


def check_edges(study: Study) -> list[Finding]:
    """Neither log_prob nor its gradient in value and parameters is NaN, wherever it is asked."""
    subject, points = study.subject, study.edge_points()
    huge = subject.rounded(np.sign(points[-2:]) * float(subject.limits.max) / 2.0)

    @quick_jit
    @jax.vmap
    def slopes(point: Array) -> dict[str, Array]:
        def total(arguments: dict[str, Array]) -> Array:
            parameters = {name: arguments[name] for name in subject.parameters}
            return jnp.sum(subject.rebuilt(parameters).log_prob(arguments["value"]))

        return jax.grad(total)({**subject.parameters, "value": point})

    findings = [
        _never(np.isnan(subject.log_prob(points)), points, "log_prob is NaN at"),
        _never(np.isnan(subject.log_prob(huge)), huge, "log_prob is NaN at"),
    ]
    for name, slope in slopes(subject.to_device(points)).items():
        bad = np.isnan(np.asarray(slope)).reshape(len(points), -1)
        if bad.shape[1] % subject.elements:
            bad = np.repeat(bad.any(1, keepdims=True), subject.elements, axis=1)
        bad = bad.reshape(len(points), subject.elements, -1).any(-1)
        findings.append(_never(bad, points, f"the gradient in {name} is NaN at"))
    return findings


def check_precision(study: Study, tolerance: float) -> list[Finding]:
    """float32 and float64 agree, from the same float32 parameters, where most of the mass is."""
    subject = study.subject
    if not subject.parameters:
        raise NotImplementedError("its parameters cannot be told")
    points = study.typical(_PRECISION_POINTS)
    largest = float(np.finfo(np.float32).max) / 4.0
    # What float32 cannot hold at all is not a question of precision.
    in_range = (np.abs(points) < largest).reshape(*points.shape[:2], -1).all(-1)
    points = np.clip(points, -largest, largest).astype(np.float32)
    methods = ["log_prob", *(["cdf"] if _offers_cdf(subject) else [])]
    low = _evaluated(subject, methods, points, np.float32)
    high = _evaluated(subject, methods, points, np.float64)
    return [_compared(m, points, low[m], high[m], in_range, tolerance) for m in methods]


def _compared(
    method: str,
    points: np.ndarray,
    low: Values,
    high: Values,
    in_range: Bool[np.ndarray, "rows elements"],
    tolerance: float,
) -> Finding:
    with np.errstate(invalid="ignore"):
        error = np.where(low == high, 0.0, np.abs(low - high))
    return Finding(
        np.where(in_range, error, 0.0),
        tolerance * (1.0 + np.nan_to_num(np.abs(high), posinf=0.0)),
        lambda row, element: f"{method} at {_text(points[row, element])}",
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
    """Methods of the distribution with its parameters, rounded to float32, in another dtype."""
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


def check_sample_with_log_prob(
    study: Study, key: Key[Array, ""], tolerance: float
) -> list[Finding]:
    """Samples that bring their log density bring the right one, and a finite one at every edge."""
    subject = study.subject
    draw = quick_jit(subject.distribution.sample_with_log_prob, static_argnums=1)
    rows = max(1, min(_PAIRS, 2 * 10**6 // (subject.elements * subject.dimension)))
    drawn, density = draw(key, (rows,))
    values, brought = subject.flatten(drawn), subject.flatten(density)
    expected = subject.log_prob(values)
    inwards = study.inwards(values)
    with np.errstate(invalid="ignore"):
        noise = np.abs(subject.log_prob(inwards) - expected)
        noise = noise + np.abs(subject.log_prob(2.0 * values - inwards) - expected)
        error = np.where(brought == expected, 0.0, np.abs(brought - expected))
    allowed = np.nan_to_num(tolerance * (1.0 + np.abs(expected)) + 4.0 * noise, nan=np.inf)
    # At the edge itself the sample has lost what its density still knows.
    allowed = np.where(study.near_end(values), np.inf, allowed)
    return [
        _never(~np.isfinite(brought), values, "log density not finite, brought by"),
        Finding(
            error,
            allowed,
            lambda row, element: f"log density brought by {_text(values[row, element])}",
        ),
    ]
