"""A policy as plain NumPy arrays and settings: what certificates, exports and the page read.

A `PlainPolicy` holds everything that decides an action and nothing of JAX. It is read so:

1. A raw observation is transformed column by column, then standardised: (x − mean) / scale.
2. Each hidden layer computes max(W x + b, 0) and, if it has a norm, normalises the result.
3. The centre is W x + b, through tanh if `tanh`. The log scale is W x + b or `fixed`, clipped to
   `bounds`; with a `ratio`, the ratio is added and the sum clipped to `ratio_bounds`.
4. An ensemble combines the members' heads by its `rule`, in half-ranges of the transformed box.
5. The family turns the head into a band or another law in the transformed box; limits narrow the
   box first. The result is transformed back.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from numpy import ndarray

from fat2thin.columns import Column, Transforms, default_columns
from fat2thin.policies.decision import Thresholds
from fat2thin.policies.ensemble import EnsembleNetwork
from fat2thin.policies.families import Family, Transformed
from fat2thin.policies.limit_language import Limit
from fat2thin.policies.networks import PRECISIONS, Linear, Trunk
from fat2thin.policies.policy import Policy, StandardisedNetwork

OF_LOG = ("mean", "whitening", "centroids", "radius", "threshold")
"""The arrays of a summary of the log that decide whether a state is referred."""


class NotPlainError(ValueError):
    """Raised for a policy whose network or family has no plain description."""


@dataclasses.dataclass(frozen=True, eq=False)
class PlainLayer:
    """A layer W x + b; `norm` is the scale and the shift of a layer norm after the rectifier."""

    weight: ndarray
    """Shape (outputs, inputs)."""
    bias: ndarray
    norm: tuple[ndarray, ndarray] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class PlainMember:
    """The network of one seed, from raw observations to its head."""

    trunk: tuple[PlainLayer, ...]
    centre: PlainLayer
    log_scale: PlainLayer
    fixed: ndarray | None
    """The log scale if it does not depend on the observation, before clipping; None if it does."""
    tanh: bool
    """Whether tanh is applied to the centre. A family that squashes the centre itself has False."""
    bounds: tuple[float, float]
    """Ends of the log scale."""
    ratio: float | None = None
    """Added to the clipped log scale, if not None; the sum is clipped to `ratio_bounds`."""
    ratio_bounds: tuple[float, float] | None = None
    mean: ndarray | None = None
    """Subtracted from transformed observations; None if they are not standardised."""
    scale: ndarray | None = None
    """Divides what is left."""

    def arrays(self) -> dict[str, ndarray]:
        """Return all arrays by name, in a fixed order."""
        found: dict[str, ndarray] = {}
        layers = [(f"trunk{place}", layer) for place, layer in enumerate(self.trunk)]
        for name, layer in (*layers, ("centre", self.centre), ("log_scale", self.log_scale)):
            found |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
            if layer.norm is not None:
                found |= {f"{name}.norm_scale": layer.norm[0], f"{name}.norm_shift": layer.norm[1]}
        others = {"fixed": self.fixed, "mean": self.mean, "scale": self.scale}
        return found | {name: array for name, array in others.items() if array is not None}

    def settings(self) -> dict[str, Any]:
        """Return what is not an array, as values for JSON."""
        names = ("tanh", "bounds", "ratio", "ratio_bounds")
        return {name: _plain(getattr(self, name)) for name in names}


@dataclasses.dataclass(frozen=True)
class PlainFamily:
    """The law of a head; settings that a kind does not have are None."""

    kind: str
    """"sparse", "heavy", "student", "squashed", "beta" or "deterministic"."""
    index: float | None = None
    """Entropic index of "sparse" (below 1) and "heavy" (from 1)."""
    freedom: float | None = None
    """Degrees of freedom of "student"."""
    box: str | None = None
    """How a band is fitted to the box: "inside" or "clip"."""

    def settings(self) -> dict[str, Any]:
        """Return the settings that this kind has, as values for JSON."""
        return {name: one for name, one in dataclasses.asdict(self).items() if one is not None}


@dataclasses.dataclass(frozen=True, eq=False)
class PlainReferral:
    """The summary of a log, which holds no row of it, and the thresholds."""

    arrays: dict[str, ndarray]
    """Those of `fat2thin.data.coverage.Coverage` in `OF_LOG`, by name."""
    thresholds: Thresholds
    transforms: Transforms = ()
    """Transforms of the observation's columns, before the summary's own mean and whitening."""


@dataclasses.dataclass(frozen=True, eq=False)
class PlainPolicy:
    """Everything that decides an action, as NumPy arrays and settings."""

    members: tuple[PlainMember, ...]
    """One network per seed."""
    rule: str | None
    """How members are combined, "median" or "consensus"; None for a policy of one network."""
    family: PlainFamily
    low: ndarray
    """Low end of the action box, raw."""
    high: ndarray
    observations: tuple[Column, ...]
    """Names, units and transforms of the observation's columns."""
    actions: tuple[Column, ...]
    observation_transforms: Transforms
    """Applied to raw observations before anything else; empty if there are none."""
    action_transforms: Transforms
    limits: tuple[Limit, ...] = ()
    """The limits as they were read; variables are the observations, then the last actions."""
    fallback: tuple[float, ...] | None = None
    """The action in states without an allowed one."""
    needs_last_action: bool = False
    referral: PlainReferral | None = None
    """None if there is no summary of the log."""

    def arrays(self) -> dict[str, ndarray]:
        """Return all arrays by name, in a fixed order."""
        found = {
            f"member{place}.{name}": array
            for place, member in enumerate(self.members)
            for name, array in member.arrays().items()
        }
        found |= {"low": self.low, "high": self.high}
        if self.referral is not None:
            found |= {f"log.{name}": array for name, array in self.referral.arrays.items()}
        return found

    def settings(self) -> dict[str, Any]:
        """Return what is not an array, as values for JSON."""
        referral = self.referral
        return {
            "members": [member.settings() for member in self.members],
            "rule": self.rule,
            "family": self.family.settings(),
            "observations": [column.to_json() for column in self.observations],
            "actions": [column.to_json() for column in self.actions],
            "observation_transforms": _transforms(self.observation_transforms),
            "action_transforms": _transforms(self.action_transforms),
            "limits": [dataclasses.asdict(limit) for limit in self.limits],
            "fallback": _plain(self.fallback),
            "needs_last_action": self.needs_last_action,
            "referral": None
            if referral is None
            else {
                "thresholds": dataclasses.asdict(referral.thresholds),
                "transforms": _transforms(referral.transforms),
            },
        }

    @property
    def weight_hash(self) -> str:
        """The sha256 of the networks: weights, bounds of scales, and standardisation."""
        arrays = {name: of for name, of in self.arrays().items() if name.startswith("member")}
        return hash_of(arrays, {"members": [member.settings() for member in self.members]})

    @property
    def policy_hash(self) -> str:
        """The sha256 of everything: networks, family, box, columns, limits and referral."""
        return hash_of(self.arrays(), self.settings())


