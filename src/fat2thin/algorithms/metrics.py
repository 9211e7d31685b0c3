"""What the metrics of all algorithms are, a sentence each, and what to look for."""

from typing import NamedTuple


class Meaning(NamedTuple):
    """A metric in words."""

    what: str
    look_for: str


METRICS = {
    "value_loss": Meaning("what V minimises, mean over the batch", "should settle; it follows Q"),
    "critic_loss": Meaning(
        "half the squared error of Q against its target, both critics (XQL: Huber's loss)",
        "falls towards the noise of the rewards; far below it means the log is being learned by "
        "heart",
    ),
    "proposal_loss": Meaning(
        "−weight · log proposal(a given s) on logged actions",
        "falls as the proposal narrows; below zero once its density exceeds 1",
    ),
    "actor_loss": Meaning(
        "what the policy that acts minimises",
        "should settle; a regression's falls below zero once the density exceeds 1, and FtTPO's "
        "least value for indices 0 and 2 does not depend on the proposal's scale",
    ),
    "behaviour_loss": Meaning(
        "−log behaviour(a given s) on logged actions",
        "falls towards the entropy of the log's actions",
    ),
    "model_loss": Meaning(
        "the density model's loss, at the policy's actions (in the preparation: at logged ones)",
        "far above its value at the end of the preparation: the policy leaves the log",
    ),
    "reconstruction_loss": Meaning(
        "squared error of actions that the density model encodes and decodes",
        "falls; what is left is what the latent variable cannot hold",
    ),
    "latent_divergence": Meaning(
        "KL of the encoded latent variable to the standard normal, mean over its coordinates",
        "0 means that the latent variable is not used",
    ),
    "q_mean": Meaning(
        "mean Q of logged actions",
        "on the scale of discounted returns; growing without end means overestimation",
    ),
    "v_mean": Meaning(
        "mean V of logged states",
        "near `q_mean`; above it where the policy is better than the log",
    ),
    "weight_mean": Meaning(
        "mean weight of logged actions", "near zero: the policy hardly learns from the log"
    ),
    "zero_weight_share": Meaning(
        "share of logged actions with a weight of exactly zero",
        "the share that is thrown away as bad; 1 means that nothing is learned",
    ),
    "samples_below_floor": Meaning(
        "share of the policy's samples whose weight is below the floor",
        "falls; near 1 the policy sits among bad actions",
    ),
    "policy_scale": Meaning(
        "scale of the policy (half-width of a sparse one)",
        "shrinks with the good actions; at a bound, the bound decides",
    ),
    "half_width": Meaning(
        "half-width of the actor's band, after the box has had its say",
        "shrinks; stuck at a bound means that the bound decides",
    ),
    "proposal_scale": Meaning(
        "scale of the proposal",
        "shrinks with the data's good actions; the best band is a constant times it",
    ),
    "logged_inside_support": Meaning(
        "share of logged actions that the policy could have taken",
        "how much of the log's behaviour is still allowed",
    ),
    "actions_at_edge": Meaning(
        "share of the sampled actions at the edge of the box",
        "high: the best actions may lie outside the box",
    ),
    "box_binds_share": Meaning(
        "share of states where the band was moved or cut by the box",
        "where it binds, the width is not the unconstrained best",
    ),
}
"""By the name an update reports them under. Lengths are in half-ranges of the action box."""
