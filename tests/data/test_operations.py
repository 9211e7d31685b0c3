import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fat2thin.data import Dataset
from fat2thin.data.operations import (
    best_episodes,
    concatenate,
    episode_lengths,
    episode_returns,
    reachable_returns,
    split,
    subsample,
)
from fat2thin.data.scaling import (
    RewardScaling,
    Scales,
    Standardisation,
    iql_reward_scaling,
    standardisation,
)


def log(*episodes: list[float], name: str = "x", **changes) -> Dataset:
    """A log with these rewards; each observation is the row number."""
    lengths = [len(episode) for episode in episodes]
    rows = sum(lengths)
    number = np.arange(rows, dtype=np.float32)
    values = {
        "name": name,
        "observation": np.stack([number, number**2], axis=1),
        "action": np.linspace(-1, 1, rows, dtype=np.float32)[:, None],
        "reward": np.concatenate(episodes).astype(np.float32),
        "next_observation": np.stack([number + 1, number], axis=1),
        "continuation": np.ones(rows, np.float32),
        "episode_start": np.cumsum([0, *lengths[:-1]]),
        "action_low": (-1.0,),
        "action_high": (1.0,),
        "discount": 0.5,
    }
    return Dataset(**(values | changes))


# Built inside the test, because type checking draws random numbers.
rewards = st.lists(
    st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=6), min_size=2, max_size=8
)
shares = st.floats(0.01, 0.99)
seeds = st.integers(0, 1000)

HAND = log([1, 2, 4], [8], [-1, 1], [3, 4])


def as_episodes(dataset: Dataset) -> list[bytes]:
    """Return each episode as the bytes of its rows, by a loop."""
    ends = [*dataset.episode_start[1:].tolist(), dataset.rows]
    columns = ("observation", "action", "reward", "next_observation", "continuation")
    return [
        b"".join(getattr(dataset, field)[start:end].tobytes() for field in columns)
        for start, end in zip(dataset.episode_start.tolist(), ends, strict=True)
    ]


def test_episode_lengths_and_returns_by_hand():
    assert episode_lengths(HAND).tolist() == [3, 1, 2, 2]
    assert episode_returns(HAND).tolist() == [7, 8, 0, 7]
    assert episode_returns(HAND, discount=0.5).tolist() == [3, 8, -0.5, 5]
    assert episode_returns(HAND, discount=0.0).tolist() == [1, 8, -1, 3]


def test_returns_are_summed_in_float64():
    assert episode_returns(log([float(2**24), 1.0, 1.0, 1.0])).tolist() == [2**24 + 3]


@given(rewards, shares, seeds)
def test_the_parts_of_a_split_make_up_the_whole(episodes, share, seed):
    dataset = log(*episodes)
    parts = split(dataset, share, seed)
    assert all(part.episode_start.size >= 1 for part in parts)
    whole = concatenate(parts)
    assert sorted(as_episodes(whole)) == sorted(as_episodes(dataset))
    assert (whole.rows, whole.episode_start.size) == (dataset.rows, dataset.episode_start.size)


@given(rewards, shares, seeds)
def test_a_split_is_off_by_at_most_half_an_episode_if_it_can_be(episodes, share, seed):
    dataset = log(*episodes)
    part, rest = split(dataset, share, seed)
    missed = abs(part.rows - share * dataset.rows)
    nothing_else = part.episode_start.size == 1 or rest.episode_start.size == 1
    assert missed <= episode_lengths(dataset).max() / 2 or nothing_else


def test_a_split_depends_only_on_the_seed():
    many = log(*[[float(number)] for number in range(40)])
    firsts = [split(many, 0.5, seed)[0] for seed in (0, 0, 1)]
    assert firsts[0].rows == 20
    assert firsts[0].sha256 == firsts[1].sha256 != firsts[2].sha256
    assert (np.diff(firsts[0].reward) > 0).all(), "in the order of the log"
    first, rest = split(many, 0.7, 3)
    assert (first.name, rest.name) == ("x[70 %, seed 3]", "x[the other 30 %, seed 3]")


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_must_be_between_0_and_1(share):
    with pytest.raises(ValueError, match=r"a share must lie in \(0, 1\), got"):
        split(HAND, share, 0)


