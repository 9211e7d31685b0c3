"""The treatment simulation: pure functions for one patient, to be vmapped over any number.

A patient has a latent mean μ ∈ R⁸ that a dose x pushes up (components 1 to 4) and down (5 to 8),

    μ'_j = tanh(μ_j + x)  for j = 1..4,      μ'_j = tanh(μ_j − x)  for j = 5..8,

and only a noisy observation s' ~ N(μ', Σ) of it is seen, so the task is partially observed. The
reward of a step is a function of s' and x. One unit of dose is 100 of the paper's raw doses.
Dynamics: the FtTPO paper, appendix on the treatment simulation, after Li et al. (2023). Nobody ever
leaves: an episode is cut at the horizon and does not end there.
"""

import dataclasses
import functools
import itertools
import math
import numbers
from collections.abc import Callable, Collection
from typing import NamedTuple

import equinox
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

OBSERVATION_SIZE = 8
ACTION_SIZE = 1
_DIRECTION = (1.0,) * 4 + (-1.0,) * 4


def cubic_reward(observation: Float[Array, "8"], dose: Float[Array, ""]) -> Float[Array, ""]:
    """(s₁/2)³ + (s₂/2)³ + s₃ + s₄ + 2[(s₅/2)³ + (s₆/2)³] + ½(s₇ + s₈), as the paper prints it.

    The dose counts only through the observation it leads to: more is better, and saturates.
    """
    del dose
    cubes = (observation / 2) ** 3
    return (
        cubes[0] + cubes[1] + observation[2] + observation[3]
        + 2 * (cubes[4] + cubes[5]) + (observation[6] + observation[7]) / 2
    )  # fmt: skip


def quadratic_reward(observation: Float[Array, "8"], dose: Float[Array, ""]) -> Float[Array, ""]:
    """−exp((s₁ + s₅)/2) x² + 2(s₂ + s₃ + s₆ + s₇ + ½) x + s₄ + s₈, as the authors' code has it.

    It has its best dose inside the box: for a patient at rest, e^(−1/8)/2 = .441 of it.
    """
    toxicity = jnp.exp((observation[0] + observation[4]) / 2)
    benefit = observation[1] + observation[2] + observation[5] + observation[6] + 0.5
    return -toxicity * dose**2 + 2 * benefit * dose + observation[3] + observation[7]


_REWARDS = {"cubic": cubic_reward, "quadratic": quadratic_reward}


def _initial_uniform(key: PRNGKeyArray) -> Float[Array, "8"]:
    return jax.random.uniform(key, (OBSERVATION_SIZE,), minval=-1.0, maxval=1.0)


def _initial_normal(key: PRNGKeyArray) -> Float[Array, "8"]:
    return 0.5 * jax.random.normal(key, (OBSERVATION_SIZE,))


def _initial_zero(key: PRNGKeyArray) -> Float[Array, "8"]:
    del key
    return jnp.zeros(OBSERVATION_SIZE)


_INITIAL_STATES = {"uniform": _initial_uniform, "normal": _initial_normal, "zero": _initial_zero}


def sample_correlation_factor(key: PRNGKeyArray) -> Float[Array, "8 8"]:
    """A factor F for which F Fᵀ is the column correlation matrix of an 8×8 matrix from U(0, 1).

    Centring takes one rank, so the matrix is singular and has no Cholesky factor to rely on. The
    standardised columns themselves are a factor.
    """
    columns = jax.random.uniform(key, (OBSERVATION_SIZE, OBSERVATION_SIZE))
    centred = columns - jnp.mean(columns, axis=0, keepdims=True)
    return (centred / jnp.linalg.norm(centred, axis=0, keepdims=True)).T


def uniform_correlation_factor(key: PRNGKeyArray) -> Float[Array, "8 8"]:
    """The Cholesky factor L of a full-rank L Lᵀ, uniform over the 8×8 correlation matrices.

    Row k holds k components of a Gaussian vector g ∈ R⁹, then the length of the others, divided
    by ‖g‖: their squared share is Beta(k/2, (9 − k)/2), which is what the onion method asks for
    (Lewandowski, Kurowicka and Joe 2009, with η = 1).
    """
    gaussian = jax.random.normal(key, (OBSERVATION_SIZE, OBSERVATION_SIZE + 1), jnp.float32)
    below = jnp.tril(gaussian[:, :OBSERVATION_SIZE], k=-1)
    rest = jnp.linalg.norm(jnp.triu(gaussian), axis=1)
    return (below + jnp.diag(rest)) / jnp.linalg.norm(gaussian, axis=1, keepdims=True)


