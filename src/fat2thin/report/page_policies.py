"""The policies of a run for the HTML page: outputs in a few states, trajectories, and networks.

Weights are 16-bit integers with one scale per row of a matrix: half the size of float32, and about
ten times as precise as float16. If networks are too large, the page has Q in a few states instead.
"""

import base64
import dataclasses
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import stats

from fat2thin.columns import Column, Transforms, have_names, inverse_transform, transform
from fat2thin.data import Dataset
from fat2thin.envs import treatment
from fat2thin.envs.treatment import Treatment
from fat2thin.policies.families import Family, Transformed
from fat2thin.policies.limits import Limits
from fat2thin.policies.networks import Critics
from fat2thin.policies.plain import (
    NotPlainError,
    PlainLayer,
    plain_family,
    plain_part,
    plain_policy,
)
from fat2thin.policies.policy import Policy
from fat2thin.runs.result import Run

Plain = dict[str, Any]  # values for JSON

LOGGED_PAIRS = 300  # logged steps per log
PATIENTS = 3  # trajectories of the treatment task per run
VIEW = 1.3
"""Range of actions shown, in half-ranges of the box from its middle; also used by the scripts."""
GRID = 61  # points of a curve that is not computed in the page
CENTRAL = 0.9  # central share of a policy that is shaded
_PATIENT_SEED = 0
WEIGHT_BYTES = 3_000_000
"""Maximum number of characters of all weights; the page should stay below 5 MB."""
_LARGEST_LEVEL = 32767


def rounded(values: Any, digits: int = 5) -> Any:
    """Return nested lists of numbers with `digits` significant digits; None if not finite."""
    array = np.asarray(values, np.float64)
    if array.ndim:
        return [rounded(row, digits) for row in array]
    return float(f"{array:.{digits}g}") if np.isfinite(array) else None


def good_seed(run: Run) -> int:
    """Return the first seed that did not stop, or the first seed if all stopped."""
    stopped = {int(seed) for seed in run.about.get("stopped", {})}
    return next((seed for seed in run.spec.seeds if seed not in stopped), run.spec.seeds[0])


def spread(count: int, most: int) -> np.ndarray:
    """Return at most `most` of `count` indices: the first, the last, and evenly spaced others."""
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, most)).round().astype(int))


def look_at(run: Run, seed: int, log: Dataset | None, most_states: int, most_steps: int) -> Plain:
    """Return everything the page shows of the policies of a seed, except the weights."""
    problem, columns = run.program.problem, run.columns
    names, states = _picked_states(run, seed, log, most_states)
    kept = sorted({*run.snapshots, run.step})
    steps = [kept[place] for place in spread(len(kept), most_steps)]
    actors = [run.policy(seed, step) for step in steps]
    fats = [run.proposal(seed, step) for step in steps] if run.program.algorithm.proposal else []
    ranges = columns.ranges.get("observation", ((None, None),) * len(columns.observation))
    return {
        "seed": seed,
        "stopped": str(seed) in run.about.get("stopped", {}),
        "selected": run.about.get("selected", {}).get(str(seed)),
        "low": rounded(problem.action_low, 7),
        "high": rounded(problem.action_high, 7),
        "actions": _described("action", columns.action, problem.action_transforms),
        "observations": [
            {**one, "range": [low, high]}
            for one, (low, high) in zip(
                _described("observation", columns.observation, problem.observation_transforms),
                ranges,
                strict=True,
            )
        ],
        "limits": _limits(problem.limits),
        "names": names,
        "states": rounded(states),
        "steps": steps,
        "actor": _answers(actors, states),
        "proposal": _answers(fats, states) if fats else None,
        "trajectory": _trajectory(run, actors[-1], fats[-1] if fats else None),
    }


