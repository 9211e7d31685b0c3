import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin import data
from fat2thin.policies.families import (
    Beta,
    Deterministic,
    Head,
    HeavyStudent,
    HeavyTailed,
    Sparse,
    Squashed,
)
from fat2thin.report import page_policies
from fat2thin.report.page import save_page
from fat2thin.report.page_policies import law_of
from report.browser import open_browser
from report.page_runs import (
    SEED,
    STRANGE,
    hospital,
    hospital_run,
    other,
    run_on,
    treatment_run,
    two_coordinates,
    with_setting,
)

TYPED = [0.4, -1.3, 0.2, 2.1, -0.6, 0.0, 1.4, -0.9]


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def run():
    return treatment_run()


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    """Return a page with two runs of one algorithm, one of another, and a claim."""
    claim = {
        "claim": "C2", "statement": "it is best", "verdict": "holds", "effect": 1.25, "low": 0.5,
        "high": 2.0, "meaning": "a gap", "seeds": 10, "command": "=HYPERLINK(1)",
    }  # fmt: skip
    runs = [run, with_setting(run, temperature=0.9), other(run, algorithm="fttpo-spot")]
    return save_page(runs, tmp_path_factory.mktemp("page") / "page.html", [claim])


@pytest.fixture(scope="module")
def log():
    return two_coordinates()


@pytest.fixture(scope="module")
def two(log, tmp_path_factory):
    return run_on(log, tmp_path_factory.mktemp("logs"))


@pytest.fixture
def opened(browser, page):
    browser.open(page)
    yield browser
    assert not browser.complaints()


def test_the_page_loads_without_messages_or_requests(opened, page):
    assert opened.requests() == [page.as_uri()]
    assert not opened.complaints()
    text = opened.find("#sentence").text
    assert text.startswith("On treatment/quadratic, the highest of 3 final mean returns")
    assert len(opened.window.find_elements("css selector", "#curve-plots svg")) == 2


def test_curves_agree_with_the_runs_and_can_be_switched_off(opened, run):
    def shown():
        return {row["run"] for row in opened.data("#curve-data")}

    (last,) = [
        row
        for row in opened.data("#curve-data")
        if row["run"] == "fttpo" and row["policy"] == "policy that acts" and row["updates"] == "20"
    ]
    returns = run.evaluations["actor_sampled"].returns[-1]
    assert float(last["mean"]) == pytest.approx(np.mean(returns), rel=1e-4)
    assert shown() == {"fttpo", "fttpo (temperature 0.9)", "fttpo-spot"}

    whole, first = opened.window.find_elements("css selector", "#legend label")[:2]
    assert whole.text == "all fttpo" and first.text == "fttpo"
    before = opened.picture("#curve-plots")
    # With the keyboard, whose focus must not move.
    box = whole.find_element("tag name", "input")
    box.send_keys(" ")
    assert shown() == {"fttpo-spot"}
    assert opened.picture("#curve-plots") != before
    assert opened.window.switch_to.active_element == box
    first.click()
    assert shown() == {"fttpo", "fttpo-spot"}
    assert box.get_property("indeterminate")
    opened.choose("#way", "at its centre")
    (last,) = [
        row
        for row in opened.data("#curve-data")
        if row["run"] == "fttpo" and row["policy"] != "policy that acts" and row["updates"] == "20"
    ]
    returns = run.evaluations["proposal_centre"].returns[-1]
    assert float(last["mean"]) == pytest.approx(np.mean(returns), rel=1e-4)


def test_every_seed_can_be_selected(opened, run):
    entries = opened.find("#seed").find_elements("tag name", "option")
    assert [entry.text for entry in entries] == ["5", "3 (stopped)"]
    opened.choose("#seed", "3 (stopped)")
    rows = opened.data("#evolution-data")
    assert {row["seed"] for row in rows} == {"3"}
    low, _ = run.policy(3).support(run.jobs.observation_scale.mean[0])
    (row,) = [row for row in rows if row["policy"] == "actor" and row["updates"] == "20"]
    assert float(row["support low"]) == pytest.approx(float(low[0]), abs=1e-4)
    # A typed state stays, and is asked of the other seed.
    type_state(opened, TYPED)
    opened.choose("#seed", "5")
    low, _ = run.policy(SEED).support(jnp.asarray(TYPED))
    assert answers(opened)[0]["support low"] == pytest.approx([float(low[0])], abs=1e-3)


