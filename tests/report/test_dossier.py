"""The dossier: its numbers against independent computations, its files, and what is refused."""

import dataclasses
import hashlib
import itertools
import json
import math
import shlex
import shutil
import types

import numpy as np
import pytest

import fat2thin
from fat2thin import data
from fat2thin.cli.main import main
from fat2thin.data.operations import learned_and_held_out
from fat2thin.evaluation.value import PolicyValue, value
from fat2thin.evaluation.value_rows import ValueRow
from fat2thin.report.dossier import assemble, behaviour, bounds, provenance, worth
from fat2thin.report.dossier.answer import QUESTIONS, number, percent, plain_numbers
from fat2thin.report.dossier.assemble import Request, make_dossier
from fat2thin.report.dossier.behaviour import describe
from fat2thin.report.dossier.influence import measure_influence
from fat2thin.report.dossier.subject import open_subject
from fat2thin.report.dossier.twin import verify_dossier
from fat2thin.runs.dossier_file import dossier_about
from fat2thin.safety import verify_certificate
from fat2thin.safety.certify import Found
from report.dossier_runs import LIMITS, short_run, write_log

SHORT = 0.01  # minutes: too few for the value and the certificate


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return short_run(tmp_path_factory.mktemp("dossier"))


@pytest.fixture(scope="module")
def made(run):
    return make_dossier(run, Request(run.folder, minutes=SHORT))


@pytest.fixture(scope="module")
def content(made):
    return json.loads(made.twin.read_text())


@pytest.fixture(scope="module")
def held_out(run):
    return learned_and_held_out(data.load(run.spec.dataset), 0.4, 0)[1]


def test_the_twin_has_every_question_and_only_numbers_that_json_has(content):
    assert [one["question"] for one in content["answers"]] == [*QUESTIONS]
    assert all(one["sentence"] and one["how"] for one in content["answers"])
    text = json.dumps(content)
    assert "NaN" not in text and "Infinity" not in text
    assert len(content["findings"]) == 13


def test_facts_agree_with_the_policy_asked_row_by_row(run, content, held_out):
    policy, doing = run.policy(), content["answers"][0]["facts"]
    decided = [policy.decide(row) for row in held_out.observation]
    acts = np.array([not one.referred for one in decided])
    low, high = (np.asarray(end, float) for end in policy.support(held_out.observation))
    logged = np.asarray(held_out.action, float)
    inside = acts & ((low <= logged) & (logged <= high))[:, 0]
    assert doing["inside"] == pytest.approx(inside.mean(), abs=1e-9)
    assert content["answers"][4]["facts"]["referred"] == pytest.approx(1 - acts.mean())
    every = np.asarray(data.load(run.spec.dataset).action, float)
    given = logged[:, 0] - every.min()
    carried = given[inside].sum() / given.sum()
    assert doing["carried"] == pytest.approx(carried, rel=1e-6)
    assert doing["proportion"] == pytest.approx(carried / inside.mean(), rel=1e-6)
    assert doing["largest_found"] == pytest.approx([high[acts].max()])
    centres = np.stack(
        [np.asarray(run.policy(seed).act(held_out.observation)) for seed in (0, 1, 2)]
    )
    apart = np.ptp(centres, axis=0)[:, 0] / 2.0  # the box is 2 mg wide
    agrees = content["answers"][5]["facts"]
    assert agrees["median_disagreement"] == pytest.approx(np.median(apart), abs=1e-5)


def test_columns_are_ranked_by_how_far_each_alone_moves_the_band(run):
    subject = open_subject(run)
    found = measure_influence(subject)
    rows = np.unique(np.linspace(0, subject.judged.rows - 1, 200).astype(int))
    states = np.asarray(subject.judged.observation[rows])
    # Few held-out episodes may all have the same value, so the levels are those of the whole log.
    values = np.quantile(
        subject.log.observation[:, 0], np.linspace(0.05, 0.95, 9), method="nearest"
    )
    ends = []
    for one in values:
        changed = states.copy()
        changed[:, 0] = one
        ends.append(np.asarray(run.policy().support(changed)[1]))
    assert found.highest[0] == pytest.approx(np.ptp(ends, axis=0).mean(axis=0), rel=1e-4)
    total = (found.highest + found.centre)[:, 0]
    assert found.order.tolist() == np.argsort(-total).tolist()


