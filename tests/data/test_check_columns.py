"""Warnings about columns: leaks, unit changes, few values, piles at an edge, and names."""

import tomllib

import numpy as np
import pytest

from fat2thin.columns import Column, Transform
from fat2thin.data.checks import check
from fat2thin.data.operations import Box, RawLog, assemble

EPISODES, LENGTH = 20, 12
ROWS = EPISODES * LENGTH
BOX = Box((0.0, -1.0), (5.0, 1.0), 0.9)
COLUMNS = {
    "observation_columns": (Column("glucose", "mg/dL"), Column("weight", "kg"), Column("last")),
    "action_columns": (Column("dose", "mg"), Column("rate")),
}


def log(seed: int = 0) -> RawLog:
    """Twenty patients: glucose around 120, weight per patient, and the previous dose."""
    draw = np.random.default_rng(seed)
    glucose = 120 * draw.lognormal(0, 0.3, ROWS)
    weight = np.repeat(70 * draw.lognormal(0, 0.2, EPISODES), LENGTH)
    action = draw.uniform((0.1, -0.95), (4.9, 0.95), (ROWS, 2))
    previous = np.append(0, action[:-1, 0])
    previous[::LENGTH] = 0
    observation = np.stack([glucose, weight, previous], axis=1)
    cut = np.arange(ROWS) % LENGTH == LENGTH - 1
    end = cut & (np.arange(ROWS) < ROWS - 1)  # the last patient was still there
    return RawLog(observation, action, draw.normal(size=ROWS), end, cut, **COLUMNS)


def with_cells(field: str, place, values) -> RawLog:
    array = getattr(log(), field).copy()
    array[place] = values
    return log()._replace(**{field: array})


@pytest.mark.parametrize("seed", range(5))
def test_an_ordinary_log_with_the_previous_dose_has_no_findings(seed):
    assert check(log(seed), BOX).codes == ()
    assert check(assemble("x", log(seed), BOX)).codes == ()


def test_an_observation_equal_to_the_action_of_its_row_is_a_leak():
    (finding,) = check(with_cells("observation", np.s_[:, 2], log().action[:, 0]), BOX)
    assert (finding.code, finding.column) == ("leak", "last")
    assert "equals the action of the same row (dose (mg))" in str(finding)
    rounded = log().action[:, 0].astype(np.float32).astype(np.float64)
    assert check(with_cells("observation", np.s_[:, 2], rounded), BOX).codes == ("leak",)
    (finding,) = check(with_cells("observation", np.s_[:, 0], log().reward), BOX)
    assert (finding.code, finding.column) == ("leak", "glucose (mg/dL)")
    assert "equals the reward of the same row" in str(finding)


def test_flags_and_integers_are_compared_as_numbers():
    flags = np.random.default_rng(0).random((ROWS, 3)) < 0.5
    counts = np.random.default_rng(1).integers(0, 200, (ROWS, 2)).astype(np.uint8)
    raw = log()._replace(observation=flags, action=counts)
    assert check(raw).codes == ()
    assert check(raw._replace(observation=counts[:, [0, 1, 0]])).codes == ("leak",)


def test_a_leak_needs_nearly_all_rows():
    """One different row in 240 is too many, and one in 2,400 is not."""
    wrong = log().action[:, 0].copy()
    wrong[7] += 0.5
    assert check(with_cells("observation", np.s_[:, 2], wrong), BOX).codes == ()
    long = RawLog(*(np.concatenate([array] * 10) for array in log()[:5]), **COLUMNS)
    long = long._replace(reward=np.random.default_rng(1).normal(size=10 * ROWS))
    long.observation[:, 2] = long.action[:, 0]
    long.observation[7, 2] += 0.5
    assert check(long, BOX).codes == ("leak",)


def test_a_dose_that_rarely_changes_may_be_observed_a_row_later():
    """Dose and previous dose are equal in all but 2 of 4,000 rows, which show which it is."""
    rows = 4000
    draw = np.random.default_rng(0)
    dose = np.repeat([1.5, 4.0, 2.5], (1500, 1200, 1300))
    action = np.stack([dose, draw.uniform(-0.95, 0.95, rows)], axis=1)
    end = np.arange(rows) == rows - 1
    for seen, leaks in ((np.append(dose[0], dose[:-1]), False), (dose, True)):
        observation = np.column_stack([draw.normal(size=(rows, 2)), seen])
        raw = RawLog(observation, action, draw.normal(size=rows), end, end, **COLUMNS)
        assert ("leak" in check(raw).codes) is leaks


def test_two_columns_that_are_nearly_always_0_are_not_a_leak():
    draw = np.random.default_rng(0)
    alarm, reward = np.zeros((2, 100 * ROWS))
    alarm[draw.choice(alarm.size, 11, replace=False)] = 1
    reward[draw.choice(reward.size, 11, replace=False)] = 1
    long = RawLog(*(np.concatenate([array] * 100) for array in log()[:5]), **COLUMNS)
    long.observation[:, 1] = alarm
    assert np.mean(alarm == reward) > 0.999
    assert "leak" not in check(long._replace(reward=reward), BOX).codes
    assert "leak" in check(long._replace(reward=alarm), BOX).codes


