"""Requirements that every registered algorithm must meet."""

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
from fat2thin.algorithms.base import RowLimits, shapes_program, with_numbers
from fat2thin.policies.families import families
from fat2thin.settings.options import explain

GOLDEN = Path(__file__).with_name("golden.json")
# Rewrite it with WRITE_GOLDEN=1 pytest tests/algorithms/test_contract.py -n 0 -k "test_contract["
# -m "slow or not slow". A difference in git is a change of results: note it in CHANGELOG.md.
WRITE_GOLDEN = bool(os.environ.get("WRITE_GOLDEN"))

PROBLEM = Problem(observation_size=3, action_low=(-2.0, 0.0), action_high=(2.0, 10.0), discount=0.9)

# Settings that change the update. Every policy family appears with at least one algorithm; the
# slow tests cover all pairs.
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
    "rebrac": [{}, {"policy": "sparse_q_gaussian"}],
    "edac": [{}, {"policy": "sparse_q_gaussian", "critic_count": 3}],
    "spot": [{"vae_hidden": (8,)}, {"vae_hidden": (8,), "published": True}],
    "bc": [{}, {"policy": "sparse_q_gaussian", "outside_support": "project"}],
    "sparse_reverse_kl": [{}, {"published": True}],
    "quasi_optimal": [{}],
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
        # Quick: the defaults and the published form of every algorithm, except FtTPO's variants,
        # which only change settings.
        marks=[] if is_quick(name, settings) else pytest.mark.slow,
    )
    for name in algorithms.names()
    for settings in VARIANTS.get(name, [{}])
]


def batch(key, rows=32):
    keys = jax.random.split(key, 4)
    action = jax.random.uniform(keys[1], (rows, 2), minval=-1.0, maxval=1.0)
    return Batch(
        observation=jax.random.normal(keys[0], (rows, 3)),
        action=action,
        reward=jax.random.normal(keys[2], (rows,)),
        next_observation=jax.random.normal(keys[3], (rows, 3)),
        continuation=(jnp.arange(rows) % 5 != 0).astype(float),
        next_action=jnp.roll(action, -1, axis=0),
        next_logged=(jnp.arange(rows) % 5 != 0).astype(float),
    )


def prepare(name, settings):
    algorithm = algorithms.get(name)
    config = algorithm.config(hidden=(8, 8), **settings)
    algorithm.check(config)
    return algorithm, config, algorithm.init(jax.random.key(0), PROBLEM, config)


@eqx.filter_jit
def act_and_support(policy, observation, key):
    return policy.act(observation, key), policy.support(observation), policy.act(observation)


def golden_numbers(metrics, centres):
    """Return what GOLDEN stores for a case: every loss, and centres of the policies."""
    losses = {
        name: float(np.mean(value)) for name, value in metrics.items() if name.endswith("_loss")
    }
    return {"losses": losses, "centres": [np.asarray(one[:3]).tolist() for one in centres]}


