"""The plain description of a policy: its numbers, read by formulas alone, give the same head."""

import dataclasses

import jax
import numpy as np
import pytest

from fat2thin.algorithms.published import AuthorsSparseFamily
from fat2thin.columns import Transform
from fat2thin.policies.ensemble import ensemble_of
from fat2thin.policies.families import Beta, Deterministic, HeavyStudent, Sparse, Squashed
from fat2thin.policies.networks import PolicyNetwork
from fat2thin.policies.plain import NotPlainError, hash_of, plain_policy
from fat2thin.policies.policy import unit_policy

SIZES = {"observation_size": 3, "action_size": 2, "hidden": (5, 4)}
LOG = (Transform("log", 1.0), None, Transform("scale", 2.0))


def some_policy(family=Sparse(), seed=0, bounds=(0.05, 0.4), **options):  # noqa: B008
    network = PolicyNetwork(jax.random.key(seed), **SIZES)
    network = jax.tree.map(lambda leaf: leaf + 0.1 * jax.numpy.ones_like(leaf), network)
    policy = unit_policy(network, family, bounds, **options).in_box((-1.0, 0.0), (3.0, 10.0))
    mean, scale = jax.numpy.array([0.1, 0.2, 0.3]), jax.numpy.array([1.0, 2.0, 3.0])
    return policy.on_raw(mean, scale, LOG)


def head_by_hand(member, seen):
    """Return centre and log scale, by the formulas of the module's docstring."""
    x = np.stack([np.log(seen[:, 0] + 1.0), seen[:, 1], seen[:, 2] * 2.0], axis=1)
    x = (x - member.mean) / member.scale
    for layer in member.trunk:
        x = np.maximum(x @ layer.weight.T + layer.bias, 0.0)
    centre, log_scale = (
        x @ layer.weight.T + layer.bias for layer in (member.centre, member.log_scale)
    )
    log_scale = log_scale if member.fixed is None else np.broadcast_to(member.fixed, centre.shape)
    return np.tanh(centre) if member.tanh else centre, np.clip(log_scale, *member.bounds)


@pytest.mark.parametrize("options", [{}, {"state_dependent_scale": False}])
@pytest.mark.parametrize("family", [Sparse(), Squashed()])
def test_the_plain_numbers_give_the_policys_head(family, options):
    policy = some_policy(family, **options)
    plain = plain_policy(policy)
    assert plain.observation_transforms == LOG and plain.rule is None
    seen = np.abs(np.random.default_rng(0).normal(size=(20, 3))).astype("f4")
    head = policy.network(jax.numpy.asarray(seen))
    for got, want in zip(head_by_hand(plain.members[0], seen), head, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-6)


def test_families_by_kind():
    found = [
        plain_policy(some_policy(family)).family.settings()
        for family in (Sparse(-1.0, "clip"), HeavyStudent(3.0), Squashed(), Beta(), Deterministic())
    ]
    assert found == [
        {"kind": "sparse", "index": -1.0, "box": "clip"}, {"kind": "student", "freedom": 3.0},
        {"kind": "squashed"}, {"kind": "beta"}, {"kind": "deterministic"},
    ]  # fmt: skip


def test_an_ensemble_has_one_member_per_seed():
    policies = [some_policy(seed=seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *policies)
    plain = plain_policy(ensemble_of(stacked))
    assert plain.rule == "consensus" and len(plain.members) == 3
    for member, alone in zip(plain.members, policies, strict=True):
        for name, array in plain_policy(alone).members[0].arrays().items():
            np.testing.assert_array_equal(member.arrays()[name], array)


def test_what_has_no_plain_description_is_refused():
    class Narrow(Sparse):
        pass

    for family in (Narrow(), AuthorsSparseFamily()):
        with pytest.raises(NotPlainError, match=type(family).__name__):
            plain_policy(some_policy(family))


def test_hashes_change_with_what_they_name():
    policy = some_policy()
    plain = plain_policy(policy)
    limits = {"cap": "dose <= 2 when severity > 1"}
    names = [["severity", "b", "c"], ["dose", "d"]]
    from fat2thin.policies.limits import Limits

    bound = Limits.parse(limits, *names, [-1.0, 0.0], [3.0, 10.0])
    limited = plain_policy(policy.with_limits(bound))
    assert limited.limits == bound.parsed
    assert limited.weight_hash == plain.weight_hash and limited.policy_hash != plain.policy_hash
    member = plain.members[0]
    bias = member.centre.bias.copy()
    bias[1] = np.nextafter(bias[1], np.float32(9))
    moved = dataclasses.replace(member, centre=dataclasses.replace(member.centre, bias=bias))
    assert dataclasses.replace(plain, members=(moved,)).weight_hash != plain.weight_hash
    wider = dataclasses.replace(member, bounds=(member.bounds[0], 0.0))
    assert dataclasses.replace(plain, members=(wider,)).weight_hash != plain.weight_hash


def test_the_hash_is_of_the_stated_bytes():
    import hashlib

    data = b'["a","<f4",[2]]\n' + np.array([1, 2], "<f4").tobytes() + b'{"x":[1,2]}'
    expected = hashlib.sha256(data).hexdigest()
    assert hash_of({"a": np.array([1, 2], ">f4")}, {"x": [1, 2]}) == expected
