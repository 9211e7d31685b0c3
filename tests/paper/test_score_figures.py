import dataclasses
import math

import jax
import jax.numpy as jnp
import matplotlib.style
import numpy as np
import pytest
import scipy.integrate
import scipy.spatial
import scipy.stats

from fat2thin import data
from fat2thin.algorithms.published import AuthorsSparseFamily
from fat2thin.data import Dataset
from fat2thin.data.formats.d4rl import ReferenceReturns, score
from fat2thin.distributions import MultivariateQGaussian
from fat2thin.distributions.published import published_box_muller
from fat2thin.envs import treatment
from fat2thin.evaluation.returns import Evaluation, Reference
from fat2thin.evaluation.statistics import Interval, seed_interval
from fat2thin.paper import marginals as paper_marginals
from fat2thin.paper import policy_figures, score_figures
from fat2thin.paper.marginals import marginal
from fat2thin.policies.families import Beta, Deterministic, Head, HeavyStudent, HeavyTailed, Sparse
from fat2thin.policies.policy import Policy
from fat2thin.report import style
from fat2thin.runs.result import Evaluations
from untrained import untrained_run

REFERENCES = {
    "uniform": Reference(-8.8, 0.1, {"dose_mean": 0.0}, "any dose"),
    "best constant": Reference(5.2, 0.1, {"dose_mean": 0.44}, "one dose"),
}
STATE = jnp.linspace(-1.0, 1.0, 8)
SIZE, LOW, HIGH = 3, np.array([-1.0, 0.0, 5.0]), np.array([1.0, 4.0, 6.0])


@pytest.fixture(scope="module", autouse=True)
def in_style():
    with matplotlib.style.context(style.STYLE):
        yield


