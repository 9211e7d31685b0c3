"""Held-out quantities against NumPy and SciPy, computed from the networks on all rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from evaluation.numpy_networks import network, scalar, take, twins
from fat2thin import algorithms, data
from fat2thin.algorithms.steps import Learner
from fat2thin.columns import Column
from fat2thin.data import Dataset
from fat2thin.data.operations import concatenate, keep_episodes
from fat2thin.evaluation.held_out import (
    HARDLY,
    TIMES,
    held_out,
    run_batch,
    steps_of,
    training_log,
    validate,
    verdict,
)
from fat2thin.tables import Table
from oracles import scipy_twin
from untrained import untrained_run

DISCOUNT, REWARD_SCALE = 0.9, 2.0
LOW, HIGH = np.array([-2.0, 10.0]), np.array([4.0, 11.0])
SMALL = {"vae_steps": 2, "vae_hidden": (4,)}
"""Settings that only SPOT has."""


def make_log(seed, rows=40, low=LOW):
    rng = np.random.default_rng(seed)
    inside = rng.uniform(0.05, 0.95, size=(rows, 2))
    return Dataset(
        name=f"log {seed}",
        observation=rng.normal(5.0, 3.0, size=(rows, 3)).astype(np.float32),
        action=(low + (HIGH - low) * inside).astype(np.float32),
        reward=rng.normal(size=rows).astype(np.float32),
        next_observation=rng.normal(5.0, 3.0, size=(rows, 3)).astype(np.float32),
        continuation=(np.arange(rows) % 20 != 9).astype(np.float32),
        episode_start=np.arange(0, rows, 10),
        action_low=tuple(low),
        action_high=tuple(HIGH),
        discount=DISCOUNT,
    )


LOGGED, HELD_OUT = make_log(0), make_log(1)


def make_run(path, algorithm, batch_size, noise_seed=16, **settings):
    # A learning rate at which one step of any network would change every number.
    settings = {"hidden": (4,), "learning_rate": 0.1} | settings
    return untrained_run(
        algorithm, path, seeds=[3, 5], batch_size=batch_size, settings=settings,
        noise_seed=noise_seed, reward_scale=REWARD_SCALE,
    )  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("logs") / "log.npz"
    data.save_npz(LOGGED, path)
    return path


@pytest.fixture(scope="module")
def iql(path):
    # With 40 rows the last block is half as long as the others.
    return make_run(path, "iql", 16)


@pytest.fixture(scope="module")
def fttpo(path):
    # With this noise seed advantages have both signs, and some actions lie in the band.
    return make_run(path, "fttpo", 40, noise_seed=48, half_width_high=0.3, temperature=5.0)


def standardised(observation):
    seen = LOGGED.observation.astype(np.float64)
    return (observation - seen.mean(axis=0)) / seen.std(axis=0)


def of_seed(run, index):
    state = take(run.states, index)
    observation, next_observation = (
        standardised(seen) for seen in (HELD_OUT.observation, HELD_OUT.next_observation)
    )
    action = (HELD_OUT.action - (LOW + HIGH) / 2.0) / ((HIGH - LOW) / 2.0)
    return state, observation, action, next_observation


@pytest.mark.parametrize("index", [0, 1])
def test_iql_agrees_with_numpy(iql, index):
    state, observation, action, next_observation = of_seed(iql, index)
    found = held_out(iql, HELD_OUT)

    next_value = scalar(state.value.network, next_observation)
    target = REWARD_SCALE * HELD_OUT.reward + DISCOUNT * HELD_OUT.continuation * next_value
    error = twins(state.critic.network, observation, action) - target
    in_rewards = np.sqrt(np.mean(error**2)) / REWARD_SCALE
    np.testing.assert_allclose(found["td_error"][index], in_rewards, rtol=1e-4)

    logged_value = np.min(twins(state.target_critic, observation, action), axis=0)
    advantage = logged_value - scalar(state.value.network, observation)
    weight = np.minimum(np.exp(3.0 * advantage), 100.0)
    actor = state.actor.network
    centre = network(actor.trunk.layers, actor.centre, observation)
    scale = np.exp(network(actor.trunk.layers, actor.log_scale, observation))
    normal = scipy.stats.norm(centre, np.clip(scale, 1e-3, 10.0))
    log_density = np.sum(normal.logpdf(np.arctanh(action)) - np.log1p(-(action**2)), axis=1)
    weighted = np.sum(weight * log_density) / np.sum(weight)
    np.testing.assert_allclose(found["weighted_log_likelihood"][index], weighted, rtol=1e-3)
    np.testing.assert_allclose(found["log_likelihood"][index], np.mean(log_density), rtol=1e-3)
    assert found["logged_inside_support"][index] == 1.0
    assert found["support_percent"][index] == 100.0


@pytest.mark.parametrize("index", [0, 1])
def test_fttpo_agrees_with_scipy(fttpo, index):
    state, observation, action, _ = of_seed(fttpo, index)
    found = held_out(fttpo, HELD_OUT)

    members = state.values.network.members
    blind, seen = (
        np.concatenate([observation, rows], axis=1) for rows in (np.zeros_like(action), action)
    )
    value = scalar(take(members, 0), blind)
    advantage = np.minimum(*(scalar(take(members, twin), seen) for twin in (1, 2))) - value
    weight = np.maximum(1.0 + advantage / 5.0, 0.0)
    proposal = state.proposal.network
    centre = np.tanh(network(proposal.trunk.layers, proposal.centre, observation))
    scale = np.exp(network(proposal.trunk.layers, proposal.log_scale, observation))
    law = scipy_twin(centre, np.clip(scale, 1e-3, 10.0), 2.0)
    log_density = np.sum(law.logpdf(action), axis=1)
    weighted = np.sum(weight * log_density) / np.sum(weight)
    np.testing.assert_allclose(found["weighted_log_likelihood"][index], weighted, rtol=1e-4)
    np.testing.assert_allclose(found["log_likelihood"][index], np.mean(log_density), rtol=1e-4)
    np.testing.assert_allclose(found["zero_weight_share"][index], np.mean(weight == 0), atol=1e-7)

    # The support is where the density is not zero, in the units of the log.
    law = fttpo.policy(fttpo.spec.seeds[index])(jnp.asarray(HELD_OUT.observation))
    possible = np.isfinite(law.base_dist.log_prob(jnp.asarray(HELD_OUT.action)))
    assert 0 < possible.all(axis=1).mean() < 1
    for name, share in (
        ("logged_inside_support", possible.all(axis=1).mean()),
        ("logged_inside_support[0]", possible[:, 0].mean()),
        ("logged_inside_support[1]", possible[:, 1].mean()),
        ("good_inside_support", possible.all(axis=1)[advantage > 0].mean()),
    ):
        np.testing.assert_allclose(found[name][index], share, atol=1e-7, err_msg=name)
    # A band inside the box is two half-widths wide, and the box two half-ranges.
    np.testing.assert_allclose(
        found["support_percent"][index], 100.0 * found["half_width"][index], rtol=1e-5
    )


def test_the_table_has_mean_and_range_over_seeds(fttpo):
    table = validate(fttpo, HELD_OUT, training=LOGGED)
    of_seeds = {"training": held_out(fttpo, LOGGED), "validation": held_out(fttpo, HELD_OUT)}
    for part, found in of_seeds.items():
        for row in table:
            first, second = sorted(found[row["quantity"]])
            assert row[f"{part}_low"] == first and row[f"{part}_high"] == second
            assert row[part] == pytest.approx((first + second) / 2.0)
    assert "training" not in validate(fttpo, HELD_OUT)["td_error"]


def test_the_rows_have_the_names_of_the_actions(fttpo):
    columns = {"action": [{**Column(name).to_json(), "low": 0, "high": 1} for name in ("a", "b")]}
    named = dataclasses.replace(fttpo, about={**fttpo.about, "columns": columns})
    found, by_number = held_out(named, HELD_OUT), held_out(fttpo, HELD_OUT)
    for name, number in (("a", 0), ("b", 1)):
        expected = by_number[f"logged_inside_support[{number}]"]
        np.testing.assert_array_equal(found[f"logged_inside_support[{name}]"], expected)
    swapped = dataclasses.replace(HELD_OUT, action_columns=(Column("b"), Column("a")))
    with pytest.raises(ValueError, match="its action column 0 is 'b', the run learned from 'a'"):
        held_out(named, swapped)


def test_the_title_names_the_step_of_selected_policies(fttpo):
    def title(**selected):
        about = {**fttpo.about, **({"selected": selected} if selected else {})}
        return steps_of(dataclasses.replace(fttpo, step=20, about=about))

    assert title() == title(**{"3": 20, "5": 20}) == "after step 20"
    assert title(**{"3": 10, "5": 10}) == "policy selected after step 10 of 20"
    assert (
        title(**{"3": 10, "5": 20}) == "policy selected after step 10 (seed 3), 20 (seed 5) of 20"
    )
    assert "after step 1: 40 rows of log 1" in validate(fttpo, HELD_OUT).title


def test_validation_on_the_training_log_is_pointed_out(fttpo):
    (*_, note, verdict_line) = validate(fttpo, LOGGED).notes
    assert note.startswith("log 0 is the log that the run learned from")
    assert verdict_line.startswith("Verdict: ") and "overfitting cannot be judged" in verdict_line
    learned = make_log(0, rows=20)  # as the learned part of a run with a holdout
    assert "learned from" in validate(fttpo, learned, learned).notes[-2]
    assert "learned from" not in " ".join(validate(fttpo, HELD_OUT, LOGGED).notes)


def test_validation_on_episodes_of_the_training_log_is_pointed_out(fttpo):
    """The log repeats two episodes that were learned from, among two that were not."""
    mixed = concatenate([keep_episodes(LOGGED, np.array([1, 3]), "two"),
                         keep_episodes(HELD_OUT, np.array([0, 1]), "two")])  # fmt: skip
    (*_, note, line) = validate(fttpo, mixed, LOGGED).notes
    assert note.startswith("The run learned from 2 of the 4 episodes of log 0")
    assert "overfitting cannot be judged" in line
    assert "learned from" not in " ".join(validate(fttpo, mixed).notes)  # nobody knows


def judged(seen=False, **rows):
    """Return the verdict on (training, validation) by quantity."""
    known = {"logged_inside_support": (0.5, 0.5), "support_percent": (12.0, 12.0)} | rows
    return verdict(
        Table(
            "",
            tuple(
                {"quantity": name, "training": first, "validation": second}
                for name, (first, second) in known.items()
            ),
        ),
        seen,
    )


def test_the_verdict_follows_its_rules():
    text = "50 % of the logged actions lie inside a band of 12 % of the box. No warning sign"
    assert judged().startswith(text)
    assert judged(support_percent=(100.0, 100.0)).startswith("The policy can take any action")
    assert "hardly covers the policy" in judged(logged_inside_support=(0.04, HARDLY - 0.01))
    assert "hardly" not in judged(logged_inside_support=(HARDLY, HARDLY))
    overfitted = {"logged_inside_support": (TIMES * 0.4 + 0.01, 0.4)}
    assert "it holds 61 % of the training actions" in judged(**overfitted)
    assert "looks overfitted" not in judged(seen=True, **overfitted)
    assert "Q looks overfitted: its error is 1.6 times" in judged(td_error=(1.0, TIMES + 0.1))
    assert "overfitted" not in judged(td_error=(1.0, TIMES))


def test_the_verdict_judges_all_dimensions_together():
    text = judged(**{
        "logged_inside_support": (0.005, 0.005),
        "logged_inside_support[dose]": (0.4, 0.4), "logged_inside_support[rate]": (0.5, 0.5),
    })  # fmt: skip
    assert "only 0.5 % of the logged actions" in text
    assert "(the least, dose, by 40 %), but hardly any combination was tried" in text


def test_every_seed_gets_the_log_on_its_own_scales(iql):
    """Each seed learned from its own log; the expected values are computed with NumPy."""
    scales = [
        {
            "observation": {"mean": [seed, 2.0, -1.0], "scale": [1.0, 2.0, seed + 0.5]},
            "reward": {"shift": 0.0, "factor": seed},
        }
        for seed in (3.0, 5.0)
    ]
    run = dataclasses.replace(iql, about={**iql.about, "scales": scales})
    for index, of_seed in enumerate(scales):
        batch, seen = run_batch(run, HELD_OUT, index), of_seed["observation"]
        for found, raw in (
            (batch.observation, HELD_OUT.observation),
            (batch.next_observation, HELD_OUT.next_observation),
        ):
            expected = (raw - np.array(seen["mean"])) / np.array(seen["scale"])
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        factor = of_seed["reward"]["factor"]
        np.testing.assert_allclose(batch.reward, factor * HELD_OUT.reward, rtol=1e-6)


def test_a_log_with_another_action_box_is_refused(fttpo):
    other = make_log(1, low=LOW - 1.0)
    with pytest.raises(ValueError, match=r"'log 1' does not fit the run: its action_low is"):
        held_out(fttpo, other)


def test_the_training_log_is_found_only_while_it_is_unchanged(path, fttpo, tmp_path):
    assert training_log(fttpo).sha256 == LOGGED.sha256
    copy = tmp_path / "log.npz"
    copy.write_bytes(path.read_bytes())
    moved = dataclasses.replace(fttpo, spec=dataclasses.replace(fttpo.spec, dataset=str(copy)))
    assert training_log(moved).sha256 == LOGGED.sha256
    data.save_npz(HELD_OUT, copy)
    assert training_log(moved) is None
    copy.unlink()
    assert training_log(moved) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.names())
def test_held_out_evaluation_changes_no_network(path, name):
    run = make_run(path, name, 40, **(SMALL if name == "spot" else {}))
    found = held_out(run, HELD_OUT)
    assert {"logged_inside_support", "support_percent", "log_likelihood"} <= set(found)
    assert all(values.shape == (2,) for values in found.values())

    state = take(run.states, 0)
    still = dataclasses.replace(run.spec.config, learning_rate=0.0)
    problem, batch = run.program.problem, run_batch(run, HELD_OUT, 0)
    update = jax.jit(run.program.algorithm.update, static_argnums=(3, 4))
    moved, metrics = update(
        state, jax.tree.map(jnp.asarray, batch), jax.random.key(0), problem, still
    )
    assert all(np.all(np.isfinite(value)) for value in metrics.values())
    learners = [field for field in state._fields if isinstance(getattr(state, field), Learner)]
    assert learners
    for field in learners:
        before, after = (getattr(one, field).network for one in (state, moved))
        jax.tree.map(np.testing.assert_array_equal, before, after)
