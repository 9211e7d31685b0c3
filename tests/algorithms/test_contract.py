"""One contract for every algorithm of the registry."""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin import algorithms
from fat2thin.algorithms import Batch, Problem

PROBLEM = Problem(observation_size=3, action_low=(-2.0, 0.0), action_high=(2.0, 10.0), discount=0.9)

# The settings that change what an update does, beside the defaults of every algorithm.
VARIANTS = {
    "fttpo": [
        {},
        {"actor_loss": "sampled"},
        {"actor_loss": "closed_form"},
        {"actor_loss": "closed_form", "kept_mass": 0.5, "proposal_family": "student_t"},
        {"actor_loss": "spot"},
        {"actor_loss": "greedy"},
        {"proposal_family": "squashed_gaussian"},
        {"value_under": "proposal", "critic_under": "proposal", "box": "clip"},
        {"published": True},
    ]
}
CASES = [
    pytest.param(name, settings, id=f"{name}-{'-'.join(map(str, settings.values())) or 'default'}")
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


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_contract(name, settings):
    algorithm, config, state = prepare(name, settings)
    logged = batch(jax.random.key(1))

    def step(state, key):
        return algorithm.update(state, logged, key, PROBLEM, config)

    keys = jax.random.split(jax.random.key(2), 3)
    compiled = jax.jit(step)
    after, metrics = compiled(state, keys[0])

    # All state comes out in the shape it went in, and every metric is a finite number.
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert old.shape == new.shape
        assert old.dtype == new.dtype
    assert all(np.shape(value) == () and np.isfinite(value) for value in metrics.values())

    # Every network learns; a closed-form actor has no width of its own to learn.
    for field in after._fields:
        old, new = (jax.tree.leaves(getattr(s, field)) for s in (state, after))
        moved = any(not np.array_equal(a, b) for a, b in zip(old, new, strict=True) if a.ndim > 0)
        assert moved == (not (field == "width" and config.actor_loss == "closed_form")), field

    # Both policies act in the box, in the environment's units, on one observation and on many.
    for make in filter(None, (algorithm.policy, algorithm.proposal)):
        policy = make(after, PROBLEM, config)
        many = eqx.filter_jit(policy.act)(logged.observation, keys[2])
        assert many.shape == (32, 2)
        assert np.all((many >= policy.low) & (many <= policy.high))
        low, high = policy.support(logged.observation)
        assert np.all((low <= many) & (many <= high))
        assert policy.act(logged.observation[0]).shape == (2,)
        assert policy(logged.observation).log_prob(many).shape == (32,)


@pytest.mark.parametrize("name", algorithms.names())
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
    import ast
    import inspect
    import textwrap

    config = algorithms.get(name).config
    body = ast.parse(textwrap.dedent(inspect.getsource(config))).body[0].body
    explained = {
        first.target.id
        for first, second in itertools.pairwise(body)
        if isinstance(first, ast.AnnAssign)
        and isinstance(second, ast.Expr)
        and isinstance(second.value, ast.Constant)
    }
    assert explained == {field.name for field in dataclasses.fields(config)}
