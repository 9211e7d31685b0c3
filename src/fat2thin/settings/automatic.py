"""Settings by the log: the rule of `settings_from="auto"`.

- Every log is scaled: observations are standardised, rewards divided by their standard deviation.
  So settings do not depend on units. FtTPO's critics also start at the log's own level of values.
- FtTPO has one temperature and one band for every log; other algorithms have their own settings.
- The networks grow with what the log can teach: small ones with weight decay for small noisy logs,
  which large ones overfit (docs/guides/small_logs.md), the usual ones for small predictable logs,
  and three normalised layers (FtTPO) for large ones.
- A log of one's own has no task to evaluate on, so its policies are judged from the log alone: by
  whether several seeds agree, and on episodes that no update saw. There, `OWN_SEEDS` and
  `OWN_HOLDOUT` are the defaults; a data set with a name has one seed and no held-out part. A small
  log of one's own gets small networks even if its next observations are predictable: larger ones
  learned bands with 24 % of the training actions and 6 % of the held-out ones, which overlapped in
  6 % of the states (`fat2thin data make hospital/insulin@600 ward.npz`, `fat2thin train fttpo
  ward.npz --settings-from small-clear`); with small ones, in all of them.
- Critics need about 1 / ((1 - discount) * polyak_rate) updates to settle, and more if they start at
  zero, so small logs get a number of updates by their discount. Large logs get 100,000.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fat2thin import algorithms, data
from fat2thin.data.memory import PREFIX as MEMORY
from fat2thin.data.predictability import is_noisy
from fat2thin.evaluation.refusal import LEAST_EPISODES
from fat2thin.settings.options import AUTO, CLEAR, DEFAULT, LARGE, SMALL
from fat2thin.terminal_text import counted

Load = Callable[[str, int], data.Dataset]
"""`load(name, seed)` as in `data.load`, or a cached version of it."""
SMALL_ROWS = 25_000  # maximum number of rows of a small log
SMALL_STEPS = {False: 6_000, True: 2_500}
"""Updates for a small log with a discount of 0.9, where critics settle in 2,000: if they start at
zero, and if they start at the level of the log."""
LARGE_STEPS = 100_000
MOST_STEPS = {CLEAR: 12_000}
"""Maximum number of updates for a small log, if not `LARGE_STEPS`: no more were tried."""
OWN_SEEDS, OWN_HOLDOUT = 5, 0.2
"""Seeds of a run on one's own log, and the share of its rows, in whole episodes, to hold out: few
enough to train on a laptop, and enough to see seeds that disagree."""
SCALES: dict[str, Any] = {"standardise": True, "reward_scale": "deviation"}
"""Options of a run on any log."""
ORIGINS = (SMALL, CLEAR, LARGE)
KINDS = {
    SMALL: "its next observations are noisy: settings for small noisy logs",
    CLEAR: "its next observations are predictable: settings for small predictable logs",
    LARGE: "is large: settings for large logs",
}

_SIMPLE = {"hidden": (16, 16), "weight_decay": 3.0, "learning_rate": 3e-4}
"""Small networks for noisy logs; an algorithm adds its own settings (`Automatic`). Each value was
the best of five on seeds 0 to 9 of both treatment rewards."""


def _own(algorithm: str, origin: str) -> Mapping[str, Any] | None:
    known = algorithms.get(algorithm).automatic
    if known.noisy is None:
        return None
    return {SMALL: known.noisy, CLEAR: known.predictable, LARGE: known.large}[origin]


def settings_for(algorithm: str, origin: str = SMALL) -> dict[str, Any]:
    """Return the settings of an algorithm for a kind of log; a ValueError if none are known."""
    own = _own(algorithm, origin)
    if own is None:
        there = ", ".join(name for name in algorithms.names() if _own(name, origin) is not None)
        raise ValueError(f"settings_from={origin!r} is known for {there}, not for {algorithm}")
    return {**(_SIMPLE if origin == SMALL else {}), **own}


def options_for(algorithm: str) -> dict[str, Any]:
    """Return the options of a run of an algorithm on any log."""
    return {**SCALES, "centre_values": algorithms.get(algorithm).automatic.centre_values}


def is_centred(algorithm: str, origin: str, given: bool | None) -> bool:
    """Return whether critics start at the level of the log; `given` is the option of the run."""
    if given is not None:
        return given
    return origin in ORIGINS and algorithms.get(algorithm).automatic.centre_values


def resolve(settings_from: str, algorithm: str, dataset: str, load: Load = data.load) -> str:
    """Return `settings_from`, with "auto" resolved by the size and the noise of the log.

    A log of one's own from which nothing can be learned is a ValueError.
    """
    if settings_from != AUTO:
        return settings_from
    log, known = load(dataset, 0), algorithms.get(algorithm)
    if known.automatic.noisy is None:
        return DEFAULT
    if log.reward.min() == log.reward.max():
        learns_values = known.critics is not None or known.value is not None
        if learns_values and is_own_log(dataset) and log.continuation.min() == 1:
            raise ValueError(
                f"every reward of {dataset} is {log.reward[0]:g}, and no episode truly ends, so "
                "all policies are worth the same. Name the right reward column, or the column of "
                "true ends"
            )
        return DEFAULT  # such rewards have no scale
    if log.rows > SMALL_ROWS:
        return LARGE
    return SMALL if is_own_log(dataset) or is_noisy(log) else CLEAR


def enough_steps(
    steps: int | None, settings_from: str, dataset: str, centred: bool, load: Load = data.load
) -> int:
    """Return the number of updates: `steps` if given, else enough of them for the log."""
    if steps is not None:
        return steps
    log = load(dataset, 0)
    if log.rows > SMALL_ROWS:
        return LARGE_STEPS
    least, most = SMALL_STEPS[centred is True], MOST_STEPS.get(settings_from, LARGE_STEPS)
    return min(most, max(least, round(least * 0.1 / max(1.0 - log.discount, 1e-9))))


def is_own_log(dataset: str) -> bool:
    """Whether a data set is one's own: a file, a folder or a table in memory, without a name."""
    return data.reader(dataset).prefix in ("", MEMORY)