@pytest.mark.parametrize("row", [120, 84, 97])
@pytest.mark.parametrize(
    ("field", "place", "name"),
    [
        ("observation", np.s_[:, 0], "glucose (mg/dL)"),
        ("action", np.s_[:, 0], "dose (mg)"),
        ("reward", np.s_[:], "reward"),
    ],
)
def test_a_unit_change_is_found_at_its_row(row, field, place, name):
    values = np.random.default_rng(0).uniform(2, 5, ROWS)
    values[row:] /= 40
    report = check(with_cells(field, place, values), BOX)
    (finding,) = [one for one in report if one.code == "unit_change"]
    assert (finding.column, finding.rows, finding.count) == (name, (row,), 1)


def test_a_unit_change_names_both_medians():
    glucose = log().observation[:, 0]
    (finding,) = check(with_cells("observation", np.s_[120:, 0], glucose[120:] / 18), BOX)
    assert f"is {np.median(glucose[:120]):.3g} above and" in finding.sentence
    assert f"{np.median(glucose[120:] / 18):.3g} below the jump" in finding.sentence


STEP = np.arange(ROWS)
DRAW = np.random.default_rng(3)


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(STEP + 1.0, id="a ramp over the whole log"),
        pytest.param(np.exp(-STEP / 10), id="a fast decay over the whole log"),
        pytest.param(np.exp(-(STEP % LENGTH)), id="a decay in every episode"),
        pytest.param(np.where(STEP < 120, 1, 4) * DRAW.lognormal(0, 0.2, ROWS), id="two regimes"),
        pytest.param(np.where(STEP < 120, 1, 15) * DRAW.normal(size=ROWS), id="wide noise"),
        pytest.param(np.where(STEP < 12, 1, 30) * DRAW.lognormal(0, 0.2, ROWS), id="a start"),
        pytest.param(np.where(STEP < 120, 1.0, 30.0), id="codes of two wards"),
        pytest.param(np.where(STEP // 36 % 2, 1, 30) * DRAW.lognormal(0, 0.2, ROWS), id="phases"),
        pytest.param(np.where(DRAW.random(ROWS) < 0.1, 100, 0.01), id="spikes"),
    ],
)
def test_drifts_phases_and_codes_are_not_unit_changes(column):
    assert "unit_change" not in check(with_cells("observation", np.s_[:, 0], column), BOX).codes


def test_a_jump_between_few_patients_is_not_a_unit_change():
    """Weights of four adults and sixteen newborns; with ten of each, it is reported."""
    noise = DRAW.lognormal(0, 0.1, ROWS)
    for adults, codes in ((4, ()), (10, ("unit_change",))):
        weight = np.where(adults * LENGTH > STEP, 70, 3) * noise
        assert check(with_cells("observation", np.s_[:, 1], weight), BOX).codes == codes


def test_actions_with_few_values_are_listed():
    steps = np.random.default_rng(0).integers(11, size=ROWS) / 2
    few = with_cells("action", np.s_[:, 0], np.minimum(steps, 4.5))
    (finding,) = check(few, BOX)
    assert (finding.code, finding.column) == ("few_values", "dose (mg)")
    assert "(0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5)" in finding.sentence
    eleven = with_cells("action", np.s_[:, 0], steps)
    assert "few_values" not in check(eleven, BOX).codes
    short = RawLog(*(array[:96] for array in few[:5]), **COLUMNS)
    assert "few_values" not in check(short, BOX).codes


def test_few_values_may_appear_late_and_in_several_columns(monkeypatch):
    monkeypatch.setattr("fat2thin.data.row_arrays.BLOCK_CELLS", 64)
    monkeypatch.setattr("fat2thin.data.checks.box._FIRST_LOOK", 10)
    action = np.stack([np.where(STEP < 200, 1.0, 2.0), np.sign(STEP % 3 - 1.0)], axis=1)
    report = check(log()._replace(action=action), BOX)
    (finding,) = [one for one in report if one.code == "few_values"]
    assert finding.count == 2
    assert "(dose (mg): 1, 2; rate: -1, 0, 1)" in finding.sentence


def piled(low: float = 0.0) -> RawLog:
    dose = np.where(STEP % 3 == 0, low, log().action[:, 0])
    return with_cells("action", np.s_[:, 0], dose)


