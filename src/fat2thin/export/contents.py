"""What every export of a policy holds: arrays, settings, and states with their answers."""

import io
import json
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from fat2thin.columns import Transform, inverse_transform
from fat2thin.export.portable import Answer, Policy
from fat2thin.export.sampling import sampling_of
from fat2thin.policies.plain import PlainPolicy, hash_of

TABLES = ("quantiles", "folds")
"""Arrays that follow from the family, and that hashes of a policy leave out."""
STATES = 1000
"""Synthetic states that are stored with an export, to check it later."""
_SEED = 0


class Contents(NamedTuple):
    """A policy as `fat2thin.export.portable.Policy` takes it."""

    arrays: dict[str, ndarray]
    settings: dict[str, Any]
    sampling: str
    """How actions are sampled, for people."""

    def policy(self, dtype: Any = np.float32, xp: Any = np) -> Policy:
        """Return the policy, computed in `dtype`."""
        return Policy(self.arrays, self.settings, dtype, xp)

    def hashes(self) -> dict[str, str]:
        """Return the hashes of the weights and of the policy, as `PlainPolicy` has them."""
        arrays = {name: of for name, of in self.arrays.items() if name not in TABLES}
        members = {name: of for name, of in arrays.items() if name.startswith("member")}
        added = ("limit_fallback", "sampling")
        settings = {name: one for name, one in self.settings.items() if name not in added}
        settings["fallback"] = self.settings["limit_fallback"]
        weights = hash_of(members, {"members": settings["members"]})
        return {"weight_sha256": weights, "policy_sha256": hash_of(arrays, settings)}

    def to_npz(self) -> bytes:
        """Return the bytes of weights.npz; equal contents give equal bytes."""
        settings = np.frombuffer(json.dumps(self.settings, sort_keys=True).encode(), np.uint8)
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {**self.arrays, "settings": settings}
        np.savez(buffer, **arrays)
        return buffer.getvalue()


def contents_of(plain: PlainPolicy, fallback: tuple[float, ...] | None = None) -> Contents:
    """Return the contents of an export.

    `fallback` is the action of referred states; by default that of the limits, if they have one.
    """
    arrays = plain.arrays()
    sampling = sampling_of(plain)
    tables = zip(TABLES, (sampling.table, sampling.folds), strict=True)
    arrays |= {name: table for name, table in tables if table.size}
    chosen = plain.fallback if fallback is None else fallback
    settings = {
        **plain.settings(),
        "limit_fallback": None if plain.fallback is None else list(plain.fallback),
        "fallback": None if chosen is None else [float(one) for one in chosen],
        "sampling": sampling.settings,
    }
    # As JSON has it: lists instead of tuples.
    return Contents(arrays, json.loads(json.dumps(settings)), sampling.why)


class States(NamedTuple):
    """States that no log has, to check exports with."""

    observation: ndarray
    uniform: ndarray
    last: ndarray | None
    """Last actions, if limits depend on them; nan is the first step of an episode."""


def synthetic_states(contents: Contents, count: int = STATES, seed: int = _SEED) -> States:
    """Return states around the log, corners and extremes of it, and a few that are invalid.

    They are drawn from the summary of the log, or around zero if there is none.
    """
    arrays, settings = contents.arrays, contents.settings
    draw, size = np.random.default_rng(seed), len(settings["observations"])
    if settings["referral"] is None:
        member = {name: arrays.get(f"member0.{name}") for name in ("mean", "scale")}
        centre = np.zeros(size) if member["mean"] is None else member["mean"]
        scale = np.ones(size) if member["scale"] is None else member["scale"]
        near = centre + scale * draw.normal(size=(count, size))
    else:
        back = np.linalg.pinv(arrays["log.whitening"].astype(np.float64))
        chosen = draw.integers(len(arrays["log.centroids"]), size=count)
        radius = arrays["log.radius"][chosen, None] / np.sqrt(size)
        # Some are farther out than the log, on both sides of the threshold.
        away = draw.normal(size=(count, size)) * radius * draw.choice([1.0, 1.5, 2.5], (count, 1))
        near = arrays["log.mean"] + (arrays["log.centroids"][chosen] + away) @ back
        centre, scale = near.mean(axis=0), near.std(axis=0)
    part = count // 10
    corners = draw.choice([-1.0, 1.0], (part, size)) * draw.choice([2.0, 6.0], (part, 1))
    near[part : 2 * part] = centre + scale * corners
    transforms = tuple(
        None if one is None else Transform(**one) for one in settings["observation_transforms"]
    )
    raw = inverse_transform(near, transforms)
    raw[2 * part : 3 * part] *= 10.0 ** draw.uniform(-42, 30, (part, 1))
    special = np.array([0.0, 1e-45, -1e-40, 1e-38, 3e38, -3e38, np.nan, np.inf, -np.inf])
    rows = np.arange(3 * part, 4 * part)
    raw[rows, draw.integers(size, size=part)] = special[np.arange(part) % len(special)]
    uniform = draw.uniform(size=(count, len(settings["actions"])))
    special = np.array([0.0, 1.2e-38, 0.5, 1.0 - 2.0**-24, 1.0])
    uniform[np.arange(len(special)) * (count // len(special))] = special[:, None]
    with np.errstate(over="ignore"):
        states = raw.astype(np.float32), uniform.astype(np.float32)
    return States(*states, _last_actions(contents, count, draw))


def _last_actions(contents: Contents, count: int, draw: np.random.Generator) -> ndarray | None:
    if not contents.settings["needs_last_action"]:
        return None
    low, high = contents.arrays["low"], contents.arrays["high"]
    last = draw.uniform(low, high, (count, low.size)).astype(np.float32)
    last[::7] = np.nan
    return last


def answers_of(contents: Contents, states: States, dtype: Any = np.float32) -> Answer:
    """Return the answers of the NumPy arithmetic."""
    return contents.policy(dtype)(*states)


def from_npz(data: bytes) -> Contents:
    """Return the contents of weights.npz; a ValueError for anything else."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        settings = json.loads(bytes(arrays.pop("settings")).decode("utf-8"))
        contents = Contents(arrays, settings, "")
        contents.policy()
    except Exception as error:
        raise ValueError(f"it does not hold a policy: {type(error).__name__}") from error
    return contents
