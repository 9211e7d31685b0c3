"""The compiled loop: the result of a job depends only on its seed and settings."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin import algorithms
from fat2thin.engine import loop
from fat2thin.engine.metrics import TrainingDiverged
from fat2thin.engine.pack import data_size, on_device
from fat2thin.engine.program import Program, chunk_lengths
from fat2thin.engine.selection import SelectedState, choose
from fat2thin.evaluation.batches import batch_of, problem_of
from fat2thin.random_streams import Stream, stream_key
from side_by_side import assert_same_bits, make_jobs, raise_if_diverged


def make_program(world, sequential=True, batch_size=16, **settings):
    problem = problem_of(world.dataset())
    config = world.config(**settings)
    return Program(world.algorithm, problem, config, batch_size, sequential)


def run(program, jobs, data, lengths):
    states, start, reports = loop.init(jobs, program=program), 0, []
    for length in lengths:
        states, report = loop.chunk(
            states, data, jobs, jnp.int32(start), program=program, length=length
        )
        start += length
        reports.append(report)
    return states, reports


def own_data(world, seeds):
    return on_device([world.dataset(seed=seed) for seed in seeds])


def job(states, index):
    return jax.tree.map(lambda leaf: leaf[index], states)


def test_a_seed_alone_has_the_same_bits_as_in_a_pack(tiny_world):
    program = make_program(tiny_world)
    pack, _ = run(
        program, make_jobs(range(10), logs=range(10)), own_data(tiny_world, range(10)), [20]
    )
    alone, _ = run(program, make_jobs([3]), own_data(tiny_world, [3]), [20])
    assert_same_bits(job(pack, 3), job(alone, 0))
    assert not np.array_equal(pack.weight[3], pack.weight[2])


def test_an_inactive_job_keeps_its_state(tiny_world):
    """The other jobs are not affected."""
    program, jobs = make_program(tiny_world), make_jobs([3, 4, 5])
    data, states = on_device([tiny_world.dataset()]), loop.init(jobs, program=program)
    before = jax.device_get(states)
    active = jnp.array([True, False, True])
    after, _ = loop.chunk(states, data, jobs, jnp.int32(0), active, program=program, length=20)
    all_active, _ = run(program, jobs, data, [20])
    assert_same_bits(job(after, 1), job(before, 1))
    for place in (0, 2):
        assert_same_bits(job(after, place), job(all_active, place))


@pytest.mark.slow
def test_fttpo_alone_has_the_same_bits_as_in_a_pack(tiny_world):
    fttpo = algorithms.get("fttpo")
    problem = problem_of(tiny_world.dataset())
    program = Program(fttpo, problem, fttpo.config(hidden=(8,)), 16, sequential=True)
    pack, _ = run(program, make_jobs([1, 3], logs=[0, 1]), own_data(tiny_world, [1, 3]), [12])
    alone, _ = run(program, make_jobs([3]), own_data(tiny_world, [3]), [12])
    assert_same_bits(job(pack, 1), job(alone, 0))


def test_parallel_jobs_agree_with_sequential_ones(tiny_world):
    jobs, data = make_jobs(range(4)), on_device([tiny_world.dataset()])
    one_by_one, _ = run(make_program(tiny_world), jobs, data, [1])
    together, _ = run(make_program(tiny_world, sequential=False), jobs, data, [1])
    for one, other in zip(jax.tree.leaves(one_by_one), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_results_do_not_depend_on_the_lengths_of_chunks(tiny_world):
    program, jobs = make_program(tiny_world), make_jobs([0, 7, 1, 2])
    data = on_device([tiny_world.dataset()])
    whole, _ = run(program, jobs, data, [20])
    for lengths in ([4] * 5, [1] * 12 + [4] * 2):
        assert_same_bits(whole, run(program, jobs, data, lengths)[0])


def test_jobs_with_different_numeric_settings_equal_separate_runs(tiny_world):
    rates, noises = [0.05, 0.1, 0.3], [0.0, 0.1, 0.2]
    program, data = make_program(tiny_world), on_device([tiny_world.dataset()])
    jobs = make_jobs([4, 5], {"learning_rate": rates, "noise": noises})
    swept, _ = run(program, jobs, data, [10])
    for index, (rate, noise) in enumerate(zip(rates, noises, strict=True)):
        jobs = make_jobs([5], {"learning_rate": [rate], "noise": [noise]})
        separate, _ = run(program, jobs, data, [10])
        assert_same_bits(job(swept, 2 * index + 1), job(separate, 0))


def test_a_setting_has_the_same_effect_compiled_in_or_as_an_argument(tiny_world):
    data = on_device([tiny_world.dataset()])
    swept, _ = run(
        make_program(tiny_world),
        make_jobs([5], {"learning_rate": [0.3], "noise": [0.1]}),
        data,
        [10],
    )
    program = make_program(tiny_world, learning_rate=0.3, noise=0.1)
    fixed, _ = run(program, make_jobs([5]), data, [10])
    np.testing.assert_allclose(swept.weight, fixed.weight, rtol=1e-5)


def test_batches_are_the_documented_draws(tiny_world):
    dataset = tiny_world.dataset()
    jobs = make_jobs([2, 0, 1, 3])
    _, reports = run(make_program(tiny_world), jobs, on_device([dataset]), [4])
    base = jax.random.fold_in(jax.random.key(2), int(Stream.BATCH))
    means = [
        dataset.reward[jax.random.randint(jax.random.fold_in(base, step), (16,), 0, 40)].mean()
        for step in range(4)
    ]
    np.testing.assert_allclose(reports[0].metrics["reward"][0], np.mean(means), rtol=1e-5)


def test_padding_is_never_drawn(tiny_world):
    short, long = tiny_world.dataset(rows=20), tiny_world.dataset(rows=40)
    marked = dataclasses.replace(short, reward=np.full(20, 5.0, np.float32))
    data = on_device([marked, long])
    assert data.rows.reward.shape == (2, 40)
    both, reports = run(make_program(tiny_world), make_jobs([0, 1], logs=[0, 1]), data, [20])
    np.testing.assert_allclose(reports[0].metrics["reward"][0], 5.0, rtol=1e-6)
    alone, _ = run(make_program(tiny_world), make_jobs([0]), on_device([marked]), [20])
    assert_same_bits(job(both, 0), job(alone, 0))


def test_actions_are_in_half_ranges(tiny_world):
    dataset = tiny_world.dataset()
    (action,) = on_device([dataset]).rows.action
    np.testing.assert_allclose(action, (dataset.action - 1.0) / 3.0, atol=1e-6)


def test_next_actions_are_those_of_the_row_below_in_the_same_episode(tiny_world):
    """They are only made for algorithms that need them; shorter logs are padded."""
    dataset = tiny_world.dataset(rows=12)
    dataset = dataclasses.replace(dataset, episode_start=np.array([0, 5, 6]))
    assert on_device([dataset]).rows.next_logged is None
    longer = tiny_world.dataset(rows=20)
    data = on_device([dataset, longer], next_action=True)
    rows = data.rows
    first = rows.batch(jnp.int32(0), jnp.arange(12), data.row_count[0])
    known = np.array([1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(rows.next_logged[0, :12], known)
    np.testing.assert_array_equal(
        first.next_action[:11][known[:11] == 1], rows.action[0, 1:12][known[:11] == 1]
    )
    assert rows.action.shape == (2, 20, 2)
    on_host = batch_of(dataset, next_action=True)
    np.testing.assert_array_equal(on_host.next_logged, known)
    np.testing.assert_allclose(on_host.next_action, first.next_action, atol=1e-6)
    assert batch_of(dataset).next_logged is None
    extra = data_size(dataset, next_action=True) - data_size(dataset)
    assert extra == 12 * 4


def test_chunks_share_one_compilation(tiny_world):
    program, jobs = make_program(tiny_world), make_jobs(range(4))
    data = on_device([tiny_world.dataset()])
    run(program, jobs, data, [4])
    traced = len(tiny_world.traces)
    run(program, jobs, data, [4, 4, 4])
    assert len(tiny_world.traces) == traced


def broken_jobs(place, update, seeds, broken_seed):
    key = stream_key(broken_seed, Stream.INITIAL_STATE)
    identity = float(jax.random.uniform(key, (3, 2))[0, 0])
    planted = {"bad_identity": [identity], "bad_update": [update], "bad_place": [place]}
    return make_jobs(seeds, planted)


@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize(("place", "metric"), [(0, "loss"), (1, "reward"), (2, "state")])
def test_divergence_is_reported_at_its_update(tiny_world, place, metric, sequential):
    program, data = (
        make_program(tiny_world, sequential),
        on_device([tiny_world.dataset()]),
    )
    jobs = broken_jobs(place, 7, seeds=range(4), broken_seed=2)
    start, _ = run(program, jobs, data, [4])
    kept, reports = run(program, jobs, data, [4, 4])
    # The job that diverged keeps its state; the others continue unaffected.
    unbroken = make_jobs(range(4), {name: [-1.0] for name in jobs.settings})
    others, _ = run(program, unbroken, data, [4, 4])
    for place in range(4):
        assert_same_bits(job(kept, place), job(start if place == 2 else others, place))
    raise_if_diverged(reports[0], jobs, 0)
    with pytest.raises(TrainingDiverged, match=rf"{metric} is not finite at step 8 \(seed 2") as e:
        raise_if_diverged(reports[1], jobs, 4)
    assert (e.value.seed, e.value.step, e.value.metric) == (2, 8, metric)
    assert e.value.last_good_step == 4
    assert "Try a smaller learning rate" in str(e.value)


@pytest.mark.parametrize("updates", [3, 0.5])
def test_rows_drawn_in_blocks_give_the_same_bits(tiny_world, monkeypatch, updates):
    program = dataclasses.replace(make_program(tiny_world), batch_size=11)
    data = on_device([tiny_world.dataset()])
    whole, broken = (broken_jobs(0, update, seeds=range(4), broken_seed=2) for update in (99, 7))
    expected, (report,) = run(program, whole, data, [12])
    ahead = int(updates * loop.batch_bytes(program))
    monkeypatch.setattr(loop, "DRAWN_AHEAD", ahead)
    loop.chunk.clear_cache()
    found, (in_blocks,) = run(program, whole, data, [12])
    _, (of_broken,) = run(program, broken, data, [12])
    loop.chunk.clear_cache()
    assert_same_bits(found, expected)
    for name, means in report.metrics.items():
        np.testing.assert_allclose(in_blocks.metrics[name], means, rtol=1e-5)
    np.testing.assert_array_equal(in_blocks.bad_update, -1)
    np.testing.assert_array_equal(of_broken.bad_update, [-1, -1, 7, -1])


def test_rows_drawn_ahead_are_counted_in_bytes(tiny_world):
    # Three observations twice, two actions, reward and continuation, in single precision.
    program = dataclasses.replace(make_program(tiny_world), batch_size=11)
    assert loop.batch_bytes(program) == 11 * (3 + 2 + 1 + 3 + 1) * 4


def test_a_state_that_is_not_finite_shows_in_the_next_metric(tiny_world):
    jobs = broken_jobs(2, 1, seeds=range(4), broken_seed=0)
    data = on_device([tiny_world.dataset()])
    _, (report,) = run(make_program(tiny_world), jobs, data, [4])
    with pytest.raises(TrainingDiverged, match=r"loss is not finite at step 3 \(seed 0"):
        raise_if_diverged(report, jobs, 0)


def test_divergence_names_the_setting(tiny_world):
    rates = [0.1, 1e30, 0.1]
    jobs = make_jobs([0, 1], {"learning_rate": rates, "noise": [0.0] * 3})
    data = on_device([tiny_world.dataset()])
    _, (report,) = run(make_program(tiny_world), jobs, data, [10])
    assert report.bad_update[0] == -1
    with pytest.raises(TrainingDiverged, match=r"seed 0, learning_rate=1e\+30, noise=0"):
        raise_if_diverged(report, jobs, 0)


@pytest.mark.parametrize(
    ("stops", "longest", "expected"),
    [
        ([0, 100, 200], 250, [100, 100]),
        ([0, 1000, 2000], 250, [250] * 8),
        ([100, 1000], 250, [100] * 10),
        ([20], 250, [20]),
        ([1009], 250, [250, 250, 250, 250, 9]),
        ([0, 7, 1000], 250, [7, 250, 250, 250, 243]),
        ([1], 250, [1]),
    ],
)
def test_chunks_end_at_every_stop(stops, longest, expected):
    lengths = chunk_lengths(stops, longest)
    assert lengths == expected
    assert {stop for stop in stops if stop} <= set(np.cumsum(lengths).tolist())


@pytest.mark.parametrize(
    ("score", "sound", "step"),
    [(2.0, True, 10), (3.0, True, 10), (np.nan, True, 10), (4.0, False, 10), (4.0, True, 20)],
)
def test_only_a_finite_and_better_state_replaces_the_best(score, sound, step):
    """Of two equally good states the first is kept."""
    before = SelectedState(jnp.zeros(2), jnp.ones(2), jnp.float32(3.0), jnp.int32(10))
    learning = jnp.full(2, 7.0)
    kept = choose(before, learning, jnp.float32(score), jnp.int32(20), jnp.asarray(sound))
    np.testing.assert_array_equal(kept.learning, learning)
    np.testing.assert_array_equal(kept.best, learning if step == 20 else before.best)
    assert (kept.step, kept.score) == (step, 4.0 if step == 20 else 3.0)