def made_up(algorithm, offset, settings):
    """Return an untrained run on the treatment task with random networks and returns."""
    parts = [
        untrained_run(algorithm, "treatment/quadratic", noise, seeds=[3, 5], settings=settings)
        for noise in range(3)
    ]
    rng = np.random.default_rng(len(algorithm))
    names = ["actor_sampled", "actor_centre"]
    names += ["proposal_sampled", "proposal_centre"] if algorithm == "fttpo" else []
    returns = {name: Evaluation(rng.normal(offset, 3.0, (5, 2, 4)), {}) for name in names}
    return dataclasses.replace(
        parts[2], step=40, measured=REFERENCES, about={},
        evaluations=Evaluations((0, 10, 20, 30, 40), returns),
        snapshots={step: part._policies(1) for step, part in zip((0, 20), parts, strict=False)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs():
    thin = made_up("fttpo", 5.0, {"hidden": (8,), "half_width_high": 0.6})
    baseline = made_up("bc", -20.0, {"hidden": (8,), "scale_high": 1.2})
    better = jax.tree.map(lambda returns: returns + 20.0, baseline.evaluations.policies)
    evaluations = dataclasses.replace(baseline.evaluations, policies=better)
    return {
        "FtTPO": thin,
        "IQL": baseline,
        "SQL": dataclasses.replace(baseline, evaluations=evaluations),
    }


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Return an untrained run with three action coordinates of different ranges."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("logs") / "plant.npz"
    dataset = Dataset(
        name="plant.npz",
        observation=rng.normal(size=(20, 2)).astype(np.float32),
        action=(LOW + (HIGH - LOW) * rng.uniform(size=(20, SIZE))).astype(np.float32),
        reward=np.ones(20, np.float32),
        next_observation=rng.normal(size=(20, 2)).astype(np.float32),
        continuation=np.ones(20, np.float32),
        episode_start=np.array([0]),
        action_low=tuple(LOW),
        action_high=tuple(HIGH),
        discount=0.9,
    )
    data.save_npz(dataset, path)
    return untrained_run(
        "fttpo", path, seeds=[3], settings={"hidden": (4,), "half_width_high": 0.5}
    )


def of_family(policy, family):
    return Policy(policy.network, policy.low, policy.high, family)


def labelled(axes, beginning):
    found = [line for line in axes.lines if line.get_label().startswith(beginning)]
    assert len(found) == 1, beginning
    return np.asarray(found[0].get_data(), np.float64)


def mass(law):
    return np.trapezoid(law.density, law.points) + sum(atom.mass for atom in law.atoms)


FAMILIES = [
    HeavyTailed(1.0), HeavyStudent(3.0), Beta(), Sparse(0.0, "inside"), Sparse(-1.0, "clip"),
    AuthorsSparseFamily(),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_a_marginal_contains_all_the_mass_of_a_policy(three, family):
    policy = of_family(three.policy(three.spec.seeds[0]), family)
    keys = jax.random.split(jax.random.key(0), 4000)
    actions = np.asarray(jax.vmap(lambda key: policy.act(jnp.ones(2), key))(keys))
    for dimension in range(SIZE):
        law = marginal(policy, jnp.ones(2), dimension)
        assert mass(law) == pytest.approx(1.0, abs=1e-3)
        assert law.points[0] >= LOW[dimension] and law.points[-1] <= HIGH[dimension]
        below = scipy.integrate.cumulative_trapezoid(law.density, law.points, initial=0.0)
        below += sum(atom.mass for atom in law.atoms if atom.place == law.box[0])
        ranks = np.searchsorted(np.sort(actions[:, dimension]), law.points, side="right") / 4000
        # Mass at the high edge itself is an atom and not part of the integral.
        off = np.abs(below - ranks)[law.points < HIGH[dimension]]
        # 18 comparisons with a false alarm in 1 % of all, by the DKW inequality.
        assert off.max() < math.sqrt(math.log(2 * 18 / 0.01) / 8000) + 1e-3


def test_atoms_are_the_mass_beyond_the_box(three):
    policy = of_family(three.policy(three.spec.seeds[0]), HeavyTailed(1.0))
    normal = policy(jnp.ones(2)).base_dist
    for dimension in range(SIZE):
        twin = scipy.stats.norm(float(normal.loc[dimension]), float(normal.scale[dimension]))
        atoms = marginal(policy, jnp.ones(2), dimension).atoms
        expected = (twin.cdf(LOW[dimension]), twin.sf(HIGH[dimension]))
        assert [atom.place for atom in atoms] == [LOW[dimension], HIGH[dimension]]
        assert [atom.mass for atom in atoms] == pytest.approx(expected, rel=1e-3)


def test_a_coordinate_of_an_ellipsoid_has_the_right_marginal():
    # In three dimensions, 1 - t² integrated over discs of radius sqrt(1 - t²) is a biweight.
    law = MultivariateQGaussian(jnp.array([0.5, 0.0, 1.0]), 0.0, scale_diag=jnp.array([1.0, 2, 3]))
    reach = math.sqrt(2.0) * np.array([1.0, 2.0, 3.0])
    place = np.linspace(-0.95, 0.95, 21)[:, None]
    density = np.exp(paper_marginals._coordinates(law).log_prob(law.loc[None] + reach * place))
    np.testing.assert_allclose(density, 15 / 16 * (1 - place**2) ** 2 / reach, rtol=1e-4)


def test_the_authors_proposal_is_drawn_as_it_samples():
    # At index 2 the published sampler draws a standard normal instead of its density.
    samples = published_box_muller(jax.random.key(0), (2000,), 2.0)
    assert scipy.stats.kstest(np.asarray(samples), "norm").pvalue > 1e-3
    law = paper_marginals.AuthorsProposal(jnp.array([0.5]), jnp.array([0.04]))
    points = np.linspace(-1.0, 2.0, 50)[:, None]
    density = np.exp(jax.vmap(paper_marginals._coordinates(law).log_prob)(points))
    np.testing.assert_allclose(density, scipy.stats.norm(0.5, 0.2).pdf(points), rtol=1e-4)


def test_a_curve_is_the_mean_of_the_last_evaluations_with_its_interval(runs):
    figure = score_figures.curves({"one": runs, "two": {"IQL": runs["IQL"]}}, smooth=2)
    one, two = figure.axes
    assert len(one.lines) == 3 + 1 + 2 and len(two.lines) == 1 + 2
    for line, area, run in zip(
        [line for line in one.lines if line.get_label() == "shown"],
        one.collections, runs.values(), strict=True,
    ):  # fmt: skip
        returns = run.evaluations["actor_sampled"].returns
        vertices = area.get_paths()[0].vertices
        for index, step in enumerate((0, 10, 20, 30, 40)):
            window = np.concatenate(returns[max(0, index - 1) : index + 1], axis=1)
            value, low, high = seed_interval(window)
            assert line.get_xdata()[index] == step
            assert line.get_ydata()[index] == pytest.approx(value, rel=1e-5)
            heights = vertices[vertices[:, 0] == step, 1]
            assert (heights.min(), heights.max()) == pytest.approx((low, high), rel=1e-5)
    assert "mean of 2 seeds, over the last 2 evaluations" in figure.get_suptitle()


def test_the_best_baseline_is_opaque_and_the_proposal_is_a_thin_line(runs):
    (axes,) = score_figures.curves({"quadratic": runs}).axes
    shown = [line for line in axes.lines if line.get_label() == "shown"]
    final = {
        name: np.mean(run.evaluations["actor_sampled"].returns[-1]) for name, run in runs.items()
    }
    best = max(("IQL", "SQL"), key=final.__getitem__)
    opaque = {name for name, line in zip(runs, shown, strict=True) if line.get_alpha() == 1.0}
    assert opaque == {"FtTPO", best}
    assert len({(line.get_color(), line.get_marker()) for line in shown}) == 3
    other = np.mean(runs["FtTPO"].evaluations["proposal_sampled"].returns, axis=(1, 2))
    np.testing.assert_allclose(labelled(axes, "other")[1], other, rtol=1e-5)
    flat = [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == ":" or
            len(line.get_xdata()) == 2]  # fmt: skip
    assert flat == [5.2, -8.8]


def test_the_proposal_and_scores_can_be_drawn_instead(runs):
    scale = ReferenceReturns(-10.0, 10.0)
    (axes,) = score_figures.curves(
        {"quadratic": {"FtTPO": runs["FtTPO"]}}, policy="proposal", way="centre",
        normalise=lambda task, returns: score(scale, returns),
    ).axes  # fmt: skip
    for label, name in (("shown", "proposal_centre"), ("other", "actor_centre")):
        returns = np.mean(runs["FtTPO"].evaluations[name].returns, axis=(1, 2))
        np.testing.assert_allclose(labelled(axes, label)[1], 5.0 * (returns + 10.0), rtol=1e-5)


def test_stopped_seeds_are_left_out_and_counted_in_the_title(runs):
    run = runs["IQL"]
    returns = np.array(run.evaluations["actor_sampled"].returns)
    returns[2:, 1] = np.nan
    evaluation = run.evaluations["actor_sampled"]._replace(returns=returns)
    stopped = dataclasses.replace(
        run, about=run.about | {"stopped": {"5": 15}},
        evaluations=dataclasses.replace(run.evaluations, policies={"actor_sampled": evaluation}),
    )  # fmt: skip
    figure = score_figures.curves({"quadratic": {"IQL": stopped}})
    drawn = labelled(figure.axes[0], "shown")[1]
    expected = [*returns[:2].mean(axis=(1, 2)), *returns[2:, 0].mean(axis=1)]
    np.testing.assert_allclose(drawn, expected, rtol=1e-5)
    assert "without 1 stopped seed" in figure.get_suptitle()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"policy": "critic"}, "policy must be"),
        ({"smooth": 0}, "at least 1"),
        ({"panels": {}}, "1 to 9 panels"),
        ({"panels": {"hopper": {}}}, "'hopper' has no runs"),
    ],
)
def test_invalid_arguments_of_curves_are_errors(runs, change, message):
    options = {"panels": {"quadratic": runs}} | change
    with pytest.raises(ValueError, match=message):
        score_figures.curves(options.pop("panels"), **options)