def test_arrow_keys_move_the_slider_of_updates(opened, run):
    slider = opened.find("#step")
    assert opened.find("#step-text").text == "after 20"
    pictures = {opened.picture("#evolution-plots")}
    for text in ("after 10", "before training"):
        slider.send_keys("\ue012")  # the arrow to the left
        assert opened.find("#step-text").text == text
        pictures.add(opened.picture("#evolution-plots"))
    assert len(pictures) == 3
    assert slider.get_attribute("aria-valuetext") == "before training"
    rows = opened.data("#evolution-data")
    state = run.jobs.observation_scale.mean[1]
    for step in (0, 10, 20):
        (row,) = [row for row in rows if row["policy"] == "actor" and row["updates"] == str(step)]
        low, high = run.policy(SEED, step).support(state)
        assert float(row["support low"]) == pytest.approx(float(low[0]), abs=1e-4)
        assert float(row["support high"]) == pytest.approx(float(high[0]), abs=1e-4)


def type_state(browser, values):
    if not browser.find("#typed").is_displayed():
        browser.find(".typed summary").click()
    inputs = browser.window.find_elements("css selector", "#typed input")
    for box, value in zip(inputs, values, strict=True):
        box.clear()
        box.send_keys(str(value))


def answers(browser, coordinate=0):
    """Return the values and the curves of the explorer by name."""
    places, curves = {}, {}
    for row in browser.data("#explorer-data"):
        if int(row["coordinate"]) != coordinate:
            continue
        action = float(row["action"]) if row["action"] else np.nan
        if row["value"]:
            curves.setdefault(row["what"], []).append((action, float(row["value"])))
        else:
            places.setdefault(row["what"], []).append(action)
    return places, {name: np.asarray(curve).T for name, curve in curves.items()}


def test_a_typed_state_gives_the_outputs_of_the_run(opened, run):
    before = opened.picture("#explorer-plots")
    type_state(opened, TYPED)
    assert opened.find("#explorer-state").get_property("value") == "6"
    assert opened.picture("#explorer-plots") != before
    places, curves = answers(opened)
    state = jnp.asarray(TYPED)
    actor, proposal = run.policy(SEED), run.proposal(SEED)
    low, high = actor.support(state)
    assert places["support low"] == pytest.approx([float(low[0])], abs=1e-3)
    assert places["support high"] == pytest.approx([float(high[0])], abs=1e-3)
    assert places["actor centre"] == pytest.approx([float(actor.act(state)[0])], abs=1e-3)
    for name, policy in (("actor", actor), ("proposal", proposal)):
        actions, density = curves[f"{name} density"]
        expected = np.exp(policy(state).log_prob(jnp.asarray(actions)[:, None]))
        assert len(actions) > 100 and np.max(expected) > 0.5
        np.testing.assert_allclose(density, expected, atol=1e-3 * np.max(expected))

    scale, critic = run.jobs.observation_scale, run.states.values.network
    actions, values = curves["Q"]
    seen = (state - scale.mean[1]) / scale.scale[1]
    rows = np.concatenate([np.tile(seen, (len(actions), 1)), actions[:, None]], axis=1)
    by_hand = []
    for member in (1, 2):
        features = rows
        for layer in (*critic.members.trunk.layers, critic.members.head):
            features = features @ layer.weight[1, member].T + layer.bias[1, member, None]
            features = features if layer is critic.members.head else np.maximum(features, 0.0)
        by_hand.append(features[:, 0])
    np.testing.assert_allclose(values, np.min(by_hand, axis=0), atol=1e-3)


