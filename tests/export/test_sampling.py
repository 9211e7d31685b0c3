"""Quantiles of exports against SciPy, and what is said where there are none."""

import numpy as np
import pytest
from scipy import stats

from export.cases import policy
from fat2thin.export.contents import contents_of
from fat2thin.export.portable import LEAST_TAIL
from fat2thin.export.sampling import quantile_by, sampling_of
from fat2thin.policies.plain import PlainFamily, plain_policy

INDICES = [-5.0, -1.0, 0.25, 0.9, 0.99, 1.0, 1.01, 1.5, 2.0, 2.5, 2.9]


def sampling(**family):
    """Return how a family is sampled, by the plain description of some policy."""
    import dataclasses

    return sampling_of(dataclasses.replace(plain_policy(policy()), family=PlainFamily(**family)))


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
    limited = contents_of(plain_policy(policy("gaussian", "limits")))
    assert "limits" in limited.sampling and not limited.settings["sampling"]["samples"]
    assert contents_of(plain_policy(policy("sparse", "limits"))).settings["sampling"]["samples"]
