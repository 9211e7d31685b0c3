"""Maps of the state space: what is drawn is what the policy decides."""

import numpy as np
import pytest

import fat2thin
from fat2thin.cli.main import main
from fat2thin.data.formats.table import dataset_from_frame
from fat2thin.policies.decision import OUTSIDE, Thresholds, with_referral
from fat2thin.report.state_map import map_states


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import pyarrow as pa

    folder, draw = tmp_path_factory.mktemp("maps"), np.random.default_rng(0)
    frame = pa.table(
        {
            "who": np.repeat(np.arange(40), 10), "severity": draw.uniform(0, 4, 400),
            "weight": draw.normal(70, 10, 400), "dose": draw.uniform(0, 1, 400),
            "reward": draw.normal(size=400),
        }
    )  # fmt: skip
    log = dataset_from_frame(
        frame, episode="who", observation=["severity", "weight"], action="dose", reward="reward",
        action_low=0, action_high=1, discount=0.9,
    )  # fmt: skip
    options = {"steps": 2, "settings_from": "default", "hidden": (4,), "seeds": 1, "holdout": 0.0}
    fat2thin.train("fttpo", log, out=folder / "run", **options)
    (folder / "limits.toml").write_text('[limits]\ncap = "dose <= 0.3 when severity > 2"\n')
    return folder


def test_a_map_is_made_of_decisions(folder):
    run = fat2thin.load(folder / "run")
    policy = with_referral(run.policy(), thresholds=Thresholds(disagreement=1.0))
    policy = policy.with_limits(folder / "limits.toml")
    ranges = run.columns.ranges["observation"]
    found = map_states(policy, "weight", "severity", ranges, grid=9)
    assert found.states.shape == (9, 9, 2)
    np.testing.assert_allclose(found.states[3, :, 1], found.x)
    np.testing.assert_allclose(found.states[:, 5, 0], found.y)
    alone = policy.decide(found.states[2, 6])
    assert found.decision.because[OUTSIDE][2, 6] == alone.because[OUTSIDE]
    assert found.decision.because[OUTSIDE][0, 0] and not found.decision.referred[4, 4]
    assert (found.high[found.y > 2.01] <= 0.3).all()
    with pytest.raises(ValueError, match=r"no column 'weigth' \(did you mean 'weight'\?\)"):
        map_states(policy, "weigth", "severity", ranges)
    fixed = map_states(run.policy(), "weight", "severity", ranges, grid=3)
    assert fixed.decision.limits == ()
    with pytest.raises(ValueError, match="axis of the map"):
        map_states(policy, "weight", "severity", ranges, {"weight": 70.0})


def test_the_command_draws_a_picture(folder, capsys):
    out = folder / "map.png"
    arguments = ["map", str(folder / "run"), "severity", "weight", "--out", str(out)]
    main([*arguments, "--limits", str(folder / "limits.toml")])
    assert out.read_bytes().startswith(b"\x89PNG") and str(out) in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--overwrite replaces it"):
        main(arguments)
    for wrong in ("nan", "x", "True"):
        with pytest.raises(SystemExit, match=f"--at weight={wrong}: this must be a number"):
            main([*arguments, "--overwrite", "--at", f"weight={wrong}"])
