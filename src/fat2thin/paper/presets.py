"""Every figure of the paper as the runs it is made of; runs that figures share are made once.

Settings are those that the FtTPO authors' runs had (`published.toml`), where they are known; those
of the method's own paper where they are not; and else a learning rate and a temperature in the
middle of the paper's grids. "published" methods are what the authors' code computes.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from fat2thin import algorithms
from fat2thin.experiments.plan import Planned
from fat2thin.paper.scales import SCALES, Scale
from fat2thin.settings.published import origins
from fat2thin.training import make_spec

REWARDS = ("quadratic", "cubic")
"""The authors' code has the first; the paper prints the second."""
ROBOTS = ("halfcheetah", "hopper", "walker2d")
SETS = ("medium-expert", "medium-replay", "medium")
SOURCES = {"regenerated": "regenerated/{}", "d4rl": "d4rl/{}-v2"}
"""Where the robots' data come from: the name of a data set."""
EXAMPLE = "halfcheetah-medium-expert"
"""The set that the paper shows its evolutions and its first figure on."""
PUBLISHED = {"published": True}
_MIDDLE = {
    "treatment/": {"learning_rate": 3e-4, "temperature": 0.1},
    "": {"learning_rate": 1e-3, "temperature": 0.5},
}
_OWN_SCALE = ("td3_bc", "spot")
"""Methods whose authors standardise observations."""


class Method(NamedTuple):
    """An algorithm as one line of a figure."""

    label: str
    algorithm: str
    settings: Mapping[str, Any] = MappingProxyType({})

    @property
    def folder(self) -> str:
        """Its label as a folder is called."""
        return self.label.replace(", ", "-").replace(" ", "-")


def method(algorithm: str, *, published: bool = False, **settings: Any) -> Method:
    """A method under its own name, or under its name and "published"."""
    if not published:
        return Method(algorithm, algorithm, settings)
    return Method(f"{algorithm}, published", algorithm, {**PUBLISHED, **settings})


