"""Claims about returns (C1 to C3, C10, C12 to C14, C17 and C18) and about time (C19 and C20)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from fat2thin.evaluation.statistics import Interval, mean, paired_difference, stratified_interval
from fat2thin.experiments.comparison import area, final
from fat2thin.paper.claims import Claim, Evidence, Mode, Reproduced, above, number, weakest
from fat2thin.paper.presets import EXAMPLE, REWARDS, ROBOT_SETS
from fat2thin.training import Run

NEAR = 0.1  # relative difference below which two scores are about equal
_PLOTTED = ("iql", "xql", "sql")
_TREATMENT_BASELINES = (*_PLOTTED, "spot")
"""SPOT is in the paper's text but not in its figure."""
_ROBOT_BASELINES = ("iql", "inac", "tawac", "awac", "xql", "sql")

Score = Callable[[Run, str], np.ndarray]  # one number per seed for a policy of a run
Scores = dict[str, np.ndarray]  # by algorithm, one number per seed


def _scores(
    kept: Reproduced, mode: Mode, dataset: str, algorithms: Sequence[str], score: Score = final
) -> Scores | None:
    """Return scores by algorithm; None unless all were run."""
    runs = {name: kept.curve(dataset, mode.method(name)) for name in algorithms}
    found = {name: score(run, mode.policy(run)) for name, run in runs.items() if run is not None}
    return found if len(found) == len(runs) else None


def _on_robots(
    kept: Reproduced, mode: Mode, algorithms: Sequence[str], score: Score = final
) -> dict[str, Scores] | None:
    """Return scores on all nine data sets; None unless all were run."""
    found = {name: _scores(kept, mode, name, algorithms, score) for name in ROBOT_SETS}
    known = {name: scores for name, scores in found.items() if scores is not None}
    return known if len(known) == len(found) else None


def _fewest(scores: Mapping[str, np.ndarray]) -> int:
    """Return the smallest number of seeds that did not stop, over methods or data sets."""
    return min(int(np.sum(~np.isnan(of_seeds))) for of_seeds in scores.values())


def _all_above(
    kept: Reproduced, mode: Mode, datasets: Sequence[str], algorithms: Sequence[str],
    effects: Callable[[Scores], Iterable[Interval]], meaning: str,
) -> Evidence | None:  # fmt: skip
    """Check that every effect on every data set that was run is above 0; show the smallest."""
    found = [_scores(kept, mode, dataset, algorithms) for dataset in datasets]
    known = [scores for scores in found if scores is not None]
    if not known:
        return None
    every = [effect for scores in known for effect in effects(scores)]
    return Evidence(above(every), weakest(every), meaning, min(map(_fewest, known)))


_all_above_on_treatment = partial(
    _all_above, datasets=[f"treatment-{reward}" for reward in REWARDS],
    algorithms=("fttpo", *_TREATMENT_BASELINES),
)  # fmt: skip


def _in_order(scores: Scores) -> list[Interval]:
    fttpo, rar, reverse = scores.values()
    return [paired_difference(fttpo, rar), paired_difference(rar, reverse)]


def _over_baselines(scores: Scores) -> list[Interval]:
    return [paired_difference(scores["fttpo"], scores[name]) for name in _TREATMENT_BASELINES]


def _over_their_band(scores: Scores) -> list[Interval]:
    """Return FtTPO's lead over the best baseline minus the range of the baselines."""
    worst, *_, best = sorted(
        (scores[name] for name in _PLOTTED), key=lambda of_seeds: float(np.nanmean(of_seeds))
    )
    return [paired_difference(scores["fttpo"] - best, best - worst)]


def best_on_most_robots(kept: Reproduced, mode: Mode) -> Evidence | None:
    """Check that FtTPO is about as good as the best baseline or better on most data sets."""
    found = _on_robots(kept, mode, ("fttpo", *_ROBOT_BASELINES))
    if found is None:
        return None
    differences, good, behind = {}, 0, 0
    for name, scores in found.items():
        known = [scores[one] for one in _ROBOT_BASELINES if not np.isnan(scores[one]).all()]
        best = max(known, key=lambda of_seeds: float(np.nanmean(of_seeds)))
        differences[name] = scores["fttpo"] - best
        gap, near = paired_difference(scores["fttpo"], best), NEAR * abs(float(np.nanmean(best)))
        good += gap.low > -near
        behind += gap.high < -near
    half = len(found) / 2
    return Evidence(
        True if good > half else False if behind > half else None,
        stratified_interval(differences, mean),
        f"FtTPO − best baseline, mean over nine sets, in points of the score; by their intervals, "
        f"at least about as good (within a tenth) on {good} and worse on {behind}; required: on "
        "more than half",
        _fewest(differences),
    )


def _above_on_few(
    kept: Reproduced, mode: Mode, variant: str, most: int, meaning: str, but: str = "",
    sign: int = 1,
) -> Evidence | None:  # fmt: skip
    """Check that a variant ends above FtTPO on at most `most` data sets, leaving out `but`.

    The effect is the number of data sets on which it ends above, or below if `sign` is -1.
    `meaning` may contain {above} and {below}, the numbers of data sets whose interval decides, and
    {open}, the number of those that are undecided.
    """
    found = _on_robots(kept, mode, ("fttpo", variant))
    if found is None:
        return None
    compared = [scores for name, scores in found.items() if name != but]
    gaps = [paired_difference(scores[variant], scores["fttpo"]) for scores in compared]
    higher, lower = sum(gap.low > 0.0 for gap in gaps), sum(gap.high < 0.0 for gap in gaps)
    unclear = len(gaps) - higher - lower
    return Evidence(
        False if higher > most else True if higher + unclear <= most else None,
        number(sum(sign * gap.value > 0.0 for gap in gaps)),
        meaning.format(above=higher, below=lower, open=unclear),
        min(map(_fewest, found.values())),
    )