def test_a_log_without_a_task_has_no_curves(three):
    with pytest.raises(ValueError, match="never evaluated"):
        score_figures.curves({"plant": {"FtTPO": three}})


def test_final_policies_are_true_densities(runs):
    thin, fat, _ = policy_figures.final_policies(runs, STATE, 5).axes
    low, high = (float(end[0]) for end in runs["FtTPO"].policy(5).support(STATE))
    points, density = labelled(thin, "policy that acts")
    assert (points[0], points[-1]) == pytest.approx((low, high), abs=1e-6)
    parabola = 1.0 - ((points - (low + high) / 2) / ((high - low) / 2)) ** 2
    np.testing.assert_allclose(density, 1.5 * parabola / (high - low), atol=1e-3)
    assert f"{low:.3g} to {high:.3g}".replace("-", "−") in thin.get_title(loc="left")

    head = runs["IQL"].policy(5).network(STATE)
    normal = scipy.stats.norm(float(head.centre[0]), math.exp(float(head.log_scale[0])))
    points, density = (values[2:-2] for values in labelled(fat, "policy that acts"))
    inner = np.abs(points) < 0.999
    expected = normal.pdf(np.arctanh(points[inner])) / (1.0 - points[inner] ** 2)
    np.testing.assert_allclose(density[inner], expected, rtol=1e-2)
    law = marginal(runs["IQL"].policy(5), STATE)
    assert law.central(0.9) == pytest.approx(np.tanh(normal.ppf([0.05, 0.95])), abs=0.01)


