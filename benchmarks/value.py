"""How often are the intervals of `fat2thin value` right, and what do they refuse?

    python benchmarks/value.py                         print the tables
    python benchmarks/value.py --run                   measure every case (about an hour of a core)
    python benchmarks/value.py --run --cases NAME ...  measure some cases, keep the others

For each case of `value_cases.py` and each size of log, fresh logs are drawn in one compiled
program, and every estimator values every policy on each of them. The tables compare with the true
values: bias, width and coverage of 95 % intervals, one-sided lower bounds, false claims to be
better than practice, and the share refused. "shown" is what `value` shows: the first estimator of
its order that is not refused. fitted_q is never shown: its interval lacks the error of the fit. The
summaries are in docs/results/value.json; --raw FOLDER keeps the numbers of every log.
"""

import argparse
import dataclasses
import functools
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax import Array, lax

from fat2thin.evaluation import refusal
from fat2thin.evaluation.estimators.behaviour import behaviour_density
from fat2thin.evaluation.estimators.episodes import Actions, Episodes, value_bounds
from fat2thin.evaluation.estimators.estimates import estimates
from fat2thin.evaluation.estimators.features import draw_bases
from fat2thin.evaluation.estimators.fitted_q import design, fit
from fat2thin.evaluation.estimators.intervals import bootstrap
from fat2thin.evaluation.estimators.marginal import marginal_scores
from fat2thin.evaluation.estimators.practice import practice_scores
from fat2thin.evaluation.padding import DRAWS
from fat2thin.evaluation.value_rows import MOST_UNITS, ORDER, ROWS_PER_UNIT
from fat2thin.policies.policy import Policy
from fat2thin.tables import Table
from value_cases import Case, Log, Truth, cases

RESULTS = Path("docs/results/value.json")
ESTIMATORS = ("marginal", "doubly_robust", "importance", "estimated", "fitted_q")
"""`estimated` is the marginal one without propensities: with the estimated density of behaviour."""
LOGS = {200: 500, 1_000: 500, 20_000: 20}
"""Logs per size."""
AT_ONCE = 50  # logs per call
CONFIDENCE = 0.95
FALSE_ALARM = 0.05
"""Of the whole table: each binomial test has this divided by the number of tests."""
EVIDENCE = (
    "least_effective",
    "surviving",
    "clipped",
    "cut",
    "correction",
    "low",
    "high",
    "largest",
)


def standardised(values: Array, here: Array) -> tuple[Array, Array, Array]:
    """Return columns with mean 0 and deviation 1 over the logged steps, and both."""
    weight = (here / jnp.sum(here))[..., None]
    mean = jnp.sum(values * weight, axis=(0, 1))
    deviation = jnp.sqrt(jnp.sum(weight * (values - mean[None, None]) ** 2, axis=(0, 1)))
    scale = jnp.where(deviation > 1e-6 * jnp.maximum(jnp.abs(mean), 1.0), deviation, 1.0)
    return (values - mean[None, None]) / scale[None, None], mean, scale


def prepared(log: Log, policies: dict[str, Policy], key: Array) -> tuple:
    """Return what estimators take, as `evaluation.padding` makes it from a log and a policy."""
    seen, mean, scale = standardised(log.observation, log.here)
    done, action_mean, action_scale = standardised(log.action, log.here)
    following = (log.following - mean[None, None]) / scale[None, None]
    known = log.here[..., None]
    episodes = Episodes(
        seen * known, done * known, log.reward, following * known, log.continuation * log.here,
        log.here,
    )  # fmt: skip

    def drawn(policy: Policy, states: Array, key: Array) -> Array:
        keys = jax.random.split(key, DRAWS)
        actions = jnp.stack([policy.act(states, one) for one in keys], axis=-2)
        expand = (1,) * (actions.ndim - 1) + (-1,)
        return (actions - action_mean.reshape(expand)) / action_scale.reshape(expand)

    every = []
    for number, policy in enumerate(policies.values()):
        keys = jax.random.split(jax.random.fold_in(key, number))
        density = jnp.where(log.here > 0, policy(log.observation).log_prob(log.action), 0.0)
        every.append(
            Actions(
                drawn(policy, log.observation[:, 0], keys[0]),
                drawn(policy, log.following, keys[1]) * known[..., None],
                density,
            )
        )
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *every)
    # The estimated density is one of standardised actions.
    per_unit = jnp.sum(jnp.log(action_scale))
    return episodes, stacked, jnp.where(log.here > 0, log.log_density, 0.0), per_unit


