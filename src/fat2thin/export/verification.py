"""Verify an export: the hashes of its files, and its answers in the states that it stores."""

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fat2thin.export.contents import Contents, States, answers_of, from_npz
from fat2thin.export.folder import (
    FORMAT,
    FORMAT_VERSION,
    METADATA,
    STATES_FILE,
    described,
    hash_of_metadata,
)
from fat2thin.export.formats import FORMATS, WEIGHTS, Unavailable
from fat2thin.export.portable import INVALID, Answer
from fat2thin.export.rounding import RoundingBound
from fat2thin.runs import files
from fat2thin.runs.verification import FAILED, NOT_POSSIBLE, OK, CheckResult, Verification

_LARGEST = 2**30
_KNOWN = {WEIGHTS, STATES_FILE, *(name for one in FORMATS.values() for name in one.files)}
_WRONG = (ValueError, LookupError, TypeError, AttributeError, OSError, RuntimeError)


def is_export(folder: str | Path) -> bool:
    """Whether a folder has the metadata of an export."""
    return (Path(folder) / METADATA).is_file()


def read_metadata(folder: Path) -> dict[str, Any]:
    """Return the metadata of an export; a ValueError for anything else."""
    path = folder / METADATA
    try:
        values = json.loads(files.read(path, files.LARGEST_JSON, required=True))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ValueError(f"{path} is not the metadata of an export")
    if values.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {values.get('format_version')!r}; this version of fat2thin "
            f"reads {FORMAT_VERSION}"
        )
    return values


def load_export(folder: Path) -> tuple[dict[str, Any], Contents]:
    """Return metadata and contents of an export whose files are as they were written."""
    metadata, data, contents = read_metadata(folder), dict[str, bytes](), list[Contents]()
    _describe(metadata)
    _check_files(folder, metadata, data)
    _check_weights(metadata, data, contents)
    return metadata, contents[0]


def verify_export(
    folder: str | Path, certificate: Path | None = None, dossier: Path | None = None
) -> Verification:
    """Check an export; nothing is written, and no program of the folder is run.

    The answers of each format are computed again, and compared within the bound of rounding. A
    format whose runtime is not installed is named. `certificate` and `dossier` are files whose
    hashes the metadata must have.
    """
    here = Path(folder)
    checks = [_checked(METADATA, lambda: _describe(read_metadata(here)))]
    if checks[0].result != OK:
        return Verification(tuple(checks))
    metadata, data = read_metadata(here), dict[str, bytes]()
    checks.append(_checked("files", lambda: _check_files(here, metadata, data)))
    documents = {"certificate": certificate, "dossier": dossier}
    for name, path in documents.items():
        checks.append(_checked(name, lambda name=name, path=path: _document(metadata, name, path)))
    if checks[1].result != OK:
        return Verification(tuple(checks))
    contents: list[Contents] = []
    checks.append(_checked("weights", lambda: _check_weights(metadata, data, contents)))
    if not contents:
        return Verification(tuple(checks))
    for name in metadata["formats"]:
        checks.append(_checked(name, lambda name=name: _check_answers(name, contents[0], data)))
    return Verification(tuple(checks))


def _checked(name: str, check: Any) -> CheckResult:
    try:
        return CheckResult(name, OK, check())
    except Unavailable as error:
        return CheckResult(name, NOT_POSSIBLE, str(error))
    except _WRONG as error:
        what = str(error) if isinstance(error, ValueError | OSError) else repr(error)
        return CheckResult(name, FAILED, " ".join(what.split()))


def _describe(metadata: Mapping[str, Any]) -> str:
    if not isinstance(metadata.get("files"), dict) or not isinstance(metadata.get("formats"), dict):
        raise ValueError("it has no files or formats")
    if metadata.get("sha256") != hash_of_metadata(metadata):
        raise ValueError("it was changed after it was written")
    if unknown := {*metadata["formats"]} - {*FORMATS}:
        raise ValueError(f"it has unknown formats: {', '.join(map(repr, unknown))}")
    return f"version {metadata.get('fat2thin')}, {', '.join(metadata['formats'])}"