def unchanged(name, config):
    """Return patterns of the paths of arrays that an update must not change."""
    if name == "spot" and config.published:
        return [r"\.actor|\.target_actor|\.density"]
    patterns = []
    if getattr(config, "actor_loss", "") == "closed_form":
        patterns.append(r"\.width")  # the closed form does not learn a width
    if getattr(config, "policy", "") == "deterministic":
        patterns.append(r"actor.*\.log_scale")  # the scale is not used
    if name == "spot":
        patterns.append(r"\.density")  # learned in the preparation
    if not getattr(config, "state_dependent_scale", True):
        patterns.append(r"actor.*\.log_scale\.weight")  # a state-independent scale is the bias
    return patterns


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_contract(name, settings):
    algorithm, config, state = prepare(name, settings)
    logged = batch(jax.random.key(1))

    def step(state, key):
        return algorithm.update(state, logged, key, PROBLEM, config)

    keys = jax.random.split(jax.random.key(2), 3)
    compiled = jax.jit(step)
    # Several updates, because some policies change only at every second one.
    after = state
    for key in jax.random.split(keys[0], 5):
        after, metrics = compiled(after, key)

    # The state keeps its shapes and types; every metric is finite, and a scalar or one per row.
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert old.shape == new.shape
        assert old.dtype == new.dtype
    assert all(np.shape(value) in ((), (32,)) for value in metrics.values())
    assert all(np.all(np.isfinite(value)) for value in metrics.values())

    # Every array of every network changes, except those that must not.
    leaves = jax.tree_util.tree_leaves_with_path(state)
    for (path, old), new in zip(leaves, jax.tree.leaves(after), strict=True):
        place = jax.tree_util.keystr(path)
        should = not any(re.search(pattern, place) for pattern in unchanged(name, config))
        assert np.array_equal(old, new) != should or place.endswith(".count"), place

    centres = []
    # Both policies act in the box, in the environment's units, for one observation and many.
    for make in filter(None, (algorithm.policy, algorithm.proposal)):
        policy = make(after, PROBLEM, config)
        many, (low, high), centre = act_and_support(policy, logged.observation, keys[2])
        centres.append(centre)
        assert many.shape == (32, 2)
        assert np.all((many >= policy.low[None]) & (many <= policy.high[None]))
        assert np.all((low <= many) & (many <= high))
        assert policy.act(logged.observation[0]).shape == (2,)
        assert policy(logged.observation).log_prob(many).shape == (32,)

    # The results equal the stored ones.
    found, case = golden_numbers(metrics, centres), f"{name} {settings}"
    if WRITE_GOLDEN:
        golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        GOLDEN.write_text(json.dumps({**golden, case: found}, indent=1, sort_keys=True) + "\n")
    if jax.default_backend() != "cpu":
        return  # products are rounded differently there
    expected = json.loads(GOLDEN.read_text()).get(case)
    if expected is None:
        return  # a new case that is not stored yet
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(found["centres"], expected["centres"], rtol=1e-4, atol=1e-5)


def test_every_stored_case_still_exists():
    cases = {f"{case.values[0]} {case.values[1]}" for case in CASES}
    assert {*json.loads(GOLDEN.read_text())} <= cases


# The other algorithms use the same steps; they are slow tests.
PACKED = ("fttpo",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in PACKED else pytest.mark.slow)
        for name in algorithms.names()
    ],
)
def test_an_update_is_the_same_alone_and_batched_with_another_seed(name):
    algorithm, config, state = prepare(name, {})
    logged, keys = batch(jax.random.key(1)), jax.random.split(jax.random.key(2))

    def step(state, key):
        return algorithm.update(state, logged, key, PROBLEM, config)[0]

    alone = jax.jit(step)(state, keys[0])
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state)
    packed = jax.jit(jax.vmap(step))(stacked, keys)
    for leaf, pair in zip(jax.tree.leaves(alone), jax.tree.leaves(packed), strict=True):
        np.testing.assert_allclose(leaf, pair[0], rtol=1e-3, atol=1e-5)


def limited(logged, key):
    """Return a batch within random limits: intervals, single actions, and excluded rows."""
    ends = jnp.sort(jax.random.uniform(key, (2, 2, *logged.action.shape), minval=-1.0), axis=1)
    (low, high), (next_low, next_high) = ends
    single = jnp.arange(len(low))[:, None] % 4 == 0
    high, next_high = (jnp.where(single, *pair) for pair in ((low, high), (next_low, next_high)))
    allows = jnp.all((low <= logged.action) & (logged.action <= high), axis=1) & ~single[:, 0]
    return logged._replace(limits=RowLimits(low, high, next_low, next_high, allows.astype(float)))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param(
            name, settings, id=f"{name}-{settings}",
            marks=[] if name in ("sql", "quasi_optimal") else pytest.mark.slow,
        )
        for name in algorithms.names()
        for settings in VARIANTS.get(name, [{}])
        if not settings.get("published") and settings.get("box") != "clip"
    ],
)  # fmt: skip
def test_every_algorithm_learns_within_limits(name, settings):
    algorithm, config, state = prepare(name, settings)
    assert algorithm.learns_limits
    logged = limited(batch(jax.random.key(1)), jax.random.key(3))
    update = jax.jit(algorithm.update, static_argnums=(3, 4))
    for key in jax.random.split(jax.random.key(2), 3):
        state, metrics = update(state, logged, key, PROBLEM, config)
        assert all(np.all(np.isfinite(value)) for value in metrics.values())
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state))
    unit = dataclasses.replace(PROBLEM, action_low=(-1.0,) * 2, action_high=(1.0,) * 2)
    policy = algorithm.policy(state, unit, config).within(logged.allowed)
    action = policy.act(logged.observation, jax.random.key(4))
    assert np.all((logged.limits.low <= action) & (action <= logged.limits.high))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bc", "td3_bc"])
