"""The JSON twin of a dossier: every number on the page, and what it belongs to."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fat2thin import data
from fat2thin.atomic_files import write
from fat2thin.runs import files
from fat2thin.runs.dossier_file import KIND, read_dossier, run_hash
from fat2thin.runs.files import DamagedError
from fat2thin.runs.folder import RunFolder
from fat2thin.runs.folder_checks import NotPossible
from fat2thin.runs.verification import FAILED, NOT_POSSIBLE, OK, CheckResult, Verification

FORMAT = 1
_LARGEST_PAGE = 64 * 2**20


def write_twin(path: Path, content: Mapping[str, Any]) -> str:
    """Write the twin atomically, and return its SHA-256."""
    contents = json.dumps({"kind": KIND, "format": FORMAT, **content}, indent=1).encode() + b"\n"
    write(path, contents)
    return hashlib.sha256(contents).hexdigest()


def verify_dossier(path: Path) -> Verification:
    """Return whether a dossier, its page, its run, its certificate and its log belong together."""
    content = read_dossier(path)
    hashes, folder = content["hashes"], path.parent / content["run"]

    def run() -> str:
        if run_hash(folder) != hashes["run"]:
            raise DamagedError(f"{folder} holds another run, or was trained again")
        found = RunFolder(folder)
        stamps, listed = found.stamps(), found.about()["files"]
        if changed := [name for name, stamp in stamps.items() if listed.get(name) != stamp]:
            raise DamagedError(f"{folder}: {', '.join(changed)} changed since the run ended")
        return f"run.json and {len(stamps)} files are those that it describes"

    def page() -> str:
        beside = path.with_suffix(".html")
        digest = hashlib.sha256(files.read(path, files.LARGEST_JSON)).hexdigest()
        if not beside.exists():
            raise NotPossible(f"there is no {beside.name} beside it")
        if digest.encode() not in files.read(beside, _LARGEST_PAGE):
            raise DamagedError(f"{beside.name} is not the page of this file")
        return f"{beside.name} names this file's hash"

    def certificate() -> str:
        name = content.get("certificate")
        if name is None:
            raise NotPossible("no certificate was made")
        beside = path.parent / name
        digest = hashlib.sha256(files.read(beside, files.LARGEST_JSON, required=True)).hexdigest()
        if digest != hashes["certificate"]:
            raise DamagedError(f"{beside} is another certificate")
        return f"{name}: `fat2thin verify` proves it again"

    def log() -> str:
        name = content["log"]
        try:
            found = data.load(name).sha256
        except (OSError, ValueError) as error:
            raise NotPossible(f"{name} cannot be read: {error}") from error
        if found != hashes["log"]:
            raise DamagedError(f"{name} has changed")
        return f"{name} has the hash that it was judged on"

    checks = {"run": run, "page": page, "certificate": certificate, "log": log}
    return Verification(tuple(_checked(name, check) for name, check in checks.items()))


def _checked(name: str, check: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(name, OK, check())
    except NotPossible as error:
        return CheckResult(name, NOT_POSSIBLE, str(error))
    except (ValueError, LookupError, TypeError, OSError) as error:
        return CheckResult(name, FAILED, " ".join(str(error).split()))
