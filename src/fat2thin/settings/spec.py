"""Run specifications: frozen, complete descriptions of a run that JSON can hold."""

import dataclasses
import numbers
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax

from fat2thin import algorithms, data
from fat2thin.algorithms.base import Problem
from fat2thin.algorithms.published import NO_LIMITS
from fat2thin.data.operations import check_holdout
from fat2thin.data.scaling import check_reward_scale
from fat2thin.evaluation.limited import bind_limits, limit_report
from fat2thin.evaluation.returns import NO_TASK
from fat2thin.policies.limits import LimitRules
from fat2thin.policies.networks import PRECISIONS
from fat2thin.policies.policy import Policy
from fat2thin.random_streams import LARGEST_SEED
from fat2thin.settings import automatic as rule
from fat2thin.settings.automatic import Load
from fat2thin.settings.config import LARGEST_NUMBER, make_config, whole_number
from fat2thin.settings.options import AUTO, DEFAULT, LAST, OFFLINE, RunOptions
from fat2thin.settings.published import ORIGINS, PublishedSettings, published_settings
from fat2thin.terminal_text import counted

WINDOW_BATCHES = 4  # fewest batches of rows in a window; with 2, scores differ from the whole log's
MOST_ROWS = 1_000_000  # maximum number of rows of metrics of a run, about half a gigabyte


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec(RunOptions):
    """Everything that determines what a run computes: its options, all of them resolved."""

    algorithm: str
    """Name of the algorithm."""
    dataset: str
    """Name of the data set."""
    config: Any
    """The algorithm's settings, an instance of its config class."""
    steps: int
    seeds: tuple[int, ...]
    settings_from: str = DEFAULT
    batch_size: int = 256
    snapshots: tuple[int, ...] = ()
    standardise: bool = False
    reward_scale: float | str = 1.0
    centre_values: bool = False
    holdout: float = 0.0
    limits: LimitRules | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the specification as plain values; tuples become lists."""
        values = dataclasses.asdict(dataclasses.replace(self, limits=None))
        return plain({**values, "limits": self.limits and self.limits.to_json()})

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RunSpec":
        """Return the specification that `to_json` was called on, perhaps by an older version.

        Unknown fields raise a ValueError. No file that a field names is opened.
        """
        _refuse_other_kinds(values)
        algorithm = algorithms.get(values["algorithm"])
        config = make_config(algorithm, None, values["config"])
        # The config already holds the settings published then; a later file must not change it.
        known = {name: value for name, value in values.items() if name != "settings_from"}
        if known.get("limits") is not None:
            known["limits"] = LimitRules.from_json(known["limits"])
        spec = make_spec(**{**known, "config": config}, data_needed=False)
        return dataclasses.replace(spec, settings_from=values.get("settings_from", DEFAULT))

    @property
    def evaluation_steps(self) -> tuple[int, ...]:
        """Steps after which policies are evaluated."""
        return (*range(0, self.steps, self.evaluate_every), self.steps)

    @property
    def stops(self) -> tuple[int, ...]:
        """Steps at which the compiled loop must return: evaluations and snapshots."""
        return tuple(sorted({*self.evaluation_steps, *self.snapshots}))


def choose_spec(
    algorithm: str, dataset: str, config: Any, settings: Mapping[str, Any], load: Load,
    **options: Any,
) -> tuple[RunSpec, str]:  # fmt: skip
    """Return the specification of a run, and notes on what was chosen, one per line.

    Like `make_spec`, but `settings_from` may be "auto", and steps, seeds and the held-out share may
    be missing: the log decides.
    """
    origin, given = options.pop("settings_from", AUTO), _given(options)
    own = rule.is_own_log(dataset)
    judged = {
        name: value
        for name, value in rule.judged_options(dataset, load).items()
        if name not in given
    }
    counted_steps = given.get("steps") is None
    automatic = origin == AUTO and config is None
    if origin == AUTO:
        origin = rule.resolve(AUTO, algorithm, dataset, load) if automatic else DEFAULT
    centred = rule.is_centred(algorithm, origin, given.get("centre_values"))
    steps = rule.enough_steps(given.pop("steps", None), origin, dataset, centred, load)
    spec = make_spec(
        algorithm, dataset, config=config, settings=settings, settings_from=origin, steps=steps,
        **judged, **given,
    )  # fmt: skip
    if spec.holdout:
        check_holdout(load(dataset, 0), spec.holdout)
    notes = describe_settings([spec], [*settings, *given], automatic, load)
    if own and (judged or counted_steps):
        chosen = rule.judged_sentence(judged, spec.steps if counted_steps else None)
        notes = f"{chosen}\n{notes}".strip()
    # A share or a task that is given says what the run is judged by.
    by_log = own and "holdout" in judged and spec.task in (None, NO_TASK)
    if by_log and (few := rule.few_episodes_sentence(dataset, spec.holdout, load)):
        notes = f"{notes}\n{few}".strip()
    if spec.limits is not None:
        log = load(dataset, 0)
        found = limit_report(log, bind_limits(spec.limits, log))
        notes = (
            f"{notes} The limits exclude {found.excluded_words}, which are not imitated.".strip()
        )
    if "batch_size" in given and spec.batch_size > (rows := load(dataset, 0).rows):
        larger = (
            f"batch_size={spec.batch_size} is larger than the log of {counted(rows, 'row')}: rows "
            "are drawn with replacement, so an update sees most of them several times."
        )
        notes = f"{notes} {larger}".strip()
    return spec, notes


def make_spec(
    algorithm: str, dataset: str,
    *, steps: int, seeds: int | Iterable[int] = 1, config: Any = None,
    settings: Mapping[str, Any] | None = None, settings_from: str = DEFAULT,
    data_needed: bool = True, **options: Any,
) -> RunSpec:  # fmt: skip
    """Return a checked specification: all names exist and all numbers are in range.

    `settings` are those of the algorithm, by name: they override those of `settings_from`, and drop
    those that they rule out. `options` are the other fields of `RunOptions`. Nothing is loaded or
    compiled. With `data_needed=False` the data set need not exist any more.

    Examples:
        >>> settings = {"temperature": 0.5}
        >>> spec = make_spec("iql", "treatment/quadratic", steps=2000, settings=settings)
        >>> spec.evaluation_steps, spec.seeds, spec.config.temperature
        ((0, 1000, 2000), (0,), 0.5)
    """
    chosen = algorithms.get(algorithm)
    if data_needed:
        data.reader(dataset)
    settings = settings or {}
    if settings_from != DEFAULT and config is not None:
        raise ValueError(f"give a config or settings_from={settings_from!r}, not both")
    brought = find_settings(algorithm, dataset, settings_from, settings.get("policy"))
    options = _given(options)
    if settings_from in rule.ORIGINS:
        options = {**rule.options_for(algorithm), **options}
    else:
        options = {**brought.options, **options}
    for name in ("evaluate_every", "episodes", "log_every", "batch_size"):
        if name in options:
            options[name] = whole_number(name, options[name], least=1)
    for name in ("standardise", "centre_values"):
        if not isinstance(options.get(name, False), bool):
            raise ValueError(f"{name} must be True or False, got {options[name]!r}")
    if "window" in options:
        options["window"] = whole_number("window", options["window"], least=0)
    if "limits" in options:
        options["limits"] = LimitRules.read(options["limits"])
    if (precision := options.get("precision", PRECISIONS[0])) not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    _check_holdout(options.get("holdout", 0.0), options.get("select", LAST))
    if "holdout" in options:
        options["holdout"] = float(options["holdout"])
    if "reward_scale" in options:
        options["reward_scale"] = check_reward_scale(options["reward_scale"])
    steps = whole_number("steps", steps, least=1, most=LARGEST_NUMBER)
    snapshots = [whole_number("snapshots", step, least=0) for step in options.pop("snapshots", ())]
    if (latest := max(snapshots, default=0)) > steps:
        raise ValueError(f"snapshots must not lie beyond the last step {steps}, got {latest}")
    spec = RunSpec(
        algorithm=algorithm,
        dataset=dataset,
        config=make_config(chosen, config, settings, brought.values),
        seeds=expand_seeds(seeds),
        steps=steps,
        snapshots=tuple(sorted(set(snapshots))),
        settings_from=settings_from,
        **options,
    )
    if data_needed:
        _refuse_endless_metrics(spec)
    if spec.limits is not None:
        _refuse_limits(spec)
    if spec.window and spec.window < (least := WINDOW_BATCHES * spec.batch_size):
        raise ValueError(
            f"window={spec.window} is less than {WINDOW_BATCHES} batches of {spec.batch_size} "
            "rows, too few for updates to draw from: use at least "
            f"{least:,}, or 0 for the whole log"
        )
    return spec


def _refuse_limits(spec: RunSpec) -> None:
    """Raise a ValueError that says why, if the algorithm cannot learn within limits."""
    algorithm = algorithms.get(spec.algorithm)
    if not algorithm.learns_limits:
        raise ValueError(
            f"{spec.algorithm} does not learn within limits. Train without them, and put them "
            "around the finished policy: run.policy().with_limits(...), or --limits of the command "
            "that uses it"
        )
    if getattr(spec.config, "published", False):
        raise ValueError(f"limits: {NO_LIMITS}")
    problem = Problem(1, (-1.0,), (1.0,), 0.9)
    for make in filter(None, (algorithm.policy, algorithm.proposal)):

        def policy(make: Any = make) -> Policy:
            state = algorithm.init(jax.random.key(0), problem, spec.config)
            return make(state, problem, spec.config)

        eqx.filter_eval_shape(policy).family.check_limits()


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without those that are None and left to `settings_from`."""
    left = {field.name for field in dataclasses.fields(RunOptions) if field.default is None}
    return {name: value for name, value in options.items() if value is not None or name not in left}


