"""Self-contained HTML pages, which need no network.

Names come from folders that may be untrusted. Therefore the data are in a block that is never
executed and that no content can end, the scripts insert text only as text, and the page's content
security policy allows only these scripts.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

_PARTS = files("fat2thin.report") / "page"


def filled(
    template: str, styles: Sequence[str], scripts: Sequence[str], found: Mapping[str, Any],
    markup: Mapping[str, str],
) -> str:  # fmt: skip
    """Return a page: frame.html around a template in page/, with style sheets, scripts and data.

    `markup` is inserted as it is: its texts must be escaped.
    """
    page = _part("frame.html").replace("{{body}}", _part(template).rstrip("\n"))
    style, script = ("\n".join(map(_part, names)) for names in (styles, scripts))
    values = {
        "policy": f"default-src 'none'; script-src {_hashed(script)}; "
        f"style-src {_hashed(style)}; base-uri 'none'; form-action 'none'",
        "style": style,
        "script": script,
        "data": _embedded(found),
        **markup,
    }
    # In one pass: the name of a folder may look like a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: values[place[1]], page)


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")


def _hashed(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _embedded(values: Mapping[str, Any]) -> str:
    """Return JSON without characters that could end its HTML block or start another."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
