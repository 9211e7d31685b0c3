"""The file of published settings against the same tables, written down independently."""

import itertools

import numpy as np
import pytest

from choices import choices
from fat2thin import algorithms, data
from fat2thin.data.scaling import check_reward_scale
from fat2thin.settings import published as module
from fat2thin.settings.config import make_config
from fat2thin.settings.published import (
    ORIGINS,
    RUN_OPTIONS,
    families,
    listing,
    origins,
    parse,
    published_settings,
    records,
    rows,
    sources,
)
from fat2thin.settings.spec import describe_settings, make_spec

TASKS = [
    f"{robot}-{kind}"
    for robot in ("halfcheetah", "hopper", "walker2d")
    for kind in ("medium-expert", "medium-replay", "medium")
]
"""The order of the rows of every table below."""

# Learning rate / tau of the FtTPO authors' tuned settings.
FTTPO = """
    fttpo      fttpo-sg   fttpo-spot
    1e-3/1     1e-3/1     1e-3/1
    1e-3/0.5   1e-3/0.5   1e-3/0.01
    1e-3/0.01  1e-3/0.01  1e-3/0.01
    1e-3/1     1e-3/1     1e-3/1
    1e-3/1     3e-4/0.5   3e-4/0.01
    1e-3/0.01  1e-3/0.01  1e-3/0.01
    1e-3/0.5   1e-3/1     3e-4/1
    1e-3/0.01  1e-3/1     3e-4/0.01
    1e-3/1     1e-3/1     1e-3/0.5
"""
SQUASHED = """
    iql        inac       tawac      awac      td3_bc    sql     xql
    3e-4/0.333 1e-3/0.1   1e-3/1     3e-4/1    3e-4/2.5  2e-4/5  2e-4/2
    3e-4/0.333 1e-3/0.5   1e-3/0.01  3e-4/1    3e-3/2.5  2e-4/5  2e-4/2
    1e-3/0.333 1e-3/0.33  1e-3/0.01  3e-4/0.5  3e-4/2.5  2e-4/5  2e-4/2
    1e-3/0.333 1e-3/0.01  1e-3/0.5   1e-3/1    1e-4/2.5  2e-4/2  2e-4/2
    1e-3/0.333 3e-4/0.5   1e-4/0.5   3e-4/0.5  1e-3/2.5  2e-4/2  2e-4/2
    1e-3/0.333 3e-4/0.1   1e-3/0.5   3e-4/0.5  1e-4/2.5  2e-4/5  2e-4/2
    3e-4/0.333 1e-3/0.1   1e-3/0.01  1e-3/0.1  3e-4/2.5  2e-4/5  2e-4/2
    3e-4/0.333 1e-3/0.5   1e-3/0.5   3e-4/0.1  1e-3/2.5  2e-4/5  2e-4/2
    1e-3/0.333 1e-3/0.33  1e-3/1     1e-3/0.1  1e-4/2.5  2e-4/5  2e-4/2
"""
HEAVY = """
    tawac      iql        inac       awac      td3_bc
    1e-3/1     1e-3/0.333 1e-3/0.1   1e-3/1    1e-3/2.5
    1e-3/0.01  1e-3/0.333 1e-3/0.5   1e-3/1    3e-3/2.5
    1e-3/0.01  1e-3/0.333 1e-3/0.33  1e-3/0.5  1e-3/2.5
    1e-3/0.5   1e-3/0.333 1e-3/0.01  3e-4/1    1e-3/2.5
    1e-3/0.5   1e-3/0.333 3e-4/0.5   3e-3/0.5  3e-4/2.5
    3e-3/0.01  3e-3/0.333 3e-3/0.1   3e-4/0.5  1e-4/2.5
    3e-4/0.01  1e-3/0.333 3e-4/0.1   1e-3/0.1  3e-4/2.5
    1e-3/0.5   3e-4/0.333 3e-4/0.5   1e-3/0.1  3e-3/2.5
    1e-3/0.01  1e-3/0.333 1e-3/0.33  3e-4/0.1  1e-4/2.5
"""
# Only learning rates: of iql, inac, tawac, awac, td3_bc for each family.
OTHERS = """
    clipped_gaussian          student_t                 beta
    3e-4,3e-4,3e-4,1e-4,3e-4  3e-4,1e-3,1e-3,1e-3,3e-4  1e-3,1e-3,1e-3,3e-4,3e-4
    3e-4,1e-3,1e-3,1e-4,1e-3  3e-4,1e-3,1e-3,3e-4,3e-4  3e-4,1e-3,1e-3,3e-4,1e-3
    3e-4,1e-3,3e-4,1e-4,1e-3  1e-3,1e-3,1e-3,3e-4,3e-4  1e-3,1e-3,1e-3,1e-3,3e-4
    1e-3,1e-3,3e-4,3e-4,1e-4  1e-3,1e-3,1e-3,1e-3,1e-4  1e-3,3e-3,1e-3,1e-3,3e-4
    1e-3,3e-4,3e-4,3e-4,1e-3  1e-3,3e-4,3e-4,3e-4,1e-3  3e-4,3e-3,1e-4,3e-4,1e-3
    3e-4,1e-3,1e-3,1e-3,1e-3  1e-3,3e-3,1e-3,3e-4,1e-4  3e-3,1e-3,1e-3,1e-3,1e-3
    3e-4,1e-3,3e-4,1e-4,1e-3  3e-4,1e-3,1e-3,3e-4,3e-4  1e-3,1e-3,1e-3,3e-4,1e-3
    3e-4,1e-3,1e-3,3e-4,3e-3  3e-4,1e-3,1e-3,3e-4,3e-4  3e-4,1e-3,1e-3,3e-4,3e-4
    1e-3,1e-3,1e-3,1e-4,1e-4  1e-3,1e-3,1e-3,3e-4,1e-4  3e-3,1e-3,1e-3,3e-4,1e-4
"""
# From the scripts of Div99/XQL: Gumbel temperature, largest exponent, batch.
XQL = [
    (1, 5, 1024), (1, 5, 256), (1, 7, 1024),
    (2, 7, 1024), (2, 7, 256), (5, 7, 1024),
    (2, 5, 256), (5, 5, 1024), (10, 7, 1024),
]  # fmt: skip
INAC = [0.1, 0.5, 0.33, 0.01, 0.5, 0.1, 0.1, 0.5, 0.33]
# From CORL's configs: weights of the policy's penalty and of the critics'.
REBRAC = [
    (0.01, 0.1), (0.01, 0.001), (0.001, 0.01),
    (0.1, 0.01), (0.05, 0.5), (0.01, 0.01),
    (0.01, 0.01), (0.05, 0.01), (0.05, 0.1),
]  # fmt: skip
# From CORL's configs: the number of EDAC's critics and eta, and the number of SAC-N's critics.
EDAC = [(10, 5), (10, 1), (10, 1), (50, 1), (50, 1), (50, 1), (10, 5), (10, 1), (10, 1)]
SAC_N = [10, 10, 10, 200, 200, 500, 20, 20, 20]
SPOT = [1.0, 0.05, 0.05, 0.2, 0.1, 0.1, 0.5, 0.2, 0.2]


