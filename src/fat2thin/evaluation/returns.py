"""Returns of policies on the task that their data come from, and the registry of tasks.

Every policy is judged in every way it can act, on the same episodes, which depend on the key alone.
A task written in JAX is evaluated inside the compiled program, a Gymnasium task on the host while
training goes on.
"""

import dataclasses
import functools
import pkgutil
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Float, Key

from fat2thin.envs import Reference, treatment, treatment_reference
from fat2thin.envs.treatment import Treatment
from fat2thin.policies.policy import WAYS, Centred, Policy, Sampled
from fat2thin.random_streams import Stream, stream_key

SCORE = "actor_sampled"
"""The score that is shown: the policy that acts, by samples."""
REFERENCE_SEED = 0
REFERENCE_EPISODES = 4096


class TaskError(ValueError):
    """A task to judge policies on cannot be made, or does not match the log."""


class Evaluation(NamedTuple):
    """Raw results of one policy acting in one way."""

    returns: Float[Array, "*batch episodes"]
    """Undiscounted sums of rewards, one per episode."""
    measures: dict[str, Float[Array, "*batch"]]
    """What else the task reports, over all episodes."""


@runtime_checkable
class Evaluator(Protocol):
    """Judges a policy inside a compiled program; hashable, so that `jax.jit` can hold it static."""

    def evaluate(self, act: Sampled | Centred, key: Key[Array, ""], episodes: int) -> Evaluation:
        """Return the results of `act(key, observation)`; episodes depend on the key alone."""

    def references(self) -> dict[str, Reference]:
        """Return what to compare with: `REFERENCE_EPISODES` episodes of `REFERENCE_SEED`."""


@runtime_checkable
class HostJudge(Protocol):
    """Judges policies outside of any compiled program."""

    steps: int
    """Steps taken in the task so far."""
    seconds: float
    """Time these steps took."""

    def judge(
        self, policies: dict[str, Policy], keys: Key[Array, " jobs"], episodes: int
    ) -> dict[str, Evaluation]:
        """Return the results of all jobs, by policy and way of acting.

        Policies and results have a leading axis of jobs. Episodes depend on the keys alone.
        """

    def references(self) -> dict[str, Reference]:
        """Return what to compare with."""

    def check(self, observation_size: int, low: tuple[float, ...], high: tuple[float, ...]) -> None:
        """Raise a ValueError if policies of these sizes cannot act in the task."""

    def close(self) -> None:
        """Release the environments."""


@dataclasses.dataclass(frozen=True)
class TreatmentEvaluator:
    """Patients of the treatment task."""

    task: Treatment

    def evaluate(self, act: Sampled | Centred, key: Key[Array, ""], episodes: int) -> Evaluation:
        """Evaluate one patient per episode."""
        rollout = treatment.rollout(key, act, self.task, episodes)
        return Evaluation(rollout.returns, rollout.measures)

    def references(self) -> dict[str, Reference]:
        """Return uniform behaviour, the best constant dose, and two that see the latent state."""
        return _treatment_references(self.task)


@functools.cache
def _treatment_references(task: Treatment) -> dict[str, Reference]:
    key = stream_key(REFERENCE_SEED, Stream.REFERENCE)
    return treatment_reference.reference_rows(key, task, REFERENCE_EPISODES)


Judge = Evaluator | HostJudge
NO_TASK = "none"
"""Instead of a task's name: policies are not judged."""
GYMNASIUM = "fat2thin.evaluation.gymnasium_tasks:judge_for"
"""Makes the judge of a Gymnasium task; by name, so that Gymnasium is imported only when needed."""

_EVALUATORS: dict[str, Callable[[str], Judge | None] | str] = {}


def register_evaluator(prefix: str, make: Callable[[str], Judge | None] | str) -> None:
    """Judge policies learned from data sets whose names begin with `prefix` by `make(name)`.

    `make` may also be named as "module:function", which is imported on first use.
    """
    if prefix in _EVALUATORS:
        raise ValueError(f"data sets called {prefix}... have an evaluator already")
    _EVALUATORS[prefix] = make


def evaluator(name: str, task: str | None = None) -> Judge | None:
    """Return the judge of policies learned from this data set; None if there is only a log.

    `task` is the name of a Gymnasium task to judge them on instead, or "none".
    """
    if task == NO_TASK:
        return None
    if task is not None:
        return pkgutil.resolve_name(GYMNASIUM)(name, task)
    for prefix, make in _EVALUATORS.items():
        if name.startswith(prefix):
            return (pkgutil.resolve_name(make) if isinstance(make, str) else make)(name)
    return None


register_evaluator("d4rl/", GYMNASIUM)
register_evaluator("regenerated/", GYMNASIUM)
register_evaluator("treatment/", lambda name: TreatmentEvaluator(treatment.by_name(name)))


def evaluate_policies(
    policies: dict[str, Policy], evaluator: Evaluator, key: Key[Array, ""], episodes: int
) -> dict[str, Evaluation]:
    """Judge each policy in each way of acting, all on the same episodes: "actor_sampled", ..."""
    return {
        f"{name}_{way}": evaluator.evaluate(act(policy), key, episodes)
        for name, policy in policies.items()
        for way, act in WAYS.items()
    }