def test_limits_are_those_of_the_run(browser, tmp_path):
    """Bands, cut densities, single actions and states without an action, in typed states."""
    rules = {
        "cap": "noradrenaline <= 0.5 when lactate > 2", "least": "noradrenaline >= 0.05",
        "linear": "fluids <= 0.8 * weight - 10", "rate": "abs(fluids - last_fluids) <= 5",
        "exact": "fluids == 30 when not (lactate < 6 or weight > 90)",
        "stop": "no action when `heart rate` > 150", "clash": "fluids >= 100 when weight < 60",
    }  # fmt: skip
    limited = hospital_run().with_limits(rules)
    browser.open(save_page([limited], tmp_path / "limits.html"))
    actor, proposal = limited.policy(0), limited.proposal(0)
    for state in ([1.0, 90, 80], [4.0, 70, 70], [7.0, 90, 85], [3.0, 160, 80], [1.5, 90, 55]):
        type_state(browser, state)
        seen = jnp.asarray(state, jnp.float32)
        acts = bool(actor.interval(seen, None).acts)
        text = browser.find("#explorer-sentence").text
        assert ("No action is allowed here" in text) != acts
        if not acts:
            assert ("stop (no action" in text) == (state[1] > 150)
            continue
        assert "are left out, since no last action is known" in text
        low, high = actor.support(seen, None)
        for place in (0, 1):
            places, curves = answers(browser, place)
            reach = float(actor.high[place] - actor.low[place])
            found = [places[f"support {end}"][0] for end in ("low", "high")]
            expected = [float(low[place]), float(high[place])]
            assert found == pytest.approx(expected, abs=2e-3 * reach), (state, place)
            if "proposal density" not in curves:
                assert state[0] == 7.0 and place == 1 and found == [30, 30]
                continue
            actions, density = curves["proposal density"]
            other = 1 - place
            rows = np.full((len(actions), 2), float(proposal.act(seen, None, None)[other]))
            rows[:, place] = np.clip(
                actions, *(float(e[place]) for e in proposal.support(seen, None))
            )
            parts = proposal(seen, None).base.base_dist.log_prob(
                jnp.asarray(rows) if place else jnp.log(jnp.asarray(rows) + 0.005)
            )[:, place]
            exact = np.exp(np.asarray(parts)) / (1.0 if place else rows[:, 0] + 0.005)
            np.testing.assert_allclose(density, exact, rtol=0.05, atol=0.01 * exact.max())
    assert "The 2 seeds differ by" in browser.find("#explorer-sentence").text
    assert not browser.complaints()


def test_a_typed_component_that_is_not_a_number_is_an_error_that_names_it(opened, run):
    """Once, an empty field counted as 0 as soon as another field was edited."""
    type_state(opened, TYPED)
    inputs = opened.window.find_elements("css selector", "#typed input")
    inputs[3].send_keys("\ue003" * 10)  # backspace
    inputs[5].send_keys("1")
    assert "observation 3 is not a finite number" in opened.find("#explorer-sentence").text
    assert not opened.window.find_elements("css selector", "#explorer-plots svg")
    assert not opened.find("#explorer-table").text and not opened.data("#explorer-data")
    marked = [box.get_attribute("aria-invalid") for box in inputs]
    assert marked == ["true" if column == 3 else "false" for column in range(8)]
    # Other controls redraw the page: there is still no output.
    opened.find("#zoom").click()
    assert not opened.window.find_elements("css selector", "#explorer-plots svg")
    inputs[1].send_keys("e999")
    text = opened.find("#explorer-sentence").text
    assert "observation 1 is not a finite number" in text
    assert "observation 3 is not a finite number" in text
    type_state(opened, TYPED)
    places, _ = answers(opened)
    low, _ = run.policy(SEED).support(jnp.asarray(TYPED))
    assert places["support low"] == pytest.approx([float(low[0])], abs=1e-3)


def test_logged_actions_are_those_of_the_nearest_states(opened):
    found = data.load("treatment/quadratic", SEED)
    places, _ = answers(opened)
    rows = np.linspace(0, found.rows - 1, 300).astype(int)
    state = opened.run("return found.runs[0].policies[0].states[0]")
    away = (found.observation[rows] - state) / np.std(found.observation, axis=0)
    nearest = rows[np.argsort(np.sum(away**2, axis=1))[:50]]
    expected = np.sort(found.action[nearest, 0])
    # States in the page have four digits, so the last of the fifty may differ.
    same = np.isclose(np.sort(places["logged action"])[:, None], expected, atol=1e-4).any(axis=0)
    assert len(places["logged action"]) == 50 and same.mean() >= 0.96


def test_every_coordinate_has_its_own_marginal(browser, two, log, tmp_path):
    browser.open(save_page([two], tmp_path / "two.html", logs={two.spec.dataset: log}))
    assert len(browser.window.find_elements("css selector", "#explorer-plots .panel")) == 2
    type_state(browser, [1.0, 2.5, 4.0])
    state = jnp.asarray([1.0, 2.5, 4.0])
    for coordinate in (0, 1):
        places, curves = answers(browser, coordinate)
        low, high = two.policy(two.spec.seeds[0]).support(state)
        assert places["support low"] == pytest.approx([float(low[coordinate])], abs=5e-3)
        assert places["support high"] == pytest.approx([float(high[coordinate])], abs=5e-3)
        actions, density = curves["proposal density"]
        base = two.proposal()(state).base_dist
        expected = np.exp(base.log_prob(jnp.asarray(actions)[:, None]))[:, coordinate]
        np.testing.assert_allclose(density, expected, atol=1e-3, rtol=1e-3)
    assert "nothing was measured" in browser.find("#curve-note").text
    assert not browser.complaints()


