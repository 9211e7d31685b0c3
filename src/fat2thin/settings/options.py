"""The options of a run, declared once: `fat2thin train`, `fat2thin sweep`, `fat2thin.train`,
`make_spec` and the table in docs/guides/training.md are derived from them. Imports nothing heavy.
"""

import ast
import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

AUTO, DEFAULT = "auto", "default"
SMALL, CLEAR, LARGE = "small", "small-clear", "large"
"""Settings for small noisy logs, for small predictable ones, and for large ones."""
LAST, OFFLINE = "last", "offline"
CHOICES = "choices"  # key of a field's metadata: the values that an option can have

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _choice(*choices: str) -> Any:
    """Return a field that has one of these values; the first is the default."""
    return dataclasses.field(default=choices[0], metadata={CHOICES: choices})


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options of a run. None takes the value that belongs to `settings_from`, or to the log.

    Your own log is a file, a folder or a table, in contrast to a data set with a name.
    """

    steps: int | None = None
    """Updates per seed. Default: 100,000 for large logs, fewer for small ones."""
    seeds: int | Iterable[int] | None = None
    """Seeds: 10 is seeds 0 to 9; a list names them (on the command line "3," is seed 3, "3,5" is
    seeds 3 and 5). Each has its own networks, batches and evaluation episodes. Default: 1, and 5
    for your own log."""
    settings_from: str = _choice(AUTO, DEFAULT, SMALL, CLEAR, LARGE, "own", "fttpo")
    """Source of settings that are not given: "default", the algorithm's defaults; "small",
    "small-clear" or "large", ours for logs that are small and noisy, small and predictable, or
    large; "own", the method's own paper or repository, and what it does to observations and
    rewards; "fttpo", the runs of the FtTPO paper; or "auto", ours for this kind of log. `fat2thin
    published` lists published settings."""
    batch_size: int | None = None
    """Logged steps per update, drawn with replacement. Default: the published number, else 256."""
    evaluate_every: int = 1000
    """Updates between evaluations, which also happen before the first update and after the last."""
    episodes: int = 20
    """Evaluation episodes per seed and policy."""
    log_every: int = 250
    """Maximum number of updates averaged per metrics row."""
    snapshots: Iterable[int] = ()
    """Steps after which the policies of all seeds are saved, for figures of their evolution."""
    task: str | None = None
    """Task that policies are evaluated on, for example Hopper-v5 or treatment/quadratic, or "none".
    Default: the data set's own, for treatment/, hospital/, d4rl/, regenerated/ and
    minari/mujoco/ names."""
    standardise: bool | None = None
    """Give the networks observations with mean 0 and standard deviation 1 per column, over the log.
    Our settings and some published ones turn this on. Policies still take raw observations."""
    reward_scale: float | str | None = None
    """Factor that rewards are multiplied by before learning: a number; "return_range", which is
    1000 / (best - worst return of an episode), as in IQL; or "deviation", which is 1 / their
    standard deviation. Default: "deviation" in our settings, the published one, else 1."""
    centre_values: bool | None = None
    """Let critics learn the difference from the log's own level of values, so that they start at
    this level instead of at zero. Advantages do not change. Our settings of FtTPO and
    FtTPO-SPOT turn this on."""
    holdout: float | None = None
    """Share of the log's rows, in whole episodes, that no update sees, for example 0.2. Signals
    measured on them during training are saved with the metrics. Default: 0, and 0.2 for your own
    log."""
    window: int | None = None
    """Rows of the log that updates draw from at a time, for logs that do not fit on the device. The
    window moves over blocks from all over the log, so that a row is drawn about once before it
    leaves; all seeds share it. 0 is the whole log. Default: the whole log where it takes at most
    half of the device's memory, else as many rows as fit there."""
    limits: Any = None
    """TOML file with a table [limits], or in Python a mapping of texts, such as {"cap": "dose <=
    0.8 when severity > 2"}. Policies learn and act within these limits, and logged actions that
    break them are not imitated."""
    precision: str = _choice("float32", "bfloat16")
    """Type of numbers in the products of the networks and in stored activations: "bfloat16" is
    faster on GPUs. Weights, sums and targets are float32, and the policy acts in float32."""
    select: str = _choice(LAST, OFFLINE)
    """Final policy: "last", the one after the last update; or "offline", the one that scores best
    on the held-out episodes. Evaluations and snapshots during training are then of the best policy
    so far."""


@dataclasses.dataclass(frozen=True)
class SweepOptions(RunOptions):
    """Options of a sweep: those of its runs, with other defaults."""

    steps: int | None = None
    """Updates per seed. Default: those of a run, but at most 10,000."""
    seeds: int | Iterable[int] = 5
    """Seeds that choose the setting: a count, or a list such as "3,5"."""
    report_seeds: int | Iterable[int] = 10
    """Seeds that report the chosen setting, never those that chose: a count takes the next ones."""
    select: str = _choice("area", "final", OFFLINE)
    """How the best setting is chosen: by returns in the environment ("area" under the curve, as in
    the paper, or the "final" evaluation), or "offline", by a held-out part of the log (a fifth
    unless `holdout` is given)."""


def option_names() -> list[str]:
    """Return the names of the options of a run."""
    return [field.name for field in dataclasses.fields(RunOptions)]


def explain(config: type) -> list[tuple[str, Any, str]]:
    """Return name, default and explanation (the string below it in the source) of each field.

    Examples:
        >>> explain(RunOptions)[5]
        ('episodes', 20, 'Evaluation episodes per seed and policy.')
    """
    sentences: dict[str, str] = {}
    for part in reversed(config.__mro__[:-1]):
        sentences |= _sentences(part)
    fields = dataclasses.fields(config)
    return [(field.name, field.default, sentences.get(field.name, "")) for field in fields]


def _sentences(config: type) -> dict[str, str]:
    """Return the strings below the fields that this class itself declares."""
    try:
        source = inspect.getsource(config)
    except (OSError, TypeError):
        return {}  # a class made at run time, such as the config of a variant, has no source
    statements = ast.walk(ast.parse(textwrap.dedent(source)))
    body = next(node.body for node in statements if isinstance(node, ast.ClassDef))
    found = {}
    for field, below in itertools.pairwise(body):
        match field, below:
            case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                found[name] = " ".join(text.split())
    return found


def takes_options(function: _Function) -> _Function:
    """Add the options of a run to the signature and the docstring of a function.

    The last parameter of the function, `**settings`, receives them. In the list of arguments of
    the docstring they come before it.
    """
    signature = inspect.signature(function)
    *own, settings = signature.parameters.values()
    fields = dataclasses.fields(RunOptions)
    options = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
        )
        for field in fields
    ]
    vars(function)["__signature__"] = signature.replace(parameters=[*own, *options, settings])
    wrapper = textwrap.TextWrapper(96, initial_indent=" " * 4, subsequent_indent=" " * 8)
    described = []
    for field, (name, _, text) in zip(fields, explain(RunOptions), strict=True):
        if choices := field.metadata.get(CHOICES):
            text += f" One of {', '.join(map(repr, choices))}."
        described.append(wrapper.fill(f"{name}: {text}"))
    before, last, after = (inspect.getdoc(function) or "").partition(f"    **{settings.name}:")
    function.__doc__ = before + "\n".join([*described, last]) + after
    return function
