"""How exports sample: tables of the quantiles of a law, with a measured error.

With p the smaller of u and 1 − u, let L = −log(2 p) and x = √L. The quantile of every law here is a
smooth function of x once its growth in the tail is divided out: 1 − |t| = G(x) exp(−L / a) for a
band (a symmetric Beta(a, a) on it), |t| = G(x) exp(L / n) for a Student-t with n degrees of
freedom, |t| = G(x) for a Gaussian. G is a table of polynomials on pieces of equal width.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from scipy import stats

from fat2thin.export.portable import LEAST_TAIL, Policy
from fat2thin.policies.plain import PlainPolicy

DEGREE = 6
TOLERANCE = 2e-7  # of a table, before rounding
_END = math.sqrt(-math.log(2.0 * LEAST_TAIL))
_MOST_PIECES = 1280
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


def sampling_of(plain: PlainPolicy) -> Sampling:
    """Return how actions of a policy are sampled from uniform numbers."""
    kind, empty = plain.family.kind, np.zeros((0, 0))
    if kind == "deterministic":
        return Sampling({"samples": False, "kind": "none"}, empty, "the policy has one action")
    if kind == "beta":
        why = "the action is the centre: quantiles of a Beta policy are not exported"
        return Sampling({"samples": False, "kind": "none"}, empty, why)
    if plain.limits and kind != "sparse":
        why = (
            "the action is the centre: quantiles of a law that limits truncate are not exported; "
            "those of a band are"
        )
        return Sampling({"samples": False, "kind": "none"}, empty, why)
    if kind == "sparse" and plain.family.index == 0.0:
        why = "2 sin(asin(2u - 1) / 3), exact for entropic index 0"
        return Sampling({"samples": True, "kind": "index 0", "error": 0.0}, empty, why)
    return _table(*_law(plain))


class _Law(NamedTuple):
    kind: str
    rate: float
    """1 / a or 1 / n: how fast the quantile decays or grows with L."""
    tail: Any
    """Returns 1 − |t| or |t| for a tail probability p."""


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
    return _Law("line", 1.0 / freedom, lambda p: factor * stats.t.isf(p, freedom)), name


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


def _shape(law: _Law, folds: ndarray) -> ndarray:
    """Return G where the tail probability is exp(−folds) / 2."""
    sign = 1.0 if law.kind == "band" else -1.0
    if law.kind == "line" and law.rate:
        # Far out, where the quantile would overflow, G is constant.
        folds = np.minimum(folds, 500.0 / law.rate)
    return law.tail(np.exp(-folds) / 2.0) * np.exp(sign * law.rate * folds)


def _fitted(law: _Law, pieces: int, width: float) -> ndarray:
    nodes = (1.0 - np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1))) / 2.0
    start = np.arange(pieces)[:, None]
    values = _shape(law, np.square((start + nodes) * width))
    table = np.linalg.solve(np.vander(nodes, increasing=True), values.T).T
    # So that a share of one half gives the centre itself.
    table[0, 0] = 1.0 if law.kind == "band" else 0.0
    return table


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
    made = Policy.__new__(Policy)
    made.xp, made.dtype = np, np.dtype(dtype).type
    made.settings, made.arrays = {"sampling": settings}, {"quantiles": table}
    made._prepare_quantiles()
    with np.errstate(all="ignore"):
        return np.asarray(made._quantile(share.astype(dtype)), np.float64)