def columns(table):
    head, *body = [line.split() for line in table.strip().splitlines()]
    assert len(body) == len(TASKS)
    return {name: [row[at] for row in body] for at, name in enumerate(head)}


def both_names(task):
    robot, _, level = task.partition("-")
    others = (f"minari/mujoco/{robot}/{level}-v0",) * (level == "medium")
    return f"d4rl/{task}-v2", f"regenerated/{task}", f"regenerated/{task}@2000", *others


def their_tau(values):
    """Return tau as in the FtTPO authors' code, where it is alpha for TD3+BC."""
    return values["q_weight"] if "q_weight" in values else values["temperature"]


@pytest.mark.parametrize(
    ("table", "policy"), [(FTTPO, None), (SQUASHED, None), (HEAVY, "q_gaussian")]
)
def test_tuned_settings_of_the_fttpo_runs_agree_with_the_tables(table, policy):
    for algorithm, cells in columns(table).items():
        for task, cell in zip(TASKS, cells, strict=True):
            rate, tau = map(float, cell.split("/"))
            # XQL's tau is an inverse temperature.
            tau = 1.0 / tau if algorithm == "xql" else tau
            for name in both_names(task):
                values = published_settings(algorithm, name, "fttpo", policy).values
                assert values["learning_rate"] == rate
                assert their_tau(values) == pytest.approx(tau, rel=2e-3)


