"""The dossier of a run as a file: its name, its form, and whether it is about the run as it is."""

import hashlib
from pathlib import Path
from typing import Any

from fat2thin.policies.plain import plain_policy
from fat2thin.policies.policy import Policy
from fat2thin.runs import files
from fat2thin.runs.files import DamagedError
from fat2thin.runs.folder import RUN

KIND = "fat2thin dossier"
DOSSIER = "dossier.json"
"""The twin's name in a run folder; the page is beside it."""
_is_dossier = files.fields(
    hashes=files.fields(run=str, log=str, policy=str), run=str, log=str, verdict=str
)


def read_dossier(path: Path) -> dict[str, Any]:
    """Return the contents of a dossier's JSON twin; a ValueError for anything else."""
    content = files.read_json(path)
    if content.get("kind") != KIND or not _is_dossier(content):
        raise DamagedError(f"{path} is not the JSON file of a dossier")
    return content


def is_dossier(path: Path) -> bool:
    """Whether a file is the JSON twin of a dossier."""
    try:
        return path.is_file() and read_dossier(path) is not None
    except (OSError, ValueError):
        return False


def refuse_other_dossier(path: Path, policy: Policy) -> None:
    """Raise a ValueError unless a file is the JSON twin of the dossier of this very policy."""
    if read_dossier(path)["hashes"]["policy"] != plain_policy(policy).policy_hash:
        raise ValueError(
            f"{path} is the dossier of another policy, or of this one with other limits or "
            "thresholds: make one of the policy that is exported"
        )


def run_hash(folder: Path) -> str:
    """Return the SHA-256 of run.json, which has the checksums of all other files."""
    contents = files.read(folder / RUN, files.LARGEST_JSON, required=True)
    return hashlib.sha256(contents).hexdigest()


def dossier_about(folder: Path, policy: Policy) -> Path | None:
    """Return the dossier in a run folder, if it is about this run and this very policy."""
    path = folder / DOSSIER
    if not is_dossier(path):
        return None
    hashes = read_dossier(path)["hashes"]
    same = hashes["run"] == run_hash(folder)
    return path if same and hashes["policy"] == plain_policy(policy).policy_hash else None
