"""How exports sample: tables of the quantiles of a law, with a measured error.

With p the smaller of u and 1 − u, let L = −log(2 p) and x = √L. The quantile of every law here is a
smooth function of x once its growth in the tail is divided out: 1 − |t| = G(x) exp(−L / a) for a
band (a symmetric Beta(a, a) on it), |t| = G(x) exp(L / n) for a Student-t with n degrees of
freedom, |t| = G(x) for a Gaussian. G is a table of polynomials on pieces of equal width.

A law that limits truncate needs its cdf as well: L as a function of log(1 + |t|), from a second
table up to an edge, and beyond it from an asymptotic series.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from scipy import special, stats

from fat2thin.export.portable import LEAST_TAIL, Policy
from fat2thin.policies.plain import PlainPolicy

DEGREE = 6
TOLERANCE = 2e-7  # of a table, before rounding
_END = math.sqrt(-math.log(2.0 * LEAST_TAIL))
_MOST_PIECES = 1280
_EDGE_TAIL, _MOST_EDGE = 2.0**-60, 30.0  # a table of L ends where the first of them is reached
_LARGEST_ERROR = 1e-3  # of truncated laws; beyond, the centre acts
_CHECKED = 20_001  # shares at which the error of a table is measured


class Sampling(NamedTuple):
    """How an export turns a uniform number into an action."""

    settings: dict[str, Any]
    """What the exports read, and "error": the largest error of a quantile, in half-widths of the
    band, or in scales (relative beyond one scale)."""
    table: ndarray
    """Coefficients, shape (pieces, DEGREE + 1), the constant first; empty if none is needed."""
    why: str
    """One sentence for people."""
    folds: ndarray = np.zeros((0, 0))
    """As `table`, for the cdf of laws that limits truncate."""


def sampling_of(plain: PlainPolicy) -> Sampling:
    """Return how actions of a policy are sampled from uniform numbers."""
    kind, empty = plain.family.kind, np.zeros((0, 0))
    if kind == "deterministic":
        return Sampling({"samples": False, "kind": "none"}, empty, "the policy has one action")
    if kind == "beta":
        why = "the action is the centre: quantiles of a Beta policy are not exported"
        return Sampling({"samples": False, "kind": "none"}, empty, why)
    if kind == "sparse" and plain.family.index == 0.0:
        why = "2 sin(asin(2u - 1) / 3), exact for entropic index 0"
        return Sampling({"samples": True, "kind": "index 0", "error": 0.0}, empty, why)
    made = _table(*_law(plain))
    if plain.limits and kind != "sparse" and made.settings["samples"]:
        return _truncated(*_law(plain), made)
    return made


class _Law(NamedTuple):
    kind: str
    rate: float
    """1 / a or 1 / n: how fast the quantile decays or grows with L."""
    tail: Any
    """Returns 1 − |t| or |t| for a tail probability p."""
    factor: float = 1.0
    """Scales of the Student-t or Gaussian in one scale of the law."""


def _law(plain: PlainPolicy) -> tuple[_Law, str]:
    family = plain.family
    if family.kind == "sparse":
        assert family.index is not None
        shape = 1.0 / (1.0 - family.index) + 1.0
        name = f"a q-Gaussian of index {family.index:g}"
        return _Law("band", 1.0 / shape, lambda p: 2.0 * stats.beta.ppf(p, shape, shape)), name
    if family.kind == "squashed" or family.index == 1.0:
        return _Law("line", 0.0, stats.norm.isf), "a Gaussian"
    if family.kind == "student":
        freedom, factor = family.freedom, 1.0
        name = f"a Student-t of {freedom:g} degrees of freedom"
    else:
        assert family.index is not None
        freedom = (3.0 - family.index) / (family.index - 1.0)
        factor, name = math.sqrt(2.0 / (3.0 - family.index)), f"a q-Gaussian of {family.index:g}"
    assert freedom is not None
    return _Law("line", 1.0 / freedom, lambda p: factor * stats.t.isf(p, freedom), factor), name


def _table(law: _Law, name: str) -> Sampling:
    """Return a table of as few pieces as the tolerance needs."""
    pieces = 40
    while True:
        width = _END / pieces
        table = _fitted(law, pieces, width)
        settings = {"samples": True, "kind": law.kind, "rate": law.rate, "width": width}
        if _error(law, settings, table, np.float64) <= TOLERANCE:
            break
        if pieces >= _MOST_PIECES:
            why = f"the action is the centre: the quantiles of {name} vary too fast for a table"
            return Sampling({"samples": False, "kind": "none"}, np.zeros((0, 0)), why)
        pieces *= 2
    # The grid is finite, hence twice what was found on it.
    error = float(f"{2.0 * _error(law, settings, table, np.float32):.2g}")
    unit = "half-widths" if law.kind == "band" else "scales (of the quantile beyond one scale)"
    why = f"quantiles of {name} from a table; largest error {error:g} {unit}"
    return Sampling({**settings, "error": error}, table, why)


def _truncated(law: _Law, name: str, made: Sampling) -> Sampling:
    """Return how a law on a line is sampled where limits truncate it."""
    standard = stats.t(1.0 / law.rate) if law.rate else stats.norm
    edge = float(min(standard.isf(_EDGE_TAIL), _MOST_EDGE))
    if law.rate:
        half = 0.5 / law.rate
        constant = math.log(half) + float(special.betaln(half, 0.5)) + math.log(law.rate) / 2.0
    else:
        constant = math.log(math.pi / 2.0) / 2.0
    pieces, end, error = 20, math.log1p(edge), math.inf
    while error > TOLERANCE and pieces < _MOST_PIECES:
        pieces *= 2
        width = end / pieces
        folds = _interpolated(
            lambda place, width=width: -standard.logsf(np.expm1(place * width)) - math.log(2.0),
            pieces,
        )
        folds[0, 0] = 0.0
        settings = {
            **made.settings, "factor": law.factor, "edge": edge, "constant": constant,
            "fold_width": width,
        }  # fmt: skip
        policy = _arithmetic(settings, made.table, np.float64, folds)
        away = np.linspace(0.0, edge, _CHECKED)
        exact = -standard.logsf(away) - math.log(2.0)
        error = float(np.max(np.abs(policy._folds(away) - exact) / np.maximum(exact, 1.0)))
    # The grid is finite, hence twice what was found on it.
    found = 2.0 * _truncated_error(settings, made.table, folds, standard, np.float32)
    found = float(f"{max(found, made.settings['error']):.2g}")
    if not found <= _LARGEST_ERROR:
        why = (
            f"the action is the centre: within limits, quantiles of {name} in float32 would be "
            f"wrong by more than {_LARGEST_ERROR:g} scales"
        )
        return Sampling({"samples": False, "kind": "none"}, np.zeros((0, 0)), why)
    why = (
        f"quantiles of {name}, truncated to the limits, from tables and, where the limits begin "
        f"beyond {edge:.3g} scales from the centre, from a series; largest error {found:g} scales "
        "(of the quantile beyond one scale)"
    )
    return Sampling({**settings, "error": found}, made.table, why, folds)


def _truncated_error(
    settings: dict[str, Any], table: ndarray, folds: ndarray, standard: Any, dtype: Any
) -> float:
    """Return the largest error of quantiles in many intervals, in scales, by SciPy's cdf."""
    # Up to where SciPy has the tail probability.
    reach = np.geomspace(13.0, 1e6, 200)
    most = reach[standard.sf(reach) > 1e-280][-1]
    starts = np.concatenate([np.linspace(-12.0, 12.0, 49), np.geomspace(12.5, most, 40)])
    widths = np.geomspace(1e-3, 1e3, 25)
    shares = np.concatenate([np.linspace(0.0, 1.0, 21), [1e-30, 1e-6, 1e-3, 0.999, 1 - 2.0**-24]])
    grid = np.meshgrid(starts, widths, shares, indexing="ij")
    left, width, drawn = (np.ravel(part).astype(np.float32) for part in grid)
    found = truncated_by(settings, table, folds, left, left + width, drawn, dtype)
    begin, end, share = (part.astype(np.float64) for part in (left, left + width, drawn))
    # Of the two probabilities on both sides, the smaller one has the digits.
    with np.errstate(all="ignore"):
        above = (1.0 - share) * standard.sf(begin) + share * standard.sf(end)
        below = (1.0 - share) * standard.cdf(begin) + share * standard.cdf(end)
        away = np.where(above < below, above - standard.sf(found), standard.cdf(found) - below)
        away = np.abs(away) / standard.pdf(found)
    known = (np.minimum(above, below) > 1e-36) | ((begin > settings["edge"]) & (share < 1.0))
    away = np.minimum(away, end - begin)[known]
    # In scales of the law.
    return float(np.max(away / np.maximum(np.abs(found[known]), 1.0 / settings["factor"])))


