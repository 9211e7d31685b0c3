import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

from fat2thin import data
from fat2thin.policies.families import Beta, Head, HeavyStudent, HeavyTailed, Sparse, Squashed
from fat2thin.policies.policy import Policy
from fat2thin.report import page, page_policies
from fat2thin.report.page import datasets_of, gather, make_page, names_of, save_page
from fat2thin.report.page_policies import law_of, quantile
from report.page_runs import (
    SEED,
    STRANGE,
    hospital_run,
    other,
    run_on,
    treatment_run,
    two_coordinates,
    with_setting,
)

CLAIM = {
    "claim": "C2", "statement": "it is best", "verdict": "holds", "effect": 1.25, "low": 0.5,
    "high": 2.0, "meaning": "a gap", "seeds": 10, "command": "=HYPERLINK(1)",
}  # fmt: skip


@pytest.fixture(scope="module")
def run():
    return treatment_run()


@pytest.fixture(scope="module")
def log():
    return two_coordinates()


@pytest.fixture(scope="module")
def two(log, tmp_path_factory):
    return run_on(log, tmp_path_factory.mktemp("logs"))


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.scripts, self.policy, self.inside = [], [], "", None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"]

    def handle_data(self, text):
        if self.inside == "script":
            self.scripts.append(text)

    def handle_endtag(self, tag):
        self.inside = None


def embedded(page):
    return json.loads(Tags(page).scripts[0])


def test_the_page_contains_the_evaluations_of_the_run(run):
    (found,) = embedded(make_page([run]))["runs"]
    for name, curve in found["curves"].items():
        scores = np.mean(run.evaluations[name].returns, axis=-1)
        assert curve["steps"] == [0, 10, 20]
        np.testing.assert_allclose(curve["mean"], scores.mean(axis=1), rtol=1e-4)
        # The 95 % percentile interval of the mean of two seeds spans both.
        np.testing.assert_allclose(curve["low"], scores.min(axis=1), rtol=1e-4)
        np.testing.assert_allclose(curve["high"], scores.max(axis=1), rtol=1e-4)
    assert set(found["curves"]) == {
        f"{policy}_{way}" for policy in ("actor", "proposal") for way in ("sampled", "centre")
    }
    policies = found["policies"][0]
    assert policies["seed"] == SEED and policies["steps"] == [0, 10, 20]


