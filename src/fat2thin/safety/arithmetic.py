"""Floating-point arithmetic of a deployed policy, and bounds on its rounding errors.

A policy computes in float32 (or float64), rounded to nearest. Products may be summed in any order
and with fused multiply-add, and subnormal numbers may be flushed to zero, as inputs and as results.
TensorFloat-32 and bfloat16 products are not covered.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy import ndarray

PROVER_UNIT = 2.0**-53
"""Unit roundoff of the float64 in which bounds are computed."""


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """What is assumed of the arithmetic in which a policy acts."""

    name: str
    """The type of all numbers."""
    unit: float
    """Unit roundoff: the largest relative error of one rounding."""
    tiny: float
    """The smallest normal number; results below may be flushed to zero."""
    elementary: float
    """Largest relative error of tanh, exp and log, in units; `benchmarks/elementary.py` checks it
    over all float32 numbers for JAX on a CPU, NumPy and C."""

    @property
    def kind(self) -> Any:
        """The NumPy type."""
        return np.dtype(self.name).type

    @property
    def largest(self) -> float:
        """Sums of sizes up to this cannot overflow."""
        return float(np.finfo(self.kind).max) / 16.0

    def sum_error(self, terms: int) -> float:
        """Return the relative error of an inner product and a bias, against the sum of sizes.

        Each product is rounded once and takes part in at most as many additions as there are terms
        (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
        """
        product = (terms + 3) * self.unit
        return product / (1.0 - product)

    def function_error(self) -> float:
        """Return the largest relative error of tanh, exp and log."""
        return self.elementary * self.unit

    def cast(self, low: ndarray, high: ndarray) -> tuple[ndarray, ndarray]:
        """Return the interval of what numbers between two ends become when they are cast.

        A subnormal end becomes zero: an end at zero stands for all subnormal numbers.
        """
        with np.errstate(over="ignore"):
            ends = [np.asarray(end).astype(self.name).astype(np.float64) for end in (low, high)]
        cast = [np.where(np.abs(end) < self.tiny, 0.0, end) for end in ends]
        return cast[0], cast[1]

    def after(self, numbers: Any) -> ndarray:
        """Return the next larger numbers of the type that are zero or normal."""
        after = np.nextafter(np.asarray(numbers).astype(self.kind), self.kind(np.inf))
        flushed = np.where(after > 0.0, self.tiny, 0.0)
        return np.where(np.abs(after) < self.tiny, flushed, after.astype(np.float64))

    def round_outward(
        self, low: ndarray, high: ndarray, roundings: float
    ) -> tuple[ndarray, ndarray]:
        """Return an interval widened by several relative rounding errors and by flushing."""
        share, tiny = roundings * self.unit, roundings * self.tiny
        return low - share * np.abs(low) - tiny, high + share * np.abs(high) + tiny


ARITHMETICS = {
    "float32": Arithmetic("float32", 2.0**-24, 2.0**-126, 16.0),
    "float64": Arithmetic("float64", 2.0**-53, 2.0**-1022, 16.0),
}
