"""Bounds of certificates: sound, close, and printed so that they hold."""

import numpy as np
import pytest

import random_policies as made
from fat2thin import safety

CASES = [
    {"kind": "sparse", "rules": "linear"},
    {"kind": "sparse", "rules": "rate", "transformed": True},
    {"kind": "sparse", "rules": "cap", "members": 3, "rule": "consensus"},
    {"kind": "sparse", "rules": "stop", "members": 2},
    {"kind": "clip"},
    {"kind": "deterministic", "rules": "fallback"},
    {"kind": "squashed", "rules": "equal"},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_attacks_stay_within_bounds(case):
    rng = np.random.default_rng(1)
    policy = made.policy_of(3, **case)
    for size in (0.1, 1.0):
        box = made.box_of(rng, policy, size)
        found = safety.certify(policy, box, seconds=0.3)
        low, high = made.attacked(policy, box, rng)
        assert (found.low <= low).all() and (high <= found.high).all()
        assert found.gap < (1.0 if size < 1.0 else 3.0)