def _described(kind: str, columns: Sequence[Column], transforms: Transforms) -> list[Plain]:
    """Return the label, the name, the unit and the transform of each column for the page."""
    named = have_names(kind, columns)
    alone = len(columns) == 1
    return [
        {
            "name": column.name if named else kind if alone else f"{kind} {place}",
            "label": column.label if named else kind if alone else f"{kind} {place}",
            "unit": column.unit if named else "",
            "transform": None if one is None else dataclasses.asdict(one),
        }
        for place, (column, one) in enumerate(
            zip(columns, transforms or (None,) * len(columns), strict=True)
        )
    ]


def _limits(limits: Limits | None) -> Plain | None:
    """Return limits as the page's scripts read them."""
    if limits is None:
        return None
    return {
        "parsed": [dataclasses.asdict(limit) for limit in limits.parsed],
        "fallback": limits.fallback,
        "rates": limits.needs_last_action,
    }


def _picked_states(
    run: Run, seed: int, log: Dataset | None, count: int
) -> tuple[list[str], Float[np.ndarray, "states observation"]]:
    """Return names and values of the states shown: a typical state and some logged ones."""
    scale, transforms = run.jobs.observation_scale, run.program.problem.observation_transforms
    ranges = run.columns.ranges.get("observation")
    if scale is not None:
        # A policy that standardises observations knows the mean of its log.
        name = "mean of the transformed log" if transforms else "mean of the log"
        mean = np.asarray(scale.mean[run.spec.seeds.index(seed)], np.float64)
        names, states = [name], [inverse_transform(mean, transforms)]
    elif ranges:
        ends = transform(np.asarray(ranges, np.float64).T, transforms)
        names = ["middle of the logged ranges"]
        states = [inverse_transform(ends.mean(axis=0), transforms)]
    else:
        zeros = np.zeros(run.program.problem.observation_size)
        names, states = ["all zeros"], [inverse_transform(zeros, transforms)]
    if log is not None:
        rows = np.linspace(0, log.rows - 1, count).astype(int)[: count - 1]
        names += [f"logged step {row}" for row in rows]
        states += [*log.observation[rows]]
    # Rounded first: outputs must belong to the numbers that the page shows.
    return names, np.array([[float(f"{value:.5g}") for value in state] for state in states])


def law_of(family: Family) -> Plain | None:
    """Return the family as the page's scripts describe it; None if they do not know it.

    The scripts apply the transforms of a `Transformed` family themselves.
    """
    found = plain_family(family)
    return None if found is None else found.settings()


class _Answer(NamedTuple):
    """Outputs of a policy, shape (states, action)."""

    centre: Array
    log_scale: Array
    act: Array
    low: Array
    high: Array


@eqx.filter_jit
def _ask(
    policy: Policy, seen: Float[Array, "states observation"], last: Array | None = None
) -> _Answer:
    head, ends = policy.network(seen), policy.support(seen, last)
    return _Answer(head.centre, head.log_scale, policy.act(seen, None, last), *ends)


@eqx.filter_jit
def _log_density(policy: Policy, seen: Array, actions: Array) -> Array:
    return policy(seen, None).log_prob(actions)


def _answers(policies: list[Policy], states: Float[np.ndarray, "states observation"]) -> Plain:
    """Return network outputs per step for a known family; otherwise densities on a grid."""
    family, seen = law_of(policies[-1].family), jnp.asarray(states, jnp.float32)
    if family is not None:
        answers = [_ask(policy, seen) for policy in policies]
        heads = [np.stack([answer.centre, answer.log_scale], axis=1) for answer in answers]
        return {"family": family, "heads": rounded(heads, 7)}
    return {"family": None, "drawn": [_drawn(policy, seen) for policy in policies]}


def _drawn(policy: Policy, seen: Float[Array, "states observation"]) -> Plain:
    """Return the support, the centre and, for one coordinate, the density on a grid."""
    answer = _ask(policy, seen)
    low, high = np.asarray(answer.low), np.asarray(answer.high)
    drawn = {"low": rounded(low), "high": rounded(high), "centre": rounded(answer.act)}
    if policy.low.size > 1:
        return drawn
    middle, reach = (policy.low + policy.high) / 2.0, VIEW * (policy.high - policy.low) / 2.0
    ends = np.clip(low, middle - reach, None), np.clip(high, None, middle + reach)
    actions = jnp.asarray(np.linspace(*ends, GRID), jnp.float32)
    density = np.exp(np.asarray(_log_density(policy, seen, actions)))
    return {**drawn, "actions": rounded(actions[..., 0].T), "density": rounded(density.T)}


