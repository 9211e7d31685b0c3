"""Programs that are compiled with little effort, or in a thread: the same bits, and each once."""

import itertools
import os
import subprocess
import sys
from collections import Counter

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fat2thin
from fat2thin import algorithms
from fat2thin.compilation import QuicklyCompiled
from fat2thin.data.scaling import find_scales
from fat2thin.engine import loop
from fat2thin.engine.pack import jobs_of, make_program
from fat2thin.envs import treatment
from fat2thin.evaluation.batches import problem_of
from fat2thin.training import make_spec

DATA = "treatment/quadratic@3"
MOST = 14
"""Programs of a first run at most: log, initial states, evaluation, updates, and constants."""
EPISODES = (1, 3, 50, 200)
FLAGS = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")


@pytest.fixture
def compiled():
    """Count compilations by the name of the program; JAX's cache on disk counts too."""
    counted = Counter()

    def count(event, start_time, end_time, **about):
        if event.endswith("backend_compile_duration"):
            counted[about["fun_name"]] += 1

    jax.monitoring.register_event_time_span_listener(count)
    yield counted
    jax.monitoring.unregister_event_time_span_listener(count)


def test_a_run_compiles_each_program_once_and_the_next_run_none(compiled):
    """The updates are compiled in a thread, where the call of the program must find them."""

    def train(seed):
        fat2thin.train("bc", DATA, steps=4, seeds=[seed], batch_size=8, evaluate_every=2,
                       episodes=2, hidden=(3,), settings_from="default")  # fmt: skip

    jax.clear_caches()
    train(0)
    assert compiled["jit(chunk)"] == compiled["jit(evaluate)"] == compiled["jit(init)"] == 1
    assert compiled.total() <= MOST
    compiled.clear()
    train(1)
    assert compiled.total() == 0


def test_a_quickly_compiled_function_is_part_of_other_programs():
    double = QuicklyCompiled(lambda x, times: times * x, static_argnames="times")
    assert jax.jit(lambda x: double(x, times=2) + 1.0)(jnp.float32(3.0)) == 7.0
    assert double(jnp.float32(3.0), times=2) == 6.0
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    assert double.eval_shape(shape, times=2) == shape
    assert eqx.filter_eval_shape(lambda x: double(x, times=2), shape) == shape
    double.clear_cache()
    assert double(jnp.float32(3.0), times=3) == 9.0


def initial_states(algorithm):
    config = algorithms.get(algorithm).config(hidden=(64, 16))
    spec = make_spec(algorithm, DATA, config=config, steps=1, seeds=2)
    dataset = fat2thin.data.load(DATA)
    jobs = jobs_of(spec, [find_scales(dataset, spec.standardise, spec.reward_scale)])
    return loop.init, (jobs,), {"program": make_program(spec, problem_of(dataset))}


def calls():
    """Yield every quickly compiled function with arguments."""
    for algorithm in algorithms.names():
        yield algorithm, *initial_states(algorithm)
    for name, episodes in itertools.product(treatment.VARIANTS, EPISODES):
        task = treatment.by_name(name)
        yield f"{name}@{episodes}", treatment._log_of_seed, (np.int32(7), task, episodes), {}


def differences():
    """Return where results have other bits than with all optimisations."""
    found = []
    for name, function, arguments, named in calls():
        full = jax.jit(function._function, **function._options)(*arguments, **named)
        pairs = zip(*map(jax.tree.leaves, (function(*arguments, **named), full)), strict=True)
        if any(np.asarray(one).tobytes() != np.asarray(other).tobytes() for one, other in pairs):
            found.append(name)
    return found


@pytest.mark.slow
@pytest.mark.long
def test_less_optimisation_keeps_all_bits():
    """In a process of its own, with the optimisations that the flags of tests turn off."""
    environment = {name: value for name, value in os.environ.items() if name not in FLAGS}
    command = [sys.executable, __file__]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, "[]\n"), answer.stderr


if __name__ == "__main__":
    print(differences())
