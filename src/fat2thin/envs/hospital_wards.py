"""Two simulated wards, insulin and sepsis, as pure functions of one patient's observation.

Both are Markov in what is observed. Deaths and discharges are true ends, rewards are never
positive, and practice draws its actions from a density that is known exactly. The numbers are ours,
chosen so that the courses look plausible; they are no model of real patients. The cost of glucose
is the risk index of Kovatchev et al. (1997), 10 [1.509 (ln(g)^1.084 − 5.381)]².
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jaxtyping import Array, Float, PRNGKeyArray

from fat2thin.columns import Column

Observation = Float[Array, " observation"]
Action = Float[Array, " action"]


class Practice(NamedTuple):
    """How a clinician acts in one state: a mixture of normals, truncated to the action box."""

    weight: Float[Array, " modes"]
    centre: Float[Array, "modes action"]
    scale: Float[Array, "modes action"]


class Outcome(NamedTuple):
    """What follows from one action."""

    observation: Observation
    reward: Float[Array, ""]
    died: Float[Array, ""]
    """1 if the patient died in this step, a true end."""
    discharged: Float[Array, ""]
    """1 if the patient was discharged, a true end."""


@dataclasses.dataclass(frozen=True)
class Ward:
    """One ward; hashable, so that it can be static under `jax.jit`."""

    name: str
    observation_columns: tuple[Column, ...]
    action_columns: tuple[Column, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    horizon: int
    """Steps after which an episode is cut."""
    discount: float
    reward_range: tuple[float, float]
    """The lowest and the highest reward that a step can have."""
    admit: Callable[[PRNGKeyArray], Observation]
    """Draws the first observation of a patient."""
    respond: Callable[[PRNGKeyArray, Observation, Action, Array], Outcome]
    """Draws what follows from an observation, an action and the impression."""
    practice: Callable[[Observation, Array], Practice]
    """The law of a clinician's action, given the observation and the impression."""
    guideline: Callable[[Observation], Practice]
    """The law of a policy that is better than practice."""
    transfer_rate: float = 0.0
    """Probability per step that a patient is transferred, which cuts the log of the episode."""
    hidden: bool = False
    """Whether a clinician's impression, which is not logged, affects both dose and death. It is −1
    or 1 with equal probability, drawn anew in every step."""


# Insulin: one dose every six hours, for up to five days.

_GLUCOSE, _ON_BOARD, _CARBOHYDRATE, _CRP, _EGFR, _WEIGHT, _AGE = range(7)
_LARGEST_DOSE = 20.0
_GLUCOSE_RANGE = 20.0, 600.0


def glucose_risk(glucose: Float[Array, ""]) -> Float[Array, ""]:
    """Return the risk index of a blood glucose in mg/dL: 0 at 112.5, 36 at 40 and 45 at 330.

    Examples:
        >>> print(f"{float(glucose_risk(jnp.asarray(40.0))):.0f}")
        36
    """
    return 10.0 * (1.509 * (jnp.log(glucose) ** 1.084 - 5.381)) ** 2


def _meal(key: PRNGKeyArray) -> Float[Array, ""]:
    # The median of three uniform numbers has the law Beta(2, 2), and compiles faster.
    return 15.0 + 60.0 * jnp.median(jax.random.uniform(key, (3,)))


def _admit_diabetic(key: PRNGKeyArray) -> Observation:
    keys = jax.random.split(key, 6)
    normal = jax.vmap(jax.random.normal)(keys[:5])
    weight = jnp.clip(82.0 + 16.0 * normal[1], 45.0, 140.0)
    age = jnp.clip(66.0 + 12.0 * normal[2], 20.0, 95.0)
    egfr = jnp.clip(120.0 - 0.9 * age + 20.0 * normal[3], 12.0, 125.0)
    crp = jnp.clip(jnp.exp(3.7 + 0.7 * normal[4]), 1.0, 300.0)
    glucose = jnp.clip(190.0 + 0.3 * crp + 45.0 * normal[0], *_GLUCOSE_RANGE)
    return jnp.stack([glucose, jnp.zeros(()), _meal(keys[5]), crp, egfr, weight, age])


def _unit_effect(observation: Observation) -> Float[Array, ""]:
    """Return by how many mg/dL one unit of insulin lowers the glucose."""
    resistance = 1.0 + observation[_CRP] / 150.0
    retention = 1.0 + 0.9 * jnp.clip(1.0 - observation[_EGFR] / 80.0, 0.0, 1.0)
    return 2000.0 / observation[_WEIGHT] * retention / resistance