def test_one_episode_cannot_be_split():
    with pytest.raises(ValueError, match="has one episode"):
        split(log([1, 2, 3]), 0.5, 0)


@given(rewards, seeds, st.data())
def test_the_episodes_of_a_subsample_come_from_the_log(episodes, seed, data):
    dataset = log(*episodes)
    count = data.draw(st.integers(1, dataset.episode_start.size))
    part = subsample(dataset, episodes=count, seed=seed)
    assert part.episode_start.size == count
    left = as_episodes(dataset)
    for episode in as_episodes(part):
        left = left[left.index(episode) + 1 :]


@given(rewards, seeds)
def test_smaller_subsamples_are_part_of_larger_ones(episodes, seed):
    dataset = log(*episodes)
    sizes = range(1, dataset.episode_start.size + 1)
    sets = [set(as_episodes(subsample(dataset, episodes=size, seed=seed))) for size in sizes]
    assert all(small <= large for small, large in itertools.pairwise(sets))


def test_a_subsample_by_share_of_rows():
    even = log(*[[1.0, float(number)] for number in range(10)])
    part = subsample(even, share=0.3, seed=1)
    assert (part.rows, part.name) == (6, "x[30 %, seed 1]")
    assert subsample(even, share=1.0, seed=1).sha256 == even.sha256
    assert subsample(even, share=1e-9, seed=1).episode_start.size == 1
    assert subsample(even, episodes=2, seed=5).name == "x[2 episodes, seed 5]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one"),
        ({"episodes": 1, "share": 0.5}, "exactly one"),
        ({"episodes": 0}, "has 4 episodes, cannot draw 0"),
        ({"episodes": 5}, "has 4 episodes, cannot draw 5"),
        ({"share": 0.0}, r"\(0, 1\]"),
    ],
)
def test_an_impossible_subsample_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        subsample(HAND, seed=0, **arguments)


@pytest.mark.parametrize(
    ("share", "rewards"),
    [
        (0.01, [8]),
        (0.25, [8]),
        (0.5, [1, 2, 4, 8]),
        (0.75, [1, 2, 4, 8, 3, 4]),
        (1.0, [1, 2, 4, 8, -1, 1, 3, 4]),
    ],
)
def test_the_best_episodes_by_hand(share, rewards):
    best = best_episodes(HAND, share)
    assert best.reward.tolist() == rewards
    assert best.name == f"x[best {100 * share:g} %]"


@given(rewards, shares)
def test_no_omitted_episode_is_better(episodes, share):
    dataset = log(*episodes)
    kept = episode_returns(best_episodes(dataset, share))
    everything = sorted(episode_returns(dataset).tolist(), reverse=True)
    assert sorted(kept.tolist(), reverse=True) == everything[: kept.size]
    assert abs(kept.size - share * len(everything)) <= 0.5 or kept.size == 1


def test_concatenation_by_hand():
    whole = concatenate([HAND, log([5, 6], [7], name="y")])
    assert whole.name == "x + y"
    assert whole.reward.tolist() == [1, 2, 4, 8, -1, 1, 3, 4, 5, 6, 7]
    assert whole.episode_start.tolist() == [0, 3, 4, 6, 8, 10]
    assert concatenate([HAND]).sha256 == HAND.sha256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"discount": 0.9}, "discount is 0.5 in the first and 0.9 in the second"),
        ({"action_high": (2.0,)}, r"action_high is \(1.0,\) in the first and \(2.0,\)"),
        (
            {"observation": np.ones((2, 3)), "next_observation": np.ones((2, 3))},
            "observation_size is 2 in the first and 3",
        ),
        (
            {"action": np.ones((2, 2)), "action_low": (0.0, 0.0), "action_high": (1.0, 1.0)},
            "action_size is 1 in the first and 2",
        ),
    ],
)
def test_different_logs_cannot_be_joined(changes, message):
    with pytest.raises(ValueError, match=f"'x' and 'y' cannot be joined: {message}"):
        concatenate([HAND, log([1, 2], name="y", **changes)])


