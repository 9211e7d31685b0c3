import dataclasses

import numpy as np
import pytest

from fat2thin import data
from fat2thin.columns import Column
from fat2thin.data import Dataset
from fat2thin.data.summary import histogram_text, summarise


def by_hand() -> Dataset:
    """Three episodes with returns 3, 5 and 1; only the second has a true end."""
    observation = np.array([[0, 4], [1, 4], [2, 4], [3, 4], [4, 4]], np.float32)
    return Dataset(
        name="hand",
        observation=observation,
        action=np.array([[-1.0], [-0.9995], [0.0], [0.25], [1.0]], np.float32),
        reward=np.array([1.0, 2.0, 5.0, 2.0, -1.0], np.float32),
        next_observation=observation + 1,
        continuation=np.array([1.0, 1.0, 0.0, 1.0, 1.0], np.float32),
        episode_start=np.array([0, 2, 3]),
        action_low=(-1.0,),
        action_high=(1.0,),
        discount=0.5,
    )


def test_a_summary_by_hand():
    found = summarise(by_hand())
    assert (found.name, found.rows, found.episodes) == ("hand", 5, 3)
    assert found.lengths == (1, 2.0, 2)
    assert found.return_mean == 3
    assert found.return_quartiles == (1, 2, 3, 4, 5)
    assert found.discounted_return_mean == pytest.approx((2 + 5 + 1.5) / 3)
    assert found.true_ends == pytest.approx(1 / 3)
    assert found.constant_observations == (1,)
    assert dataclasses.astuple(found.observations[0]) == pytest.approx((0, 0.2, 2, 3.8, 4))
    assert found.sha256 == by_hand().sha256
    (action,) = found.actions
    assert (action.low, action.median, action.high) == (-1, 0, 1)
    assert (action.share_at_low_edge, action.share_at_high_edge) == (0.4, 0.2)
    assert action.histogram == (2, *[0] * 7, 1, 0, 1, *[0] * 4, 1)


def test_quantiles_and_histograms_agree_with_numpy():
    dataset = data.load("treatment/cubic", 3)
    found = summarise(dataset)
    for number, column in enumerate(found.observations):
        values = np.sort(dataset.observation[:, number].astype(np.float64))
        expected = np.interp(np.array([0, 0.05, 0.5, 0.95, 1]) * (len(values) - 1),
                             np.arange(len(values)), values)  # fmt: skip
        np.testing.assert_allclose(dataclasses.astuple(column), expected, rtol=1e-12)
    assert sum(found.actions[0].histogram) == dataset.rows


@pytest.mark.parametrize(
    ("episodes", "sizes"),
    [("00", "2 rows in 1 episode of 2 rows"), ("01", "2 rows in 2 episodes of 1 row"),
     ("0", "1 row in 1 episode of 1 row")],
)  # fmt: skip
def test_sizes_are_in_the_singular_or_plural(episodes, sizes):
    rows = np.arange(len(episodes), dtype=np.float32)
    ends = [now != below for now, below in zip(episodes, f"{episodes[1:]}x", strict=True)]
    log = Dataset.from_arrays(
        rows, rows, rows, episode=[*episodes], terminal=ends, action_low=0, action_high=1
    )
    assert str(summarise(log)).splitlines()[1] == sizes


def test_the_text_of_a_summary():
    lines = str(summarise(by_hand())).splitlines()
    assert lines[:5] == [
        "hand",
        "5 rows in 3 episodes of 1 to 2 rows, median 2",
        "33.3 % of the episodes truly end, the others are cut",
        "return      mean 3, best 5, worst 1, quartiles 2 / 3 / 4",
        "discounted  mean 2.833, factor 0.5",
    ]
    text = "\n".join(lines)
    assert by_hand().sha256 in text
    assert "40 %" in text and "-1 to 1" in text
    assert "|█       ▄ ▄    ▄|" in text
    assert "observations: 2 columns, 1 of them constant" in text
    constant = next(line for line in lines if line.startswith("observation_1"))
    assert constant.split() == ["observation_1", "4", "4", "4", "4", "4", "yes"]
    assert text.count("The log has no names for its observation and action columns.") == 1


def test_columns_are_shown_by_name_and_unit():
    columns = (Column("glucose", "mg/dL"), Column("weight"))
    named = dataclasses.replace(by_hand(), observation_columns=columns)
    text = str(summarise(named))
    assert "\nglucose (mg/dL)  0 " in text and "\nweight " in text
    assert "The log has no names for its action columns." in text
    named = dataclasses.replace(named, action_columns=(Column("dose", "mg"),))
    assert "\ndose (mg)  -1 " in str(summarise(named))
    assert "no names" not in str(summarise(named))


def test_known_propensities_are_shown():
    dataset = dataclasses.replace(by_hand(), propensity=np.array([0.5, 0.25, 1, 0.125, 0.75]))
    assert "propensity  0.125 to 1" in str(summarise(dataset)).splitlines()
    assert "propensity" not in str(summarise(by_hand()))


def test_only_the_first_of_many_columns_are_listed():
    wide = np.arange(5 * 40, dtype=np.float32).reshape(5, 40)
    wide = {"observation": wide, "next_observation": wide, "observation_columns": ()}
    text = str(summarise(dataclasses.replace(by_hand(), **wide)))
    assert "observations: 40 columns, 0 of them constant" in text
    assert text.endswith("and 28 more columns")
    assert "observation_11" in text and "observation_12" not in text


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((0, 0), "  "),
        ((8, 4, 1, 0), "█▄▁ "),
        ((1000, 1, 999), "█▁█"),
        ((1, 1), "██"),
    ],
)
def test_histograms_are_drawn_as_blocks(counts, text):
    assert histogram_text(counts) == text
