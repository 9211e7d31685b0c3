"""Certificates as files: a JSON file, and beside it the weights, trees and slopes of the proof.

`verify_certificate` proves the bounds again with `fat2thin.safety.checker`, and compares the
certified policy with its run.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy import ndarray

from fat2thin import __version__, atomic_files
from fat2thin.policies.limit_language import LAST
from fat2thin.policies.plain import PlainPolicy, hash_of, plain_policy
from fat2thin.policies.policy import Policy
from fat2thin.runs import files
from fat2thin.runs.verification import FAILED, NOT_POSSIBLE, OK, CheckResult, Verification
from fat2thin.safety import checker
from fat2thin.safety.arithmetic import ARITHMETICS
from fat2thin.safety.box import Box
from fat2thin.safety.certify import PROVEN, REFUTED, SIDES, Certificate, Found

FORMAT, PROOF_SUFFIX = "fat2thin certificate 1", ".proof"
_LARGEST_PROOF = 2**31
_WRONG = (ValueError, LookupError, TypeError, AttributeError, OSError, OverflowError)


def save_certificate(
    certificate: Certificate, path: str | Path, run: Mapping[str, Any] | None = None
) -> None:
    """Write a certificate as JSON, and its proof beside it with the suffix `.proof`.

    `run` names the policy for `fat2thin verify`: folder, seed and ensemble.
    """
    path, plain = Path(path), certificate.plain
    contents = safetensors.numpy.save({**_policy_arrays(plain), **_proof_arrays(certificate)})
    proof = path.with_name(path.name + PROOF_SUFFIX)
    described = _described(certificate)
    written = {
        "format": FORMAT, "fat2thin": __version__, "run": None if run is None else dict(run),
        **described,
        "sha256": {**_hashes(described, plain), "policy": plain.policy_hash},
        "proof": {"file": proof.name, **files.stamp(contents)},
        "found": {name: [*map(_found, ends)] for name, ends in certificate.worst.items()},
        "claims": [
            {**claim._asdict(), "counterexample": _found(claim.counterexample)}
            for claim in certificate.claims
        ],
        "gap": None if math.isnan(certificate.gap) else certificate.gap,
        "seconds": certificate.seconds, "may_not_act": certificate.may_not_act,
    }  # fmt: skip
    atomic_files.write(proof, contents)
    atomic_files.write(path, json.dumps(written, indent=1).encode() + b"\n")


def is_certificate(path: str | Path) -> bool:
    """Whether a file is the JSON of a certificate."""
    try:
        return Path(path).is_file() and _read(Path(path)).get("format") == FORMAT
    except _WRONG:
        return False


def verify_certificate(path: str | Path, run: str | Path | None = None) -> Verification:
    """Prove a certificate again, and compare its policy with that of its run; nothing is written.

    `run` is the run folder; by default the one that the certificate names, if it exists.
    """
    path, found = Path(path), dict[str, Any]()
    checks: dict[str, Callable[[], str]] = {
        "certificate": lambda: _check_form(path, found),
        "proof file": lambda: _check_proof_file(path, found),
        "hashes": lambda: _check_hashes(found),
        "bounds": lambda: _check_bounds(found),
        "claims": lambda: _check_claims(found),
        "run": lambda: _check_run(path, found, run),
    }
    results: list[CheckResult] = []
    for name, check in checks.items():
        try:
            if any(one.result == FAILED for one in results[:2]):
                results.append(CheckResult(name, NOT_POSSIBLE, "the files cannot be used"))
            else:
                results.append(CheckResult(name, OK, check()))
        except _NotPossible as error:
            results.append(CheckResult(name, NOT_POSSIBLE, str(error)))
        except _WRONG as error:
            what = str(error) if isinstance(error, ValueError | OSError) else repr(error)
            results.append(CheckResult(name, FAILED, " ".join(what.split())[:500]))
    return Verification(tuple(results))


class _NotPossible(Exception):
    """A check that cannot be made; the message says why."""


def _described(certificate: Certificate) -> dict[str, Any]:
    """Return what the checker reads: policy, limits, box, arithmetic and bounds."""
    plain, settings = certificate.plain, certificate.plain.settings()
    actions = [column.name for column in plain.actions]
    kept = ("members", "rule", "family", "observations", "actions", "observation_transforms",
            "action_transforms")  # fmt: skip
    bounds = [
        {
            "action": end.action, "side": end.side,
            "bound": end.bound if math.isfinite(end.bound) else None,
        }
        for end in certificate.ends
    ]  # fmt: skip
    fallback = {} if plain.fallback is None else dict(zip(actions, plain.fallback, strict=True))
    return {
        "policy": {name: settings[name] for name in kept},
        "limits": {
            "rules": {limit.name: limit.text for limit in plain.limits}, "fallback": fallback
        },
        "box": certificate.box.to_json(), "arithmetic": certificate.arithmetic, "bounds": bounds,
    }  # fmt: skip


def _hashes(described: Mapping[str, Any], plain: PlainPolicy) -> dict[str, str]:
    return {
        "weights": plain.weight_hash,
        "box": Box.from_json(described["box"]).sha256,
        "limits": hash_of({}, described["limits"]),
        "arithmetic": hash_of({}, checker.TRUSTED[described["arithmetic"]]),
    }


def _policy_arrays(plain: PlainPolicy) -> dict[str, ndarray]:
    arrays = plain.arrays().items()
    return {
        name: np.ascontiguousarray(array) for name, array in arrays if not name.startswith("log.")
    }


def _proof_arrays(certificate: Certificate) -> dict[str, ndarray]:
    """Return the tree and the slopes of each end of each action."""
    found: dict[str, ndarray] = {}
    for end in certificate.ends:
        sign = SIDES[end.side]
        leaves = end.search.leaves(sign * end.bound)
        start = f"tree.{certificate.actions.index(end.action)}.{end.side}"
        for name in ("column", "value", "first", "own"):
            found[f"{start}.{name}"] = getattr(leaves, name)
        layers = len(certificate.plain.members[0].trunk)
        for place, slopes in enumerate(leaves.slopes):
            found[f"{start}.slopes.{place // layers}.{place % layers}"] = slopes
    return found


def _found(found: Found | None) -> Any:
    return None if found is None else found._asdict()


def _read(path: Path) -> dict[str, Any]:
    return files.read_json(path, required=True)


def _check_form(path: Path, found: dict[str, Any]) -> str:
    values = _read(path)
    if values.get("format") != FORMAT:
        raise ValueError(f"{path} is not a certificate of this version")
    if values["arithmetic"] not in ARITHMETICS:
        raise ValueError(f"arithmetic {values['arithmetic']!r} is not covered")
    _check_box(values)
    found["json"] = values
    held = ", ".join(
        f"{bound['action']} {'≥' if bound['side'] == 'low' else '≤'} {bound['bound']!r}"
        for bound in values["bounds"]
    )
    return f"{held}; {values['arithmetic']}"


def _check_box(values: Mapping[str, Any]) -> None:
    """Check that the box has a range for each column, in the order of the policy's."""
    box, policy = values["box"], values["policy"]
    columns, actions = (
        [one["name"] for one in policy[kind]] for kind in ("observations", "actions")
    )
    if box["names"] not in (columns, [*columns, *(LAST + name for name in actions)]):
        raise ValueError(
            f"the box has the columns {', '.join(box['names'])}, the policy has others"
        )
    for name, low, high in zip(box["names"], box["low"], box["high"], strict=True):
        if not -math.inf < low <= high < math.inf:
            raise ValueError(f"the box has the range {low!r} to {high!r} for {name}")


