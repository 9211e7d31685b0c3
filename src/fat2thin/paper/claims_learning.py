"""Claims about returns: C1 to C3, C10, C12 to C14, C17 and C18."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fat2thin.evaluation.statistics import (
    Interval,
    area_under_curve,
    mean,
    paired_difference,
    stratified_interval,
)
from fat2thin.experiments import comparison as outcomes
from fat2thin.paper.claims import Claim, Finding, Kept, Mode, above, number, weakest
from fat2thin.paper.presets import EXAMPLE, REWARDS, ROBOTS, SETS
from fat2thin.training import Run

NEAR = 0.1
"""Two scores are about equal where one is within a tenth of the other."""
TASKS = tuple(f"{name}-{level}" for name in ROBOTS for level in SETS)
_PLOTTED = ("iql", "xql", "sql")
_TREATMENT_BASELINES = (*_PLOTTED, "spot")
"""SPOT is named in the paper's text, and not in its figure."""
_ROBOT_BASELINES = ("iql", "inac", "tawac", "awac", "xql", "sql")

Score = Callable[[Run, Mode], np.ndarray]
"""A number a seed."""


def final(run: Run, mode: Mode) -> np.ndarray:
    """The last evaluation's mean return a seed; on a robot D4RL's score of it."""
    return outcomes.final(run, mode.policy(run))


def area(run: Run, mode: Mode) -> np.ndarray:
    """The mean over the learning curve."""
    return area_under_curve(run.evaluations.steps, outcomes.scored(run, mode.policy(run)))


def _scores(
    kept: Kept, mode: Mode, dataset: str, algorithms: Sequence[str], score: Score = final
) -> dict[str, np.ndarray] | None:
    """By algorithm; None unless all of them were run, since the best of some is another claim."""
    runs = {name: kept.curve(dataset, mode.method(name)) for name in algorithms}
    found = {name: score(run, mode) for name, run in runs.items() if run is not None}
    return found if len(found) == len(runs) else None


def _fewest(scores: Sequence[np.ndarray]) -> int:
    """Seeds that did not stop, of the method that has fewest."""
    return min(int(np.sum(~np.isnan(of_seeds))) for of_seeds in scores)


def order(kept: Kept, mode: Mode) -> Finding | None:
    """FtTPO above random action replacement above reverse KL."""
    names = ("fttpo", "rar", "sparse_reverse_kl")
    scores = _scores(kept, mode, EXAMPLE, names)
    if scores is None:
        return None
    fttpo, rar, reverse = (scores[name] for name in names)
    effects = [paired_difference(fttpo, rar), paired_difference(rar, reverse)]
    return Finding(
        above(effects),
        weakest(effects),
        "smaller of the gaps FtTPO − RAR and RAR − reverse KL, in points of the score; above 0. "
        "Settings of RAR and reverse KL are not tuned",
        _fewest([*scores.values()]),
    )


def _on_treatment(kept: Kept, mode: Mode) -> list[dict[str, np.ndarray]]:
    names = ("fttpo", *_TREATMENT_BASELINES)
    found = [_scores(kept, mode, f"treatment-{reward}", names) for reward in REWARDS]
    return [scores for scores in found if scores is not None]


def highest_on_treatment(kept: Kept, mode: Mode) -> Finding | None:
    """FtTPO's final return above each baseline's, on both rewards."""
    of_rewards = _on_treatment(kept, mode)
    if not of_rewards:
        return None
    effects = [
        paired_difference(scores["fttpo"], scores[name])
        for scores in of_rewards
        for name in _TREATMENT_BASELINES
    ]
    return Finding(
        above(effects),
        weakest(effects),
        "FtTPO − best baseline, return of an episode, on the reward where it is smaller; above 0",
        min(_fewest([*scores.values()]) for scores in of_rewards),
    )


