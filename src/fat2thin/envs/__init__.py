"""Tasks to learn and to be judged on; nothing here imports Gymnasium until it is needed."""

import dataclasses


class TaskFailed(RuntimeError):
    """An environment raised an error or ended; the message quotes it."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """What a result on a task is compared with."""

    mean: float  # mean undiscounted return
    standard_error: float | None  # of that mean, where it is known
    measures: dict[str, float]  # the same as an evaluation has
    rule: str  # how actions are chosen, in words
    episodes: int | None = None  # number of episodes, where it was measured
