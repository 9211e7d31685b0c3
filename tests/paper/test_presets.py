"""Presets: settings, sizes and folders of the paper's runs, checked without data."""

import collections

import pytest

from fat2thin.experiments.plan import programs
from fat2thin.paper.presets import (
    FTTPO,
    PRESETS,
    ROBOT_SETS,
    SCALES,
    Reproduction,
    method,
    scale_of,
    settings_of,
    sweeps,
)

# Table H1 of the specification: learning rate and temperature of FtTPO.
PUBLISHED = {
    "halfcheetah-medium-expert": (1e-3, 1.0),
    "halfcheetah-medium-replay": (1e-3, 0.5),
    "halfcheetah-medium": (1e-3, 0.01),
    "hopper-medium-expert": (1e-3, 1.0),
    "hopper-medium-replay": (1e-3, 1.0),
    "hopper-medium": (1e-3, 0.01),
    "walker2d-medium-expert": (1e-3, 0.5),
    "walker2d-medium-replay": (1e-3, 0.01),
    "walker2d-medium": (1e-3, 1.0),
}


@pytest.fixture(scope="module")
def paper():
    return Reproduction(scale_of("paper"))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("source", ["regenerated", "d4rl", "minari"])
def test_a_folder_is_the_same_run_in_all_presets(scale, source):
    """Figures share runs by folder, so a folder must always hold the same run."""
    asked = Reproduction(scale_of(scale), source)
    specs = {}
    for preset in PRESETS.values():
        for name, spec in preset(asked):
            assert specs.setdefault(name, spec) == spec


def test_the_paper_scale_has_the_sizes_of_the_paper(paper):
    (treatment,) = {one.spec.steps for one in PRESETS["fig2"](paper)}
    robots = [one.spec for one in PRESETS["fig4"](paper)]
    assert treatment == 500_000
    assert {spec.steps for spec in robots} == {1_000_000}
    assert {len(spec.evaluation_steps) for spec in robots} == {101}
    assert {len(one.spec.evaluation_steps) for one in PRESETS["fig2"](paper)} == {51}
    assert {spec.seeds for spec in robots} == {tuple(range(10))}
    assert {spec.config.hidden for spec in robots} == {(256, 256)}
    assert {spec.batch_size for spec in robots} == {256}


@pytest.mark.parametrize(("name", "values"), PUBLISHED.items())
def test_fttpo_has_the_settings_of_the_authors_runs(paper, name, values):
    spec = paper.robot(name, FTTPO).spec
    assert (spec.config.learning_rate, spec.config.temperature) == values
    assert spec.settings_from == "fttpo"


def test_figure_4_is_nine_sets_of_seven_methods_and_two_as_published(paper):
    runs = PRESETS["fig4"](paper)
    count = collections.Counter(one.name.split("/")[1] for one in runs)
    assert set(count) == {*ROBOT_SETS} == {*PUBLISHED}
    assert set(count.values()) == {9}


def test_data_sets_have_the_names_of_their_source(paper):
    smoke = scale_of("smoke")
    names = {
        paper: "regenerated/hopper-medium-replay",
        Reproduction(smoke): "regenerated/hopper-medium-replay@2000",
        Reproduction(smoke, "d4rl"): "d4rl/hopper-medium-replay-v2",
        Reproduction(smoke, "minari"): "minari/mujoco/hopper/simple-v0",
    }
    for asked, name in names.items():
        run = asked.robot("hopper-medium-replay", FTTPO)
        folder = "hopper-simple" if asked.source == "minari" else "hopper-medium-replay"
        assert (run.spec.dataset, run.name) == (name, f"curves/{folder}/fttpo")


def test_small_and_minaris_sets_have_published_settings():
    for source in ("regenerated", "minari"):
        spec = Reproduction(scale_of("smoke"), source).robot("hopper-medium", FTTPO).spec
        assert (spec.settings_from, spec.config.temperature) == ("fttpo", 0.01)


def test_sweeps_on_the_treatment_task_need_no_robot(paper):
    assert {one.base.dataset for one in sweeps(paper, robots=False).values()} == {
        "treatment/quadratic", "treatment/cubic",
    }  # fmt: skip


def test_a_method_without_a_record_has_default_settings():
    assert settings_of(method("rar"), "regenerated/hopper-medium")[0] == "default"
    origin, values = settings_of(method("rar", published=True), "treatment/cubic")
    assert origin == "default"
    assert values == {"learning_rate": 3e-4, "temperature": 0.1, "published": True}


def test_both_rewards_share_a_program():
    packs = programs(PRESETS["fig2"](Reproduction(scale_of("smoke"))))
    assert len(packs) == 8
    assert {len(pack) for pack in packs} == {2}


def test_unknown_scales_and_sources_are_errors():
    with pytest.raises(ValueError, match="smoke, small, paper"):
        scale_of("huge")
    with pytest.raises(ValueError, match="regenerated, d4rl, minari"):
        Reproduction(scale_of("smoke"), "rlds")


def test_sweeps_never_select_and_report_on_the_same_seed():
    for sweep in sweeps(Reproduction(scale_of("paper"))).values():
        assert not {*sweep.base.seeds} & {*sweep.report_seeds}
        assert len(sweep.base.seeds) == 5
        assert len(sweep.report_seeds) == 10
        for setting in sweep.settings:
            assert set(setting) <= set(vars(sweep.base.config))