def truncated_by(
    settings: dict[str, Any], table: ndarray, folds: ndarray, left: ndarray, right: ndarray,
    share: ndarray, dtype: Any,
) -> ndarray:  # fmt: skip
    """Return quantiles of the standard law truncated to [left, right], as exports compute them."""
    made = _arithmetic(settings, table, dtype, folds)
    with np.errstate(all="ignore"):
        given = (np.asarray(part, dtype) for part in (left, right, share))
        return np.asarray(made._deviation(*given), np.float64)


def _shape(law: _Law, folds: ndarray) -> ndarray:
    """Return G where the tail probability is exp(−folds) / 2."""
    sign = 1.0 if law.kind == "band" else -1.0
    if law.kind == "line" and law.rate:
        # Far out, where the quantile would overflow, G is constant.
        folds = np.minimum(folds, 500.0 / law.rate)
    return law.tail(np.exp(-folds) / 2.0) * np.exp(sign * law.rate * folds)


def _fitted(law: _Law, pieces: int, width: float) -> ndarray:
    table = _interpolated(lambda place: _shape(law, np.square(place * width)), pieces)
    # So that a share of one half gives the centre itself.
    table[0, 0] = 1.0 if law.kind == "band" else 0.0
    return table


def _interpolated(function: Any, pieces: int) -> ndarray:
    """Return the polynomials of a function on the pieces from 0 to 1, 1 to 2 and so on."""
    nodes = (1.0 - np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1))) / 2.0
    values = function(np.arange(pieces)[:, None] + nodes)
    return np.linalg.solve(np.vander(nodes, increasing=True), values.T).T