def _check_proof_file(path: Path, found: dict[str, Any]) -> str:
    stamp = found["json"]["proof"]
    name = str(stamp["file"])
    if Path(name).name != name:
        raise ValueError(f"the proof must lie beside the certificate, not at {name!r}")
    contents = files.read(path.with_name(name), _LARGEST_PROOF, required=True)
    if files.stamp(contents) != {key: stamp[key] for key in ("bytes", "sha256")}:
        raise ValueError(f"{name} is not as it was written")
    arrays = safetensors.numpy.load(contents)
    weights = [(key, array.dtype) for key, array in arrays.items() if key.startswith("member")]
    if any(kind != np.float32 or "norm" in key for key, kind in weights):
        raise ValueError(f"{name} must have weights in float32, without layer norm")
    found["proof"] = arrays
    return f"{name}: {stamp['bytes']:,} bytes"


def _check_hashes(found: dict[str, Any]) -> str:
    values, proof = found["json"], found["proof"]
    weights = {name: array for name, array in proof.items() if name.startswith("member")}
    computed = {
        "weights": hash_of(weights, {"members": values["policy"]["members"]}),
        "box": Box.from_json(values["box"]).sha256,
        "limits": hash_of({}, values["limits"]),
        "arithmetic": hash_of({}, checker.TRUSTED[values["arithmetic"]]),
    }
    for name, one in computed.items():
        if values["sha256"][name] != one:
            raise ValueError(f"the hash of the {name} is not that of the certificate")
    return ", ".join(computed)


