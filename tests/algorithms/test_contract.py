"""One contract for every algorithm of the registry."""

import dataclasses
import json
import os
import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin import algorithms
from fat2thin.algorithms import Batch, Problem
from fat2thin.algorithms.base import shapes_program, with_numbers
from fat2thin.policies.families import families
from fat2thin.settings.options import explain

GOLDEN = Path(__file__).with_name("golden.json")
# WRITE_GOLDEN=1 pytest tests/algorithms/test_contract.py -n 0 -k "test_contract[" -m "slow or not
# slow" writes it anew; a difference in git is a change of results, and stands in CHANGELOG.md.
WRITE_GOLDEN = bool(os.environ.get("WRITE_GOLDEN"))

PROBLEM = Problem(observation_size=3, action_low=(-2.0, 0.0), action_high=(2.0, 10.0), discount=0.9)

# The settings that change what an update does, beside the defaults. Every family of policies
# stands here with some algorithm; all pairs are among the slow tests.
VARIANTS = {
    "fttpo": [
        {},
        {"actor_loss": "sampled"},
        {"actor_loss": "closed_form"},
        {"actor_loss": "closed_form", "kept_mass": 0.5, "proposal_family": "student_t"},
        {"proposal_family": "beta"},
        {"value_under": "proposal", "critic_under": "proposal", "box": "clip"},
        {"published": True},
        {"published": True, "actor_loss": "spot", "proposal_family": "squashed_gaussian"},
    ],
    "tawac": [{}, {"policy": "clipped_gaussian"}],
    "tawac-ht": [{}, {"published": True}],
    "rar": [{}, {"published": True}],
    "awac": [{}, {"weights": "batch_softmax", "policy": "student_t", "value_samples": 3}],
    "iql": [{}, {"policy": "beta", "actor_decay_steps": 10}],
    "sql": [{}, {"weights": "positive_part", "state_dependent_scale": False}],
    "xql": [{}, {"random_actions": 2, "action_noise": 0.1}, {"published": True}],
    "inac": [{}],
    "td3_bc": [{}, {"policy": "sparse_q_gaussian", "box": "clip"}],
    "spot": [{"vae_hidden": (8,)}, {"vae_hidden": (8,), "published": True}],
    "bc": [{}, {"policy": "sparse_q_gaussian", "outside_support": "project"}],
    "sparse_reverse_kl": [{}, {"published": True}],
}
QUICK = (
    {"actor_loss": "closed_form"},
    {"weights": "positive_part", "state_dependent_scale": False},
)


def is_quick(name, settings):
    usual = settings == {} or name == "spot" or settings == {"published": True}
    return not name.startswith("fttpo-") and (usual or settings in QUICK)


CASES = [
    pytest.param(
        name,
        settings,
        id=f"{name}-{'-'.join(map(str, settings.values())) or 'default'}",
        # Variants of FtTPO are settings of its own contract, and most settings stand among the
        # slow tests: every algorithm's defaults and its published form do not.
        marks=[] if is_quick(name, settings) else pytest.mark.slow,
    )
    for name in algorithms.names()
    for settings in VARIANTS.get(name, [{}])
]


def batch(key, rows=32):
    keys = jax.random.split(key, 4)
    return Batch(
        observation=jax.random.normal(keys[0], (rows, 3)),
        action=jax.random.uniform(keys[1], (rows, 2), minval=-1.0, maxval=1.0),
        reward=jax.random.normal(keys[2], (rows,)),
        next_observation=jax.random.normal(keys[3], (rows, 3)),
        continuation=(jnp.arange(rows) % 5 != 0).astype(float),
    )


def prepare(name, settings):
    algorithm = algorithms.get(name)
    config = algorithm.config(hidden=(8, 8), **settings)
    algorithm.check(config)
    return algorithm, config, algorithm.init(jax.random.key(0), PROBLEM, config)


@eqx.filter_jit
def act_and_support(policy, observation, key):
    return policy.act(observation, key), policy.support(observation), policy.act(observation)


def remembered(metrics, centres):
    """What of some updates is kept in GOLDEN: every loss, and what the policies do."""
    losses = {
        name: float(np.mean(value)) for name, value in metrics.items() if name.endswith("_loss")
    }
    return {"losses": losses, "centres": [np.asarray(one[:3]).tolist() for one in centres]}


