"""Policies: distributions over actions, from a network, a family and an action box."""

import dataclasses
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Key
from numpyro.distributions import Distribution

from fat2thin.columns import Column, Transforms, transform, transforms_of
from fat2thin.distributions.base import expand_to_rank
from fat2thin.policies.families import Family, Head, Placed, Transformed, clip_inward
from fat2thin.policies.limits import Interval, LimitRules, Limits
from fat2thin.policies.networks import ActionRows, ObservationRows, PolicyNetwork

NOT_GIVEN: Any = object()
"""The last action of a caller that handed in none."""


class BoundedNetwork(eqx.Module):
    """A policy network with the centre squashed into the box and the scale within bounds."""

    network: PolicyNetwork
    scale_bounds: tuple[float, float] = eqx.field(static=True)
    """Smallest and largest scale, in half-ranges of the box."""
    squashed: bool = eqx.field(static=True)
    """Whether the family squashes the centre, so that this network must not."""
    state_dependent_scale: bool = eqx.field(static=True, default=True)
    """If False, the scale is one number per action coordinate, the same for all observations."""

    def __call__(self, observation: ObservationRows) -> Head:
        """Return the head for each row."""
        centre, log_scale = self.network(observation)
        if not self.state_dependent_scale:
            log_scale = jnp.broadcast_to(self.network.log_scale.bias, log_scale.shape)
        low, high = (jnp.asarray(np.log(bound), centre.dtype) for bound in self.scale_bounds)
        centre = centre if self.squashed else jnp.tanh(centre)
        return Head(centre, clip_inward(log_scale, low, high))

    def layers(self) -> dict[str, Any]:
        """Return the layers, and how their outputs are transformed, for the report page."""
        network, bounds = self.network, np.log(self.scale_bounds)
        fixed = None if self.state_dependent_scale else network.log_scale.bias
        heads = {"centre": network.centre, "log_scale": network.log_scale, "fixed": fixed}
        return {"trunk": network.trunk, **heads, "tanh": not self.squashed, "bounds": bounds}


class StandardisedNetwork(eqx.Module):
    """A network that transforms and standardises raw observations for the one it wraps."""

    network: Any
    mean: Float[Array, " observation"]
    scale: Float[Array, " observation"]
    transforms: Transforms = eqx.field(static=True, default=())

    def __call__(self, observation: ObservationRows) -> Head:
        """Return the head for each row."""
        mean, scale = (expand_to_rank(part, observation.ndim) for part in (self.mean, self.scale))
        observation = transform(observation, self.transforms, jnp)
        return self.network((observation - mean) / scale)


class Agreement(NamedTuple):
    """How far the members of an ensemble agree in each state."""

    disagreement: Float[Array, "*rows"]
    """Distance between the lowest and the highest centre, as a share of the box; the largest over
    the coordinates of the action."""
    overlap: Bool[Array, "*rows"]
    """Whether all bands have an action in common; True for families without a band."""


