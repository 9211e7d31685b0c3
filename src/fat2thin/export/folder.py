"""Write a policy as a folder that works without JAX, in one or several formats.

metadata.json   what was exported: hashes, columns, limits, thresholds, the certificate
weights.npz     the networks and the summary of the log; part of every export
states.npz      1,000 synthetic states with their answers, for `fat2thin verify`
policy.py       numpy      policy.onnx        onnx
policy.h        c          policy.stablehlo   stablehlo, with read_stablehlo.py
"""

import dataclasses
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fat2thin import __version__
from fat2thin.atomic_files import creating, writing_folder
from fat2thin.data.safe_files import read_small
from fat2thin.export.contents import Contents, States, answers_of, contents_of, synthetic_states
from fat2thin.export.formats import FORMATS, WEIGHTS, check_formats
from fat2thin.export.portable import REASONS, Answer
from fat2thin.export.rounding import RoundingBound
from fat2thin.policies.decision import fallback_of
from fat2thin.policies.plain import PlainPolicy, plain_policy
from fat2thin.policies.policy import Policy
from fat2thin.runs.result import Run
from fat2thin.settings.spec import plain as plain_values
from fat2thin.terminal_text import printable

METADATA, STATES_FILE = "metadata.json", "states.npz"
FORMAT, FORMAT_VERSION = "fat2thin export", 1
LARGEST_DOCUMENT = 2**30
NEAR_THRESHOLD = 1e-5
"""Share of a threshold within which rounding may turn a referral."""


class Document(NamedTuple):
    """A certificate or a dossier that belongs to the policy."""

    sha256: str
    arithmetic: str | None