def test_learning_rates_of_the_other_families_agree_with_the_tables():
    usual = columns(SQUASHED)
    for policy, cells in columns(OTHERS).items():
        for at, task in enumerate(TASKS):
            rates = map(float, cells[at].split(","))
            for algorithm, rate in zip(list(usual)[:5], rates, strict=True):
                tau = float(usual[algorithm][at].split("/")[1])
                for name in both_names(task):
                    values = published_settings(algorithm, name, "fttpo", policy).values
                    assert values["learning_rate"] == rate
                    assert their_tau(values) == pytest.approx(tau, rel=2e-3)


def test_tawac_ht_has_the_settings_of_tawac_with_q_gaussians():
    for task in TASKS:
        for name in both_names(task):
            alone = published_settings("tawac-ht", name, "fttpo")
            assert alone == published_settings("tawac-ht", name, "fttpo", "q_gaussian")
            assert alone.values == published_settings("tawac", name, "fttpo", "q_gaussian").values


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("fttpo", {"learning_rate": 3e-4, "temperature": 0.01}),
        ("fttpo-sg", {"learning_rate": 3e-5, "temperature": 0.5}),
        ("fttpo-spot", {"learning_rate": 3e-5, "temperature": 0.5}),
        ("iql", {"learning_rate": 1e-4, "temperature": 0.7, "expectile": 0.9}),
        ("sql", {"learning_rate": 3e-3, "temperature": 5.0}),
        ("xql", {"learning_rate": 1e-4, "temperature": 1 / 5}),
        ("tawac", {"learning_rate": 3e-5}),
        ("spot", {"learning_rate": 1e-3, "support_weight": 0.05, "vae_hidden": [256, 256]}),
    ],
)
def test_settings_on_the_treatment_task_agree_with_the_tables(algorithm, expected):
    for variant in ("quadratic", "cubic"):
        found = published_settings(algorithm, f"treatment/{variant}", "fttpo")
        assert expected.items() <= found.values.items()
        assert found.batch_size == 256


def test_a_caveat_names_the_second_record_of_iql():
    caveats = " ".join(published_settings("iql", "treatment/quadratic", "fttpo").caveats)
    assert "two records" in caveats and "3e-5" in caveats


def test_the_methods_own_settings_agree_with_the_tables():
    for task, (beta, clip, batch), tau, support in zip(TASKS, XQL, INAC, SPOT, strict=True):
        for name in both_names(task):
            xql = published_settings("xql", name, "own")
            assert (xql.values["value_temperature"], xql.values["value_clip"]) == (beta, clip)
            assert xql.batch_size == batch
            assert xql.values["temperature"] * 3 == pytest.approx(1)
            assert xql.values["action_noise"] == (0.1 if task == "halfcheetah-medium" else 0)
            assert xql.values["random_actions"] == (task == "hopper-medium-expert")
            assert published_settings("inac", name, "own").values["temperature"] == tau
            assert published_settings("spot", name, "own").values["support_weight"] == support
            assert published_settings("td3_bc", name, "own").values["q_weight"] == 2.5
            iql = published_settings("iql", name, "own").values
            assert iql["expectile"] == 0.7 and iql["temperature"] * 3 == pytest.approx(1)
            assert published_settings("sql", name, "own").values["temperature"] == 0.25


def test_the_penalties_of_rebrac_agree_with_the_table():
    for task, penalties in zip(TASKS, REBRAC, strict=True):
        for name in both_names(task):
            found = published_settings("rebrac", name, "own")
            values = found.values
            assert (values["actor_penalty"], values["critic_penalty"]) == penalties
            assert found.batch_size == 1024 and values["learning_rate"] == 1e-3
            assert values["layer_norm"] and values["hidden"] == [256, 256, 256]


def test_the_ensembles_of_edac_and_sac_n_agree_with_the_tables():
    for task, ensemble, count in zip(TASKS, EDAC, SAC_N, strict=True):
        for name in both_names(task):
            edac, sac_n = (published_settings(one, name, "own") for one in ("edac", "sac_n"))
            assert (edac.values["critic_count"], edac.values["diversity"]) == ensemble
            assert (sac_n.values["critic_count"], sac_n.values["diversity"]) == (count, 0)
            assert edac.batch_size == sac_n.batch_size == 256


