"""The page of a dossier in a browser: a typed patient, tables, pictures, focus, narrow, print."""

import csv
import io
import json

import numpy as np
import pytest

from fat2thin import data
from fat2thin.data.coverage import summarise_states
from fat2thin.policies.decision import DISAGREE, OUTSIDE, Thresholds, with_referral
from fat2thin.policies.ensemble import ensemble_of
from fat2thin.report.dossier.assemble import Request, make_dossier
from fat2thin.report.dossier.interactive import typed_policy
from fat2thin.report.dossier.page import save_page
from fat2thin.report.dossier.subject import Subject
from report.browser import open_browser
from report.dossier_runs import LIMITS, STRANGE, short_run, write_log
from report.page_runs import hospital, hospital_run

EMPTY = {
    "title": "patient", "verdict": "needs attention", "version": "0", "command": "", "findings": [],
    "seconds": {}, "budget_minutes": 1.0, "answers": [
        {"question": "?", "sentence": "", "how": "", "facts": {}, "tables": {}, "picture": None,
         "not_run": []}
    ],
}  # fmt: skip
DECIDED = """
const answer = decided(found.policy, arguments[0]);
const end = (law, name) => (Number.isFinite(law[name]) ? law[name] : String(law[name]));
return {
  laws: answer.laws.map((law) => [end(law, "low"), law.centre, end(law, "high")]),
  distance: answer.distance, apart: answer.apart, overlap: answer.overlap,
  practice: answer.practice, reasons: answer.reasons,
};"""


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    # A name that would end the block of data, or be markup, if it were not escaped.
    return short_run(folder, write_log(folder, STRANGE.replace("/", "&")))


@pytest.fixture(scope="module")
def made(run):
    limits = run.folder.parent / "limits.toml"
    limits.write_text(LIMITS)
    return make_dossier(run, Request(run.folder, limits=limits, minutes=0.01))


@pytest.fixture
def opened(browser, made):
    browser.open(made.page)
    yield browser
    assert not browser.complaints()


def type_into(browser, values):
    inputs = browser.window.find_elements("css selector", "#patient-inputs input")
    for field, value in zip(inputs, values, strict=True):
        browser.run(
            "arguments[0].value = arguments[1];"
            "arguments[0].dispatchEvent(new Event('input', {bubbles: true}))", field, str(value)
        )  # fmt: skip


def test_it_loads_without_messages_and_without_requests(opened, made):
    assert opened.requests() == [made.page.as_uri()]
    assert opened.window.title.startswith("Dossier: fttpo on <&script><img")
    assert len(opened.window.find_elements("css selector", "main > section")) == 8
    assert opened.find(".verdict strong").text.lower() == made.verdict
    assert len(opened.window.find_elements("css selector", ".rules li")) == 13
    for place in (1, 5, 6):
        assert opened.window.find_elements("css selector", f"#picture-{place} svg")


def test_a_typed_patient_gets_the_answer_of_the_package(opened, run, made):
    policy = run.policy().with_limits(run.folder.parent / "limits.toml")
    log, draw = data.load(run.spec.dataset), np.random.default_rng(1)
    near = log.observation[draw.choice(log.rows, 12)]
    far = near[:4] * np.array([[1.0, 1.0, 30.0]])
    for state in np.concatenate([near, far]).astype(np.float64):
        answer = opened.run(DECIDED, state.tolist())
        low, high = (np.asarray(end) for end in policy.support(state))
        decision = policy.decide(state)
        np.testing.assert_allclose(answer["laws"][0][0], low[0], atol=2e-3)
        np.testing.assert_allclose(answer["laws"][0][2], high[0], atol=2e-3)
        np.testing.assert_allclose(answer["distance"], decision.distance, rtol=1e-3)
        np.testing.assert_allclose(answer["apart"], decision.disagreement, atol=1e-3)
        practice = policy.referral.coverage.practice(state.astype(np.float32))
        np.testing.assert_allclose(answer["practice"], practice, atol=1e-3)
        if abs(float(decision.distance) - 1) > 1e-2:
            outside = any("outside the log" in one for one in answer["reasons"])
            assert outside == bool(decision.because[OUTSIDE])
            assert bool(answer["reasons"]) == bool(decision.referred)


