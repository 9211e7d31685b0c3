"""Quantiles of exports against SciPy, and what is said where there are none."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from export.cases import policy, standard_law, truncated_quantile
from fat2thin.export.contents import contents_of
from fat2thin.export.portable import LEAST_TAIL
from fat2thin.export.sampling import quantile_by, sampling_of, truncated_by
from fat2thin.policies.plain import PlainFamily, plain_policy

INDICES = [-5.0, -1.0, 0.25, 0.9, 0.99, 1.0, 1.01, 1.5, 2.0, 2.5, 2.9]


def sampling(variant="plain", **family):
    """Return how a family is sampled, by the plain description of some policy."""
    plain = plain_policy(policy("sparse", variant))
    return sampling_of(dataclasses.replace(plain, family=PlainFamily(**family)))


def exact(index, share):
    """Return SciPy's quantile: of the band's half-width below 1, of the scale from 1."""
    if index < 1.0:
        shape = 1.0 / (1.0 - index) + 1.0
        return 2.0 * stats.beta.ppf(share, shape, shape) - 1.0
    if index == 1.0:
        return stats.norm.ppf(share)
    freedom = (3.0 - index) / (index - 1.0)
    return np.sqrt(2.0 / (3.0 - index)) * stats.t.ppf(share, freedom)


@pytest.mark.parametrize("index", INDICES)
def test_the_stated_error_holds_at_other_shares(index):
    kind = {"kind": "sparse", "box": "inside"} if index < 1.0 else {"kind": "heavy"}
    found = sampling(**kind, index=index)
    draw = np.random.default_rng(7)
    # Half of the shares in the lower tail, down to 1e-37.
    share = np.float32(
        np.concatenate([draw.uniform(size=5000), 10.0 ** draw.uniform(-37, 0, 5000)])
    )
    share = np.minimum(share, np.float32(0.5))
    wanted = exact(index, share.astype(np.float64))
    share, wanted = share[np.abs(wanted) < 1e25], wanted[np.abs(wanted) < 1e25]
    for dtype in (np.float32, np.float64):
        away = np.abs(quantile_by(found.settings, found.table, share, dtype) - wanted)
        assert (away <= found.settings["error"] * np.maximum(np.abs(wanted), 1.0)).all()
    assert 0 < found.settings["error"] < 2e-5


def test_index_zero_is_exact_and_samples_have_its_law():
    found = sampling(kind="sparse", index=0.0, box="inside")
    share = (np.arange(2**16) + 0.5) / 2**16
    drawn = quantile_by(found.settings, found.table, share, np.float64)
    np.testing.assert_allclose(drawn, 2.0 * stats.beta.ppf(share, 2, 2) - 1.0, atol=1e-13)
    assert found.settings["error"] == 0.0
    ends = quantile_by(found.settings, found.table, np.array([0.0, 0.5, 1.0]), np.float32)
    assert ends.tolist() == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize("index", [0.5, 1.0, 2.0])
def test_ends_and_the_middle(index):
    kind = {"kind": "sparse", "box": "inside"} if index < 1.0 else {"kind": "heavy"}
    found = sampling(**kind, index=index)
    share = np.array([0.0, LEAST_TAIL, 0.25, 0.5, 0.75, 1.0 - 2.0**-24, 1.0])
    drawn = quantile_by(found.settings, found.table, share, np.float32)
    assert (np.diff(drawn) >= 0).all() and drawn[3] == 0.0
    np.testing.assert_allclose(drawn[[2]], -drawn[[4]], rtol=1e-6)
    if index < 1.0:
        assert drawn[0] == -1.0 and drawn[-1] == 1.0
    else:
        # A smaller tail counts as the least: the quantile stays finite.
        assert np.isfinite(drawn).all() and drawn[0] == drawn[1] == -drawn[-1]


def test_what_has_no_quantiles_says_so():
    beta = contents_of(plain_policy(policy("beta")))
    assert "Beta" in beta.sampling and not beta.settings["sampling"]["samples"]
    limited = contents_of(plain_policy(policy("beta", "limits")))
    assert "Beta" in limited.sampling and not limited.settings["sampling"]["samples"]
    imprecise = sampling("limits", kind="student", freedom=1e6)
    assert "centre" in imprecise.why and imprecise.settings == {"samples": False, "kind": "none"}
    assert contents_of(plain_policy(policy("sparse", "limits"))).settings["sampling"]["samples"]


TRUNCATED = [
    *({"kind": "heavy", "index": index} for index in (1.0, 1.01, 2.0, 2.9)),
    {"kind": "student", "freedom": 3.0},
    {"kind": "student", "freedom": 30.0},
]


def quantiles_within(found, left, right, share, dtype):
    return truncated_by(found.settings, found.table, found.folds, left, right, share, dtype)


@pytest.mark.parametrize(
    "family", TRUNCATED, ids=lambda family: " ".join(map(str, family.values()))
)
def test_the_stated_error_holds_in_intervals_of_all_kinds(family):
    found = sampling("limits", **family)
    law, factor = standard_law(PlainFamily(**family))
    draw, count = np.random.default_rng(11), 4000
    # Around the centre, in both tails and far out; narrow, wide, and wider than anything.
    reach = np.where(np.arange(count) % 2, 6.0, 10.0 ** draw.uniform(0, 1.5, count))
    left = np.float32(draw.choice([-1, 1], count) * reach * draw.uniform(0.1, 1, count))
    width = 10.0 ** draw.uniform(-4, 3, count)
    right = np.float32(left + np.float32(width))
    left, right = (np.where(np.arange(count) % 4 < 2, *pair) for pair in
                   ((left, -right), (right, -left)))  # fmt: skip
    share = np.float32(np.concatenate([draw.uniform(size=count - 4), [0.0, 0.5, 1 - 2**-24, 1.0]]))
    share[: count // 4] = 10.0 ** draw.uniform(-37, 0, count // 4)
    wanted = truncated_quantile(
        law, found.settings["edge"], *(part.astype(np.float64) for part in (left, right, share))
    )
    assert np.isfinite(wanted).all()
    for dtype in (np.float32, np.float64):
        away = quantiles_within(found, left, right, share, dtype)
        assert ((left <= away) & (away <= right)).all()
        allowed = found.settings["error"] * np.maximum(np.abs(wanted), 1.0 / factor)
        assert (np.abs(away - wanted) <= np.maximum(allowed, 1e-9)).all()
    assert 0 < found.settings["error"] < 2e-5 and "truncated" in found.why


def test_an_interval_far_in_a_tail_does_not_collapse():
    """A Gaussian beyond 30 deviations falls off as an exponential of rate 30 does, nearly."""
    found = sampling("limits", kind="heavy", index=1.0)
    share = np.array([0.25, 0.5, 0.75, 0.999], np.float32)
    for start in (30.0, 300.0, 3000.0):
        ends = np.full(4, start, np.float32), np.full(4, start + 10.0, np.float32)
        for dtype in (np.float32, np.float64):
            away = quantiles_within(found, *ends, share, dtype) - start
            # The mirrored interval gives the mirrored quantile at the other share.
            mirrored = quantiles_within(found, -ends[1], -ends[0], 1.0 - share, dtype) + start
            fallen = -np.log(1.0 - share.astype(np.float64))
            expected = np.sqrt(start**2 + 2.0 * fallen) - start
            slack = 8.0 / start**3 + (3e-7 if dtype == np.float32 else 1e-15) * start
            np.testing.assert_allclose(away, expected, rtol=0, atol=slack)
            np.testing.assert_allclose(mirrored, -away, rtol=0, atol=slack)


def test_an_interval_of_one_point_gives_the_point():
    found = sampling("limits", kind="heavy", index=2.0)
    points = np.array([-1e15, -40.0, -3.0, 0.0, 0.7, 12.0, 1e6], np.float32)
    for share in (0.0, 0.3, 1.0):
        drawn = quantiles_within(found, points, points, np.full(7, share), np.float32)
        assert drawn.tolist() == points.astype(np.float64).tolist()


def test_samples_within_limits_have_the_truncated_law_of_the_policy():
    import jax.numpy as jnp

    from fat2thin.distributions.truncated import TailKernel, Truncated

    found = sampling("limits", kind="student", freedom=3.0)
    share = np.tile((np.arange(64, dtype=np.float32)[:, None] + 0.5) / 64, (1, 3))
    low, high = np.array([-1.0, 2.0, -80.0], np.float32), np.array([0.5, 9.0, -50.0], np.float32)
    # The q-Gaussian that is this Student-t.
    kernel = TailKernel(jnp.zeros(3), jnp.full(3, (3.0 / 4.0) ** 0.5), 6.0 / 4.0)
    wanted = Truncated(kernel, jnp.asarray(low), jnp.asarray(high)).icdf(jnp.asarray(share))
    drawn = quantiles_within(found, low, high, share, np.float64)
    # That law is computed in float32, by numerical integration.
    np.testing.assert_allclose(drawn, wanted, rtol=2e-6, atol=2e-6)
