"""What a finished run makes of logged steps that it did not learn from; no simulator is needed.

For every algorithm alike: its own `update` is run on the log with a learning rate of zero, so that
no network moves, and what it reports is averaged over all rows. To this come the share of logged
actions that the policy could have taken, how wide it is, and how likely it finds them.
"""

import functools
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from fat2thin import data
from fat2thin.algorithms.base import Algorithm, Batch, Metrics, Problem, State, with_numbers
from fat2thin.data import Dataset
from fat2thin.data.operations import learned_and_held_out
from fat2thin.data.scaling import Scales
from fat2thin.evaluation.batches import batch_of, problem_of
from fat2thin.evaluation.signals import in_half_ranges
from fat2thin.random_streams import Stream, stream_key
from fat2thin.tables import Table, listed

Quantities = dict[str, Float[np.ndarray, " seeds"]]

MEANINGS = {
    "logged_inside_support": "share of logged actions that the policy could have taken",
    "good_inside_support": "the same among actions whose Q is above the value of their state",
    "support_percent": "width of what the policy can do, in per cent of the action box",
    "td_error": "root mean square of Q − (r + γ next value), in units of the reward",
    "weighted_log_likelihood": "mean log density of logged actions, weighted as in training",
    "log_likelihood": "the same with equal weights; −inf where the policy excludes an action",
}
"""What is found besides the algorithm's own metrics, which it describes itself. Densities are per
half-range of the box, and those of the proposal where there is one."""


@runtime_checkable
class FinishedRun(Protocol):
    """What is needed of a run (`fat2thin.runs.result.Run`)."""

    @property
    def spec(self) -> Any:
        """Its specification."""

    @property
    def step(self) -> int:
        """Its last update."""

    @property
    def about(self) -> dict[str, Any]:
        """What its run.json says."""

    @property
    def program(self) -> Any:
        """Algorithm, problem and config."""

    @property
    def states(self) -> State:
        """States of all seeds."""


class _Means(NamedTuple):
    """Means over rows, of one seed or with a leading axis of seeds."""

    metrics: Metrics
    inside: Array
    """Of each coordinate."""
    all_inside: Array
    width: Array
    """As a share of the box."""
    log_likelihood: Array
    good: Array | None
    """Share of actions with a positive advantage, where there are critics and a value."""
    good_inside: Array | None


def held_out(run: FinishedRun, dataset: Dataset) -> Quantities:
    """Every quantity of a log, a number a seed: those of `MEANINGS`, then the algorithm's metrics.

    In several dimensions there is "logged_inside_support[0]" and so on for each coordinate. The
    discount factor is the run's. XQL's critics have Huber's loss: its "td_error" is the root of
    twice that.
    """
    of_seeds = [_means_over(run, dataset, index) for index in range(len(run.spec.seeds))]
    found = jax.tree.map(lambda *means: np.stack(means), *of_seeds)
    metrics = {name: found.metrics[name] for name in sorted(found.metrics)}
    quantities = {"logged_inside_support": found.all_inside}
    if found.inside.shape[1] > 1:
        for coordinate, inside in enumerate(found.inside.T):
            quantities[f"logged_inside_support[{coordinate}]"] = inside
    if found.good is not None:
        quantities["good_inside_support"] = _ratio(found.good_inside, found.good)
    quantities["support_percent"] = 100.0 * found.width
    if "critic_loss" in metrics:
        # Critics learn scaled rewards; the error is told in those of the log.
        factors = [_scales(run, index).reward_factor for index in range(len(of_seeds))]
        quantities["td_error"] = np.sqrt(2.0 * metrics["critic_loss"]) / np.asarray(factors)
    weighted_loss = run.program.algorithm.weighted_loss
    if weighted_loss:
        # Both are means over the same rows: sum(weight · log density) / sum(weight).
        loss = metrics[weighted_loss]
        quantities["weighted_log_likelihood"] = _ratio(-loss, metrics["weight_mean"])
    quantities["log_likelihood"] = found.log_likelihood
    # What an algorithm reports under one of these names is the same number.
    return quantities | {name: metrics[name] for name in metrics if name not in quantities}


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """nan where there is nothing to take a part of."""
    return np.divide(part, whole, where=whole > 0, out=np.full_like(whole, np.nan))