def test_a_single_action_is_an_atom(three):
    law = marginal(of_family(three.policy(three.spec.seeds[0]), Deterministic()), jnp.ones(2), 1)
    assert law.points.size == 0 and mass(law) == 1.0
    centre = 2.0 + 2.0 * float(three.policy(three.spec.seeds[0]).network(jnp.ones(2)).centre[1])
    assert law.atoms[0].place == pytest.approx(centre, rel=1e-6)
    assert law.central(0.9) == law.support == (law.atoms[0].place, law.atoms[0].place)


def test_a_spike_at_an_end_of_the_box_is_cut_and_marked(runs):
    policy = runs["SQL"].policy(5)
    for scale, cut in ((0.8, False), (2.5, True)):
        head = Head(jnp.array([0.3]), jnp.log(jnp.array([scale])))
        law = marginal(dataclasses.replace(policy, network=lambda _, head=head: head), STATE)
        axes = matplotlib.figure.Figure().subplots()
        paper_marginals.draw_acting(axes, law, "policy")
        paper_marginals.fit_height(axes, [law])
        assert bool(law.density.max() > axes.get_ylim()[1]) == cut
        assert [text.get_text() for text in axes.texts] == ["↑ cut"] * 2 * cut
        # A spike that is not near an end is not cut.
        assert law.density[np.abs(law.points) < 0.99].max() < axes.get_ylim()[1]


def test_thin_and_fat_share_an_axis(runs):
    (axes,) = policy_figures.actor_and_proposal(runs["FtTPO"], STATE, 5).axes
    low, high = (float(end[0]) for end in runs["FtTPO"].policy(5).support(STATE))
    shaded = [patch.get_bbox() for patch in axes.patches]
    assert [box.x1 for box in shaded] == pytest.approx([low, 1.4])
    assert [box.x0 for box in shaded] == pytest.approx([-1.4, high])
    law = runs["FtTPO"].proposal(5)(STATE).base_dist
    twin = scipy.stats.cauchy(float(law.loc[0]), math.sqrt(2.0) * float(law.scale[0]))
    points, density = labelled(axes, "fat proposal")
    np.testing.assert_allclose(density, twin.pdf(points), rtol=1e-3)
    assert f"{100 * (twin.cdf(high) - twin.cdf(low)):.0f} % of" in axes.get_title()