def judged_options(dataset: str, load: Load = data.load) -> dict[str, Any]:
    """Return the seeds and the held-out share that a run has by default.

    A log of one episode has nothing to hold out.
    """
    if not is_own_log(dataset):
        return {"seeds": 1, "holdout": 0.0}
    several = load(dataset, 0).episode_start.size > 1
    return {"seeds": OWN_SEEDS, "holdout": OWN_HOLDOUT if several else 0.0}


def judged_sentence(taken: Mapping[str, Any], steps: int | None) -> str:
    """Return a sentence that lists the defaults that one's own log gets."""
    words = {
        "seeds": lambda count: f"{count} seeds",
        "holdout": lambda share: (
            f"{100 * share:g} % of the episodes held out" if share
            else "no episode held out, because there is only one"
        ),
    }  # fmt: skip
    listed = [words[name](value) for name, value in taken.items()]
    listed += [f"{steps:,} updates per seed"] if steps is not None else []
    names = [f"--{name}" for name in (*taken, *(["steps"] if steps is not None else []))]
    return f"Chosen for your own log: {', '.join(listed)} ({', '.join(names)} to change)."


def few_episodes_sentence(dataset: str, holdout: float, load: Load = data.load) -> str:
    """Return a warning if a policy cannot be judged on the held-out part of a log; else ""."""
    episodes = load(dataset, 0).episode_start.size
    held_out = round(holdout * episodes)
    if held_out >= LEAST_EPISODES:
        return ""
    there = f"About {held_out} of {counted(episodes, 'episode')} are held out"
    there = there if held_out else f"{dataset} has {counted(episodes, 'episode')}, none is held out"
    return (
        f"{there}: too few to say what the policy is worth. `fat2thin value` and the dossier need "
        f"at least {LEAST_EPISODES}, here or in another log."
    )


def sentence(dataset: str, rows: int, origin: str, taken: str) -> str:
    """Return a sentence that says why a log gets its settings, and which (`taken`)."""
    own = origin == SMALL and is_own_log(dataset)
    kind = "it is your own: settings for small noisy logs" if own else KINDS[origin]
    return (
        f"{dataset} has {rows:,} rows{' and' if origin == LARGE else ', and'} {kind} are "
        f"used ({taken}). Use --settings-from default for the algorithm's defaults."
    )
