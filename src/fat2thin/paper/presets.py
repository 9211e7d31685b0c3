"""Presets: the runs behind every figure and sweep of the paper. Figures share runs.

Settings are those of the FtTPO authors' runs (`published.toml`) if they are known, otherwise those
of the method's own paper, otherwise a learning rate and a temperature from the middle of the
paper's grids. "published" methods compute what the authors' code computes.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fat2thin import algorithms
from fat2thin.atomic_files import write
from fat2thin.data.formats.d4rl import ROBOT_SETS
from fat2thin.experiments.plan import PlannedRun
from fat2thin.experiments.sweep import Sweep
from fat2thin.runs import files
from fat2thin.settings.published import origins
from fat2thin.settings.spec import expand_seeds
from fat2thin.training import make_spec

REWARDS = ("quadratic", "cubic")  # the authors' code uses the first, the paper prints the second
SOURCES = {
    "regenerated": "regenerated/{robot}-{level}",
    "d4rl": "d4rl/{robot}-{level}-v2",
    "minari": "minari/mujoco/{robot}/{level}-v0",
}
"""Sources of the robot data: names of data sets."""
MINARI_LEVELS = {"medium-expert": "expert", "medium-replay": "simple", "medium": "medium"}
"""Minari has neither medium-expert nor medium-replay: these sets take their places."""
EXAMPLE = "halfcheetah-medium-expert"  # data set of the paper's Figure 1 and its evolutions
ASKED = "reproduction.json"  # file with the options of a reproduction
_MIDDLE = {
    "treatment": {"learning_rate": 3e-4, "temperature": 0.1},
    "robots": {"learning_rate": 1e-3, "temperature": 0.5},
}


class CurveSizes(NamedTuple):
    """Sizes of the runs of learning curves."""

    steps: int
    """Updates per seed."""
    seeds: int
    """Number of seeds."""
    evaluations: int
    """Evaluations, not counting the one before the first update."""
    episodes: int
    """Episodes per evaluation, seed and policy."""


class ReproductionScale(NamedTuple):
    """Sizes of the runs of a preset."""

    treatment: CurveSizes
    """Learning curves on the treatment task."""
    robots: CurveSizes
    """Learning curves on robot data."""
    selection_seeds: int
    """Seeds that select settings in a sweep."""
    hidden: tuple[int, ...] | None
    """Hidden layers of all networks; None uses the published ones."""
    clipped_steps: int
    """Updates of the clipped policies in Figure 7."""
    robot_evolution: int
    """Updates between the panels of Figures 5 and 9."""
    timed_updates: int
    """Updates per round of the time measurement."""
    regenerated_rows: int | None = None
    """Rows of regenerated data sets; None uses 200,000, and 400,000 for medium-expert."""


SCALES = {
    "smoke": ReproductionScale(
        treatment=CurveSizes(steps=200, seeds=2, evaluations=2, episodes=10),
        robots=CurveSizes(steps=100, seeds=2, evaluations=2, episodes=1),
        selection_seeds=2, hidden=(16, 16), clipped_steps=100, robot_evolution=25, timed_updates=20,
        regenerated_rows=2_000,
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
"""smoke takes minutes on two cores, small an evening; paper has ten seeds and all updates, with the
paper's 5 episodes per evaluation. Smaller scales have more on the treatment task, where they are
cheap."""


def scale_of(name: str) -> ReproductionScale:
    """Return the scale with this name."""
    if name not in SCALES:
        raise ValueError(f"no scale is called {name!r}; there are {', '.join(SCALES)}")
    return SCALES[name]


class Method(NamedTuple):
    """An algorithm with its settings: one line of a figure."""

    folder: str
    """Name of its folder below a data set's folder, and its name in figures and tables."""
    algorithm: str
    """Name of the algorithm."""
    settings: Mapping[str, Any] = MappingProxyType({})
    """Settings that differ from the defaults."""


def method(algorithm: str, *, published: bool = False) -> Method:
    """Return a method; its published form has the suffix "-published" in its name."""
    form = Method(f"{algorithm}-published", algorithm, {"published": True})
    return form if published else Method(algorithm, algorithm)


def methods(*names: str, published: bool = False) -> tuple[Method, ...]:
    """Return several methods."""
    return tuple(method(name, published=published) for name in names)


