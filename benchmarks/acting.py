"""Measure the time of one call of `policy.act` and `policy.support`, for one state and for many.

    python benchmarks/acting.py                    a table of microseconds per call
    python benchmarks/acting.py --rows 1 100

The policy is that of FtTPO with the sizes of a MuJoCo robot: 17 observations, 6 actions, networks
of 256 × 256. Observations are NumPy arrays. Every call is waited for and timed by itself, so that
other load on the machine lengthens the slowest calls and hardly the median. The first call, which
compiles, is not among them.
"""

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fat2thin import algorithms
from fat2thin.algorithms.base import Problem
from fat2thin.policies.policy import Policy
from fat2thin.tables import Table

OBSERVATION, ACTION = 17, 6


def make_policy() -> Policy:
    """Return the actor of FtTPO before its first update."""
    fttpo = algorithms.get("fttpo")
    problem = Problem(OBSERVATION, (-1.0,) * ACTION, (1.0,) * ACTION, discount=0.99)
    config = fttpo.config()
    return fttpo.policy(fttpo.init(jax.random.key(0), problem, config), problem, config)


def seconds_of(call: Callable[[], Any]) -> float:
    """Return the seconds of one call."""
    began = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began


def timed(name: str, call: Callable[[], Any], calls: int) -> dict[str, str]:
    """Return a row of the table."""
    first, later = seconds_of(call), [seconds_of(call) for _ in range(calls)]
    tenth, median, ninth = 1e6 * np.quantile(later, (0.1, 0.5, 0.9))
    return {
        "call": name,
        "median, µs": f"{median:.0f}",
        "fastest tenth": f"{tenth:.0f}",
        "slowest tenth": f"{ninth:.0f}",
        "first call, s": f"{first:.2f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 1000])
    parser.add_argument("--calls", type=int, default=5000)
    options = parser.parse_args()
    policy, key, lines = make_policy(), jax.random.key(1), []
    for rows in options.rows:
        shape = (OBSERVATION,) if rows == 1 else (rows, OBSERVATION)
        seen = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        states = f"{rows:,} state{'s' * (rows > 1)}"
        lines += [
            timed(f"act, {states}", functools.partial(policy.act, seen, key), options.calls),
            timed(f"support, {states}", functools.partial(policy.support, seen), options.calls),
        ]
    print(f"JAX {jax.__version__}, {jax.devices()[0].device_kind}")
    print(Table("", tuple(lines)).text(100))


if __name__ == "__main__":
    main()