def hash_of(arrays: Mapping[str, ndarray], settings: Mapping[str, Any]) -> str:
    """Return the sha256 of arrays and settings.

    Hashed are, for each array by name in alphabetical order, a line of JSON with name, type and
    shape and then its little-endian bytes in C order, and at the end the settings as JSON with
    sorted keys and without spaces. Texts are UTF-8.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        head = [name, little.dtype.str, list(array.shape)]
        digest.update(json.dumps(head, separators=(",", ":")).encode() + b"\n")
        digest.update(little.tobytes())
    digest.update(json.dumps(settings, sort_keys=True, separators=(",", ":")).encode())
    return digest.hexdigest()


def plain_policy(policy: Policy) -> PlainPolicy:
    """Return the plain description of a policy; a NotPlainError names what has none.

    Examples:
        >>> import jax
        >>> from fat2thin.policies.families import Sparse
        >>> from fat2thin.policies.networks import PolicyNetwork
        >>> from fat2thin.policies.policy import unit_policy
        >>> network = PolicyNetwork(jax.random.key(0), 2, action_size=1, hidden=(4,))
        >>> plain = plain_policy(unit_policy(network, Sparse(), (0.1, 0.1)))
        >>> plain.family.kind, [layer.weight.shape for layer in plain.members[0].trunk]
        ('sparse', [(4, 2)])
    """
    family = plain_family(policy.family)
    if family is None:
        raise NotPlainError(f"the family {type(policy.family).__name__} has no plain description")
    # On the host: on a device, indexing each leaf would compile a program.
    network, rule = jax.device_get(policy.network), None
    networks = [network]
    if isinstance(network, EnsembleNetwork):
        rule, stacked = network.rule, network.members
        count = len(jax.tree.leaves(stacked)[0])
        networks = [jax.tree.map(lambda leaf, n=n: leaf[n], stacked) for n in range(count)]
    members = tuple(map(_member, networks))
    low, high = (np.asarray(end, np.float32) for end in (policy.low, policy.high))
    limits, size = policy.limits, members[0].trunk[0].weight.shape[1]
    return PlainPolicy(
        members, rule, family, low, high,
        policy.observation_columns or default_columns("observation", size),
        policy.action_columns or default_columns("action", low.size),
        _observation_transforms(networks[0]),
        policy.family.transforms if isinstance(policy.family, Transformed) else (),
        () if limits is None else limits.parsed,
        None if limits is None else limits.fallback,
        policy.needs_last_action,
        _referral(policy),
    )  # fmt: skip


def plain_family(family: Family) -> PlainFamily | None:
    """Return the description of a family, that of raw actions for a `Transformed` one.

    None if it has none: a plug-in's, or a subclass, whose density may differ.
    """
    if isinstance(family, Transformed):
        family = family.family
    # Not inherited: a subclass of a family may have another density.
    kind = vars(type(family)).get("page_law")
    if kind is None:
        return None
    names = {"entropic_index": "index", "degrees_of_freedom": "freedom", "box": "box"}
    settings = {names[field]: value for field, value in dataclasses.asdict(family).items()}
    return PlainFamily(kind, **settings)


def _member(network: Any) -> PlainMember:
    mean = scale = None
    if isinstance(network, StandardisedNetwork):
        mean, scale = (np.asarray(part, np.float32) for part in (network.mean, network.scale))
        network = network.network
    if not hasattr(network, "layers"):
        raise NotPlainError(f"the network {type(network).__name__} has no plain description")
    parts = network.layers()
    made = {name: plain_part(part) for name, part in parts.items()}
    return PlainMember(**made, mean=mean, scale=scale)


def plain_part(part: Any) -> Any:
    """Return a trunk as layers, a layer, a pair of bounds, a number, an array or a flag."""
    if isinstance(part, Trunk):
        layers = map(plain_part, part.layers)
        if not part.norms:
            return tuple(layers)
        norms = ((np.asarray(norm.scale), np.asarray(norm.shift)) for norm in part.norms)
        pairs = zip(layers, norms, strict=True)
        return tuple(dataclasses.replace(layer, norm=norm) for layer, norm in pairs)
    if isinstance(part, Linear):
        if part.precision != PRECISIONS[0]:
            raise NotPlainError(f"the network computes in {part.precision}, not in {PRECISIONS[0]}")
        return PlainLayer(np.asarray(part.weight), np.asarray(part.bias))
    if part is None or isinstance(part, bool):
        return part
    array = np.asarray(part)
    if array.ndim == 0:
        return float(array)
    # Bounds are float64, and rounded to float32 where they are used.
    return tuple(array.tolist()) if array.dtype == np.float64 else array


def _observation_transforms(network: Any) -> Transforms:
    return network.transforms if isinstance(network, StandardisedNetwork) else ()


def _referral(policy: Policy) -> PlainReferral | None:
    referral = policy.referral
    if referral is None or not hasattr(referral.coverage, "arrays"):
        return None
    coverage = referral.coverage
    arrays = coverage.arrays()
    needed = {name: arrays[name] for name in OF_LOG}
    return PlainReferral(needed, referral.thresholds, coverage.transforms)


def _transforms(transforms: Transforms) -> list[dict[str, Any] | None]:
    return [None if one is None else dataclasses.asdict(one) for one in transforms]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
