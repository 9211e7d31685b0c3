"""The default number of updates of a sweep."""

import pytest

from fat2thin.cli.main import main
from fat2thin.experiments import sweep


@pytest.mark.parametrize(
    ("dataset", "options", "steps"),
    [
        ("treatment/quadratic", [], 2_500),
        ("treatment/quadratic", ["--no-centre-values"], 6_000),
        ("treatment/quadratic", ["--steps", "30"], 30),
        ("treatment/quadratic", ["--settings-from", "default"], 6_000),
        # A run on a large log makes 100,000.
        ("treatment/quadratic@1042", [], 10_000),
    ],
)
def test_a_sweep_makes_the_updates_of_a_run(dataset, options, steps, monkeypatch):
    seen = []

    def stop(sweeps, *_):
        seen.extend(one.base.steps for one in sweeps.values())
        raise ValueError("seen")

    monkeypatch.setattr(sweep, "run_sweeps", stop)
    with pytest.raises(SystemExit, match="seen"):
        main(["sweep", "fttpo", dataset, "--grid", "temperature=0.1,1", *options])
    assert seen == [steps]
