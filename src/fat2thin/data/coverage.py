"""How far a state is from a log: a calibrated summary of the log that holds no single row.

The summary is at most `MOST_CENTROIDS` centroids, each the mean of at least `FEWEST_ROWS` rows of
at least `FEWEST_EPISODES` episodes. Observations are transformed as the policy sees them, centred
and whitened. The distance of a state is that to its nearest centroid, in units of the centroid's
radius (root mean square distance of its own rows).

The threshold is calibrated by episodes: the log is split into `FOLDS` parts of whole episodes, and
the rows of each part are measured against a summary of the others. With n episodes, the threshold
for a share p is the quantile p (1 + 1/n) of these distances: a new episode is exchangeable with
those of the log, and counts as one of n + 1 of which nothing is known (Lee, Barber and Willett
2023, on conformal prediction for hierarchical data).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float
from numpy import ndarray
from scipy import sparse, special

from fat2thin.columns import Transforms, inverse_transform, transform
from fat2thin.data.dataset import Dataset
from fat2thin.data.operations import episode_lengths

MOST_CENTROIDS = 512
MOST_COLUMNS = 1000
FEWEST_ROWS = 20  # of a centroid
FEWEST_EPISODES = 3  # of a centroid, or all episodes of a log with fewer
FOLDS = 5
SHARE = 0.95
"""Share of new states of the log's own distribution that count as covered by default."""
LEVELS = np.array([0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999])
"""Nominal shares whose thresholds are kept."""
_MOST_ROWS = 100_000  # rows that a summary is made from, drawn at random from a longer log
_ROWS_PER_CENTROID = 40
_LEARNED_ROWS = 12_000  # rows that move centroids; all rows count in the end
_ITERATIONS = 8
_LEAST_VARIANCE = 1e-3
"""Smallest variance of a direction of standardised columns: below, columns are copies of others."""
_FARTHEST = 1e6  # whitened coordinates are clipped here, so that squares stay finite
_BLOCK = 2**20  # distances in memory at once


