"""Names of treatment logs with a number of trajectories."""

import numpy as np
import pytest

from fat2thin import data
from fat2thin.data.dataset import Dataset
from fat2thin.envs import treatment
from fat2thin.evaluation.returns import TreatmentEvaluator, evaluator

FIELDS = ("observation", "action", "reward", "next_observation", "continuation")
WRONG = (
    "treatment/quadratic@", "treatment/quadratic@abc", "treatment/quadratic@-5",
    "treatment/quadratic@2.5", "treatment/quadratic@ 5", "treatment/quadratic@5@5",
    "treatment/septic@5", "treatment/@5", "@5", "",
)  # fmt: skip


@pytest.fixture(scope="module")
def small() -> Dataset:
    return data.load("treatment/quadratic@3", 7)


@pytest.mark.parametrize("variant", treatment.VARIANTS)
def test_every_variant_has_logs_of_any_size_and_one_task(variant):
    assert treatment.is_name(variant) and treatment.is_name(f"{variant}@200")
    assert treatment.by_name(f"{variant}@200") is treatment.by_name(variant)
    assert data.reader(f"{variant}@200") is data.reader(variant)


@pytest.mark.parametrize("name", WRONG)
def test_the_error_about_an_unknown_name_lists_the_known_ones(name):
    assert not treatment.is_name(name)
    with pytest.raises(ValueError, match="no treatment task is called") as error:
        treatment.by_name(name)
    assert repr(name) in str(error.value) and "treatment/quadratic-fixed" in str(error.value)


@pytest.mark.parametrize("name", WRONG)
def test_a_log_of_an_unknown_name_is_refused(name):
    with pytest.raises(ValueError, match=r"no (data set|treatment task) is called") as error:
        data.load(name)
    assert repr(name) in str(error.value)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("treatment/cubic", 50),
        ("treatment/cubic@1", 1),
        ("treatment/cubic@200", 200),
        ("treatment/cubic-fixed-zero@1000", 1000),
        (f"treatment/cubic@{treatment.MOST_TRAJECTORIES}", treatment.MOST_TRAJECTORIES),
    ],
)
def test_the_number_after_the_at_sign_is_that_of_trajectories(name, count):
    assert treatment.trajectories_of(name) == count


@pytest.mark.parametrize("count", [0, "000", treatment.MOST_TRAJECTORIES + 1, 10**6, "9" * 5000])
def test_zero_or_too_many_trajectories_are_refused_before_drawing(count):
    with pytest.raises(ValueError, match="1 to 100,000 trajectories"):
        data.load(f"treatment/cubic@{count}")


def test_the_log_has_the_named_number_of_trajectories(small):
    task = treatment.by_name("treatment/quadratic")
    assert small.name == "treatment/quadratic@3"
    assert small.rows == 3 * task.horizon == 72
    np.testing.assert_array_equal(small.episode_start, [0, 24, 48])
    assert small.discount == task.discount
    assert (small.action_low, small.action_high) == ((task.dose_low,), (task.dose_high,))


@pytest.mark.parametrize("larger", ["treatment/quadratic", "treatment/quadratic@200"])
def test_a_larger_log_starts_with_the_smaller_one(small, larger):
    many = data.load(larger, 7)
    assert many.rows == 24 * treatment.trajectories_of(larger)
    for field in FIELDS:
        # Programs of different sizes may round the last digit differently.
        np.testing.assert_allclose(
            getattr(many, field)[: small.rows], getattr(small, field), rtol=0, atol=5e-6,
            err_msg=field,
        )  # fmt: skip


def test_each_seed_has_its_own_log(small):
    assert not np.array_equal(data.load("treatment/quadratic@3", 8).reward, small.reward)


def test_policies_are_evaluated_on_the_task_of_their_log():
    assert evaluator("treatment/quadratic-zero@25", None) == TreatmentEvaluator(
        treatment.by_name("treatment/quadratic-zero")
    )
