"""Evaluate policies on Gymnasium tasks, by rollouts on the host.

All jobs, policies and ways of acting run in parallel, and one compiled call returns the actions of
all of them. It runs on the CPU, so that it does not wait for training on an accelerator.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from fat2thin.data.formats import d4rl
from fat2thin.envs import Reference
from fat2thin.envs.record import action_key, processor, reset_seeds, uniform
from fat2thin.envs.rollouts import ROBOTS, Act, Environments, Rollouts, Task, describe
from fat2thin.evaluation.returns import REFERENCE_SEED, Evaluation, TaskError, with_referred
from fat2thin.policies.decision import Cautious
from fat2thin.policies.policy import WAYS, Policy
from fat2thin.random_streams import Stream, stream_key

MOST_SLOTS = 1024
"""Maximum number of open environments, but at least one per policy, way and job. Further episodes
run in rounds."""
UNIFORM_EPISODES = 20  # episodes of the reference policy that acts at random
_HINT = 'With task "none" policies are not evaluated'


@dataclasses.dataclass
class GymnasiumJudge:
    """Evaluates policies on a task. Environments are made when first needed, then kept."""

    task: Task
    scale: d4rl.ReferenceReturns | None = None
    """Reference returns for normalised scores, if they are known."""
    workers: int | None = None
    """Number of worker processes: None is one per CPU, 0 plays in this process."""
    steps: int = dataclasses.field(default=0, init=False, compare=False)
    """Environment steps taken so far."""
    seconds: float = dataclasses.field(default=0.0, init=False, compare=False)
    """Time that these steps took."""
    _open: Environments | None = dataclasses.field(
        default=None, init=False, repr=False, compare=False
    )

    def judge(
        self, policies: Mapping[str, Policy | Cautious], keys: Key[Array, " jobs"], episodes: int
    ) -> dict[str, Evaluation]:
        """Evaluate the policies of all jobs in each way of acting, on episodes of their keys.

        A `Cautious` policy has its referrals among the measures.
        """
        policies, keys = jax.device_put((policies, keys), processor())
        names = [f"{name}_{way}" for name in policies for way in WAYS]
        rounds = min(math.ceil(len(names) * keys.size * episodes / MOST_SLOTS), episodes)
        shape = (len(names), keys.size, math.ceil(episodes / rounds))
        # With n slots, slot s plays episodes s, s + n, s + 2n, ...
        abreast = np.broadcast_to(np.arange(shape[2]), shape).reshape(-1)
        last = np.zeros((len(abreast), len(self.task.action_low)), np.float32)
        steps = np.zeros(shape[:2])
        referred: dict[str, dict[str, np.ndarray]] = {}

        def act(observation: np.ndarray, episode: np.ndarray, step: np.ndarray) -> np.ndarray:
            number = abreast + shape[2] * episode
            last[step == 0] = np.nan
            rows = (
                observation.reshape(*shape, -1), number.reshape(shape), step.reshape(shape),
                last.reshape(*shape, -1),
            )  # fmt: skip
            action, because = _act(policies, keys, *rows)
            playing = (episode < rounds).reshape(shape)
            np.add(steps, playing.sum(axis=2), out=steps)
            for name, masks in because.items():
                for reason, mask in masks.items():
                    counts = referred.setdefault(name, {})
                    found = (np.asarray(mask) & playing[names.index(name)]).sum(axis=1)
                    counts[reason] = counts.get(reason, 0) + found
            last[:] = np.asarray(action).reshape(last.shape)
            return last

        seeds = np.asarray(reset_seeds(keys, jnp.arange(shape[2] * rounds)))
        of_slots = seeds.reshape(keys.size, rounds, shape[2]).swapaxes(1, 2)
        found = self._play(act, np.broadcast_to(of_slots, (*shape, rounds)).reshape(-1, rounds))

        def by_job(values: np.ndarray) -> Any:
            ordered = values.reshape(*shape, rounds).swapaxes(2, 3).reshape(*shape[:2], -1)
            return ordered[..., :episodes].astype(np.float32)

        evaluations = {}
        rows = zip(names, by_job(found.returns), by_job(found.lengths), steps, strict=True)
        for name, own, lengths, of_name in rows:
            shares = {reason: count / of_name for reason, count in referred.get(name, {}).items()}
            evaluations[name] = Evaluation(own, {**self._measures(own, lengths), **shares})
        return evaluations

    def references(self) -> dict[str, Reference]:
        """Measure uniform actions, and add D4RL's random and expert policies if it has them."""
        key = stream_key(REFERENCE_SEED, Stream.REFERENCE)
        at_random, number = uniform(self.task, REFERENCE_SEED), np.arange(UNIFORM_EPISODES)
        seeds = np.asarray(reset_seeds(key[None], number))
        with Environments(self.task, UNIFORM_EPISODES, self.workers) as environments:
            found = environments.play(
                lambda observation, episode, step: at_random(observation, number, step), seeds.T
            )
        measures = self._measures(found.returns[:, 0], found.lengths[:, 0])
        measured = Reference(
            mean=float(found.returns.mean()),
            standard_error=float(found.returns.std(ddof=1) / math.sqrt(UNIFORM_EPISODES)),
            measures={name: float(value) for name, value in measures.items()},
            rule=f"every action drawn uniformly from the box, {UNIFORM_EPISODES} episodes",
            episodes=UNIFORM_EPISODES,
        )
        found_and_known = {"uniform": measured}
        for name, score in (("random", 0.0), ("expert", 100.0)) if self.scale else ():
            found_and_known[f"d4rl {name}"] = Reference(
                mean=getattr(self.scale, name),
                standard_error=None,
                measures={"score": score},
                rule=f"scored {score:g} by D4RL, which used an older simulator",
            )
        return found_and_known

    def check(self, observation_size: int, low: tuple[float, ...], high: tuple[float, ...]) -> None:
        """Raise a ValueError if policies of these sizes cannot act in the task."""
        try:
            self.task.check(observation_size, low, high, "the log")
        except ValueError as error:
            raise TaskError(f"{error}. {_HINT}") from error

    def close(self) -> None:
        """Close the environments."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _play(self, act: Act, seeds: np.ndarray) -> Rollouts:
        if self._open is None or self._open.slots != len(seeds):
            self.close()
            self._open = Environments(self.task, len(seeds), self.workers)
        try:
            found = self._open.play(act, seeds)
        except BaseException:
            self.close()
            raise
        self.steps += found.steps
        self.seconds += found.seconds
        return found

    def _measures(self, returns: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
        measures = {"length": lengths.mean(axis=-1)}
        if self.scale is not None:
            measures["score"] = d4rl.score(self.scale, returns).mean(axis=-1)
        return measures


def judge_for(name: str, task: str | None = None) -> GymnasiumJudge | None:
    """Return the judge that evaluates policies of a data set, on its robot or on a named task.

    None if no task is named and Gymnasium has no task for the data set.
    """
    robot = d4rl.robot(name)
    own = ROBOTS.get(robot) if robot else None
    task = own if task is None else task
    if task is None:
        return None
    scale = d4rl.REFERENCES[robot] if robot and task == own else None
    try:
        return GymnasiumJudge(describe(task), scale)
    except ValueError as error:
        raise TaskError(f"{error}. {_HINT}") from error


def judge_of_environment(name: str, made: Any, make: Any) -> GymnasiumJudge:
    """Return the judge that evaluates policies on another package's environment, in this process.

    `made` is a first environment from `make`; it is closed.
    """
    if not isinstance(made, gymnasium.Env):
        raise TaskError(
            f"task {name!r} makes a {type(made).__name__}: it must make an Evaluator, a Gymnasium "
            "environment or the id of one"
        )
    made.close()
    known = f"fat2thin/{name}"
    if known not in gymnasium.registry:
        gymnasium.register(known, make, disable_env_checker=True)
    return GymnasiumJudge(describe(known), workers=0)


@jax.jit
def _act(
    policies: Mapping[str, Policy | Cautious],
    keys: Key[Array, " jobs"],
    observation: Float[Array, "ways jobs slots observation"],
    episode: Int[Array, "ways jobs slots"],
    step: Int[Array, "ways jobs slots"],
    last: Float[Array, "ways jobs slots action"],
) -> tuple[Float[Array, "ways jobs slots action"], dict[str, dict[str, Array]]]:
    """Return the actions of every policy and way of acting, each for its own slots.

    Also, for those that refer states, by name: which slots are referred, and for which reason.
    """

    def one_slot(
        act: Any, key: Array, observation: Array, episode: Array, step: Array, last: Array
    ) -> Array:
        return act(action_key(key, episode, step), observation, last)

    slots = jax.vmap(one_slot, (None, None, 0, 0, 0, 0))
    names = [f"{name}_{way}" for name in policies for way in WAYS]
    acting = [way(policy) for policy in policies.values() for way in WAYS.values()]
    because = {
        name: jax.vmap(with_referred)(act.policy, observation[index], last[index])
        for index, (name, act) in enumerate(zip(names, acting, strict=True))
        if isinstance(act.policy, Cautious)
    }
    actions = jnp.stack(
        [
            jax.vmap(slots)(
                act, keys, *(part[index] for part in (observation, episode, step, last))
            )
            for index, act in enumerate(acting)
        ]
    )
    return actions, because
