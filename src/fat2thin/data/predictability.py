"""How well a log's observations and actions predict what comes next: is it noise, or a machine?

From a noisy log only a simple policy is learned well; a predictable one may need more.
"""

from typing import Any

import numpy as np

from fat2thin.data.dataset import Dataset
from fat2thin.data.operations import episode_lengths

NOISY = 0.5  # a log is noisy where a smaller share of the next observation is explained
MOST_ROWS = 20_000
RIDGE = 10.0


def is_noisy(dataset: Dataset) -> bool:
    """Whether most of what comes next in a log is chance, as far as a simple model can tell."""
    return predictability(dataset) < NOISY


def predictability(dataset: Dataset) -> float:
    """Share of the next observation's variance that the observation and the action explain.

    By ridge regression on `quadratic_features`, fitted on every other episode and judged on
    those between, and the other way round; the mean over columns. Columns that never change do not
    count; where none is left, nothing is explained.
    """
    episode = np.repeat(np.arange(dataset.episode_start.size), episode_lengths(dataset))
    if dataset.episode_start.size == 1:
        episode = (np.arange(dataset.rows) >= dataset.rows // 2).astype(int)
    rows = np.unique(np.linspace(0, dataset.rows - 1, MOST_ROWS).astype(int))
    # In float64: in float32 a column of equal numbers has a deviation, by rounding.
    seen = dataset.observation[rows].astype(np.float64)
    following = dataset.next_observation[rows].astype(np.float64)
    mean = seen.mean(axis=0)
    scale = np.where(np.ptp(seen, axis=0) > 0, seen.std(axis=0), 1.0)
    low, high = np.asarray(dataset.action_low), np.asarray(dataset.action_high)
    half_ranges = 2.0 * (dataset.action[rows] - low) / (high - low) - 1.0
    known = quadratic_features((seen - mean) / scale, half_ranges)
    wanted = ((following - mean) / scale)[:, np.ptp(following, axis=0) > 0]
    half = episode[rows] % 2 == 0
    if wanted.shape[1] == 0 or half.all() or not half.any():
        return 0.0
    shares = [_explained(known, wanted, fitted) for fitted in (half, ~half)]
    return float(np.mean(np.clip(shares, 0.0, 1.0)))


def quadratic_features(seen: Any, action: Any) -> Any:
    """Return (1, s, s², a, aᵢaⱼ, sᵢaⱼ) of each row, of NumPy or of JAX arrays.

    `seen` (rows, observation) is standardised, `action` (rows, action) in half-ranges of the box.
    """
    library = seen.__array_namespace__()
    pairs = library.triu_indices(action.shape[-1])
    products = (action[:, :, None] * action[:, None, :])[:, *pairs]
    crossed = (seen[:, :, None] * action[:, None, :]).reshape(len(seen), -1)
    one = library.ones((len(seen), 1), seen.dtype)
    return library.concatenate([one, seen, seen**2, action, products, crossed], axis=-1)


def _explained(known: np.ndarray, wanted: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    """Share of the variance that is explained where nothing was fitted, a column each."""
    one, target = known[fitted], wanted[fitted].astype(np.float64)
    system = one.T @ one + RIDGE * np.eye(one.shape[1])
    errors = wanted[~fitted] - known[~fitted] @ np.linalg.solve(system, one.T @ target)
    variance = np.mean((wanted[~fitted] - target.mean(axis=0)) ** 2, axis=0)
    return 1.0 - np.mean(errors**2, axis=0) / np.maximum(variance, 1e-12)