_COVARIANCES = ("episode", "fixed")


@dataclasses.dataclass(frozen=True)
class Treatment:
    """One variant of the task: plain values, hashable, so that it can be static under `jax.jit`.

    Neither the paper nor its code gives a danger threshold, though the paper speaks of one on the
    cumulative dose. The defaults here are ours, derived from the quadratic reward and stated in
    doses, not in shares of the box: what harms a patient does not depend on what is allowed.
    """

    reward: str = "cubic"
    """Either "cubic" (printed in the paper) or "quadratic" (in the authors' code)."""

    covariance: str = "episode"
    """Of the observation noise, always a correlation matrix over 2. "episode": drawn anew for each
    episode, of rank 7 (the authors' code); "fixed": one for the task, full rank (Li et al.)."""

    covariance_seed: int = 0
    """Which "fixed" covariance; refused with any other covariance unless it is 0."""

    initial_state: str = "uniform"
    """Of the latent mean: "uniform" U(−1, 1)⁸ (the authors' code), "normal" N(0, ½²)⁸ (Li et al.,
    their training) or "zero" (Li et al., their testing)."""

    dose_low: float = -1.0
    """Lower end of the dose box; a dose below it is clipped to it by the environment."""

    dose_high: float = 1.0
    """Upper end of the dose box; a dose above it is clipped to it by the environment."""

    horizon: int = 24
    """Steps after which an episode is cut (a time limit, not an end)."""

    discount: float = 0.9
    """The factor that training uses by default; returns are reported undiscounted."""

    dose_limit: float = 0.88
    """On |dose| in a step: from about e^(−1/8) = .88 on, a constant dose under the quadratic reward
    earns a patient at rest less than no treatment would. `math.inf` for none."""

    cumulative_dose_limit: float = 12.0
    """On Σ|dose| over an episode: half of what full doses would come to in 24 steps. The best
    constant dose for the quadratic reward stays below (24 · .44 = 10.6), the uniform behaviour of
    the log exceeds it in about every other episode. `math.inf` for none."""

    def __post_init__(self) -> None:
        """Refuse a value out of range, naming the field."""
        _require_choice("reward", self.reward, _REWARDS)
        _require_choice("covariance", self.covariance, _COVARIANCES)
        _require_choice("initial_state", self.initial_state, _INITIAL_STATES)
        _require_integer("covariance_seed", self.covariance_seed, least=0)
        _require_integer("horizon", self.horizon, least=1)
        for field in ("dose_low", "dose_high", "discount", "dose_limit", "cumulative_dose_limit"):
            _require_number(field, getattr(self, field))
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


def _require_choice(field: str, value: object, choices: Collection[str]) -> None:
    if value not in choices:
        names = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{field} must be one of {names}, got {value!r}")