def estimated(
    given: tuple, case: Case, rows: int, key: Array, names: tuple[str, ...]
) -> dict[str, Array]:
    """Return the numbers of every policy and estimator on one log."""
    episodes, policies, behaviour, per_unit = given
    units = int(np.clip(rows // ROWS_PER_UNIT, 16, MOST_UNITS))
    columns = episodes.observation.shape[-1], episodes.action.shape[-1]
    bases = draw_bases(jax.random.key(0), *columns, units)
    logged = episodes.here > 0
    least = jnp.min(jnp.where(logged, episodes.reward, jnp.inf))
    most = jnp.max(jnp.where(logged, episodes.reward, -jnp.inf))
    bounds = value_bounds(least, most, case.discount, case.horizon, case.ends_early)
    practice = practice_scores(episodes, bases.states, bounds, case.discount)
    length = jnp.sum(episodes.here, axis=1).astype(int)
    last = jnp.take_along_axis(episodes.continuation, length[:, None] - 1, axis=1)[:, 0]
    cut = jnp.mean((length < case.horizon) & (last > 0))

    guessed = behaviour_density(episodes, bases.states).log_density - per_unit

    def of_policy(actions: Actions) -> tuple[Array, Array]:
        found = estimates(episodes, actions, behaviour, bases, bounds, case.discount)
        assert actions.log_density is not None
        inside = episodes.here * jnp.isfinite(actions.log_density)
        # What no name asks for is not compiled.
        ratio = jnp.where(inside > 0, jnp.exp(actions.log_density - guessed), 0.0)
        features = design(episodes, actions, bases.both)
        fitted = fit(features, case.discount, bounds)
        without = marginal_scores(
            episodes, actions, bases, features, fitted, ratio, case.discount, bounds
        )
        every = found._asdict() | {"estimated": without}
        scores = jnp.stack([every[name].scores for name in names])
        nothing, sure = jnp.zeros(()), jnp.full((), jnp.inf)
        facts = []
        for name in names:
            one = every[name]
            weighted = name != "fitted_q"
            of_histories = name in ("importance", "doubly_robust")
            facts.append(jnp.stack([
                jnp.min(one.effective) if weighted else sure,
                one.surviving[-1] if of_histories else jnp.sum(inside),
                found.fitted_q.clipped, cut,
                one.correction if name in ("marginal", "estimated") else nothing,
                bounds[-1, 0], bounds[-1, 1], largest(one.scores),
            ]))  # fmt: skip
        return scores, jnp.stack(facts)

    scores, facts = lax.map(of_policy, policies)
    count, kinds, episodes_ = scores.shape
    flat = scores.reshape(count * kinds, episodes_)
    both = jnp.concatenate([flat, flat - practice[None], practice[None]])
    found = bootstrap(both, key, CONFIDENCE)
    numbers = jnp.stack(found, axis=-1)
    split = numbers[: 2 * count * kinds].reshape(2, count, kinds, 4)
    return {
        "value": split[0], "difference": split[1], "practice": numbers[-1], "facts": facts,
        "deviation": jnp.std(scores, axis=-1),
    }  # fmt: skip


def largest(scores: Array) -> Array:
    """Return the share of one episode in the sum of squared deviations, for the largest share."""
    squares = (scores - jnp.mean(scores)) ** 2
    return jnp.max(squares) / jnp.maximum(jnp.sum(squares), 1e-30)


def study(
    case: Case,
    rows: int,
    logs: int,
    policies: dict[str, Policy],
    at_once: int = AT_ONCE,
    names: tuple[str, ...] = ESTIMATORS,
) -> dict[str, np.ndarray]:
    """Return the numbers of all logs, stacked."""
    episodes = case.episodes(rows)

    @jax.jit
    def draw(keys: Array) -> tuple:
        def one(key: Array) -> tuple:
            of_log, of_policy = jax.random.split(key)
            return prepared(case.draw(of_log, episodes), policies, of_policy)

        return lax.map(one, keys)

    @jax.jit
    def judge(given: tuple, keys: Array) -> dict[str, Array]:
        def one(given: tuple) -> dict[str, Array]:
            of_log, key = given
            return estimated(of_log, case, rows, key, names)

        return lax.map(one, (given, keys))

    found = []
    keys = jax.random.split(jax.random.key(rows), logs)
    for first in range(0, logs, at_once):
        given = jax.device_get(draw(keys[first : first + at_once]))
        number = len(given[0].here)
        with jax.enable_x64(True):
            doubled = jax.tree.map(lambda array: jnp.asarray(array, jnp.float64), given)
            resampling = jax.random.split(jax.random.key(rows + 1), logs)[first : first + number]
            found.append(jax.device_get(judge(doubled, resampling)))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *found)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One estimator's numbers for one policy, over all logs of one size."""

    value: np.ndarray  # (logs, 4): estimate, low, high, one-sided lower bound
    difference: np.ndarray
    evidence: dict[str, np.ndarray]
    refused: np.ndarray  # (logs,) bool


def cells_of(case: Case, rows: int, raw: dict[str, np.ndarray]) -> dict[tuple[str, str], Cell]:
    """Return the cells of all policies and estimators, and of the estimator that is shown."""
    found = {}
    names = raw["policies"].tolist()
    for place, policy in enumerate(names):
        for kind, estimator in enumerate(ESTIMATORS):
            evidence = dict(zip(EVIDENCE, raw["facts"][:, place, kind].T, strict=True))
            value, difference = raw["value"][:, place, kind], raw["difference"][:, place, kind]
            low, high = evidence["low"][:, None], evidence["high"][:, None]
            refused = refusals(estimator, value[:, 0], evidence, case.episodes(rows))
            cell = Cell(
                np.clip(value, low, high),
                np.clip(difference, low - high, high - low),
                evidence,
                refused,
            )
            found[policy, estimator] = cell
        # As in `value`: the first that is not refused.
        of_policy = [found[policy, estimator] for estimator in ORDER]
        order = np.argmin([cell.refused for cell in of_policy], axis=0)
        pick = functools.partial(_pick, of_policy, order)
        found[policy, "shown"] = Cell(pick("value"), pick("difference"), {}, pick("refused"))
    return found


def _pick(cells: list[Cell], order: np.ndarray, field: str) -> np.ndarray:
    stacked = np.stack([getattr(cell, field) for cell in cells])
    return stacked[order, np.arange(len(order))]


def refusals(
    estimator: str, estimates: np.ndarray, evidence: dict[str, np.ndarray], episodes: int
) -> np.ndarray:
    """Return which estimates `fat2thin value` refuses."""
    # The other two are judged by the rules of the marginal estimator.
    rule, found = estimator if estimator in ORDER else "marginal", []
    for number, estimate in enumerate(estimates):
        facts = {name: float(of_logs[number]) for name, of_logs in evidence.items()}
        one = refusal.Evidence(
            estimate=float(estimate),
            allowed=(facts["low"], facts["high"]),
            episodes=episodes,
            effective=(facts["least_effective"],),
            surviving=(facts["surviving"],),
            clipped=facts["clipped"],
            cut=facts["cut"],
            largest_share=facts["largest"],
        )
        found.append(refusal.reason(rule, one) is not None)
    return np.array(found)


def summary(
    case: Case, rows: int, raw: dict[str, np.ndarray], truths: dict[str, Truth]
) -> list[dict[str, Any]]:
    """Return one row per policy and estimator, and one for logged practice."""
    practice, found = truths["practice"].value, []
    given = {"case": case.name, "half": case.half, "rows": rows, "logs": len(raw["practice"])}
    numbers = raw["practice"]
    nothing = Cell(numbers, np.zeros_like(numbers), {}, np.zeros(len(numbers), bool))
    found.append(
        given | {"policy": "practice", "estimator": "returns"} | row_of(nothing, practice, 0)
    )
    for (policy, estimator), cell in cells_of(case, rows, raw).items():
        gain = truths[policy].value - practice
        row = row_of(cell, truths[policy].value, gain)
        found.append(given | {"policy": policy, "estimator": estimator} | row)
    return found


def row_of(cell: Cell, truth: float, gain: float) -> dict[str, Any]:
    kept = ~cell.refused
    value, difference = cell.value[kept], cell.difference[kept]
    inside = (value[:, 1] <= truth) & (truth <= value[:, 2])
    within = (difference[:, 1] <= gain) & (gain <= difference[:, 2])
    claims = int(np.sum(difference[:, 3] > 0))
    return {
        "truth": truth, "gain": gain, "kept": int(kept.sum()),
        "bias": _mean(value[:, 0] - truth), "deviation": _mean(np.abs(value[:, 0] - truth)),
        "width": _mean(value[:, 2] - value[:, 1]),
        "covered": int(inside.sum()), "bounded": int(np.sum(value[:, 3] <= truth)),
        "difference_covered": int(within.sum()),
        "difference_bounded": int(np.sum(difference[:, 3] <= gain)),
        "claims": claims, "false_claims": claims if gain <= 0 else 0,
    }  # fmt: skip


def _mean(values: np.ndarray) -> float | None:
    return float(np.mean(values)) if values.size else None


COUNTS = ("covered", "bounded", "difference_covered", "difference_bounded")


def failures(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str, float]]:
    """Return the rows whose coverage, or false claims, a binomial test tells from what is promised.

    The level is `FALSE_ALARM` divided by the number of tests (Bonferroni).
    """
    tests = []
    for row in rows:
        if row["kept"]:
            for count in COUNTS[: 2 if row["policy"] == "practice" else 4]:
                test = scipy.stats.binomtest(row[count], row["kept"], CONFIDENCE, "less")
                tests.append((row, count, float(test.pvalue)))
        if row["gain"] < 0:
            many = scipy.stats.binomtest(row["claims"], row["logs"], 1 - CONFIDENCE, "greater")
            tests.append((row, "false_claims", float(many.pvalue)))
    return [test for test in tests if test[2] < FALSE_ALARM / len(tests)]