def _check_files(here: Path, metadata: Mapping[str, Any], data: dict[str, bytes]) -> str:
    stamps = metadata["files"]
    needed = {WEIGHTS, STATES_FILE}
    needed |= {file for name in metadata["formats"] for file in FORMATS[name].files}
    if wrong := {*stamps} ^ needed:
        raise ValueError(f"missing or unknown in {METADATA}: {', '.join(sorted(map(repr, wrong)))}")
    for name, stamp in stamps.items():
        found = files.read(here / name, _LARGEST, required=True)
        if stamp != {"bytes": len(found), "sha256": hashlib.sha256(found).hexdigest()}:
            raise ValueError(f"{name} was changed after it was written")
        data[name] = found
    return f"{len(stamps)} files as they were written"


def _document(metadata: Mapping[str, Any], name: str, path: Path | None) -> str:
    known = metadata.get(name)
    if path is None:
        stated = f"sha256 {known['sha256'][:16]}..., not given" if known else f"no {name} is named"
        return f"{stated}"
    found = hashlib.sha256(files.read(path, _LARGEST, required=True)).hexdigest()
    if not known or known["sha256"] != found:
        raise ValueError(f"{path} is not the {name} that the export names")
    return f"{path} is the {name} that the export names"


def _check_weights(
    metadata: Mapping[str, Any], data: Mapping[str, bytes], contents: list[Contents]
) -> str:
    found = from_npz(data[WEIGHTS])
    for name, value in described(found, metadata["formats"]).items():
        if metadata.get(name) != value:
            shown = f"{METADATA} has {metadata.get(name)!r:.60}"
            raise ValueError(f"{name} is {value!r:.60} by the weights, {shown}")
    contents.append(found)
    return f"hash {metadata['weight_sha256'][:16]}... of the weights, as stated"


def _check_answers(name: str, contents: Contents, data: Mapping[str, bytes]) -> str:
    states, stored = _stored(data[STATES_FILE])
    found = FORMATS[name].run(contents, {file: data[file] for file in FORMATS[name].files}, states)
    largest = compare(contents, states, stored, found)
    return (
        f"{len(states.observation):,} states, largest difference {largest:.2g} of the bound of "
        "rounding"
    )


def _stored(data: bytes) -> tuple[States, Answer]:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    states = States(arrays["observation"], arrays["uniform"], arrays.get("last"))
    return states, Answer(*(arrays[name] for name in Answer._fields))


def compare(contents: Contents, states: States, stored: Answer, found: Answer) -> float:
    """Return the largest difference of two answers, as a share of the bound of rounding.

    A ValueError names the first state in which they differ by more, in which an action lies outside
    of its band, or whose referral differs.
    """
    ends, action = RoundingBound(contents).bounds(states)
    exact = answers_of(contents, states, np.float64)
    # Rounding may turn a referral only where it turns between float32 and float64 too, or where
    # a limit is open.
    open_ = (exact.reason != stored.reason) | ~np.isfinite(ends).all(axis=1)
    differs = (found.reason != stored.reason) & ~open_
    if differs.any():
        row = int(np.argmax(differs))
        raise ValueError(f"state {row} has reason {found.reason[row]}, stored {stored.reason[row]}")
    acts, largest = (found.refer == 0) & (stored.refer == 0), 0.0
    outside = (found.action < found.low) | (found.action > found.high)
    if (outside.any(axis=1) & acts).any():
        raise ValueError(f"state {int(np.argmax(outside.any(axis=1) & acts))}: action out of band")
    invalid = stored.reason & INVALID != 0
    for name in ("low", "high", "centre", "action"):
        bound = action if name == "action" else ends
        rows = acts if name == "action" else ~invalid
        one, other = (getattr(answer, name)[rows] for answer in (found, stored))
        if (np.isnan(one) != np.isnan(other))[~open_[rows]].any():
            raise ValueError(f"{name} is missing in states where it is stored")
        with np.errstate(invalid="ignore"):
            share = np.nan_to_num(np.abs(one - other) / bound[rows])
        if share.size and share.max() > 1.0:
            row = int(np.flatnonzero(rows)[np.argmax(share.max(axis=1))])
            raise ValueError(f"{name} of state {row} differs by more than rounding")
        largest = max(largest, float(share.max(initial=0.0)))
    return largest