def test_typical_states_are_no_single_rows(run, content):
    table = content["answers"][0]["tables"]["typical_states"]["rows"]
    assert 1 <= len(table) <= 8
    assert min(row["logged steps"] for row in table) >= 20
    log = data.load(run.spec.dataset)
    for row in table:
        away = np.abs(log.observation[:, 0] - row["severity (points)"]) + np.abs(
            log.observation[:, 1] - row["weight (kg)"]
        )
        assert away.min() > 1e-4
    centres = [row["dose (mg): centre"] for row in table]
    assert centres == sorted(centres)


def test_no_row_of_a_patient_without_being_asked(run, made, tmp_path):
    log = data.load(run.spec.dataset)
    page = made.page.read_text()
    assert not [one for one in log.observation[:, 1].tolist() if f"{one:.7g}" in page]
    asked = Request(run.folder, minutes=SHORT, show_cases=True)
    shown = make_dossier(run, asked, tmp_path / "cases.html")
    cases = json.loads(shown.twin.read_text())["answers"][4]["tables"].get("referred_cases")
    assert cases is not None and all("reasons" in row for row in cases["rows"])


def test_parts_without_time_are_named_with_their_command(content, made):
    value, certificate = content["answers"][3], content["answers"][1]
    assert value["not_run"][0]["command"].startswith("fat2thin value ")
    assert "s were left" in value["not_run"][0]["why"]
    assert certificate["not_run"]
    assert "Not run:" in made.page.read_text()
    assert made.verdict == "needs attention" or "fails" in str(made.findings)


def test_the_page_names_its_twin_and_loads_nothing(made):
    page = made.page.read_text()
    assert hashlib.sha256(made.twin.read_bytes()).hexdigest() == made.sha256
    assert made.sha256 in page and made.page.stat().st_size < 5e6
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    assert "default-src 'none'" in page


def test_verify_finds_what_no_longer_belongs_together(run, made, tmp_path, capsys):
    assert verify_dossier(made.twin).passed
    main(["verify", str(made.twin)])
    assert "ok" in capsys.readouterr().out
    other = tmp_path / "other"
    other.mkdir()
    for name in ("dossier.json", "dossier.html"):
        (other / name).write_bytes((run.folder / name).read_bytes())
    assert verify_dossier(other / "dossier.json")["run"].result == "FAILED"
    (other / "dossier.html").write_text("another page")
    assert verify_dossier(other / "dossier.json")["page"].result == "FAILED"
    changed = json.loads(made.twin.read_text())
    changed["hashes"]["log"] = "0" * 64
    (other / "dossier.json").write_text(json.dumps(changed))
    assert verify_dossier(other / "dossier.json")["log"].result == "FAILED"


def test_a_run_trained_again_is_another_run(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    run = fat2thin.load(tmp_path / "run")
    made = make_dossier(run, Request(run.folder, minutes=SHORT))
    assert dossier_about(run.folder, run.policy()) == made.twin
    assert dossier_about(run.folder, run.policy(seed=0)) is None
    state = run.folder / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-4] + b"\0\0\0\1")
    assert verify_dossier(made.twin)["run"].result == "FAILED"
    about = run.folder / "run.json"
    about.write_text(about.read_text().replace('"seconds": ', '"seconds": 1'))
    assert dossier_about(run.folder, run.policy()) is None
    assert "another run" in verify_dossier(made.twin)["run"].what


def content_of(made):
    return json.loads(made.twin.read_text())