def _check_holdout(holdout: Any, select: Any) -> None:
    number = isinstance(holdout, numbers.Real) and not isinstance(holdout, bool)
    if not number or not 0 <= holdout < 1:
        raise ValueError(f"holdout must be a number of at least 0 and below 1, got {holdout!r}")
    if select not in (LAST, OFFLINE):
        raise ValueError(f"select must be one of {LAST!r}, {OFFLINE!r}, got {select!r}")
    if select != LAST and not holdout:
        raise ValueError(
            f"select={select!r} needs a held-out part of the log: give its share, for example "
            "holdout=0.2"
        )


def _refuse_other_kinds(values: Mapping[str, Any]) -> None:
    """Check the names and types of fields where `make_spec` would accept more, or rely on them."""
    names = [field.name for field in dataclasses.fields(RunSpec)]
    for name in values:
        if name not in names:
            raise ValueError(f"a specification has no {name!r}; there are {', '.join(names)}")
    for name in ("algorithm", "dataset", "config", "seeds", "steps"):
        if name not in values:
            raise ValueError(f"a specification must have {name}")
    for name, value in values.items():
        if not isinstance(value, _KINDS.get(name, object)) or (
            value is None and name not in ("task", "window", "limits")
        ):
            raise ValueError(f"{name} of a specification cannot be {value!r}")