# (standardise, reward_scale) of every locomotion set, as the authors' code has it:
SCALES = {
    # ikostrikov/implicit_q_learning, train_offline.py: normalize() divides rewards by the range of
    # returns and multiplies them by 1000. SQL and XQL are built on this code: ryanxhr/IVR and
    # Div99/XQL, train_offline.py. None of the three changes observations.
    "iql": (False, "return_range"),
    "sql": (False, "return_range"),
    "xql": (False, "return_range"),
    # sfujim/TD3_BC, main.py (normalize is True) and utils.py; the same in CORL's td3_bc.py.
    "td3_bc": (True, 1.0),
    # thuml/SPOT, main.py (normalize is True) and train_vae.py.
    "spot": (True, 1.0),
    # hwang-ua/inac_pytorch, agent/base.py (the state normaliser is the identity) and
    # utils/run_funcs.py (rewards as in the log).
    "inac": (False, 1.0),
    # rail-berkeley/rlkit, examples/awac/mujoco/awac1.py: reward_scale is 1.
    "awac": (False, 1.0),
    # tinkoff-ai/CORL, rebrac.py: normalize_states and normalize_reward are False.
    "rebrac": (False, 1.0),
    # tinkoff-ai/CORL, edac.py and sac_n.py: neither changes states or rewards by default.
    "edac": (False, 1.0),
    "sac_n": (False, 1.0),
}


def test_scales_are_those_of_the_authors_code():
    for algorithm in sorted({record.algorithm for record in records()}):
        for task in TASKS:
            for name in both_names(task):
                for origin in origins(algorithm, name):
                    found = published_settings(algorithm, name, origin)
                    # The FtTPO paper's runs rescale neither states nor rewards.
                    expected = SCALES[algorithm] if origin == "own" else (False, 1.0)
                    assert (found.standardise, found.reward_scale) == expected
    assert all(origins(algorithm, "d4rl/walker2d-medium-v2") for algorithm in SCALES)


def test_every_case_has_all_options_of_a_run():
    for case in every_case():
        options = published_settings(*case).options
        assert [*options] == ["batch_size", "standardise", "reward_scale"]
        assert isinstance(options["standardise"], bool)
        assert check_reward_scale(options["reward_scale"]) == options["reward_scale"]


@pytest.mark.parametrize(
    ("algorithm", "note"),
    [
        ("td3_bc", "standardise=True (--no-standardise to turn off)"),
        ("iql", "reward_scale=return_range (--reward-scale 1 to turn off)"),
        ("inac", ""),
    ],
)
def test_a_note_names_the_published_scales(algorithm, note):
    spec = attempt(algorithm, "d4rl/hopper-medium-v2", {}, "own")
    assert (spec.standardise, spec.reward_scale) == SCALES[algorithm]
    sentence = f"As its authors do, the log is scaled: {note}." if note else ""
    assert describe_settings([spec], [], automatic=False) == sentence
    given = ["standardise", "reward_scale"]
    assert describe_settings([spec], given, automatic=False) == ""


def test_quasi_optimal_has_its_authors_settings_in_half_ranges():
    """Theirs: lambda .05, both bandwidths .5, for actions and states scaled to 0 to 1."""
    for reward in ("quadratic", "cubic"):
        found = published_settings("quasi_optimal", f"treatment/{reward}", "own")
        assert found.values["temperature"] == 2 * 0.05
        assert found.values["action_bandwidth"] == 2 * 0.5
        log = data.load(f"treatment/{reward}", 0).observation
        ranges = np.mean(np.ptp(log, axis=0) / np.std(log, axis=0))
        assert found.values["observation_bandwidth"] == pytest.approx(0.5 * ranges, rel=0.02)
        assert found.batch_size == 5 * 24


def every_data_set():
    """Return all full names in the file, and one name for each beginning."""
    named = {name for record in records() for name in record.datasets}
    return sorted(name.replace("*", "quadratic") for name in named)


def every_case():
    for algorithm in sorted({record.algorithm for record in records()}):
        for dataset in every_data_set():
            for origin in origins(algorithm, dataset):
                for policy in families(algorithm, dataset, origin):
                    yield algorithm, dataset, origin, policy


def test_every_record_makes_a_valid_config():
    cases = list(every_case())
    assert len(cases) > 500
    for algorithm, dataset, origin, policy in cases:
        values = published_settings(algorithm, dataset, origin, policy).values
        chosen = {**values, "policy": policy} if policy else values
        config = make_config(algorithms.get(algorithm), None, chosen)
        assert config.learning_rate == values.get("learning_rate", 3e-4)