def test_evolution_has_one_column_per_step_and_one_row_per_method(runs):
    chosen = {name: runs[name] for name in ("FtTPO", "IQL")}
    figure = policy_figures.evolution(chosen, STATE, 5, (0, 20, 40))
    assert [axes.get_title() for axes in figure.axes[:3]] == [
        "before training", "after 20 updates", "after 40 updates",
    ]  # fmt: skip
    for axes, step in zip(figure.axes, (0, 20, 40), strict=False):
        low, high = (float(end[0]) for end in runs["FtTPO"].policy(5, step).support(STATE))
        points, density = labelled(axes, "policy that acts")
        assert (points[0], points[-1]) == pytest.approx((low, high), abs=1e-6)
        assert np.trapezoid(density, points) == pytest.approx(1.0, abs=1e-3)
        assert labelled(axes, "its proposal")[0].max() == pytest.approx(1.4)
        assert axes.get_ylim()[1] > density.max()
    for axes in figure.axes[3:]:
        points, density = labelled(axes, "policy that acts")
        assert np.trapezoid(density, points) == pytest.approx(1.0, abs=1e-3)
        assert (points[0], points[-1]) == (-1.0, 1.0)


def test_evolution_has_one_row_per_coordinate_and_stems_for_clipped_mass(three):
    run = three
    figure = policy_figures.evolution({"FtTPO": run}, jnp.ones(2), 3, (1,), (0, 1, 2))
    for axes, low, high in zip(figure.axes, LOW, HIGH, strict=True):
        ends = [line.get_xdata()[0] for line in axes.lines if "end of" in line.get_label()]
        assert ends == [low, high]
    law = marginal(of_family(run.policy(run.spec.seeds[0]), HeavyTailed(1.0)), jnp.ones(2), 1)
    axes = matplotlib.figure.Figure().subplots()
    paper_marginals.draw_acting(axes, law, "policy")
    stems = [line for line in axes.lines if "single action" in line.get_label()]
    for stem, atom in zip(stems, law.atoms, strict=True):
        assert stem.get_xdata()[0] == atom.place
        assert stem.get_ydata()[1] == pytest.approx(0.86 * atom.mass)
    written = {text.get_text() for text in axes.texts}
    assert written == {f"{100 * atom.mass:.0f} %" for atom in law.atoms if atom.mass >= 0.005}


def test_missing_steps_and_coordinates_are_errors(runs):
    with pytest.raises(ValueError, match="no policy of step 10 is kept"):
        policy_figures.evolution(runs, STATE, 5, (10,))
    with pytest.raises(ValueError, match="coordinates 0 to 0, not 1"):
        policy_figures.evolution(runs, STATE, 5, (0,), (1,))
    with pytest.raises(ValueError, match="one row of numbers"):
        policy_figures.final_policies(runs, jnp.zeros((2, 8)), 5)
    with pytest.raises(ValueError, match="no proposal"):
        policy_figures.actor_and_proposal(runs["IQL"], STATE, 5)


def test_the_return_of_a_first_dose_agrees_with_a_simulation(runs, monkeypatch):
    monkeypatch.setattr(policy_figures, "FUTURES", 3)
    monkeypatch.setattr(policy_figures, "RETURN_STEPS", 4)
    run, task = runs["FtTPO"], treatment.by_name("treatment/quadratic")
    figure = policy_figures.first_action_return(run, 5)
    axes, second = figure.axes
    state, observation = policy_figures.patient_after_doses(task)
    assert int(state.time) == 7 and float(state.cumulative_dose) == pytest.approx(0.21, rel=1e-5)
    doses, drawn = labelled(second, "return")
    assert len(doses) == 50 and (doses[0], doses[-1]) == (-1.0, 1.0)

    actor, dose = run.policy(5), doses[40]
    keys = jax.random.split(jax.random.fold_in(jax.random.key(0), 7), 3)
    step, returns = jax.jit(treatment.step, static_argnums=3), []
    for key in keys:
        now, action, total = state, jnp.array([dose]), 0.0
        for time in range(4):
            now, seen, reward, _ = step(jax.random.fold_in(key, time), now, action, task)
            action, total = actor.act(seen), total + float(reward)
        returns.append([total])
    assert drawn[40] == pytest.approx(np.mean(returns), rel=1e-4)
    heights = second.collections[0].get_paths()[0].vertices
    heights = heights[np.isclose(heights[:, 0], dose), 1]
    interval = seed_interval(np.array(returns), resamples=2000)
    assert (heights.min(), heights.max()) == pytest.approx(interval[1:], rel=1e-3)

    low, high = (float(end[0]) for end in actor.support(observation))
    red = [area.get_paths()[0].vertices[:, 0] for area in axes.collections if area.get_hatch()]
    assert red[0].max() == pytest.approx(low, abs=4e-3) and red[0].max() <= low + 1e-6
    assert red[1].min() == pytest.approx(high, abs=4e-3) and red[1].min() >= high - 1e-6


