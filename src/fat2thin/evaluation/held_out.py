"""Evaluation of policies on logged steps that no update saw; no simulator is needed.

This works for every algorithm: its own `update` runs on these steps with a learning rate of zero,
so that no network changes, and the metrics it reports are averaged. `signals` measures a policy
during training, inside the compiled program; `held_out` and `validate` take a finished run.
Densities are per half-range of the action box. Signals are in the units of the scaled rewards; a
value outside the range that these allow is not estimable, and nan.
"""

import dataclasses
import functools
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from fat2thin import data
from fat2thin.algorithms.base import (
    Algorithm,
    Batch,
    Metrics,
    Problem,
    State,
    with_level,
    with_numbers,
)
from fat2thin.columns import Column, have_names
from fat2thin.data import Dataset
from fat2thin.data.operations import learned_and_held_out
from fat2thin.data.scaling import Scales, centred
from fat2thin.evaluation.batches import batch_of, problem_of
from fat2thin.evaluation.fitted_q import Part, part_values
from fat2thin.evaluation.limited import with_limits
from fat2thin.policies.policy import Policy
from fat2thin.random_streams import Stream, stream_key
from fat2thin.tables import Table, listed
from fat2thin.terminal_text import counted

Quantities = dict[str, Float[np.ndarray, " seeds"]]

PREFIX = "held_out_"
VALUE, LIKELIHOOD = "held_out_value", "held_out_log_likelihood"
NOT_ESTIMABLE = "not estimable: outside what the rewards allow"
"""Explanation of a value that is nan."""
SIGNALS = {
    "held_out_value": "value of the policy that acts, by fitted Q evaluation: a Q with few "
    "features, fitted on each of the two parts of the log and evaluated in the states of the "
    f"other; missing where it is {NOT_ESTIMABLE}",
    "held_out_value_unseen": "the same, by the Q fitted on the part that no update sees",
    "held_out_td_error": "root mean square of Q − (r + γ next value) on held-out steps",
    "held_out_log_likelihood": "mean log density of held-out actions, weighted as in training",
    "held_out_inside": "share of held-out actions that the policy could have taken",
    "held_out_inside_least": "the same in the coordinate where it is smallest",
    "learned_inside": "share of the training actions that the policy could have taken",
    "held_out_calibration": "correlation of Q with the observed discounted return; 0 if one of "
    "them is constant",
    "held_out_spread": "standard deviation of the critics at the policy's actions, averaged",
}
"""Description of each signal."""
INSIDE = "logged_inside_support"
MEANINGS = {
    INSIDE: "share of logged actions that the policy could have taken",
    "good_inside_support": "the same among actions whose Q is above the value of their state",
    "support_percent": "width of the policy's support, in per cent of the action box",
    "td_error": "root mean square of Q − (r + γ next value), in units of the reward",
    "weighted_log_likelihood": "mean log density of logged actions, weighted as in training",
    "log_likelihood": "the same with equal weights; −inf if the policy excludes an action",
}
"""Description of each quantity of `held_out`; algorithms describe their own metrics. Densities are
per half-range of the box, those of the proposal if there is one, and without limits."""
HARDLY = 0.05  # share of the logged actions below which a log hardly covers a policy
TIMES = 1.5  # ratio of training to held-out results above which a policy looks overfitted
ANYTHING = 99.9  # per cent of the box above which a band excludes nothing


class Watched(NamedTuple):
    """Logged steps that signals are computed from: held-out ones, and ones used for training."""

    held_out: Batch
    observed_return: Float[Array, "*logs rows"]
    """The discounted sum of rewards from each held-out step to the end of its episode."""
    learned: Batch
    counts: Float[Array, "*logs 2"]
    """Number of distinct rows of the held-out part, and of the part used for training."""
    noisy: Bool[Array, "*logs"]
    """Whether the next observation is mostly unpredictable (`data.predictability`)."""
    reachable: Float[Array, "*logs 2"]
    """The smallest and the largest return that the log's rewards allow (`data.operations`)."""
    level: Float[Array, "*logs"]
    """Values of the rows' centred rewards are lower by this level."""

    @property
    def value_range(self) -> Float[Array, "*logs 2"]:
        """The smallest and the largest value that the centred rewards allow."""
        return self.reachable - self.level[..., None]