def validate(run: FinishedRun, validation: Dataset, training: Dataset | None = None) -> Table:
    """A row a quantity: its mean, lowest ("_low") and highest over the seeds on held-out data.

    With the training log the same of that beside it: what differs was learned by heart, or the two
    logs differ.
    """
    logs = {"training": training, "validation": validation}
    found = {part: held_out(run, log) for part, log in logs.items() if log is not None}
    spec = run.spec
    return Table(
        title=f"{spec.algorithm} on {spec.dataset}, seeds {listed(spec.seeds)}, after step "
        f"{run.step:,}: {validation.rows:,} rows of {validation.name}",
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


def training_log(run: FinishedRun) -> Dataset | None:
    """The log that a run learned from, read again, without what was held out.

    None where every seed has its own, and where it is not there any more or not what it was.
    """
    name = run.spec.dataset
    try:
        dataset = None if data.reader(name).one_a_seed else data.load(name)
    except (OSError, ValueError):
        return None
    if dataset is None or run.about["sha256"] != [dataset.sha256]:
        return None
    return learned_and_held_out(dataset, run.spec.holdout, seed=0)[0]


def run_batch(run: FinishedRun, dataset: Dataset, index: int) -> Batch:
    """All rows of a log as the updates of the run's seed number `index` saw theirs.

    A log of another problem is refused.
    """
    ours, theirs = run.program.problem, problem_of(dataset)
    for field in ("observation_size", "action_low", "action_high"):
        if getattr(ours, field) != getattr(theirs, field):
            raise ValueError(
                f"data set {dataset.name!r} is not of the run's problem: {field} is "
                f"{getattr(theirs, field)}, in the run {getattr(ours, field)}"
            )
    scaled = _scales(run, index).apply(dataset)
    return batch_of(scaled)


def _scales(run: FinishedRun, index: int) -> Scales:
    """The scales of the log that the run's seed number `index` learned from."""
    scales = run.about.get("scales") or [Scales().to_json()]
    return Scales.from_json(scales[index if len(scales) > 1 else 0])


def _means_over(run: FinishedRun, dataset: Dataset, index: int) -> _Means:
    """Means of a seed over all rows, in blocks of the run's batch size, weighted by their rows."""
    rows, size = run_batch(run, dataset, index), run.spec.batch_size
    blocks = [
        Batch(*(array[start : start + size] for array in rows))
        for start in range(0, dataset.rows, size)
    ]
    state, seed = jax.tree.map(lambda leaf: leaf[index], run.states), run.spec.seeds[index]
    program = run.program
    means = functools.partial(
        _block, algorithm=program.algorithm, problem=program.problem, config=program.config
    )
    found = [
        means(state, block, stream_key(seed, Stream.FRESH_EVALUATION, number))
        for number, block in enumerate(blocks)
    ]
    counts = [len(block.reward) for block in blocks]
    return jax.tree.map(
        lambda *means: np.average(np.asarray(means, np.float64), axis=0, weights=counts), *found
    )


@functools.partial(jax.jit, static_argnames=("algorithm", "problem", "config"))
def _block(
    state: State, batch: Batch, key: Key[Array, ""],
    *, algorithm: Algorithm, problem: Problem, config: Any,
) -> _Means:  # fmt: skip
    """Means of one seed over the rows of a batch."""
    # An update reports some of its losses after steps of its own, which must not move anything.
    still = with_numbers(config, {"learning_rate": 0.0})
    _, metrics = algorithm.update(state, batch, key, problem, still)

    unit = in_half_ranges(problem)
    low, high = algorithm.policy(state, unit, still).support(batch.observation)
    inside = (low <= batch.action) & (batch.action <= high)
    all_inside = jnp.all(inside, axis=-1)
    density = (algorithm.proposal or algorithm.policy)(state, unit, still)(batch.observation)
    good = None
    if algorithm.critics and algorithm.value:
        critics = algorithm.critics(state, problem, config)
        value = algorithm.value(state, problem, config)
        logged = critics.minimum(batch.observation, batch.action)
        good = logged > value(batch.observation)
    return _Means(
        metrics=jax.tree.map(jnp.mean, metrics),
        inside=jnp.mean(inside, axis=0),
        all_inside=jnp.mean(all_inside),
        width=jnp.mean(jnp.clip(high, -1.0, 1.0) - jnp.clip(low, -1.0, 1.0)) / 2.0,
        log_likelihood=jnp.mean(density.log_prob(batch.action)),
        good=None if good is None else jnp.mean(good),
        good_inside=None if good is None else jnp.mean(good & all_inside),
    )
