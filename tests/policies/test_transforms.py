"""Transformed columns: laws of raw actions against SciPy, and policies that learned on them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fat2thin.columns import (
    Column,
    Transform,
    default_columns,
    have_names,
    inverse_transform,
    transform,
    transform_from_json,
    transforms_of,
)
from fat2thin.policies.families import (
    Beta,
    Deterministic,
    Head,
    HeavyTailed,
    Sparse,
    Squashed,
    Transformed,
)
from fat2thin.policies.policy import Policy, StandardisedNetwork

LOG, SCALE = Transform("log", 0.5), Transform("scale", 0.01)
BOUNDED = [Sparse(0.0), Squashed(), Beta()]
FAMILIES = [*BOUNDED, HeavyTailed(1.0), HeavyTailed(2.0)]
LOW, HIGH = jnp.array([0.0]), jnp.array([20.0])
HEAD = Head(jnp.array([0.2]), jnp.array([-1.0]))


def law(family, one=LOG):
    return Transformed(family, (one,)).distribution(HEAD, LOW, HIGH)


@pytest.mark.parametrize("one", [LOG, SCALE, Transform("log", 0.0)], ids=str)
def test_a_transform_and_its_inverse(one):
    values = np.geomspace(1e-3, 1e4, 50)[:, None]
    expected = np.log(values + one.number) if one.kind == "log" else values * one.number
    np.testing.assert_allclose(transform(values, (one,)), expected, rtol=1e-12)
    np.testing.assert_allclose(inverse_transform(expected, (one,)), values, rtol=1e-9)
    assert transform(values, ()) is values


def test_a_value_below_a_logarithm_is_nan_and_its_gradient_stays_finite():
    def total(x):
        return jnp.nansum(transform(x, (LOG,), jnp))

    values = jnp.array([[-1.0], [1.0]])
    assert np.isnan(transform(values, (LOG,), jnp)[0, 0])
    np.testing.assert_allclose(jax.grad(total)(values), [[0.0], [1.0 / 1.5]], rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("root", 1.0), ("scale", 0.0), ("scale", -1.0), ("log", np.inf), ("scale", np.nan),
        ("scale", 1e39), ("log", -1e300),
    ],
)  # fmt: skip
def test_an_impossible_transform_is_refused(kind, number):
    with pytest.raises(ValueError, match=r"a transform is|needs a"):
        Transform(kind, number)


@pytest.mark.parametrize(
    "number", [-(10**400), 1e39, True, "1", None], ids=["huge", "large", "bool", "text", "none"]
)
def test_a_transform_of_json_has_a_number(number):
    with pytest.raises(ValueError, match="a number of float32"):
        transform_from_json({"kind": "log", "number": number})
    assert transform_from_json({"kind": "log", "number": 2}) == Transform("log", 2.0)


def test_a_long_unit_is_refused():
    with pytest.raises(ValueError, match="unit of column 'dose' must be a text of at most 100"):
        Column("dose", "m" * 101)


@pytest.mark.parametrize("family", BOUNDED, ids=lambda family: type(family).__name__)
@pytest.mark.parametrize("one", [LOG, SCALE], ids=str)
def test_the_raw_density_integrates_to_one(family, one):
    raw = law(family, one)
    low, high = (float(end[0]) for end in raw.raw_ends)
    # Half of the points close to the lower end, where the density of a logarithm is steep.
    near = low + (high - low) * np.geomspace(1e-7, 1.0, 100_000)
    x = np.unique(np.concatenate([[low], near, np.linspace(low, high, 100_000)]).clip(low, high))
    density = np.exp(np.asarray(raw.log_prob(jnp.asarray(x[:, None], jnp.float32)), np.float64))
    np.testing.assert_allclose(np.trapezoid(density, x), 1.0, atol=2e-3)


@pytest.mark.parametrize("index", [1.0, 2.0])
def test_the_density_of_a_logarithm_is_scipys(index):
    one = Transform("log", 0.0)
    raw = Transformed(HeavyTailed(index), (one,)).distribution(HEAD, jnp.array([1.0]), HIGH)
    half = np.log(20.0) / 2.0
    centre, scale = half * 1.2, half * np.exp(-1.0)
    known = scipy.stats.norm(centre, scale)
    if index == 2.0:
        known = scipy.stats.cauchy(centre, np.sqrt(2.0) * scale)
    x = np.geomspace(0.01, 1e4, 60)
    found = raw.log_prob(jnp.asarray(x[:, None], jnp.float32))
    np.testing.assert_allclose(found, known.logpdf(np.log(x)) - np.log(x), rtol=2e-4, atol=2e-4)
    assert raw.event_shape == (1,)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_samples_lie_in_the_support_and_have_a_density(family):
    raw = law(family)
    drawn = raw.sample(jax.random.key(3), (20_000,))
    low, high = raw.raw_ends
    assert ((drawn >= low[None]) & (drawn <= high[None])).all()
    assert np.isfinite(raw.log_prob(drawn)).all()
    outside = jnp.array([[float(low[0]) - 1.0], [-0.6]])
    assert (raw.log_prob(outside) == -jnp.inf).all()


def test_samples_follow_the_density():
    # Kolmogorov-Smirnov at a level of 1e-4, against SciPy's log-normal law.
    raw = Transformed(HeavyTailed(1.0), (Transform("log", 0.0),)).distribution(
        HEAD, jnp.array([1.0]), HIGH
    )
    drawn = np.asarray(raw.sample(jax.random.key(0), (20_000,)))[:, 0]
    half = np.log(20.0) / 2.0
    known = scipy.stats.lognorm(s=half * np.exp(-1.0), scale=np.exp(half * 1.2))
    assert scipy.stats.kstest(drawn, known.cdf).pvalue > 1e-4


def test_a_band_at_the_edge_of_the_box_contains_the_edge():
    head = Head(jnp.array([-0.99]), jnp.array([-1.0]))
    family = Transformed(Sparse(0.0), (LOG,))
    low, high = family.support(head, LOW, HIGH)
    assert low[0] == LOW[0] and high[0] < HIGH[0]
    assert np.isfinite(family.distribution(head, LOW, HIGH).log_prob((low + high) / 2.0))
    np.testing.assert_allclose(  # the middle of the band, on the scale of the logarithm
        np.log(family.centre(head, LOW, HIGH) + 0.5), (np.log(0.5) + np.log(high + 0.5)) / 2.0,
        rtol=1e-5,
    )  # fmt: skip


def test_a_deterministic_policy_acts_at_the_raw_centre():
    family = Transformed(Deterministic(), (LOG,))
    point = family.distribution(HEAD, LOW, HIGH)
    assert point.sample(jax.random.key(0)) == family.centre(HEAD, LOW, HIGH)
    assert family.reach == "point"


class Line(StandardisedNetwork):
    """A network whose centre is its first input, and whose band has the half-width 0.1."""

    def __init__(self, transforms=()):
        self.network = lambda x: Head(x[..., :1], jnp.full((*x.shape[:-1], 1), jnp.log(0.1)))
        self.mean, self.scale, self.transforms = jnp.zeros(2), jnp.ones(2), transforms


def named_policy():
    columns = (Column("severity"), Column("weight", "kg", Transform("log", 0.0)))
    policy = Policy(Line(transforms_of(columns)), jnp.array([-1.0]), jnp.array([1.0]), Sparse(0.0))
    dose = (Column("dose", "mg"),)
    return dataclasses.replace(policy, observation_columns=columns, action_columns=dose)


def test_wrong_observations_are_refused_by_the_names_of_their_columns():
    policy = named_policy()
    for call in (policy.act, policy.support, policy):
        with pytest.raises(ValueError, match=r"has 2 numbers \(severity, weight\), this one has 3"):
            call([1.0, 2.0, 3.0])
        with pytest.raises(ValueError, match=r"^severity of row 1 is nan: "):
            call([[0.0, 2.0], [np.nan, 3.0]])
        with pytest.raises(ValueError, match=r"^weight is -2: .*logarithm of this column"):
            call([0.0, -2.0])
    with pytest.raises(ValueError, match="severity, weight"):
        jax.jit(policy.act)(jnp.zeros(3))


def test_act_is_the_same_compiled_traced_and_by_hand():
    policy, seen, key = named_policy(), np.array([0.25, 3.0]), jax.random.key(1)
    low, high = map(np.asarray, policy.support(seen))
    np.testing.assert_allclose([low[0], high[0]], [0.15, 0.35], rtol=1e-6)
    np.testing.assert_allclose(policy.act(seen), [0.25], rtol=1e-6)
    traced = jax.jit(policy.act)(seen, key)
    np.testing.assert_allclose(policy.act(seen, key), traced, rtol=1e-6)
    rows = np.asarray(policy.act(np.tile(seen, (4, 1)), key))
    assert rows.shape == (4, 1) and ((rows >= low) & (rows <= high)).all()


def test_columns_keep_their_names_units_and_transforms_as_json():
    column = Column("dose", "mg", LOG)
    assert column.label == "dose (mg)" and Column("age").label == "age"
    assert Column.from_json(column.to_json()) == column
    assert transforms_of([Column("a"), column]) == (None, LOG) and transforms_of([]) == ()
    for broken in (
        {"name": 3, "unit": ""},
        {"name": "a", "unit": "", "transform": {"kind": "log"}},
    ):
        with pytest.raises(ValueError, match=r"must have a"):
            Column.from_json(broken)
    assert have_names("action", [column]) and not have_names("action", default_columns("action", 2))