def signals(
    algorithm: Algorithm, state: State, watched: Watched, key: Key[Array, ""], problem: Problem,
    config: Any,
) -> dict[str, Float[Array, ""]]:  # fmt: skip
    """Return all signals of one job, without those that do not apply to the algorithm."""
    rows = watched.held_out
    metrics = _without_learning(algorithm, state, rows, key, problem, config)
    policy = algorithm.policy(state, _in_half_ranges(problem), config)
    inside, inside_learned = _inside(policy, rows), _inside(policy, watched.learned)
    parts = Part(rows, watched.counts[0]), Part(watched.learned, watched.counts[1])

    def act(
        observation: Array, key: Array, allowed: tuple[Array, Array] | None = None
    ) -> Float[Array, "rows action"]:
        return policy.within(allowed).act(observation, key)

    seen, unseen = part_values(*parts, act, key, problem.discount, watched.value_range)
    found = {
        "held_out_value": (seen + unseen) / 2.0 + watched.level,
        "held_out_value_unseen": unseen + watched.level,
        "held_out_inside": jnp.mean(jnp.all(inside, axis=-1).astype(jnp.float32)),
        "held_out_inside_least": jnp.min(jnp.mean(inside.astype(jnp.float32), axis=0)),
        "learned_inside": jnp.mean(jnp.all(inside_learned, axis=-1).astype(jnp.float32)),
    }
    if "critic_loss" in metrics:
        found["held_out_td_error"] = jnp.sqrt(2.0 * metrics["critic_loss"])
    if algorithm.weighted_loss:
        # Both are means over the same rows: sum(weight · log density) / sum(weight).
        loss = metrics[algorithm.weighted_loss]
        found["held_out_log_likelihood"] = -loss / metrics["weight_mean"]
    if algorithm.critics:
        critics = algorithm.critics(state, problem, config)
        logged = critics.minimum(rows.observation, rows.action)
        agreement = jnp.corrcoef(logged, watched.observed_return)[0, 1]
        found["held_out_calibration"] = jnp.where(jnp.isfinite(agreement), agreement, 0.0)
        chosen = critics(rows.observation, act(rows.observation, key, rows.allowed))
        found["held_out_spread"] = jnp.mean(jnp.std(chosen, axis=0))
    return found


def preference(found: Mapping[str, Any], noisy: Bool[Array, ""] | bool) -> Float[Array, "..."]:
    """Return the signal that selects best among the policies of a log; larger is better.

    It is the value if the log is noisy or the algorithm has no weights, else the likelihood;
    docs/guides/small_logs.md has the measurements.
    """
    if LIKELIHOOD not in found:
        return found[VALUE]
    return jnp.where(noisy, found[VALUE], found[LIKELIHOOD])


def _inside(policy: Policy, rows: Batch) -> Bool[Array, "rows action"]:
    """Return which coordinates of logged actions lie inside the policy's support."""
    low, high = policy.within(rows.allowed).support(rows.observation)
    return (low <= rows.action) & (rows.action <= high)


def _without_learning(
    algorithm: Algorithm, state: State, rows: Batch, key: Key[Array, ""], problem: Problem,
    config: Any,
) -> Metrics:  # fmt: skip
    """Return the mean metrics of an update with a learning rate of zero.

    An update computes some of its losses after its own gradient steps, which must change nothing.
    """
    still = with_numbers(config, {"learning_rate": 0.0})
    _, metrics = algorithm.update(state, rows, key, problem, still)
    return jax.tree.map(jnp.mean, with_level(metrics, problem))


def _in_half_ranges(problem: Problem) -> Problem:
    """Return the problem in the units of a batch's actions."""
    size = problem.action_size
    return dataclasses.replace(problem, action_low=(-1.0,) * size, action_high=(1.0,) * size)


@runtime_checkable
class FinishedRun(Protocol):
    """The attributes of a `fat2thin.runs.result.Run` that this module needs."""

    @property
    def spec(self) -> Any:
        """The specification."""

    @property
    def step(self) -> int:
        """The number of the last update."""

    @property
    def about(self) -> dict[str, Any]:
        """The contents of run.json."""

    @property
    def program(self) -> Any:
        """Algorithm, problem and config."""

    @property
    def states(self) -> State:
        """The states of all seeds."""

    @property
    def columns(self) -> Any:
        """The observation and the action columns."""

    def policy(self, seed: int | None = None) -> Policy:
        """Return the policy of all seeds, or of one."""