def _error(law: _Law, settings: dict[str, Any], table: ndarray, dtype: Any) -> float:
    """Return the largest error of the exports' arithmetic, against SciPy."""
    tail = np.geomspace(LEAST_TAIL, 0.5, _CHECKED).astype(np.float32)
    tail = np.unique(np.concatenate([tail, np.linspace(0.001, 0.5, _CHECKED, dtype=np.float32)]))
    drawn = -quantile_by(settings, table, tail, dtype)
    with np.errstate(over="ignore"):
        exact = law.tail(tail.astype(np.float64))
    exact = 1.0 - exact if law.kind == "band" else exact
    known = np.abs(exact) < 1e25  # beyond, every action is at an end of its box
    drawn, exact = drawn[known], exact[known]
    return float(np.max(np.abs(drawn - exact) / np.maximum(np.abs(exact), 1.0)))


def quantile_by(settings: dict[str, Any], table: ndarray, share: ndarray, dtype: Any) -> ndarray:
    """Return the quantiles at `share`, as the exports compute them."""
    made = _arithmetic(settings, table, dtype)
    with np.errstate(all="ignore"):
        return np.asarray(made._quantile(share.astype(dtype)), np.float64)


def _arithmetic(
    settings: dict[str, Any], table: ndarray, dtype: Any, folds: ndarray | None = None
) -> Policy:
    """Return a policy that has quantiles alone."""
    made = Policy.__new__(Policy)
    made.xp, made.dtype = np, np.dtype(dtype).type
    made.settings, made.arrays = {"sampling": settings}, {"quantiles": table}
    if folds is not None:
        made.arrays["folds"] = folds
    made._prepare_quantiles()
    return made