def _give_insulin(
    key: PRNGKeyArray, observation: Observation, action: Action, impression: Array
) -> Outcome:
    del impression
    noise, meal_key, crp_key, end_key = jax.random.split(key, 4)
    glucose, crp = observation[_GLUCOSE], observation[_CRP]
    insulin = 0.75 * action[0] + 0.5 * observation[_ON_BOARD]
    rise = 2.2 * observation[_CARBOHYDRATE] * 82.0 / observation[_WEIGHT]
    level = 100.0 + 0.35 * crp
    glucose = glucose - 0.35 * (glucose - level) + 0.75 * rise - _unit_effect(observation) * insulin
    glucose = jnp.clip(glucose + 18.0 * jax.random.normal(noise), *_GLUCOSE_RANGE)
    crp = jnp.clip(crp * jnp.exp(0.2 * jax.random.normal(crp_key) - 0.07), 1.0, 300.0)
    following = observation.at[_GLUCOSE].set(glucose).at[_CRP].set(crp)
    following = following.at[_ON_BOARD].set(0.25 * action[0] + 0.3 * observation[_ON_BOARD])
    following = following.at[_CARBOHYDRATE].set(_meal(meal_key))
    frailty = 1.0 + jnp.clip((observation[_AGE] - 60.0) / 20.0, 0.0, 2.0)
    death = frailty * (
        0.001 + 0.06 * sigmoid((42.0 - glucose) / 5.0) + 0.02 * sigmoid((glucose - 420.0) / 25.0)
    )
    home = 0.15 * sigmoid((40.0 - crp) / 8.0) * sigmoid((200.0 - glucose) / 15.0)
    died, discharged = _ends(end_key, death, home)
    reward = -glucose_risk(glucose) / 10.0 - 40.0 * died
    return Outcome(following, reward, died, discharged)


def _ends(key: PRNGKeyArray, death: Array, home: Array) -> tuple[Array, Array]:
    """Draw whether a patient dies and, if not, whether they are discharged, as numbers."""
    death_draw, home_draw = jax.random.uniform(key, (2,))
    died = (death_draw < death).astype(jnp.float32)
    return died, (1.0 - died) * (home_draw < home)


def _insulin_practice(observation: Observation, impression: Array) -> Practice:
    """A sliding scale that ignores weight and kidneys and doses half of the carbohydrates."""
    del impression
    correction = 0.02 * jnp.maximum(observation[_GLUCOSE] - 130.0, 0.0)
    centre = jnp.clip(correction + observation[_CARBOHYDRATE] / 20.0, 0.5, 14.0)
    return Practice(jnp.ones(1), centre[None, None], jnp.full((1, 1), 2.0))


def _insulin_guideline(observation: Observation) -> Practice:
    """The dose that is expected to bring the glucose to 135 mg/dL, with little spread."""
    level = 100.0 + 0.35 * observation[_CRP]
    rise = 0.75 * 2.2 * observation[_CARBOHYDRATE] * 82.0 / observation[_WEIGHT]
    expected = 0.65 * observation[_GLUCOSE] + 0.35 * level + rise
    needed = (expected - 135.0) / _unit_effect(observation)
    dose = jnp.clip((needed - 0.5 * observation[_ON_BOARD]) / 0.75, 0.0, _LARGEST_DOSE)
    return Practice(jnp.ones(1), dose[None, None], jnp.full((1, 1), 0.5))


INSULIN = Ward(
    name="hospital/insulin",
    observation_columns=(
        Column("glucose", "mg/dL"), Column("insulin_on_board", "units"),
        Column("carbohydrate", "g"), Column("crp", "mg/L"), Column("egfr", "mL/min/1.73m2"),
        Column("weight", "kg"), Column("age", "years"),
    ),
    action_columns=(Column("insulin", "units"),),
    action_low=(0.0,), action_high=(_LARGEST_DOSE,),
    horizon=20, discount=0.97, reward_range=(-50.1, 0.0),
    admit=_admit_diabetic, respond=_give_insulin,
    practice=_insulin_practice, guideline=_insulin_guideline, transfer_rate=0.02,
)  # fmt: skip
"""Doses of insulin for diabetic patients; some are transferred, which cuts their episodes."""


# Sepsis: a vasopressor rate and a volume of fluids every four hours, for up to three days.

_MAP, _LACTATE, _CREATININE, _BALANCE, _OXYGEN, _SEPSIS_AGE = range(6)
_BOX = (0.0, 0.0), (1.0, 1000.0)
_DEATH_BY_IMPRESSION = 0.7  # change of the log-odds of death
_DOSE_BY_IMPRESSION = 1 / 6  # change of the probability of the larger dose


def _admit_septic(key: PRNGKeyArray) -> Observation:
    normal = jax.random.normal(key, (6,))
    age = jnp.clip(64.0 + 14.0 * normal[0], 18.0, 95.0)
    lactate = jnp.clip(jnp.exp(1.4 + 0.4 * normal[1]), 0.5, 15.0)
    pressure = jnp.clip(64.0 - 1.5 * (lactate - 3.5) + 6.0 * normal[2], 35.0, 110.0)
    creatinine = jnp.clip(jnp.exp(0.25 + 0.35 * normal[3]), 0.4, 8.0)
    balance = jnp.clip(0.8 + 0.6 * normal[4], -2.0, 4.0)
    oxygen = jnp.clip(260.0 - 15.0 * balance + 50.0 * normal[5], 70.0, 450.0)
    return jnp.stack([pressure, lactate, creatinine, balance, oxygen, age])