def test_the_certified_range_holds_in_random_states_and_is_in_the_tables(run):
    subject = open_subject(run)
    influence = measure_influence(subject)
    facts = describe(subject, influence).facts
    answer, made = bounds.largest_dose(subject, influence, facts, 60.0, "again")
    draw, ranges = np.random.default_rng(0), np.array(subject.ranges)
    states = draw.uniform(ranges[:, 0], ranges[:, 1], (10_000, 3))
    low, high = (np.asarray(end)[:, 0] for end in run.policy().support(states))
    assert answer.facts["certified_low"][0] <= low.min()
    assert high.max() <= answer.facts["certified_high"][0] == made.high[0]
    assert answer.facts["inside"] is True and not answer.not_run
    assert "nothing tighter" not in answer.sentence
    policy = subject.policy
    ends = np.array(policy.low, float), np.array(policy.high, float)
    worst = {"dose": (made.worst["dose"][0]._replace(value=0.9), Found(1.25, {}))}
    loose = dataclasses.replace(made, low=ends[0], high=ends[1], worst=worst)
    sentence = bounds._with(subject, loose, [], {}).sentence
    assert "the whole action box: nothing tighter" in sentence and "found is 1.25 mg" in sentence
    first, *_ = influence.varied(subject)
    name, label = (getattr(run.columns.observation[first], one) for one in ("name", "label"))
    table = answer.tables[f"by_{name}"]
    for row in table.rows:
        ends = [float(end) for end in row[label].split(" to ")]
        there = (states[:, first] >= ends[0]) & (states[:, first] <= ends[1])
        assert row["proven: never below"] <= low[there].min() + 1e-6
        assert row["proven: never above"] >= high[there].max() - 1e-6
    assert len(table.rows) == 4


@pytest.mark.slow
@pytest.mark.long
def test_a_whole_dossier_has_value_and_certificate_and_verifies(run, tmp_path):
    made = make_dossier(run, Request(run.folder, minutes=3.0), tmp_path / "whole.html")
    content = content_of(made)
    valued = value(run)
    assert content["answers"][3]["facts"]["gain_low"] == valued.policy.difference_bound
    assert content["answers"][3]["facts"]["gain"] == valued.policy.difference
    assert content["certificate"] == "whole.certificate.json"
    found = verify_dossier(made.twin)
    assert {one.result for one in found.checks} == {"ok"}
    assert verify_certificate(tmp_path / "whole.certificate.json").passed
    (tmp_path / "whole.certificate.json").write_text("{}")
    assert verify_dossier(made.twin)["certificate"].result == "FAILED"


def test_a_value_gives_sentence_facts_and_tables(run):
    own = ValueRow(
        "policy", "policy", "marginal", estimate=1.5, low=1.0, high=2.0, difference=0.5,
        difference_low=0.1, difference_high=0.9, difference_bound=0.2,
    )  # fmt: skip
    practice = ValueRow("practice", "practice", "returns", estimate=1.0, low=0.8, high=1.2)
    given = {field.name: () for field in dataclasses.fields(PolicyValue)} | {
        "rows": (own, practice), "log": "log", "log_sha256": "", "steps": 80, "episodes": 10,
        "seen_episodes": 0, "horizon": 8, "discount": 0.9, "reward_unit": "points",
        "allowed": (0.0, 5.0), "confidence": 0.9, "interval": "approximate", "guarantee": None,
        "confounding": None, "estimator": "marginal", "assumption": "all is seen",
        "answerable": True, "verdict": "better", "estimates": (own,),
    }  # fmt: skip
    subject = open_subject(run)
    answer = worth._answer(subject, PolicyValue(**given).to_json(), {"calibration": 0.4})
    assert "a gain of 0.5 points, at least 0.2 points with 90 % confidence" in answer.sentence
    assert "It is better than practice" in answer.sentence
    known = {name: answer.facts[name] for name in ("gain", "gain_low", "gain_high", "calibration")}
    assert known == {"gain": 0.5, "gain_low": 0.2, "gain_high": 0.9, "calibration": 0.4}
    assert answer.tables["value"]["policy"]["at least (one-sided 90 %)"] == 0.2
    refused = dataclasses.replace(own, estimate=None, refused="too few rows")
    given["rows"] = refused, practice
    answer = worth._answer(subject, PolicyValue(**given).to_json(), {})
    assert answer.sentence == "The log cannot say: too few rows."