def _trajectory(run: Run, policy: Policy, fat: Policy | None) -> Plain | None:
    """Return doses for a few patients treated with the centre, shape (patients, time)."""
    if not treatment.is_name(run.spec.dataset) or run.spec.task is not None:
        return None
    fat = policy if fat is None else fat
    courses = _courses(policy, fat, treatment.by_name(run.spec.dataset))
    thin, wide = jax.tree.map(lambda of_steps: np.swapaxes(of_steps, 0, 1), courses)
    course = {
        "low": np.clip(thin.low, policy.low, policy.high),
        "high": np.clip(thin.high, policy.low, policy.high),
        "centre": thin.act,
        **_central(fat, wide),
    }
    return {name: rounded(doses[..., 0]) for name, doses in course.items()}


@eqx.filter_jit
def _courses(policy: Policy, fat: Policy, task: Treatment) -> tuple[_Answer, _Answer]:
    """Return outputs of both policies, shape (time, patients, 1); the first one's centre acts."""
    keys = jax.random.split(jax.random.key(_PATIENT_SEED), PATIENTS)

    def step(now: tuple[treatment.Patient, Array], time: Array) -> tuple[Any, Any]:
        patients, seen = now
        last = patients.last_dose[:, None]
        answer = _ask(policy, seen, last)
        later = jax.vmap(
            lambda key, state, dose: treatment.step(
                jax.random.fold_in(key, time + 1), state, dose, task
            )[:2]
        )(keys, patients, answer.act)
        return later, (answer, _ask(fat, seen, last))

    start = jax.vmap(lambda key: treatment.reset(key, task))(keys)
    return jax.lax.scan(step, start, jnp.arange(task.horizon))[1]


def _central(policy: Policy, answer: _Answer) -> dict[str, np.ndarray]:
    """Return the ends of the central part of a policy, clipped to its box; empty if unknown."""
    law = law_of(policy.family)
    if law is None:
        return {}
    box = [np.asarray(end, np.float64) for end in (policy.low, policy.high)]
    transforms = policy.family.transforms if isinstance(policy.family, Transformed) else ()
    low, high = (transform(end, transforms) for end in box)
    head = np.asarray(answer.centre, np.float64), np.asarray(answer.log_scale, np.float64)
    middle, reach = (low + high) / 2.0, (high - low) / 2.0
    tail = (1.0 - CENTRAL) / 2.0
    ends = {"fat_low": tail, "fat_high": 1.0 - tail}
    return {
        name: np.clip(
            inverse_transform(middle + reach * quantile(law, *head, share), transforms), *box
        )
        for name, share in ends.items()
    }


def quantile(
    law: Plain, centre: np.ndarray, log_scale: np.ndarray, share: float | np.ndarray
) -> Float[np.ndarray, "*rows action"]:
    """Return the quantile of a distribution at `share`, in half-ranges."""
    scale = np.exp(log_scale)
    match law:
        case {"kind": "sparse", "index": index, "box": box}:
            # On its band it is a symmetric Beta distribution.
            concentration = 1.0 / (1.0 - index) + 1.0
            unit = 2.0 * stats.beta.ppf(share, concentration, concentration) - 1.0
            width = scale if box == "clip" else np.minimum(scale, 1.0)
            at = centre if box == "clip" else np.clip(centre, width - 1.0, 1.0 - width)
            return at + width * unit
        case {"kind": "heavy", "index": 1.0}:
            return stats.norm.ppf(share, centre, scale)
        case {"kind": "heavy", "index": index}:
            freedom = (3.0 - index) / (index - 1.0)
            return stats.t.ppf(share, freedom, centre, scale * np.sqrt(2.0 / (3.0 - index)))
        case {"kind": "student", "freedom": freedom}:
            return stats.t.ppf(share, freedom, centre, scale)
        case {"kind": "squashed"}:
            return np.tanh(stats.norm.ppf(share, centre, scale))
        case {"kind": "beta"}:
            place, strength = (1.0 + centre) / 2.0, scale**-2.0
            above, below = 1.0 + place * strength, 1.0 + (1.0 - place) * strength
            return 2.0 * stats.beta.ppf(share, above, below) - 1.0
        case {"kind": "deterministic"}:
            return centre
    raise ValueError(f"the quantiles of {law!r} are not known")