_KINDS: dict[str, Any] = {
    "algorithm": str,
    "dataset": str,
    "config": Mapping,
    "seeds": list,
    "steps": int,
    "snapshots": list,
    "task": str | None,
    "window": int | None,
    "limits": Mapping | None,
    "settings_from": str,
}


def _refuse_endless_metrics(spec: RunSpec) -> None:
    rows = -(-spec.steps // spec.log_every) * len(spec.seeds)
    if rows > MOST_ROWS:
        enough = -(-spec.steps * len(spec.seeds) // MOST_ROWS)
        fewer = f"log_every={enough} or more" if enough > spec.log_every else "fewer seeds"
        raise ValueError(
            f"log_every={spec.log_every} gives {rows:,} rows of metrics (steps: {spec.steps:,}, "
            f"seeds: {len(spec.seeds)}); the maximum is {MOST_ROWS:,}: use {fewer}"
        )


def find_settings(
    algorithm: str, dataset: str, settings_from: str, policy: str | None = None
) -> PublishedSettings:
    """Return the settings of `settings_from`; `policy` is the family of policies, if given."""
    if settings_from == DEFAULT:
        return PublishedSettings({}, None, (), ())
    if settings_from in rule.ORIGINS:
        return PublishedSettings(rule.settings_for(algorithm, settings_from), None, (), ())
    if settings_from not in ORIGINS:
        choices = ", ".join(map(repr, (DEFAULT, *rule.ORIGINS, *ORIGINS)))
        raise ValueError(f"settings_from must be one of {choices}, got {settings_from!r}")
    return published_settings(algorithm, dataset, settings_from, policy)


def describe_settings(
    specs: Sequence[RunSpec], given: Collection[str], automatic: bool, load: Load = data.load
) -> str:
    """Return a note to the user about settings that are not `given` by name, or "".

    It lists the settings that are used if they are `automatic`, and always published scalings of
    the log, and settings that are not used because a given one rules them out. Several `specs` are
    the runs of a sweep.
    """
    taken: dict[str, Any] = {}
    scaled: dict[str, Any] = {}
    left_out: dict[str, Any] = {}
    for spec in specs:
        policy = spec.config.policy if "policy" in given else None
        found = find_settings(spec.algorithm, spec.dataset, spec.settings_from, policy)
        for name, unscaled in _UNSCALED.items():
            if name not in given and found.options.get(name, unscaled) != unscaled:
                scaled[name] = found.options[name]
        for name, value in found.values.items():
            if name not in given:
                same = plain(getattr(spec.config, name)) == plain(value)
                (taken if same else left_out)[name] = value
    notes, first = [], specs[0]
    if automatic and first.settings_from != DEFAULT:
        options = rule.options_for(first.algorithm).items()
        taken |= {name: one for name, one in options if one and name not in given}
        words = _words(taken)
        rows = load(first.dataset, 0).rows
        notes.append(rule.sentence(first.dataset, rows, first.settings_from, words))
    if scaled:
        off = " and ".join(_TURN_OFF[name] for name in scaled)
        notes.append(f"As its authors do, the log is scaled: {_words(scaled)} ({off} to turn off).")
    if left_out:
        notes.append(f"Not used, because a given setting rules them out: {_words(left_out)}.")
    return " ".join(notes)


_UNSCALED = {"standardise": False, "reward_scale": 1.0}
_TURN_OFF = {"standardise": "--no-standardise", "reward_scale": "--reward-scale 1"}


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={','.join(map(str, value)) if isinstance(value, tuple | list) else value}"
        for name, value in settings.items()
    )


def expand_seeds(seeds: int | Iterable[int]) -> tuple[int, ...]:
    """Return the seeds: `10` means seeds 0 to 9, `[3]` means seed 3."""
    if not isinstance(seeds, Iterable):
        return tuple(range(whole_number("seeds", seeds, least=1)))
    listed = tuple(whole_number("seeds", seed, least=0) for seed in seeds)
    if not listed or len(set(listed)) != len(listed) or max(listed) > LARGEST_SEED:
        raise ValueError(
            f"seeds must be different numbers from 0 to {LARGEST_SEED}, at least one; got {listed}"
        )
    return listed


def plain(value: Any) -> Any:
    """Return the value as JSON would give it back: tuples become lists."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the differences of two specifications (as JSON), one line per field."""
    old, new = _flat(old), _flat(new)
    absent = {name: _LATER_SETTINGS.get(name, "nothing") for name in {*old, *new}}
    old, new = {**absent, **old}, {**absent, **new}
    if new["window"] is None:
        new["window"] = old["window"]  # that of the device that the run began on
    return [
        f"{name}: {old[name]!r} there, {new[name]!r} here"
        for name in sorted(absent)
        if old[name] != new[name]
    ]


# Values of settings that older folders do not have.
_LATER_SETTINGS = {
    "config.weight_decay": 0.0,
    "config.clip_targets": False,
    "config.critic_count": 2,
    "config.layer_norm": False,
}


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    config = {f"config.{name}": value for name, value in values["config"].items()}
    others = {name: value for name, value in values.items() if name != "config"}
    # Folders older than these options do not have them.
    later = (
        "task", "standardise", "reward_scale", "centre_values", "holdout", "select",
        "settings_from", "window", "limits", "precision",
    )  # fmt: skip
    absent = {field.name: field.default for field in dataclasses.fields(RunSpec)}
    return {**{name: absent[name] for name in later}, **others, **config}
