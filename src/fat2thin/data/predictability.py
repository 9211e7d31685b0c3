"""A measure of how well observations and actions predict the next observation of a log.

A noisy log supports only a simple policy; a predictable one may need a larger network.
"""

from typing import Any

import numpy as np

from fat2thin.data.dataset import Dataset

NOISY = 0.5  # predictability below which a log counts as noisy
MOST_ROWS = 20_000
RIDGE = 10.0


def is_noisy(dataset: Dataset) -> bool:
    """Return whether a simple model explains less than half of the next observation's variance."""
    return predictability(dataset) < NOISY


def predictability(dataset: Dataset) -> float:
    """Return the share of the next observation's variance that observation and action explain.

    It is measured by ridge regression on `quadratic_features` with two-fold cross-validation over
    even and odd episodes, and averaged over columns. Constant columns do not count; without any
    other column the result is 0.
    """
    rows = np.unique(np.linspace(0, dataset.rows - 1, MOST_ROWS).astype(int))
    episode = np.searchsorted(dataset.episode_start, rows, side="right") - 1
    if dataset.episode_start.size == 1:
        episode = (rows >= dataset.rows // 2).astype(int)
    # In float64: rounding gives a constant float32 column a deviation above zero.
    seen = dataset.observation[rows].astype(np.float64)
    following = dataset.next_observation[rows].astype(np.float64)
    mean = seen.mean(axis=0)
    scale = np.where(np.ptp(seen, axis=0) > 0, seen.std(axis=0), 1.0)
    low, high = np.asarray(dataset.action_low), np.asarray(dataset.action_high)
    half_ranges = 2.0 * (dataset.action[rows] - low) / (high - low) - 1.0
    known = quadratic_features((seen - mean) / scale, half_ranges)
    wanted = ((following - mean) / scale)[:, np.ptp(following, axis=0) > 0]
    half = episode % 2 == 0
    if wanted.shape[1] == 0 or half.all() or not half.any():
        return 0.0
    shares = [_explained(known, wanted, fitted) for fitted in (half, ~half)]
    return float(np.mean(np.clip(shares, 0.0, 1.0)))


def quadratic_features(seen: Any, action: Any) -> Any:
    """Return (1, s, s², a, aᵢaⱼ, sᵢaⱼ) of each row, as a NumPy or JAX array like the arguments.

    `seen` (rows, observation) is standardised; `action` (rows, action) is scaled to [−1, 1].
    """
    library = seen.__array_namespace__()
    pairs = library.triu_indices(action.shape[-1])
    products = (action[:, :, None] * action[:, None, :])[:, *pairs]
    crossed = (seen[:, :, None] * action[:, None, :]).reshape(len(seen), -1)
    one = library.ones((len(seen), 1), seen.dtype)
    return library.concatenate([one, seen, seen**2, action, products, crossed], axis=-1)


def _explained(known: np.ndarray, wanted: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    """Return the share of variance explained per column, on the rows that were not fitted."""
    one, target = known[fitted], wanted[fitted].astype(np.float64)
    system = one.T @ one + RIDGE * np.eye(one.shape[1])
    errors = wanted[~fitted] - known[~fitted] @ np.linalg.solve(system, one.T @ target)
    variance = np.mean((wanted[~fitted] - target.mean(axis=0)) ** 2, axis=0)
    return 1.0 - np.mean(errors**2, axis=0) / np.maximum(variance, 1e-12)