def logged_pairs(log: Dataset) -> Plain:
    """Return logged states and actions, evenly spaced in the log."""
    rows = np.unique(np.linspace(0, log.rows - 1, min(LOGGED_PAIRS, log.rows)).astype(int))
    spread = np.std(log.observation, axis=0)
    return {
        "rows": log.rows,
        "states": rounded(log.observation[rows], 4),
        "actions": rounded(log.action[rows], 5),
        "spread": rounded(np.where(spread > 0, spread, 1.0), 5),
    }


def add_weights(shown: Sequence[tuple[Run, Plain]]) -> None:
    """Add weights to as many policies as fit, and Q values to the others.

    The first seeds of all runs come before the others, and small networks before large ones.
    """

    def size(pair: tuple[Run, Plain]) -> tuple[bool, int, int]:
        run, policies = pair
        other = policies["seed"] != good_seed(run)
        return other, run.program.problem.action_size, _weight_count(run)

    left = WEIGHT_BYTES
    for run, policies in sorted(shown, key=size):
        seed = policies["seed"]
        critic = _critic(run, seed)
        # A weight takes about 8/3 characters: skip encoding if that cannot fit.
        fits = _weight_count(run) * 8 // 3 <= left
        encoded = weights(run, seed, critic) if fits else None
        length = len(json.dumps(encoded))
        if encoded is not None and length <= left:
            policies["weights"] = encoded
            left -= length
            continue
        policies["weights"] = None
        policies["unknown_family"] = fits and encoded is None
        if critic is not None:
            policies |= _values(run, policies, critic)


def _critic(run: Run, seed: int) -> Critics | None:
    """Return the critics of a seed as discounted returns; None for an algorithm without critics."""
    critics, place = run.program.algorithm.critics, run.spec.seeds.index(seed)
    if critics is None:
        return None
    # On the host: on a device, indexing each leaf would compile a program.
    state = jax.tree.map(lambda leaf: leaf[place], jax.device_get(run.states))
    found = critics(state, run.program.problem, run.program.config)
    if run.jobs.value_level is None:
        return found
    level = np.asarray(run.jobs.value_level)[place]
    return eqx.tree_at(
        lambda one: one.members.head.bias, found, replace_fn=lambda bias: bias + level
    )


def _weight_count(run: Run) -> int:
    """Return the approximate number of weights of a policy and its critics."""
    hidden, problem = getattr(run.spec.config, "hidden", ()), run.program.problem
    sizes = (problem.observation_size, *hidden, 1)
    networks = 1 + getattr(run.spec.config, "critic_count", 2)
    return networks * sum(inputs * outputs for inputs, outputs in zip(sizes, hidden, strict=False))


