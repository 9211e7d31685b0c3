import dataclasses

import jax
import jax.numpy as jnp
import matplotlib.style
import numpy as np
import pytest

from fat2thin import data
from fat2thin.columns import Column
from fat2thin.data import Dataset
from fat2thin.report import log_figures, style
from fat2thin.report.log_figures import central_range
from report.page_runs import hospital, hospital_run
from untrained import untrained_run

SIZE, LENGTHS = 3, (12, 20, 8, 16)
STARTS = np.cumsum([0, *LENGTHS])[:-1]
RETURNS = (3.0, -5.0, 9.0, 1.0)
MEDIAN, LEAST = 0, 1
"""Of the returns -5, 1, 3 and 9, the third counts as the median."""
LOW, HIGH = np.arange(SIZE) - 1.0, np.arange(SIZE) + 1.0


def make_log():
    rng = np.random.default_rng(0)
    rows = sum(LENGTHS)
    place = rng.uniform(0.1, 0.9, size=(rows, SIZE))
    place[:, 0] = 10.0 ** rng.uniform(-5.0, -2.0, rows)
    place[:, 1] = 1.0 - 10.0 ** rng.uniform(-3.0, -2.0, rows)
    reward = np.zeros(rows, np.float32)
    reward[STARTS] = RETURNS
    return Dataset(
        name="hospital.npz",
        observation=rng.normal(size=(rows, 3)).astype(np.float32),
        action=(LOW + (HIGH - LOW) * place).astype(np.float32),
        reward=reward,
        next_observation=rng.normal(size=(rows, 3)).astype(np.float32),
        continuation=np.ones(rows, np.float32),
        episode_start=STARTS,
        action_low=tuple(LOW),
        action_high=tuple(HIGH),
        discount=0.9,
    )


LOG = make_log()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("logs") / "hospital.npz"
    data.save_npz(LOG, path)
    return path


@pytest.fixture(scope="module")
def run(path):
    settings = {"hidden": (4,), "half_width_high": 0.5}
    return untrained_run("fttpo-sg", path, seeds=[3, 5], settings=settings)


@pytest.fixture(scope="module")
def possible(run):
    """Return where the density is not zero, shape (rows, action)."""
    return np.isfinite(run.policy(5)(jnp.asarray(LOG.observation)).base_dist.log_prob(LOG.action))


@pytest.fixture(scope="module")
def band(run):
    with matplotlib.style.context(style.STYLE):
        return log_figures.action_band(run, LOG, seed=5)


def placed(action, coordinate):
    """Return distances from the end where most actions lie, at least 1e-4 of the box."""
    if coordinate == 0:
        return np.maximum(action - LOW[0], 2e-4)
    return np.maximum(HIGH[1] - action, 2e-4) if coordinate == 1 else action


def points(axes, beginning):
    (line,) = [line for line in axes.lines if line.get_label().startswith(beginning)]
    return np.asarray(line.get_data())


@pytest.mark.parametrize("column, episode", [(0, MEDIAN), (1, LEAST)])
@pytest.mark.parametrize("coordinate", [0, 1, 2])
def test_logged_actions_are_marked_as_inside_or_outside_by_the_density(
    band, possible, column, episode, coordinate
):
    axes = band.axes[2 * coordinate + column]
    rows = STARTS[episode] + np.arange(LENGTHS[episode])
    inside = possible[rows, coordinate]
    for beginning, mask in (("logged, inside", inside), ("logged, outside", ~inside)):
        time, action = points(axes, beginning)
        np.testing.assert_array_equal(time, np.flatnonzero(mask))
        expected = placed(LOG.action[rows[mask], coordinate], coordinate)
        np.testing.assert_allclose(action, expected, rtol=1e-4, atol=1e-6)


def test_the_band_reaches_where_the_density_ends(run, band):
    coordinate, axes = 2, band.axes[4]
    law = run.policy(5)(jnp.asarray(LOG.observation[: LENGTHS[0]])).base_dist
    (area,) = [area for area in axes.collections if area.get_label().startswith("band")]
    (outline,) = area.get_paths()
    time = np.arange(LENGTHS[0])
    # Quantiles are computed independently of the ends of the support.
    for share, within in ((1e-4, True), (1.0 - 1e-4, True)):
        action = np.asarray(law.icdf(share))[:, coordinate]
        assert outline.contains_points(np.stack([time, action], axis=1)).all() == within
    reach = np.asarray(law.icdf(1.0 - 1e-7) - law.icdf(1e-7))[:, coordinate]
    for side in (-1, 1):
        action = np.asarray(law.icdf(0.5))[:, coordinate] + side * 0.52 * reach
        assert not outline.contains_points(np.stack([time, action], axis=1)).any()


