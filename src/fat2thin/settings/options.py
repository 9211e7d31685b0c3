"""The options of a run, declared once: `fat2thin train`, `fat2thin sweep`, `fat2thin.train`,
`make_spec` and the table in docs/guides/training.md are made from here. Imports nothing heavy.
"""

import ast
import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

AUTO, DEFAULT = "auto", "default"
SMALL, CLEAR = "small", "small-clear"
"""For small logs that are noisy, and for those where the next observation can be predicted."""
LAST, OFFLINE = "last", "offline"
CHOICES = "choices"  # key of a field's metadata: the values that an option may have

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _choice(*choices: str) -> Any:
    """A field that is one of these; the first is the default."""
    return dataclasses.field(default=choices[0], metadata={CHOICES: choices})


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options of a run. None leaves the choice to `settings_from`."""

    steps: int | None = None
    """Updates per seed. Required unless the settings are those for small logs."""
    seeds: int | Iterable[int] = 1
    """Seeds: 10 is seeds 0 to 9; a list names them (on the command line "3," is seed 3, "3,5" is
    seeds 3 and 5). Each has its own networks, batches and evaluation episodes."""
    settings_from: str = _choice(AUTO, DEFAULT, SMALL, CLEAR, "own", "fttpo")
    """Where settings come from that are not given: the algorithm's defaults; ours for small logs,
    noisy or clear ones; the method's own paper or repository; or the runs of the FtTPO paper.
    "auto" takes those for small logs where the log is one. `fat2thin published` lists the
    published ones."""
    batch_size: int | None = None
    """Logged steps per update, drawn with replacement: the published number, otherwise 256."""
    evaluate_every: int = 1000
    """Updates between evaluations. There is one before the first update and one after the last."""
    episodes: int = 20
    """Evaluation episodes per seed and policy."""
    log_every: int = 250
    """Maximum number of updates averaged per metrics row."""
    snapshots: Iterable[int] = ()
    """Steps after which the policies of all seeds are kept, for pictures of their evolution."""
    task: str | None = None
    """Task that policies are evaluated on, for example Hopper-v5, or "none". By default the data
    set's own: the treatment tasks, and the robots of d4rl/ and regenerated/ names."""
    standardise: bool | None = None
    """Give the networks observations with mean 0 and standard deviation 1 per column, over the log.
    Settings for small logs do. Policies take raw observations all the same."""
    reward_scale: float | str | None = None
    """Factor that rewards are multiplied by before learning: a number; "return_range", which is
    1000 / (best - worst return of an episode), as IQL does; or "deviation", which is 1 / their
    standard deviation."""
    holdout: float = 0.0
    """Share of the log's rows, in whole episodes, that no update sees, for example 0.2. Signals
    measured on them while the policy learns are kept with the metrics."""
    select: str = _choice(LAST, OFFLINE)
    """Which policy acts in the end: "last", that after the last update; or "offline", the one that
    the held-out episodes value most. Evaluations and snapshots on the way are then of the best one
    so far."""


@dataclasses.dataclass(frozen=True)
class SweepOptions(RunOptions):
    """Options of a sweep: those of its runs, with other defaults."""

    steps: int | None = 10_000
    """Updates per seed."""
    seeds: int | Iterable[int] = 5
    """Seeds that choose: a count, or a list such as "3,5"."""
    report_seeds: int | Iterable[int] = 10
    """Seeds that report, never those that choose: a count takes the next ones."""
    select: str = _choice("area", "final", OFFLINE)
    """How the best setting is chosen: by returns in the environment ("area" under the curve, as in
    the paper, or the "final" evaluation), or "offline", by a part of the log that is held out (a
    fifth, unless `holdout` says)."""


def option_names() -> list[str]:
    """Names of the options of a run."""
    return [field.name for field in dataclasses.fields(RunOptions)]


def explain(config: type) -> list[tuple[str, Any, str]]:
    """Name, default and explanation (the string below it in the source) of each field."""
    sentences: dict[str, str] = {}
    for part in reversed(config.__mro__[:-1]):
        sentences |= _sentences(part)
    fields = dataclasses.fields(config)
    return [(field.name, field.default, sentences.get(field.name, "")) for field in fields]


def _sentences(config: type) -> dict[str, str]:
    """The strings below the fields that this very class names in its source."""
    try:
        source = inspect.getsource(config)
    except (OSError, TypeError):
        return {}  # a class made at run time, as those of variants are, has no source
    statements = ast.walk(ast.parse(textwrap.dedent(source)))
    body = next(node.body for node in statements if isinstance(node, ast.ClassDef))
    found = {}
    for field, below in itertools.pairwise(body):
        match field, below:
            case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                found[name] = " ".join(text.split())
    return found


def takes_options(function: _Function) -> _Function:
    """Show the options of a run in the signature and documentation of a function.

    Its last parameter, `**settings`, receives them.
    """
    signature = inspect.signature(function)
    *own, settings = signature.parameters.values()
    options = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
        )
        for field in dataclasses.fields(RunOptions)
    ]
    vars(function)["__signature__"] = signature.replace(parameters=[*own, *options, settings])
    wrapper = textwrap.TextWrapper(96, initial_indent=" " * 4, subsequent_indent=" " * 8)
    described = [wrapper.fill(f"{name}: {text}") for name, _, text in explain(RunOptions)]
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Options:", *described])
    return function
