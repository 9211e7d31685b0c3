"""Convert a log and a policy to the padded arrays of `evaluation.estimators`."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy import ndarray

from fat2thin.columns import transform
from fat2thin.data.dataset import Dataset, transformed
from fat2thin.data.operations import episode_lengths
from fat2thin.data.row_arrays import blocks
from fat2thin.evaluation.estimators.episodes import FOLDS, Actions, Episodes
from fat2thin.evaluation.limited import states_of
from fat2thin.policies.policy import Policy

DRAWS = 4  # actions of a policy that stand for its expectation in a state
SMOOTHED = 0.5
"""Half-width of the band around a single action, in standard deviations of the logged actions."""
_LEAST = 1e-6  # standard deviation below which a column is constant


class Padded(NamedTuple):
    """One log as padded arrays, and how to bring actions to its scale."""

    dataset: Dataset
    episodes: Episodes
    place: ndarray
    """Shape (rows, 2), int: the episode and the step of each row of the log."""
    action_mean: ndarray
    action_scale: ndarray

    def pad(self, rows: Any, filling: float = 0.0) -> ndarray:
        """Return an array of rows, in float32, as an array of episodes and steps."""
        shape = self.episodes.here.shape
        padded = np.full((*shape, *np.shape(rows)[1:]), filling, np.float32)
        padded[self.place[:, 0], self.place[:, 1]] = rows
        return padded

    def log_jacobian(self) -> ndarray:
        """Return the log of how many padded units one raw unit of each logged action is."""
        dataset = self.dataset
        action = np.asarray(dataset.action, np.float64)
        slope = np.ones_like(action)
        for place, one in enumerate(dataset.action_transforms):
            if one is not None:
                slope[:, place] = one.slope(action[:, place])
        return self.pad(np.sum(np.log(slope / self.action_scale), axis=1))

    def standardise(self, action: Any) -> ndarray:
        """Return raw actions, of any leading shape, on the scale of the padded ones."""
        transforms = self.dataset.action_transforms
        on_scale = transform(np.asarray(action, np.float64), transforms)
        return ((on_scale - self.action_mean) / self.action_scale).astype(np.float32)


def pad(dataset: Dataset, seed: int = 0) -> Padded:
    """Return a log as padded episodes, in a random order so that folds do not follow time."""
    lengths = episode_lengths(dataset)
    count = lengths.size
    order = np.random.default_rng(seed).permutation(count)
    position = np.empty(count, int)
    position[order] = _spread_over_folds(count)
    episode = np.repeat(position, lengths)
    step = np.arange(dataset.rows) - np.repeat(dataset.episode_start, lengths)
    shape = (-(-count // FOLDS) * FOLDS, int(lengths.max()))
    scaled = transformed(dataset)
    (seen, mean, scale), (done, *action_scale) = (
        _standardised(array) for array in (scaled.observation, scaled.action)
    )
    following = (np.asarray(scaled.next_observation, np.float64) - mean) / scale

    empty = Padded(dataset, _nothing(shape), np.stack([episode, step], 1), *action_scale)
    fields = {
        "observation": seen, "action": done, "following": following,
        "reward": dataset.reward, "continuation": dataset.continuation,
        "here": np.ones(dataset.rows),
    }  # fmt: skip
    arrays: dict[str, Any] = {name: empty.pad(np.asarray(rows)) for name, rows in fields.items()}
    return empty._replace(episodes=Episodes(**arrays))


def _spread_over_folds(count: int) -> ndarray:
    """Return places for episodes, so that folds have equal sizes to within one."""
    part = -(-count // FOLDS)
    sizes = [count // FOLDS + (fold < count % FOLDS) for fold in range(FOLDS)]
    return np.concatenate([fold * part + np.arange(size) for fold, size in enumerate(sizes)])


def _nothing(shape: tuple[int, int]) -> Episodes:
    nothing: Any = np.zeros(shape, np.float32)
    return Episodes(*(nothing for _ in Episodes._fields))


def _standardised(array: Any) -> tuple[ndarray, ndarray, ndarray]:
    values = np.asarray(array, np.float64)
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    scale = np.where(deviation > _LEAST * np.maximum(np.abs(mean), 1.0), deviation, 1.0)
    return (values - mean) / scale, mean, scale


def needs_smoothing(policy: Policy) -> bool:
    """Return whether a policy has one action per state, so that no log has exactly its actions."""
    return policy.family.reach == "point"


def clips_actions(policy: Policy) -> bool:
    """Return whether a policy clips actions to the box, which puts mass on its edges.

    Families on the real line do, and bands that may leave the box.
    """
    family = getattr(policy.family, "family", policy.family)
    return family.reach == "line" or getattr(family, "box", None) == "clip"


def actions_of(policy: Policy, padded: Padded, seed: int = 0) -> Actions:
    """Return what a policy does in the states of a log, and its density of logged actions.

    A policy with one action per state gets a band around it (`band_around`). One that clips its
    actions has no density.
    """
    dataset, key = padded.dataset, jax.random.key(seed)
    asked = dataclasses.replace(policy, referral=None)
    programs = _programs(asked, None if needs_smoothing(policy) else DRAWS)
    starts = np.asarray(dataset.observation[dataset.episode_start], np.float32)
    nothing = np.full((len(starts), dataset.action_size), np.nan, np.float32)
    start = np.asarray(programs.draws(starts, nothing, jax.random.fold_in(key, 0)))
    following, here = [], []
    for number, rows in enumerate(blocks(dataset.observation)):
        seen = states_of(dataset, rows)
        after = np.asarray(dataset.next_observation[rows], np.float32)
        of_block = jax.random.fold_in(key, number + 1)
        following.append(np.asarray(programs.draws(after, seen.action, of_block)))
        here.append(np.asarray(programs.here(seen.observation, seen.last, seen.action)))
    found = [padded.standardise(array) for array in (start, np.concatenate(following))]
    first, then = _by_episode(padded, found[0]), padded.pad(found[1])
    if needs_smoothing(policy):
        centre = padded.pad(padded.standardise(np.concatenate(here)))
        return band_around(first[:, 0], then[:, :, 0], centre, padded)
    density: Any = None if clips_actions(policy) else padded.pad(np.concatenate(here))
    arrays: tuple[Any, ...] = first, then, density
    return Actions(*arrays)


class _Programs(NamedTuple):
    """Compiled calls of raw rows with their last actions, nan where there is none."""

    draws: Callable[..., Any]
    """Actions of shape (rows, draws, action)."""
    here: Callable[..., Any]
    """The log density of logged actions, or the centre of a policy with one action per state."""


def _programs(policy: Policy, draws: int | None) -> _Programs:
    def given(last: Any) -> dict[str, Any]:
        return {"last": last} if policy.needs_last_action else {}

    @jax.jit
    def drawn(observation: Any, last: Any, key: Any) -> Any:
        if draws is None:
            return policy.act(observation, **given(last))[:, None]
        keys = jax.random.split(key, draws)
        found = jax.vmap(lambda one: policy.act(observation, one, **given(last)))(keys)
        return jnp.moveaxis(found, 0, 1)

    @jax.jit
    def here(observation: Any, last: Any, action: Any) -> Any:
        if draws is None:
            return policy.act(observation, **given(last))
        low, high = policy.support(observation, **given(last))
        inside = jnp.all((low <= action) & (action <= high), axis=-1)
        law = policy(observation, **given(last))
        return jnp.where(inside, law.log_prob(action), -jnp.inf)

    return _Programs(drawn, here)


def constant_in_padding(action: ndarray, padded: Padded) -> Actions:
    """Return what a constant does, given on the scale of the padded actions: a band around it."""
    episodes, steps = padded.episodes.here.shape
    everywhere = np.broadcast_to(action, (episodes, steps, action.size))
    return band_around(everywhere[:, 0], everywhere, everywhere, padded)


def band_around(start: ndarray, following: ndarray, here: ndarray, padded: Padded) -> Actions:
    """Return the actions of a narrow band around one action per state.

    It is an Epanechnikov law with the half-width `SMOOTHED` in each dimension. The arrays are the
    middle of the band in the first, the next and the logged states.
    """
    levels = (np.arange(DRAWS) + 0.5) / DRAWS
    quantiles = SMOOTHED * 2.0 * np.sin(np.arcsin(2.0 * levels - 1.0) / 3.0)
    size = start.shape[-1]
    # In several dimensions the quantiles are paired in another order in each.
    offsets = np.stack([np.roll(quantiles, place) for place in range(size)], axis=1)
    apart = (np.asarray(padded.episodes.action) - here) / SMOOTHED
    inside = (np.abs(apart) <= 1.0).all(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(0.75 / SMOOTHED * (1.0 - apart**2)).sum(axis=-1)
    density = np.where(inside, logs, -np.inf) + padded.log_jacobian()
    arrays: tuple[Any, ...] = (start[:, None] + offsets, following[:, :, None] + offsets, density)
    return Actions(*arrays)


def _by_episode(padded: Padded, values: ndarray) -> ndarray:
    """Return one value per episode of the log in the order of the padded episodes."""
    found = np.zeros((len(padded.episodes.here), *values.shape[1:]), np.float32)
    found[padded.place[padded.dataset.episode_start, 0]] = values
    return found
