"""Simulated wards with known truths: logs, episodes of any policy, and the density of practice.

`load("hospital/insulin@200", seed=3)` draws a log of 200 patients under practice, whose density is
known, so its propensities are exact. Patients die or are discharged (true ends), are transferred
(insulin), or are cut at the horizon. The wards are in `hospital_wards.py`; importing this module
registers their logs.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from fat2thin.data.dataset import Dataset
from fat2thin.data.readers import Reader, register_reader
from fat2thin.envs.hospital_wards import WARDS, Action, Observation, Practice, Ward
from fat2thin.random_streams import Stream, stream_key

PATIENTS = 200  # default number of patients of a log
MOST_PATIENTS = 100_000

Act = Callable[[PRNGKeyArray, Observation, Float[Array, ""], Action], Action]
"""`act(key, observation, impression, last)`; `last` is the last action, nan at the first step."""
Policy = Callable[..., Action]
"""`policy(key, observation)`, and a third argument if its `needs_last_action` is true."""


def is_name(name: str) -> bool:
    """Return whether this is the name of a ward, or of a log of one ("hospital/insulin@500")."""
    ward, _, count = name.partition("@")
    return ward in WARDS and (count == "" or count.isdecimal()) and not name.endswith("@")


def by_name(name: str) -> Ward:
    """Return the ward of a name such as "hospital/sepsis", or of a log's name."""
    if not is_name(name):
        raise ValueError(
            f"no ward is called {name!r}; there are {', '.join(WARDS)}, and a name may end in @500 "
            "for a log of 500 patients"
        )
    return WARDS[name.partition("@")[0]]


def patients_of(name: str) -> int:
    """Return the number of patients in a log's name: 500 for "hospital/sepsis@500"."""
    count = name.partition("@")[2]
    if not count:
        return PATIENTS
    if len(count) > len(str(MOST_PATIENTS)) or not 1 <= int(count) <= MOST_PATIENTS:
        raise ValueError(
            f"a log {name!r} cannot be made: it may have 1 to {MOST_PATIENTS:,} patients"
        )
    return int(count)


def sample(key: PRNGKeyArray, law: Practice, ward: Ward) -> Action:
    """Draw an action from a mixture of normals that are truncated to the action box."""
    mode_key, action_key = jax.random.split(key)
    mode = jax.random.categorical(mode_key, jnp.log(law.weight))
    centre, scale = law.centre[mode], law.scale[mode]
    low, high = jnp.array(ward.action_low), jnp.array(ward.action_high)
    ends = (low - centre) / scale, (high - centre) / scale
    # Rounding must not carry an action over an end of the box.
    return jnp.clip(centre + scale * jax.random.truncated_normal(action_key, *ends), low, high)


def log_density(action: Action, law: Practice, ward: Ward) -> Float[Array, ""]:
    """Return the log-density of `sample` at an action of the box, in raw units.

    Examples:
        >>> ward = by_name("hospital/insulin")
        >>> law = Practice(jnp.ones(1), jnp.array([[4.0]]), jnp.array([[2.0]]))
        >>> print(f"{float(jnp.exp(log_density(jnp.array([4.0]), law, ward))):.3f}")
        0.204
    """
    low, high = jnp.array(ward.action_low)[None], jnp.array(ward.action_high)[None]

    def place(values: Array) -> Array:
        return (values - law.centre) / law.scale

    inside = _log_mass(place(low), place(high))
    of_modes = -0.5 * place(action[None]) ** 2 - jnp.log(law.scale * np.sqrt(2 * np.pi)) - inside
    return jax.nn.logsumexp(jnp.log(law.weight) + jnp.sum(of_modes, axis=-1))


def _log_mass(low: Array, high: Array) -> Array:
    """Return the logarithm of the standard normal mass of an interval, exact in both tails."""
    flip = low > 0  # there, the complementary interval below 0 has the same mass
    low, high = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    upper, lower = log_ndtr(high), log_ndtr(low)
    return upper + jnp.log1p(-jnp.exp(lower - upper))


def practice(ward: Ward) -> Act:
    """Return what the clinicians do."""

    def act(key: PRNGKeyArray, observation: Array, impression: Array, last: Array) -> Array:
        del last
        return sample(key, ward.practice(observation, impression), ward)

    return act


# Cached: one function per ward, so that `rollout` does not compile again.
@functools.cache
def guideline(ward: Ward) -> Policy:
    """Return a policy that is better than practice, for comparison."""

    def policy(key: PRNGKeyArray, observation: Array) -> Array:
        return sample(key, ward.guideline(observation), ward)

    return policy


def from_observations(policy: Policy) -> Act:
    """Return the `act` of a policy that sees only observations and, if it asks, its last action."""
    if getattr(policy, "needs_last_action", False):
        return lambda key, observation, impression, last: policy(key, observation, last)
    return lambda key, observation, impression, last: policy(key, observation)


class Episodes(NamedTuple):
    """Episodes of one length, the horizon; `present` marks the steps that took place."""

    observation: Float[Array, "episodes time observation"]
    action: Float[Array, "episodes time action"]
    reward: Float[Array, "episodes time"]
    """0 after the end."""
    next_observation: Float[Array, "episodes time observation"]
    continuation: Float[Array, "episodes time"]
    """0 where the patient dies or is discharged."""
    present: Bool[Array, "episodes time"]
    log_propensity: Float[Array, "episodes time"]
    """Log-density, in raw units, that a clinician gives the action in this step."""
    died: Float[Array, " episodes"]
    impression: Float[Array, "episodes time"]
    """What is not logged; 0 in a ward without it."""


