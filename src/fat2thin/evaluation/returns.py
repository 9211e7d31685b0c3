"""Returns of policies on the task that their data come from, and the registry of tasks.

Every policy is evaluated in every way of acting, on the same episodes, which depend only on the
key. A task written in JAX runs inside the compiled program, a Gymnasium task on the host, in
parallel with training.
"""

import dataclasses
import functools
import json
import math
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from fat2thin import plugins
from fat2thin.envs import Reference, hospital, treatment, treatment_reference
from fat2thin.envs.hospital_wards import Ward
from fat2thin.envs.treatment import Treatment
from fat2thin.policies.decision import Cautious
from fat2thin.policies.policy import WAYS, Centred, Policy, Sampled
from fat2thin.random_streams import Stream, stream_key

SCORE = "actor_sampled"  # the score that is shown: the policy that acts, with sampled actions
REFERENCE_SEED = 0
REFERENCE_EPISODES = 4096


class TaskError(ValueError):
    """A task for evaluation cannot be made, or does not match the log."""


class Evaluation(NamedTuple):
    """Raw results of one policy acting in one way."""

    returns: Float[Array, "*batch episodes"]
    """Undiscounted sums of rewards, one per episode."""
    measures: dict[str, Float[Array, "*batch"]]
    """Other quantities that the task reports, over all episodes."""


@runtime_checkable
class Evaluator(Protocol):
    """Evaluates a policy inside a compiled program; hashable, to be a static argument of `jit`."""

    def evaluate(self, act: Sampled | Centred, key: Key[Array, ""], episodes: int) -> Evaluation:
        """Return the results of `act(key, observation)`; episodes depend only on the key.

        Where `act.needs_last_action` is True, it is called with the last action as well.
        """

    def references(self) -> dict[str, Reference]:
        """Return reference policies, on `REFERENCE_EPISODES` episodes of `REFERENCE_SEED`."""


@runtime_checkable
class HostJudge(Protocol):
    """Evaluates policies outside of any compiled program."""

    steps: int
    """Environment steps taken so far."""
    seconds: float
    """Time that these steps took."""

    def judge(
        self, policies: Mapping[str, Policy | Cautious], keys: Key[Array, " jobs"], episodes: int
    ) -> dict[str, Evaluation]:
        """Return the results of all jobs, by policy and way of acting.

        Policies and results have a leading axis of jobs. Episodes depend only on the keys.
        """

    def references(self) -> dict[str, Reference]:
        """Return the results of reference policies."""

    def check(self, observation_size: int, low: tuple[float, ...], high: tuple[float, ...]) -> None:
        """Raise a ValueError if policies of these sizes cannot act in the task."""

    def close(self) -> None:
        """Release the environments."""


REFERRED = "referred"


def with_referred(
    policy: Cautious,
    observation: Float[Array, "*rows observation"],
    last: Float[Array, "*rows action"],
) -> dict[str, Bool[Array, "*rows"]]:
    """Return which states are referred, and for which reasons; the first is any of them."""
    because = policy.because(observation, last)
    return {REFERRED: functools.reduce(operator.or_, because.values()), **because}


@dataclasses.dataclass(frozen=True)
class TreatmentEvaluator:
    """Evaluates policies on the treatment task."""

    task: Treatment

    def evaluate(self, act: Sampled | Centred, key: Key[Array, ""], episodes: int) -> Evaluation:
        """Return the results of `act`, with one patient per episode."""
        policy = act.policy
        if not isinstance(policy, Cautious):
            rollout = treatment.rollout(key, act, self.task, episodes)
            return Evaluation(rollout.returns, rollout.measures)
        begin = treatment.from_observations(act)
        found = treatment.trajectories(key, begin, self.task, episodes)
        rollout, doses = treatment.summarise(found), found.info.dose[..., None]
        shares = _shares_referred(policy, found.observation, doses, jnp.ones(doses.shape[:2], bool))
        return Evaluation(rollout.returns, {**rollout.measures, **shares})

    def check(self, observation_size: int, low: tuple[float, ...], high: tuple[float, ...]) -> None:
        """Raise a `TaskError` if policies of these sizes cannot act in the task."""
        ours = treatment.OBSERVATION_SIZE, (self.task.dose_low,), (self.task.dose_high,)
        _check_sizes("the treatment task", ours, (observation_size, low, high))

    def references(self) -> dict[str, Reference]:
        """Return uniform doses, the best constant dose, and two rules that see the latent state."""
        return _treatment_references(self.task)


def _shares_referred(
    policy: Cautious,
    observation: Float[Array, "episodes time observation"],
    action: Float[Array, "episodes time action"],
    present: Bool[Array, "episodes time"],
) -> dict[str, Float[Array, ""]]:
    """Return the shares of the present steps that are referred, and of each reason."""
    last = jnp.concatenate([jnp.full_like(action[:, :1], jnp.nan), action[:, :-1]], axis=1)
    masks = with_referred(policy, observation, last)
    steps = jnp.sum(present.astype(jnp.float32))
    return {
        name: jnp.sum((mask & present).astype(jnp.float32)) / steps for name, mask in masks.items()
    }


def _check_sizes(task: str, ours: tuple[Any, ...], of_log: tuple[Any, ...]) -> None:
    if of_log != ours:
        raise TaskError(
            f"{task} has {ours[0]} observations and actions from {[*ours[1]]} to {[*ours[2]]}; "
            f"the log has {of_log[0]} and {[*of_log[1]]} to {[*of_log[2]]}"
        )


