"""Names of logs that say how many trajectories there are."""

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
def test_what_names_nothing_is_refused_with_its_name_and_the_right_ones(name):
    assert not treatment.is_name(name)
    with pytest.raises(ValueError, match="no treatment task is called") as told:
        treatment.by_name(name)
    assert repr(name) in str(told.value) and "treatment/quadratic-fixed" in str(told.value)


@pytest.mark.parametrize("name", WRONG)
def test_no_log_is_read_of_what_names_nothing(name):
    with pytest.raises(ValueError, match=r"no (data set|treatment task) is called") as told:
        data.load(name)
    assert repr(name) in str(told.value)


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
def test_the_number_behind_the_at_is_that_of_trajectories(name, count):
    assert treatment.trajectories_of(name) == count


@pytest.mark.parametrize("count", [0, "000", treatment.MOST_TRAJECTORIES + 1, 10**6, "9" * 5000])
def test_a_log_of_none_or_of_too_many_is_refused_before_it_is_drawn(count):
    with pytest.raises(ValueError, match="1 to 100,000 trajectories"):
        data.load(f"treatment/cubic@{count}")


def test_the_log_has_so_many_trajectories_of_the_task(small):
    task = treatment.by_name("treatment/quadratic")
    assert small.name == "treatment/quadratic@3"
    assert small.rows == 3 * task.horizon == 72
    np.testing.assert_array_equal(small.episode_start, [0, 24, 48])
    assert small.discount == task.discount
    assert (small.action_low, small.action_high) == ((task.dose_low,), (task.dose_high,))


@pytest.mark.parametrize("larger", ["treatment/quadratic", "treatment/quadratic@200"])
def test_a_larger_log_begins_with_the_smaller_one(small, larger):
    many = data.load(larger, 7)
    assert many.rows == 24 * treatment.trajectories_of(larger)
    for field in FIELDS:
        # Programs of other sizes round the last digit otherwise.
        np.testing.assert_allclose(
            getattr(many, field)[: small.rows], getattr(small, field), rtol=0, atol=5e-6,
            err_msg=field,
        )  # fmt: skip


def test_each_seed_has_a_log_of_its_own(small):
    assert not np.array_equal(data.load("treatment/quadratic@3", 8).reward, small.reward)


def test_policies_of_every_log_are_judged_on_its_task():
    assert evaluator("treatment/quadratic-zero@25", None) == TreatmentEvaluator(
        treatment.by_name("treatment/quadratic-zero")
    )
