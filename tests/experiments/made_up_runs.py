"""Made-up runs with known scores and policies; nothing is trained or compiled."""

from types import SimpleNamespace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fat2thin.data.formats.d4rl import REFERENCES
from fat2thin.evaluation.returns import Evaluation
from fat2thin.paper import claims_table
from fat2thin.paper.claims import Reproduced, judge
from fat2thin.policies.families import Head
from fat2thin.policies.policy import Policy
from fat2thin.runs.result import Evaluations
from fat2thin.training import Run

CLAIMS = {claim.name: claim for claim in claims_table.CLAIMS}
SPREAD = np.array([-0.3, 0.1, 0.0, 0.2, 0.0])
"""Differences between five seeds, in points; their mean is 0."""
FAR_OFF = -100.0
"""Score, per letter of a method's name, of a policy whose returns must not count."""


class MadeUpRun(Run):
    """A run with only some fields."""

    def __init__(self, **fields):
        for name, value in {"folder": None, **fields}.items():
            object.__setattr__(self, name, value)


class MadeUpPolicies(MadeUpRun):
    """A run with given policies: a function of seed and step, or one for all."""

    def policy(self, seed=None, step=None):
        return self.actors if isinstance(self.actors, Policy) else self.actors(seed, step)

    def proposal(self, seed=None, step=None):
        return self.proposals


class MadeUpKept(Reproduced):
    """Reproduced runs from a dictionary instead of a folder."""

    def __init__(self, runs=(), times=None):
        self._runs = dict(runs)
        self._times = times

    def times(self):
        return self._times

    def _run(self, name):
        return self._runs.get(name)


class ConstantNetwork(eqx.Module):
    """A network with the same output in every state."""

    centre: Array
    log_scale: Array

    def __call__(self, observation):
        shape = (*observation.shape[:-1], len(self.centre))
        return Head(jnp.broadcast_to(self.centre, shape), jnp.broadcast_to(self.log_scale, shape))


class ConstantPolicy(Policy):
    """A policy that is the same in every state; `scale` is in half-ranges of the box."""

    def __init__(self, family, centre, scale, low=-1.0, high=1.0):
        centre, scale, self.low, self.high = (
            jnp.atleast_1d(jnp.asarray(value, jnp.float32)) for value in (centre, scale, low, high)
        )
        self.network = ConstantNetwork(centre, jnp.log(scale))
        self.family = family


def dataset_of(folder):
    """Return the data set of a folder of learning curves."""
    kind, _, rest = folder.partition("-")
    return f"treatment/{rest}" if kind == "treatment" else f"regenerated/{folder}"


def evaluation(dataset, scores):
    """Return returns of two episodes whose means are the scores, shape (evaluations, seeds)."""
    scores = np.asarray(scores, np.float64)
    if dataset.startswith("regenerated/"):
        random, expert = REFERENCES[dataset.removeprefix("regenerated/").split("-")[0]]
        scores = random + scores / 100.0 * (expert - random)
    return Evaluation(np.stack([scores - 1.0, scores + 1.0], axis=-1), {})


def scored_run(dataset, steps=(0, 20), about=None, **policies):
    """Return a run with these scores of its policies, shape (evaluations, seeds)."""
    evaluations = {name: evaluation(dataset, scores) for name, scores in policies.items()}
    seeds = tuple(range(np.shape(next(iter(policies.values())))[1]))
    return MadeUpRun(
        spec=SimpleNamespace(dataset=dataset, task=None, seeds=seeds, episodes=2),
        step=steps[-1],
        evaluations=Evaluations(steps, evaluations),
        about=about or {},
    )


def flat_run(folder, label, level, spread=SPREAD):
    """Return a run with a constant score for the policy that counts for this label.

    That is the proposal for published forms, otherwise the actor; the other one is far off.
    """
    right = np.tile(level + spread, (2, 1))
    wrong = np.full_like(right, FAR_OFF * len(label))
    if not label.startswith(("fttpo", "rar")):
        return scored_run(dataset_of(folder), actor_sampled=right)
    actor, proposal = (wrong, right) if label.endswith("-published") else (right, wrong)
    return scored_run(dataset_of(folder), actor_sampled=actor, proposal_sampled=proposal)


def judged(name, kept):
    """Return the verdict on a claim, by its name."""
    return judge(CLAIMS[name], kept)