FTTPO, FTTPO_PUBLISHED = method("fttpo"), method("fttpo", published=True)
TREATMENT = (
    *methods("fttpo", "iql", "xql", "sql", "spot"),
    *methods("fttpo", "xql", "spot", published=True),
)
"""Methods of Figure 2, and the published forms, which show the effect of the authors' code."""
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
"""Methods of Figure 4. XQL's temperature of V is not in the authors' record: it is our default."""
_ABLATED = ("fttpo", "fttpo-spot", "fttpo-sg", "tawac-ht")
VARIANTS = (*methods(*_ABLATED), *methods(*_ABLATED, published=True))
_SPARSE = ("fttpo", "rar", "sparse_reverse_kl")
SPARSE = (*methods(*_SPARSE), *methods(*_SPARSE, published=True))
CLIPPED = (FTTPO, Method("iql-clipped-Gaussian", "iql", {"policy": "clipped_gaussian"}))
EVOLUTION_STEPS = (0, 100, 200, 300, 400)
_EVOLUTION = {"fttpo": {"temperature": 0.1}, "iql": {"learning_rate": 3e-5, "temperature": 1 / 3}}
"""Settings in which the paper's evolution runs differ from its curves."""


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """Options of a reproduction: the scale and the source of the robot data."""

    scale: ReproductionScale
    """Sizes of the runs."""
    source: str = "regenerated"
    """Source of the robot data, a key of `SOURCES`."""
    seeds: int | None = None
    """Number of seeds; None uses the scale's."""
    steps: int | None = None
    """Updates of learning curves; None uses the scale's."""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"data must be one of {', '.join(SOURCES)}, got {self.source!r}")
        for name in ("seeds", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @property
    def options(self) -> dict[str, Any]:
        """The options as on the command line."""
        scale = next((name for name, one in SCALES.items() if one == self.scale), "small")
        given = {"scale": scale, "data": self.source, "seeds": self.seeds, "steps": self.steps}
        return {name: value for name, value in given.items() if value is not None}

    def write(self, root: Path) -> None:
        """Write the options to a folder; claims read them to name the command."""
        root.mkdir(parents=True, exist_ok=True)
        write(root / ASKED, files.as_json(self.options))

    def robot_set(self, name: str) -> str:
        """Return what takes the place of a set of the paper: itself, or one of Minari's."""
        robot, _, level = name.partition("-")
        return f"{robot}-{MINARI_LEVELS[level]}" if self.source == "minari" else name

    def robot_data(self, name: str) -> str:
        """Return the data set for a name such as "hopper-medium"."""
        robot, _, level = self.robot_set(name).partition("-")
        dataset = SOURCES[self.source].format(robot=robot, level=level)
        rows = self.scale.regenerated_rows if self.source == "regenerated" else None
        return dataset if rows is None else f"{dataset}@{rows}"

    def treatment(self, reward: str, which: Method) -> PlannedRun:
        """Return the run of a learning curve on the treatment task."""
        return self._curve(
            f"treatment/{reward}", f"treatment-{reward}", which, self.scale.treatment
        )

    def robot(self, name: str, which: Method) -> PlannedRun:
        """Return the run of a learning curve on robot data."""
        folder = self.robot_set(name)
        return self._curve(self.robot_data(name), folder, which, self.scale.robots)

    def evolution(
        self, dataset: str, folder: str, which: Method, steps: Sequence[int], **settings: Any
    ) -> PlannedRun:
        """Return a short run of one seed that saves policies at `steps` and is not evaluated."""
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
        # The density model gets as many updates as the policy, at most the published number.
        sizes: dict[str, Any] = {"vae_steps": min(100_000, options["steps"])}
        if self.scale.hidden is not None:
            sizes |= dict.fromkeys(("hidden", "vae_hidden"), self.scale.hidden)
        sizes = {name: sizes[name] for name in sizes if name in _settings(which.algorithm)}
        spec = make_spec(
            which.algorithm, dataset, settings={**values, **settings, **sizes},
            settings_from=origin, data_needed=False, **options,
        )  # fmt: skip
        return PlannedRun(f"{folder}/{which.folder}", spec)


def options_of(root: Path) -> str:
    """Return the options of the reproduction in a folder, as on the command line."""
    place = root / ASKED
    options = files.read_json(place) if place.exists() else {"scale": "small"}
    return " ".join(f"--{name} {value}" for name, value in options.items())


def _settings(algorithm: str) -> set[str]:
    return {field.name for field in dataclasses.fields(algorithms.get(algorithm).config)}


def settings_of(which: Method, dataset: str) -> tuple[str, dict[str, Any]]:
    """Return the origin of a method's settings on a data set, and further settings."""
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
    """Return the runs of Figure 3: 400 updates, on the reward of the authors' code."""
    return [
        asked.evolution(
            "treatment/quadratic", "treatment-quadratic", one, EVOLUTION_STEPS,
            **_EVOLUTION.get(one.algorithm, {}),
        )
        for one in methods("fttpo", "iql", "xql", "sql", "spot")
    ]  # fmt: skip


def robot_evolution(asked: Reproduction) -> list[PlannedRun]:
    """Return the runs of Figures 5 and 9."""
    steps = [asked.scale.robot_evolution * number for number in range(5)]
    folder = asked.robot_set(EXAMPLE)
    return [asked.evolution(asked.robot_data(EXAMPLE), folder, FTTPO, steps)]


def _seventh(asked: Reproduction) -> list[PlannedRun]:
    """Return the runs of Figure 7: clipped policies, and returns of first doses."""
    steps = [asked.scale.clipped_steps * number // 4 for number in range(5)]
    clipped = [
        asked.evolution(
            asked.robot_data(EXAMPLE), f"{asked.robot_set(EXAMPLE)}-clipped", one, steps
        )
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
"""Functions that plan the runs of each preset; `treatment` is the table of all methods on that
task, `ablation` is Figures 6 and 8."""


# The paper's sweeps. Source of the grids: the FtTPO authors' code, commit 811d59d. XQL's inverse
# temperatures are converted to temperatures.
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
"""Grids of the methods that are tuned on two data sets of one robot only."""
EXAMPLES = ("halfcheetah-medium-expert", "halfcheetah-medium")


def sweeps(asked: Reproduction, robots: bool = True) -> dict[str, Sweep]:
    """Return the paper's sweeps, or only those on the treatment task, by folder."""
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