class Coverage(eqx.Module):
    """The summary of a log. All arrays are plain, so that exports can carry them.

    Examples:
        >>> from fat2thin import data
        >>> log = data.load("treatment/quadratic")
        >>> coverage = summarise_states(log)
        >>> bool(coverage.rows.min() >= FEWEST_ROWS)
        True
        >>> bool(coverage.distance(np.full(8, 100.0)) > 1)  # 1 is the edge of the log
        True
    """

    mean: Any
    """Shape (observation,): centre of the transformed observations."""
    whitening: Any
    """Shape (observation, observation): (transformed − mean) @ whitening has variance 1."""
    centroids: Any
    """Shape (centroids, observation), in whitened coordinates."""
    radius: Any
    """Shape (centroids,): root mean square distance of a centroid's rows."""
    action: Any
    """Shape (centroids, action): mean logged action of a centroid's rows."""
    rows: Any
    """Shape (centroids,): number of rows."""
    levels: Any
    """Shape (levels,): nominal shares of covered states, increasing."""
    thresholds: Any
    """Shape (levels,): the distance that covers each share."""
    threshold: Any
    """Shape (): the distance at which a state leaves the log."""
    episodes: int = eqx.field(static=True, default=0)
    """Number of episodes that the thresholds were calibrated on."""
    transforms: Transforms = eqx.field(static=True, default=())
    """Transforms of the observation's columns."""

    @property
    def share(self) -> float:
        """The share of new states like those of the log that the threshold covers.

        It is the smallest with this threshold: the largest of n distances covers n / (n + 1).
        """
        thresholds, first = np.unique(self.thresholds, return_index=True)
        found = float(np.interp(self.threshold, thresholds, np.asarray(self.levels)[first]))
        return min(found, self.episodes / (self.episodes + 1)) if self.episodes else found

    def distance(self, observation: Any, xp: Any = np) -> Any:
        """Return the distance of each state, shape (*rows,), in thresholds: above 1 is outside.

        `xp` is `numpy` or `jax.numpy`. Not a number becomes infinite.
        """
        return Coverage._nearest(self, observation, xp)[0] / self.threshold

    def practice(self, observation: Any, xp: Any = np) -> Any:
        """Return the mean logged action of the nearest centroid, shape (*rows, action)."""
        return xp.take(self.action, self._nearest(observation, xp)[1], axis=0)

    def mixture(self, columns: Sequence[int]) -> "Mixture":
        """Return the log's states as a mixture of Gaussians, one per centroid, seen by columns."""
        back = np.linalg.pinv(np.asarray(self.whitening, np.float64))
        centres = np.asarray(self.mean) + np.asarray(self.centroids, np.float64) @ back
        # A centroid's rows are spread equally in all whitened directions.
        variance = np.square(np.asarray(self.radius, np.float64)) / len(back)
        weight = np.asarray(self.rows) / np.sum(self.rows)
        return Mixture(
            np.asarray(columns), centres, variance, back.T @ back, weight, self.transforms
        )

    def at(self, share: float) -> "Coverage":
        """Return the same summary with the threshold for another share, by interpolation."""
        low, high = float(self.levels[0]), float(self.levels[-1])
        if not low <= share <= high:
            raise ValueError(f"a covered share must lie in [{low:g}, {high:g}], got {share:g}")
        found = np.interp(share, np.asarray(self.levels), np.asarray(self.thresholds))
        return dataclasses.replace(self, threshold=np.float32(found))

    def place(self, observation: Any, xp: Any = np) -> Any:
        """Return whitened coordinates, shape (*rows, observation)."""
        seen = transform(observation, self.transforms, xp)
        shape = (1,) * (seen.ndim - 1) + (-1,)
        centred = seen - xp.reshape(xp.asarray(self.mean), shape)
        # By default a GPU would round products to about three digits.
        precise = {} if xp is np else {"precision": "highest"}
        return xp.clip(xp.matmul(centred, self.whitening, **precise), -_FARTHEST, _FARTHEST)

    def _nearest(self, observation: Any, xp: Any) -> tuple[Any, Any]:
        # Not self.place: Equinox makes a pytree of every bound method, which takes longer than
        # the distances of one state.
        placed = Coverage.place(self, observation, xp)
        flat = xp.reshape(placed, (-1, placed.shape[-1]))
        squares = _squared_distances(flat, self.centroids, xp)
        scaled = squares / xp.square(xp.asarray(self.radius))[None]
        scaled = xp.where(xp.isnan(scaled), xp.inf, scaled)
        shape = placed.shape[:-1]
        distance = xp.sqrt(xp.reshape(xp.min(scaled, axis=1), shape))
        return distance, xp.reshape(xp.argmin(scaled, axis=1), shape)

    def arrays(self) -> dict[str, ndarray]:
        """Return the arrays by name."""
        fields = (field.name for field in dataclasses.fields(self))
        return {name: np.asarray(getattr(self, name)) for name in fields if name not in _STATIC}


