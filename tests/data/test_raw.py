"""Assembling of raw logs, compared with results by hand and with a slow loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fat2thin.data import Box, RawLog, assemble

BOX = Box((-1.0,), (1.0,), 0.9)
YES, NO = True, False
# Three episodes: a time limit after row 2, a true end at row 4, and the file stops in the last.
OBSERVATION = np.array([[0.0], [10], [20], [30], [40], [50], [60]])
NEXT = np.array([[10.0], [20], [25], [40], [45], [60], [70]])
TERMINAL = np.array([NO, NO, NO, NO, YES, NO, NO])
CUT = np.array([NO, NO, YES, NO, NO, NO, NO])


def log(terminal=TERMINAL, cut=CUT, following=None, observation=OBSERVATION) -> RawLog:
    rows = len(observation)
    action = np.linspace(-1, 1, rows)[:, None]
    return RawLog(observation, action, np.arange(rows), terminal, cut, following)


def test_without_next_observations_the_row_below_is_used():
    dataset = assemble("log", log(), BOX)
    np.testing.assert_array_equal(dataset.observation, [[0], [10], [30], [40], [50]])
    np.testing.assert_array_equal(dataset.next_observation, [[10], [20], [40], [40], [60]])
    np.testing.assert_array_equal(dataset.continuation, [1, 1, 1, 0, 1])
    np.testing.assert_array_equal(dataset.reward, [0, 1, 3, 4, 5])
    np.testing.assert_array_equal(dataset.episode_start, [0, 2, 4])
    np.testing.assert_allclose(dataset.action[:, 0], [-1, -2 / 3, 0, 1 / 3, 2 / 3], atol=1e-7)


@pytest.mark.parametrize("reuse", [False, True])
def test_propensities_stay_with_their_rows(reuse):
    chance = np.arange(1, 8, dtype=np.float32) / 8
    raw = log(observation=OBSERVATION.astype(np.float32))._replace(propensity=chance)
    dataset = assemble("log", raw, BOX, reuse=reuse)
    np.testing.assert_array_equal(dataset.propensity, np.array([1, 2, 4, 5, 6]) / 8)
    whole = assemble(
        "log", log(following=NEXT)._replace(propensity=dataset.propensity[[0] * 7]), BOX
    )
    np.testing.assert_array_equal(whole.propensity, np.full(7, 1 / 8))
    assert assemble("log", log(), BOX).propensity is None


@pytest.mark.parametrize("cells", [1, 3, 10**6])
def test_reusing_the_arrays_gives_the_same_rows(cells, monkeypatch):
    monkeypatch.setattr("fat2thin.data.row_arrays.BLOCK_CELLS", cells)
    draw = np.random.default_rng(0)
    observation = draw.normal(size=(40, 3)).astype(np.float32)
    terminal, cut = draw.random((2, 40)) < 0.2
    raw = log(terminal, cut, None, observation)
    copied = assemble("log", raw, BOX)
    assert copied.rows < 40
    reused = assemble("log", raw, BOX, reuse=True)
    assert reused.sha256 == copied.sha256
    assert np.shares_memory(reused.observation, observation)


def test_with_next_observations_no_row_is_lost():
    dataset = assemble("log", log(following=NEXT), BOX)
    np.testing.assert_array_equal(dataset.observation, OBSERVATION)
    np.testing.assert_array_equal(dataset.next_observation, NEXT)
    np.testing.assert_array_equal(dataset.continuation, [1, 1, 1, 1, 0, 1, 1])
    np.testing.assert_array_equal(dataset.episode_start, [0, 3, 5])


@pytest.mark.parametrize("following", [None, NEXT], ids=["without next", "with next"])
def test_a_true_end_at_the_time_limit_counts_as_a_true_end(following):
    plain = assemble("log", log(following=following), BOX)
    both = assemble("log", log(cut=CUT | TERMINAL, following=following), BOX)
    assert plain.sha256 == both.sha256


def test_an_episode_of_one_cut_row_is_dropped():
    dataset = assemble("log", log(cut=np.array([NO, NO, YES, YES, NO, NO, NO])), BOX)
    np.testing.assert_array_equal(dataset.observation, [[0], [10], [40], [50]])
    np.testing.assert_array_equal(dataset.episode_start, [0, 2, 3])


def test_a_log_of_only_cut_rows_is_refused():
    with pytest.raises(ValueError, match="no row has a next observation"):
        assemble("log", log(terminal=np.zeros(7, bool), cut=np.ones(7, bool)), BOX)


def test_the_raw_log_is_not_modified():
    terminal, cut, observation = TERMINAL.copy(), CUT.copy(), OBSERVATION.astype(np.float32)
    assemble("log", log(terminal, cut, None, observation), BOX)
    np.testing.assert_array_equal(terminal, TERMINAL)
    np.testing.assert_array_equal(cut, CUT)
    np.testing.assert_array_equal(observation, OBSERVATION)


def slowly(raw: RawLog) -> list[tuple]:
    """Return the rows as (episode, observation, next observation, continuation), by a loop."""
    rows, episode = [], 0
    count = len(raw.reward)
    for row in range(count):
        end, over = raw.terminal[row], raw.cut[row] or row == count - 1
        if raw.next_observation is not None:
            following = raw.next_observation[row, 0]
        elif end:
            following = raw.observation[row, 0]
        elif over:
            following = None
        else:
            following = raw.observation[row + 1, 0]
        if following is not None:
            rows.append((episode, raw.observation[row, 0], following, 0.0 if end else 1.0))
        if end or over:
            episode += 1
    return rows


@given(
    flags=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12),
    stored=st.booleans(),
)
def test_any_log_agrees_with_a_slow_loop(flags, stored):
    terminal, cut = np.array(flags).T
    observation = np.arange(len(flags), dtype=np.float32)[:, None]
    raw = log(terminal, cut, observation + 0.5 if stored else None, observation)
    expected = slowly(raw)
    if not expected:
        with pytest.raises(ValueError, match="no row has a next observation"):
            assemble("log", raw, BOX)
        return
    dataset = assemble("log", raw, BOX)
    episode, seen, following, continuation = np.array(expected).T
    np.testing.assert_array_equal(dataset.observation[:, 0], seen)
    np.testing.assert_array_equal(dataset.next_observation[:, 0], following)
    np.testing.assert_array_equal(dataset.continuation, continuation)
    starts = [row for row in range(len(episode)) if row == 0 or episode[row] != episode[row - 1]]
    np.testing.assert_array_equal(dataset.episode_start, starts)
