"""One self-contained HTML page to explore runs: it opens offline and asks the network for nothing.

Names come from folders that strangers may have made. So the data are in a block that no script runs
from and no content can end, the page's scripts put text into it as text alone, and its policy lets
the browser run those scripts and nothing else.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fat2thin.atomic_files import write
from fat2thin.data import Dataset
from fat2thin.report.page_data import datasets_of, gather
from fat2thin.report.page_policies import VIEW
from fat2thin.runs.result import Run

_PARTS = files("fat2thin.report") / "page"
_SCRIPTS = ("laws.js", "plot.js", "curves.js", "policies.js", "explorer.js", "start.js")


def make_page(
    runs: Sequence[Run],
    claims: Sequence[Mapping[str, Any]] = (),
    logs: Mapping[str, Dataset] | None = None,
) -> str:
    """The page. `claims` have the fields of `page_data.CLAIM_FIELDS`.

    `logs` are data sets by the names that the runs have them by; that of the treatment task need
    not be given.
    """
    found = {**gather(runs, claims, logs), "view": VIEW}
    style = _part("page.css")
    script = "\n".join(map(_part, _SCRIPTS))
    values = {
        "title": html.escape(_title(runs)),
        "policy": _content_policy(script, style),
        "style": style,
        "script": script,
        "data": _embedded(found),
    }
    # In one pass: what a folder is called may look like a place to fill in.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: values[place[1]], _part("page.html"))


def save_page(
    runs: Sequence[Run],
    path: str | Path,
    claims: Sequence[Mapping[str, Any]] = (),
    logs: Mapping[str, Dataset] | None = None,
) -> Path:
    """Write the page to a file, whole or not at all, and return its path."""
    place = Path(path)
    if place.is_dir():
        raise ValueError(f"{place} is a folder; name a file in it, such as {place / 'report.html'}")
    contents = make_page(runs, claims, logs).encode()
    place.parent.mkdir(parents=True, exist_ok=True)
    write(place, contents)
    return place


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")


def _title(runs: Sequence[Run]) -> str:
    datasets = list(datasets_of(runs).values())
    count = "one run" if len(runs) == 1 else f"{len(runs)} runs"
    where = datasets[0] if len(datasets) == 1 else f"{len(datasets)} data sets"
    return f"fat2thin: {count} on {where}"


def _content_policy(script: str, style: str) -> str:
    return (
        f"default-src 'none'; script-src {_hashed(script)}; style-src {_hashed(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hashed(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _embedded(values: Mapping[str, Any]) -> str:
    """JSON without a character that could end the block it is in or begin another."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