class Mixture(NamedTuple):
    """A smooth density of logged states, made from a summary alone; all columns are transformed."""

    columns: ndarray
    """The columns that the density is asked about."""
    centres: Float[ndarray, "centroids observation"]
    variance: Float[ndarray, " centroids"]
    covariance: Float[ndarray, "observation observation"]
    """That of a centroid with variance 1."""
    weight: Float[ndarray, " centroids"]
    transforms: Transforms

    def log_density(self, values: Float[ndarray, "*points columns"]) -> Float[ndarray, "*points"]:
        """Return the log density of the columns alone, in raw values, per unit of transformed ones.

        Examples:
            >>> from fat2thin import data
            >>> log = data.load("treatment/quadratic")
            >>> mixture = summarise_states(log).mixture([0, 1])
            >>> middle, far = mixture.log_density(np.array([[0.0, 0.0], [9.0, 9.0]]))
            >>> bool(middle > far)
            True
        """
        return special.logsumexp(self._log_parts(self._on_scale(values)), axis=-1)

    def typical(
        self, values: Float[ndarray, "*points columns"]
    ) -> Float[ndarray, "*points observation"]:
        """Return raw states with these values and, in the other columns, their conditional mean."""
        placed = self._on_scale(values)
        parts = self._log_parts(placed)
        share = np.exp(parts - special.logsumexp(parts, axis=-1, keepdims=True))
        within = self.covariance[np.ix_(self.columns, self.columns)]
        slope = np.linalg.pinv(within) @ self.covariance[self.columns]
        away = placed - share @ self.centres[:, self.columns]
        found = share @ self.centres + away @ slope
        found[..., self.columns] = placed
        return inverse_transform(found, self.transforms)

    def _on_scale(self, values: ndarray) -> ndarray:
        if not self.transforms:
            return np.asarray(values, np.float64)
        chosen = tuple(self.transforms[column] for column in self.columns)
        return transform(np.asarray(values, np.float64), chosen)

    def _log_parts(self, placed: ndarray) -> Float[ndarray, "*points centroids"]:
        """Return log(weight · density) of every centroid."""
        within, size = self.covariance[np.ix_(self.columns, self.columns)], self.columns.size
        factor = np.linalg.cholesky(within)
        away = placed[..., None, :] - self.centres[:, self.columns]
        squares = np.square(away @ np.linalg.inv(factor).T).sum(axis=-1) / self.variance
        volume = size * np.log(2 * np.pi * self.variance) / 2 + np.log(np.diag(factor)).sum()
        return np.log(self.weight) - squares / 2 - volume


_STATIC = ("episodes", "transforms")


def coverage_from_arrays(
    arrays: dict[str, ndarray], episodes: int, transforms: Transforms = ()
) -> Coverage:
    """Return the summary that `Coverage.arrays` was called on; a ValueError if it is not one."""
    names = [field.name for field in dataclasses.fields(Coverage) if field.name not in _STATIC]
    if sorted(arrays) != sorted(names):
        raise ValueError(f"a summary has {', '.join(names)}, not {', '.join(arrays)}")
    count, size = arrays["centroids"].shape if arrays["centroids"].ndim == 2 else (0, 0)
    width = arrays["action"].shape[-1] if arrays["action"].ndim else 0
    levels = arrays["levels"].shape
    expected = {
        "mean": (size,), "whitening": (size, size), "centroids": (count, size), "radius": (count,),
        "action": (count, width), "rows": (count,), "levels": levels, "thresholds": levels,
        "threshold": (),
    }  # fmt: skip
    for name, shape in expected.items():
        array = arrays[name]
        if array.shape != shape or array.dtype.kind not in "fi" or not array.size:
            raise ValueError(f"{name} must be numbers of shape {shape}, not {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite")
    if transforms and len(transforms) != size:
        raise ValueError(f"there are {len(transforms)} transforms for {size} columns")
    if not (arrays["radius"] > 0).all() or not arrays["threshold"] > 0:
        raise ValueError("radius and threshold must be positive")
    rising = np.diff(arrays["levels"]) > 0, np.diff(arrays["thresholds"]) >= 0
    if count > MOST_CENTROIDS or not all(map(np.all, rising)):
        raise ValueError("it has too many centroids, or levels that do not increase")
    return Coverage(**arrays, episodes=episodes, transforms=transforms)