@pytest.mark.parametrize("dataset", ["treatment/quadratic", "d4rl/hopper-medium-v2"])
def test_no_published_setting_prevents_a_choice(dataset):
    """A choice is refused only if the defaults refuse it too, or its family has no record."""
    cases = [
        (name, origin, given)
        for name in algorithms.names()
        for origin in origins(name, dataset)
        for given in choices(name)
    ]
    for algorithm, origin, given in cases:
        found = attempt(algorithm, dataset, given, origin)
        if not isinstance(found, str):
            ((name, value),) = given.items()
            assert getattr(found.config, name) == value
        elif not found.startswith(f"no settings of {algorithm} with policy="):
            assert found == attempt(algorithm, dataset, given, "default")


def attempt(algorithm, dataset, given, origin):
    """Return the specification, or the error message."""
    try:
        return make_spec(
            algorithm, dataset, steps=1, settings=given, settings_from=origin, data_needed=False
        )
    except ValueError as error:
        return str(error)


def test_a_given_setting_drops_the_published_one_that_rules_it_out():
    """The AWAC weights of the authors' code have no limit; those of the paper do."""
    spec = attempt("awac", "d4rl/hopper-medium-v2", {"weight_limit": 50.0}, "fttpo")
    published = published_settings("awac", "d4rl/hopper-medium-v2", "fttpo").values
    assert (spec.config.weights, spec.config.weight_limit) == ("exponential", 50.0)
    assert published["weights"] == "batch_softmax"
    for name in ("learning_rate", "temperature"):
        assert getattr(spec.config, name) == published[name]
    note = describe_settings([spec], ["weight_limit"], automatic=False)
    assert note == "Not used, because a given setting rules them out: weights=batch_softmax."


def test_every_record_is_well_formed():
    for record in records():
        assert record.origin in ORIGINS and record.values and record.source.endswith(".")
        assert record.caveat is None or record.caveat.endswith(".")
        # Every record must apply to some data set.
        assert any(record.fits(dataset) for dataset in every_data_set())
        assert record.completes or origins(record.algorithm, record.datasets[0])
        assert record.batch_size is None or record.batch_size in (120, 256, 1024)


@pytest.mark.parametrize(
    ("algorithm", "dataset"),
    [
        ("fttpo", "treatment/quadratic"),
        ("xql", "treatment/quadratic"),
        ("spot", "treatment/quadratic"),
        ("tawac-ht", "d4rl/hopper-medium-v2"),
    ],
)
def test_published_forms_accept_the_authors_settings(algorithm, dataset):
    values = published_settings(algorithm, dataset, "fttpo").values
    assert make_config(algorithms.get(algorithm), None, {**values, "published": True}).published


def conflicts(all_records, dataset):
    """Return fields to which two records of one case and level give different values."""
    alike = itertools.groupby(
        sorted(
            (record for record in all_records if record.fits(dataset)),
            key=lambda record: (record.algorithm, record.origin, record.policy or ""),
        ),
        key=lambda record: (record.algorithm, record.origin, record.policy),
    )
    return [
        (case, name)
        for case, group in alike
        for one, other in itertools.combinations(list(group), 2)
        if one.level(dataset) == other.level(dataset)
        for name in {*one.values, *RUN_OPTIONS} & {*other.values, *RUN_OPTIONS}
        if _value(one, name) != _value(other, name)
        and None not in (_value(one, name), _value(other, name))
    ]


def _value(record, name):
    return getattr(record, name) if name in RUN_OPTIONS else record.values[name]


def test_no_two_records_contradict_each_other():
    for dataset in every_data_set():
        assert conflicts(records(), dataset) == []


SMALL = """
    [[settings]]
    algorithm = "iql"
    origin = "own"
    datasets = ["log/*"]
    batch_size = 32
    values = { learning_rate = 0.1, temperature = 1.0 }
    source = "General."
    caveat = "Beware."

    [[settings]]
    algorithm = "iql"
    origin = "own"
    policy = "*"
    datasets = ["log/one", "log/two"]
    values = { temperature = 9.0, expectile = 0.6 }
    source = "Every family."

    [[settings]]
    algorithm = "iql"
    origin = "own"
    datasets = ["log/one"]
    batch_size = 64
    values = { temperature = 2.0 }
    source = "Specific."

    [[settings]]
    algorithm = "iql"
    origin = "own"
    policy = "beta"
    datasets = ["log/one"]
    values = { learning_rate = 0.3 }
    source = "Beta."

    [[settings]]
    algorithm = "iql"
    origin = "fttpo"
    policy = "*"
    datasets = ["log/one"]
    values = { expectile = 0.9 }
    source = "Alone."
"""


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "records", lambda: parse(SMALL))