def test_the_central_range_of_the_proposal_agrees_with_samples(run, band):
    coordinate, axes = 2, band.axes[4]
    observation = jnp.asarray(LOG.observation[: LENGTHS[0]])
    samples = run.proposal(5)(observation).sample(jax.random.key(1), (20_000,))[..., coordinate]
    (area,) = [area for area in axes.collections if area.get_label().startswith("proposal")]
    (outline,) = area.get_paths()
    for step, of_step in enumerate(np.asarray(samples).T):
        inside = outline.contains_points(np.stack([np.full(20_000, step), of_step], axis=1))
        # Five standard deviations of a share of 20,000.
        assert inside.mean() == pytest.approx(0.8, abs=5 * np.sqrt(0.8 * 0.2 / 20_000))


def test_axes_are_logarithmic_if_most_actions_lie_at_one_end(band):
    left = band.axes[::2]
    assert [axes.get_yscale() for axes in left] == ["log", "log", "linear"]
    labels = [" ".join(axes.get_ylabel().split()) for axes in left]
    assert "lowest value −1" in labels[0] and "highest value 2" in labels[1]


def test_titles_name_the_episodes(band):
    assert band.get_suptitle() == "fttpo-sg, seed 5, on hospital.npz"
    assert "episode 0, return 3:" in band.axes[0].get_title()
    assert "episode 1, return −5:" in band.axes[1].get_title()


def test_the_title_states_how_many_coordinates_are_left_out(run, monkeypatch):
    monkeypatch.setattr(log_figures, "MOST_COORDINATES", 1)
    figure = log_figures.action_band(run, LOG, seed=5, episodes=[2])
    assert len(figure.axes) == 1
    assert figure.get_suptitle().endswith("; 2 more actions not shown")


def test_axes_have_the_names_and_units_of_the_actions(run):
    columns = [{**Column(name, "mg").to_json(), "low": 0, "high": 1} for name in ("a", "b", "c")]
    about = {**run.about, "columns": {"action": columns}, "selected": {"3": 1, "5": 0}}
    named = dataclasses.replace(run, about=about)
    figure = log_figures.action_band(named, LOG, seed=5, episodes=[2])
    assert figure.axes[2].get_ylabel() == "c (mg)"
    assert " ".join(figure.axes[0].get_ylabel().split()).startswith("a (mg) above its lowest value")
    assert "seed 5, policy selected after step 0 of 1, on" in figure.get_suptitle()


def test_only_the_first_steps_of_a_long_episode_are_drawn(run, possible, monkeypatch):
    monkeypatch.setattr(log_figures, "MOST_STEPS", 5)
    (axes, *_) = log_figures.action_band(run, LOG, seed=5, episodes=[1]).axes
    assert axes.get_xlim() == (-1, 5)
    # The share is still that of the whole episode.
    rows = STARTS[1] + np.arange(LENGTHS[1])
    share = possible[rows].all(axis=1).mean()
    assert f"{share:.0%} of 20 steps inside\nthe first 5 are shown" in axes.get_title()


def test_the_central_range_of_a_transformed_action_is_in_raw_units():
    run, seen = hospital_run(), jnp.asarray(hospital().observation[:3])
    low, high = central_range(run.policy(run.spec.seeds[0]), seen, 0.8)
    drawn = np.asarray(run.policy(run.spec.seeds[0])(seen).sample(jax.random.key(0), (20_000,)))
    inside = ((np.asarray(low) <= drawn) & (drawn <= np.asarray(high))).mean(axis=0)
    # Five standard deviations of a share of 20,000.
    np.testing.assert_allclose(inside, 0.8, atol=5 * np.sqrt(0.8 * 0.2 / 20_000))


def test_histogram_counts_logged_actions(run, possible):
    with matplotlib.style.context(style.STYLE):
        figure = log_figures.action_histogram(run, LOG, seed=5)
    for coordinate, axes in enumerate(figure.axes):
        shares = {patch.get_label(): patch.get_data().values.sum() for patch in axes.patches}
        assert shares.pop("logged, inside the band") == pytest.approx(
            possible[:, coordinate].mean()
        )
        assert list(shares.values()) == pytest.approx([1.0, 1.0])


def test_a_missing_episode_is_an_error(run):
    with pytest.raises(ValueError, match="has episodes 0 to 3, not 4"):
        log_figures.action_band(run, LOG, seed=5, episodes=[4])
