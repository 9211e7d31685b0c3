"""Finite problems with exact values, for `benchmarks/value.py`.

A level is observed, and a continuous action falls into one of several cells.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fat2thin.policies.policy import Policy
from value_log import Log, Truth


@dataclasses.dataclass(frozen=True, eq=False)
class Tabular:
    """A finite problem; every array is exact."""

    name: str
    horizon: int
    discount: float
    ends: np.ndarray
    """The ends of the cells of the action, shape (cells + 1,)."""
    start: np.ndarray
    """Probability of each first level."""
    chance: np.ndarray
    """Shape (levels, cells, levels + 2): of the next level, of discharge and of death."""
    reward: np.ndarray
    """Shape (levels, cells): the mean reward, without that of the end."""
    rare: np.ndarray
    """Shape (levels, cells): the probability of an extra reward of `harm`."""
    harm: float
    of_death: float
    noise: float
    """Half-width of uniform noise on the reward."""
    practice: np.ndarray
    """Shape (levels, cells): probabilities of the cells; uniform within a cell."""

    @property
    def levels(self) -> int:
        return len(self.start)

    @property
    def box(self) -> tuple[tuple[float], tuple[float]]:
        return (float(self.ends[0]),), (float(self.ends[-1]),)

    def cells(self, policy: Policy) -> np.ndarray:
        """Return the probability of each cell in each level, from the policy's own cdf."""
        levels = jnp.arange(self.levels, dtype=jnp.float32)[:, None]
        law = policy(levels).base_dist
        cdf = [np.asarray(law.cdf(jnp.full((self.levels, 1), end))) for end in self.ends]
        return np.diff(np.concatenate(cdf, axis=1), axis=1)

    def value(self, cells: np.ndarray) -> float:
        """Return the exact value of these probabilities of cells, by backward induction."""
        gain = self.reward + self.rare * self.harm + self.chance[..., -1] * self.of_death
        value = np.zeros(self.levels)
        for _ in range(self.horizon):
            onward = self.chance[..., : self.levels] @ value
            value = np.sum(cells * (gain + self.discount * onward), axis=1)
        return float(self.start @ value)

    def log(self, key: Array, episodes: int) -> Log:
        """Draw episodes under practice."""
        ends = jnp.asarray(self.ends, jnp.float32)
        width = jnp.diff(ends)

        def one_episode(key: Array) -> Log:
            first, steps = jax.random.split(key)

            def step(carry: tuple, key: Array) -> tuple:
                level, here = carry
                keys = jax.random.split(key, 5)
                chance = jnp.asarray(self.practice, jnp.float32)[level]
                cell = jax.random.choice(keys[0], len(width), p=chance)
                action = ends[cell] + width[cell] * jax.random.uniform(keys[1])
                onward = jnp.asarray(self.chance, jnp.float32)[level, cell]
                then = jax.random.choice(keys[2], self.levels + 2, p=onward)
                noise = self.noise * jax.random.uniform(keys[3], minval=-1.0)
                rare = jax.random.bernoulli(keys[4], jnp.asarray(self.rare)[level, cell])
                reward = jnp.asarray(self.reward, jnp.float32)[level, cell] + noise
                reward = reward + rare * self.harm + (then == self.levels + 1) * self.of_death
                ended = then >= self.levels
                following = jnp.where(ended, level, then)
                row = Log(
                    level[None].astype(jnp.float32), action[None], reward * here,
                    following[None].astype(jnp.float32), 1.0 - ended, here.astype(jnp.float32),
                    jnp.log(chance[cell] / width[cell]),
                )  # fmt: skip
                return (following, here & ~ended), row

            level = jax.random.choice(first, self.levels, p=jnp.asarray(self.start, jnp.float32))
            keys = jax.random.split(steps, self.horizon)
            return jax.lax.scan(step, (level, jnp.array(True)), keys)[1]

        return jax.vmap(one_episode)(jax.random.split(key, episodes))

    def truths(self, policies: dict[str, Policy]) -> dict[str, Truth]:
        cells = {"practice": self.practice}
        cells |= {name: self.cells(policy) for name, policy in policies.items()}
        return {name: Truth(self.value(one), 0.0) for name, one in cells.items()}