def test_an_empty_list_cannot_be_concatenated():
    with pytest.raises(ValueError, match="no data sets to concatenate"):
        concatenate([])


def test_standardisation_by_hand():
    observation = np.array([[1.0, 5.0], [3.0, 5.0]], np.float32)
    following = np.array([[5.0, 5.001], [2.0, 4.0]], np.float32)
    dataset = log([1, 2], observation=observation, next_observation=following)
    found = standardisation(dataset)
    assert found == Standardisation(mean=(2.0, 5.0), scale=(1.0, 1e-3))
    applied = found.apply(dataset)
    np.testing.assert_array_equal(applied.observation, [[-1, 0], [1, 0]])
    np.testing.assert_allclose(applied.next_observation, [[3, 1], [0, -1000]], rtol=1e-3)
    assert applied.observation.dtype == np.float32
    assert applied.name == "x[standardised]"


@given(rewards)
def test_standardised_columns_have_mean_0_and_deviation_1(episodes):
    dataset = log(*episodes)
    columns = standardisation(dataset).apply(dataset).observation.T
    for column, before in zip(columns, dataset.observation.T, strict=True):
        assert np.mean(column, dtype=np.float64) == pytest.approx(0, abs=1e-5)
        if np.ptp(before):
            assert np.std(column, dtype=np.float64) == pytest.approx(1, rel=1e-5)


def test_a_large_mean_does_not_cost_precision():
    number = np.array([0.0, 1, 2, 3], np.float32)
    observation = np.stack([number + 2**23, number], axis=1)
    dataset = log([1] * 4, observation=observation)
    columns = standardisation(dataset).apply(dataset).observation.T
    np.testing.assert_allclose(columns[0], columns[1], rtol=1e-6)


def test_iql_scales_returns_to_a_range_of_1000():
    scaling = iql_reward_scaling(HAND)
    assert scaling == RewardScaling(shift=0.0, factor=125.0)
    assert episode_returns(scaling.apply(HAND)).tolist() == [875, 1000, 0, 875]
    with pytest.raises(ValueError, match="every episode has the return 3"):
        iql_reward_scaling(log([1, 2], [3]))


def test_rewards_are_shifted_before_they_are_scaled():
    scaled = RewardScaling(shift=-1.0, factor=2.0).apply(HAND)
    assert scaled.reward.tolist() == [0, 2, 6, 14, -4, 0, 4, 6]
    assert (scaled.reward.dtype, scaled.name) == (np.float32, "x[rewards scaled]")
    whole = dataclasses.replace(HAND, reward=np.array([1, 2, 4, 8, -1, 1, 3, 4]))
    assert RewardScaling(shift=0.5).apply(whole).reward.tolist()[:2] == [1.5, 2.5]


@pytest.mark.parametrize(
    "scales",
    [Scales(standardisation(HAND)), Scales(reward=RewardScaling(shift=-1.0, factor=1 / 3))],
)
def test_scales_survive_a_json_round_trip(scales):
    written = json.dumps(scales.to_json())
    assert Scales.from_json(json.loads(written)) == scales


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Standardisation((0.0,), (1.0, 1.0)), "1 means and 2 scales"),
        (lambda: Standardisation((0.0,), (0.0,)), "must be positive"),
        (lambda: Standardisation((np.nan,), (1.0,)), "must be finite"),
        (lambda: RewardScaling(factor=0.0), "finite and positive"),
        (lambda: RewardScaling(shift=np.inf), "must be finite"),
        (lambda: Standardisation((0.0,), (1.0,)).apply(HAND), "2 observation columns.* for 1"),
    ],
)
def test_invalid_scales_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def with_chances(*chances: float, **changes) -> Dataset:
    """HAND, or its first episodes, with these propensities."""
    return dataclasses.replace(HAND, propensity=np.array(chances, np.float32), **changes)


