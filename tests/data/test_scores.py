import numpy as np
import pytest

from fat2thin.data import normalised_score


@pytest.mark.parametrize(
    ("task", "returns", "score"),
    [
        # d4rl/infos.py: random policies score 0 and experts 100.
        ("d4rl/halfcheetah-medium-v2", -280.178953, 0),
        ("d4rl/halfcheetah-medium-expert-v0", 12135.0, 100),
        ("d4rl/hopper-medium-replay-v2", 3234.3, 100),
        ("d4rl/hopper-full-replay-v1", -20.272305, 0),
        ("d4rl/walker2d-expert-v2", 4592.3, 100),
        ("d4rl/walker2d-random-v2", 1.629008, 0),
        ("d4rl/ant-medium-v2", -325.6, 0),
        ("d4rl/ant-medium-v2", 3879.7, 100),
        # By hand: (1607.0138475 + 20.272305) / (3234.3 + 20.272305) is one half.
        ("regenerated/hopper-medium", 1607.0138475, 50),
        ("regenerated/hopper-medium@30", 1607.0138475, 50),
        ("minari/mujoco/hopper/simple-v0", 1607.0138475, 50),
    ],
)
def test_normalised_scores(task, returns, score):
    np.testing.assert_allclose(normalised_score(task, returns), score, atol=1e-9)


def test_scores_keep_the_shape_and_can_exceed_100():
    scores = normalised_score("d4rl/walker2d-medium-v2", np.array([[1.629008], [9182.970992]]))
    np.testing.assert_allclose(scores, [[0], [200]], atol=1e-9)


@pytest.mark.parametrize(
    "task",
    [
        "treatment/quadratic",
        "d4rl/hopper-medium-v3",
        "d4rl/hopper-medium",
        "d4rl/kitchen-mixed-v0",
        "regenerated/hopper-medium-v2",
        "regenerated/hopper-medium@",
        "minari/mujoco/ant/medium-v0",
        "log.npz",
    ],
)
def test_the_error_about_a_task_without_reference_lists_those_with_one(task):
    with pytest.raises(ValueError, match=f"known for '{task}'.*halfcheetah, hopper, walker2d, ant"):
        normalised_score(task, 1.0)