def common_band(kept: Kept, mode: Mode) -> Finding | None:
    """The baselines lie nearer to each other than the best of them to FtTPO."""
    of_rewards = _on_treatment(kept, mode)
    if not of_rewards:
        return None
    effects = []
    for scores in of_rewards:
        ordered = sorted(_PLOTTED, key=lambda name: float(np.nanmean(scores[name])))
        best, worst = scores[ordered[-1]], scores[ordered[0]]
        effects.append(paired_difference(scores["fttpo"] - best, best - worst))
    return Finding(
        above(effects),
        weakest(effects),
        "(FtTPO − best baseline) − (best − worst baseline), return of an episode; above 0",
        min(_fewest([*scores.values()]) for scores in of_rewards),
    )


def best_on_most_robots(kept: Kept, mode: Mode) -> Finding | None:
    """At least about as good as the best baseline on more than half of the nine sets."""
    differences, good, behind = {}, 0, 0
    for task in TASKS:
        scores = _scores(kept, mode, task, ("fttpo", *_ROBOT_BASELINES))
        if scores is None:
            return None
        known = [name for name in _ROBOT_BASELINES if not np.isnan(scores[name]).all()]
        best = scores[max(known, key=lambda name: float(np.nanmean(scores[name])))]
        differences[task] = scores["fttpo"] - best
        gap, near = paired_difference(scores["fttpo"], best), NEAR * abs(float(np.nanmean(best)))
        good += gap.low > -near
        behind += gap.high < -near
    half = len(TASKS) / 2
    return Finding(
        True if good > half else False if behind > half else None,
        stratified_interval(differences, mean),
        f"FtTPO − best baseline, mean over nine sets, in points of the score; at least about as "
        f"good (within a tenth) for certain on {good}, worse for certain on {behind}, more than "
        "half wanted",
        _fewest([*differences.values()]),
    )


def _gaps(kept: Kept, mode: Mode, variant: str) -> tuple[dict[str, Interval], int] | None:
    """By task: a variant's final score less FtTPO's, seed by seed; and the fewest seeds."""
    found, seeds = {}, []
    for task in TASKS:
        scores = _scores(kept, mode, task, ("fttpo", variant))
        if scores is None:
            return None
        found[task] = paired_difference(scores[variant], scores["fttpo"])
        seeds.append(_fewest([*scores.values()]))
    return found, min(seeds)


def _above_on_few(variant: str, most: int) -> Callable[[Kept, Mode], Finding | None]:
    def check(kept: Kept, mode: Mode) -> Finding | None:
        found = _gaps(kept, mode, variant)
        if found is None:
            return None
        gaps, seeds = found
        above = sum(one.value > 0.0 for one in gaps.values())
        certain = sum(one.low > 0.0 for one in gaps.values())
        open_ = sum(not (one.low > 0.0 or one.high < 0.0) for one in gaps.values())
        return Finding(
            False if certain > most else True if certain + open_ <= most else None,
            number(above),
            f"sets of nine on which {variant} ends above FtTPO, at most {most}; {certain} beyond "
            f"its interval, {open_} open",
            seeds,
        )

    return check


def _about_equal(variant: str, score: Score, what: str) -> Callable[[Kept, Mode], Finding | None]:
    """The mean ratio over the sets lies within a tenth of 1."""

    def check(kept: Kept, mode: Mode) -> Finding | None:
        of_fttpo, of_variant = _normed(kept, mode, ("fttpo", variant), score)
        if not of_fttpo:
            return None
        effect = stratified_interval(
            {task: of_variant[task] - of_fttpo[task] for task in of_fttpo}, mean
        )
        return Finding(
            _near(effect),
            effect,
            f"{variant} − FtTPO over nine sets, {what}, as a share of FtTPO's; within ±{NEAR}",
            _fewest([*of_fttpo.values()]),
        )

    return check


def _near(effect: Interval) -> bool | None:
    """Whether a difference is within a tenth; None where its interval leaves it open."""
    if effect.low > -NEAR and effect.high < NEAR:
        return True
    return False if effect.low > NEAR or effect.high < -NEAR else None


