"""Convert a log and a policy to the padded arrays of `evaluation.estimators`."""

import dataclasses
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


def actions_of(policy: Policy, padded: Padded, seed: int = 0) -> Actions:
    """Return what a policy does in the states of a log, and its density of logged actions."""
    dataset, key = padded.dataset, jax.random.key(seed)
    asked = dataclasses.replace(policy, referral=None)
    first = dataset.episode_start
    following, density = [], []
    for number, rows in enumerate(blocks(dataset.observation)):
        seen = states_of(dataset, rows)
        after = np.asarray(dataset.next_observation[rows], np.float32)
        keys = jax.random.split(jax.random.fold_in(key, number), DRAWS)
        following.append(_draws(asked, after, keys, seen.action))
        if policy.family.reach in ("band", "box"):
            density.append(_log_density(asked, seen))
    starts = np.asarray(dataset.observation[first], np.float32)
    start = _draws(asked, starts, jax.random.split(jax.random.fold_in(key, 2**31), DRAWS), None)
    arrays: tuple[Any, ...] = (
        _by_episode(padded, padded.standardise(start)),
        padded.pad(padded.standardise(np.concatenate(following))),
        padded.pad(np.concatenate(density)) if density else None,
    )
    return Actions(*arrays)


def _by_episode(padded: Padded, values: ndarray) -> ndarray:
    """Return one value per episode of the log in the order of the padded episodes."""
    found = np.zeros((len(padded.episodes.here), *values.shape[1:]), np.float32)
    found[padded.place[padded.dataset.episode_start, 0]] = values
    return found


def _draws(policy: Policy, observation: ndarray, keys: Any, last: Any) -> ndarray:
    """Return actions of shape (rows, draws, action)."""
    given = {"last": last} if policy.needs_last_action else {}
    draws = [np.asarray(policy.act(observation, key, **given)) for key in keys]
    return np.stack(draws, axis=1)


def _log_density(policy: Policy, seen: Any) -> ndarray:
    given = {"last": seen.last} if policy.needs_last_action else {}
    law = policy(seen.observation, **given)
    low, high = policy.support(seen.observation, **given)
    inside = jnp.all((low <= seen.action) & (seen.action <= high), axis=-1)
    return np.asarray(jnp.where(inside, law.log_prob(seen.action), -jnp.inf))
