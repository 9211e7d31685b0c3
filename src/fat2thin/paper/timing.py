"""Times of an update and an action of each method, as the paper gives them, on this machine."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fat2thin import data
from fat2thin.atomic_files import write
from fat2thin.engine.devices import JobScheduler
from fat2thin.engine.pack import make_pack
from fat2thin.experiments.plan import PlannedRun
from fat2thin.paper.presets import Reproduction, methods
from fat2thin.runs import identity
from fat2thin.tables import Table

METHODS = methods("fttpo", "inac", "tawac", "iql")
"""Those that the paper gives hours of: 15, 8.5, 6.5 and 6. Timed on the task without a file."""
ACTIONS = 100_000
ROUNDS = 5
RESULT = "times.json"
DATASET = "treatment/quadratic"


def measure(asked: Reproduction, root: Path) -> dict[str, Any]:
    """Seconds per update and per action of each method: the best of rounds that take turns."""
    planned = [asked.treatment("quadratic", one) for one in METHODS]
    subjects = [_TimedMethod(one, asked.scale.timed_updates) for one in planned]
    for _ in range(ROUNDS):
        for subject in subjects:
            subject.round()
    found = {
        "device": identity.device(),
        "versions": identity.versions(),
        "dataset": DATASET,
        "rounds": ROUNDS,
        "updates": asked.scale.timed_updates,
        "actions": ACTIONS,
        "methods": {
            subject.name: {
                "seconds_an_update": min(subject.updates),
                "seconds_an_action": min(subject.actions),
            }
            for subject in subjects
        },
    }
    root.mkdir(parents=True, exist_ok=True)
    write(root / RESULT, json.dumps(found, indent=2).encode())
    return found


class _TimedMethod:
    """One method of one seed, compiled, and what its rounds took."""

    def __init__(self, planned: PlannedRun, updates: int) -> None:
        spec = dataclasses.replace(planned.spec, seeds=(0,))
        pack = make_pack([spec], identity.read_logs([spec]))
        self.name, self._length = planned.spec.algorithm, updates
        self._turns = JobScheduler(pack.program, pack.jobs, pack.data_size)
        self._data = self._turns.replicated(pack.data())
        self._states, self._step = self._turns.init(), 0
        self.updates: list[float] = []
        self.actions: list[float] = []
        self._learn()
        policies = self._turns.policies(self._states)
        policy = jax.tree.map(lambda leaf: leaf[0], policies["actor"])
        observation = data.load(DATASET, 0).observation[0]
        observations = np.broadcast_to(observation, (ACTIONS, len(observation)))
        self._act = lambda key: jax.block_until_ready(_actions(policy, observations, key))
        self._act(jax.random.key(0))

    def _learn(self) -> None:
        self._states, report = self._turns.chunk(
            self._states, self._data, self._step, self._length, active=np.ones(1, bool)
        )
        jax.block_until_ready(report)
        self._step += self._length

    def round(self) -> None:
        """Time both once."""
        began = time.perf_counter()
        self._learn()
        self.updates.append((time.perf_counter() - began) / self._length)
        began = time.perf_counter()
        self._act(jax.random.key(1))
        self.actions.append((time.perf_counter() - began) / ACTIONS)


@jax.jit
def _actions(policy: Any, observations: Any, key: Any) -> Any:
    return policy(observations).sample(key)


def table(found: dict[str, Any]) -> Table:
    """One row per method: hours per million updates, also against IQL; microseconds per action."""
    of_iql = found["methods"]["iql"]["seconds_an_update"]
    return Table(
        f"time of an update and of an action, one seed, on {found['device']}",
        tuple(
            {
                "method": name,
                "hours_a_million_updates": of["seconds_an_update"] * 1e6 / 3600.0,
                "times_iql": of["seconds_an_update"] / of_iql,
                "microseconds_an_action": of["seconds_an_action"] * 1e6,
            }
            for name, of in found["methods"].items()
        ),
    )
