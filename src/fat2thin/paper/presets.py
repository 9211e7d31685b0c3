"""The runs behind every figure and sweep of the paper; runs that figures share are made once.

Settings are those of the FtTPO authors' runs (`published.toml`) where they are known, else those of
the method's own paper, else a learning rate and a temperature in the middle of the paper's grids.
"published" methods are what the authors' code computes.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fat2thin import algorithms
from fat2thin.atomic_files import write
from fat2thin.experiments.plan import PlannedRun
from fat2thin.experiments.sweep import Sweep
from fat2thin.runs import files
from fat2thin.settings.published import origins
from fat2thin.settings.spec import expand_seeds
from fat2thin.training import make_spec

REWARDS = ("quadratic", "cubic")  # the authors' code has the first; the paper prints the second
ROBOT_SETS = tuple(
    f"{robot}-{level}"
    for robot in ("halfcheetah", "hopper", "walker2d")
    for level in ("medium-expert", "medium-replay", "medium")
)
SOURCES = {"regenerated": "regenerated/{}", "d4rl": "d4rl/{}-v2"}
"""Where the robots' data come from: the name of a data set."""
EXAMPLE = "halfcheetah-medium-expert"  # the set of the paper's first figure and of its evolutions
ASKED = "reproduction.json"  # file in which a reproduction keeps what it was asked for
_MIDDLE = {
    "treatment": {"learning_rate": 3e-4, "temperature": 0.1},
    "robots": {"learning_rate": 1e-3, "temperature": 0.5},
}
_OWN_SCALE = ("td3_bc", "spot")  # methods whose authors standardise observations


class CurveSizes(NamedTuple):
    """Sizes of the runs that learning curves are of."""

    steps: int
    seeds: int
    evaluations: int
    """After the one before the first update."""
    episodes: int


class ReproductionScale(NamedTuple):
    """Sizes of the runs of a preset."""

    treatment: CurveSizes
    robots: CurveSizes
    selection_seeds: int
    """Seeds of a sweep, which report nothing."""
    hidden: tuple[int, ...] | None
    """Layers of all networks; None is what was published."""
    clipped_steps: int
    """Updates that Figure 7 shows the clipped policies over."""
    robot_evolution: int
    """Updates between the pictures of Figures 5 and 9."""
    timed_updates: int


SCALES = {
    "smoke": ReproductionScale(
        treatment=CurveSizes(steps=200, seeds=2, evaluations=2, episodes=10),
        robots=CurveSizes(steps=100, seeds=2, evaluations=2, episodes=1),
        selection_seeds=2, hidden=(16, 16), clipped_steps=100, robot_evolution=25, timed_updates=20,
    ),
    "small": ReproductionScale(
        treatment=CurveSizes(steps=10_000, seeds=5, evaluations=10, episodes=100),
        robots=CurveSizes(steps=20_000, seeds=4, evaluations=2, episodes=5),
        selection_seeds=3, hidden=None, clipped_steps=10_000, robot_evolution=1_000,
        timed_updates=500,
    ),
    "paper": ReproductionScale(
        treatment=CurveSizes(steps=500_000, seeds=10, evaluations=50, episodes=5),
        robots=CurveSizes(steps=1_000_000, seeds=10, evaluations=100, episodes=5),
        selection_seeds=5, hidden=None, clipped_steps=10_000, robot_evolution=1_000,
        timed_updates=2_000,
    ),
}  # fmt: skip
"""Minutes on two cores; an evening; ten seeds and all updates. At the paper's scale an evaluation
has its 5 episodes; smaller ones have more on the treatment task, where they are cheap."""


def scale_of(name: str) -> ReproductionScale:
    """The scale of this name."""
    if name not in SCALES:
        raise ValueError(f"no scale is called {name!r}; there are {', '.join(SCALES)}")
    return SCALES[name]