def test_typing_shows_band_limits_and_referral(opened):
    order = opened.run(
        "return found.policy.order.map((place) => found.policy.observations[place].name)"
    )
    usual = {"severity": 3.0, "weight": 70.0, "lactate": 1.5}
    type_into(opened, [usual[name] for name in order])
    text = opened.find("#patient-sentence").text
    assert "The policy" in text
    type_into(opened, [{**usual, "lactate": 900.0}[name] for name in order])
    text = opened.find("#patient-sentence").text
    assert text.startswith("The policy refers this patient to a person: outside the log")
    assert "Outside the logged range: lactate" in text
    assert "refer" in opened.find("#patient-table tbody").text
    type_into(opened, [{**usual, "lactate": -5.0}[name] for name in order])
    assert opened.find("#patient-sentence").text.startswith("Enter a number")
    assert opened.window.find_elements("css selector", "input[aria-invalid='true']")
    opened.find("#patient-reset").click()
    assert "The policy" in opened.find("#patient-sentence").text


def test_every_table_downloads_as_csv_with_all_digits(opened, made):
    script = """
    const done = arguments[arguments.length - 1];
    const texts = [];
    URL.createObjectURL = (blob) => { blob.text().then((text) => {
      texts.push(text);
      if (texts.length === total) done(texts);
    }); return "about:blank#"; };
    HTMLAnchorElement.prototype.click = () => {};
    const buttons = [...document.querySelectorAll("[data-table] button, #patient-data button")];
    const total = buttons.length;
    for (const button of buttons) button.click();
    """
    texts = opened.window.execute_async_script(script)
    twin = json.loads(made.twin.read_text())
    tables = [one for answer in twin["answers"] for one in answer["tables"].values()]
    assert len(texts) == len(tables) + 2  # the verdict and the patient
    influence = twin["answers"][0]["tables"]["columns"]["rows"]
    (text,) = [one for one in texts if one.startswith("column,")]
    rows = [*csv.DictReader(io.StringIO(text))]
    for found, kept in zip(rows, influence, strict=True):
        for name, value in kept.items():
            assert found[name] == value if isinstance(value, str) else float(found[name]) == value


def test_numbers_appear_on_hover_and_on_focus(opened):
    bar = opened.find("#picture-1 .band")
    opened.run("arguments[0].focus()", bar)
    tip = opened.find("#tip")
    assert tip.is_displayed() and "the policy gives" in tip.text
    opened.run("arguments[0].blur()", bar)
    assert not tip.is_displayed()
    cover = opened.find("#picture-5 .cover")
    opened.run(
        "const box = arguments[0].getBoundingClientRect();"
        "arguments[0].dispatchEvent(new MouseEvent('mousemove', {bubbles: true,"
        "clientX: box.left + box.width / 2, clientY: box.top + box.height / 2}))", cover
    )  # fmt: skip
    assert "severity" in tip.text or "weight" in tip.text or "lactate" in tip.text


def test_a_narrow_screen_does_not_scroll_sideways(opened):
    opened.narrow(380)
    opened.window.refresh()
    wide = opened.run("return [document.documentElement.scrollWidth, window.innerWidth]")
    opened.wide()
    assert wide[0] <= wide[1] == 380


def test_controls_and_pictures_have_names(opened):
    unnamed = opened.run("""
      const named = (node) => (
        node.labels?.length || node.textContent.trim() || node.getAttribute("aria-label"));
      const nodes = document.querySelectorAll("input, button, .panel svg, table");
      return [...nodes].filter((node) => !named(node)).length;
    """)
    assert unnamed == 0
    # Screen readers skip the parts of an image, so a picture with named parts is a group.
    parts = opened.run(
        "return [...document.querySelectorAll('svg [tabindex]')].map("
        "(node) => node.closest('svg').getAttribute('role'))"
    )
    assert {*parts} == {"group"}
    assert "all seeds together" in opened.find("#patient-key").text
    levels = opened.run("return [...document.querySelectorAll('h1, h2, h3')].map((h) => h.tagName)")
    assert levels[0] == "H1" and levels.count("H1") == 1 and levels.count("H2") == 8


