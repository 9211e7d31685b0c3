"""How large a reproduction is: minutes, an evening, or what the paper did."""

from typing import NamedTuple


class Scale(NamedTuple):
    """Sizes of the runs of a preset."""

    treatment_steps: int
    """Updates on the treatment task ..."""
    robot_steps: int
    """... and on the robots."""
    treatment_seeds: int
    robot_seeds: int
    selection_seeds: int
    """Seeds of a sweep, which report nothing."""
    treatment_evaluations: int
    robot_evaluations: int
    """After the one before the first update."""
    treatment_episodes: int
    robot_episodes: int
    hidden: tuple[int, ...] | None
    """Layers of all networks; None is what was published."""
    clipped_steps: int
    """Updates that Figure 7 shows the clipped policies over."""
    robot_evolution: int
    """Updates between the pictures of Figures 5 and 9."""
    timed_updates: int


SCALES = {
    "smoke": Scale(
        treatment_steps=200, robot_steps=100, treatment_seeds=2, robot_seeds=2, selection_seeds=2,
        treatment_evaluations=2, robot_evaluations=2, treatment_episodes=10, robot_episodes=1,
        hidden=(16, 16), clipped_steps=100, robot_evolution=25, timed_updates=20,
    ),
    "small": Scale(
        treatment_steps=10_000, robot_steps=20_000, treatment_seeds=5, robot_seeds=4,
        selection_seeds=3, treatment_evaluations=10, robot_evaluations=2, treatment_episodes=100,
        robot_episodes=5, hidden=None, clipped_steps=10_000, robot_evolution=1_000,
        timed_updates=500,
    ),
    "paper": Scale(
        treatment_steps=500_000, robot_steps=1_000_000, treatment_seeds=10, robot_seeds=10,
        selection_seeds=5,
        treatment_evaluations=50, robot_evaluations=100, treatment_episodes=5, robot_episodes=5,
        hidden=None, clipped_steps=10_000, robot_evolution=1_000, timed_updates=2_000,
    ),
}  # fmt: skip
"""Minutes on two cores; an evening; ten seeds and all updates. At the paper's scale an evaluation
has 5 episodes, as there; at a smaller one more on the treatment task, where they are cheap."""


def scale_of(name: str) -> Scale:
    """The scale of this name."""
    if name not in SCALES:
        raise ValueError(f"no scale is called {name!r}; there are {', '.join(SCALES)}")
    return SCALES[name]