class Policy(eqx.Module):
    """A policy: raw observations in, actions in the environment's units out.

    `policy(observation)` returns the distribution over actions as a NumPyro `Distribution`.
    Observations have shape (*rows, observation), with any number of leading axes. A nan or infinite
    observation raises a `ValueError` that names its column and row, except inside `jit`, `vmap` or
    `scan`, where values are not known.

    With `limits`, every law is placed in the allowed interval of its state. A state without an
    allowed action has the fallback of the limits as its only action. Without a fallback, `act`
    raises a `ValueError` that names the limits, and inside `jit` the action is nan. Limits that
    depend on the last action need `last`, shape (*rows, action), nan or None at the first step.

    Examples:
        >>> import jax
        >>> from fat2thin.policies.families import Sparse
        >>> from fat2thin.policies.networks import PolicyNetwork
        >>> from fat2thin.policies.policy import unit_policy
        >>> network = PolicyNetwork(jax.random.key(0), 2, action_size=1, hidden=(4,))
        >>> policy = unit_policy(network, Sparse(), (0.1, 0.1)).in_box((0.0,), (10.0,))
        >>> observation = jax.numpy.array([0.5, -0.5])
        >>> low, high = policy.support(observation)
        >>> print(f"a band of width {(high - low)[0]:.2f}")
        a band of width 1.00
        >>> action = policy.act(observation, jax.random.key(1))
        >>> bool(((low <= action) & (action <= high)).all())
        True
    """

    network: Any
    """A callable module that returns a `Head` for observations."""
    low: Float[Array, " action"]
    """Low end of the action box."""
    high: Float[Array, " action"]
    """High end of the action box."""
    family: Family = eqx.field(static=True)
    """The family that turns the head into a distribution."""
    observation_columns: tuple[Column, ...] = eqx.field(static=True, default=())
    """Names, units and transforms of the observation's columns; empty if unknown."""
    action_columns: tuple[Column, ...] = eqx.field(static=True, default=())
    """Names, units and transforms of the action dimensions; empty if unknown."""
    limits: Limits | None = None
    """Limits on the actions, in raw units; None if only the box bounds them."""
    referral: Any = None
    """What `decide` refers by: a `fat2thin.policies.decision.Referral`, or None if unknown."""
    allowed: tuple[ActionRows, ActionRows] | None = None
    """Lowest and highest allowed action of the rows that this policy is asked about (`within`)."""

    # By identity, so that `jax.jit(policy.act)` works: arrays have no hash.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __call__(self, observation: Any, last: Any = NOT_GIVEN) -> Distribution:
        """Return the distribution over actions, with event shape (action,)."""
        observation, last = self._checked(observation, last)
        if self._is_limited:
            return self._placed(observation, last).law
        return self.family.distribution(*self._head_and_box(observation))

    def support(self, observation: Any, last: Any = NOT_GIVEN) -> tuple[ActionRows, ActionRows]:
        """Return the lowest and the highest possible action, per coordinate."""
        observation, last = self._checked(observation, last)
        if self._is_uncompiled(observation):
            return self._support(observation, last)
        programs, arrays = _compiled(self)
        return programs.support(arrays, observation, last)

    def act(
        self, observation: Any, key: Key[Array, ""] | None = None, last: Any = NOT_GIVEN
    ) -> ActionRows:
        """Return an action in the box: a sample if a key is given, else the centre."""
        observation, last = self._checked(observation, last)
        if self._is_uncompiled(observation):
            return self._act(observation, key, last)
        programs, arrays = _compiled(self)
        action = programs.act(arrays, observation, key, last)
        if self.limits is not None and self.limits.fallback is None:
            self._refuse_without_action(observation, last, np.asarray(action))
        return action

    def with_limits(self, limits: Any) -> "Policy":
        """Return this policy inside limits: a TOML file, a mapping of texts, or `Limits`.

        They replace limits that it has. None removes them.
        """
        if limits is None:
            return dataclasses.replace(self, limits=None)
        self.family.check_limits()
        rules = LimitRules.read(limits)
        columns: Any = self.observation_columns, self.action_columns
        if not all(columns):
            if not isinstance(limits, Limits):
                raise ValueError(
                    "limits name columns, and this policy does not know its own: give `Limits`, or "
                    "take the policy from a run"
                )
            columns = limits.columns
        box = (np.asarray(end, np.float64).tolist() for end in (self.low, self.high))
        return dataclasses.replace(self, limits=rules.bind(*columns, *box))

    def within(self, allowed: tuple[ActionRows, ActionRows] | None) -> "Policy":
        """Return this policy in known intervals of allowed actions; None changes nothing.

        They are the lowest and the highest allowed action in each of the rows that the result is
        asked about. Updates use it, where limits are known per row.
        """
        return self if allowed is None else dataclasses.replace(self, allowed=allowed)

    def interval(self, observation: Any, last: Any = NOT_GIVEN) -> Interval:
        """Return the allowed actions of raw observations, with the limits that set them."""
        if self.limits is None:
            raise ValueError("this policy has no limits; with_limits puts some around it")
        observation, last = self._checked(observation, last)
        if isinstance(observation, Tracer) or isinstance(self.low, Tracer):
            return self.limits.interval(observation, last)
        return _intervals(self.limits)(observation, last)

    def binding(self, observation: Any, last: Any = NOT_GIVEN) -> Bool[Array, "*rows limits"]:
        """Return which limits exclude an action that the policy could take without limits."""
        if self.limits is None:
            raise ValueError("this policy has no limits; with_limits puts some around it")
        observation, last = self._checked(observation, last)
        if self._is_uncompiled(observation):
            return self._binding(observation, last)
        programs, arrays = _compiled(self)
        return programs.binding(arrays, observation, last)

    def _checked(self, observation: Any, last: Any) -> tuple[Any, Any]:
        """Return observation and last action in the policy's type; refuse unusable ones."""
        observation = _checked(observation, self.low.dtype, self.observation_columns)
        if not self.needs_last_action:
            return observation, None
        if last is NOT_GIVEN:
            raise ValueError(
                "limits depend on the last action: give last=..., or last=None at the first step "
                "of an episode"
            )
        shape = (*observation.shape[:-1], self.low.size)
        if last is None:
            return observation, jnp.full(shape, jnp.nan, self.low.dtype)
        last = jnp.asarray(last, self.low.dtype)
        if last.shape not in (shape, shape[-1:]):
            raise ValueError(
                f"the last action must have the shape {shape} of the actions, got {last.shape}"
            )
        return observation, jnp.broadcast_to(expand_to_rank(last, len(shape)), shape)

    def _refuse_without_action(self, observation: Any, last: Any, action: np.ndarray) -> None:
        """Raise for the first state without an allowed action, with the limits that are why."""
        missing = np.isnan(action).any(axis=-1)
        if not missing.any():
            return
        found = self.interval(observation, last)
        row = tuple(np.argwhere(missing)[0].tolist())
        assert self.limits is not None
        why = self.limits.reasons(jax.tree.map(lambda part: part[row], found))
        where = f"row {', '.join(map(str, row))}" if row else "this state"
        more = f" ({int(missing.sum()):,} states)" if missing.sum() > 1 else ""
        raise ValueError(
            f"no action is allowed in {where}{more}: {'; '.join(why)}. Ask `interval` before "
            "acting, or add a fallback to the limits"
        )

    def agreement(self, observation: Any, last: Any = NOT_GIVEN) -> Agreement:
        """Return how far the seeds agree in each state; one seed agrees with itself."""
        return Agreement(*self.act_and_agree(observation, last=last)[1:])

    def decide(
        self, observation: Any, key: Key[Array, ""] | None = None, last: Any = NOT_GIVEN
    ) -> Any:
        """Return an action, or a referral with its reasons, for each state.

        The result is a `fat2thin.policies.decision.Decision`. Nothing is raised for the values of a
        state: an invalid one is referred. A policy of `run.policy()` knows its log; others get it
        with `fat2thin.policies.decision.with_referral`.
        """
        from fat2thin.policies.decision import decide  # it needs this class

        return decide(self, observation, key, last)

    def act_and_agree(
        self, observation: Any, key: Key[Array, ""] | None = None, last: Any = NOT_GIVEN
    ) -> tuple[Array, Array, Array]:
        """Return the action, the disagreement and the overlap of each state, in one program."""
        observation, last = self._checked(observation, last)
        if self._is_uncompiled(observation):
            return self._act_and_agree(observation, key, last)
        programs, arrays = _compiled(self)
        return programs.act_and_agree(arrays, observation, key, last)

    def in_box(self, low: tuple[float, ...], high: tuple[float, ...]) -> "Policy":
        """Return the same policy for another action box, in that box's units."""
        return dataclasses.replace(self, low=jnp.asarray(low), high=jnp.asarray(high))

    def on_raw(
        self, mean: Float[Array, " observation"], scale: Float[Array, " observation"],
        observation_transforms: Transforms = (), action_transforms: Transforms = (),
    ) -> "Policy":  # fmt: skip
        """Return a policy on raw observations, if this one takes (transformed − mean) / scale.

        With `action_transforms`, this policy's actions are transformed ones.
        """
        network = StandardisedNetwork(self.network, mean, scale, observation_transforms)
        family = Transformed(self.family, action_transforms) if action_transforms else self.family
        return dataclasses.replace(self, network=network, family=family)

    @property
    def needs_last_action(self) -> bool:
        """Whether acting needs the last action, because of a limit on changes."""
        return self.limits is not None and self.limits.needs_last_action

    @property
    def _is_limited(self) -> bool:
        return self.limits is not None or self.allowed is not None

    def _is_uncompiled(self, observation: Any) -> bool:
        """Whether this call is part of another program, or its intervals are of this call alone."""
        traced = isinstance(observation, Tracer) or isinstance(self.low, Tracer)
        return traced or self.allowed is not None

    def _support(self, observation: Any, last: Any = None) -> tuple[Array, Array]:
        if self._is_limited:
            placed = self._placed(observation, last)
            return placed.low, placed.high
        return self.family.support(*self._head_and_box(observation))

    def _act(self, observation: Any, key: Array | None, last: Any = None) -> Array:
        if self._is_limited:
            placed = self._placed(observation, last)
            action = placed.centre if key is None else placed.law.sample(key)
            return jnp.clip(action, placed.low, placed.high)
        head, *box = self._head_and_box(observation)
        if key is None:
            action = self.family.centre(head, *box)
        else:
            action = self.family.distribution(head, *box).sample(key)
        # The box comes last, because the support of some families is wider than the box.
        return jnp.clip(jnp.clip(action, *self.family.support(head, *box)), *box)

    def _binding(self, observation: Any, last: Any) -> Array:
        assert self.limits is not None
        observation = jnp.asarray(observation)
        head, *box = self._head_and_box(observation)
        low, high = (jnp.clip(end, *box) for end in self.family.support(head, *box))
        alone = (one.excludes(low, high, observation, last) for one in self.limits.single)
        return jnp.stack([*alone], axis=-1)

    def _placed(self, observation: Any, last: Any) -> Placed:
        """Return the law in the allowed intervals."""
        ends = self.allowed
        if ends is None:
            assert self.limits is not None
            ends = self.limits.ends(jnp.asarray(observation), last)
        return self.family.limited(*self._head_and_box(observation), *ends)

    def _act_and_agree(
        self, observation: Any, key: Array | None, last: Any
    ) -> tuple[Array, Array, Array]:
        agreement = getattr(self.network, "agreement", None)
        rows = observation.shape[:-1]
        alone = Agreement(jnp.zeros(rows, self.low.dtype), jnp.ones(rows, bool))
        found = alone if agreement is None else agreement(jnp.asarray(observation))
        return self._act(observation, key, last), *found

    def _head_and_box(self, observation: Any) -> tuple[Head, Array, Array]:
        """Return the head, and the box expanded to the rank of the observation."""
        observation = jnp.asarray(observation)
        rank, head = observation.ndim, self.network(observation)
        return head, expand_to_rank(self.low, rank), expand_to_rank(self.high, rank)