def test_q_is_the_smallest_of_three_normalised_critics(browser, log, tmp_path):
    run = run_on(log, tmp_path, "rebrac", critic_count=3)
    critic = page_policies._critic(run, 0)
    assert critic.members.trunk.norms and critic.members.head.bias.shape == (3, 1)
    browser.open(save_page([run], tmp_path / "three.html", logs={run.spec.dataset: log}))
    state = browser.run("return found.runs[0].policies[0].states[0]")
    expected = page_policies._values(run, {"seed": 0, "states": [state]}, critic)["values"][0]
    for coordinate in (0, 1):
        _, values = answers(browser, coordinate)[1]["Q"]
        np.testing.assert_allclose(values, expected[coordinate], atol=4e-3)
    assert not browser.complaints()


HOSPITAL_STATE = [3.5, 104.0, 71.0]


@pytest.fixture(scope="module")
def treated():
    return hospital_run(selected={"0": 12, "4": 20})


@pytest.fixture(scope="module")
def ward(browser, treated, tmp_path_factory):
    """Return the browser with the page of a log that has names, units and transforms."""
    path = tmp_path_factory.mktemp("ward") / "page.html"
    save_page([treated], path, logs={treated.spec.dataset: hospital()})

    def reopen():
        browser.open(path)
        return browser

    return reopen


@pytest.mark.parametrize("seed", [0, 4])
def test_a_transformed_policy_has_the_outputs_of_python_in_raw_units(ward, treated, seed):
    browser = ward()
    type_state(browser, HOSPITAL_STATE)
    browser.choose("#seed", str(seed))
    state = jnp.asarray(HOSPITAL_STATE)
    actor, box = treated.policy(seed), treated.program.problem
    law = actor(state)
    centre = np.asarray(actor.act(state), np.float64)
    for coordinate in (0, 1):
        places, curves = answers(browser, coordinate)
        for name, end in zip(("support low", "support high"), actor.support(state), strict=True):
            assert places[name] == pytest.approx([float(end[coordinate])], rel=2e-3)
        assert places["actor centre"] == pytest.approx([centre[coordinate]], rel=2e-3)
        # The coordinates are independent: divide out the other one, at its centre.
        actions, density = curves["actor density"]
        values = np.tile(centre, (len(actions), 1))
        values[:, coordinate] = actions
        ratio = np.exp(law.log_prob(jnp.asarray(values)) - law.log_prob(jnp.asarray(centre)))
        at_centre = np.interp(centre[coordinate], actions, density)
        np.testing.assert_allclose(density / at_centre, ratio, atol=0.02)
        assert np.trapezoid(density, actions) == pytest.approx(1.0, abs=0.01)
        # Q is that of the precomputed answers, which Python makes, in the same state.
        actions, values = curves["Q"]
        assert actions[0] == pytest.approx(box.action_low[coordinate], abs=1e-6)
        assert actions[-1] == pytest.approx(box.action_high[coordinate])
    assert not browser.complaints()


def test_q_of_transformed_actions_agrees_with_the_critics(ward, treated):
    """Computed in the page, by `_values` in Python, and from the transforms by hand."""
    browser = ward()
    state = browser.run("return found.runs[0].policies[0].states[0]")
    critic = page_policies._critic(treated, 0)
    looked_at = {"seed": 0, "states": [state]}
    in_python = np.asarray(page_policies._values(treated, looked_at, critic)["values"])[0]
    scale = treated.jobs.observation_scale
    seen = jnp.asarray([np.log(state[0] + 0.1), state[1], state[2] * 0.01])
    seen = (seen - scale.mean[0]) / scale.scale[0]
    dose, fluids = treated.policy(0).act(jnp.asarray(state))
    ends = np.log(0.005), np.log(2.005)
    unit = [(np.log(dose + 0.005) - ends[0]) / (ends[1] - ends[0]) * 2 - 1, fluids / 60 - 1]
    grid = np.linspace(-1.0, 1.0, 61)
    for coordinate in (0, 1):
        rows = np.tile(np.asarray(unit, np.float32), (61, 1))
        rows[:, coordinate] = grid
        expected = critic.minimum(jnp.tile(seen, (61, 1)), jnp.asarray(rows))
        np.testing.assert_allclose(in_python[coordinate], expected, atol=2e-3)
        actions, values = answers(browser, coordinate)[1]["Q"]
        np.testing.assert_allclose(values, expected, atol=4e-3)
        raw = np.exp(ends[0] + (grid + 1) / 2 * (ends[1] - ends[0])) - 0.005
        np.testing.assert_allclose(actions, raw if coordinate == 0 else 60 * (grid + 1), atol=1e-5)


