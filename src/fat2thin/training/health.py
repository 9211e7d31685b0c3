"""What should worry the owner of a run before anything is infinite: spikes, and a runaway Q."""

import collections
from collections.abc import Mapping, Sequence

import numpy as np

USUAL_ROWS = 50
"""Rows of metrics that say what is usual."""
FEWEST_ROWS = 10
SPIKE = 100.0
"""How many times the usual a loss must be to be called a spike."""
RUNAWAY = 10.0
"""How many times the largest possible return a mean Q must be to be called diverging."""


class Health:
    """Looks at the metrics of a run's seeds; each worry is told once a seed."""

    def __init__(self, seeds: Sequence[int], largest_return: float) -> None:
        """`largest_return` is what no discounted return of the log's rewards can exceed."""
        self._seeds, self._largest = seeds, largest_return
        self._usual: dict[str, collections.deque[np.ndarray]] = {}
        self._told: set[tuple[int, str]] = set()

    def look(self, step: int, metrics: Mapping[str, np.ndarray]) -> list[str]:
        """What is new at a step, a sentence each; metrics have a number a seed, nan where over."""
        return [
            sentence
            for name, values in metrics.items()
            for sentence in self._of_metric(step, name, np.abs(np.asarray(values, float)))
        ]

    def _of_metric(self, step: int, name: str, sizes: np.ndarray) -> list[str]:
        if name == "q_mean":
            return [
                f"seed {self._seeds[place]}: Q diverges. Its mean is {sizes[place]:.3g} in size at "
                f"step {step:,}, and no return of this log's rewards can exceed "
                f"{self._largest:.3g}. Try a smaller learning rate, a smaller polyak_rate, or "
                "rewards of a smaller scale (--reward-scale)."
                for place in self._new(name, sizes > RUNAWAY * (self._largest or np.inf))
            ]
        if not name.endswith("_loss"):
            return []
        rows = self._usual.setdefault(name, collections.deque(maxlen=USUAL_ROWS))
        usual = np.median(rows, axis=0) if len(rows) >= FEWEST_ROWS else np.full(len(sizes), np.nan)
        rows.append(sizes)
        with np.errstate(invalid="ignore"):
            spikes = self._new(name, sizes > SPIKE * np.maximum(usual, 1e-6))
        return [
            f"seed {self._seeds[place]}: {name} rose to {sizes[place]:.3g} at step {step:,}, "
            f"usually it was {usual[place]:.3g}. A spike that does not go away wants a smaller "
            "learning rate or rewards and observations of a smaller scale (--reward-scale, "
            "--standardise)."
            for place in spikes
        ]

    def _new(self, name: str, worrying: np.ndarray) -> list[int]:
        places = [
            int(place) for place in np.flatnonzero(worrying) if (int(place), name) not in self._told
        ]
        self._told |= {(place, name) for place in places}
        return places
