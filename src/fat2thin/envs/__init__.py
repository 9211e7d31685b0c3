"""Simulated tasks: the treatment simulation, Gymnasium rollouts and recording of logs.

Gymnasium is imported only when it is needed.
"""

import dataclasses


class TaskFailed(RuntimeError):
    """An environment raised an error or its process ended; the message quotes the error."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """A reference result on a task, such as that of a random policy."""

    mean: float
    """Mean undiscounted return."""
    standard_error: float | None
    """Standard error of the mean, if known."""
    measures: dict[str, float]
    """The measures of an evaluation, by name."""
    rule: str
    """How actions are chosen, in words."""
    episodes: int | None = None
    """Number of measured episodes, if it was measured."""