def _check_bounds(found: dict[str, Any]) -> str:
    boxes = checker.check(found["json"], found["proof"])
    return f"proven again on {boxes:,} boxes"


def _check_claims(found: dict[str, Any]) -> str:
    """Check that claims follow from the bounds, and that what was found lies within them."""
    values = found["json"]
    bounds = {(one["action"], one["side"]): one["bound"] for one in values["bounds"]}
    box = Box.from_json(values["box"]).ranges()
    for action, ends in values["found"].items():
        for end in filter(None, ends):
            low, high = bounds[action, "low"], bounds[action, "high"]
            if low is None or not low <= end["value"] <= high:
                raise ValueError(f"{action} = {end['value']!r} was found outside the bounds")
    for claim in values["claims"]:
        sign, bound = SIDES[claim["side"]], bounds[claim["action"], claim["side"]]
        example = claim["counterexample"]
        cast = float(np.dtype(values["arithmetic"]).type(claim["value"]))
        holds = bound is None or sign * bound <= max(sign * claim["value"], sign * cast)
        if (claim["result"] == PROVEN) != holds:
            raise ValueError(f"{claim['action']}: the claim of {claim['value']!r} does not follow")
        if claim["result"] == REFUTED and not sign * example["value"] > sign * claim["value"]:
            raise ValueError(f"{claim['action']}: the counterexample is none")
        for name, value in (example or {"state": {}})["state"].items():
            if not box[name][0] <= value <= box[name][1]:
                raise ValueError(f"the counterexample has {name} = {value!r}, outside the box")
    return f"{len(values['claims'])} claims"


def _check_run(path: Path, found: dict[str, Any], run: str | Path | None) -> str:
    """Compare the policy with that of the run, and what was found with what it does."""
    from fat2thin.runs.result import load

    values, named = found["json"], found["json"]["run"]
    if run is None and named is None:
        raise _NotPossible("the certificate names no run: give its folder with --run")
    named = named or {"folder": str(run), "seed": None, "ensemble": None}
    places = [Path(run)] if run else [path.parent / named["folder"], Path(named["folder"])]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise _NotPossible(f"{named['folder']} does not exist: give the run folder with --run")
    policy = load(folder).policy(named["seed"], ensemble=named["ensemble"])
    limits = values["limits"]
    rules = {**limits["rules"], **({"fallback": limits["fallback"]} if limits["fallback"] else {})}
    policy = policy.with_limits(rules if limits["rules"] else None)
    plain = plain_policy(policy)
    settings = plain.settings()
    if plain.weight_hash != values["sha256"]["weights"]:
        raise ValueError(f"{folder} has other weights than those that were certified")
    for name, one in values["policy"].items():
        if settings[name] != one:
            raise ValueError(f"{name} of {folder} is not what was certified")
    for end in ("low", "high"):
        if not np.array_equal(getattr(plain, end), found["proof"][end]):
            raise ValueError(f"the action box of {folder} is not the one that was certified")
    return f"the policy of {folder}; {_check_states(policy, values)}"


def _check_states(policy: Policy, values: Mapping[str, Any]) -> str:
    """Check that the policy does in the worst states what the certificate says."""
    names = [column["name"] for column in values["policy"]["observations"]]
    actions = [column["name"] for column in values["policy"]["actions"]]
    count = 0
    for action, ends in values["found"].items():
        for side, end in zip(SIDES, ends, strict=True):
            if end is None:
                continue
            state = np.asarray([end["state"][name] for name in names])
            last = [end["state"].get(f"last_{name}", math.nan) for name in actions]
            given = {"last": np.asarray(last)} if policy.needs_last_action else {}
            low, high = policy.support(state, **given)
            place = actions.index(action)
            value = np.clip(low if side == "low" else high, policy.low, policy.high)[place]
            width = float(policy.high[place] - policy.low[place])
            if not abs(float(value) - end["value"]) <= 1e-4 * width:
                raise ValueError(f"{action} is {float(value)!r} in a state with {end['value']!r}")
            count += 1
    return f"{count} worst states"
