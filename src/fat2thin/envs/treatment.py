"""The treatment simulation and its logs, as pure functions of one patient that can be vmapped.

A patient has a latent mean μ ∈ R⁸. A dose x increases components 1 to 4 and decreases 5 to 8,

    μ'_j = tanh(μ_j + x)  for j = 1..4,      μ'_j = tanh(μ_j − x)  for j = 5..8,

and only a noisy observation s' ~ N(μ', Σ) is available, so the task is partially observed. The
reward of a step is a function of s' and x. One unit of dose is 100 of the paper's raw doses.
Dynamics: the FtTPO paper, appendix on the treatment simulation, after Li et al. (2023). An episode
is truncated at the horizon and never terminates.

Importing this module registers the logs with `fat2thin.data`: `load("treatment/cubic")`.
"""

import dataclasses
import functools
import itertools
import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from fat2thin.compilation import QuicklyCompiled
from fat2thin.data.dataset import Dataset
from fat2thin.data.readers import Reader, register_reader
from fat2thin.random_streams import Stream, stream_key

OBSERVATION_SIZE = 8
ACTION_SIZE = 1
_DIRECTION = (1.0,) * 4 + (-1.0,) * 4


def cubic_reward(observation: Float[Array, "8"], dose: Float[Array, ""]) -> Float[Array, ""]:
    """Return (s₁/2)³ + (s₂/2)³ + s₃ + s₄ + 2[(s₅/2)³ + (s₆/2)³] + ½(s₇ + s₈), as in the paper.

    The dose matters only through the observation: more is better, up to saturation.
    """
    del dose
    cubes = (observation / 2) ** 3
    return (
        cubes[0] + cubes[1] + observation[2] + observation[3]
        + 2 * (cubes[4] + cubes[5]) + (observation[6] + observation[7]) / 2
    )  # fmt: skip


def quadratic_reward(observation: Float[Array, "8"], dose: Float[Array, ""]) -> Float[Array, ""]:
    """Return −exp((s₁ + s₅)/2) x² + 2(s₂ + s₃ + s₆ + s₇ + ½) x + s₄ + s₈, as in the authors' code.

    The best dose lies inside the box: for a patient at rest it is e^(−1/8)/2 = .441.
    """
    toxicity = jnp.exp((observation[0] + observation[4]) / 2)
    benefit = observation[1] + observation[2] + observation[5] + observation[6] + 0.5
    return -toxicity * dose**2 + 2 * benefit * dose + observation[3] + observation[7]


_REWARDS = {"cubic": cubic_reward, "quadratic": quadratic_reward}
_INITIAL_STATES: dict[str, Callable[[PRNGKeyArray], Float[Array, "8"]]] = {
    "uniform": lambda key: jax.random.uniform(key, (OBSERVATION_SIZE,), minval=-1.0, maxval=1.0),
    "normal": lambda key: 0.5 * jax.random.normal(key, (OBSERVATION_SIZE,)),
    "zero": lambda key: jnp.zeros(OBSERVATION_SIZE),
}
_COVARIANCES = ("episode", "fixed")


def sample_correlation_factor(key: PRNGKeyArray) -> Float[Array, "8 8"]:
    """Return F such that F Fᵀ is the column correlation matrix of an 8×8 matrix from U(0, 1).

    Centring reduces the rank by one, so the matrix is singular and has no reliable Cholesky factor.
    The standardised columns themselves are a factor.
    """
    columns = jax.random.uniform(key, (OBSERVATION_SIZE, OBSERVATION_SIZE))
    centred = columns - jnp.mean(columns, axis=0, keepdims=True)
    return (centred / jnp.linalg.norm(centred, axis=0, keepdims=True)).T