def test_the_return_of_a_first_dose_needs_a_treatment_task(three):
    with pytest.raises(ValueError, match="treatment tasks"):
        policy_figures.first_action_return(three)


def test_bars_of_the_ablation_start_at_100():
    scores = {
        "hopper": {"SPOT": Interval(90.0, 80.0, 95.0), "SG": Interval(110.0, 101.0, 125.0)},
        "walker": {"SG": Interval(70.0, math.nan, math.nan)},
    }
    (axes,) = score_figures.ablation(scores).axes
    bars = [(patch.get_y(), patch.get_y() + patch.get_height()) for patch in axes.patches]
    assert bars == [(100.0, 90.0), (100.0, 110.0), (100.0, 70.0)]
    drawn = [area.get_segments() for area in axes.collections]
    finite = [tuple(ends[:, 1]) for of_bars in drawn for ends in of_bars if len(ends) == 2]
    assert finite == [(80.0, 95.0), (101.0, 125.0)]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["hopper", "walker"]
    with pytest.raises(ValueError, match="at least one variant"):
        score_figures.ablation({"hopper": {}})


def test_training_time_is_in_hours_per_million():
    # The paper's hours: FtTPO takes 2.5 times as long as IQL.
    rates = {"IQL": 1e6 / (6.0 * 3600.0), "FtTPO": 1e6 / (15.0 * 3600.0)}
    (axes,) = score_figures.training_time(rates).axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([15.0, 6.0])
    assert [text.get_text() for text in axes.texts] == ["15 h  (2.5 ×)", "6 h  (1.0 ×)"]
    with pytest.raises(ValueError, match="more than 0 updates"):
        score_figures.training_time({"IQL": 0.0})


def test_actions_outside_the_support_have_likelihood_zero():
    _, lower = policy_figures.outside_actions().axes
    places, heights = labelled(lower, "logged action, inside")
    # Epanechnikov around 0.25 with half-width sqrt(2) / 4.
    reach = math.sqrt(2.0) / 4.0
    twin = scipy.stats.beta(2.0, 2.0, loc=0.25 - reach, scale=2.0 * reach)
    np.testing.assert_allclose(heights, twin.logpdf(places), atol=1e-4)
    outside, _ = labelled(lower, "logged action, outside")
    assert np.all(np.isneginf(twin.logpdf(outside))) and len(outside) == 5


def test_replaced_actions_become_the_nearest_sample():
    (axes,) = policy_figures.replaced_actions().axes
    samples = labelled(axes, "100 samples").T
    outside, instead = labelled(axes, "logged, outside").T, labelled(axes, "nearest").T
    _, nearest = scipy.spatial.cKDTree(samples).query(outside)
    np.testing.assert_array_equal(instead, samples[nearest])
    reach = math.sqrt(2.0) / 4.0
    assert np.all(np.max(np.abs(outside - 0.25), axis=1) > reach)
    assert np.all(np.abs(labelled(axes, "logged, inside") - 0.25) < reach)
    assert np.all(np.abs(samples - 0.25) <= reach + 1e-6)


def test_a_trailing_window_is_shorter_at_the_beginning():
    scores = np.arange(10.0).reshape(5, 2)
    np.testing.assert_allclose(score_figures.smoothed(scores, 3)[:, 0], [0.0, 1.0, 2.0, 4.0, 6.0])