def test_an_export_made_afterwards_names_the_dossier(run, made, capsys):
    main(["export", str(run.folder)])
    assert f"names the dossier {made.twin}" in capsys.readouterr().out
    metadata = json.loads((run.folder / "export" / "metadata.json").read_text())
    assert metadata["dossier"]["sha256"] == made.sha256
    main(["verify", str(run.folder / "export"), "--dossier", str(made.twin)])


def test_an_export_names_no_dossier_of_another_policy(run, made, tmp_path):
    words = ["export", str(run.folder), "--dossier", str(made.twin), "--out", str(tmp_path / "x")]
    with pytest.raises(SystemExit, match="is the dossier of another policy, or of this one with"):
        main([*words, "--distance", "2"])
    assert not (tmp_path / "x").exists()
    main(words)


def test_limits_are_put_around_the_policy(run, tmp_path):
    limits = tmp_path / "limits.toml"
    limits.write_text(LIMITS)
    asked = Request(run.folder, limits=limits, minutes=SHORT)
    found = content_of(make_dossier(run, asked, tmp_path / "limited.html"))
    answer = found["answers"][2]
    assert "cap (dose <= 0.8 when severity > 2)" in answer["sentence"]
    assert answer["facts"]["limits"] and found["answers"][0]["facts"]["smallest_found"][0] >= 0.1


def test_another_log_is_judged_without_the_rows_that_were_learned(run, tmp_path):
    other = write_log(tmp_path, seed=5, episodes=20)
    subject = open_subject(run, str(other))
    assert subject.unseen and subject.judged.rows == data.load(str(other)).rows
    with pytest.raises(ValueError, match="does not fit the run"):
        open_subject(run, "treatment/cubic@3")


