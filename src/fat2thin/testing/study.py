"""What every study of a distribution offers to the checks, for scalar and vector events alike."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from fat2thin.testing.features import Standardised, View
from fat2thin.testing.parameters import Parameters
from fat2thin.testing.subject import Subject, Values

# Step of a difference quotient, in units of the parameter's natural length.
STEP = 2.0**-6
# Multiples of the step at which the density is evaluated.
OFFSETS = (-2, -1, 1, 2)

Statistics = Float[np.ndarray, "features elements"]


class Difference(NamedTuple):
    """Derivatives of the features' expectations, standard errors, and what else may be off."""

    value: Statistics
    standard_error: Statistics
    slack: Statistics


@runtime_checkable
class Study(Protocol):
    """A distribution, samples of it, and an integral of its density."""

    @property
    def subject(self) -> Subject:
        """The distribution under test."""

    @property
    def second(self) -> Values:
        """The samples to be tested."""

    @property
    def views(self) -> tuple[View, ...]:
        """How samples are looked at."""

    def outside(self) -> Values:
        """Values just and far outside a bounded support."""

    def edge_points(self) -> Values:
        """Values at which a density or its gradient may break; the last two are far away."""

    def typical(self, count: int) -> Values:
        """Values where most of the mass is."""

    def inwards(self, values: Values) -> Values:
        """The next representable values towards the centre."""

    def near_end(self, values: Values) -> Bool[np.ndarray, "rows elements"]:
        """Whether values are so near an end of the support that rounding decides their density."""

    def standardise(self, values: Values) -> Standardised:
        """Values in units of the spread, from the centre."""

    def standardise_slope(self, slopes: Values) -> Standardised:
        """Derivatives of values in units of the spread."""

    def difference(self, at: Callable[[int], Parameters]) -> Difference:
        """Difference quotient of the features' expectations; at(offset) gives the parameters."""