def export_run(
    run: Run, out: str | Path, to: Sequence[str] = ("numpy",), seed: int | None = None,
    step: int | None = None, fallback: Any = None, command: str = "",
    certificate: Path | None = None, dossier: Path | None = None, policy: Policy | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Export the policy of a run to a new folder and return its metadata.

    Without a seed all seeds decide together. `policy` is exported instead, if it is given: that of
    the run with other limits or thresholds.
    """
    place, formats = _checked(out, to)
    policy = run.policy(seed, step) if policy is None else policy
    stopped = {int(one) for one in run.about.get("stopped", {})}
    together = [one for one in run.spec.seeds if one not in stopped] or list(run.spec.seeds)
    spec = plain_values(dataclasses.asdict(run.spec))
    about = {
        "run": {
            "algorithm": run.spec.algorithm,
            "dataset": run.spec.dataset,
            "seeds": together if seed is None else [seed],
            "step": run.step if step is None else step,
            "spec_sha256": hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest(),
        },
        "data_sha256": list(run.about.get("sha256", [])),
        "command": command,
    }
    documents = {"certificate": certificate, "dossier": dossier}
    return _write(policy, place, formats, about, fallback, documents)


def export_policy(
    policy: Policy, out: str | Path, to: Sequence[str] = ("numpy",), fallback: Any = None
) -> dict[str, Any]:
    """Export any policy to a new folder and return its metadata."""
    place, formats = _checked(out, to)
    about: dict[str, Any] = {"run": None, "data_sha256": [], "command": ""}
    return _write(policy, place, formats, about, fallback, {})


def _checked(out: str | Path, to: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
    place, formats = Path(out), check_formats(tuple(to))
    if place.exists() or place.is_symlink():
        raise ValueError(f"{printable(place)} exists: name a new folder with --out")
    if not place.absolute().parent.is_dir():
        raise ValueError(f"{printable(place.parent)} is not a folder: create it first")
    return place, formats


def _write(
    policy: Policy, place: Path, formats: tuple[str, ...], about: dict[str, Any], fallback: Any,
    documents: Mapping[str, Path | None],
) -> dict[str, Any]:  # fmt: skip
    plain = plain_policy(policy)
    known = {name: _document(path, name, plain) for name, path in documents.items()}
    contents = contents_of(plain, _fallback(fallback, policy))
    states = synthetic_states(contents)
    answers = answers_of(contents, states)
    refuse_disagreement(policy, contents, states, answers)
    files = {WEIGHTS: contents.to_npz(), STATES_FILE: _states_file(states, answers)}
    named = {
        "fat2thin": __version__, "policy": plain.policy_hash, "weights": plain.weight_hash,
    }  # fmt: skip
    for name in formats:
        files |= FORMATS[name].write(contents, named)
    metadata = {
        "format": FORMAT, "format_version": FORMAT_VERSION, "fat2thin": __version__, **about,
        **described(contents, formats),
        "sampling": {
            "how": contents.sampling, "error": contents.settings["sampling"].get("error"),
        },
        "certificate": None, "dossier": None,
        **{name: None if one is None else one._asdict() for name, one in known.items()},
    }  # fmt: skip
    metadata["files"] = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    metadata["sha256"] = hash_of_metadata(metadata)
    files[METADATA] = (json.dumps(metadata, indent=2, ensure_ascii=False) + "\n").encode()
    with writing_folder(place) as folder:
        for name, data in files.items():
            with creating(folder / name) as file:
                file.write(data)
    return metadata


def _fallback(given: Any, policy: Policy) -> tuple[float, ...] | None:
    if given is None:
        return None
    action = fallback_of(given, policy)
    if action is None:
        raise ValueError("the fallback of an export is an action: one number per action")
    return tuple(float(one) for one in np.asarray(action))


def _document(path: Path | None, name: str, plain: PlainPolicy) -> Document | None:
    """Return the hash of a document; refuse a certificate of other weights or limits."""
    if path is None:
        return None
    data = read_small(path, LARGEST_DOCUMENT, f"Give the file of the {name}.")
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not isinstance(values.get("sha256"), dict):
        if name == "certificate":
            raise ValueError(
                f"{printable(path)} is not a certificate: `fat2thin certify` makes one"
            )
        return Document(hashlib.sha256(data).hexdigest(), None)
    limits = {limit.name: limit.text for limit in plain.limits}
    settings = json.loads(json.dumps(plain.settings()))
    certified, rules = values.get("policy", {}), values.get("limits", {}).get("rules", limits)
    other = ""
    if values["sha256"].get("weights") != plain.weight_hash:
        other = "other weights"
    elif any(settings.get(part) != value for part, value in certified.items()):
        other = "a policy with other columns, another family or another ensemble"
    elif rules != limits:
        other = "a policy with other limits"
    if other:
        raise ValueError(
            f"{printable(path)} is the {name} of {other}: export the policy that it was made for"
        )
    return Document(hashlib.sha256(data).hexdigest(), str(values.get("arithmetic")))


def _states_file(states: States, answers: Answer) -> bytes:
    arrays = {name: part for name, part in states._asdict().items() if part is not None}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays, **answers._asdict())
    return buffer.getvalue()


def described(contents: Contents, formats: Iterable[str]) -> dict[str, Any]:
    """Return the part of the metadata that follows from the weights and the formats."""
    settings, arrays = contents.settings, contents.arrays
    ends = (arrays[end].astype(float).tolist() for end in ("low", "high"))
    box, referral = zip(settings["actions"], *ends, strict=True), settings["referral"]
    if referral is not None:
        referral = {**referral["thresholds"], "centroids": len(arrays["log.centroids"])}
    return {
        "formats": {name: FORMATS[name].about for name in formats},
        **contents.hashes(),
        "members": len(settings["members"]),
        "ensemble": settings["rule"],
        "family": settings["family"],
        "observations": settings["observations"],
        "actions": [{**column, "low": low, "high": high} for column, low, high in box],
        "limits": {limit["name"]: limit["text"] for limit in settings["limits"]},
        "needs_last_action": settings["needs_last_action"],
        "fallback": settings["fallback"],
        "referral": referral,
        "reasons": {str(code): name for code, name in REASONS.items()},
    }


def hash_of_metadata(metadata: Mapping[str, Any]) -> str:
    """Return the sha256 of everything in the metadata but itself, however it is laid out."""
    others = {name: value for name, value in metadata.items() if name != "sha256"}
    text = json.dumps(others, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def refuse_disagreement(
    policy: Policy, contents: Contents, states: States, answers: Answer
) -> None:
    """Raise a RuntimeError if the NumPy arithmetic is not that of the policy in these states."""
    ends, _ = RoundingBound(contents).bounds(states)
    known = answers.reason & 16 == 0
    seen = states.observation[known]
    last = None if states.last is None else states.last[known]
    low, high = (
        np.clip(np.asarray(end), policy.low, policy.high) for end in policy.support(seen, last)
    )
    with np.errstate(over="ignore", invalid="ignore"):
        for name, expected in (("low", low), ("high", high)):
            found = getattr(answers, name)[known]
            if (np.abs(found - expected) > ends[known]).any():
                raise RuntimeError(f"the exported {name} end differs from that of the policy")
    if contents.settings["referral"] is None:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        decided = policy.decide(states.observation, last=states.last)
    near = np.abs(decided.distance / contents.settings["referral"]["thresholds"]["distance"] - 1)
    open_ = (near <= NEAR_THRESHOLD) | ~np.isfinite(ends).all(axis=1)
    if ((decided.referred != (answers.refer == 1)) & ~open_).any():
        raise RuntimeError("the exported referrals differ from those of the policy")