def held_out(run: FinishedRun, dataset: Dataset) -> Quantities:
    """Return the quantities of `MEANINGS` and the algorithm's metrics on a log, one per seed.

    With several action dimensions there is also "logged_inside_support[dose]" for each, by the name
    of the action, or by its number if the log has no names. The discount factor is the run's. XQL's
    critics use the Huber loss: its "td_error" is the square root of twice that loss.
    """
    of_seeds = [_means_over(run, dataset, index) for index in range(len(run.spec.seeds))]
    found, metrics = jax.tree.map(lambda *means: np.stack(means), *of_seeds)
    quantities = {INSIDE: found["all_inside"]}
    if found["inside"].shape[1] > 1:
        for name, inside in zip(_action_names(run), found["inside"].T, strict=True):
            quantities[f"{INSIDE}[{name}]"] = inside
    if "good" in found:
        quantities["good_inside_support"] = _ratio(found["good_inside"], found["good"])
    quantities["support_percent"] = 100.0 * found["width"]
    if "critic_loss" in metrics:
        # Critics learn from scaled rewards; the error is in the units of the log.
        factors = [_scales(run, index).reward_factor for index in range(len(of_seeds))]
        quantities["td_error"] = np.sqrt(2.0 * metrics["critic_loss"]) / np.asarray(factors)
    weighted_loss = run.program.algorithm.weighted_loss
    if weighted_loss:
        # Both are means over the same rows: sum(weight · log density) / sum(weight).
        loss = metrics[weighted_loss]
        quantities["weighted_log_likelihood"] = _ratio(-loss, metrics["weight_mean"])
    quantities["log_likelihood"] = found["log_likelihood"]
    # A metric of the algorithm that has one of these names is the same number.
    return quantities | {name: metrics[name] for name in sorted(metrics) if name not in quantities}


def _action_names(run: FinishedRun) -> list[str]:
    """Return the names of the action dimensions; numbers if the log has no names."""
    columns = run.columns.action
    named = have_names("action", columns)
    return [column.name if named else str(place) for place, column in enumerate(columns)]


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return part / whole, nan where the whole is 0."""
    return np.divide(part, whole, where=whole > 0, out=np.full_like(whole, np.nan))


def validate(run: FinishedRun, validation: Dataset, training: Dataset | None = None) -> Table:
    """Return a table of `held_out` on validation data: mean, "_low" and "_high" over the seeds.

    With a training log, the table also has the same columns for that log. Quantities that differ
    indicate overfitting, or logs that differ.
    """
    logs = {"training": training, "validation": validation}
    found = {part: held_out(run, log) for part, log in logs.items() if log is not None}
    spec = run.spec
    table = Table(
        title=f"{spec.algorithm} on {spec.dataset}, seeds {listed(spec.seeds)}, "
        f"{steps_of(run)}: {validation.rows:,} rows of {validation.name}",
        rows=tuple(
            {"quantity": name}
            | {
                f"{part}{ending}": float(statistic(quantities[name]))
                for part, quantities in found.items()
                for ending, statistic in (("", np.mean), ("_low", np.min), ("_high", np.max))
            }
            for name in found["validation"]
        ),
        notes=tuple(f"{name}: {meaning}" for name, meaning in MEANINGS.items()),
    )
    warning = _learned_from(run, validation, training)
    notes = (*table.notes, *filter(None, [warning]), f"Verdict: {verdict(table, bool(warning))}")
    return dataclasses.replace(table, notes=notes)


def _learned_from(run: FinishedRun, validation: Dataset, training: Dataset | None) -> str:
    """Return a warning if updates saw the log, or episodes of it; "" otherwise."""
    # That module imports this one.
    from fat2thin.evaluation.unseen import shared_episodes

    learned = {*run.about.get("sha256", ()), *([training.sha256] if training else ())}
    if validation.sha256 in learned:
        what = f"{validation.name} is the log that the run learned from"
        return f"{what}: no number here is about unseen data."
    if training is None:
        return ""
    seen = shared_episodes(validation, training)
    if not seen.any():
        return ""
    return (
        f"The run learned from {int(seen.sum()):,} of the {counted(seen.size, 'episode')} of "
        f"{validation.name}: the numbers are not all about unseen data. `fat2thin value` leaves "
        "such episodes out."
    )


def steps_of(run: FinishedRun, seed: int | None = None) -> str:
    """Return the step of a seed's policy (of all by default) as text, also if it was selected."""
    selected: dict[str, int] = run.about.get("selected", {})
    if seed is not None:
        selected = {key: step for key, step in selected.items() if key == str(seed)}
    steps = {*selected.values()}
    if not steps or steps == {run.step}:
        return f"after step {run.step:,}"
    of_seeds = ", ".join(f"{step:,} (seed {key})" for key, step in selected.items())
    when = f"{steps.pop():,}" if len(steps) == 1 else of_seeds
    return f"policy selected after step {when} of {run.step:,}"


