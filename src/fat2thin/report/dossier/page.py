"""The HTML page of a dossier: words and tables are in it, and scripts draw the pictures."""

import html
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fat2thin.atomic_files import write
from fat2thin.report.dossier.answer import number
from fat2thin.report.dossier.verdict import ATTENTION, FAILS, HOLDS, LOOK, NOT_USABLE, READY
from fat2thin.report.html_page import filled

LONG = 30  # characters of a cell from which on its column wraps
_SCRIPTS = ("laws.js", "limits.js", "plot.js", "patient.js", "dossier.js")
_STYLES = ("page.css", "dossier.css")
_LOOKS = {READY: "ready", LOOK: "look", NOT_USABLE: "bad"}
_STATES = {HOLDS: ("holds", "✓"), ATTENTION: ("attention", "!"), FAILS: ("fails", "✗")}
_MEANINGS = {
    READY: "Every rule below holds. A person must still read the page and decide.",
    LOOK: "No rule fails, but some need attention or are not known. They come first below.",
    NOT_USABLE: "At least one rule fails. The reasons come first below.",
}
_PATIENT = """<section class="patient" aria-labelledby="patient-title">
<h3 id="patient-title">Type a patient</h3>
<p class="sentence" id="patient-sentence" aria-live="polite"></p>
<div class="inputs" id="patient-inputs"></div>
<div class="buttons"><button type="button" id="patient-reset">Median patient</button></div>
<div class="panels" id="patient-plots"></div>
<div class="key" id="patient-key"></div>
<div class="scroll"><table id="patient-table"></table></div>
<div class="data" id="patient-data"></div>
<p class="note" id="patient-note"></p>
</section>"""


def make_page(content: Mapping[str, Any], policy: Mapping[str, Any] | str, digest: str) -> str:
    """Return the page of a twin's content; `policy` is for the scripts, `digest` the twin's."""
    answers = content["answers"]
    markup = {
        "title": html.escape(content["title"]),
        "verdict": _verdict(content),
        "contents": "".join(
            f'<li><a href="#q{place}">{html.escape(one["question"])}</a></li>'
            for place, one in enumerate(answers, 1)
        ),
        "answers": "\n".join(_answer(place, one) for place, one in enumerate(answers, 1)),
        "footer": _footer(content, digest),
    }
    found = {"dossier": content, "policy": policy}
    return filled("dossier.html", _STYLES, _SCRIPTS, found, markup)


def save_page(
    path: Path, content: Mapping[str, Any], policy: Mapping[str, Any] | str, digest: str
) -> None:
    """Write the page atomically."""
    write(path, make_page(content, policy, digest).encode())


def _verdict(content: Mapping[str, Any]) -> str:
    found = content["verdict"]
    order = [FAILS, ATTENTION, "not known", HOLDS]
    findings = sorted(content["findings"], key=lambda one: order.index(one["state"]))
    lines = []
    for one in findings:
        look, sign = _STATES.get(one["state"], ("unknown", "?"))
        lines.append(
            f'<li class="{look}"><span class="state">{sign} {html.escape(one["state"])}</span>'
            f'<span>{html.escape(one["rule"])} <a href="#q{one["question"]}">(question '
            f"{one['question']})</a></span>"
            f'<span class="measured">{"Why" if look == "unknown" else "Measured"}: '
            f"{_words(one['measured'])}.</span>"
            f'<span class="why">{html.escape(one["why"])}</span></li>'
        )
    return (
        f'<div class="verdict {_LOOKS[found]}"><strong>{html.escape(found[:1].upper())}'
        f"{html.escape(found[1:])}</strong><p>{html.escape(_MEANINGS[found])}</p></div>"
        f'<ol class="rules" aria-label="Rules of the verdict">{"".join(lines)}</ol>'
        '<div class="data" data-table="verdict/verdict"></div>'
    )


def _answer(place: int, answer: Mapping[str, Any]) -> str:
    parts = [
        f'<section id="q{place}" aria-labelledby="q{place}-title">',
        f'<h2 id="q{place}-title">{place}. {html.escape(answer["question"])}</h2>',
        f'<p class="answer">{_words(answer["sentence"])}</p>',
    ]
    parts += [
        f'<div class="not-run"><strong>Not run:</strong> {html.escape(one["what"])}, because '
        f"{_words(one['why'])}. To run it: <code>{html.escape(one['command'])}</code></div>"
        for one in answer["not_run"]
    ]
    if answer["picture"]:
        parts.append(f'<figure id="picture-{place}"></figure>')
    parts += [_table(place, name, one) for name, one in answer["tables"].items()]
    if place == 1:
        parts.append(_PATIENT)
    parts.append(
        f'<p class="how"><strong>How we know.</strong> {_words(answer["how"])}</p></section>'
    )
    return "\n".join(parts)


def _table(place: int, name: str, table: Mapping[str, Any]) -> str:
    rows: Sequence[Mapping[str, Any]] = table["rows"]
    headings = [*dict.fromkeys(heading for row in rows for heading in row)]
    kinds = {heading: _kind([row.get(heading) for row in rows]) for heading in headings}
    head = "".join(
        f'<th scope="col" class="{kinds[heading]}">{html.escape(heading)}</th>'
        for heading in headings
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kinds[one]}">{_cell(row.get(one))}</td>' for one in headings)
        + "</tr>"
        for row in rows
    )
    notes = "".join(f'<p class="note">{_words(note)}</p>' for note in table["notes"])
    return (
        f'<div class="wide-table"><table><caption>{html.escape(table["title"])}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{notes}"
        f'<div class="data" data-table="{place - 1}/{html.escape(name)}"></div>'
    )


def _kind(cells: Sequence[Any]) -> str:
    """Return the class of a column: numbers, words that stay whole, or long texts that wrap."""
    texts = [one for one in cells if isinstance(one, str)]
    if not texts:
        return "number"
    return "long" if max(map(len, texts)) > LONG else "text"


def _words(text: str) -> str:
    """Return text as markup; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return html.escape(number(value, digits=4)) if isinstance(value, float) else _words(str(value))


def _footer(content: Mapping[str, Any], digest: str) -> str:
    took, budget = sum(content["seconds"].values()), content["budget_minutes"]
    late = ", which the parts that always run exceeded" if took > 60.0 * budget else ""
    return (
        f"Made by fat2thin {html.escape(content['version'])} with <code>"
        f"{html.escape(content['command'])}</code> in {took:.0f} s; the limit was "
        f"{60.0 * budget:.3g} s{late}. The JSON file beside this page has every number with all "
        f"digits; its SHA-256 is <code>{digest}</code>, and <code>fat2thin verify</code> "
        "checks that both, the run and the log still belong together."
    )
