import dataclasses

import numpy as np
import pytest

from fat2thin import data
from fat2thin.data.checks import Order, check
from fat2thin.data.operations import Box, RawLog, assemble

BOX = Box((-1.0, 0.0), (1.0, 10.0), 0.9)
LENGTHS = (6, 5, 7, 6)
ROWS = sum(LENGTHS)
ENDS = np.cumsum(LENGTHS) - 1


def clean() -> RawLog:
    """Four episodes with true ends, ordinary magnitudes, and actions all over the box."""
    draw = np.random.default_rng(0)
    observation = draw.normal(size=(ROWS, 3))
    following = np.concatenate([observation[1:], draw.normal(size=(1, 3))])
    following[ENDS] = draw.normal(size=(len(ENDS), 3))
    terminal = np.isin(np.arange(ROWS), ENDS)
    action = draw.uniform((-0.9, 1), (0.9, 9), (ROWS, 2))
    reward = draw.normal(size=ROWS)
    chance = draw.uniform(0.1, 1, ROWS)
    return RawLog(observation, action, reward, terminal, terminal.copy(), following, chance)


def changed(field: str, place, value) -> RawLog:
    array = getattr(clean(), field).copy()
    array[place] = value
    return clean()._replace(**{field: array})


def scaled(field: str, place, factor: float) -> RawLog:
    return changed(field, place, factor * getattr(clean(), field)[place])


def arrays_of(log: RawLog) -> dict[str, np.ndarray]:
    return {field: array for field, array in log._asdict().items() if isinstance(array, np.ndarray)}


def without_ends() -> RawLog:
    return clean()._replace(terminal=np.zeros(ROWS, bool))


def repeated() -> RawLog:
    """The clean log with its first episode repeated at the end."""
    return RawLog(**{
        field: np.concatenate([array, array[:6]]) for field, array in arrays_of(clean()).items()
    })  # fmt: skip


def swapped() -> RawLog:
    order = np.arange(ROWS)
    order[[1, 2]] = 2, 1
    return RawLog(*(array[order] for array in arrays_of(clean()).values()))


def test_a_clean_log_has_no_findings():
    for log in (
        clean(),
        clean()._replace(next_observation=None),
        clean()._replace(propensity=None),
    ):
        report = check(log, BOX)
        assert report.codes == ()
        assert str(report) == "0 errors, 0 warnings"
    assert check(assemble("x", clean(), BOX)).codes == ()


@pytest.mark.parametrize("name", ["treatment/cubic", "treatment/quadratic"])
def test_the_treatment_log_is_clean(name):
    assert check(data.load(name)).codes == ()


@pytest.mark.parametrize(
    ("code", "log", "column", "count", "rows"),
    [
        ("type", clean()._replace(reward=np.array(["a"] * ROWS)), "reward", ROWS, ()),
        ("length", clean()._replace(action=clean().action[:-2]), "action", 2, ()),
        ("length", clean()._replace(reward=clean().reward[:, None]), "reward", 0, ()),
        (
            "length",
            clean()._replace(next_observation=clean().next_observation[:, :2]),
            "next_observation",
            1,
            (),
        ),
        ("empty", RawLog(*(array[:0] for array in arrays_of(clean()).values())), "reward", 0, ()),
        ("box", clean()._replace(action=clean().action[:, :1]), "action", 1, ()),
        ("flag", clean()._replace(cut=np.full(ROWS, 2)), "cut", ROWS, (0, 1, 2, 3, 4)),
        ("not_finite", changed("reward", [3, 9], np.nan), "reward", 2, (3, 9)),
        ("not_finite", changed("observation", ([7, 7], [0, 2]), np.inf),
         "observation_0, observation_2", 1, (7,)),
        ("too_large", changed("next_observation", (5, 1), 1e39), "next observation_1", 1, (5,)),
        ("not_finite", changed("propensity", 2, np.nan), "propensity", 1, (2,)),
        ("propensity", changed("propensity", [1, 9, 20], (0, -0.5, 1.25)), "propensity", 3,
         (1, 9, 20)),
        ("outside_box", changed("action", (4, 0), -1.5), "action_0", 1, (4,)),
        ("outside_box", changed("action", ([2, 8], [0, 1]), 10.5 * np.array([0.2, 1])),
         "action_0, action_1", 2, (2, 8)),
        ("other_unit", scaled("action", np.s_[1:20, 0], 100.0), "action_0", 19, (1, 2, 3, 4, 5)),
    ],
)  # fmt: skip
def test_each_error_is_found_and_nothing_else(code, log, column, count, rows):
    report = check(log, BOX)
    assert report.codes == (code,)
    assert not report.warnings
    (finding,) = report.errors
    assert (finding.column, finding.count, finding.rows) == (column, count, rows)
    assert finding.way_out.endswith(".")