def uniform_correlation_factor(key: PRNGKeyArray) -> Float[Array, "8 8"]:
    """Return L such that L Lᵀ is uniform over 8×8 correlation matrices (of full rank).

    Row k holds k components of a Gaussian vector g ∈ R⁹, then the length of the others, divided
    by ‖g‖: their squared share is Beta(k/2, (9 − k)/2), as the onion method needs (Lewandowski,
    Kurowicka and Joe 2009, with η = 1).
    """
    gaussian = jax.random.normal(key, (OBSERVATION_SIZE, OBSERVATION_SIZE + 1), jnp.float32)
    below = jnp.tril(gaussian[:, :OBSERVATION_SIZE], k=-1)
    rest = jnp.linalg.norm(jnp.triu(gaussian), axis=1)
    return (below + jnp.diag(rest)) / jnp.linalg.norm(gaussian, axis=1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Treatment:
    """Settings of one variant of the task; hashable, so that it can be static under `jax.jit`.

    Neither the paper nor its code gives a danger threshold, although the paper mentions one on the
    cumulative dose. The default limits here are ours, derived from the quadratic reward. They are
    doses, not shares of the box: harm to a patient does not depend on the allowed doses.
    """

    reward: str = "cubic"
    """"cubic" (printed in the paper) or "quadratic" (in the authors' code)."""
    covariance: str = "episode"
    """Covariance of the observation noise, a correlation matrix over 2. "episode": drawn for each
    episode, rank 7 (the authors' code); "fixed": one for the task, full rank (Li et al.)."""
    covariance_seed: int = 0
    """Seed of the "fixed" covariance; must be 0 for "episode"."""
    initial_state: str = "uniform"
    """Initial latent mean: "uniform" U(−1, 1)⁸ (the authors' code), "normal" N(0, ½²)⁸ (Li et al.,
    training) or "zero" (Li et al., testing)."""
    dose_low: float = -1.0
    """Lower end of the dose box; the environment clips doses to the box."""
    dose_high: float = 1.0
    """Upper end of the dose box."""
    horizon: int = 24
    """Number of steps after which an episode is truncated (a time limit, not a true end)."""
    discount: float = 0.9
    """Default discount factor in training; returns are reported undiscounted."""
    dose_limit: float = 0.88
    """Limit on |dose| per step: above about e^(−1/8) = .88, a constant dose is worse than none for
    a patient at rest under the quadratic reward. `math.inf` disables it."""
    cumulative_dose_limit: float = 12.0
    """Limit on Σ|dose| over an episode: half of the sum of 24 full doses. The best constant dose
    for the quadratic reward stays below (24 · .44 = 10.6); the uniform behaviour of the log exceeds
    it in about every other episode. `math.inf` disables it."""

    def __post_init__(self) -> None:
        """Raise a `ValueError` that names the first invalid field."""
        for field, choices in (
            ("reward", _REWARDS),
            ("covariance", _COVARIANCES),
            ("initial_state", _INITIAL_STATES),
        ):
            if getattr(self, field) not in choices:
                names = ", ".join(map(repr, choices))
                raise ValueError(f"{field} must be one of {names}, got {getattr(self, field)!r}")
        for field, least in (("covariance_seed", 0), ("horizon", 1)):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{field} must be an integer of at least {least}, got {value!r}")
        for field in ("dose_low", "dose_high", "discount", "dose_limit", "cumulative_dose_limit"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value):
                raise ValueError(f"{field} must be a number, got {value!r}")
        if self.covariance != "fixed" and self.covariance_seed != 0:
            raise ValueError(
                f"covariance_seed is {self.covariance_seed}, but a covariance of "
                f"{self.covariance!r} has no seed: leave it at 0 or set covariance='fixed'"
            )
        if not (-math.inf < self.dose_low < self.dose_high < math.inf):
            raise ValueError(
                "dose_low must lie below dose_high and both must be finite, "
                f"got dose_low={self.dose_low} and dose_high={self.dose_high}"
            )
        if not 0 <= self.discount < 1:
            raise ValueError(f"discount must lie in [0, 1), got {self.discount}")
        for field in ("dose_limit", "cumulative_dose_limit"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} must be positive, got {getattr(self, field)}")


# Omitted parts of a name have their defaults.
VARIANTS: dict[str, Treatment] = {
    f"treatment/{reward}{one}{other}": Treatment(
        reward, covariance=one[1:] or "episode", initial_state=other[1:] or "uniform"
    )
    for reward, one, other in itertools.product(_REWARDS, ("", "-fixed"), ("", "-normal", "-zero"))
}
"""Every named variant: `treatment/<reward>[-fixed][-normal|-zero]`."""
TRAJECTORIES = 50  # default number of trajectories of a log: 1,200 steps, as in the paper
MOST_TRAJECTORIES = 100_000


def is_name(name: str) -> bool:
    """Return whether this is the name of a variant, or of a log of one ("treatment/cubic@200")."""
    variant, _, count = name.partition("@")
    return variant in VARIANTS and (count == "" or count.isdecimal()) and not name.endswith("@")


def by_name(name: str) -> Treatment:
    """Return the variant of a name such as "treatment/quadratic-fixed", or of a log's name."""
    if not is_name(name):
        raise ValueError(
            f"no treatment task is called {name!r}; there are {', '.join(VARIANTS)}, and a name "
            "may end in @200 for a log of 200 trajectories"
        )
    return VARIANTS[name.partition("@")[0]]


def trajectories_of(name: str) -> int:
    """Return the number of trajectories in a log's name: 200 for "treatment/cubic@200"."""
    count = name.partition("@")[2]
    if not count:
        return TRAJECTORIES
    if len(count) > len(str(MOST_TRAJECTORIES)) or not 1 <= int(count) <= MOST_TRAJECTORIES:
        raise ValueError(
            f"a log {name!r} cannot be made: it may have 1 to {MOST_TRAJECTORIES:,} trajectories"
        )
    return int(count)


class Patient(NamedTuple):
    """The hidden state of one patient."""

    latent: Float[Array, "8"]
    """μ, the mean of the observation."""
    noise_factor: Float[Array, "8 8"]
    """F such that Σ = F Fᵀ."""
    cumulative_dose: Float[Array, ""]
    """Σ|dose| since the start of the episode."""
    time: Int[Array, ""]
    """Number of steps since the start of the episode."""
    last_dose: Float[Array, ""]
    """The dose of the step before; nan at the start."""


class Info(NamedTuple):
    """Doses and safety limits of a step."""

    dose: Float[Array, ""]
    """The dose given: the action, clipped to the box."""
    cumulative_dose: Float[Array, ""]
    """Σ|dose| over the episode, including this step."""
    dose_limit_exceeded: Bool[Array, ""]
    """Whether |dose| exceeds `Treatment.dose_limit`."""
    cumulative_limit_exceeded: Bool[Array, ""]
    """Whether the cumulative dose exceeds `Treatment.cumulative_dose_limit`."""


def _noise_factor(key: PRNGKeyArray, task: Treatment) -> Float[Array, "8 8"]:
    if task.covariance == "fixed":
        # A fixed generator, so that the task depends only on the seed, not on JAX's settings.
        seed_key = jax.random.key(task.covariance_seed, impl="threefry2x32")
        factor = uniform_correlation_factor(seed_key)
    else:
        factor = sample_correlation_factor(key)
    return factor / math.sqrt(2)


def _observe(key: PRNGKeyArray, state: Patient) -> Float[Array, "8"]:
    white = jax.random.normal(key, (OBSERVATION_SIZE,))
    # By default a GPU would round the noise to about three digits.
    return state.latent + jnp.matmul(state.noise_factor, white, precision="highest")


def next_latent(latent: Float[Array, "8"], dose: Float[Array, ""]) -> Float[Array, "8"]:
    """Return the latent mean after a dose: tanh(μ_j ± x), with + for j = 1..4, − for j = 5..8."""
    return jnp.tanh(latent + dose * jnp.asarray(_DIRECTION, latent.dtype))


def reset(key: PRNGKeyArray, task: Treatment) -> tuple[Patient, Float[Array, "8"]]:
    """Return a new patient and the first observation s ~ N(μ, Σ), of shape (8,).

    Examples:
        >>> patient, observation = reset(jax.random.key(0), by_name("treatment/cubic"))
        >>> observation.shape, int(patient.time)
        ((8,), 0)
    """
    latent_key, covariance_key, noise_key = jax.random.split(key, 3)
    latent = _INITIAL_STATES[task.initial_state](latent_key)
    state = Patient(
        latent=latent,
        noise_factor=_noise_factor(covariance_key, task),
        cumulative_dose=jnp.zeros((), latent.dtype),
        time=jnp.zeros((), jnp.int32),
        last_dose=jnp.full((), jnp.nan, latent.dtype),
    )
    return state, _observe(noise_key, state)


def step(
    key: PRNGKeyArray, state: Patient, action: Float[Array, "1"], task: Treatment
) -> tuple[Patient, Float[Array, "8"], Float[Array, ""], Info]:
    """Give one dose; return the next state, observation (8,), the reward and an `Info`.

    The action, of shape (1,) in the task's units, is clipped to the box. NaN counts as exceeding
    both limits.

    Examples:
        >>> task = by_name("treatment/cubic")
        >>> patient, _ = reset(jax.random.key(0), task)
        >>> patient, observation, reward, info = step(jax.random.key(1), patient, jnp.ones(1), task)
        >>> float(info.dose), bool(info.dose_limit_exceeded), int(patient.time)
        (1.0, True, 1)
    """
    if jnp.shape(action) != (ACTION_SIZE,):
        raise ValueError(f"an action must have shape (1,), got {jnp.shape(action)}")
    dose = jnp.clip(action[0].astype(state.latent.dtype), task.dose_low, task.dose_high)
    state = state._replace(
        latent=next_latent(state.latent, dose),
        cumulative_dose=state.cumulative_dose + jnp.abs(dose),
        time=state.time + 1,
        last_dose=dose,
    )
    observation = _observe(key, state)
    info = Info(
        dose=dose,
        cumulative_dose=state.cumulative_dose,
        dose_limit_exceeded=~(jnp.abs(dose) <= task.dose_limit),
        cumulative_limit_exceeded=~(state.cumulative_dose <= task.cumulative_dose_limit),
    )
    return state, observation, _REWARDS[task.reward](observation, dose), info


class Trajectory(NamedTuple):
    """An episode, with steps along the first axis (`time`)."""

    observation: Float[Array, "time 8"]
    reward: Float[Array, " time"]
    next_observation: Float[Array, "time 8"]
    info: Info


Act = Callable[[PRNGKeyArray, Float[Array, "8"], Patient], Float[Array, "1"]]
Policy = Callable[[PRNGKeyArray, Float[Array, "8"]], Float[Array, "1"]]


def trajectories(
    key: PRNGKeyArray, begin: Callable[[Patient], Act], task: Treatment, episodes: int
) -> Trajectory:
    """Simulate `episodes` patients; all arrays get a first axis of that size.

    `begin` maps the initial state of a patient to a dosing rule that sees the state at every step;
    use `rollout` for policies that see only observations. Apart from the doses, the randomness of
    patient i depends only on (key, i).
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")

    def one_patient(index):
        reset_key, noise_key, act_key = jax.random.split(jax.random.fold_in(key, index), 3)
        first = reset(reset_key, task)
        act = begin(first[0])

        def one_step(carry, time):
            state, observation = carry
            action = act(jax.random.fold_in(act_key, time), observation, state)
            state, next_observation, reward, info = step(
                jax.random.fold_in(noise_key, time), state, action, task
            )
            row = Trajectory(observation, reward, next_observation, info)
            return (state, next_observation), row

        return jax.lax.scan(one_step, first, jnp.arange(task.horizon))[1]

    return jax.vmap(one_patient)(jnp.arange(episodes))


class Rollout(NamedTuple):
    """Results of an evaluation, one entry per episode, with any leading axes."""

    returns: Float[Array, "*batch episodes"]
    """Undiscounted sums of rewards."""
    doses: Float[Array, "*batch episodes time"]
    """The doses given, after clipping to the box."""
    dose_limit_exceeded: Bool[Array, "*batch episodes time"]
    """Whether |dose| exceeded its limit, per step."""
    cumulative_limit_exceeded: Bool[Array, "*batch episodes"]
    """Whether Σ|dose| exceeded its limit by the end of the episode."""

    @property
    def measures(self) -> dict[str, Float[Array, "*batch"]]:
        """Mean and variance of the doses, and shares of steps and episodes above the limits."""
        return {
            "dose_mean": jnp.mean(self.doses, axis=(-2, -1)),
            "dose_variance": jnp.var(self.doses, axis=(-2, -1)),
            "dose_limit_rate": jnp.mean(self.dose_limit_exceeded, axis=(-2, -1)),
            "cumulative_limit_rate": jnp.mean(self.cumulative_limit_exceeded, axis=-1),
        }


def summarise(trajectory: Trajectory) -> Rollout:
    """Return the evaluation results of trajectories with axes (episodes, time, …)."""
    info = trajectory.info
    return Rollout(
        returns=jnp.sum(trajectory.reward, axis=-1),
        doses=info.dose,
        dose_limit_exceeded=info.dose_limit_exceeded,
        cumulative_limit_exceeded=info.cumulative_limit_exceeded[..., -1],
    )


def from_observations(policy: Policy) -> Callable[[Patient], Act]:
    """Return the `begin` argument of `trajectories` for a policy that sees only observations.

    One with a true `needs_last_action` gets the last dose too, of shape (1,).
    """
    if getattr(policy, "needs_last_action", False):
        limited: Any = policy
        return lambda start: lambda key, seen, state: limited(key, seen, state.last_dose[None])
    return lambda start: lambda key, observation, state: policy(key, observation)


@equinox.filter_jit
def rollout(key: PRNGKeyArray, policy: Policy, task: Treatment, episodes: int) -> Rollout:
    """Evaluate `policy(key, observation) → action` of shape (1,), with one patient per episode.

    The patients depend only on the key, so all policies are evaluated on the same ones. A policy
    that is a pytree (an Equinox module, a `jax.tree_util.Partial`) is compiled once, even if its
    arrays change; each new plain function is compiled again. It can be called under jit and vmap.

    Examples:
        >>> task = by_name("treatment/cubic")
        >>> result = rollout(jax.random.key(0), uniform_behaviour(task), task, episodes=4)
        >>> result.returns.shape, result.doses.shape
        ((4,), (4, 24))
    """
    return summarise(trajectories(key, from_observations(policy), task, episodes))


# Cached: one function per task, so that `rollout` does not compile again.
@functools.cache
def uniform_behaviour(task: Treatment) -> Policy:
    """Return the behaviour policy of the log: doses drawn uniformly from the box."""

    def policy(key: PRNGKeyArray, observation: Float[Array, "8"]) -> Float[Array, "1"]:
        del observation
        return jax.random.uniform(key, (ACTION_SIZE,), minval=task.dose_low, maxval=task.dose_high)

    return policy


@functools.partial(jax.jit, static_argnames=("task", "episodes"))
def log(key: PRNGKeyArray, task: Treatment, episodes: int = TRAJECTORIES) -> dict[str, Array]:
    """Return the arrays of a log: `episodes` patients under uniform doses, grouped by patient.

    They depend only on the key. `continuation` is always 1: a time limit is not a true end.
    """
    episode = trajectories(key, from_observations(uniform_behaviour(task)), task, episodes)
    rows = episodes * task.horizon
    return {
        "observation": episode.observation.reshape(rows, OBSERVATION_SIZE),
        "action": episode.info.dose.reshape(rows, ACTION_SIZE),
        "reward": episode.reward.reshape(rows),
        "next_observation": episode.next_observation.reshape(rows, OBSERVATION_SIZE),
        "continuation": jnp.ones(rows, episode.reward.dtype),
        "episode_start": task.horizon * jnp.arange(episodes),
    }


@functools.partial(QuicklyCompiled, static_argnames=("task", "episodes"))
def _log_of_seed(seed: Int[Array, ""], task: Treatment, episodes: int) -> dict[str, Array]:
    return log(stream_key(seed, Stream.LOG), task, episodes)


def read_log(name: str, seed: int) -> Dataset:
    """Return the log of this name and seed."""
    task = by_name(name)
    return Dataset(
        name=name,
        **_log_of_seed(np.int32(seed), task, trajectories_of(name)),
        action_low=(task.dose_low,),
        action_high=(task.dose_high,),
        discount=task.discount,
    )


register_reader(Reader("treatment/", read_log, lambda: tuple(VARIANTS), one_a_seed=True))