def table(rows: list[dict[str, Any]], case: str) -> Table:
    """Return the table of one case."""
    shown = []
    for row in rows:
        if row["case"] == case:
            kept = row["kept"]
            shown.append(
                {"rows": row["rows"], "policy": row["policy"], "estimator": row["estimator"],
                 "truth": row["truth"], "refused": 1 - kept / row["logs"]}
                | {name: np.nan if row[name] is None else row[name] for name in ("bias", "width")}
                | {name: row[name] / kept if kept else np.nan for name in COUNTS}
                | {"claims": row["claims"] / row["logs"],
                   "false": row["false_claims"] / row["logs"]}
            )  # fmt: skip
    return Table(case, tuple(shown))


LEAST_KEPT = 50  # estimates below which a cell has no coverage in the overview


def overview(rows: list[dict[str, Any]]) -> Table:
    """Return a line per case, size and estimator: the worst policy of each."""
    shown, cells = [], [(row["case"], row["rows"]) for row in rows]
    for case, size in dict.fromkeys(cells):
        for estimator in ("returns", *ESTIMATORS[:-1]):
            own = [row for row, cell in zip(rows, cells, strict=True)
                   if cell == (case, size) and row["estimator"] == estimator]  # fmt: skip
            known = [row for row in own if row["kept"] >= LEAST_KEPT]
            if not known:
                continue
            logs = own[0]["logs"]
            line: dict[str, Any] = {"case": case, "rows": size, "logs": logs}
            line |= {"estimator": estimator, "policies": f"{len(known)} of {len(own)}"}
            line |= {name.replace("_", " "): min(row[name] / row["kept"] for row in known)
                     for name in COUNTS}  # fmt: skip
            line["false claims"] = max(row["false_claims"] / logs for row in own)
            shown.append(line)
    note = f"the lowest coverage among policies with at least {LEAST_KEPT} estimates that are kept"
    return Table("coverage, by the worst policy", tuple(shown), (note,))