def test_the_page_has_names_units_and_a_headline(ward, treated):
    browser = ward()
    text = browser.find("#sentence").text
    state = jnp.asarray(browser.run("return found.runs[0].policies[0].states[0]"))
    mean = treated.jobs.observation_scale.mean[0]
    assert float(state[0]) == pytest.approx(float(np.exp(mean[0]) - 0.1), rel=1e-4)
    assert "was never tried on a task" in text and "fat2thin dossier" in text
    low, high = treated.policy(0).support(state)
    sentence = browser.find("#explorer-sentence").text
    for coordinate, unit in enumerate(("µg/kg/min", "mL")):
        assert f"{low[coordinate]:.3g} and {high[coordinate]:.3g} {unit}" in sentence
    titles = [one.text for one in browser.window.find_elements("css selector", "#explorer h4")]
    assert titles == ["noradrenaline (µg/kg/min)", "fluids (mL)"]
    assert browser.find("#explorer-table").text.count("fluids (mL)") == 1
    browser.find(".typed summary").click()
    labels = [one.text for one in browser.window.find_elements("css selector", "#typed label")]
    assert [label.splitlines()[0] for label in labels] == [
        "lactate (mmol/L)", "heart rate (bpm)", "weight (kg)"
    ]  # fmt: skip
    browser.choose("#seed", "4")
    assert "Seed 4, after 20 updates" in browser.find("#explorer-note").text


def test_a_value_without_a_logarithm_is_refused_and_one_outside_the_log_is_noted(ward):
    browser = ward()
    type_state(browser, [-0.2, 500.0, 71.0])
    text = browser.find("#explorer-sentence").text
    assert text == "lactate (mmol/L) must be above −0.1, since the policy learned its logarithm."
    assert not browser.window.find_elements("css selector", "#explorer-plots svg")
    type_state(browser, [0.9, 500.0, 71.0])
    assert "Outside the logged range: heart rate (bpm) (" in browser.find("#explorer-note").text


@pytest.mark.parametrize(
    ("family", "described"),
    [
        (Sparse(0.0), {"kind": "sparse", "index": 0.0, "box": "inside"}),
        (Sparse(-1.5, "clip"), {"kind": "sparse", "index": -1.5, "box": "clip"}),
        (HeavyTailed(1.0), {"kind": "heavy", "index": 1.0}),
        (HeavyTailed(2.0), {"kind": "heavy", "index": 2.0}),
        (HeavyStudent(3.0), {"kind": "student", "freedom": 3.0}),
        (Squashed(), {"kind": "squashed"}),
        (Beta(), {"kind": "beta"}),
        (Deterministic(), {"kind": "deterministic"}),
    ],
    ids=str,
)
def test_densities_in_the_page_agree_with_the_families(opened, family, described):
    assert law_of(family) == described
    low, high = -2.0, 5.0
    # No action is at an end of the box, where the package rounds inwards.
    actions = np.linspace(-2.6, 5.4, 33).tolist()
    for centre, log_scale in ((0.2, -1.0), (0.95, 0.1), (-0.6, -3.0)):
        head = Head(jnp.asarray([centre]), jnp.asarray([log_scale]))
        ends = jnp.asarray([low]), jnp.asarray([high])
        law = opened.run(
            """const law = lawOf(...[...arguments].slice(0, 5));
            const actions = arguments[5];
            const end = (value) => Number.isFinite(value) ? value : null;
            return [law.centre, end(law.low), end(law.high),
              law.logDensity && actions.map((a) => Math.exp(law.logDensity(a)))];""",
            described, centre, log_scale, low, high, actions,
        )  # fmt: skip
        assert law[0] == pytest.approx(float(family.centre(head, *ends)[0]), abs=1e-4)
        for shown, end in zip(law[1:3], family.support(head, *ends), strict=True):
            assert shown == (pytest.approx(float(end[0]), abs=1e-4) if np.isfinite(end) else None)
        if law[3] is not None:
            expected = np.exp(
                family.distribution(head, *ends).log_prob(jnp.asarray(actions)[:, None])
            )
            np.testing.assert_allclose(law[3], expected, atol=1e-4, rtol=2e-4)
        else:
            assert isinstance(family, Deterministic)


