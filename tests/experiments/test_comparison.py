"""Comparison tables of many runs."""

import numpy as np
import pytest

from experiments.made_up_runs import scored_run
from fat2thin import tables
from fat2thin.evaluation.returns import Evaluation
from fat2thin.experiments import comparison
from fat2thin.runs.result import Evaluations
from fat2thin.tables import Table, markdown_rows

NAN = float("nan")
STEPS = (0, 10, 40)
ACTOR = np.array([[0.0, 0.0, 0.0, 0.0], [2.0, 4.0, 6.0, 8.0], [10.0, 11.0, 12.0, 17.0]])
"""Scores of shape (evaluations, seeds)."""


def with_measures(run, policy, **measures):
    """Return the run with measures added to one of its policies."""
    known = {**run.evaluations.policies}
    known[policy] = Evaluation(known[policy].returns, measures)
    object.__setattr__(run, "evaluations", Evaluations(run.evaluations.steps, known))
    return run


@pytest.fixture
def runs():
    three = scored_run(
        "treatment/cubic", STEPS,
        actor_sampled=ACTOR, actor_centre=ACTOR + 1.0, proposal_sampled=ACTOR - 3.0,
    )  # fmt: skip
    plain = scored_run("treatment/cubic", STEPS, actor_sampled=ACTOR + 0.5)
    rates = np.array([[9.0] * 4, [9.0] * 4, [0.1, 0.2, 0.3, 0.6]])
    return {"fttpo": with_measures(three, "actor_sampled", dose_variance=rates), "iql": plain}


def test_the_numbers_agree_with_numpy(runs):
    table = comparison.methods_table("treatment-cubic", runs)
    row = table["fttpo"]
    assert row["mean"] == pytest.approx(12.5)
    # The middle two of four seeds.
    assert row["iqm"] == pytest.approx(11.5)
    assert row["centre"] == pytest.approx(13.5)
    assert row["proposal"] == pytest.approx(9.5)
    curve = ACTOR.mean(axis=1)
    assert row["area"] == pytest.approx(np.trapezoid(curve, STEPS) / 40.0)
    assert row["dose_variance"] == pytest.approx(0.3)
    assert "dose_limit_rate" not in row
    draws = ACTOR[-1][np.random.default_rng(1).integers(4, size=(20_000, 4))].mean(axis=1)
    assert (row["low"], row["high"]) == pytest.approx(
        tuple(np.quantile(draws, [0.025, 0.975])), abs=0.3
    )


def test_the_best_method_is_first_and_one_without_a_score_last(runs):
    broken = scored_run("treatment/cubic", STEPS, actor_sampled=np.full((3, 4), NAN))
    table = comparison.methods_table("treatment-cubic", {"bc": broken, **runs})
    assert [row["method"] for row in table] == ["iql", "fttpo", "bc"]
    assert np.isnan(table["bc"]["mean"])


def test_a_policy_that_a_method_does_not_have_is_nan(runs):
    row = comparison.methods_table("treatment-cubic", runs)["iql"]
    assert np.isnan(row["proposal"]) and np.isnan(row["centre"])


def test_the_title_states_updates_seeds_and_episodes(runs):
    title = comparison.methods_table("treatment-cubic", runs).title
    assert (
        title == "treatment-cubic: final return after 40 updates, seeds 0 to 3, 2 episodes per seed"
    )


def test_stopped_seeds_are_named_and_left_out(runs):
    scores = ACTOR.copy()
    scores[1:, [1, 3]] = NAN
    about = {"stopped": {"3": {"step": 5}, "1": {"step": 9}}}
    runs["sql"] = scored_run("treatment/cubic", STEPS, about, actor_sampled=scores)
    table = comparison.methods_table("treatment-cubic", runs)
    assert table.notes == ("sql: without stopped seeds 1, 3",)
    assert table["sql"]["mean"] == table["sql"]["iqm"] == pytest.approx(11.0)
    kept = ACTOR[:, [0, 2]].mean(axis=1)
    assert table["sql"]["area"] == pytest.approx(np.trapezoid(kept, STEPS) / 40.0)