def show(rows: list[dict[str, Any]]) -> None:
    """Print all tables and the tests."""
    print(f"{overview(rows)}\n")
    for case in dict.fromkeys(row["case"] for row in rows):
        print(f"{table(rows, case)}\n")
    proven = [row for row in rows if row["half"] != "hidden"]
    for estimator in (*ESTIMATORS, "shown", "returns"):
        own = [row for row in proven if row["estimator"] == estimator]
        failed = failures(own)
        print(f"{estimator}: {len(failed)} failed tests in {len({id(one[0]) for one in failed})} "
              f"of {sum(row['kept'] > 0 for row in own)} cells")  # fmt: skip
        for row, count, chance in failed:
            of = row["logs"] if count == "false_claims" else row["kept"]
            name = "claims" if count == "false_claims" else count
            print(f"    {row['case']} {row['policy']}, {row['rows']} rows: {count} "
                  f"{row[name]} of {of} (p = {chance:.1e})")  # fmt: skip


def measure(case: Case, folder: Path, sizes: dict[int, int]) -> list[dict[str, Any]]:
    """Measure one case, keep the numbers of every log in a folder, and return the summaries."""
    began = time.process_time()
    policies = case.policies()
    known = folder / f"{case.name.replace('/', '-')}-truth.json"
    if known.exists():
        truths = {name: Truth(*one) for name, one in json.loads(known.read_text()).items()}
    else:
        truths = case.truths(policies)
        known.write_text(json.dumps(truths))
    found = []
    for rows, logs in sizes.items():
        raw = study(case, rows, logs, policies)
        raw["policies"] = np.array([*policies])
        arrays: dict[str, Any] = raw
        np.savez_compressed(folder / f"{case.name.replace('/', '-')}-{rows}.npz", **arrays)
        found += summary(case, rows, raw, truths)
        print(f"{case.name}, {rows} rows: {time.process_time() - began:.0f} s", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--again", action="store_true", help="apply the rules to --raw again")
    parser.add_argument("--cases", nargs="*")
    parser.add_argument("--share", type=float, default=1.0, help="share of the logs")
    parser.add_argument("--sizes", type=int, nargs="*", default=[*LOGS])
    parser.add_argument("--raw", type=Path, default=Path("runs/value/raw"))
    options = parser.parse_args()
    every = cases()
    chosen = options.cases or [*every]
    if options.run:
        options.raw.mkdir(parents=True, exist_ok=True)
        for name in chosen:
            sizes = {rows: max(2, int(options.share * LOGS[rows])) for rows in options.sizes}
            measure(every[name], options.raw, sizes)
    if options.run or options.again:
        rows = []
        for name, case in every.items():
            stem = name.replace("/", "-")
            known = options.raw / f"{stem}-truth.json"
            if not known.exists():
                continue
            truths = {key: Truth(*one) for key, one in json.loads(known.read_text()).items()}
            for size in LOGS:
                file = options.raw / f"{stem}-{size}.npz"
                if file.exists():
                    rows += summary(case, size, dict(np.load(file)), truths)
        RESULTS.write_text(json.dumps({"rows": rows}, indent=0) + "\n")
    show(json.loads(RESULTS.read_text())["rows"])


if __name__ == "__main__":
    main()