def test_a_contradiction_between_records_is_detected():
    more = parse(SMALL.replace('"log/two"', '"log/1"').replace("Specific", "S").replace("2.0", "3"))
    assert conflicts(parse(SMALL) + more, "log/one") != []
    assert conflicts(parse(SMALL), "log/one") == []


@pytest.mark.usefixtures("small")
def test_specific_records_override_general_ones():
    one = published_settings("iql", "log/one", "own")
    assert one.values == {"learning_rate": 0.1, "temperature": 2.0, "expectile": 0.6}
    assert one.batch_size == 64
    assert one.sources == ("Every family.", "General.", "Specific.")
    assert one.caveats == ("Beware.",)
    two = published_settings("iql", "log/two", "own")
    assert two.values == {"learning_rate": 0.1, "temperature": 1.0, "expectile": 0.6}
    three = published_settings("iql", "log/three", "own")
    assert three.values == {"learning_rate": 0.1, "temperature": 1.0}
    assert three.batch_size == 32


@pytest.mark.usefixtures("small")
def test_a_named_family_has_its_own_records():
    beta = published_settings("iql", "log/one", "own", "beta")
    assert beta.values == {"learning_rate": 0.3, "temperature": 9.0, "expectile": 0.6}
    assert beta.batch_size is None
    default = published_settings("iql", "log/one", "own", "squashed_gaussian")
    assert default == published_settings("iql", "log/one", "own")
    with pytest.raises(ValueError, match=r"'own' on .*log/one.* with policy beta"):
        published_settings("iql", "log/one", "own", "student_t")


@pytest.mark.usefixtures("small")
def test_a_record_that_only_completes_others_does_not_count():
    assert origins("iql", "log/one") == ("own",)
    with pytest.raises(ValueError, match="from 'fttpo'; there are: 'own' on log/"):
        published_settings("iql", "log/one", "fttpo")


def test_a_family_in_the_values_is_the_default_family():
    name = "d4rl/hopper-medium-v2"
    own = published_settings("iql", name, "own")
    assert own == published_settings("iql", name, "own", "clipped_gaussian")
    with pytest.raises(ValueError, match="policy='squashed_gaussian'"):
        published_settings("iql", name, "own", "squashed_gaussian")
    assert published_settings("td3_bc", name, "fttpo").values["policy"] == "squashed_gaussian"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("iql", "treatment/quadratic", "own"), "'fttpo' on .*treatment/"),
        (("rar", "treatment/quadratic", "fttpo"), "none for rar, only for awac, edac, fttpo, "),
        (("fttpo", "d4rl/hopper-medium-v0", "fttpo"), "'fttpo' on d4rl/halfcheetah-medium-expert"),
        (("iql", "treatment/quadratic", "paper"), "origin must be one of 'own', 'fttpo'"),
    ],
)
def test_missing_settings_raise_an_error_that_lists_the_known_ones(arguments, message):
    with pytest.raises(ValueError, match=message):
        published_settings(*arguments)


def test_origins_are_those_with_settings_for_the_data_set():
    assert origins("iql", "d4rl/hopper-medium-v2") == ("own", "fttpo")
    assert origins("iql", "treatment/cubic") == ("fttpo",)
    assert origins("bc", "treatment/cubic") == ()


def test_the_listing_has_every_record_or_the_settings_of_a_run():
    assert len(rows()) == len(records())
    (row,) = rows("fttpo", "treatment/quadratic")
    assert row.values["temperature"] == 0.01 and row.values["batch_size"] == 256
    (own,) = rows("td3_bc", "regenerated/hopper-medium")[:1]
    assert "batch_size 256, standardise True, reward_scale 1\n" in listing([own])
    assert any("SimEnv3" in note for note in sources([row]))
    text = listing([row])
    assert text.startswith("fttpo, from fttpo\n    treatment/quadratic\n")
    assert "temperature 0.01" in text and "[1] [2] [3] [4]\n\n[1]  FtTPO paper" in text
    assert max(map(len, listing(rows()).splitlines())) <= 100
    with pytest.raises(ValueError, match="no settings of 'rar' are known"):
        rows("rar")
    with pytest.raises(ValueError, match="no settings of awac are known for 'treat"):
        rows("awac", "treatment/quadratic")