def summarise_states(dataset: Dataset, share: float = SHARE, seed: int = 0) -> Coverage:
    """Return the summary of a log, calibrated so that `share` of new states count as covered.

    It depends only on the log and the seed. A log of one episode is calibrated on `FOLDS`
    consecutive parts of it, which are more alike than new episodes are.
    """
    if dataset.rows < 2 * FEWEST_ROWS:
        raise ValueError(
            f"data set {dataset.name!r} has {dataset.rows} rows; a summary of its states needs at "
            f"least {2 * FEWEST_ROWS}"
        )
    if dataset.observation.shape[1] > MOST_COLUMNS:
        raise ValueError(
            f"data set {dataset.name!r} has {dataset.observation.shape[1]:,} observation columns; "
            f"a summary of its states has at most {MOST_COLUMNS:,}"
        )
    draw, count = np.random.default_rng(seed), min(dataset.rows, _MOST_ROWS)
    kept = np.sort(draw.choice(dataset.rows, count, replace=False))
    seen = transform(dataset.observation[kept].astype(np.float64), dataset.observation_transforms)
    episode = np.repeat(np.arange(dataset.episode_start.size), episode_lengths(dataset))[kept]
    distances, clusters = _held_out_distances(seen, episode, draw)
    corrected = np.minimum(LEVELS * (1.0 + 1.0 / clusters), 1.0)
    thresholds = np.maximum(np.quantile(distances, corrected, method="higher"), 1e-6)
    final = _fit(seen, episode, draw)
    sums = final.members @ dataset.action[kept].astype(np.float64)
    arrays = {
        "mean": final.mean, "whitening": final.whitening, "centroids": final.centroids,
        "radius": final.radius, "action": sums / final.rows[:, None], "levels": LEVELS,
        "thresholds": thresholds, "threshold": np.interp(share, LEVELS, thresholds),
    }  # fmt: skip
    numbers = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    numbers["levels"] = LEVELS
    return Coverage(
        **numbers, rows=final.rows.astype(np.int32), episodes=clusters,
        transforms=dataset.observation_transforms,
    ).at(share)  # fmt: skip


class _Fit(NamedTuple):
    """Centroids of rows, in whitened coordinates."""

    mean: Float[ndarray, " observation"]
    whitening: Float[ndarray, "observation observation"]
    centroids: Float[ndarray, "centroids observation"]
    radius: Float[ndarray, " centroids"]
    rows: Float[ndarray, " centroids"]
    members: Any
    """Sparse, shape (centroids, rows): 1 where a row belongs to a centroid."""


def _held_out_distances(
    seen: Float[ndarray, "rows observation"], episode: ndarray, draw: np.random.Generator
) -> tuple[Float[ndarray, " rows"], int]:
    """Return the distance of each row to the summary of the other folds; number of clusters."""
    names, episode = np.unique(episode, return_inverse=True)
    if names.size == 1:
        episode = np.arange(len(seen)) * FOLDS // len(seen)
        names = np.arange(FOLDS)
    fold = draw.permutation(names.size) % FOLDS
    distances = np.zeros(len(seen))
    for part in np.unique(fold):
        held_out = fold[episode] == part
        fit = _fit(seen[~held_out], episode[~held_out], draw)
        one = np.ones(1)
        plain = Coverage(*fit[:4], one, one, one, one, one)
        placed = seen[held_out].astype(np.float32)
        distances[held_out] = np.concatenate(
            [plain._nearest(rows, np)[0] for rows in _blocks(placed, len(fit.centroids))]
        )
    return distances, names.size