def _require_integer(field: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{field} must be an integer of at least {least}, got {value!r}")


def _require_number(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value):
        raise ValueError(f"{field} must be a number, got {value!r}")


def _named_variants() -> dict[str, Treatment]:
    covariances = {"": "episode", "-fixed": "fixed"}
    initial_states = {"": "uniform", "-normal": "normal", "-zero": "zero"}
    return {
        f"treatment/{reward}{covariance}{initial_state}": Treatment(
            reward=reward,
            covariance=covariances[covariance],
            initial_state=initial_states[initial_state],
        )
        for reward, covariance, initial_state in itertools.product(
            _REWARDS, covariances, initial_states
        )
    }


VARIANTS: dict[str, Treatment] = _named_variants()
"""Every named variant: `treatment/<reward>[-fixed][-normal|-zero]`."""


TRAJECTORIES = 50
"""Of a log whose name does not say how many: 1,200 steps, as in the paper."""
MOST_TRAJECTORIES = 100_000


def is_name(name: str) -> bool:
    """Whether this names a task, or a log of one."""
    variant, _, count = name.partition("@")
    return variant in VARIANTS and (count == "" or count.isdecimal()) and not name.endswith("@")


def by_name(name: str) -> Treatment:
    """The variant of this name, for example "treatment/quadratic-fixed", or of a log of it."""
    if not is_name(name):
        raise ValueError(
            f"no treatment task is called {name!r}; there are {', '.join(VARIANTS)}, and a name "
            "may end in @200 for a log of 200 trajectories"
        )
    return VARIANTS[name.partition("@")[0]]


def trajectories_of(name: str) -> int:
    """How many trajectories the log of this name has: 200 of "treatment/cubic@200"."""
    count = name.partition("@")[2]
    if not count:
        return TRAJECTORIES
    if len(count) > len(str(MOST_TRAJECTORIES)) or not 1 <= int(count) <= MOST_TRAJECTORIES:
        raise ValueError(
            f"a log {name!r} cannot be made: it may have 1 to {MOST_TRAJECTORIES:,} trajectories"
        )
    return int(count)


class State(NamedTuple):
    """What the simulation knows of one patient and an observer does not."""

    latent: Float[Array, "8"]
    """μ, the mean of the observation."""
    noise_factor: Float[Array, "8 8"]
    """F with Σ = F Fᵀ."""
    cumulative_dose: Float[Array, ""]
    """Σ|dose| since the start of the episode."""
    time: Int[Array, ""]
    """Steps since the start of the episode."""


class Info(NamedTuple):
    """What a step reports for safety's sake."""

    dose: Float[Array, ""]
    """The dose given: the action, clipped to the box."""
    cumulative_dose: Float[Array, ""]
    """Σ|dose| over the episode, this step included."""
    dose_limit_exceeded: Bool[Array, ""]
    """Whether |dose| exceeds `Treatment.dose_limit`."""
    cumulative_limit_exceeded: Bool[Array, ""]
    """Whether the cumulative dose exceeds `Treatment.cumulative_dose_limit`."""


def _noise_factor(key: PRNGKeyArray, task: Treatment) -> Float[Array, "8 8"]:
    if task.covariance == "fixed":
        # The seed alone settles the task, whatever generator or precision JAX is set to.
        seed_key = jax.random.key(task.covariance_seed, impl="threefry2x32")
        factor = uniform_correlation_factor(seed_key)
    else:
        factor = sample_correlation_factor(key)
    return factor / math.sqrt(2)


def _observe(key: PRNGKeyArray, state: State) -> Float[Array, "8"]:
    white = jax.random.normal(key, (OBSERVATION_SIZE,))
    # Without it a GPU would round the noise to about three digits.
    return state.latent + jnp.matmul(state.noise_factor, white, precision="highest")


def next_latent(latent: Float[Array, "8"], dose: Float[Array, ""]) -> Float[Array, "8"]:
    """The latent mean after a dose: tanh(μ_j + x) for j = 1..4, tanh(μ_j − x) for j = 5..8."""
    return jnp.tanh(latent + dose * jnp.asarray(_DIRECTION, latent.dtype))


def reset(key: PRNGKeyArray, task: Treatment) -> tuple[State, Float[Array, "8"]]:
    """A new patient and a first observation s ~ N(μ, Σ), of shape (8,)."""
    latent_key, covariance_key, noise_key = jax.random.split(key, 3)
    latent = _INITIAL_STATES[task.initial_state](latent_key)
    state = State(
        latent=latent,
        noise_factor=_noise_factor(covariance_key, task),
        cumulative_dose=jnp.zeros((), latent.dtype),
        time=jnp.zeros((), jnp.int32),
    )
    return state, _observe(noise_key, state)


def step(
    key: PRNGKeyArray, state: State, action: Float[Array, "1"], task: Treatment
) -> tuple[State, Float[Array, "8"], Float[Array, ""], Info]:
    """Give one dose, an action of shape (1,) in the task's units, clipped to the box.

    Returns the next state, the next observation s' of shape (8,), the reward and an `Info`. A dose
    that is not a number is no dose within the limits: it counts as exceeding both.
    """
    if jnp.shape(action) != (ACTION_SIZE,):
        raise ValueError(f"an action must have shape (1,), got {jnp.shape(action)}")
    dose = jnp.clip(action[0].astype(state.latent.dtype), task.dose_low, task.dose_high)
    state = state._replace(
        latent=next_latent(state.latent, dose),
        cumulative_dose=state.cumulative_dose + jnp.abs(dose),
        time=state.time + 1,
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
    """An episode, with the steps along the first axis (`time`)."""

    observation: Float[Array, "time 8"]
    reward: Float[Array, " time"]
    next_observation: Float[Array, "time 8"]
    info: Info


Act = Callable[[PRNGKeyArray, Float[Array, "8"], State], Float[Array, "1"]]
Policy = Callable[[PRNGKeyArray, Float[Array, "8"]], Float[Array, "1"]]


def trajectories(
    key: PRNGKeyArray, begin: Callable[[State], Act], task: Treatment, episodes: int
) -> Trajectory:
    """Simulate patients 0 to `episodes` − 1; every array gets a first axis of that size.

    `begin` sees the state a patient starts in and gives the rule to dose by, which sees the state
    at every step; `rollout` is for those that see observations only. What happens to patient i,
    but for the doses, depends on (key, i) alone.
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
    """Raw results of an evaluation, an entry an episode (any leading axes are kept apart)."""

    returns: Float[Array, "*batch episodes"]
    """Undiscounted sums of rewards."""
    doses: Float[Array, "*batch episodes time"]
    """The doses given, after clipping to the box."""
    dose_limit_exceeded: Bool[Array, "*batch episodes time"]
    """Whether |dose| exceeded its limit, a step each."""
    cumulative_limit_exceeded: Bool[Array, "*batch episodes"]
    """Whether Σ|dose| exceeded its limit by the end of the episode."""

    @property
    def dose_mean(self) -> Float[Array, "*batch"]:
        """Mean dose over all episodes and steps."""
        return jnp.mean(self.doses, axis=(-2, -1))

    @property
    def dose_variance(self) -> Float[Array, "*batch"]:
        """Variance of the dose over all episodes and steps."""
        return jnp.var(self.doses, axis=(-2, -1))

    @property
    def dose_limit_rate(self) -> Float[Array, "*batch"]:
        """Share of steps whose dose exceeded the limit."""
        return jnp.mean(self.dose_limit_exceeded, axis=(-2, -1))

    @property
    def cumulative_limit_rate(self) -> Float[Array, "*batch"]:
        """Share of episodes whose cumulative dose exceeded the limit."""
        return jnp.mean(self.cumulative_limit_exceeded, axis=-1)


def summarise(trajectory: Trajectory) -> Rollout:
    """The evaluation's view of trajectories of shape (episodes, time, ...)."""
    info = trajectory.info
    return Rollout(
        returns=jnp.sum(trajectory.reward, axis=-1),
        doses=info.dose,
        dose_limit_exceeded=info.dose_limit_exceeded,
        cumulative_limit_exceeded=info.cumulative_limit_exceeded[..., -1],
    )


def from_observations(policy: Policy) -> Callable[[State], Act]:
    """Return the policy in the form `trajectories` takes: it sees observations alone."""
    return lambda start: lambda key, observation, state: policy(key, observation)


@equinox.filter_jit
def rollout(key: PRNGKeyArray, policy: Policy, task: Treatment, episodes: int) -> Rollout:
    """Evaluate `policy(key, observation) → action` of shape (1,), one patient an episode.

    The patients depend on the key alone, so every policy meets the same ones. It compiles once for
    a policy that is a pytree (an Equinox module, a `jax.tree_util.Partial`) however often its
    arrays change, and anew for every new plain function; it may be called under jit and vmap.
    """
    return summarise(trajectories(key, from_observations(policy), task, episodes))


# One function per task, so that `rollout` recognises it and does not compile again.
@functools.cache
def uniform_behaviour(task: Treatment) -> Policy:
    """The policy that makes the log: a dose from the uniform distribution over the box."""

    def policy(key: PRNGKeyArray, observation: Float[Array, "8"]) -> Float[Array, "1"]:
        del observation
        return jax.random.uniform(key, (ACTION_SIZE,), minval=task.dose_low, maxval=task.dose_high)

    return policy
