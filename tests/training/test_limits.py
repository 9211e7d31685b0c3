"""Runs that learn within limits: their policies, folders, identity, and what is refused."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fat2thin
from fat2thin.cli.main import main
from fat2thin.columns import Column
from fat2thin.envs import treatment
from fat2thin.evaluation.limited import limit_report, states_of
from fat2thin.policies.policy import Sampled
from fat2thin.settings.spec import make_spec

RULES = {
    "cap": "action_0 <= 0.4 when observation_0 > 0.2",
    "rate": "abs(action_0 - last_action_0) <= 0.5",
    "stop": "no action when observation_1 > 1.5",
    "fallback": {"action_0": 0.0},
}
OPTIONS = {"steps": 6, "log_every": 3, "task": "none", "hidden": (4,), "settings_from": "default"}
LOG = "treatment/quadratic@10"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "limited"
    return fat2thin.train("bc", LOG, out=folder, limits=RULES, seeds=2, **OPTIONS)


def test_policies_obey_and_the_folder_keeps_the_limits(run):
    log = fat2thin.data.load(LOG, 0)
    seen = states_of(log)
    loaded = fat2thin.load(run.folder)
    assert loaded.spec == run.spec and loaded.program.problem == run.program.problem
    for one in (run, loaded):
        policy = one.policy(0)
        action = policy.act(seen.observation, jax.random.key(0), seen.last)
        found = policy.interval(seen.observation, seen.last)
        assert np.all((found.low <= action) & (action <= found.high) | ~found.acts[:, None])
        assert np.all(np.asarray(action)[~np.asarray(found.acts)] == 0.0)
        assert one.limit_report == run.limit_report
    policies = [run.policy(seed) for seed in (0, 1)]
    logs = [fat2thin.data.load(LOG, seed) for seed in (0, 1)]
    alone = [
        limit_report(log, policy.limits, [policy])
        for log, policy in zip(logs, policies, strict=True)
    ]
    for place, use in enumerate(run.limit_report.limits):
        assert use.binds == pytest.approx(np.mean([one.limits[place].binds for one in alone]))
        assert use.excluded == pytest.approx(np.mean([one.limits[place].excluded for one in alone]))


def test_limits_bind_where_the_policy_could_leave_them(run):
    """A squashed Gaussian can take every action, so each limit binds wherever it cuts the box."""
    log, policy = fat2thin.data.load(LOG, 0), run.policy(0)
    severity = np.asarray(log.observation)[:, 0]
    (cap, *_) = limit_report(log, policy.limits, [policy]).limits
    assert [cap.binds, cap.applies] == pytest.approx([np.mean(severity > 0.2)] * 2)


def test_the_task_is_played_within_limits(run):
    policy, task = run.policy(0), treatment.by_name("treatment/quadratic")
    begin = treatment.from_observations(Sampled(policy))
    found = jax.jit(lambda key: treatment.trajectories(key, begin, task, 30))(jax.random.key(0))
    dose, seen = (np.asarray(part, np.float64) for part in (found.info.dose, found.observation))
    forbidden = seen[..., 1] > 1.5
    assert forbidden.any() and (dose[forbidden] == 0.0).all()
    assert (dose[(seen[..., 0] > 0.2)] <= 0.4).all()
    # The fallback ignores the other limits, so a step after it may be larger.
    steps = np.abs(np.diff(dose, axis=1))[~forbidden[:, 1:]]
    jumps = steps > 0.5 + 1e-7
    conflicts = dose[:, 1:][~forbidden[:, 1:]][jumps]
    assert jumps.mean() < 0.1 and (conflicts == 0.0).all()


def test_a_run_is_verified_and_other_limits_are_another_run(run, capsys):
    main(["verify", str(run.folder), "--replay", "6"])
    assert "FAILED" not in capsys.readouterr().out
    main(["show", str(run.folder)])
    assert "limits on the training log" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"holds another run.*limits"):
        others = {**RULES, "cap": "action_0 <= 0.5"}
        fat2thin.train("bc", LOG, out=run.folder, limits=others, seeds=2, **OPTIONS)
    values = json.loads((run.folder / "run.json").read_text())
    assert "limits" not in values["problem"]
    assert values["spec"]["limits"]["rules"]["cap"] == RULES["cap"]


def test_other_limits_replace_those_of_the_run_and_say_so(run, tmp_path, capsys):
    states, limits, out = (tmp_path / name for name in ("states.csv", "limits.toml", "out.csv"))
    limits.write_text('[limits]\nless = "action_0 <= -0.5"\n')
    states.write_text(
        ",".join(f"observation_{place}" for place in range(8)) + "\n" + "0," * 7 + "0\n"
    )
    with pytest.raises(SystemExit, match=r"one policy.*Choose a seed"):
        main(["decide", str(run.folder), str(states), "--limits", str(limits), "--out", str(out)])
    shown = capsys.readouterr().out
    assert "replace those that the run learned within: cap, rate, stop" in shown


def test_an_interrupted_run_resumes_to_the_same_bits(run, tmp_path, monkeypatch):
    from fat2thin.training import run_writer, runner

    spec, again = run.spec, tmp_path / "again"
    settle = run_writer.RunWriter.settle

    def stop(self, place, everywhere):
        settle(self, place, everywhere)
        if place.step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(run_writer.RunWriter, "settle", stop)
    with pytest.raises(KeyboardInterrupt):
        runner.execute(spec, again, checkpoint_seconds=0.0)
    monkeypatch.undo()
    resumed = runner.execute(spec, again)
    assert resumed.about["resumed"]
    for one, other in zip(
        jax.tree.leaves(run.states), jax.tree.leaves(resumed.states), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert resumed.limit_report == run.limit_report


def test_a_window_learns_within_limits():
    log = fat2thin.data.load(LOG, 0)
    columns = (Column("dose"),)
    log = dataclasses.replace(log, name="doses", action_columns=columns)
    options = {"limits": {"rate": "abs(dose - last_dose) <= 0.5"}, "window": 64, **OPTIONS}
    options["batch_size"] = 16
    run = fat2thin.train("bc", log, **options)
    assert run.policy().limits.needs_last_action and run.limit_report.limits[0].binds > 0


@pytest.mark.parametrize(
    ("algorithm", "settings", "words"),
    [
        ("fttpo", {"published": True}, "published=True.*no limits"),
        ("fttpo", {"box": "clip"}, "box='inside'"),
        ("tawac-ht", {"published": True}, "published=True.*no limits"),
        ("stand_in", {}, "does not learn within limits"),
    ],
)
def test_what_cannot_learn_within_limits_is_refused(algorithm, settings, words, tiny_world):
    with pytest.raises(ValueError, match=words):
        make_spec(algorithm, LOG, steps=2, settings=settings, limits=RULES)


def test_limits_around_a_finished_run(run):
    plain = fat2thin.train("bc", LOG, **OPTIONS)
    assert plain.limit_report is None and plain.policy(0).limits is None
    limited = plain.with_limits({"cap": "action_0 <= -0.5"})
    assert float(limited.policy(0).act(jnp.zeros(8))[0]) <= -0.5
    assert limited.limits_on([fat2thin.data.load(LOG)]).limits[0].binds == 1.0
    with pytest.raises(ValueError, match=r"action_00.*did you mean 'action_0'"):
        plain.with_limits({"cap": "action_00 <= -0.5"})