@pytest.mark.parametrize(
    ("code", "log", "column", "count", "rows"),
    [
        ("constant", changed("action", np.s_[:, 1], 5.0), "action_1", 1, ()),
        ("constant", changed("reward", slice(None), -1.0), "reward", 1, ()),
        ("narrow_actions", scaled("action", np.s_[:, 0], 0.01), "action_0", 1, ()),
        ("wide_box", clean()._replace(action=np.abs(clean().action)), "action_0", 1, ()),
        ("at_edge", changed("action", ([3, 5], 1), 10.0), "action_1", 2, (3, 5)),
        ("at_edge", changed("action", ([3, 5], 0), -0.9999), "action_0", 2, (3, 5)),
        ("broken_chain", changed("next_observation", (8, 2), 1.0), "next_observation", 1, (8,)),
        ("broken_chain", swapped(), "next_observation", 3, (0, 1, 2)),
        ("broken_chain", without_ends()._replace(
            cut=np.isin(np.arange(ROWS), ENDS[::2]), terminal=np.isin(np.arange(ROWS), ENDS[::2])
        ), "next_observation", 1, (10,)),
        ("duplicates", repeated(), "all columns", 6, (24, 25, 26, 27, 28)),
        ("no_end", without_ends(), "terminal", 4, ()),
        ("short_episodes", changed("cut", 5 + 3, True)._replace(
            cut=np.isin(np.arange(ROWS), [*ENDS, 6])
        ), "episodes", 1, (6,)),
        ("reward_scale", changed("reward", [2, 20], (5e4, -5e4)), "reward", 2, (2, 20)),
    ],
)  # fmt: skip
def test_each_warning_is_found_and_nothing_else(code, log, column, count, rows):
    report = check(log, BOX)
    assert report.codes == (code,)
    assert not report.errors
    (finding,) = report.warnings
    assert (finding.column, finding.count, finding.rows) == (column, count, rows)
    assert finding.way_out.endswith(".")


def with_equal_lengths(terminal=True, interrupted=0, step=False) -> RawLog:
    """Twelve episodes of five rows, one of them shorter by `interrupted` rows."""
    draw, length, episodes = np.random.default_rng(1), 5, 12
    rows = length * episodes - interrupted
    last = np.append(np.arange(1, episodes) * length - 1, rows - 1)
    observation = draw.normal(size=(rows, 2))
    if step:
        observation[:, 1] = np.arange(rows) % length
    ends = np.isin(np.arange(rows), last)
    return RawLog(
        observation, draw.uniform((-0.9, 1), (0.9, 9), (rows, 2)), draw.normal(size=rows),
        ends & terminal, ends, None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("log", "codes"),
    [
        (with_equal_lengths(), ("ends_by_time",)),
        (with_equal_lengths(terminal=False), ()),  # a time limit
        (with_equal_lengths(interrupted=1), ()),  # one ends earlier: time alone does not end it
        (with_equal_lengths(step=True), ()),  # the observation has the time
    ],
)
def test_ends_that_only_time_explains_are_warned_about(log, codes):
    report = check(log, BOX)
    assert report.codes == codes
    if codes:
        assert "after exactly 5 rows in all 12 episodes" in str(report)


def with_observations(column: int, factor: float, shift: float = 0.0) -> RawLog:
    log = clean()
    arrays = [log.observation.copy(), log.next_observation.copy()]
    for array in arrays:
        array[:, column] = factor * array[:, column] + shift
    return log._replace(observation=arrays[0], next_observation=arrays[1])


@pytest.mark.parametrize(
    ("code", "log"),
    [
        ("constant", with_observations(1, 0.0, 7.0)),
        ("observation_scale", with_observations(1, 1e5)),
        ("observation_scale", with_observations(1, 1e5, 1.7e9)),
        ("constant", with_observations(1, 1.0, 1.7e9)),
    ],
)
def test_odd_observation_columns_are_warned_about(code, log):
    report = check(log, BOX)
    assert report.codes == (code,)
    assert (report.warnings[0].column, report.warnings[0].count) == ("observation_1", 1)


@pytest.mark.parametrize("row", [0, ROWS - 1])
def test_a_bad_row_does_not_hide_or_cause_other_findings(row):
    log = changed("reward", row, np.nan)
    action = log.action.copy()
    action[12, 0] = 1.1
    report = check(log._replace(action=action), BOX)
    assert report.codes == ("not_finite", "outside_box")
    assert report.errors[1].rows == (12,)


def test_a_log_without_a_finite_reward_has_one_finding():
    assert check(changed("reward", slice(None), np.nan), BOX).codes == ("not_finite",)