def test_a_logarithm_is_offered_for_a_pile_at_the_low_edge():
    (finding,) = check(piled(), BOX)
    assert finding.code == "at_edge" and finding.count == 80
    assert "dose (mg) lies at the low edge of the box in 33.3 % of the rows" in str(finding)
    line = finding.way_out.partition("under [columns], ")[2]
    assert line == 'dose = { unit = "mg", log = 0.05 }'
    assert tomllib.loads(line)["dose"]["log"] > 0
    done = (Column("dose", "mg", Transform("log", 0.05)), Column("rate"))
    (finding,) = check(piled()._replace(action_columns=done), BOX)
    assert finding.code == "at_edge" and "[columns]" not in finding.way_out


def test_the_offered_offset_fits_a_negative_box_and_any_name():
    columns = (Column("insulin dose"), Column("rate"))
    box = Box((-2.0, -1.0), (5.0, 1.0), 0.9)
    (finding,) = check(piled(-2.0)._replace(action_columns=columns), box)
    line = finding.way_out.partition("under [columns], ")[2]
    (offset,) = [value["log"] for value in tomllib.loads(line).values()]
    assert line.startswith('"insulin dose" = {') and 2 < offset < 2.2
    columns = (Column("dose", "", Transform("log", offset)), columns[1])
    raw = piled(-2.0)._replace(action_columns=columns)
    assert assemble("x", raw, box).rows == ROWS - 1, "the box allows this logarithm"  # one is cut


def test_the_offered_line_shows_names_of_any_alphabet():
    columns = (Column("Dosis für μ", "µg/m²"), Column("rate"))
    (finding,) = check(piled()._replace(action_columns=columns), BOX)
    line = finding.way_out.partition("under [columns], ")[2]
    assert line == '"Dosis für μ" = { unit = "µg/m²", log = 0.05 }'
    assert tomllib.loads(line)["Dosis für μ"] == {"unit": "µg/m²", "log": 0.05}


def test_a_pile_at_the_high_edge_or_at_both_gets_no_logarithm():
    high = with_cells("action", np.s_[::3, 0], 5.0)
    both = with_cells("action", np.s_[:, 0], np.clip(log().action[:, 0] * 3 - 5, 0, 5))
    for raw, count in ((high, 1), (both, 2)):
        found = check(raw, BOX)
        assert found.codes == ("at_edge",) * count
        assert "[columns]" not in str(found)


def test_a_pile_inside_a_box_that_is_too_wide_is_found():
    """Doses of 0 in a box that reaches below them."""
    wide = Box((-5.0, -1.0), (5.0, 1.0), 0.9)
    below, pile = check(piled(), wide)
    assert (below.code, pile.code) == ("wide_box", "at_edge")
    assert "dose (mg) is never below 0, but 50 % of the box" in str(below)
    assert "lies at its lowest logged value in 33.3 % of the rows" in str(pile)
    assert check(log(), wide).codes == ("wide_box",)


def test_without_names_the_report_says_so_once():
    bare = piled()._replace(observation_columns=(), action_columns=())
    text = str(check(bare, BOX))
    assert text.count("has no names") == 1
    assert text.endswith("The log has no names for its action columns: action_0 is the first.")
    assert 'Transform("log", 0.05)' in text
    assert "no names" not in str(check(piled(), BOX))
    assert "no names" not in str(check(log()._replace(action_columns=()), BOX))


def test_a_scaled_column_is_not_large():
    large = with_cells("observation", np.s_[:, 0], 1e7 * DRAW.normal(size=ROWS))
    assert check(large, BOX).codes == ("observation_scale",)
    columns = (Column("glucose", "", Transform("scale", 1e-6)), *COLUMNS["observation_columns"][1:])
    assert check(large._replace(observation_columns=columns), BOX).codes == ()


def test_one_episode_and_equal_rewards_are_reported():
    one = assemble("x", log()._replace(terminal=STEP == ROWS - 1, cut=STEP == ROWS - 1), BOX)
    assert check(one).codes == ("one_episode",)
    assert "has only one episode" in str(check(one))
    equal = check(log()._replace(reward=np.full(ROWS, -1.0)), BOX)
    assert "reward is -1 in every row" in str(equal) and equal.codes == ("constant",)


def test_a_robot_log_is_clean():
    """A linear system with saturated torques, cut at a time limit; actions are clipped at ±1."""
    draw = np.random.default_rng(0)
    observation, action = np.zeros((4000, 6)), np.zeros((4000, 2))
    state = np.zeros(6)
    for row in range(4000):
        if row % 400 == 0:
            state = draw.normal(size=6)
        action[row] = np.clip(draw.normal(0, 0.4, 2), -1, 1)
        observation[row] = state
        state = 0.95 * state + 0.3 * np.tile(action[row], 3) + 0.02 * draw.normal(size=6)
    cut = np.arange(4000) % 400 == 399
    reward = observation[:, 0] - 0.1 * (action**2).sum(axis=1)
    raw = RawLog(observation, action, reward, np.zeros(4000, bool), cut)
    assert check(assemble("robot", raw, Box((-1.0,) * 2, (1.0,) * 2, 0.99))).codes == ()