def episodes(
    key: PRNGKeyArray, act: Act, ward: Ward, number: int, transfers: bool = False
) -> Episodes:
    """Simulate patients. Apart from actions, patient i depends only on (key, i).

    With `transfers`, patients may be transferred, and their episodes cut, as in the log. Without
    them, every patient stays until a true end or the horizon: returns are then those of the policy.
    """
    if number < 1:
        raise ValueError(f"the number of episodes must be at least 1, got {number}")
    rate = ward.transfer_rate if transfers else 0.0

    def one_patient(index: Array) -> Episodes:
        admit_key, step_key, act_key = jax.random.split(jax.random.fold_in(key, index), 3)

        def one_step(carry: tuple, time: Array) -> tuple:
            observation, present, last = carry
            mood, respond, leave = jax.random.split(jax.random.fold_in(step_key, time), 3)
            impression = jnp.where(jax.random.bernoulli(mood), 1.0, -1.0) * ward.hidden
            action = act(jax.random.fold_in(act_key, time), observation, impression, last)
            action = jnp.clip(action, jnp.array(ward.action_low), jnp.array(ward.action_high))
            found = ward.respond(respond, observation, action, impression)
            law = ward.practice(observation, impression)
            ended = found.died + found.discharged
            row = Episodes(
                observation, action, jnp.where(present, found.reward, 0.0), found.observation,
                1.0 - ended, present, log_density(action, law, ward),
                jnp.where(present, found.died, 0.0), impression,
            )  # fmt: skip
            stays = present & (ended == 0) & ~jax.random.bernoulli(leave, rate)
            return (found.observation, stays, action), row

        first = ward.admit(admit_key), jnp.array(True), jnp.full(len(ward.action_low), jnp.nan)
        rows: Episodes = jax.lax.scan(one_step, first, jnp.arange(ward.horizon))[1]
        return rows._replace(died=jnp.max(rows.died))

    return jax.vmap(one_patient)(jnp.arange(number))


class Rollout(NamedTuple):
    """Results of an evaluation, one entry per episode."""

    returns: Float[Array, "*batch episodes"]
    """Undiscounted sums of rewards, up to the horizon."""
    discounted: Float[Array, "*batch episodes"]
    """Discounted sums, with the ward's discount."""
    measures: dict[str, Float[Array, "*batch"]]
    """Share of patients who die, mean length of an episode, and mean actions."""


def summarise(found: Episodes, ward: Ward) -> Rollout:
    """Return the evaluation results of episodes without transfers."""
    present = found.present.astype(found.reward.dtype)
    steps = jnp.sum(present)
    means = jnp.sum(found.action * present[..., None], axis=(0, 1)) / steps
    factors = ward.discount ** jnp.arange(ward.horizon)
    names = (f"{column.name}_mean" for column in ward.action_columns)
    measures = {"death_rate": jnp.mean(found.died), "length_mean": steps / len(present)}
    return Rollout(
        jnp.sum(found.reward, axis=-1),
        jnp.sum(found.reward * factors[None], axis=-1),
        measures | dict(zip(names, means, strict=True)),
    )


@equinox.filter_jit
def rollout(key: PRNGKeyArray, policy: Policy, ward: Ward, number: int) -> Rollout:
    """Evaluate `policy(key, observation) → action`; patients depend only on the key.

    Examples:
        >>> ward = by_name("hospital/insulin")
        >>> rollout(jax.random.key(0), guideline(ward), ward, 4).returns.shape
        (4,)
    """
    return summarise(episodes(key, from_observations(policy), ward, number), ward)


@functools.partial(jax.jit, static_argnames=("ward", "number"))
def practice_rollout(key: PRNGKeyArray, ward: Ward, number: int) -> Rollout:
    """Evaluate the clinicians, on the patients of `rollout`."""
    return summarise(episodes(key, practice(ward), ward, number), ward)


@functools.partial(jax.jit, static_argnames=("ward", "number"))
def log(key: PRNGKeyArray, ward: Ward, number: int = PATIENTS) -> Episodes:
    """Return the episodes of a log: patients under practice, with transfers."""
    return episodes(key, practice(ward), ward, number, transfers=True)


def read_log(name: str, seed: int) -> Dataset:
    """Return the log of this name and seed.

    Propensities are densities in raw units, and left out where the ward has a hidden confounder: a
    clinician's own density is not known from what is logged.
    """
    ward = by_name(name)
    found = jax.tree.map(np.asarray, log(stream_key(seed, Stream.LOG), ward, patients_of(name)))
    kept = found.present
    lengths = kept.sum(axis=1)
    arrays = ("observation", "action", "reward", "next_observation", "continuation")
    return Dataset(
        name=name,
        **{field: getattr(found, field)[kept] for field in arrays},
        episode_start=np.cumsum(lengths) - lengths,
        propensity=None if ward.hidden else np.exp(found.log_propensity[kept]),
        propensity_is_density=not ward.hidden,
        action_low=ward.action_low,
        action_high=ward.action_high,
        discount=ward.discount,
        observation_columns=ward.observation_columns,
        action_columns=ward.action_columns,
    )


register_reader(Reader("hospital/", read_log, lambda: tuple(WARDS), one_a_seed=True))