def test_a_column_may_have_a_slash_in_its_name(browser, tmp_path):
    """Regression: the script stopped there, and the page had no pictures and no buttons."""
    table = {"title": "bounds", "rows": [{"kg/m²": "1", "dose": 2.0}], "notes": ["`code` & <b>"]}
    (answer,) = EMPTY["answers"]
    content = {**EMPTY, "answers": [{**answer, "tables": {"by_kg/m²": table}}]}
    save_page(tmp_path / "page.html", content, "no policy", "0")
    browser.open(tmp_path / "page.html")
    assert browser.find("[data-table='0/by_kg/m²'] button").text == "Download CSV"
    assert browser.find(".note code").text == "code" and "& <b>" in browser.find(".note").text
    assert not browser.complaints()


def test_pictures_are_drawn_anew_for_paper_and_long_labels_are_cut(opened):
    width = "return document.querySelector('#picture-1 svg').viewBox.baseVal.width"
    screen = opened.run(width)
    opened.run("window.dispatchEvent(new Event('beforeprint'))")
    assert opened.run(width) <= 704 < screen
    opened.run("window.dispatchEvent(new Event('afterprint'))")
    assert opened.run(width) == screen
    cut = opened.run("""
      const host = document.createElement("div");
      document.querySelector("main").append(host);
      const [panel] = panelsIn(host, [""]);
      const label = "a very long name ".repeat(40);
      const plot = new Plot(panel, { x: [0, 1], y: [0, 1], xLabel: label, yLabel: "y", label: "" });
      // The whole label is in the title that follows.
      const texts = [...plot.svg.querySelectorAll("text")].map((node) => node.firstChild.data);
      host.remove();
      return texts.filter((text) => text.startsWith("a very long")).map((text) => text.length);
    """)
    assert len(cut) == 1 and cut[0] < 300


@pytest.mark.parametrize("rule", ["consensus", "median"])
def test_two_actions_with_logarithms_agree_with_the_package(browser, tmp_path, rule):
    log, run = hospital(), hospital_run()
    members = run._scheduler.policies(run._scheduler.spread(run.states))["actor"]
    policy = run._with_columns(ensemble_of(members, rule))
    policy = with_referral(policy, summarise_states(log), Thresholds(disagreement=0.1))
    subject = Subject(run, policy, log, log, True, "the log")
    typed = typed_policy(subject, [0, 1, 2])
    assert not isinstance(typed, str)
    save_page(tmp_path / "page.html", EMPTY, typed, "0")
    browser.open(tmp_path / "page.html")
    for state in log.observation[::9].astype(np.float64):
        answer = browser.run(DECIDED, state.tolist())
        low, high = (np.asarray(end) for end in policy.support(state))
        ends = np.array([[law[0], law[2]] for law in answer["laws"]])
        box = np.asarray(policy.high) - np.asarray(policy.low)
        np.testing.assert_allclose(ends[:, 0] / box, low / box, atol=2e-3)
        np.testing.assert_allclose(ends[:, 1] / box, high / box, atol=2e-3)
        decision = policy.decide(state)
        np.testing.assert_allclose(answer["apart"], decision.disagreement, atol=1e-3)
        if abs(float(decision.disagreement) - 0.1) > 2e-3:
            disagree = any("seeds disagree" in one for one in answer["reasons"])
            assert disagree == bool(decision.because[DISAGREE])
    assert not browser.complaints()


def test_a_policy_that_is_too_large_says_so(browser, run, made, monkeypatch, tmp_path):
    monkeypatch.setattr("fat2thin.report.dossier.interactive.MOST_CHARACTERS", 10)
    content = json.loads(made.twin.read_text())
    subject = Subject(run, run.policy(), data.load(run.spec.dataset), hospital(), True, "the log")
    typed = typed_policy(subject, [0])
    assert isinstance(typed, str)
    save_page(tmp_path / "large.html", content, typed, "0")
    browser.open(tmp_path / "large.html")
    assert "too large for the page" in browser.find("#patient-note").text
    assert not browser.complaints()


def test_it_prints_on_paper_without_buttons(opened):
    opened.window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = opened.run("""
      const seen = (selector) => [...document.querySelectorAll(selector)].filter(
        (node) => node.offsetParent !== null).length;
      return [seen("button"), seen("h2"), seen("table")];
    """)
    opened.window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    printed = opened.window.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    assert shown[0] == 0 and shown[1] == 8 and shown[2] > 8
    assert len(printed["data"]) > 20_000