@dataclasses.dataclass(frozen=True)
class HospitalEvaluator:
    """Evaluates policies on a simulated ward."""

    ward: Ward

    def evaluate(self, act: Sampled | Centred, key: Key[Array, ""], episodes: int) -> Evaluation:
        """Return the results of `act`, with one patient per episode."""
        found = hospital.episodes(key, hospital.from_observations(act), self.ward, episodes)
        rollout, policy = hospital.summarise(found, self.ward), act.policy
        shares: dict[str, Array] = {}
        if isinstance(policy, Cautious):
            shares = _shares_referred(policy, found.observation, found.action, found.present)
        return Evaluation(rollout.returns, {**rollout.measures, **shares})

    def check(self, observation_size: int, low: tuple[float, ...], high: tuple[float, ...]) -> None:
        """Raise a `TaskError` if policies of these sizes cannot act in the ward."""
        ward = self.ward
        ours = len(ward.observation_columns), ward.action_low, ward.action_high
        _check_sizes(ward.name, ours, (observation_size, low, high))

    def references(self) -> dict[str, Reference]:
        """Return what the clinicians reach, and a policy that is better."""
        key, ward = stream_key(REFERENCE_SEED, Stream.REFERENCE), self.ward
        found = {
            "practice": hospital.practice_rollout(key, ward, REFERENCE_EPISODES),
            "guideline": hospital.rollout(key, hospital.guideline(ward), ward, REFERENCE_EPISODES),
        }
        rules = {"practice": "what was logged", "guideline": "a rule that is better than practice"}
        return {
            name: Reference(
                mean=float(jnp.mean(rollout.returns)),
                standard_error=float(jnp.std(rollout.returns, ddof=1))
                / math.sqrt(REFERENCE_EPISODES),
                measures={name: float(value) for name, value in rollout.measures.items()},
                rule=rules[name],
                episodes=REFERENCE_EPISODES,
            )
            for name, rollout in found.items()
        }


@functools.cache
def _treatment_references(task: Treatment) -> dict[str, Reference]:
    if task in (stored := stored_references()):
        return stored[task]
    key = stream_key(REFERENCE_SEED, Stream.REFERENCE)
    return treatment_reference.reference_rows(key, task, REFERENCE_EPISODES)


def stored_references() -> dict[Treatment, dict[str, Reference]]:
    """Return the references of the two default tasks, so that no run measures them."""
    file = Path(treatment_reference.__file__).with_suffix(".json")
    return {
        treatment.by_name(name): {rule: Reference(**row) for rule, row in rows.items()}
        for name, rows in json.loads(file.read_text(encoding="utf-8")).items()
    }


Judge = Evaluator | HostJudge
NO_TASK = "none"  # in place of a task's name: policies are not evaluated

_EVALUATORS: dict[str, Callable[[str], Judge | None]] = {}
_TASKS: dict[str, Callable[[], Any]] = {}


def register_task(name: str, make: Callable[[], Any], data: str | None = None) -> None:
    """Register a task to evaluate policies on (`--task NAME`); a name can be registered once.

    `make()` returns an `Evaluator` (a task in JAX), the id of a Gymnasium task
    ("package.module:Name-v0", run in worker processes) or a Gymnasium environment (run in this
    process). With `data`, it is also the default task of data sets whose names begin with `data`.
    """
    if name in _TASKS or name == NO_TASK:
        raise ValueError(f"a task named {name!r} is already registered")
    if data is not None:
        register_evaluator(data, lambda dataset: evaluator(dataset, name))
    _TASKS[name] = make


def register_evaluator(prefix: str, make: Callable[[str], Judge | None]) -> None:
    """Evaluate policies of data sets whose names begin with `prefix` with `make(name)`."""
    if prefix in _EVALUATORS:
        raise ValueError(f"data sets named {prefix}... already have an evaluator")
    _EVALUATORS[prefix] = make


def evaluator(name: str, task: str | None = None) -> Judge | None:
    """Return what evaluates the policies of this data set; None if it has no task.

    `task` is the name of a registered task, of a Gymnasium task, or of a data set whose task to use
    instead, or "none".
    """
    if task == NO_TASK:
        return None
    if task is not None and task.startswith(tuple(_EVALUATORS)):
        name, task = task, None
    if task is not None:
        if task not in _TASKS:
            plugins.load()
        made = _TASKS[task]() if task in _TASKS else task
        if isinstance(made, Evaluator | HostJudge):
            return made
        return _gymnasium_task(name, task, made)
    if not name.startswith(tuple(_EVALUATORS)):
        plugins.load()
    make = next((make for prefix, make in _EVALUATORS.items() if name.startswith(prefix)), None)
    return None if make is None else make(name)


def _gymnasium_task(name: str, task: str | None = None, made: Any = None) -> Judge | None:
    # Imported here, so that Gymnasium is loaded only if it is needed.
    from fat2thin.evaluation.gymnasium_tasks import judge_for, judge_of_environment

    if task is None or isinstance(made, str):
        return judge_for(name, made)
    return judge_of_environment(task, made, _TASKS[task])


for _prefix in ("d4rl/", "regenerated/", "minari/mujoco/"):
    register_evaluator(_prefix, _gymnasium_task)
register_evaluator("treatment/", lambda name: TreatmentEvaluator(treatment.by_name(name)))
register_evaluator("hospital/", lambda name: HospitalEvaluator(hospital.by_name(name)))


def evaluate_policies(
    policies: dict[str, Policy], evaluator: Evaluator, key: Key[Array, ""], episodes: int
) -> dict[str, Evaluation]:
    """Evaluate each policy in each way of acting ("actor_sampled", ...), on the same episodes."""
    return {
        f"{name}_{way}": evaluator.evaluate(act(policy), key, episodes)
        for name, policy in policies.items()
        for way, act in WAYS.items()
    }