def still(name, config):
    """Patterns of the paths of what an update leaves alone."""
    if name == "spot" and config.published:
        return [r"\.actor|\.target_actor|\.density"]
    patterns = []
    if getattr(config, "actor_loss", "") == "closed_form":
        patterns.append(r"\.width")  # it has no width of its own to learn
    if getattr(config, "policy", "") == "deterministic":
        patterns.append(r"actor.*\.log_scale")  # nobody asks for its scale
    if name == "spot":
        patterns.append(r"\.density")  # it was learned in the preparation
    if not getattr(config, "state_dependent_scale", True):
        patterns.append(r"actor.*\.log_scale\.weight")  # one scale for all states is the bias
    return patterns


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_contract(name, settings):
    algorithm, config, state = prepare(name, settings)
    logged = batch(jax.random.key(1))

    def step(state, key):
        return algorithm.update(state, logged, key, PROBLEM, config)

    keys = jax.random.split(jax.random.key(2), 3)
    compiled = jax.jit(step)
    # Several, since some policies move at every second update only.
    after = state
    for key in jax.random.split(keys[0], 5):
        after, metrics = compiled(after, key)

    # All state comes out in the shape it went in, and every metric is finite: a number, or
    # one a row.
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert old.shape == new.shape
        assert old.dtype == new.dtype
    assert all(np.shape(value) in ((), (32,)) for value in metrics.values())
    assert all(np.all(np.isfinite(value)) for value in metrics.values())

    # Every array of every network learns, but for those that should not.
    leaves = jax.tree_util.tree_leaves_with_path(state)
    for (path, old), new in zip(leaves, jax.tree.leaves(after), strict=True):
        place = jax.tree_util.keystr(path)
        should = not any(re.search(pattern, place) for pattern in still(name, config))
        assert np.array_equal(old, new) != should or place.endswith(".count"), place

    centres = []
    # Both policies act in the box, in the environment's units, on one observation and on many.
    for make in filter(None, (algorithm.policy, algorithm.proposal)):
        policy = make(after, PROBLEM, config)
        many, (low, high), centre = act_and_support(policy, logged.observation, keys[2])
        centres.append(centre)
        assert many.shape == (32, 2)
        assert np.all((many >= policy.low[None]) & (many <= policy.high[None]))
        assert np.all((low <= many) & (many <= high))
        assert policy.act(logged.observation[0]).shape == (2,)
        assert policy(logged.observation).log_prob(many).shape == (32,)

    # What the updates come to is what they always came to.
    found, case = remembered(metrics, centres), f"{name} {settings}"
    if WRITE_GOLDEN:
        golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        GOLDEN.write_text(json.dumps({**golden, case: found}, indent=1, sort_keys=True) + "\n")
    if jax.default_backend() != "cpu":
        return  # where products are rounded differently
    expected = json.loads(GOLDEN.read_text()).get(case)
    if expected is None:
        return  # a new one, which nothing was kept of yet
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(found["centres"], expected["centres"], rtol=1e-4, atol=1e-5)


def test_what_is_kept_is_of_cases_that_there_are():
    cases = {f"{case.values[0]} {case.values[1]}" for case in CASES}
    assert {*json.loads(GOLDEN.read_text())} <= cases


# The other algorithms are made of the same parts; they stand among the slow tests.
PACKED = ("fttpo",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in PACKED else pytest.mark.slow)
        for name in algorithms.names()
    ],
)
def test_packed_with_another_seed_it_is_the_same(name):
    algorithm, config, state = prepare(name, {})
    logged, keys = batch(jax.random.key(1)), jax.random.split(jax.random.key(2))

    def step(state, key):
        return algorithm.update(state, logged, key, PROBLEM, config)[0]

    alone = jax.jit(step)(state, keys[0])
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state)
    packed = jax.jit(jax.vmap(step))(stacked, keys)
    for leaf, pair in zip(jax.tree.leaves(alone), jax.tree.leaves(packed), strict=True):
        np.testing.assert_allclose(leaf, pair[0], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.names())
def test_compilation_changes_nothing(name):
    algorithm, config, state = prepare(name, {})
    logged, key = batch(jax.random.key(1)), jax.random.key(2)
    plain, _ = algorithm.update(state, logged, key, PROBLEM, config)
    compiled, _ = jax.jit(algorithm.update, static_argnums=(3, 4))(
        state, logged, key, PROBLEM, config
    )
    for leaf, other in zip(jax.tree.leaves(plain), jax.tree.leaves(compiled), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-3, atol=1e-5)


def test_unknown_names_list_the_right_ones():
    with pytest.raises(ValueError, match=r"did you mean 'fttpo'\?.*there are .*fttpo"):
        algorithms.get("ftpo")
    with pytest.raises(ValueError, match="already registered"):
        algorithms.register(algorithms.get("fttpo"))