class _Programs(NamedTuple):
    """Compiled calls for all policies of one structure; they take the policy's arrays first."""

    act: Callable[..., Array]
    support: Callable[..., tuple[Array, Array]]
    act_and_agree: Callable[..., tuple[Array, Array, Array]]
    binding: Callable[..., Array]


_COMPILED: weakref.WeakKeyDictionary[Policy, tuple[_Programs, list[Array]]]
_COMPILED = weakref.WeakKeyDictionary()


def _compiled(policy: Policy) -> tuple[_Programs, list[Array]]:
    """Return a policy's programs and arrays, cached: finding them takes longer than an action."""
    found = _COMPILED.get(policy)
    if found is None:
        # Without names, units and referral: they must not cause a compilation.
        plain = Policy(policy.network, policy.low, policy.high, policy.family, limits=policy.limits)
        leaves, structure = jax.tree.flatten(plain)
        fixed = tuple(None if eqx.is_array(leaf) else leaf for leaf in leaves)
        arrays = [leaf for leaf in leaves if eqx.is_array(leaf)]
        found = _COMPILED[policy] = _programs(structure, fixed), arrays
    return found


@functools.lru_cache(maxsize=64)
def _programs(structure: Any, fixed: tuple[Any, ...]) -> _Programs:
    """Return the programs of a structure; `fixed` are leaves that are not arrays, else None."""

    def rebuilt(arrays: list[Array]) -> Policy:
        left = iter(arrays)
        leaves = [next(left) if leaf is None else leaf for leaf in fixed]
        return jax.tree.unflatten(structure, leaves)

    def act(arrays: list[Array], seen: Any, key: Array | None, last: Array | None) -> Array:
        return rebuilt(arrays)._act(seen, key, last)

    def support(arrays: list[Array], seen: Any, last: Array | None) -> tuple[Array, Array]:
        return rebuilt(arrays)._support(seen, last)

    def act_and_agree(
        arrays: list[Array], seen: Any, key: Array | None, last: Array | None
    ) -> tuple[Array, Array, Array]:
        return rebuilt(arrays)._act_and_agree(seen, key, last)

    def binding(arrays: list[Array], seen: Any, last: Array | None) -> Array:
        return rebuilt(arrays)._binding(seen, last)

    return _Programs(*(jax.jit(one) for one in (act, support, act_and_agree, binding)))