def _normed(
    kept: Kept, mode: Mode, names: Sequence[str], score: Score
) -> list[Mapping[str, np.ndarray]]:
    """By algorithm and task: scores as shares of the mean score of the first; all tasks or none."""
    of_tasks = {task: _scores(kept, mode, task, names, score) for task in TASKS}
    if any(scores is None for scores in of_tasks.values()):
        return [{} for _ in names]
    unit = {task: abs(float(np.nanmean(scores[names[0]]))) for task, scores in of_tasks.items()}  # type: ignore[index]
    return [
        {task: scores[name] / unit[task] for task, scores in of_tasks.items()}  # type: ignore[index]
        for name in names
    ]


def worse_but_for_one(kept: Kept, mode: Mode) -> Finding | None:
    """FtTPO-SG ends below FtTPO on every set but hopper-medium-replay."""
    found = _gaps(kept, mode, "fttpo-sg")
    if found is None:
        return None
    gaps, seeds = found
    others = [one for task, one in gaps.items() if task != "hopper-medium-replay"]
    below = sum(one.value < 0.0 for one in others)
    certain = sum(one.high < 0.0 for one in others)
    above = sum(one.low > 0.0 for one in others)
    return Finding(
        False if above else True if certain == len(others) else None,
        number(below),
        f"sets of the eight others on which FtTPO-SG ends below FtTPO, all 8; {certain} beyond the "
        f"interval, and {above} above it",
        seeds,
    )


def area_order(kept: Kept, mode: Mode) -> Finding | None:
    """Areas: FtTPO about the SPOT variant, and not below the SG variant."""
    names = ("fttpo", "fttpo-spot", "fttpo-sg")
    fttpo, spot, squashed = _normed(kept, mode, names, area)
    if not fttpo:
        return None
    gaps = [
        stratified_interval({task: one[task] - other[task] for task in fttpo}, mean)
        for one, other in ((spot, fttpo), (squashed, fttpo))
    ]
    near = _near(gaps[0])
    wrong = near is False or gaps[1].low > 0.0
    right = near is True and gaps[1].value <= 0.0
    holds = False if wrong else True if right else None
    return Finding(
        holds,
        gaps[1],
        f"FtTPO-SG − FtTPO, area under the curve as a share of FtTPO's, not above 0; the SPOT "
        f"variant's is {gaps[0].value:+.2f} [{gaps[0].low:+.2f}, {gaps[0].high:+.2f}], "
        f"within ±{NEAR}",
        _fewest([*fttpo.values()]),
    )


CLAIMS = (
    Claim("C1", "FtTPO ends above random action replacement, and that above sparse reverse KL "
          "(halfcheetah-medium-expert).", "fig1", order),
    Claim("C2", "On the treatment task FtTPO's final return is the highest.", "fig2",
          highest_on_treatment),
    Claim("C3", "There the baselines end in a lower common band.", "fig2", common_band),
    Claim("C10", "FtTPO is better than or about as good as the best baseline on most of nine "
          "MuJoCo sets.", "fig4", best_on_most_robots),
    Claim("C12", "FtTPO-SPOT ends above FtTPO on three sets only.", "fig6",
          _above_on_few("fttpo-spot", 3)),
    Claim("C13", "TAWAC-HT ends about where FtTPO does.", "fig6",
          _about_equal("tawac-ht", final, "final score")),
    Claim("C14", "FtTPO-SG ends below FtTPO on every set but hopper-medium-replay.", "fig6",
          worse_but_for_one),
    Claim("C17", "Areas under the curve: FtTPO about FtTPO-SPOT, and not below FtTPO-SG.", "fig8",
          area_order),
    Claim("C18", "Areas under the curve: FtTPO about TAWAC-HT.", "fig8",
          _about_equal("tawac-ht", area, "area under the curve")),
)  # fmt: skip
