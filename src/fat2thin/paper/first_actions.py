"""What a first dose is worth: returns from one state of the treatment task, by that dose."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fat2thin.envs import treatment
from fat2thin.envs.treatment import Patient, Treatment
from fat2thin.policies.policy import Policy

EARLIER_STEPS, EARLIER_DOSE = 7, -0.03
RETURN_STEPS, FIRST_DOSES, FUTURES = 50, 50, 400
PATIENT_SEED = 0


class FirstActions(NamedTuple):
    """Returns of futures that begin with each of some doses."""

    observation: Float[Array, " observation"]
    """What is seen of the patient."""
    doses: Float[np.ndarray, " doses"]
    returns: Float[np.ndarray, "doses futures"]


def first_action_returns(actor: Policy, task: Treatment) -> FirstActions:
    """Undiscounted returns of 50 steps by first dose, the actor's centre afterwards.

    The patient has had 7 doses of -0.03. The futures are the same for every dose and every actor;
    what is drawn for them is of no stream of training or evaluation.
    """
    state, observation = patient_after_doses(task)
    doses = np.linspace(task.dose_low, task.dose_high, FIRST_DOSES)
    returns = returns_of_first_doses(actor, state, task, jnp.asarray(doses, jnp.float32))
    return FirstActions(observation, doses, np.asarray(returns))


def patient_after_doses(task: Treatment) -> tuple[Patient, Float[Array, " observation"]]:
    """The patient: what the task knows of it, and what is seen."""
    key = jax.random.key(PATIENT_SEED)
    state, observation = treatment.reset(key, task)
    dose = jnp.full(treatment.ACTION_SIZE, EARLIER_DOSE)
    for step in range(EARLIER_STEPS):
        state, observation, *_ = treatment.step(jax.random.fold_in(key, step), state, dose, task)
    return state, observation


def returns_of_first_doses(
    actor: Policy, state: Patient, task: Treatment, doses: Float[Array, " doses"]
) -> Float[Array, "doses futures"]:
    """Undiscounted returns from a state, by first dose; the same futures for each of them."""
    future_keys = jax.random.split(
        jax.random.fold_in(jax.random.key(PATIENT_SEED), EARLIER_STEPS), FUTURES
    )

    def one(dose: Array, key: Array) -> Array:
        def go_on(carry: tuple[Patient, Array], time: Array) -> tuple[tuple[Patient, Array], Array]:
            now, action = carry
            now, observation, reward, _ = treatment.step(
                jax.random.fold_in(key, time), now, action, task
            )
            return (now, actor.act(observation)), reward

        return jnp.sum(jax.lax.scan(go_on, (state, dose[None]), jnp.arange(RETURN_STEPS))[1])

    over_futures = jax.vmap(one, in_axes=(None, 0))
    return jax.jit(jax.vmap(over_futures, in_axes=(0, None)))(doses, future_keys)