@functools.lru_cache(maxsize=64)
def _intervals(limits: Limits) -> Callable[..., Interval]:
    return jax.jit(limits.interval)


def _checked(observation: Any, dtype: Any, columns: Sequence[Column]) -> Any:
    """Return the observation in the policy's type; refuse one that it cannot act on."""
    traced = isinstance(observation, Tracer)
    if not traced:
        observation = np.asarray(observation)
    if columns and observation.shape[-1:] != (len(columns),):
        found = observation.shape[-1] if observation.ndim else "no axis"
        names = ", ".join(column.name for column in columns)
        raise ValueError(
            f"an observation has {len(columns)} numbers ({names}), this one has {found}"
        )
    if traced:
        return observation.astype(dtype)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
        observation = observation.astype(dtype)
    _refuse_unusable(observation, columns)
    return observation


def _refuse_unusable(observation: np.ndarray, columns: Sequence[Column]) -> None:
    """Raise for a number that is not finite or below what a logarithm allows, with its place."""
    wrong = ~np.isfinite(observation)
    fault, why = "are not finite", "observations must be finite"
    if not wrong.any():
        transforms = transforms_of(columns)
        wrong = ~np.isfinite(transform(observation, transforms)) if transforms else wrong
        if not wrong.any():
            return
        fault = "are too small"
        why = "the policy learned the logarithm of this column, which needs a larger number"
    *row, column = place = tuple(np.argwhere(wrong)[0].tolist())
    name = columns[column].name if columns else f"observation {column}"
    of_row = f" of row {', '.join(map(str, row))}" if row else ""
    more = f" ({int(wrong.sum()):,} numbers {fault})" if wrong.sum() > 1 else ""
    raise ValueError(
        f"{name}{of_row} is {observation[place]:g}{more}: {why}. "
        "Fill in missing values, or skip this row"
    )


