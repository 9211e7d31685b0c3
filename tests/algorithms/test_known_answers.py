"""Every algorithm on a small problem with known answers (`puzzle`)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin import algorithms
from puzzle import CLUSTERS, FORK, LAST, OBSERVATIONS, PEAK, PROBLEM, log_within, solve

RIGHT = {CLUSTERS: 0.5, PEAK: 0.3, FORK: 0.5, LAST: 0.5}
CLONED = {CLUSTERS: 0.0, PEAK: 0.0, FORK: 0.0, LAST: -0.3}

# Settings, and the expected action in each state that the method can solve.
METHODS = {
    "fttpo": ({"temperature": 0.1}, RIGHT),
    "tawac": ({"temperature": 0.1}, RIGHT),
    "awac": ({"temperature": 0.1}, RIGHT),
    "iql": ({"temperature": 0.1, "expectile": 0.9}, RIGHT),
    "sql": ({"temperature": 0.02}, RIGHT),
    "xql": ({"temperature": 0.1, "value_temperature": 0.2}, RIGHT),
    "inac": ({"temperature": 0.05}, RIGHT),
    "sparse_reverse_kl": ({"temperature": 0.1}, RIGHT),
    # Its penalty pulls towards the mean logged action, and Q is not constrained between the
    # clusters: it does not stitch.
    "td3_bc": ({}, {CLUSTERS: 0.5, PEAK: 0.3}),
    # Ascent of Q stays near the common action -0.5 at LAST, so it does not stitch either.
    "rebrac": ({"actor_penalty": 0.03, "critic_penalty": 0.1}, {CLUSTERS: 0.5, PEAK: 0.3}),
    "edac": ({}, RIGHT),
    "sac_n": ({}, RIGHT),
    "spot": (
        {"support_weight": 3.0, "vae_beta": 0.05, "vae_steps": 3_000, "vae_hidden": (32, 32)}
        | {"actor_dropout": 0.0},
        RIGHT,
    ),
    "bc": ({}, CLONED),
    # A parabola with its vertex in the box does not fit two clusters, or rewards that jump.
    "quasi_optimal": ({"temperature": 0.02, "observation_bandwidth": 0.5}, {PEAK: 0.3}),
    "fttpo-sg": ({"temperature": 0.1}, RIGHT),
    "fttpo-spot": ({"temperature": 0.1}, RIGHT),
    "fttpo-greedy": ({"temperature": 0.1}, RIGHT),
    "tawac-ht": ({"temperature": 0.1}, RIGHT),
    "rar": ({"temperature": 0.1}, RIGHT),
}
# The others are slow tests: test_contract.py compares the first updates of every algorithm with
# stored numbers, so that changes are noticed.
QUICK = ("fttpo", "tawac", "iql", "sql", "bc")
LONG = ("rar", "fttpo-greedy")
STEPS = 3_000


def learn(name, logged=None, **settings):
    algorithm = algorithms.get(name)
    targets = {"polyak_rate": 0.02} if hasattr(algorithm.config, "polyak_rate") else {}
    config = algorithm.config(hidden=(32, 32), learning_rate=1e-3, **targets, **settings)
    algorithm.check(config)
    return solve(algorithm, config, STEPS, logged=logged)


def answers(policy):
    return np.asarray(policy.act(OBSERVATIONS))[:, 0]


def marks(name):
    slow = [] if name in QUICK else [pytest.mark.slow]
    return [*slow, pytest.mark.long] if name in LONG else slow


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=marks(name)) for name in METHODS],
)
def test_every_algorithm_learns_the_known_answers(name):
    settings, expected = METHODS[name]
    found = answers(learn(name, **settings))
    for state, answer in expected.items():
        np.testing.assert_allclose(found[state], answer, atol=0.15, err_msg=f"state {state}")


def test_every_algorithm_has_known_answers():
    """Except those that other tests register."""
    ours = {name for name in algorithms.names() if not name.startswith("stand_in")}
    assert ours == {*METHODS}


# Limits that exclude the good actions of CLUSTERS and LAST, and so change the best one of FORK:
# LAST is then worth 0, and 0.4 now is more. PEAK has its best allowed action at the limit. Limits
# end where there are logged actions: between the clusters, Q is only a guess.
LIMITS = {CLUSTERS: (-1.0, -0.4), PEAK: (-1.0, 0.1), LAST: (-1.0, -0.4)}
WITHIN = {CLUSTERS: -0.5, PEAK: 0.0, FORK: -0.5, LAST: -0.5}


def marks_within(name):
    if name in ("fttpo", "iql"):
        return []
    long = name in LONG or name.startswith("tawac")  # truncated laws by quadrature
    return [pytest.mark.slow, pytest.mark.long] if long else [pytest.mark.slow]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_within(name)) for name in METHODS])
def test_every_algorithm_learns_the_best_policy_within_limits(name):
    settings, expected = METHODS[name]
    if name == "awac":
        # One very bad sample gives good and bad actions the largest weight.
        settings = {**settings, "value_samples": 10}
    policy = learn(name, log_within(LIMITS), **settings)
    ends = np.array([LIMITS.get(state, (-1.0, 1.0)) for state in range(4)], np.float32)
    found = answers(policy.within((jnp.asarray(ends[:, :1]), jnp.asarray(ends[:, 1:]))))
    assert (ends[:, 0] <= found).all() and (found <= ends[:, 1]).all()
    # Where a method cannot solve a state without limits, or clones it, it is not asked here.
    for state in expected if name != "bc" else {CLUSTERS}:
        np.testing.assert_allclose(found[state], WITHIN[state], atol=0.15, err_msg=f"{state}")


@pytest.mark.parametrize(("fallback", "best"), [(0.5, 0.5), (-0.5, -0.5)])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) for n in ("fttpo", "iql", "xql", "edac")]
)
def test_states_without_an_action_are_worth_what_the_fallback_is(name, fallback, best):
    """The fallback of LAST decides whether it is worth going there."""
    policy = learn(name, log_within({LAST: (fallback, fallback)}), **METHODS[name][0])
    np.testing.assert_allclose(answers(policy)[FORK], best, atol=0.15)


@pytest.mark.slow
def test_iql_with_a_low_expectile_does_not_stitch():
    """The 0.7 expectile of LAST is 0.37, worth 0.33 at FORK, which is less than 0.4.

    The ratio of the weights of the two actions is e^(0.068 / temperature): 31 at 0.02.
    """
    found = answers(learn("iql", temperature=0.02, expectile=0.7))
    np.testing.assert_allclose(found[FORK], -0.5, atol=0.15)
    np.testing.assert_allclose(found[LAST], 0.5, atol=0.15)


@pytest.mark.slow
def test_rebrac_with_a_large_penalty_imitates():
    """The squared distance is least at the mean logged action of each state."""
    found = answers(learn("rebrac", actor_penalty=1e4))
    for state, answer in CLONED.items():
        np.testing.assert_allclose(found[state], answer, atol=0.05, err_msg=f"state {state}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fttpo", "sparse_reverse_kl", pytest.param("rar", marks=pytest.mark.long)]
)
def test_sparse_policies_give_zero_probability_to_the_bad_cluster(name):
    policy = learn(name, temperature=0.1)
    density = jnp.exp(policy(OBSERVATIONS[CLUSTERS]).log_prob(jnp.full((1,), -0.5)))
    assert density == 0.0


@pytest.mark.slow
def test_the_published_spot_policy_never_changes():
    """The policy's loss does not depend on the policy."""
    settings = {"vae_steps": 100, "vae_hidden": (8,), "published": True}
    algorithm = algorithms.get("spot")
    config = algorithm.config(hidden=(32, 32), **settings)
    state = algorithm.init(jax.random.key(0), PROBLEM, config)
    fresh = algorithm.policy(state, PROBLEM, config)
    np.testing.assert_array_equal(answers(learn("spot", **settings)), answers(fresh))


@pytest.mark.slow
@pytest.mark.long
def test_the_published_reverse_kl_maximises_entropy():
    """The band grows to its bound for any log: (1.5 e^0)^(1/3) = 1.1447."""
    policy = learn("sparse_reverse_kl", temperature=0.1, published=True)
    np.testing.assert_allclose(policy(OBSERVATIONS).half_width, 1.1447, rtol=1e-3)
