"""Runs with random instead of trained networks: no update has to be compiled for them."""

import jax
import jax.numpy as jnp
import numpy as np

from fat2thin import data, training
from fat2thin.algorithms.steps import Learner
from fat2thin.data.scaling import find_scales
from fat2thin.engine import loop
from fat2thin.engine.pack import jobs_of, make_program
from fat2thin.evaluation.batches import problem_of
from fat2thin.runs.result import Evaluations, Run


def untrained_run(algorithm, path, noise_seed=0, load=data.load, **options):
    """Return a run in memory, on standardised data, with random networks."""
    spec = training.make_spec(algorithm, str(path), steps=1, standardise=True, **options)
    dataset = load(spec.dataset)
    scales = find_scales(dataset, spec.standardise, spec.reward_scale, spec.centre_values)
    program = make_program(spec, problem_of(dataset))
    jobs = jobs_of(spec, [scales])
    fresh, rng = loop.init(jobs, program=program), np.random.default_rng(noise_seed)
    return Run(
        spec=spec,
        step=1,
        metrics={},
        evaluations=Evaluations((), {}),
        folder=None,
        about={"sha256": [dataset.sha256], "scales": [scales.to_json()]},
        program=program,
        jobs=jobs,
        states=type(fresh)(*(_shaken(part, rng) for part in fresh)),
        snapshots={},
    )


def _shaken(part, rng):
    """Add noise: target networks start as copies and biases as zeros, which would hide mix-ups."""
    if isinstance(part, Learner):
        return part._replace(network=_shaken(part.network, rng))
    return jax.tree.map(lambda leaf: leaf + jnp.asarray(rng.normal(0.0, 0.5, leaf.shape)), part)
