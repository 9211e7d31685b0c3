import math
import re

import jax.numpy as jnp
import matplotlib.image
import matplotlib.style
import numpy as np
import pytest
import scipy.stats

from fat2thin import training
from fat2thin.cli import train as command_line
from fat2thin.cli.main import main
from fat2thin.envs import treatment
from fat2thin.evaluation.returns import Reference
from fat2thin.report import run_figures, style
from fat2thin.runs.folder import RunFolder

REFERENCES = {
    "uniform": Reference(-8.8, 0.1, {"dose_mean": 0.0}, "any dose"),
    "best constant": Reference(5.2, 0.1, {"dose_mean": 0.44}, "one dose"),
    "best latent": Reference(7.8, 0.1, {"dose_mean": 0.35}, "the best dose"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a tiny run, loaded from its folder, with made-up references."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    training.train(
        "fttpo", "treatment/quadratic", steps=20, seeds=[3, 5], out=folder,
        hidden=(8,), learning_rate=0.02, half_width_high=0.6,
        evaluate_every=10, episodes=4, log_every=10, batch_size=16, snapshots=(0, 10),
    )  # fmt: skip
    RunFolder(folder).write_references(REFERENCES)
    return training.load(folder)


@pytest.fixture(scope="module")
def drawn(run):
    with matplotlib.style.context(style.STYLE):
        return {
            "learning_curves": run_figures.learning_curves(run),
            "policy_evolution": run_figures.policy_evolution(run, seed=5),
            "dose_band": run_figures.dose_band(run, seed=5),
        }


def labelled(axes, label):
    found = [line for line in axes.lines if line.get_label() == label]
    assert len(found) == 1, label
    return np.asarray(found[0].get_data())


def assert_fills(axes, label, low, high, tolerance=1e-4):
    """Check that a filled area spans exactly low to high at 1, 2, ..."""
    (area,) = [area for area in axes.collections if area.get_label() == label]
    (path,) = area.get_paths()
    places = np.arange(1, len(low) + 1)
    for edge, outwards in ((low, -tolerance), (high, tolerance)):
        assert path.contains_points(np.stack([places, edge - outwards], axis=-1)).all()
        assert not path.contains_points(np.stack([places, edge + outwards], axis=-1)).any()


def test_curves_are_mean_returns_over_seeds(run, drawn):
    actor, proposal = drawn["learning_curves"].axes
    for axes, name in ((actor, "actor"), (proposal, "proposal")):
        for way, label in (("sampled", "sampled"), ("centre", "at its centre")):
            steps, means = labelled(axes, f"{name}, {label}")
            returns = run.evaluations[f"{name}_{way}"].returns
            assert steps.tolist() == [0, 10, 20]
            np.testing.assert_allclose(means, np.mean(returns, axis=(1, 2)), rtol=1e-5)


def test_the_interval_of_two_seeds_spans_both(run, drawn):
    # The 95 % percentile interval of the mean of two: a quarter of the draws is each seed twice.
    areas = drawn["learning_curves"].axes[0].collections
    for area, name in zip(areas, ("actor_sampled", "actor_centre"), strict=True):
        of_seeds = np.mean(run.evaluations[name].returns, axis=-1)
        vertices = area.get_paths()[0].vertices
        for step, scores in zip(run.evaluations.steps, of_seeds, strict=True):
            heights = vertices[vertices[:, 0] == step, 1]
            assert heights.min() == pytest.approx(scores.min(), rel=1e-5)
            assert heights.max() == pytest.approx(scores.max(), rel=1e-5)


def test_reference_rows_are_labelled_lines(drawn):
    for axes in drawn["learning_curves"].axes:
        flat = [line.get_ydata()[0] for line in axes.lines if len(line.get_xdata()) == 2]
        assert flat == [7.8, 5.2, -8.8]
    texts = [text.get_text() for text in drawn["learning_curves"].axes[1].texts]
    assert texts == ["best latent  7.8", "best constant  5.2", "uniform  −8.8"]


def test_evolution_shows_every_saved_policy(run, drawn):
    panels = [axes for axes in drawn["policy_evolution"].axes if axes.get_title()]
    titles = ["before training", "after 10 updates", "after 20 updates"]
    assert [axes.get_title() for axes in panels] == titles
    for axes, step in zip(panels, (0, 10, 20), strict=True):
        doses, density = labelled(axes, "thin actor")
        low, high = (float(end[0]) for end in run.policy(5, step).support(jnp.zeros(8)))
        assert (doses[0], doses[-1]) == pytest.approx((low, high), abs=1e-6)
        assert density[0] == density[-1] == 0.0
        # At index 0 the band is a parabola.
        middle, half_width = (doses[0] + doses[-1]) / 2, (doses[-1] - doses[0]) / 2
        parabola = 1.0 - ((doses - middle) / half_width) ** 2
        np.testing.assert_allclose(density, parabola, atol=1e-4)


def test_evolution_draws_the_proposal_as_a_cauchy_density(run, drawn):
    for axes, step in zip(drawn["policy_evolution"].axes, (0, 10, 20), strict=True):
        doses, density = labelled(axes, "fat proposal")
        law = run.proposal(5, step)(jnp.zeros(8)).base_dist
        twin = scipy.stats.cauchy(float(law.loc[0]), math.sqrt(2.0) * float(law.scale[0]))
        np.testing.assert_allclose(
            density, twin.pdf(doses) / twin.pdf(doses).max(), rtol=1e-3, atol=1e-4
        )


def test_evolution_shades_where_the_actor_is_zero(run, drawn):
    for axes, step in zip(drawn["policy_evolution"].axes, (0, 10, 20), strict=True):
        low, high = (float(end[0]) for end in run.policy(5, step).support(jnp.zeros(8)))
        shaded = [patch.get_bbox() for patch in axes.patches]
        assert [box.x1 for box in shaded] == pytest.approx([low, 1.6])
        assert [box.x0 for box in shaded] == pytest.approx([-1.6, high])


def test_dose_band_is_the_support_of_the_actor(run, drawn):
    policy = run.policy(5)
    observations = run_figures.patients(treatment.by_name("treatment/quadratic"))
    assert observations.shape == (200, 8)
    centre = np.asarray(policy.act(observations))[:, 0]
    order = np.argsort(centre, kind="stable")
    low, high = (np.asarray(end)[order, 0] for end in policy.support(observations))
    assert np.ptp(centre) > 0.1 and (low > -1.0).any() and (high < 1.0).any()
    axes = drawn["dose_band"].axes[0]
    assert_fills(axes, "actor: every dose it can give", low, high)
    np.testing.assert_allclose(labelled(axes, "centre")[1], np.sort(centre), atol=1e-6)


def test_ranges_of_the_proposal_are_quantiles_clipped_to_the_box(run, drawn):
    observations = run_figures.patients(treatment.by_name("treatment/quadratic"))
    order = np.argsort(np.asarray(run.policy(5).act(observations))[:, 0], kind="stable")
    law = run.proposal(5)(observations[order]).base_dist
    twin = scipy.stats.cauchy(np.asarray(law.loc)[:, 0], math.sqrt(2) * np.asarray(law.scale)[:, 0])
    for label, tail in (("proposal: central 50 %", 0.25), ("proposal: central 90 %", 0.05)):
        low, high = (np.clip(twin.ppf(share), -1.0, 1.0) for share in (tail, 1.0 - tail))
        assert_fills(drawn["dose_band"].axes[1], label, low, high)


def test_dose_band_marks_box_limits_and_the_best_constant_dose(drawn):
    for axes in drawn["dose_band"].axes:
        flat = [line.get_ydata()[0] for line in axes.lines if len(line.get_xdata()) == 2]
        assert flat == [-1.0, 1.0, -0.88, 0.88, 0.44]


def tiny(algorithm, folder, **settings):
    training.train(
        algorithm, "treatment/quadratic", steps=2, seeds=[3], out=folder, hidden=(8,),
        evaluate_every=2, episodes=2, batch_size=8, **settings,
    )  # fmt: skip
    RunFolder(folder).write_references(REFERENCES)
    return training.load(folder)


def test_a_policy_without_a_proposal_has_one_panel(tmp_path):
    run = tiny("bc", tmp_path)
    assert [axes.get_title() for axes in run_figures.learning_curves(run).axes] == ["policy"]
    (axes,) = run_figures.dose_band(run, 3).axes
    observations = run_figures.patients(treatment.by_name("treatment/quadratic"))
    order = np.argsort(
        np.asarray(run.policy(run.spec.seeds[0]).act(observations))[:, 0], kind="stable"
    )
    head = run.policy(run.spec.seeds[0]).network(observations[order])
    normal = scipy.stats.norm(
        np.asarray(head.centre)[:, 0], np.exp(np.asarray(head.log_scale))[:, 0]
    )
    for label, tail in (("policy: central 50 %", 0.25), ("policy: central 90 %", 0.05)):
        low, high = (np.tanh(normal.ppf(share)) for share in (tail, 1.0 - tail))
        assert_fills(axes, label, low, high)
    (axes,) = run_figures.policy_evolution(run, 3).axes
    doses, density = labelled(axes, "policy")
    assert (doses[0], doses[-1]) == (-1.0, 1.0) and density.max() == pytest.approx(1.0)


def test_a_deterministic_policy_is_a_line(tmp_path):
    run = tiny("td3_bc", tmp_path)
    (axes,) = run_figures.policy_evolution(run, 3).axes
    doses, heights = labelled(axes, "policy")
    action = float(run.policy(run.spec.seeds[0]).act(jnp.zeros(8))[0])
    assert doses.tolist() == pytest.approx([action, action]) and heights.tolist() == [0.0, 1.0]
    assert len(run_figures.save_run_figures(run, tmp_path / "pictures")) == 3


@pytest.mark.slow
def test_published_policies_are_drawn(tmp_path):
    run = tiny("fttpo", tmp_path, published=True)
    assert len(run_figures.save_run_figures(run, tmp_path / "pictures")) == 3


def test_axes_have_labels_and_figures_a_legend(drawn):
    for name, figure in drawn.items():
        assert figure.axes[0].get_ylabel(), name
        assert all(axes.get_xlabel() for axes in figure.axes), name
        names = [text.get_text() for text in figure.legends[0].get_texts()]
        assert len(names) == len(set(names)) >= 4, name
    assert "its maximum" in drawn["policy_evolution"].axes[0].get_ylabel()


def test_the_command_writes_complete_figures(run, tmp_path, capsys):
    main(["figures", str(run.folder), "--out", str(tmp_path), "--seed", "3"])
    names = ["learning_curves.png", "policy_evolution.png", "dose_band.png"]
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in names]
    for name in names:
        pixels = matplotlib.image.imread(tmp_path / name)
        border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
        assert pixels[..., :3].std() > 0.05 and np.all(border[:, :3] == 1.0), name