def verdict(table: Table, seen: bool = False) -> str:
    """Return what a table of `validate` says, in words; `seen` if the log was learned from.

    The rules: a band of more than `ANYTHING` per cent of the box excludes nothing; a log of which
    less than `HARDLY` lies inside hardly covers it; a share on the training log, or an error on
    this one, of more than `TIMES` the other looks overfitted.
    """
    rows = {row["quantity"]: row for row in table}
    inside, width = rows[INSIDE]["validation"], rows["support_percent"]["validation"]
    learned, error = rows[INSIDE].get("training", np.nan), rows.get("td_error", {})
    overfitted = not seen and learned > TIMES * inside
    wrong = not seen and error.get("validation", 0.0) > TIMES * error.get("training", np.inf)
    if width > ANYTHING:
        sentences = ["the policy can take any action in the box, so coverage says nothing about it"]
    else:
        share = f"{_percent(inside)} of the logged actions"
        band = f"{share} lie inside a band of {width:.2g} % of the box"
        sentences = [band]
        if inside < HARDLY:
            sentences = [f"the log hardly covers the policy: only {band}, so its value is a guess"]
            each = {name: row["validation"] for name, row in rows.items() if f"{INSIDE}[" in name}
            if each and min(each.values()) >= HARDLY:
                least = min(each, key=each.__getitem__).removeprefix(f"{INSIDE}[")[:-1]
                sentences.append(
                    f"each action dimension alone is covered (the least, {least}, by "
                    f"{_percent(min(each.values()))}), but hardly any combination was tried"
                )
        if overfitted:
            sentences.append(
                f"the band looks overfitted: it holds {_percent(learned)} of the training actions"
            )
    if wrong:
        ratio = error["validation"] / error["training"]
        sentences.append(f"Q looks overfitted: its error is {ratio:.1f} times that in training")
    if seen:
        sentences.append("these are data that it learned from, so overfitting cannot be judged")
    elif np.isnan(learned):
        sentences.append("without the training log, overfitting cannot be judged")
    if not (overfitted or wrong or inside < HARDLY):
        sentences.append("no warning sign, which does not show that the policy beats the log")
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)


def _percent(share: float) -> str:
    return f"{100.0 * share:.2g} %"


def training_log(run: FinishedRun) -> Dataset | None:
    """Load the log that a run learned from, without its held-out part.

    None if every seed has its own log, or if the log is missing or has changed.
    """
    name = run.spec.dataset
    try:
        dataset = None if data.reader(name).one_a_seed else data.load(name)
    except (OSError, ValueError):
        return None
    if dataset is None or run.about["sha256"] != [dataset.sha256]:
        return None
    return learned_and_held_out(dataset, run.spec.holdout, seed=0)[0]


def check_fits(run: FinishedRun, dataset: Dataset) -> None:
    """Raise a ValueError if a log has not the columns and the box that a run learned from."""
    ours, theirs = run.program.problem, problem_of(dataset)
    for field in ("observation_size", "action_low", "action_high"):
        if getattr(ours, field) != getattr(theirs, field):
            raise ValueError(
                f"data set {dataset.name!r} does not fit the run: its {field} is "
                f"{getattr(theirs, field)}, the run has {getattr(ours, field)}"
            )
    for kind in ("observation", "action"):
        _check_names(dataset, kind, getattr(run.columns, kind))


def run_batch(run: FinishedRun, dataset: Dataset, index: int) -> Batch:
    """Return all rows of a log, scaled as for the run's seed at place `index`.

    Rows in whose state, or next state, limits without a fallback leave no action are left out.
    """
    check_fits(run, dataset)
    ours = run.program.problem
    scales, log = _scales(run, index), _with_transforms(dataset, ours)
    log = log if ours.limits is None else with_limits(log, ours.limits)
    rows = batch_of(centred(scales.apply(log), scales.level), run.program.algorithm.next_action)
    if rows.limits is None:
        return rows
    known = np.all([np.isfinite(end).all(axis=1) for end in rows.limits[:4]], axis=0)
    if not known.any():
        raise ValueError(
            f"the limits leave no action in any state of {dataset.name}, and there is no fallback"
        )
    return jax.tree.map(lambda array: array[known], rows)