def test_excluded_actions_are_not_imitated(name):
    """TD3+BC is pulled to the nearest allowed action: any further one gives the same update."""
    algorithm, config, state = prepare(name, {"q_weight": 0.0} if name == "td3_bc" else {})
    logged = limited(batch(jax.random.key(1)), jax.random.key(3))
    excluded = logged.limits.allows_logged[:, None] == 0.0
    nearest = jnp.clip(logged.action, logged.limits.low, logged.limits.high)
    other = logged.action if name == "bc" else nearest
    moved = logged._replace(action=jnp.where(excluded, -other if name == "bc" else other, other))
    key = jax.random.key(2)
    one, two = (algorithm.update(state, rows, key, PROBLEM, config)[0] for rows in (logged, moved))
    for leaf, same in zip(jax.tree.leaves(one.actor), jax.tree.leaves(two.actor), strict=True):
        np.testing.assert_array_equal(leaf, same)


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.names())
def test_compiled_and_uncompiled_updates_agree(name):
    algorithm, config, state = prepare(name, {})
    logged, key = batch(jax.random.key(1)), jax.random.key(2)
    plain, _ = algorithm.update(state, logged, key, PROBLEM, config)
    compiled, _ = jax.jit(algorithm.update, static_argnums=(3, 4))(
        state, logged, key, PROBLEM, config
    )
    for leaf, other in zip(jax.tree.leaves(plain), jax.tree.leaves(compiled), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-3, atol=1e-5)


def test_unknown_and_duplicate_names_are_errors():
    with pytest.raises(ValueError, match=r"did you mean 'fttpo'\?.*there are .*fttpo"):
        algorithms.get("ftpo")
    with pytest.raises(ValueError, match="already registered"):
        algorithms.register(algorithms.get("fttpo"))


@pytest.mark.parametrize("name", algorithms.names())
def test_every_setting_is_explained(name):
    """Every field of a config is followed by a sentence."""
    config = algorithms.get(name).config
    explained = explain(config)
    assert [row[0] for row in explained] == [field.name for field in dataclasses.fields(config)]
    assert all(sentence.endswith(".") for _, _, sentence in explained)


@pytest.mark.parametrize("name", algorithms.names())
def test_real_valued_settings_can_be_traced(name):
    """Then a sweep over them is one program; `shaping` fields are exempt."""
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
    # Static fields of a policy must not hold traced numbers either.
    assert "Tracer" not in str(jax.tree.structure(made))


@pytest.mark.parametrize("name", algorithms.names())
def test_exactly_the_reported_metrics_are_described(name):
    """With the settings that change which metrics exist; a deterministic policy has no scale."""
    algorithm, reported = algorithms.get(name), set()
    logged, key = batch(jax.random.key(1)), jax.random.key(2)
    settings = [{}]
    settings += [{"published": True}] if name in ("fttpo", "tawac-ht", "rar", "xql", "spot") else []
    settings += [{"policy": "beta"}] if name in WITHOUT_DENSITY else []
    settings += [{"diversity": 1.0}] if name == "sac_n" else []
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


def test_a_variant_has_other_defaults_and_the_same_functions():
    variant, base = algorithms.get("tawac-ht"), algorithms.get("tawac")
    assert variant.config().policy == "q_gaussian" and base.config().policy != "q_gaussian"
    assert isinstance(variant.config(), base.config)
    assert variant.update is base.update and variant.variant_of == "tawac"


# Without FtTPO, whose two policies have other settings.
BASES = [
    name
    for name in algorithms.names()
    if not algorithms.get(name).variant_of and hasattr(algorithms.get(name).config, "policy")
]


# Only these accept a policy without a density.
WITHOUT_DENSITY = ("td3_bc", "rebrac", "spot")


@pytest.mark.parametrize("name", [name for name in BASES if name not in WITHOUT_DENSITY])
def test_a_deterministic_policy_is_an_error_if_a_density_is_needed(name):
    algorithm = algorithms.get(name)
    with pytest.raises(ValueError, match=r"cannot be used here.*deterministic policy has none"):
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
def test_every_algorithm_works_with_every_family(name, policy):
    """Metrics and state are finite after one update, for every valid pair."""
    algorithm = algorithms.get(name)
    regressed = policy == "sparse_q_gaussian" and name not in (
        *WITHOUT_DENSITY,
        "edac",
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
