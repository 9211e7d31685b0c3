"""Policies inside limits: support, samples, density, entropy and centre agree with each other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from fat2thin.algorithms.published import heavy_policy, sparse_policy
from fat2thin.columns import Transform
from fat2thin.policies.families import Beta, Deterministic, Head, Sparse, Transformed, families
from fat2thin.policies.families import make_family as family_of
from fat2thin.policies.limits import Limits
from fat2thin.policies.networks import PolicyNetwork
from fat2thin.policies.policy import unit_policy

OBSERVATION, ACTION = ["severity", "weight"], ["dose", "rest"]
LOW, HIGH = (0.25, 0.25), (1.0, 2.0)
RULES = {
    "linear": "dose <= 0.013 * weight - 0.07 * severity + 0.1",
    "rate": "abs(dose - last_dose) <= 0.1",
    "point": "rest == 0.75 when severity > 2.5",
    "floor": "rest >= 0.3 + 0.1 * severity",
    "stop": "no action when severity < 0.1",
}
LOGARITHMS = (Transform("log", 0.1), Transform("scale", 3.0))


def limits_of(rules):
    return Limits.parse(rules, OBSERVATION, ACTION, LOW, HIGH)


@functools.cache
def policy_of(name, transformed=False):
    network = PolicyNetwork(jax.random.key(0), 2, action_size=2, hidden=(8,))
    policy = unit_policy(network, family_of(name), (0.02, 2.0))
    policy = policy.in_box(LOW, HIGH)
    if transformed:
        policy = policy.on_raw(jnp.zeros(2), jnp.ones(2), (), LOGARITHMS)
    return policy.with_limits(limits_of(RULES))


BLOCK = 50_000  # states at a time: the quadrature of truncated laws takes 4 kB per state
PARTS = 4  # of a million states, each a test, so that workers share them


def random_states(key, count):
    keys = jax.random.split(key, 4)
    severity = jax.random.uniform(keys[0], (count,), maxval=3.0)
    weight = jax.random.uniform(keys[1], (count,), minval=10.0, maxval=120.0)
    last = jax.random.uniform(keys[2], (count, 2))
    # At every tenth state there is no last action, as at the start of an episode.
    last = jnp.where(jax.random.bernoulli(keys[3], 0.1, (count, 1)), jnp.nan, last)
    return jnp.stack([severity, weight], axis=-1), last


def check_states(policy, count, seed=1):
    @jax.jit
    def everything(observation, last, key):
        law = policy(observation, last)
        action, centre = policy.act(observation, key, last), policy.act(observation, None, last)
        low, high = policy.support(observation, last)
        density = law.log_prob(action)
        entropy = jnp.zeros(()) if policy.family.reach == "point" else law.entropy()
        found = policy.interval(observation, last)
        return action, centre, low, high, density, entropy, found.acts

    for block in range(-(-count // BLOCK)):
        state_key, key = jax.random.split(jax.random.fold_in(jax.random.key(seed), block))
        observation, last = random_states(state_key, min(count, BLOCK))
        check_block(policy, observation, last, everything(observation, last, key))


def check_block(policy, observation, last, found):
    action, centre, low, high, density, entropy, acts = (
        np.asarray(part, np.float64 if part.dtype != bool else bool) for part in found
    )
    assert 0.2 < acts.mean() < 0.95
    assert np.isnan(action[~acts]).any(axis=-1).all() and np.isnan(low[~acts]).all()
    severity, weight = (np.asarray(part, np.float64)[acts] for part in observation.T)
    before = np.asarray(last, np.float64)[acts][:, 0]
    assert (low <= high)[acts].all()
    for value in (action[acts], centre[acts], low[acts], high[acts]):
        dose, rest = value.T
        assert (dose <= 0.013 * weight - 0.07 * severity + 0.1).all()
        assert (np.isnan(before) | (np.abs(dose - before) <= 0.1)).all()
        assert (rest >= 0.3 + 0.1 * severity)[severity <= 2.5].all()
        assert (rest[severity > 2.5] == 0.75).all()
        assert (value >= LOW).all() and (value <= HIGH).all()
        assert (low[acts] <= value).all() and (value <= high[acts]).all()
    assert np.isfinite(density[acts]).all()
    if policy.family.reach != "point":
        assert np.isfinite(entropy[acts]).all()


@pytest.mark.parametrize("name", ["sparse_q_gaussian", "deterministic"])
def test_bands_and_points_obey(name):
    check_states(policy_of(name), 20_000)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("name", families(load_plugins=False))
def test_a_million_states_obey(name, transformed, part):
    check_states(policy_of(name, transformed), 10**6 // PARTS, seed=1 + part)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("name", [n for n in families(load_plugins=False) if n != "deterministic"])
def test_densities_integrate_to_one_and_give_the_entropy(name, transformed):
    """One action of the two: the law is a product."""
    family = family_of(name)
    if transformed:
        family = Transformed(family, LOGARITHMS[:1])
    ends = (jnp.array([[number]]) for number in (0.0, 1.0, 0.3, 0.55))
    centre = 1.0 if family_of(name).squashes_centre else 0.75
    head = Head(jnp.array([[centre]]), jnp.log(jnp.array([[0.4]])))
    placed = family.limited(head, *ends)
    grid = np.linspace(float(placed.low[0, 0]), float(placed.high[0, 0]), 20_001)
    inner = jnp.asarray(grid, jnp.float32)[:, None, None]
    log_density = np.asarray(placed.law.log_prob(inner)[:, 0], np.float64)
    density = np.exp(log_density)
    assert abs(integrate.simpson(density, x=grid) - 1.0) < 1e-4
    surprise = np.where(density > 0, -density * np.where(density > 0, log_density, 0.0), 0.0)
    entropy = integrate.simpson(surprise, x=grid)
    np.testing.assert_allclose(placed.law.entropy()[0], entropy, atol=2e-3)
    drawn = np.asarray(placed.law.sample(jax.random.key(0), (20_000,)), np.float64).ravel()
    mean = integrate.simpson(density * grid, x=grid)
    # Six standard errors of the mean of 20,000 numbers in an interval of length 0.25.
    assert abs(drawn.mean() - mean) < 6 * 0.125 / 20_000**0.5


def band(centre, half_width, bottom, top):
    head = Head(jnp.array([2 * centre - 1.0]), jnp.log(jnp.array([2 * half_width])))
    ends = (jnp.array([number]) for number in (0.0, 1.0, bottom, top))
    placed = Sparse().limited(head, *ends)
    return np.round([float(part[0]) for part in (placed.centre, placed.low, placed.high)], 5)


def test_bands_slide_and_then_shrink():
    assert band(0.5, 0.1, 0.0, 1.0).tolist() == [0.5, 0.4, 0.6]
    assert band(0.5, 0.1, 0.0, 0.45).tolist() == [0.35, 0.25, 0.45]
    assert band(0.5, 0.1, 0.55, 0.65).tolist() == [0.6, 0.55, 0.65]
    assert band(0.5, 0.1, 0.7, 0.7).tolist() == [0.7, 0.7, 0.7]


def test_points_have_probability_one_in_every_unit():
    for family in (Sparse(), Transformed(Sparse(), LOGARITHMS[:1])):
        head = Head(jnp.array([0.0]), jnp.array([-1.0]))
        ends = (jnp.array([number]) for number in (0.0, 1.0, 0.7, 0.7))
        law = family.limited(head, *ends).law
        assert law.log_prob(jnp.array([0.7])) == 0.0 and law.entropy() == 0.0
        assert law.log_prob(jnp.array([0.71])) == -jnp.inf


def test_a_limited_centre_gets_gradients_that_pull_it_back():
    ends = [jnp.array([number]) for number in (0.0, 1.0, 0.0, 0.5)]
    for family in (Sparse(), Deterministic()):

        def loss(centre, target, family=family):
            placed = family.limited(Head(centre, jnp.array([-2.0])), *ends)
            return jnp.sum((placed.centre - target) ** 2)

        outside = jnp.array([0.8])
        assert jax.grad(loss)(outside, 0.1)[0] > 0.0
        assert jax.grad(loss)(outside, 0.9)[0] == 0.0


def test_states_without_an_action_raise_or_use_the_fallback():
    rules = {"cap": "dose <= 0.3", "floor": "dose >= 0.4 when severity > 2"}
    plain = policy_of("sparse_q_gaussian").with_limits(limits_of(rules))
    states = np.array([[1.0, 50.0], [3.0, 50.0]])
    with pytest.raises(ValueError, match=r"row 1: cap: dose <= 0.3; floor: dose >= 0.4 when"):
        plain.act(states)
    assert np.isnan(jax.jit(plain.act)(states)[1, 0]) and plain.interval(states).acts.tolist() == [
        True,
        False,
    ]
    cautious = plain.with_limits(limits_of({**rules, "fallback": {"dose": 0.5, "rest": 1.0}}))
    assert cautious.act(states)[1].tolist() == [0.5, 1.0]
    assert cautious.act(states, jax.random.key(0))[1].tolist() == [0.5, 1.0]
    np.testing.assert_array_equal(cautious.act(states)[0], plain.act(states[0]))


def test_limits_that_need_the_last_action_ask_for_it():
    policy, state = policy_of("sparse_q_gaussian"), np.array([1.0, 90.0])
    with pytest.raises(ValueError, match="last=None at the first step"):
        policy.act(state)
    first, then = policy.act(state, last=None), policy.act(state, last=[0.3, 0.5])
    assert abs(float(then[0]) - 0.3) <= 0.1
    np.testing.assert_array_equal(first, policy.act(state, last=[np.nan, np.nan]))
    with pytest.raises(ValueError, match="the shape"):
        policy.act(state, last=[0.3])


def test_what_cannot_be_limited_refuses():
    network = PolicyNetwork(jax.random.key(0), 2, action_size=2, hidden=(8,))
    limits = limits_of({"cap": "dose <= 0.8"})
    for policy in (sparse_policy(network), heavy_policy(network)):
        with pytest.raises(ValueError, match="published=True"):
            policy.with_limits(limits)
    with pytest.raises(ValueError, match="box='inside'"):
        unit_policy(network, Sparse(box="clip"), (0.1, 1.0)).with_limits(limits)
    with pytest.raises(ValueError, match="does not know its own"):
        unit_policy(network, Beta(), (0.1, 1.0)).with_limits({"cap": "dose <= 0.8"})