def test_episodes_of_equal_length_need_no_true_end():
    last = np.isin(np.arange(ROWS), [6, 13, 20])
    log = clean()._replace(terminal=np.zeros(ROWS, bool), cut=last, next_observation=None)
    assert check(log, BOX).codes == (), "three episodes of seven rows and a last one of three"
    later = np.isin(np.arange(ROWS), [6, 14, 20])
    assert check(log._replace(cut=later), BOX).codes == ("no_end",)
    one = check(log._replace(cut=np.zeros(ROWS, bool)), BOX)
    assert one.codes == ("no_end", "one_episode")
    assert "the only episode stops" in str(one)


def test_without_a_box_actions_are_not_checked_against_one():
    assert check(scaled("action", np.s_[:], 1000.0)).codes == ()
    codes = check(clean(), Box((1.0, 0.0), (-1.0, 10.0), 0.9)).codes
    assert codes == ("box",)


def test_the_order_of_episodes_and_times_is_checked():
    episode = np.repeat(["a", "b", "c", "d"], LENGTHS)
    time = np.concatenate([np.arange(length) for length in LENGTHS])
    assert check(clean(), BOX, Order(episode, time)).codes == ()
    again = episode.copy()
    again[-2:] = "a"
    report = check(clean(), BOX, Order(again, np.arange(ROWS)))
    assert [(one.code, one.count, one.rows) for one in report] == [("episode_order", 1, (22,))]
    time[[1, 2, 8]] = 2, 1, 1
    falls, repeats = check(clean(), BOX, Order(episode, time))
    assert (falls.code, falls.count, falls.rows) == ("time_order", 1, (2,))
    assert (repeats.code, repeats.count, repeats.rows) == ("repeated_time", 1, (8,))
    assert "Sort" in falls.way_out and "Sort" not in repeats.way_out
    dates = np.datetime64("2024-05-31") + np.arange(ROWS)
    assert check(clean(), BOX, Order(episode, dates)).codes == ()


def test_a_thousand_constant_columns_are_one_finding():
    wide = np.zeros((ROWS, 1000))
    report = check(clean()._replace(observation=wide, next_observation=wide), BOX)
    assert report.codes == ("constant",)
    assert report.warnings[0].count == 1000
    assert report.warnings[0].column.endswith("observation_3 and 996 more")
    _, _, _, note = str(report).splitlines()
    assert note == "The log has no names for its observation columns: observation_0 is the first."


def test_the_text_of_a_report():
    text = str(check(changed("reward", slice(2, 9), np.nan), BOX))
    first, second, third = text.splitlines()
    assert first == "1 error, 0 warnings"
    assert second == (
        "error   not_finite: reward is NaN or infinite in 7 of 24 rows "
        "(row 2, 3, 4, 5, 6, …; counted from 0)"
    )
    assert third.startswith("    Fill the gaps")


def test_signed_zeros_are_equal():
    log = clean()._replace(next_observation=None)
    arrays = {field: np.concatenate([array, array[:6]]) for field, array in arrays_of(log).items()}
    arrays["reward"][[0, 24]] = 0.0, -0.0
    assert check(RawLog(**arrays), BOX).warnings[0].rows[0] == 24


def test_a_data_set_is_checked_against_its_own_box():
    dataset = assemble("x", clean(), BOX)
    wide = dataclasses.replace(dataset, action_low=(-1e3, 0.0), action_high=(1e3, 10.0))
    assert check(wide).codes == ("narrow_actions",)


def test_a_box_with_over_a_quarter_untried_on_one_side_is_too_wide():
    """Doses from 0 to 1 in a box of ±1, and both sides of the threshold."""
    log = clean()
    doses = np.stack([np.linspace(0.0, 1.0, ROWS), np.linspace(0.0, 10.0, ROWS)], axis=1)
    (finding,) = check(log._replace(action=doses), BOX).warnings
    assert str(finding).startswith(
        "wide_box: action_0 is never below 0, but 50 % of the box from -1 to 1 lies there\n    A "
    )
    for high, codes in ((7.5, ()), (7.4, ("wide_box",))):
        some = np.stack([np.linspace(-1, 1, ROWS), np.linspace(0.0, high, ROWS)], axis=1)
        assert check(log._replace(action=some), BOX).codes == codes
    both = np.stack([np.linspace(-0.4, 0.4, ROWS), np.linspace(3, 4, ROWS)], axis=1)
    below, above = check(log._replace(action=both), BOX).warnings
    assert below.column == above.column == "action_0, action_1"
    assert "never above 4, but 60 % of the box from 0 to 10 lies there (action_1)" in str(above)