def _check_names(dataset: Dataset, kind: str, columns: tuple[Column, ...]) -> None:
    """Refuse a log whose columns have other names, or another order, than the run's."""
    given = getattr(dataset, f"{kind}_columns")
    if not have_names(kind, given) or not have_names(kind, columns):
        return
    for place, (ours, theirs) in enumerate(zip(columns, given, strict=True)):
        if ours.name != theirs.name:
            raise ValueError(
                f"data set {dataset.name!r} does not fit the run: its {kind} column {place} is "
                f"{theirs.name!r}, the run learned from {ours.name!r}. Use the same columns in the "
                "same order"
            )


def _with_transforms(dataset: Dataset, problem: Problem) -> Dataset:
    """Return a log with the transforms that a run learned with, whatever its own file says."""
    changes: dict[str, Any] = {}
    for kind in ("observation", "action"):
        columns = getattr(dataset, f"{kind}_columns")
        transforms = getattr(problem, f"{kind}_transforms") or (None,) * len(columns)
        changes[f"{kind}_columns"] = tuple(
            dataclasses.replace(column, transform=one)
            for column, one in zip(columns, transforms, strict=True)
        )
    return dataclasses.replace(dataset, **changes)


def _scales(run: FinishedRun, index: int) -> Scales:
    """Return the scales of the log that the run's seed at place `index` learned from."""
    scales = run.about.get("scales") or [Scales().to_json()]
    return Scales.from_json(scales[index if len(scales) > 1 else 0])


def _means_over(run: FinishedRun, dataset: Dataset, index: int) -> tuple[dict, dict]:
    """Return the means of `_block` of a seed over all rows, in blocks of the batch size."""
    rows, size = run_batch(run, dataset, index), run.spec.batch_size
    state, seed = jax.tree.map(lambda leaf: leaf[index], run.states), run.spec.seeds[index]
    level = jnp.float32(_scales(run, index).level)
    parts = {name: getattr(run.program, name) for name in ("algorithm", "problem", "config")}
    found, counts = [], []
    for number, start in enumerate(range(0, len(rows.reward), size)):
        block = jax.tree.map(operator.itemgetter(slice(start, start + size)), rows)
        key = stream_key(seed, Stream.FRESH_EVALUATION, number)
        found.append(_block(state, block, key, level, **parts))
        counts.append(len(block.reward))
    return jax.tree.map(
        lambda *means: np.average(np.asarray(means, np.float64), axis=0, weights=counts), *found
    )


@functools.partial(jax.jit, static_argnames=("algorithm", "problem", "config"))
def _block(
    state: State, batch: Batch, key: Key[Array, ""], level: Float[Array, ""],
    *, algorithm: Algorithm, problem: Problem, config: Any,
) -> tuple[dict[str, Array], Metrics]:  # fmt: skip
    """Return means of one seed over the rows of a batch, and the mean metrics of an update.

    The means are `inside` (per coordinate), `all_inside`, `width` (a share of the box) and
    `log_likelihood`; with critics and a value, also the share of actions with a positive advantage
    (`good`), and the share that is also inside the support (`good_inside`).
    """
    problem = dataclasses.replace(problem, value_level=level)
    unit = _in_half_ranges(problem)
    acting = algorithm.policy(state, unit, config).within(batch.allowed)
    low, high = acting.support(batch.observation)
    inside = (low <= batch.action) & (batch.action <= high)
    all_inside = jnp.all(inside, axis=-1)
    density = (algorithm.proposal or algorithm.policy)(state, unit, config)(batch.observation)
    found = {
        "inside": jnp.mean(inside, axis=0),
        "all_inside": jnp.mean(all_inside),
        "width": jnp.mean(jnp.clip(high, -1.0, 1.0) - jnp.clip(low, -1.0, 1.0)) / 2.0,
        "log_likelihood": jnp.mean(density.log_prob(batch.action)),
    }
    if algorithm.critics and algorithm.value:
        critics = algorithm.critics(state, problem, config)
        value = algorithm.value(state, problem, config)
        good = critics.minimum(batch.observation, batch.action) > value(batch.observation)
        found |= {"good": jnp.mean(good), "good_inside": jnp.mean(good & all_inside)}
    return found, _without_learning(algorithm, state, batch, key, problem, config)