def test_without_weights_typing_is_disabled_with_a_reason(browser, run, tmp_path, monkeypatch):
    monkeypatch.setattr(page_policies, "WEIGHT_BYTES", 0)
    browser.open(save_page([run], tmp_path / "page.html"))
    browser.find(".typed summary").click()
    boxes = browser.window.find_elements("css selector", "#typed input")
    assert boxes and not any(box.is_enabled() for box in boxes)
    assert "too large for the page" in browser.find("#typed-note").text
    _, curves = answers(browser)
    assert np.ptp(curves["Q"][1]) > 0
    before = browser.picture("#explorer-plots")
    browser.choose("#explorer-state", "logged step 239")
    assert browser.picture("#explorer-plots") != before
    assert not browser.complaints()


def test_untrusted_names_are_shown_as_text(browser, run, tmp_path):
    strange = dataclasses.replace(other(run, dataset=STRANGE), folder=tmp_path / "=1+1")
    browser.open(save_page([strange], tmp_path / "page.html"))
    assert STRANGE in browser.find("#sentence").text
    assert not browser.window.find_elements("tag name", "img")
    assert browser.run("return document.title").startswith("fat2thin: one run on </script>")
    (row,) = browser.data("#runs-data")
    assert row["folder"] == "'=1+1" and row["data set"] == STRANGE
    assert "does not contain the log" in browser.find("#explorer-note").text
    assert not browser.find("#doses").is_displayed()
    assert not browser.complaints()


def test_warnings_are_shown_as_text_with_the_run(browser, run, tmp_path):
    text = "seed 0: <b>overfitted</b>"
    warned = dataclasses.replace(run, about={**run.about, "warnings": [text]})
    browser.open(save_page([warned], tmp_path / "warned.html"))
    assert browser.find("#warnings").text == text
    assert not browser.complaints()


def test_a_value_that_is_not_estimable_is_marked(browser, two, tmp_path):
    metrics = {"step": np.array([10, 20]), "held_out_value": np.array([[-5.0], [np.nan]])}
    browser.open(save_page([dataclasses.replace(two, metrics=metrics)], tmp_path / "value.html"))
    text = browser.find("#curve-note").text
    assert (
        "“held out value” is not estimable at the end: outside the range that the rewards allow."
    ) in text
    assert [row["mean"] for row in browser.data("#curve-data")] == ["-5", ""]
    assert not browser.complaints()


def test_the_rest_of_the_page_shows_the_selected_run(opened):
    before = opened.picture("#doses-plots")
    opened.choose("#patient", "patient 2")
    assert opened.picture("#doses-plots") != before
    assert len(opened.data("#doses-data")) == 3 * 24
    zoomed = opened.picture("#explorer-plots")
    opened.find("#zoom").click()
    assert opened.picture("#explorer-plots") != zoomed
    (claim,) = opened.data("#claims-data")
    assert claim["command"] == "'=HYPERLINK(1)" and float(claim["effect"]) == 1.25


def test_the_page_fits_a_phone(opened):
    opened.narrow(375)
    try:
        opened.run("window.dispatchEvent(new Event('resize'))")
        widths = opened.run("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert widths == [375, 375]
        for svg in opened.window.find_elements("css selector", ".panel svg"):
            assert svg.rect["width"] <= 375 and svg.rect["x"] >= 0
    finally:
        opened.wide()


def test_every_control_is_reachable_and_labelled(opened):
    unnamed = opened.run(
        """return [...document.querySelectorAll("select, input, button, svg[role=img]")].filter(
        (one) => !(one.labels && one.labels.length) && !one.textContent.trim()
          && !one.getAttribute("aria-label")).map((one) => one.outerHTML.slice(0, 80));"""
    )
    assert unnamed == []
    reached = set()
    opened.find("#dataset").send_keys("")
    for _ in range(40):
        opened.window.switch_to.active_element.send_keys("\ue004")  # tabulator
        reached.add(opened.window.switch_to.active_element.get_attribute("id"))
    assert {"way", "run", "seed", "zoom", "step", "explorer-state", "patient"} <= reached
