"""The figures of the FtTPO paper, drawn anew from runs: true densities and real 95 % intervals.

Each function gives a figure and decides nothing about which runs are made. They are meant to be
drawn and saved in the style of `fat2thin.report.distribution_figures.STYLE`.

| figure | function |
|---|---|
| 1 left, 1 middle | `outside_actions`, `replaced_actions` |
| 1 right, 2 left, 4, 8 | `curves` |
| 2 middle | `final_policies` |
| 2 right | `actor_and_proposal` |
| 3, 5, 7 left, 9 | `evolution` |
| 6 | `ablation` |
| 7 right | `first_action_return` |
| training time, in the text | `training_time` |

The paper's own differ: its ribbons are one standard error, its curves of FtTPO are the proposal's
(here `curves(..., policy="proposal")`), its squashed Gaussians are drawn before squashing, and its
heights are scaled.
"""

from fat2thin.paper.cartoons import outside_actions, replaced_actions
from fat2thin.paper.curves import ablation, curves, training_time
from fat2thin.paper.policy_figures import (
    actor_and_proposal,
    evolution,
    final_policies,
    first_action_return,
)

__all__ = [
    "ablation",
    "actor_and_proposal",
    "curves",
    "evolution",
    "final_policies",
    "first_action_return",
    "outside_actions",
    "replaced_actions",
    "training_time",
]