def _values(run: Run, looked_at: Plain, critic: Critics) -> Plain:
    """Return the smallest Q along each coordinate, the other coordinates at the actor's centre.

    Critics take transformed observations, and actions in half-ranges of the transformed box.
    """
    policy, scale = run.policy(looked_at["seed"]), run.jobs.observation_scale
    problem = run.program.problem
    states = jnp.asarray(looked_at["states"], jnp.float32)
    low, high, acted = (
        transform(values, problem.action_transforms, jnp)
        for values in (policy.low[None], policy.high[None], policy.act(states, None, None))
    )
    centre = (acted - low) / (high - low) * 2.0 - 1.0
    states = transform(states, problem.observation_transforms, jnp)
    if scale is not None:
        index = run.spec.seeds.index(looked_at["seed"])
        states = (states - scale.mean[index][None]) / scale.scale[index][None]
    grid = np.linspace(-1.0, 1.0, GRID, dtype=np.float32)
    along = np.broadcast_to(centre[:, None, None], (*centre.shape, GRID, centre.shape[-1])).copy()
    for coordinate in range(centre.shape[-1]):
        along[:, coordinate, :, coordinate] = grid
    rows = jnp.broadcast_to(states[:, None, None], (*along.shape[:-1], states.shape[-1]))
    return {"values": rounded(_smallest(critic, rows, jnp.asarray(along)))}


@eqx.filter_jit
def _smallest(critic: Critics, states: Array, actions: Array) -> Array:
    return jax.tree.map(jnp.asarray, critic).minimum(states, actions)


class EncodedArrays:
    """Encoded matrices, each stored once."""

    def __init__(self) -> None:
        self.encoded: list[Plain] = []
        self._places: dict[bytes, int] = {}

    def part(self, part: Any) -> Any:
        """Encode a layer, several layers, or plain numbers."""
        if isinstance(part, PlainLayer):
            return self._layer(part)
        if isinstance(part, tuple) and isinstance(part[0], PlainLayer):
            return [self._layer(layer) for layer in part]
        return part if part is None or isinstance(part, bool) else rounded(part, 8)

    def _layer(self, layer: PlainLayer) -> Plain:
        weight = np.asarray(layer.weight, np.float32)
        known = weight.tobytes()
        if known not in self._places:
            self._places[known] = len(self.encoded)
            largest = np.max(np.abs(weight), axis=1)
            step = np.where(largest > 0, largest / _LARGEST_LEVEL, 1.0).astype("<f4")
            levels = np.rint(weight / step[:, None]).astype("<i2")
            parts = {"steps": step, "levels": levels}
            text = {name: base64.b64encode(of.tobytes()).decode() for name, of in parts.items()}
            self.encoded.append({"inputs": weight.shape[1], **text})
        encoded = {"weight": self._places[known], "bias": rounded(layer.bias, 7)}
        if layer.norm is not None:
            encoded["norm"] = [rounded(part, 7) for part in layer.norm]
        return encoded


def weights(run: Run, seed: int, critic: Critics | None) -> Plain | None:
    """Return the networks of actor, proposal and critics; None if the page cannot compute them."""
    arrays = EncodedArrays()
    policies = {"actor": run.policy(seed)}
    if run.program.algorithm.proposal:
        policies["proposal"] = run.proposal(seed)
    networks: Plain = {name: _network(policy, arrays) for name, policy in policies.items()}
    if any(network is None for network in networks.values()):
        return None
    if critic is not None:
        networks["critics"] = []
        for place in range(critic.members.head.bias.shape[0]):
            one = jax.tree.map(lambda leaf, place=place: leaf[place], critic.members)
            network = {
                name: arrays.part(plain_part(getattr(one, name))) for name in ("trunk", "head")
            }
            networks["critics"].append(network)
    if transforms := run.program.problem.observation_transforms:
        networks["transforms"] = [one and dataclasses.asdict(one) for one in transforms]
    scale = run.jobs.observation_scale
    if scale is not None:
        index = run.spec.seeds.index(seed)
        networks["mean"] = rounded(scale.mean[index], 8)
        networks["scale"] = rounded(scale.scale[index], 8)
    return {**networks, "arrays": arrays.encoded}


def _network(policy: Policy, arrays: EncodedArrays) -> Plain | None:
    """Return a policy's network: trunk, heads, and transformations of their outputs."""
    try:
        (member,) = plain_policy(policy).members
    except NotPlainError:
        return None
    kept = {**vars(member), "mean": None, "scale": None}
    return {name: arrays.part(part) for name, part in kept.items() if part is not None}