def test_a_missing_seed_is_a_plain_message(run, tmp_path):
    with pytest.raises(SystemExit, match="no seed 4; there are 3, 5"):
        main(["figures", str(run.folder), "--out", str(tmp_path), "--seed", "4"])


def test_the_demo_trains_shows_and_draws_and_reuses_its_run(monkeypatch, tmp_path, capsys, run):
    executed = []

    def execute(spec, out, *_):
        executed.append((spec, out))
        return run

    monkeypatch.setattr(training, "execute", execute)
    monkeypatch.setattr(training, "load", lambda folder: run)
    judged = []
    monkeypatch.setattr(command_line, "dossier", lambda folder, minutes: judged.append(folder))
    main(["demo", "--out", str(tmp_path)])
    (spec, out), (own, second) = executed
    assert (spec.algorithm, spec.dataset) == ("fttpo", "treatment/quadratic")
    assert spec.snapshots == (0, 100, 200, 300, 400, spec.steps)
    assert out == tmp_path / "run"
    assert (own.dataset, len(own.seeds), own.holdout) == (str(tmp_path / "doses.npz"), 5, 0.2)
    assert judged == [second] == [tmp_path / "own"]
    printed = capsys.readouterr().out
    assert re.search(r"^best constant ", printed, re.MULTILINE)
    assert str(tmp_path / "dose_band.png") in printed
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".npz"}