@pytest.mark.parametrize("name", algorithms.names())
def test_every_setting_is_explained(name):
    """A sentence stands behind every field of a config."""
    config = algorithms.get(name).config
    explained = explain(config)
    assert [row[0] for row in explained] == [field.name for field in dataclasses.fields(config)]
    assert all(sentence.endswith(".") for _, _, sentence in explained)


@pytest.mark.parametrize("name", algorithms.names())
def test_real_numbers_may_be_traced(name):
    """A sweep over them is one program; those that shape it say so."""
    algorithm, config, _ = prepare(name, {})
    logged = batch(jax.random.key(1))
    numbers = {
        field.name: jnp.float32(getattr(config, field.name))
        for field in dataclasses.fields(config)
        if isinstance(getattr(config, field.name), float) and not shapes_program(field)
    }
    assert "learning_rate" in numbers

    def everything(numbers, key):
        traced = with_numbers(config, numbers)
        state = algorithm.init(key, PROBLEM, traced)
        made = [algorithm.update(state, logged, key, PROBLEM, traced)]
        made.append(algorithm.policy(state, PROBLEM, traced))
        if algorithm.proposal:
            made.append(algorithm.proposal(state, PROBLEM, traced))
        if algorithm.preparation:
            made.append(algorithm.preparation.update(state, logged, key, PROBLEM, traced))
        return made

    made = jax.eval_shape(everything, numbers, jax.random.key(2))
    # What is static in a policy must not hold a traced number either.
    assert "Tracer" not in str(jax.tree.structure(made))


@pytest.mark.parametrize("name", algorithms.names())
def test_every_metric_is_described_and_nothing_else(name):
    """Over the settings that change what is reported; a deterministic policy has no scale."""
    algorithm, reported = algorithms.get(name), set()
    logged, key = batch(jax.random.key(1)), jax.random.key(2)
    settings = [{}]
    settings += [{"published": True}] if name in ("fttpo", "tawac-ht", "rar", "xql", "spot") else []
    settings += [{"policy": "beta"}] if name in WITHOUT_DENSITY else []
    for some in settings:
        _, config, state = prepare(name, some)
        updates = [algorithm.update, algorithm.preparation and algorithm.preparation.update]
        for update in filter(None, updates):
            found = jax.eval_shape(
                lambda state, update=update, config=config: update(
                    state, logged, key, PROBLEM, config
                ),
                state,
            )
            reported |= {*found[1]}
        if algorithm.weighted_loss:
            assert {algorithm.weighted_loss, "weight_mean"} <= reported
    assert reported == {*algorithm.metrics}
    assert all(what and look_for for what, look_for in algorithm.metrics.values())


def test_a_variant_is_its_base_with_other_defaults():
    variant, base = algorithms.get("tawac-ht"), algorithms.get("tawac")
    assert variant.config().policy == "q_gaussian" and base.config().policy != "q_gaussian"
    assert isinstance(variant.config(), base.config)
    assert variant.update is base.update and variant.variant_of == "tawac"


# FtTPO has two policies, with settings of their own.
BASES = [
    name
    for name in algorithms.names()
    if not algorithms.get(name).variant_of and hasattr(algorithms.get(name).config, "policy")
]


# A policy without a density has a meaning for these alone.
WITHOUT_DENSITY = ("td3_bc", "spot")


@pytest.mark.parametrize("name", [name for name in BASES if name not in WITHOUT_DENSITY])
def test_a_deterministic_policy_is_refused_where_a_density_is_needed(name):
    algorithm = algorithms.get(name)
    with pytest.raises(ValueError, match=r"has no meaning here.*deterministic policy has none"):
        algorithm.check(algorithm.config(policy="deterministic"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        (name, policy)
        for name in BASES
        for policy in families()
        if policy != "deterministic" or name in WITHOUT_DENSITY
    ],
)
def test_every_family_with_every_algorithm(name, policy):
    """Metrics and state are finite after an update of every pair that has a meaning."""
    algorithm = algorithms.get(name)
    regressed = policy == "sparse_q_gaussian" and name not in (
        *WITHOUT_DENSITY,
        "sparse_reverse_kl",
    )
    rule = {"outside_support": "replace"} if regressed else {}
    config = algorithm.config(hidden=(8, 8), policy=policy, **rule)
    algorithm.check(config)
    state = algorithm.init(jax.random.key(0), PROBLEM, config)
    logged = batch(jax.random.key(1))
    after, metrics = jax.jit(algorithm.update, static_argnums=(3, 4))(
        state, logged, jax.random.key(2), PROBLEM, config
    )
    assert all(np.all(np.isfinite(value)) for value in metrics.values())
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(after))