def test_propensities_stay_with_their_episodes():
    dataset = with_chances(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    # Observations are row numbers.
    chance = {float(row): np.float32((row + 1) / 10) for row in range(8)}
    parts = [
        *split(dataset, 0.5, seed=0),
        subsample(dataset, episodes=2, seed=1),
        best_episodes(dataset, 0.5),
        standardisation(dataset).apply(dataset),
        RewardScaling(1.0, 2.0).apply(dataset),
    ]
    for part in parts[:4]:
        np.testing.assert_array_equal(
            part.propensity, [chance[row] for row in part.observation[:, 0].tolist()]
        )
    assert best_episodes(dataset, 0.5).propensity.tolist() == dataset.propensity[:4].tolist()
    for scaled in parts[4:]:
        np.testing.assert_array_equal(scaled.propensity, dataset.propensity)
    twice = concatenate([dataset, best_episodes(dataset, 0.25)])
    assert twice.propensity.tolist() == [*dataset.propensity.tolist(), np.float32(0.4)]


def test_logs_with_and_without_propensities_are_not_joined():
    known = with_chances(*[0.5] * 8, name="known")
    for pair in ([known, HAND], [HAND, known]):
        with pytest.raises(ValueError, match="cannot be joined: 'x' has no propensity"):
            concatenate(pair)
    assert concatenate([HAND, dataclasses.replace(known, propensity=None)]).rows == 16


def every_return(rewards, discount, lengths):
    """Enumerate the discounted sums of all sequences of these rewards."""
    return [
        sum(discount**time * reward for time, reward in enumerate(sequence))
        for length in lengths
        for sequence in itertools.product(rewards, repeat=length)
    ]


REWARDS = [(-3.0, -0.5), (-3.0,), (0.25, 2.0), (-1.0, 0.5, 2.0), (0.0, 2.0), (-2.0, 0.0), (0.0,)]


@pytest.mark.parametrize("rewards", REWARDS)
@pytest.mark.parametrize("discount", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("ends", [False, True])
def test_reachable_returns_bound_every_sequence_of_rewards(rewards, discount, ends):
    continuation = np.ones(len(rewards))
    continuation[-1] -= ends
    made = log(list(rewards), discount=discount, continuation=continuation)
    for horizon in (1, 2, 5):
        lengths = range(1, horizon + 1) if ends else [horizon]
        possible = every_return(rewards, discount, lengths)
        found = reachable_returns(made, horizon=horizon)
        np.testing.assert_allclose(found, (min(possible), max(possible)), rtol=1e-12)
    if discount < 1.0:
        # After 400 steps the remaining sum is negligible.
        np.testing.assert_allclose(
            reachable_returns(made), reachable_returns(made, horizon=400), rtol=1e-12
        )


INFINITY = float("inf")


@pytest.mark.parametrize(
    ("rewards", "endless", "with_ends"),
    [
        ([-3, -1], (-INFINITY, -INFINITY), (-INFINITY, -1)),
        ([-3, 0], (-INFINITY, 0), (-INFINITY, 0)),
        ([0, 0], (0, 0), (0, 0)),
        ([-3, 2], (-INFINITY, INFINITY), (-INFINITY, INFINITY)),
        ([1, 2], (INFINITY, INFINITY), (1, INFINITY)),
    ],
)
def test_without_discount_and_horizon_reachable_returns_can_be_infinite(
    rewards, endless, with_ends
):
    made = log(rewards, discount=1.0)
    assert reachable_returns(made) == endless
    assert reachable_returns(dataclasses.replace(made, continuation=[1, 0])) == with_ends


def test_parts_of_a_log_have_the_reachable_returns_of_the_whole():
    held_out = log([5, 1], [-2, 0], continuation=[1, 0, 1, 1])
    whole = reachable_returns(concatenate([HAND, held_out]))
    assert reachable_returns(HAND, held_out) == reachable_returns(held_out, HAND) == whole
    assert whole == (-4.0, 16.0) and str(whole) == "[-4, 16]"
    # A continuation between 0 and 1 also allows an early end.
    unsure = log([-2, -1], continuation=[1, 0.5])
    assert reachable_returns(unsure) == (-4.0, -1.0)


def test_a_horizon_of_0_is_refused():
    with pytest.raises(ValueError, match="horizon must be at least 1, got 0"):
        reachable_returns(HAND, horizon=0)