FTTPO = method("fttpo")
FTTPO_PUBLISHED = method("fttpo", published=True)
TREATMENT = (
    FTTPO, method("iql"), method("xql"), method("sql"), method("spot"),
    FTTPO_PUBLISHED, method("xql", published=True), method("spot", published=True),
)  # fmt: skip
"""Figure 2, and what is needed to tell what is due to the authors' code."""
TREATMENT_ALL = (
    *TREATMENT, method("inac"), method("tawac"), method("awac"), method("td3_bc"), method("bc"),
    method("fttpo-spot"), method("fttpo-sg"), method("fttpo-greedy"), method("tawac-ht"),
    method("rar"), method("sparse_reverse_kl"), method("tawac-ht", published=True),
    method("rar", published=True), method("sparse_reverse_kl", published=True),
)  # fmt: skip
ROBOT_METHODS = (
    FTTPO, method("iql"), method("inac"), method("tawac"), method("awac"), method("xql"),
    method("sql"), FTTPO_PUBLISHED, method("xql", published=True),
)  # fmt: skip
"""Figure 4. XQL's own temperature of V is not in the authors' record, and is our default."""
VARIANTS = (FTTPO, method("fttpo-spot"), method("fttpo-sg"), method("tawac-ht"))
VARIANTS_PUBLISHED = (
    FTTPO_PUBLISHED, method("fttpo-spot", published=True), method("fttpo-sg", published=True),
    method("tawac-ht", published=True),
)  # fmt: skip
SPARSE = (FTTPO, method("rar"), method("sparse_reverse_kl"))
SPARSE_PUBLISHED = (
    FTTPO_PUBLISHED, method("rar", published=True), method("sparse_reverse_kl", published=True),
)  # fmt: skip
CLIPPED = (
    FTTPO,
    Method("iql, clipped Gaussian", "iql", {"policy": "clipped_gaussian"}),
)
EVOLUTION_STEPS = (0, 100, 200, 300, 400)
_EVOLUTION = {"fttpo": {"temperature": 0.1}, "iql": {"learning_rate": 3e-5, "temperature": 1 / 3}}
"""Where the paper's runs of the evolution have other settings than its curves."""


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """What is asked for: how large, and where the robots' data come from."""

    scale: Scale
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
        """What was asked for, as a command line says it."""
        scale = next((name for name, one in SCALES.items() if one == self.scale), "small")
        also = {"seeds": self.seeds, "steps": self.steps}
        return {
            "scale": scale,
            "data": self.source,
            **{name: value for name, value in also.items() if value is not None},
        }

    def robot_data(self, name: str) -> str:
        """The data set of a robot and a set, for example "hopper-medium"."""
        return SOURCES[self.source].format(name)

    def treatment(self, reward: str, which: Method) -> Planned:
        """A learning curve on the treatment task."""
        steps = self.steps or self.scale.treatment_steps
        return self._curve(
            f"treatment/{reward}", f"treatment-{reward}", which, steps,
            self.scale.treatment_seeds, self.scale.treatment_evaluations,
            self.scale.treatment_episodes,
        )  # fmt: skip

    def robot(self, name: str, which: Method) -> Planned:
        """A learning curve on a robot's data."""
        steps = self.steps or self.scale.robot_steps
        return self._curve(
            self.robot_data(name), name, which, steps, self.scale.robot_seeds,
            self.scale.robot_evaluations, self.scale.robot_episodes,
        )  # fmt: skip

    def evolution(
        self, dataset: str, folder: str, which: Method, steps: Sequence[int], **settings: Any
    ) -> Planned:
        """A short run of one seed whose policies are kept on the way; it is not judged."""
        return self._planned(
            f"evolution/{folder}", dataset, which, settings, steps=steps[-1], seeds=1,
            snapshots=tuple(steps), evaluate_every=steps[-1], episodes=1,
            log_every=max(1, steps[-1] // 10), task="none",
        )  # fmt: skip

    def _curve(
        self, dataset: str, folder: str, which: Method, steps: int, seeds: int, evaluations: int,
        episodes: int,
    ) -> Planned:  # fmt: skip
        every = max(1, steps // evaluations)
        return self._planned(
            f"curves/{folder}", dataset, which, {}, steps=steps, seeds=self.seeds or seeds,
            evaluate_every=every, episodes=episodes, log_every=max(1, min(2_500, every)),
        )  # fmt: skip

    def _planned(
        self, folder: str, dataset: str, which: Method, settings: Mapping[str, Any], **options: Any
    ) -> Planned:
        origin, values = settings_of(which, dataset)
        given = {**values, **settings, **self._sizes(which, options)}
        spec = make_spec(
            which.algorithm, dataset, settings=given, settings_from=origin, data_needed=False,
            standardise=origin == "own" and which.algorithm in _OWN_SCALE, **options,
        )  # fmt: skip
        return Planned(f"{folder}/{which.folder}", spec)

    def _sizes(self, which: Method, options: Mapping[str, Any]) -> dict[str, Any]:
        config = algorithms.get(which.algorithm).config
        names = {field.name for field in dataclasses.fields(config)}
        sizes: dict[str, Any] = {}
        if self.scale.hidden is not None:
            sizes["hidden"] = self.scale.hidden
        if "vae_steps" in names:
            # The density model gets as many updates as the policy, and no more than published.
            sizes["vae_steps"] = min(100_000, options["steps"])
            if self.scale.hidden is not None:
                sizes["vae_hidden"] = self.scale.hidden
        return sizes


def settings_of(which: Method, dataset: str) -> tuple[str, dict[str, Any]]:
    """Where a method's settings on a data set come from, and what is set besides."""
    known = origins(which.algorithm, dataset)
    if known:
        origin = "fttpo" if "fttpo" in known else known[0]
        return origin, dict(which.settings)
    names = {field.name for field in dataclasses.fields(algorithms.get(which.algorithm).config)}
    prefix = next(prefix for prefix in _MIDDLE if dataset.startswith(prefix))
    middle = {name: value for name, value in _MIDDLE[prefix].items() if name in names}
    return "default", {**middle, **which.settings}


Preset = Callable[[Reproduction], list[Planned]]


def _on_treatment(methods: Sequence[Method]) -> Preset:
    return lambda asked: [asked.treatment(reward, one) for reward in REWARDS for one in methods]


def _on_robots(methods: Sequence[Method]) -> Preset:
    return lambda asked: [
        asked.robot(f"{robot}-{level}", one)
        for one in methods
        for robot in ROBOTS
        for level in SETS
    ]


def _sparse(asked: Reproduction) -> list[Planned]:
    return [asked.robot(EXAMPLE, one) for one in (*SPARSE, *SPARSE_PUBLISHED)]


def treatment_evolution(asked: Reproduction) -> list[Planned]:
    """Figure 3: the first 400 updates, on the reward of the authors' code."""
    return [
        asked.evolution(
            "treatment/quadratic", "treatment-quadratic", one, EVOLUTION_STEPS,
            **_EVOLUTION.get(one.algorithm, {}),
        )
        for one in (FTTPO, method("iql"), method("xql"), method("sql"), method("spot"))
    ]  # fmt: skip


def robot_evolution(asked: Reproduction) -> list[Planned]:
    """Figures 5 and 9."""
    steps = [asked.scale.robot_evolution * number for number in range(5)]
    return [asked.evolution(asked.robot_data(EXAMPLE), EXAMPLE, FTTPO, steps)]


def clipped_evolution(asked: Reproduction) -> list[Planned]:
    """The left half of Figure 7."""
    steps = [asked.scale.clipped_steps * number // 4 for number in range(5)]
    return [
        asked.evolution(asked.robot_data(EXAMPLE), f"{EXAMPLE}-clipped", one, steps)
        for one in CLIPPED
    ]


def _seventh(asked: Reproduction) -> list[Planned]:
    methods = (FTTPO, FTTPO_PUBLISHED)
    curves = [asked.treatment(reward, one) for one in methods for reward in REWARDS]
    return [*clipped_evolution(asked), *curves]


_ablation = _on_robots((*VARIANTS, *VARIANTS_PUBLISHED))
PRESETS: dict[str, Preset] = {
    "fig1": _sparse,
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