def ladder() -> Tabular:
    """Five levels of severity; each has its own right dose, and the top ends in death."""
    right = np.array([0, 0, 1, 2, 2])
    chance = np.zeros((5, 3, 7))
    for level in range(5):
        for cell in range(3):
            down, up = (0.5, 0.1) if cell == right[level] else (0.1, 0.4 if level < 4 else 0.3)
            chance[level, cell, level] = 1 - down - up
            chance[level, cell, level - 1 if level else 5] += down
            chance[level, cell, level + 1 if level < 4 else 6] += up
    return Tabular(
        "tabular/ladder", 6, 0.95, np.array([0, 1 / 3, 2 / 3, 1]),
        np.array([0.0, 0.3, 0.4, 0.3, 0.0]), chance,
        -0.25 * np.arange(5)[:, None] - 0.1 * np.arange(3)[None],
        np.zeros((5, 3)), 0.0, -8.0, 0.2,
        np.array([[0.6, 0.3, 0.1], [0.5, 0.3, 0.2], [0.4, 0.3, 0.3], [0.3, 0.4, 0.3],
                  [0.2, 0.4, 0.4]]),
    )  # fmt: skip


def cliff() -> Tabular:
    """Three levels, twelve steps, no end; the largest doses pay, and sometimes do rare harm."""
    chance = np.zeros((3, 4, 5))
    for level in range(3):
        for cell in range(4):
            up = 0.1 + 0.15 * cell
            chance[level, cell, min(level + 1, 2)] += up
            chance[level, cell, max(level - 1, 0)] += 0.3
            chance[level, cell, level] += 0.7 - up
    rare = np.zeros((3, 4))
    rare[:, 3] = [0.05, 0.1, 0.2]
    return Tabular(
        "tabular/cliff", 12, 0.9, np.linspace(-1, 1, 5), np.array([0.6, 0.3, 0.1]), chance,
        0.3 * np.arange(4)[None] - 0.4 * np.arange(3)[:, None], rare, -6.0, 0.0, 0.3,
        np.array([[0.3, 0.4, 0.2, 0.1], [0.3, 0.4, 0.2, 0.1], [0.4, 0.4, 0.15, 0.05]]),
    )  # fmt: skip


def delayed() -> Tabular:
    """Four levels, up to twenty steps; high doses cure, and rarely poison, which kills later."""
    chance = np.zeros((4, 3, 6))
    for level in range(3):
        for cell in range(3):
            down, up = ((0.15, 0.25), (0.3, 0.12), (0.45, 0.05))[cell]
            chance[level, cell, level - 1 if level else 4] += down
            chance[level, cell, level + 1 if level < 2 else 5] += up if level < 2 else up / 4
            chance[level, cell, 3] += 0.04 if cell == 2 else 0.0
            chance[level, cell, level] += 1 - chance[level, cell].sum()
    chance[3] = np.array([0.0, 0.0, 0.35, 0.4, 0.0, 0.25])[None]
    return Tabular(
        "tabular/delayed", 20, 0.97, np.array([0.0, 3.0, 7.0, 10.0]),
        np.array([0.2, 0.4, 0.4, 0.0]), chance,
        np.array([0.0, -0.2, -0.5, -1.0])[:, None] - 0.05 * np.arange(3)[None],
        np.zeros((4, 3)), 0.0, -15.0, 0.2,
        np.array([[0.6, 0.35, 0.05], [0.5, 0.4, 0.1], [0.4, 0.45, 0.15], [0.7, 0.25, 0.05]]),
    )  # fmt: skip


def jackpot() -> Tabular:
    """Two levels, eight steps, no end and no discount; small costs, and rare large gains."""
    chance = np.zeros((2, 5, 4))
    for cell in range(5):
        up = 0.1 + 0.12 * cell
        chance[0, cell, :2] = 1 - up, up
        chance[1, cell, :2] = 0.4, 0.6
    rare = np.zeros((2, 5))
    rare[0, 0], rare[1, 2], rare[1, 4] = 0.03, 0.08, 0.02
    return Tabular(
        "tabular/jackpot", 8, 1.0, np.linspace(-2, 2, 6), np.array([0.7, 0.3]), chance,
        np.array([[-0.1], [-0.6]]) - 0.1 * np.arange(5)[None], rare, 10.0, 0.0, 0.5,
        np.array([[0.3, 0.3, 0.2, 0.15, 0.05], [0.1, 0.25, 0.3, 0.25, 0.1]]),
    )  # fmt: skip
