"""Tables of states in, tables of decisions out: no row is dropped, and bad cells are named."""

import numpy as np
import pyarrow.parquet as arrow_parquet
import pytest
from pyarrow import csv as arrow_csv

import fat2thin
from fat2thin.cli.main import main
from fat2thin.data.states import read_states

TOML = """
files = ["log.csv"]
episode = "patient"
observation = ["weight", "sex", "level"]
action = ["dose"]
reward = "reward"
action_low = 0
action_high = 2
discount = 0.9
[columns]
sex = { categories = ["f", "m"], encode = "one-hot" }
level = { log = 0.01 }
"""
STATES = """id,level,weight,sex
a,1.0,70,f
b,,71,m
c,1.1,heavy,f
d,1.0,70,x
e,50,400,m
f,-3,70,f
g,1,nan,m
h,0.9,72,m
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("decisions"), np.random.default_rng(0)
    lines = ["patient,weight,sex,level,dose,reward"]
    for patient in range(20):
        for _ in range(10):
            weight, level, dose = 70 + 8 * draw.normal(), draw.uniform(0.5, 2), draw.uniform(0, 2)
            sex, reward = "fm"[patient % 2], -((dose - level / 2) ** 2)
            lines.append(f"{patient},{weight:.2f},{sex},{level:.3f},{dose:.3f},{reward:.3f}")
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    (folder / "log.toml").write_text(TOML)
    (folder / "states.csv").write_text(STATES)
    options = {"steps": 2, "seeds": 2, "settings_from": "default", "hidden": (4,)}
    fat2thin.train("fttpo", str(folder / "log.csv"), out=folder / "run", **options)
    return folder


def decide(folder, *more):
    main(["decide", str(folder / "run"), str(folder / "states.csv"), "--disagreement", "1", *more])


def test_every_row_of_the_table_gets_a_decision(folder, capsys):
    out = folder / "decisions.csv"
    decide(folder, "--out", str(out), "--keep", "id")
    found = arrow_csv.read_csv(out).to_pydict()
    assert found["id"] == list("abcdefgh") and found["row"] == list(range(1, 9))
    reasons = dict(zip(found["id"], found["reasons"], strict=True))
    assert reasons["b"] == "invalid input: level is missing"
    assert reasons["c"] == "invalid input: weight is 'heavy', which cannot be used"
    assert reasons["d"].startswith("invalid input: sex is 'x'")
    assert reasons["e"].startswith("outside the log")
    assert reasons["f"] == "invalid input: level has -3, too small for log(value + 0.01)"
    assert reasons["g"].startswith("invalid input: weight is 'nan'")
    policy = fat2thin.load(folder / "run").policy()
    expected = policy.act([[70.0, 1.0, 0.0, 1.0], [72.0, 0.0, 1.0, 0.9]])
    acts = [place for place, one in enumerate(found["decision"]) if one == "act"]
    known = {0: expected[0, 0], 7: expected[1, 0]}
    assert acts and set(acts) <= {0, 7}
    for place in acts:
        assert found["dose"][place] == pytest.approx(float(known[place]), rel=1e-6)
        assert found["dose_low"][place] <= found["dose"][place] <= found["dose_high"][place]
    shown = capsys.readouterr().out
    assert "states.csv, row 3 (line 4): weight is 'heavy'" in shown
    with pytest.raises(SystemExit, match="--overwrite replaces it"):
        decide(folder, "--out", str(out))


@pytest.mark.parametrize("rule", ["median", "consensus"])
def test_seeds_are_combined_by_the_rule_that_is_asked_for(folder, rule):
    out = folder / f"{rule}.csv"
    decide(folder, "--out", str(out), "--ensemble", rule)
    first = arrow_csv.read_csv(out).to_pylist()[0]
    policy = fat2thin.load(folder / "run").policy(ensemble=rule)
    low, high = policy.support([[70.0, 1.0, 0.0, 1.0]])
    assert first["decision"] == "act"
    assert first["dose_low"] == pytest.approx(float(low[0, 0]), abs=1e-6)
    assert first["dose_high"] == pytest.approx(float(high[0, 0]), abs=1e-6)


def test_parquet_in_and_out_decides_the_same(folder):
    table = arrow_csv.read_csv(folder / "states.csv")
    arrow_parquet.write_table(table, folder / "states.parquet")
    out = folder / "decisions.parquet"
    main(["decide", str(folder / "run"), str(folder / "states.parquet"), "--out", str(out)])
    decide(folder, "--out", str(folder / "again.csv"))
    found, again = arrow_parquet.read_table(out), arrow_csv.read_csv(folder / "again.csv")
    assert found.num_rows == 8
    for name in ("distance", "disagreement"):
        np.testing.assert_allclose(*(one[name].to_numpy() for one in (found, again)), rtol=1e-6)


def test_no_rows_are_decided_and_the_states_are_never_overwritten(folder):
    empty, out = folder / "empty.csv", folder / "none.csv"
    empty.write_text("weight,sex,level\n")
    main(["decide", str(folder / "run"), str(empty), "--out", str(out)])
    assert arrow_csv.read_csv(out).num_rows == 0
    with pytest.raises(SystemExit, match="must be different files"):
        main(["decide", str(folder / "run"), str(empty), "--out", str(empty), "--overwrite"])
    policy = fat2thin.load(folder / "run").policy()
    assert policy.decide(np.zeros((2, 0, 4))).action.shape == (2, 0, 1)


def test_a_missing_column_is_an_error_that_names_it(folder):
    wrong = folder / "wrong.csv"
    wrong.write_text(STATES.replace("weight", "wieght"))
    out = folder / "never.csv"
    message = r"wrong.csv: has no column 'weight' \(did you mean 'wieght'\?\)"
    with pytest.raises(SystemExit, match=message):
        main(["decide", str(folder / "run"), str(wrong), "--out", str(out)])
    assert not out.exists()


def test_ordinal_texts_need_the_toml(folder):
    policy = fat2thin.load(folder / "run").policy()
    columns = tuple(one for one in policy.observation_columns if one.name == "level")
    toml = folder / "ordinal.toml"
    ordinal = 'level = { categories = ["low", "high"], encode = "ordinal" }'
    toml.write_text(TOML.replace("level = { log = 0.01 }", ordinal))
    plain = tuple(type(one)(one.name) for one in columns)
    file = folder / "ordinal.csv"
    file.write_text("level\nhigh\nlow\nmiddle\n")
    found = read_states(file, plain, toml)
    np.testing.assert_array_equal(found.observation[:, 0], [1.0, 0.0, np.nan])
    assert found.faults == ("", "", "level is 'middle', which cannot be used")
    assert all(read_states(file, plain).faults)
    file.write_text("level\n")
    assert read_states(file, plain).observation.shape == (0, 1)


def test_limits_are_obeyed_and_named(folder, capsys):
    limits, out = folder / "limits.toml", folder / "limited.csv"
    limits.write_text(
        '[limits]\ncap = "dose <= 0.02 * weight"\nrate = "abs(dose - last_dose) <= 0.05"\n'
        'heavy = "no action when weight > 79"\nfloor = "dose >= 1.9 when weight < 61"\n'
    )
    states = folder / "rated.csv"
    states.write_text(
        "weight,sex,level,last_dose\n70,f,1,\n70,f,1,0.3\n80,f,1,0.3\n60,m,1,0.3\n70,f,1,much\n"
    )
    words = [str(folder / "run"), str(states), "--limits", str(limits), "--distance", "1e6"]
    main(["decide", *words, "--disagreement", "1e6", "--out", str(out)])
    found = arrow_csv.read_csv(out).to_pydict()
    assert found["decision"] == ["act", "act", "refer", "refer", "refer"]
    assert found["dose"][1] == pytest.approx(0.3, abs=0.0501)
    assert 0.25 <= found["dose_low"][1] <= found["dose_high"][1] <= 0.35
    assert found["reasons"][2] == "limits forbid acting: heavy: no action when weight > 79"
    assert found["reasons"][3].startswith("limits conflict: ")
    assert "floor: dose >= 1.9 when weight < 61" in found["reasons"][3]
    assert found["reasons"][4] == "invalid input: last_dose is 'much', which cannot be used"
    assert "row 5 (line 6): last_dose is 'much'" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"states.csv.*'last_dose'.*is missing, and limits depend"):
        decide(folder, "--limits", str(limits), "--out", str(folder / "never.csv"))
    assert not (folder / "never.csv").exists()


def test_nearest_logged_steps_are_shown_and_no_column_replaces_another(folder):
    log, states, out = (folder / name for name in ("named.csv", "asked.csv", "named_out.csv"))
    lines, draw = ["who,decision,distance,reward,return,limit"], np.random.default_rng(0)
    for row in range(200):
        values = ",".join(f"{value:.4f}" for value in draw.uniform(size=5))
        lines.append(f"{row // 10},{values}")
    log.write_text("\n".join(lines) + "\n")
    file = np.loadtxt(log, delimiter=",", skiprows=1)
    toml = TOML.partition("[columns]")[0]
    for old, new in (
        ("log.csv", "named.csv"), ("patient", "who"), ('["dose"]', '["return", "limit"]'),
        ('["weight", "sex", "level"]', '["decision", "distance"]'),
    ):  # fmt: skip
        toml = toml.replace(old, new)
    log.with_suffix(".toml").write_text(toml)
    options = {"settings_from": "default", "hidden": (4,), "seeds": 1, "holdout": 0.0}
    run = fat2thin.train("bc", str(log), out=folder / "named", steps=2, **options)
    limits = folder / "colon.toml"
    limits.write_text('[limits]\n"a:b" = "return <= 0.5"\n"a:c" = "limit <= 0.5"\n')
    states.write_text("decision,distance\n0.5,0.5\nx,0.5\n0.1,0.9\n")
    cases = folder / "cases.parquet"
    words = ["--log", str(log), "--cases", str(cases), "--nearest", "3", "--keep", "decision"]
    words += ["--limits", str(limits), "--distance", "1e6", "--out", str(out)]
    main(["decide", str(folder / "named"), str(states), *words])
    found = arrow_csv.read_csv(out).to_pydict()
    assert found["kept_decision"] == ["0.5", "x", "0.1"]
    assert found["decision"] == ["act", "refer", "act"]
    assert found["limits"] == ["a:b, a:c", "", "a:b, a:c"]
    near = arrow_parquet.read_table(cases).to_pydict()
    assert near["row"] == [1, 1, 1, 3, 3, 3] and near["case"] == [1, 2, 3] * 2
    # The data set lacks the last row of every episode, whose next observation is unknown.
    rows = np.asarray(near["log_row"]) - 1
    names = ("decision", "logged_distance", "reward", "logged_return", "limit")
    for name, column in zip(names, file.T[1:], strict=True):
        np.testing.assert_allclose(near[name], column[rows], rtol=1e-6)
    for row, later in zip(rows, near["return"], strict=True):
        rest = file[row : row // 10 * 10 + 9, 3]
        assert later == pytest.approx(np.sum(rest * 0.9 ** np.arange(len(rest))), rel=1e-5)
    policy = run.policy().with_limits(limits)
    known, place = np.arange(200) % 10 < 9, policy.referral.coverage.place
    gaps = np.linalg.norm(place(file[known, 1:3]) - place(np.array([0.5, 0.5])), axis=1)
    np.testing.assert_allclose(near["distance"][:3], np.sort(gaps)[:3], rtol=1e-4)
    low, high = map(np.asarray, policy.support(np.array([0.5, 0.5])))
    doses = file[rows[:3], 4:]
    assert near["inside"][:3] == ((low <= doses) & (doses <= high)).all(axis=1).tolist()
    for asked, part in ((0, slice(0, 3)), (2, slice(3, 6))):
        for name, column in (
            ("policy_cases_return", "logged_return"), ("cases_limit", "limit"),
            ("cases_return", "return"), ("cases_inside", "inside"),
        ):  # fmt: skip
            assert found[name][asked] == pytest.approx(np.mean(near[column][part]), rel=1e-6)
        assert found["cases_distance"][asked] == pytest.approx(near["distance"][part][-1])
