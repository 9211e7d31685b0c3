"""Claims about costs and mathematics: each fails if what it checks is wrong."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from experiments.made_up_runs import (
    MadeUpKept,
    judged,
)
from fat2thin.distributions import QGaussian
from fat2thin.paper import claims_policies
from fat2thin.paper.claims import FAILS, HOLDS, UNDECIDED, Reproduced

NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "ratio", "holds"),
    [
        ("C19", 1.4, False), ("C19", 2.0, True), ("C19", 3.1, False),
        ("C20", 0.4, False), ("C20", 1.0, True), ("C20", 2.1, False),
    ],
)  # fmt: skip
def test_costs_are_relative_to_iql(name, ratio, holds):
    kind = {"C19": "seconds_an_update", "C20": "seconds_an_action"}[name]
    times = {"seconds_an_update": 1.0, "seconds_an_action": 5.0}
    methods = {"iql": {**times, kind: 3.0}, "fttpo": {**times, kind: 3.0 * ratio}}
    found = judged(name, MadeUpKept(times={"device": "a clock", "methods": methods}))
    assert found.verdict == (HOLDS if holds else FAILS)
    assert found.corrected.effect.value == pytest.approx(ratio)


def test_times_are_read_from_the_folder(tmp_path):
    methods = {
        name: {"seconds_an_update": seconds, "seconds_an_action": 1.0}
        for name, seconds in (("iql", 1.0), ("fttpo", 2.5))
    }
    (tmp_path / "times.json").write_text(json.dumps({"device": "a clock", "methods": methods}))
    assert judged("C19", Reproduced(tmp_path)).corrected.effect.value == 2.5


DRAWS = 40_000


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(claims_policies, "SAMPLES", DRAWS)
    monkeypatch.setattr(claims_policies, "RATIOS", (3.0,))


def structural(name):
    found = judged(name, MadeUpKept())
    return found.verdict, found.corrected.effect.value


def test_a_weight_with_a_floor_is_found(monkeypatch):
    """The authors' code has 1e-8 instead of zero."""
    right = claims_policies.q_exponential_weight
    monkeypatch.setattr(
        claims_policies, "q_exponential_weight", lambda *given: jnp.maximum(right(*given), 1e-8)
    )
    verdict, wrong = structural("C21")
    assert verdict == FAILS
    assert wrong > 40_000


def test_a_weight_that_drops_too_little_is_found(monkeypatch):
    right = claims_policies.q_exponential_weight
    monkeypatch.setattr(
        claims_policies, "q_exponential_weight", lambda a, *given: right(a + 0.01, *given)
    )
    # Ten of a thousand advantages per unit, for each of twelve pairs of temperature and index.
    assert structural("C21") == (FAILS, pytest.approx(120, abs=24))


@pytest.mark.usefixtures("few_draws")
def test_samples_that_leave_the_support_are_found(monkeypatch):
    class Leaking(QGaussian):
        def sample(self, key, sample_shape=()):
            return self.loc + 1.3 * (super().sample(key, sample_shape) - self.loc)

    monkeypatch.setattr(claims_policies, "QGaussian", Leaking)
    # Share of the Epanechnikov distribution beyond 1 / 1.3 of the half-width, at both ends.
    share = 2.0 * scipy.stats.beta(2, 2).sf((1.0 + 1.0 / 1.3) / 2.0)
    verdict, lost = structural("C22")
    assert verdict == FAILS
    assert lost == pytest.approx(DRAWS * share, rel=0.1)


@pytest.mark.usefixtures("few_draws")
def test_an_estimator_that_is_not_a_number_is_found(monkeypatch):
    monkeypatch.setattr(claims_policies, "_k3", lambda ratio: np.array([0.0, NAN]))
    assert structural("C23")[0] == FAILS
    assert structural("C24")[0] == FAILS


# C24: the half-width is half the Cauchy's scale, so 70 % of its mass is outside the support.
OUTSIDE = 1.0 - 2.0 / np.pi * np.arctan(0.5)


@pytest.fixture
def one_width(monkeypatch):
    monkeypatch.setattr(claims_policies, "RATIOS", (0.5,))


