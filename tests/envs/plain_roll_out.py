"""The regenerated data sets by a plain loop, as an oracle.

`python plain_roll_out.py TASK ROBOT ROWS SEED FOLDER` writes the three sets of a robot.
"""

import sys
from pathlib import Path

import gymnasium
import h5py
import numpy as np

import fat2thin.envs

ACTORS = Path(fat2thin.envs.__file__).parent / "actors"


def write(task, robot, level, rows, seed, path):
    weights = np.load(ACTORS / f"{robot}.npz", allow_pickle=False)
    medium, expert, early = (weights[name].tolist() for name in ("medium", "expert", "early"))
    actors = {
        "medium": [medium],
        "medium-expert": [medium, expert],
        "medium-replay": ["random", *early, medium],
    }[level]
    environment = gymnasium.make(task)
    size, rng = environment.action_space.shape, np.random.default_rng(seed)
    log = []
    for number, step in enumerate(actors):
        end = rows * (number + 1) // len(actors)
        over = True
        while len(log) < end:
            if over:
                observation, _ = environment.reset(seed=int(rng.integers(2**31)))
            if step == "random":
                action = rng.uniform(-1, 1, size)
            else:
                x = observation.astype(np.float32)
                for layer in (0, 1):
                    x = np.maximum(
                        x @ weights[f"{step}/{layer}/w"] + weights[f"{step}/{layer}/b"], 0
                    )
                mean, log_std = np.split(x @ weights[f"{step}/2/w"] + weights[f"{step}/2/b"], 2)
                noise = rng.standard_normal(mean.shape)
                action = np.tanh(mean + np.exp(np.clip(log_std, -5, 2)) * noise)
            action = action.astype(np.float32)
            after, reward, terminated, truncated, _ = environment.step(action)
            truncated = (truncated or len(log) + 1 == end) and not terminated
            log.append((observation, action, reward, terminated, truncated))
            observation, over = after, terminated or truncated
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    kinds = (np.float32, np.float32, np.float32, bool, bool)
    with h5py.File(path, "w") as file:
        for name, kind, column in zip(names, kinds, zip(*log, strict=True), strict=True):
            array = np.array(column).astype(kind)
            file.create_dataset(name, data=array, compression="gzip", shuffle=True)
        file.attrs.update(task=task, level=level, seed=seed, actors=str(actors))


if __name__ == "__main__":
    task, robot, rows, seed, folder = sys.argv[1:]
    for level in ("medium", "medium-replay", "medium-expert"):
        path = Path(folder) / f"{robot}-{level}@{rows}.hdf5"
        write(task, robot, level, int(rows), int(seed), path)
