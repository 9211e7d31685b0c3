"""The figure of regret, drawn from made-up scores."""

import matplotlib.style
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer

from fat2thin.paper.score_figures import draw_regret
from fat2thin.paper.studies import CHOSEN_AMONG, LAST, RANDOM, SIGNS, Quality
from fat2thin.report.style import STYLE

SIZES = (25, 50, 200, 1000)
TREATMENT = [f"treatment-{reward}-{size}" for reward in ("quadratic", "cubic") for size in SIZES]
ROBOTS = ["halfcheetah-medium-expert", "hopper-medium-replay"]
LABELS = [name.removeprefix("held_out_").replace("_", " ").replace("td", "TD") for name in SIGNS]
RANDOM_LABEL, LAST_LABEL = "random choice", "last checkpoint"


def made_up(datasets, seeds=3, spread=0.1):
    """Return regrets that increase from signal to signal and decrease over data sets."""
    rng = np.random.default_rng(0)
    scored = {}
    for way in CHOSEN_AMONG:
        names = [*SIGNS, LAST, RANDOM] if way == "checkpoints" else [*SIGNS, RANDOM]
        for place, dataset in enumerate(datasets):
            scored.setdefault(way, {})[dataset] = {
                name: [
                    Quality(0.5, (1.0 + number) / (1.0 + place) + spread * rng.uniform())
                    for _ in range(seeds)
                ]
                for number, name in enumerate(names)
            }
    return scored


def drawn(scored):
    """Return the figure after layout; warnings are errors."""
    with matplotlib.style.context(STYLE):
        figure = draw_regret(scored)
        FigureCanvasAgg(figure).draw()
    return figure


def panels(figure):
    return {axes.get_title(): axes for axes in figure.axes}


@pytest.fixture(scope="module")
def everything():
    scored = made_up([*TREATMENT, *ROBOTS])
    return scored, drawn(scored)


def test_there_is_a_row_per_kind_of_selection_and_a_panel_per_reward_and_for_robots(everything):
    _, figure = everything
    assert [*panels(figure)] == [
        f"{what}, selection among {way}"
        for way in ("checkpoints", "settings")
        for what in ("quadratic", "cubic", "robots")
    ]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [RANDOM_LABEL, LAST_LABEL, *LABELS]


def test_lines_are_the_mean_regret_by_size_of_the_log(everything):
    scored, figure = everything
    axes = panels(figure)["cubic, selection among checkpoints"]
    lines = {container.get_label(): container.lines[0] for container in axes.containers}
    assert [*lines] == LABELS
    for name, label in zip(SIGNS, LABELS, strict=True):
        of = [scored["checkpoints"][dataset][name] for dataset in TREATMENT[4:]]
        expected = [np.mean([one.regret for one in seeds]) for seeds in of]
        places, regrets = np.asarray(lines[label].get_data(), float)
        np.testing.assert_allclose(regrets, expected)
        np.testing.assert_allclose(places, SIZES, rtol=0.2)
    plain = {line.get_label(): line for line in axes.lines}
    assert LAST_LABEL in plain and RANDOM_LABEL in plain
    of = [scored["checkpoints"][dataset][LAST] for dataset in TREATMENT[4:]]
    np.testing.assert_allclose(
        plain[LAST_LABEL].get_ydata(), [np.mean([one.regret for one in seeds]) for seeds in of]
    )
    assert [label.get_text() for label in axes.get_xticklabels()] == ["25", "50", "200", "1,000"]
    assert axes.get_ylim()[0] == 0.0


def test_signals_have_different_looks(everything):
    _, figure = everything
    axes = panels(figure)["quadratic, selection among settings"]
    marked = [container.lines[0] for container in axes.containers]
    assert len({line.get_color() for line in marked}) == len(SIGNS)
    assert len({line.get_marker() for line in marked}) == len(SIGNS)


def test_bars_are_the_mean_regret_over_the_robots(everything):
    scored, figure = everything
    axes = panels(figure)["robots, selection among settings"]
    (bars,) = [one for one in axes.containers if isinstance(one, BarContainer)]
    names = [*SIGNS, RANDOM]
    of = [[q.regret for robot in ROBOTS for q in scored["settings"][robot][n]] for n in names]
    np.testing.assert_allclose([bar.get_width() for bar in bars], np.mean(of, axis=1))
    assert [label.get_text() for label in axes.get_yticklabels()] == [*LABELS, RANDOM_LABEL]
    assert axes.get_xlabel() == "regret, in points of normalised score"


def test_a_figure_of_robots_only():
    figure = drawn(made_up(ROBOTS))
    assert [*panels(figure)] == [
        "robots, selection among checkpoints", "robots, selection among settings",
    ]  # fmt: skip
    # Bars are labelled on the axis.
    assert not figure.legends


def test_a_figure_of_the_treatment_task_only():
    figure = drawn(made_up(TREATMENT[:4]))
    assert [*panels(figure)] == [
        "quadratic, selection among checkpoints", "quadratic, selection among settings",
    ]  # fmt: skip


@pytest.mark.parametrize("datasets", [TREATMENT[:2], ROBOTS])
def test_one_seed_has_no_interval_and_is_drawn(datasets):
    assert len(drawn(made_up(datasets, seeds=1)).axes) == 2


@pytest.mark.parametrize("datasets", [TREATMENT[:4], ROBOTS])
def test_equal_seeds_are_drawn(datasets):
    """The mean of equal numbers is rounded, which must not make an error bar negative."""
    scored = made_up(datasets, spread=0.0)
    for of_sets in scored.values():
        for of_signals in of_sets.values():
            for name in of_signals:
                of_signals[name] = [Quality(0.1, 0.1)] * 3
    assert len(drawn(scored).axes) == 2


def test_a_signal_without_values_is_left_out():
    scored = made_up([*TREATMENT[:2], *ROBOTS])
    for of_sets in scored.values():
        for of_signals in of_sets.values():
            of_signals["held_out_spread"] = [Quality(np.nan, np.nan)] * 3
    assert len(drawn(scored).axes) == 4