@pytest.mark.usefixtures("one_width")
def test_the_bias_of_k3_is_measured():
    assert structural("C24") == (HOLDS, pytest.approx(1.0, abs=0.01))


@pytest.mark.usefixtures("one_width")
def test_a_wrong_divergence_is_found(monkeypatch):
    right = claims_policies.kl_sparse_cauchy
    monkeypatch.setattr(claims_policies, "kl_sparse_cauchy", lambda *given: right(*given) + 0.05)
    assert structural("C24") == (FAILS, pytest.approx(1.0 + 0.05 / OUTSIDE, abs=0.01))


@pytest.mark.usefixtures("one_width")
def test_an_estimator_without_the_bias_is_found(monkeypatch):
    """The mean of -ln r is the divergence itself, without the stated bias."""
    rng = np.random.default_rng(0)
    place = 2.0 * rng.beta(2.0, 2.0, 400_000) - 1.0
    thin = scipy.stats.beta(2, 2, loc=-0.5).logpdf(place / 2.0)
    fat = scipy.stats.cauchy.logpdf(0.5 * place)
    monkeypatch.setattr(claims_policies, "_k3", lambda ratio: thin - fat)
    assert structural("C24") == (FAILS, pytest.approx(0.0, abs=0.02))


@pytest.mark.usefixtures("one_width")
def test_the_published_normaliser_is_found(monkeypatch):
    """A proposal density that is too large by the factor √2 shifts the means of r and -ln r."""

    class Published(QGaussian):
        def log_prob(self, value):
            heavy = 0.5 * np.log(2.0) if self.entropic_index == 2.0 else 0.0
            return super().log_prob(value) + heavy

    monkeypatch.setattr(claims_policies, "QGaussian", Published)
    change = (np.sqrt(2.0) - 1.0) * (1.0 - OUTSIDE) - 0.5 * np.log(2.0)
    assert structural("C24") == (FAILS, pytest.approx(1.0 - change / OUTSIDE, abs=0.01))


def mean_of_k3(density, share=1.0):
    """Return the mean by quadrature, for this density and samples up to a share of the edge."""

    def value(place):
        ratio = scipy.stats.cauchy.pdf(0.5 * place) / density(place)
        return ratio - 1.0 - np.log(ratio)

    def weighted(place):
        return 1.5 * (1.0 - place**2) * value(min(place, share))

    return scipy.integrate.quad(weighted, 0.0, 1.0, points=[share])[0]


def thin_density(place):
    return 1.5 * (1.0 - place**2)


class SparesTheEdges(QGaussian):
    def sample(self, key, sample_shape=()):
        end = 0.9 * self.half_width
        return jnp.clip(super().sample(key, sample_shape), -end, end)


class HasAFloor(QGaussian):
    """Has a floor on its density, which shifts the mean of r five times as far as that of -ln r."""

    def log_prob(self, value):
        floor = np.log(0.1) if self.entropic_index == 0.0 else -np.inf
        return jnp.maximum(super().log_prob(value), floor)


@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize(
    ("wrong", "mean"),
    [
        (SparesTheEdges, mean_of_k3(thin_density, share=0.9)),
        (HasAFloor, mean_of_k3(lambda place: np.maximum(thin_density(place), 0.1))),
    ],
    ids=["sampler", "density"],
)
def test_a_biased_sampler_or_density_is_found(monkeypatch, wrong, mean):
    monkeypatch.setattr(claims_policies, "QGaussian", wrong)
    expected = 1.0 + (mean_of_k3(thin_density) - mean) / OUTSIDE
    assert 1.004 < expected < 1.01
    assert structural("C24") == (FAILS, pytest.approx(expected, abs=0.002))


@pytest.mark.usefixtures("one_width")
def test_too_few_samples_leave_the_bias_undecided(monkeypatch):
    values = np.array([0.0, 2.0]) + claims_policies.kl_sparse_cauchy(0.5, 1.0) - OUTSIDE - 1.0
    monkeypatch.setattr(claims_policies, "_k3", lambda ratio: values)
    assert structural("C24")[0] == UNDECIDED
