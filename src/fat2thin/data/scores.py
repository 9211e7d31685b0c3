"""Normalised scores: 0 is D4RL's random policy on that robot, 100 its expert."""

import re
from typing import NamedTuple

import numpy as np


class Reference(NamedTuple):
    """Returns of the random policy and of the expert."""

    random: float
    expert: float


D4RL = {
    "halfcheetah": Reference(-280.178953, 12135.0),
    "hopper": Reference(-20.272305, 3234.3),
    "walker2d": Reference(1.629008, 4592.3),
    "ant": Reference(-325.6, 3879.7),
}
"""From d4rl/infos.py in the repository Farama-Foundation/D4RL: the same for every data set of a
robot and for versions 0 to 2 of the MuJoCo tasks."""

_SETS = "random|medium|expert|medium-replay|full-replay|medium-expert"
_NAMES = re.compile(
    rf"(?:d4rl/(?P<original>[a-z0-9]+)-(?:{_SETS})-v[012]"
    rf"|regenerated/(?P<regenerated>[a-z0-9]+)-(?:{_SETS}))"
)


def robot(task: str) -> str | None:
    """The robot that a data set is of, where its scores are known: "hopper"."""
    found = _NAMES.fullmatch(task)
    name = (found["original"] or found["regenerated"]) if found else None
    return name if name in D4RL else None


def reference(task: str) -> Reference:
    """The returns that a task's scores are measured by; a task without any is an error.

    A regenerated data set is measured by the numbers of the D4RL one that it remakes, though its
    simulator is another: such scores compare with each other, not with a published D4RL table.
    """
    known = robot(task)
    if known is None:
        raise ValueError(
            f"no reference scores are known for {task!r}; there are some for d4rl/<robot>-<set>-v2 "
            f"and regenerated/<robot>-<set> with robots {', '.join(D4RL)}. Compare returns instead"
        )
    return D4RL[known]


def score(scale: Reference, returns: np.ndarray | float) -> np.ndarray:
    """Returns as scores: 100 (return - random) / (expert - random), of any shape."""
    random, expert = scale
    return np.asarray(100 * (np.asarray(returns, np.float64) - random) / (expert - random))


def normalised_score(task: str, returns: np.ndarray | float) -> np.ndarray:
    """Returns as D4RL's scores of a task: 0 is its random policy, 100 its expert."""
    return score(reference(task), returns)