class Sampled(eqx.Module):
    """Acts by sampling a policy."""

    policy: Any
    """A `Policy`, or one with a fallback (`fat2thin.policies.decision.Cautious`)."""

    @property
    def needs_last_action(self) -> bool:
        """Whether it must be called with the last action, nan at the first step of an episode."""
        return self.policy.needs_last_action

    def __call__(self, key: Key[Array, ""], observation: Array, last: Any = NOT_GIVEN) -> Array:
        """Return a sampled action."""
        return self.policy.act(observation, key, last)


class Centred(Sampled):
    """Acts at the centre of a policy."""

    def __call__(self, key: Key[Array, ""], observation: Array, last: Any = NOT_GIVEN) -> Array:
        """Return the action at the centre; the key is not used."""
        return self.policy.act(observation, None, last)


WAYS: dict[str, type[Sampled]] = {"sampled": Sampled, "centre": Centred}
"""The ways in which a policy is evaluated, by name."""


def unit_policy(
    network: PolicyNetwork,
    family: Family,
    scale_bounds: tuple[float, float],
    state_dependent_scale: bool = True,
) -> Policy:
    """Return a policy in half-ranges of the box, as algorithms use it during training."""
    size = network.centre.bias.shape[-1]
    bounded = BoundedNetwork(network, scale_bounds, family.squashes_centre, state_dependent_scale)
    return Policy(bounded, -jnp.ones(size), jnp.ones(size), family)


def in_half_ranges(action: Any, low: Any, high: Any) -> Any:
    """Convert actions to half-ranges of the box: -1 is its low end, 1 its high end.

    The result is clipped, because rounding may put an action at an end of the box beyond it, where
    some families have no density. It carries no gradient. NumPy arrays stay on the host, and have
    the same bits there.
    """
    if isinstance(action, np.ndarray):
        # XLA multiplies by the reciprocal of a broadcast divisor.
        placed = (action - (low + high) / 2.0) * (1.0 / ((high - low) / 2.0))
        return np.clip(placed, -1.0, 1.0)
    low, high = (expand_to_rank(end, action.ndim) for end in (low, high))
    placed = (action - (low + high) / 2.0) / ((high - low) / 2.0)
    return lax.stop_gradient(jnp.clip(placed, -1.0, 1.0))
