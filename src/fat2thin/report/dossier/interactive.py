"""The policy for the scripts of the page, which ask it about a typed patient."""

import dataclasses
import json
from typing import Any

import numpy as np

from fat2thin.columns import Transforms
from fat2thin.policies.plain import NotPlainError, PlainMember, plain_policy
from fat2thin.report.dossier.subject import Subject
from fat2thin.report.page_policies import EncodedArrays, rounded

MOST_CHARACTERS = 3_500_000
"""Of networks and summary; the page should stay below 5 MB."""


def typed_policy(subject: Subject, order: list[int]) -> dict[str, Any] | str:
    """Return the policy as the scripts read it, or why the page cannot ask it.

    `order` are the columns that can be typed, first those that matter most.
    """
    try:
        plain = plain_policy(subject.policy)
    except NotPlainError as error:
        return f"the page has no formula for this policy: {error}"
    arrays = EncodedArrays()
    median = np.median(np.asarray(subject.sample.observation[:], np.float64), axis=0)
    coverage = subject.policy.referral.coverage
    found = {
        "members": [_member(one, arrays) for one in plain.members],
        "arrays": arrays.encoded,
        "transforms": _transforms(plain.observation_transforms),
        "rule": plain.rule, "family": plain.family.settings(),
        "low": rounded(plain.low, 8), "high": rounded(plain.high, 8),
        "actions": [
            {"name": one.name, "label": one.label, "unit": one.unit,
             "transform": None if one.transform is None else dataclasses.asdict(one.transform)}
            for one in plain.actions
        ],
        "observations": [
            {"name": one.name, "label": one.label, "range": ends,
             "transform": None if one.transform is None else dataclasses.asdict(one.transform)}
            for one, ends in zip(plain.observations, subject.ranges, strict=True)
        ],
        "start": rounded(median, 4), "order": order,
        "limits": None if not plain.limits else {
            "parsed": [dataclasses.asdict(limit) for limit in plain.limits],
            "fallback": plain.fallback, "rates": plain.needs_last_action,
        },
        "coverage": {
            **{name: rounded(getattr(coverage, name), 7)
               for name in ("mean", "whitening", "centroids", "radius", "action", "threshold")},
            "transforms": _transforms(coverage.transforms),
        },
        "thresholds": dataclasses.asdict(subject.policy.referral.thresholds),
    }  # fmt: skip
    if len(json.dumps(found)) > MOST_CHARACTERS:
        return "its networks are too large for the page; ask it with `fat2thin decide`"
    return found


def _transforms(transforms: Transforms) -> list[Any] | None:
    return [one and dataclasses.asdict(one) for one in transforms] if transforms else None


def _member(member: PlainMember, arrays: EncodedArrays) -> dict[str, Any]:
    kept = {**vars(member), "mean": None, "scale": None}
    network = {name: arrays.part(part) for name, part in kept.items() if part is not None}
    scales = {} if member.mean is None else {
        "mean": rounded(member.mean, 8), "scale": rounded(member.scale, 8)
    }  # fmt: skip
    return {"actor": network, **scales}