def _treat_sepsis(
    key: PRNGKeyArray, observation: Observation, action: Action, impression: Array
) -> Outcome:
    pressure, lactate, creatinine, balance, oxygen, age = observation
    vasopressor, fluids = action[0], action[1] / 1000.0
    state_key, end_key = jax.random.split(key)
    normal = jax.random.normal(state_key, (4,))
    natural = 70.0 - 2.5 * lactate
    lift = 20.0 * vasopressor / (vasopressor + 0.15) + 9.0 * fluids * jnp.exp(-balance / 3.0)
    pressure = natural + 0.45 * (pressure - natural) + 0.6 * lift + 3.0 * normal[0]
    pressure = jnp.clip(pressure, 35.0, 120.0)
    low = jnp.maximum(66.0 - pressure, 0.0)
    constriction = jnp.maximum(vasopressor - 0.25, 0.0)
    lactate = 0.86 * lactate + 0.12 + 0.03 * low + 1.2 * constriction + 0.2 * normal[1]
    lactate = jnp.clip(lactate, 0.5, 15.0)
    urine = 0.45 * sigmoid((pressure - 60.0) / 5.0) / creatinine
    balance = jnp.clip(balance + fluids - urine, -3.0, 12.0)
    creatinine = creatinine + 0.02 * low - 0.03 * (creatinine - 1.0) + 0.04 * normal[2]
    creatinine = jnp.clip(creatinine, 0.4, 8.0)
    target = 320.0 - 40.0 * jnp.maximum(balance - 1.0, 0.0)
    oxygen = jnp.clip(oxygen + 0.2 * (target - oxygen) + 12.0 * normal[3], 60.0, 450.0)
    following = jnp.stack([pressure, lactate, creatinine, balance, oxygen, age])
    odds = (
        -5.0 + 0.35 * (lactate - 2.0) + 0.08 * jnp.maximum(60.0 - pressure, 0.0)
        + 0.02 * jnp.maximum(220.0 - oxygen, 0.0) + 0.2 * (creatinine - 1.0)
        + 0.02 * (age - 64.0) + _DEATH_BY_IMPRESSION * impression
    )  # fmt: skip
    stable = sigmoid((pressure - 64.0) / 2.0) * sigmoid((2.2 - lactate) / 0.3)
    home = 0.4 * stable * sigmoid((0.2 - vasopressor) / 0.05)
    died, discharged = _ends(end_key, sigmoid(odds), home)
    cost = 0.1 + 0.1 * jnp.maximum(lactate - 2.0, 0.0) + 0.02 * low + 0.5 * vasopressor
    return Outcome(following, -cost - 20.0 * died, died, discharged)


def _sepsis_practice(observation: Observation, impression: Array) -> Practice:
    """Generous fluids whatever the balance, and one of two vasopressor rates."""
    rate = jnp.clip(0.02 * (76.0 - observation[_MAP]), 0.05, 0.6)
    volume = jnp.clip(450.0 + 100.0 * (observation[_LACTATE] - 2.0), 100.0, 900.0)
    larger = 0.5 + _DOSE_BY_IMPRESSION * impression
    centre = jnp.stack([jnp.stack([0.7 * rate, volume]), jnp.stack([1.4 * rate, volume])])
    scale = jnp.broadcast_to(jnp.array([[0.09, 180.0]]), (2, 2))
    return Practice(jnp.stack([1.0 - larger, larger]), centre, scale)


def _sepsis_guideline(observation: Observation) -> Practice:
    """A lower pressure target, and less fluid the more the patient already has."""
    rate = jnp.clip(0.02 * (68.0 - observation[_MAP]), 0.0, 0.3)
    volume = jnp.clip(400.0 - 200.0 * observation[_BALANCE], 0.0, 400.0)
    return Practice(jnp.ones(1), jnp.stack([rate, volume])[None], jnp.array([[0.03, 60.0]]))


SEPSIS = Ward(
    name="hospital/sepsis",
    observation_columns=(
        Column("mean_arterial_pressure", "mmHg"), Column("lactate", "mmol/L"),
        Column("creatinine", "mg/dL"), Column("fluid_balance", "L"),
        Column("oxygenation", "mmHg"), Column("age", "years"),
    ),
    action_columns=(Column("vasopressor", "ug/kg/min"), Column("fluids", "mL")),
    action_low=_BOX[0], action_high=_BOX[1],
    horizon=18, discount=0.97, reward_range=(-22.6, -0.1),
    admit=_admit_septic, respond=_treat_sepsis,
    practice=_sepsis_practice, guideline=_sepsis_guideline,
)  # fmt: skip
"""Vasopressors and fluids in septic shock; practice overloads patients with fluids."""


SEPSIS_HIDDEN = dataclasses.replace(SEPSIS, name="hospital/sepsis-hidden", hidden=True)
"""The same with an unobserved confounder: the clinician's impression of a patient raises the
probability of the larger dose by 1/6, and the log-odds of death by 0.7. Given what is logged, the
density of an action changes by a factor between 2/3 and 4/3, so Γ = 1.5."""

WARDS = {ward.name: ward for ward in (INSULIN, SEPSIS, SEPSIS_HIDDEN)}
"""Every ward, by name."""