def test_the_page_contains_the_network_outputs_of_each_step(run):
    policies = gather([run])["runs"][0]["policies"][0]
    states = jnp.asarray(policies["states"])
    for place, step in enumerate((0, 10, 20)):
        head = run.proposal(SEED, step).network(states)
        kept = np.asarray(policies["proposal"]["heads"][place])
        np.testing.assert_allclose(kept[:, 0], head.centre, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(kept[:, 1], head.log_scale, rtol=1e-5, atol=1e-6)


def test_logged_pairs_are_rows_of_the_log(run):
    pairs, of_other_seed = gather([run, run])["logs"]  # one log per seed
    log = data.load("treatment/quadratic", SEED)
    assert pairs["rows"] == log.rows and len(pairs["states"]) == 300
    assert of_other_seed["states"] != pairs["states"]
    for state, action in zip(pairs["states"][::50], pairs["actions"][::50], strict=True):
        row = np.argmin(np.abs(np.asarray(log.observation) - state).sum(axis=1))
        np.testing.assert_allclose(log.observation[row], state, rtol=2e-3, atol=1e-6)
        np.testing.assert_allclose(log.action[row], action, rtol=1e-4)


def test_doses_during_a_treatment_lie_in_their_bands(run):
    course = gather([run])["runs"][0]["policies"][0]["trajectory"]
    low, high, centre = (np.asarray(course[name]) for name in ("low", "high", "centre"))
    assert centre.shape == (3, 24)
    assert np.all((low < centre) & (centre < high)) and np.all((low >= -1) & (high <= 1))
    assert np.std(centre[0]) > 0 and not np.allclose(centre[0], centre[1])
    # The central range of the proposal contains the centre where it is not clipped to the box.
    free = (np.asarray(course["fat_low"]) > -1) & (np.asarray(course["fat_high"]) < 1)
    assert np.all(np.asarray(course["fat_low"])[free] < centre[free])


@pytest.mark.parametrize(
    "family",
    [Sparse(0.0), Sparse(-1.0, "clip"), HeavyTailed(1.0), HeavyTailed(2.0), HeavyStudent(3.0),
     Squashed(), Beta()],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("share", [0.05, 0.8])
def test_quantiles_agree_with_the_integral_of_the_density(family, share):
    centre, log_scale = np.asarray([[0.3]]), np.asarray([[-1.1]])
    (end,) = quantile(law_of(family), centre, log_scale, share)[0]
    head = Head(jnp.asarray(centre), jnp.asarray(log_scale))
    law = family.distribution(head, -jnp.ones((1, 1)), jnp.ones((1, 1)))

    # Integrate downwards from the quantile in growing steps, to cover a heavy tail.
    places = np.linspace(0.0, 12.0, 4001)
    actions = end - 0.05 * np.sinh(places)
    density = np.exp(law.log_prob(jnp.asarray(actions)[:, None]))
    below = scipy.integrate.trapezoid(density * 0.05 * np.cosh(places), places)
    assert below == pytest.approx(share, abs=1e-3)


def test_weights_are_rounded_to_sixteen_bits(run):
    weights = gather([run])["runs"][0]["policies"][0]["weights"]
    network = run.proposal(SEED).network.network.network
    layer = weights["proposal"]["trunk"][0]
    encoded = weights["arrays"][layer["weight"]]
    steps = np.frombuffer(base64.b64decode(encoded["steps"]), "<f4")
    levels = np.frombuffer(base64.b64decode(encoded["levels"]), "<i2").reshape(8, 8)
    weight = np.asarray(network.trunk.layers[0].weight)
    assert np.all(np.abs(levels * steps[:, None] - weight) <= 0.51 * steps[:, None])
    assert np.all(steps <= np.abs(weight).max(axis=1) / 32767 * 1.001)
    # The actor shares the proposal's trunk, so the trunk is stored once.
    assert weights["actor"]["trunk"] == weights["proposal"]["trunk"]


def test_runs_whose_weights_do_not_fit_have_q_in_the_listed_states(run, two, log, monkeypatch):
    everything = gather([run, two])["runs"]
    assert all(found["policies"][0]["weights"] for found in everything)
    size = len(json.dumps(everything[0]["policies"][0]["weights"]))
    monkeypatch.setattr(page_policies, "WEIGHT_BYTES", size + 10)
    fits, left_out = gather([two, run], logs={two.spec.dataset: log})["runs"][::-1]
    assert fits["policies"][0]["weights"] and not left_out["policies"][0]["weights"]

    policies = left_out["policies"][0]
    values = np.asarray(policies["values"])
    assert values.shape == (6, 2, 61)
    state = jnp.asarray(policies["states"][2])
    scale = two.jobs.observation_scale
    centre = two.policy(two.spec.seeds[0]).act(state)
    unit = (centre - jnp.asarray([-2.0, 0.0])) / jnp.asarray([4.0, 10.0]) * 2.0 - 1.0
    critics = two.states.values.network.members
    seen = jnp.concatenate([(state - scale.mean[0]) / scale.scale[0], unit.at[1].set(1.0)])
    by_hand = []
    for member in (1, 2):
        features = seen
        for layer in critics.trunk.layers:
            features = np.maximum(layer.weight[0, member] @ features + layer.bias[0, member], 0.0)
        by_hand.append(critics.head.weight[0, member] @ features + critics.head.bias[0, member])
    assert values[2, 1, -1] == pytest.approx(float(min(by_hand)[0]), rel=1e-3)


def test_every_seed_is_on_the_page_if_there_are_few(run, monkeypatch):
    (found,) = gather([run])["runs"]
    assert [one["seed"] for one in found["policies"]] == [SEED, 3]
    assert [one["stopped"] for one in found["policies"]] == [False, True]
    # Weights go to the first seed of every run before they go to another seed.
    sizes = [len(json.dumps(one["weights"])) for one in found["policies"]]
    monkeypatch.setattr(page_policies, "WEIGHT_BYTES", 2 * sizes[0] + 10)
    for of_run in gather([run, run])["runs"]:
        first, second = of_run["policies"]
        assert first["weights"] and not second["weights"]
        assert np.shape(second["values"])[1:] == (1, 61)
    monkeypatch.setattr(page, "_MOST_POLICIES", 3)
    assert [len(of_run["policies"]) for of_run in gather([run, run])["runs"]] == [1, 1]


def test_the_typical_state_without_standardisation_is_the_middle_of_the_logged_ranges():
    run = hospital_run()
    run = dataclasses.replace(run, jobs=run.jobs._replace(observation_scale=None))
    (name,), (state,) = page_policies._picked_states(run, 0, None, 5)
    low, high = np.transpose(run.columns.ranges["observation"])
    assert name == "middle of the logged ranges"
    # The first column is learned as a logarithm.
    assert np.log(state[0] + 0.1) == pytest.approx(
        np.log((low + 0.1) * (high + 0.1))[0] / 2, rel=1e-4
    )
    assert state[1:] == pytest.approx((low + high)[1:] / 2, rel=1e-4)


def test_runs_of_one_algorithm_have_different_names(run):
    warm = with_setting(run, temperature=0.9)
    renamed = other(run, dataset="treatment/cubic")
    assert names_of([run, warm, renamed]) == [
        "fttpo",
        "fttpo (temperature 0.9)",
        "fttpo",
    ]
    assert names_of([run, run]) == ["fttpo, no. 1", "fttpo, no. 2"]
    kept = [dataclasses.replace(run, folder=Path("runs") / name) for name in ("one", "two")]
    assert names_of(kept) == ["fttpo, one", "fttpo, two"]


def test_the_names_of_runs_include_the_holdout(run):
    watched = other(run, holdout=0.2, select="offline")
    assert names_of([run, watched]) == ["fttpo", "fttpo (holdout 0.2, select offline)"]


def test_warnings_of_a_run_are_on_the_page(run):
    warned = dataclasses.replace(run, about={**run.about, "warnings": ["it looks overfitted"]})
    first, second = embedded(make_page([run, warned]))["runs"]
    assert first["warnings"] == run.about.get("warnings", [])
    assert second["warnings"] == ["it looks overfitted"]


def test_the_page_shows_only_the_file_name_of_a_path(two):
    page = make_page([two])
    assert "<title>fat2thin: one run on two.npz</title>" in page
    assert str(Path(two.spec.dataset).parent) not in page
    elsewhere = other(two, dataset="/elsewhere/two.npz")
    assert datasets_of([two, elsewhere])["/elsewhere/two.npz"] == "/elsewhere/two.npz"


def test_names_never_become_markup(run):
    page = make_page([other(run, dataset=STRANGE)], [{**CLAIM, "statement": STRANGE}])
    parsed = Tags(page)
    assert [tag for tag, _ in parsed.tags].count("script") == 2
    assert "img" not in {tag for tag, _ in parsed.tags}
    assert not any(name.startswith("on") for _, given in parsed.tags for name in given)
    found = embedded(page)
    assert found["runs"][0]["dataset"] == found["claims"][0]["statement"] == STRANGE


def test_names_never_end_the_data_block(run):
    """A browser also ends a script at `</script` and a space, so the data contain no `<`."""
    name = "</script >, </SCRIPT\t, <!-- <script , &lt;"
    page = make_page([other(run, dataset=name)], [{**CLAIM, "statement": name}])
    block = page.split('id="found">')[1].split("</script>")[0]
    assert not set(block) & set("<>&")
    found = json.loads(block)
    assert found["runs"][0]["dataset"] == found["claims"][0]["statement"] == name


def test_only_the_scripts_of_the_page_may_run(run):
    parsed = Tags(make_page([run]))
    assert parsed.policy.startswith("default-src 'none'; script-src 'sha256-")
    digest = hashlib.sha256(parsed.scripts[1].encode()).digest()
    assert f"script-src 'sha256-{base64.b64encode(digest).decode()}'" in parsed.policy
    assert "unsafe" not in parsed.policy


def test_the_page_contains_no_address_to_fetch_from(run):
    page = make_page([run])
    assert set(re.findall(r"\w+://[^\"'\s]*", page)) == {"http://www.w3.org/2000/svg"}
    fetching = r"\bfetch\(|XMLHttpRequest|WebSocket|\bimport\(|url\((?!#)|innerHTML|eval\("
    assert not re.search(fetching, page)
    assert not [given for _, given in Tags(page).tags if {"src", "href", "style"} & given.keys()]


def test_a_page_of_ten_runs_is_small(run):
    # Without the weights, which have their own limit.
    assert len(make_page([run] * 10)) < 5e6 - page_policies.WEIGHT_BYTES


def test_the_density_of_an_unknown_family_is_computed_in_python(run):
    class Strange(Squashed):
        """A family that the scripts do not know."""

    def policy(*arguments):
        known = run.program.algorithm.proposal(*arguments)
        return Policy(known.network, known.low, known.high, Strange())

    algorithm = run.program.algorithm._replace(policy=policy, proposal=None)
    program = dataclasses.replace(run.program, algorithm=algorithm)
    strange = dataclasses.replace(run, program=program, snapshots={})
    policies = gather([strange])["runs"][0]["policies"][0]
    assert policies["weights"] is None and policies["unknown_family"]
    (drawn,) = policies["actor"]["drawn"]
    density = np.asarray(drawn["density"][0])
    assert np.trapezoid(density, drawn["actions"][0]) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda run, folder: make_page([]), "at least one run"),
        (lambda run, folder: make_page([run], [{"claim": "C1"}]), "verdict.* is missing"),
        (lambda run, folder: save_page([run], folder), "is a folder"),
    ],
)
def test_invalid_pages_are_errors(run, tmp_path, make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make(run, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_log_of_another_task_is_an_error(two, log):
    narrower = dataclasses.replace(
        log, observation=log.observation[:, :1], next_observation=log.next_observation[:, :1],
        observation_columns=(),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"sizes \(1, 2\)"):
        make_page([two], logs={two.spec.dataset: narrower})