def test_what_cannot_have_a_dossier_is_one_clear_line(run, tmp_path, capsys):
    named = dataclasses.replace(run.spec, dataset="treatment/quadratic")
    with pytest.raises(ValueError, match=r"about one policy from one log.*fat2thin data make"):
        open_subject(dataclasses.replace(run, spec=named))
    page = tmp_path / "mine.html"
    page.write_text("my own page")
    with pytest.raises(SystemExit, match="is not the page of a dossier"):
        main(["dossier", str(run.folder), "--out", str(page)])
    assert page.read_text() == "my own page"
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="file"):
        main(["dossier", str(run.folder), "--out", str(tmp_path / "file" / "dossier.html")])
    with pytest.raises(SystemExit, match="holds no run"):
        main(["dossier", str(run.folder), "--against", str(tmp_path)])
    with pytest.raises(SystemExit, match="minutes must be above 0"):
        main(["dossier", str(run.folder), "--minutes", "0"])
    with pytest.raises(SystemExit, match=r"folder .*none does not exist: create it"):
        main(["dossier", str(run.folder), "--out", str(tmp_path / "none" / "x.html")])
    with pytest.raises(SystemExit, match="nowhere holds no run: there is no such folder"):
        main(["dossier", str(run.folder), "--against", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit, match=r"as \.html"):
        main(["dossier", str(run.folder), "--out", str(tmp_path / "dossier.pdf")])
    with pytest.raises(ValueError, match="a folder"):
        make_dossier(dataclasses.replace(run, folder=None), Request(run.folder))


def test_an_interrupted_dossier_is_one_line_and_no_file(run, tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(worth, "worth", interrupted)
    (tmp_path / "a").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(
            ["dossier", str(run.folder), "--out", str(tmp_path / "a" / "d.html"), "--minutes=0.01"]
        )
    assert ended.value.code == 130 and "No dossier was written" in capsys.readouterr().err
    assert not [*(tmp_path / "a").iterdir()]


def test_the_command_that_repeats_a_run_makes_the_same_specification(run, tmp_path, capsys):
    command = provenance.training_command(run, str(tmp_path / "again"))
    words = shlex.split(command)
    assert words[:3] == ["fat2thin", "train", "fttpo"]
    main(words[1:])
    again = fat2thin.load(tmp_path / "again")
    assert again.spec == run.spec
    kept = (run.folder / "state.safetensors").read_bytes()
    assert (tmp_path / "again" / "state.safetensors").read_bytes() == kept


def test_tables_of_bounds_without_time_are_named_with_their_command(run, monkeypatch):
    subject = open_subject(run)
    influence = measure_influence(subject)
    facts = describe(subject, influence).facts
    passing = types.SimpleNamespace(perf_counter=itertools.count(step=1000.0).__next__)
    monkeypatch.setattr(bounds, "time", passing)
    answer, made = bounds.largest_dose(subject, influence, facts, 60.0, "certify RUN")
    assert made is not None and len(answer.not_run) == 2 == bounds.TABLED
    first = subject.policy.observation_columns[influence.varied(subject)[0]]
    assert answer.not_run[0].what == f"the bounds by {first.label}"
    assert answer.not_run[0].command.startswith(f"certify RUN --table {first.name}=")
    assert not [name for name in answer.tables if name.startswith("by_")]


def test_a_policy_that_cannot_give_the_large_doses_does_not_carry_what_was_given(run):
    subject = open_subject(run)
    influence = measure_influence(subject)
    logged = np.full((subject.judged.rows, 1), 0.01)
    logged[::10] = 2.0
    bands = dataclasses.replace(
        subject.bands, logged=logged, low=np.zeros_like(logged), high=np.full_like(logged, 0.02)
    )
    vars(subject)["bands"] = bands
    facts = describe(subject, influence).facts
    assert facts["inside"] == facts["covered"] == pytest.approx(0.9, abs=0.01)
    assert facts["carried"] < 0.1 and facts["proportion"] < 0.1
    # A narrow band that leaves out doses whatever their size is no reason against a policy.
    logged = np.random.default_rng(0).uniform(0.0, 2.0, logged.shape)
    low, high = np.full_like(logged, 0.9), np.full_like(logged, 1.1)
    vars(subject)["bands"] = dataclasses.replace(bands, logged=logged, low=low, high=high)
    facts = describe(subject, influence).facts
    assert facts["inside"] < 0.15 and facts["proportion"] == pytest.approx(1.0, abs=0.1)


def test_doses_at_the_end_of_a_band_are_inside_in_spite_of_rounding(run):
    """Regression: a policy that gave next to nothing had an unknown share of what was given."""
    subject = open_subject(run)
    influence = measure_influence(subject)
    logged = np.zeros((subject.judged.rows, 1))
    logged[::10] = 2.0
    low, high = np.full_like(logged, 2e-10), np.full_like(logged, 0.003)
    bands = dataclasses.replace(subject.bands, logged=logged, low=low, high=high)
    vars(subject)["bands"] = bands
    facts = describe(subject, influence).facts
    assert facts["inside"] == pytest.approx(0.9, abs=0.01) and facts["proportion"] == 0.0
    # Bands without any logged dose carry nothing, if there are enough of them to say.
    vars(subject)["bands"] = dataclasses.replace(bands, low=low + 1.0, high=high + 1.0)
    assert bands.acts.sum() >= behaviour.ENOUGH
    assert describe(subject, influence).facts["proportion"] == 0.0
    decision = dataclasses.replace(bands.decision, referred=np.arange(len(logged)) > 50)
    few = dataclasses.replace(bands, low=low + 1.0, high=high + 1.0, decision=decision)
    vars(subject)["bands"] = few
    assert np.isnan(describe(subject, influence).facts["proportion"])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 mg"), (-1.25, "−1.25 mg"), (12345.6, "12,346 mg"), (math.nan, "not known"),
     (None, "not known"), (2e-7, "2.00e−07 mg"), (0.000123, "0.000123 mg")],
)  # fmt: skip
def test_numbers_in_sentences(value, text):
    assert number(value, "mg") == text


def test_plain_numbers_have_the_digits_that_they_have():
    found = plain_numbers({"a": np.float32(0.1), "b": [np.nan, np.int64(3)], "c": np.bool_(True)})
    assert found == {"a": 0.1, "b": [None, 3], "c": True}
    assert percent(0.1234) == "12.3 %"


def test_a_dossier_is_replaced_but_nothing_else(run, made):
    again = make_dossier(run, Request(run.folder, minutes=SHORT))
    assert again.twin == made.twin
    assert content_of(again)["hashes"] == content_of(made)["hashes"]
    assert assemble.MINUTES >= 1