def _relative(
    kept: Reproduced, mode: Mode, variants: Sequence[str], score: Score
) -> tuple[list[Interval], int] | None:
    """Return each variant's lead over FtTPO as a share of FtTPO's mean, and the fewest seeds."""
    found = _on_robots(kept, mode, ("fttpo", *variants), score)
    if found is None:
        return None
    unit = {name: abs(float(np.nanmean(scores["fttpo"]))) for name, scores in found.items()}
    fttpo = {name: scores["fttpo"] / unit[name] for name, scores in found.items()}
    effects = []
    for one in variants:
        gaps = {name: scores[one] / unit[name] - fttpo[name] for name, scores in found.items()}
        effects.append(stratified_interval(gaps, mean))
    return effects, _fewest(fttpo)


def _near(effect: Interval) -> bool | None:
    """Return whether a difference is within a tenth; None if its interval is undecided."""
    if effect.low > -NEAR and effect.high < NEAR:
        return True
    return False if effect.low > NEAR or effect.high < -NEAR else None


def _like_tawac(kept: Reproduced, mode: Mode, score: Score, what: str) -> Evidence | None:
    found = _relative(kept, mode, ("tawac-ht",), score)
    if found is None:
        return None
    (effect,), seeds = found
    meaning = f"tawac-ht − FtTPO over nine sets, {what}, as a share of FtTPO's; within ±{NEAR}"
    return Evidence(_near(effect), effect, meaning, seeds)


def area_order(kept: Reproduced, mode: Mode) -> Evidence | None:
    """Check areas: FtTPO about equal to the SPOT variant and not below the SG variant."""
    found = _relative(kept, mode, ("fttpo-spot", "fttpo-sg"), area)
    if found is None:
        return None
    (spot, squashed), seeds = found
    wrong = _near(spot) is False or squashed.low > 0.0
    right = _near(spot) is True and squashed.value <= 0.0
    return Evidence(
        False if wrong else True if right else None,
        squashed,
        f"FtTPO-SG − FtTPO, area under the curve as a share of FtTPO's, not above 0; the SPOT "
        f"variant's is {spot.value:+.2f} [{spot.low:+.2f}, {spot.high:+.2f}], within ±{NEAR}",
        seeds,
    )


def _cost(
    kept: Reproduced, mode: Mode, kind: str, what: str, least: float, most: float, remark: str = ""
) -> Evidence | None:
    """Check that the time of FtTPO divided by that of IQL lies between two numbers."""
    times = kept.times()
    if times is None:
        return None
    ratio = times["methods"]["fttpo"][kind] / times["methods"]["iql"][kind]
    on = f"time of {what}, FtTPO / IQL, on {times['device']}"
    meaning = f"{on}; from {least:g} to {most:g}{remark}"
    return Evidence(bool(least <= ratio <= most), number(ratio), meaning, 1)


CLAIMS = (
    Claim("C1", "FtTPO ends above random action replacement, and that above sparse reverse KL "
          "(halfcheetah-medium-expert).", "fig1",
          partial(_all_above, datasets=[EXAMPLE], algorithms=("fttpo", "rar", "sparse_reverse_kl"),
                  effects=_in_order, meaning="smaller of the gaps FtTPO − RAR and RAR − reverse "
                  "KL, in points of the score; above 0. Settings of RAR and reverse KL are not "
                  "tuned")),
    Claim("C2", "On the treatment task FtTPO's final return is the highest.", "fig2",
          partial(_all_above_on_treatment, effects=_over_baselines, meaning="FtTPO − best "
                  "baseline, return of an episode, on the reward where it is smaller; above 0")),
    Claim("C3", "On treatment the baselines end lower, close to each other.", "fig2",
          partial(_all_above_on_treatment, effects=_over_their_band, meaning="(FtTPO − best "
                  "baseline) − (best − worst baseline), return of an episode; above 0")),
    Claim("C10", "FtTPO is better than or about as good as the best baseline on most of nine "
          "MuJoCo sets.", "fig4", best_on_most_robots),
    Claim("C12", "FtTPO-SPOT ends above FtTPO on three sets only.", "fig6",
          partial(_above_on_few, variant="fttpo-spot", most=3, meaning="sets of nine on which "
                  "fttpo-spot ends above FtTPO, at most 3; {above} by the interval, {open} "
                  "undecided")),
    Claim("C13", "TAWAC-HT ends about where FtTPO does.", "fig6",
          partial(_like_tawac, score=final, what="final score")),
    Claim("C14", "FtTPO-SG ends below FtTPO on every set but hopper-medium-replay.", "fig6",
          partial(_above_on_few, variant="fttpo-sg", most=0, but="hopper-medium-replay", sign=-1,
                  meaning="sets of the eight others on which FtTPO-SG ends below FtTPO, all 8; "
                  "{below} by the interval, and {above} above by it")),
    Claim("C17", "Areas under the curve: FtTPO about FtTPO-SPOT, and not below FtTPO-SG.", "fig8",
          area_order),
    Claim("C18", "Areas under the curve: FtTPO about TAWAC-HT.", "fig8",
          partial(_like_tawac, score=area, what="area under the curve")),
    Claim("C19", "An update of FtTPO costs about twice one of IQL.", "time",
          partial(_cost, kind="seconds_an_update", what="an update", least=1.5, most=3.0,
                  remark=" (the paper: 15 and 6 hours)"), both_modes=False),
    Claim("C20", "Acting costs about as much as with a Gaussian.", "time",
          partial(_cost, kind="seconds_an_action", what="a sampled action", least=0.5, most=2.0),
          both_modes=False),
)  # fmt: skip