def _fit(
    seen: Float[ndarray, "rows observation"], episode: ndarray, draw: np.random.Generator
) -> _Fit:
    """Return centroids by k-means, of enough rows and episodes each."""
    mean, whitening = _whitening(seen)
    placed = ((seen - mean) @ whitening).astype(np.float32)
    count = min(MOST_CENTROIDS, max(1, len(placed) // _ROWS_PER_CENTROID))
    learned = placed[draw.choice(len(placed), min(len(placed), _LEARNED_ROWS), replace=False)]
    centroids = learned[:count].copy()
    for _ in range(_ITERATIONS):
        members = _members(_assigned(learned, centroids), count)
        rows = np.asarray(members.sum(axis=1)).ravel()
        filled = rows > 0
        centroids[filled] = (members @ learned)[filled] / rows[filled, None]
    assigned = _large_enough(placed, centroids, episode)
    members = _members(assigned, int(assigned.max()) + 1)
    rows = np.asarray(members.sum(axis=1)).ravel()
    centroids = (members @ placed.astype(np.float64)) / rows[:, None]
    squares = np.square(placed - centroids[assigned]).sum(axis=1)
    # Shrunk towards the mean radius, as if each centroid had 20 more rows of that size.
    summed = np.bincount(assigned, squares) + FEWEST_ROWS * squares.mean()
    radius = np.maximum(np.sqrt(summed / (rows + FEWEST_ROWS)), 1e-6)
    return _Fit(mean, whitening, centroids, radius, rows, members)


def _whitening(seen: Float[ndarray, "rows observation"]) -> tuple[ndarray, ndarray]:
    """Return mean and whitening matrix; columns are standardised first, so units do not matter."""
    mean, deviation = seen.mean(axis=0), seen.std(axis=0)
    # In a column that never changes, a thousandth of its value counts as one deviation.
    constant = deviation <= 1e-6 * np.abs(mean)
    scale = np.where(constant, np.where(mean == 0.0, 1e-3, 1e-3 * np.abs(mean)), deviation)
    standardised = (seen - mean) / scale
    variance, directions = np.linalg.eigh(standardised.T @ standardised / len(seen))
    weights = directions / np.sqrt(np.maximum(variance, _LEAST_VARIANCE))
    return mean, weights @ directions.T / scale[:, None]


def _large_enough(placed: ndarray, centroids: ndarray, episode: ndarray) -> ndarray:
    """Return the centroid of each row, after dropping those of too few rows or episodes."""
    needed = min(FEWEST_EPISODES, np.unique(episode).size)
    assigned = _assigned(placed, centroids)
    while True:
        rows = np.bincount(assigned, minlength=len(centroids))
        pairs = np.unique(assigned * (episode.max() + 1) + episode)
        episodes = np.bincount(pairs // (episode.max() + 1), minlength=len(centroids))
        enough = (rows >= FEWEST_ROWS) & (episodes >= needed)
        if enough.all():
            return assigned
        if not enough.any():
            return np.zeros_like(assigned)
        centroids, number = centroids[enough], np.cumsum(enough) - 1
        moved = ~enough[assigned]
        assigned = np.where(moved, 0, number[assigned])
        assigned[moved] = _assigned(placed[moved], centroids)


def _assigned(placed: ndarray, centroids: ndarray) -> ndarray:
    parts = [
        np.argmin(_squared_distances(rows, centroids), axis=1)
        for rows in _blocks(placed, len(centroids))
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _members(assigned: ndarray, count: int) -> Any:
    ones = np.ones(assigned.size)
    return sparse.csr_matrix((ones, (assigned, np.arange(assigned.size))), (count, assigned.size))


def _blocks(rows: ndarray, width: int) -> list[ndarray]:
    """Return parts of the rows whose distances to `width` others fit into memory."""
    size = max(1, _BLOCK // max(width, 1))
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _squared_distances(rows: Any, others: Any, xp: Any = np) -> Any:
    """Return squared distances, shape (rows, others), as |x|² − 2xy + |y|²."""
    precise = {} if xp is np else {"precision": "highest"}
    # The others' squares are one more column of the product, which saves a pass over the result.
    ones, squares = xp.ones_like(rows[:, :1]), xp.sum(xp.square(others), axis=1)[:, None]
    extended = xp.concatenate([-2.0 * others, squares], axis=1).astype(rows.dtype)
    products = xp.matmul(xp.concatenate([rows, ones], axis=1), extended.T, **precise)
    return xp.maximum(products + xp.sum(xp.square(rows), axis=1)[:, None], 0.0)