def test_robot_data_sets_have_d4rl_scores():
    """By hand, from D4RL's returns of a random and an expert policy on Hopper."""
    returns = np.array([[[-20.272305], [3234.3]], [[1607.0138475], [3234.3]]])
    run = scored_run("regenerated/hopper-medium", actor_sampled=np.zeros((2, 2)))
    object.__setattr__(run, "evaluations", Evaluations((0, 20), {"a": Evaluation(returns, {})}))
    assert comparison.scored(run, "a")[..., 0] == pytest.approx(
        np.array([[0.0, 100.0], [50.0, 100.0]])
    )
    run.spec.dataset = "treatment/cubic"
    assert comparison.scored(run, "a") == pytest.approx(returns)


def test_a_table_of_data_sets_ends_with_their_mean():
    def at(score):
        return scored_run("regenerated/hopper-medium", actor_sampled=np.full((2, 3), score))

    runs = {"hopper": {"fttpo": at(40.0), "iql": at(30.0)}, "walker2d": {"fttpo": at(60.0)}}
    table = comparison.scores_table("final scores", runs)
    assert [row["data set"] for row in table] == ["hopper", "walker2d", "mean"]
    assert table["hopper"]["iql"] == pytest.approx(30.0)
    assert table["mean"]["fttpo"] == pytest.approx(50.0)
    # A mean over some of the data sets is not comparable with one over all.
    assert np.isnan(table["walker2d"]["iql"]) and np.isnan(table["mean"]["iql"])


@pytest.mark.parametrize(
    ("row", "cell"),
    [
        ({"mean": 1.234, "low": 0.5, "high": 12.34}, "1.23 [0.5, 12.3]"),
        ({"mean": -12.34, "low": -13.0, "high": -0.01234}, "−12.3 [−13.0, −0.0123]"),
        ({"mean": 1.234, "low": NAN, "high": NAN}, "1.23"),
        ({"mean": NAN, "low": NAN, "high": NAN}, "–"),
        ({"mean": "a-b"}, "a-b"),
        ({}, "–"),
    ],
)
def test_markdown_cells_by_hand(row, cell):
    assert tables._markdown_cell(row, "mean") == cell


def test_only_means_and_scores_are_followed_by_their_interval():
    row = {"area": 2.0, "score": 3.0, "low": 1.0, "high": 4.0}
    assert tables._markdown_cell(row, "area") == "2.00"
    assert tables._markdown_cell(row, "score") == "3.00 [1.00, 4.00]"


def test_markdown_of_a_table_by_hand():
    rows = (
        {"method": "fttpo", "mean": 1.5, "low": 1.0, "high": 2.0, "dose_variance": 0.25},
        {"method": "iql", "mean": -1.5, "low": NAN, "high": NAN},
    )
    assert Table("a title", rows, ("a note",)).markdown() == (
        "**a title**\n"
        "\n"
        "| method | mean | dose variance |\n"
        "|---|---:|---:|\n"
        "| fttpo | 1.50 [1.00, 2.00] | 0.25 |\n"
        "| iql | −1.50 | – |\n"
        "\n"
        "- a note\n"
    )


def test_text_columns_are_left_aligned_and_counts_are_integers():
    rows = [{"claim": "C1", "seeds": 3, "runs": "a"}, {"claim": "C2", "seeds": NAN, "runs": "b"}]
    assert markdown_rows(rows) == [
        "| claim | seeds | runs |",
        "|---|---:|---|",
        "| C1 | 3 | a |",
        "| C2 | – | b |",
    ]


def test_runs_are_grouped_by_data_set_and_method():
    names = ["curves/hopper-medium/fttpo", "curves/hopper-medium/iql", "curves/treatment-cubic/bc"]
    runs = {name: scored_run("treatment/cubic", actor_sampled=np.zeros((2, 2))) for name in names}
    found = comparison.by_dataset(runs)
    assert {name: [*of_set] for name, of_set in found.items()} == {
        "hopper-medium": ["fttpo", "iql"], "treatment-cubic": ["bc"],
    }  # fmt: skip
    assert found["hopper-medium"]["iql"] is runs["curves/hopper-medium/iql"]