class Method(NamedTuple):
    """An algorithm as one line of a figure."""

    folder: str
    """Its name below a data set's folder, and in figures and tables."""
    algorithm: str
    settings: Mapping[str, Any] = MappingProxyType({})


def method(algorithm: str, *, published: bool = False) -> Method:
    """A method under its own name, or under its name and "published"."""
    form = Method(f"{algorithm}-published", algorithm, {"published": True})
    return form if published else Method(algorithm, algorithm)


def methods(*names: str, published: bool = False) -> tuple[Method, ...]:
    """Several of them."""
    return tuple(method(name, published=published) for name in names)


FTTPO, FTTPO_PUBLISHED = method("fttpo"), method("fttpo", published=True)
TREATMENT = (
    *methods("fttpo", "iql", "xql", "sql", "spot"),
    *methods("fttpo", "xql", "spot", published=True),
)
"""Figure 2, and what is needed to tell what is due to the authors' code."""
TREATMENT_ALL = (
    *TREATMENT,
    *methods("inac", "tawac", "awac", "td3_bc", "bc", "fttpo-spot", "fttpo-sg", "fttpo-greedy"),
    *methods("tawac-ht", "rar", "sparse_reverse_kl"),
    *methods("tawac-ht", "rar", "sparse_reverse_kl", published=True),
)
ROBOT_METHODS = (
    *methods("fttpo", "iql", "inac", "tawac", "awac", "xql", "sql"),
    *methods("fttpo", "xql", published=True),
)
"""Figure 4. XQL's own temperature of V is not in the authors' record, and is our default."""
_ABLATED = ("fttpo", "fttpo-spot", "fttpo-sg", "tawac-ht")
VARIANTS = (*methods(*_ABLATED), *methods(*_ABLATED, published=True))
_SPARSE = ("fttpo", "rar", "sparse_reverse_kl")
SPARSE = (*methods(*_SPARSE), *methods(*_SPARSE, published=True))
CLIPPED = (FTTPO, Method("iql-clipped-Gaussian", "iql", {"policy": "clipped_gaussian"}))
EVOLUTION_STEPS = (0, 100, 200, 300, 400)
_EVOLUTION = {"fttpo": {"temperature": 0.1}, "iql": {"learning_rate": 3e-5, "temperature": 1 / 3}}
"""Where the paper's runs of the evolution have other settings than its curves."""


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """What is asked for: how large, and where the robots' data come from."""

    scale: ReproductionScale
    source: str = "regenerated"
    seeds: int | None = None
    """Instead of the scale's."""
    steps: int | None = None
    """Updates of the runs that learning curves are of, instead of the scale's."""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"data must be one of {', '.join(SOURCES)}, got {self.source!r}")
        for name in ("seeds", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @property
    def options(self) -> dict[str, Any]:
        """The same as options of the command line."""
        scale = next((name for name, one in SCALES.items() if one == self.scale), "small")
        given = {"scale": scale, "data": self.source, "seeds": self.seeds, "steps": self.steps}
        return {name: value for name, value in given.items() if value is not None}

    def write(self, root: Path) -> None:
        """Write the options into a folder, so that claims can name the command."""
        root.mkdir(parents=True, exist_ok=True)
        write(root / ASKED, files.as_json(self.options))

    def robot_data(self, name: str) -> str:
        """The data set of a robot and a set, for example "hopper-medium"."""
        return SOURCES[self.source].format(name)

    def treatment(self, reward: str, which: Method) -> PlannedRun:
        """A learning curve on the treatment task."""
        return self._curve(
            f"treatment/{reward}", f"treatment-{reward}", which, self.scale.treatment
        )

    def robot(self, name: str, which: Method) -> PlannedRun:
        """A learning curve on a robot's data."""
        return self._curve(self.robot_data(name), name, which, self.scale.robots)

    def evolution(
        self, dataset: str, folder: str, which: Method, steps: Sequence[int], **settings: Any
    ) -> PlannedRun:
        """A short run of one seed that keeps its policies on the way and is not evaluated."""
        return self._planned(
            f"evolution/{folder}", dataset, which, settings, steps=steps[-1], seeds=1,
            snapshots=tuple(steps), evaluate_every=steps[-1], episodes=1,
            log_every=max(1, steps[-1] // 10), task="none",
        )  # fmt: skip

    def _curve(self, dataset: str, folder: str, which: Method, sizes: CurveSizes) -> PlannedRun:
        steps = self.steps or sizes.steps
        every = max(1, steps // sizes.evaluations)
        return self._planned(
            f"curves/{folder}", dataset, which, {}, steps=steps, seeds=self.seeds or sizes.seeds,
            evaluate_every=every, episodes=sizes.episodes, log_every=max(1, min(2_500, every)),
        )  # fmt: skip

    def _planned(
        self, folder: str, dataset: str, which: Method, settings: Mapping[str, Any], **options: Any
    ) -> PlannedRun:
        origin, values = settings_of(which, dataset)
        # The density model gets as many updates as the policy, and no more than published.
        sizes: dict[str, Any] = {"vae_steps": min(100_000, options["steps"])}
        if self.scale.hidden is not None:
            sizes |= dict.fromkeys(("hidden", "vae_hidden"), self.scale.hidden)
        sizes = {name: sizes[name] for name in sizes if name in _settings(which.algorithm)}
        spec = make_spec(
            which.algorithm, dataset, settings={**values, **settings, **sizes},
            settings_from=origin, data_needed=False,
            standardise=origin == "own" and which.algorithm in _OWN_SCALE, **options,
        )  # fmt: skip
        return PlannedRun(f"{folder}/{which.folder}", spec)


def options_of(root: Path) -> str:
    """The options of the reproduction that a folder holds, as a command line has them."""
    place = root / ASKED
    options = files.read_json(place) if place.exists() else {"scale": "small"}
    return " ".join(f"--{name} {value}" for name, value in options.items())


def _settings(algorithm: str) -> set[str]:
    return {field.name for field in dataclasses.fields(algorithms.get(algorithm).config)}


def settings_of(which: Method, dataset: str) -> tuple[str, dict[str, Any]]:
    """Where a method's settings on a data set come from, and what is set besides."""
    if sources := origins(which.algorithm, dataset):
        return "fttpo" if "fttpo" in sources else sources[0], dict(which.settings)
    names = _settings(which.algorithm)
    middle = _MIDDLE["treatment" if dataset.startswith("treatment/") else "robots"]
    known = {name: value for name, value in middle.items() if name in names}
    return "default", {**known, **which.settings}


Preset = Callable[[Reproduction], list[PlannedRun]]


def _on_treatment(wanted: Sequence[Method]) -> Preset:
    return lambda asked: [asked.treatment(reward, one) for reward in REWARDS for one in wanted]


def _on_robots(wanted: Sequence[Method], sets: Sequence[str] = ROBOT_SETS) -> Preset:
    return lambda asked: [asked.robot(name, one) for one in wanted for name in sets]


def treatment_evolution(asked: Reproduction) -> list[PlannedRun]:
    """Figure 3: the first 400 updates, on the reward of the authors' code."""
    return [
        asked.evolution(
            "treatment/quadratic", "treatment-quadratic", one, EVOLUTION_STEPS,
            **_EVOLUTION.get(one.algorithm, {}),
        )
        for one in methods("fttpo", "iql", "xql", "sql", "spot")
    ]  # fmt: skip


def robot_evolution(asked: Reproduction) -> list[PlannedRun]:
    """Figures 5 and 9."""
    steps = [asked.scale.robot_evolution * number for number in range(5)]
    return [asked.evolution(asked.robot_data(EXAMPLE), EXAMPLE, FTTPO, steps)]


def _seventh(asked: Reproduction) -> list[PlannedRun]:
    """Clipped policies on the left, and what first doses are worth on the right."""
    steps = [asked.scale.clipped_steps * number // 4 for number in range(5)]
    clipped = [
        asked.evolution(asked.robot_data(EXAMPLE), f"{EXAMPLE}-clipped", one, steps)
        for one in CLIPPED
    ]
    curves = [
        asked.treatment(reward, one) for one in (FTTPO, FTTPO_PUBLISHED) for reward in REWARDS
    ]
    return [*clipped, *curves]


_ablation = _on_robots(VARIANTS)
PRESETS: dict[str, Preset] = {
    "fig1": _on_robots(SPARSE, [EXAMPLE]),
    "fig2": _on_treatment(TREATMENT),
    "fig3": treatment_evolution,
    "fig4": _on_robots(ROBOT_METHODS),
    "fig5": robot_evolution,
    "fig6": _ablation,
    "fig7": _seventh,
    "fig8": _ablation,
    "fig9": robot_evolution,
    "treatment": _on_treatment(TREATMENT_ALL),
    "ablation": _ablation,
}
"""The runs of each figure by name; `treatment` is the table of all methods on that task, and
`ablation` is Figures 6 and 8."""


# The paper's sweeps. Source of the grids: the FtTPO authors' code, commit 811d59d. Temperatures
# divide: the inverse ones of XQL are converted.
Grid = Mapping[str, tuple[Any, ...]]
_RATES: Grid = {"learning_rate": (1e-3, 3e-4, 1e-4, 3e-3)}
_FTTPO_GRID: Grid = {"learning_rate": (1e-3, 3e-4), "temperature": (1.0, 0.5, 0.01)}
TREATMENT_GRIDS: dict[str, Grid] = {
    "fttpo": {"learning_rate": (3e-4, 1e-4, 3e-5), "temperature": (1.0, 0.5, 0.1, 0.01)},
    "iql": {**_RATES, "temperature": (1 / 3, 0.7), "expectile": (0.7, 0.8, 0.9)},
    "sql": {**_RATES, "temperature": (2.0, 5.0)},
    "xql": {**_RATES, "temperature": (0.5, 0.2)},
}
ROBOT_GRIDS: dict[str, Grid] = {
    "fttpo": _FTTPO_GRID,
    "fttpo-sg": _FTTPO_GRID,
    "fttpo-spot": _FTTPO_GRID,
    "iql": _RATES,
    "inac": _RATES,
    "tawac": {**_RATES, "temperature": (1.0, 0.5, 0.01)},
    "awac": _RATES,
    "sql": {"learning_rate": (2e-4,), "temperature": (2.0, 5.0)},
}
EXAMPLE_GRIDS: dict[str, Grid] = {"rar": _FTTPO_GRID, "sparse_reverse_kl": _FTTPO_GRID}
"""Tuned on two sets of one robot alone."""
EXAMPLES = ("halfcheetah-medium-expert", "halfcheetah-medium")


def sweeps(asked: Reproduction, robots: bool = True) -> dict[str, Sweep]:
    """Every sweep of the paper, or those on the treatment task, by the folder that holds it."""
    parts: list[tuple[Callable[[str, Method], PlannedRun], Mapping[str, Grid], Sequence[str]]] = [
        (asked.treatment, TREATMENT_GRIDS, REWARDS)
    ]
    if robots:
        parts += [(asked.robot, ROBOT_GRIDS, ROBOT_SETS), (asked.robot, EXAMPLE_GRIDS, EXAMPLES)]
    chooses, found = expand_seeds(asked.scale.selection_seeds), {}
    for plan, grids, names in parts:
        for (algorithm, grid), name in itertools.product(grids.items(), names):
            spec = plan(name, method(algorithm)).spec
            reports = tuple(range(len(chooses), len(chooses) + len(spec.seeds)))
            folder = f"sweeps/{spec.dataset.replace('/', '-')}/{algorithm}"
            found[folder] = Sweep(dataclasses.replace(spec, seeds=chooses), grid, reports)
    return found
