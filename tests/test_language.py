"""Phrases that have a plainer form are found, with what to write instead."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = [
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "examples", "src", "tests",
    "benchmarks",
]  # fmt: skip
SUFFIXES = {".md", ".py", ".toml", ".js", ".html"}
THING = "folder|file|run|number|name|setting|JSON|list|array|object|space|id|checkpoint|choice"
COUNTED = "number|row|line|page|key|value|file|folder|command|stream"
UNIT = "job|seed|row|state|step|coordinate|setting|method|quantity|example|evaluation|format|figure"
INSTEAD = {
    r"(goes|gone|went) on": "continues, resumed",
    r"in vain": "not found, without success",
    r"whoever": "a user who, a process that",
    r"somebody|anybody": "a user, another process; or the passive",
    r"told(?! to\b)": "reported, logged, shown, given",
    # "There is no file" is English; "it is no file" is not.
    rf"(?<!\bthere)(?<!\s)\s+is no ({THING})": "is not a ...",
    r"so many(?! \w+ (that|at a time)\b)": "N, this many, the given number of",
    r"(is|was|were|been) broken off|broken off and": "interrupted",
    r"had its say": "after ... was applied",
    r"of before": "earlier, previous",
    rf"(a|one) ({COUNTED}) an? ({UNIT})": "one ... per ...",
    r"0 is none": "0 disables",
    r"what of the": "which of the, what part of the",
    r"(runs|files|folders|logs) that are there": "existing ...",
}
# A phrase may begin on one line and end on the next, in a comment too.
BETWEEN = r"(?:\s+#\s+|\s+)"
PHRASES = {
    re.compile(rf"(?:\b|(?=\s))(?:{phrase.replace(' ', BETWEEN)})\b", re.IGNORECASE): instead
    for phrase, instead in INSTEAD.items()
}


def found(text):
    """Yield the line, the phrase and its replacement."""
    for phrase, instead in PHRASES.items():
        for match in phrase.finditer(text):
            start = match.end() - len(match[0].lstrip())
            yield text.count("\n", 0, start) + 1, " ".join(match[0].split()), instead


@pytest.mark.parametrize("place", PLACES)
def test_no_phrase_has_a_plainer_form(place):
    path = ROOT / place
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    hits = [
        f"{file.relative_to(ROOT)}:{line}: {phrase!r}; write: {instead}"
        for file in files
        if file.suffix in SUFFIXES and file != Path(__file__)
        for line, phrase, instead in sorted(found(file.read_text(encoding="utf-8")))
    ]
    assert not hits, "\n".join(["", *hits])


@pytest.mark.parametrize(
    "text",
    [
        "the run goes\non", "A problem is told by name.", "x.csv is no file", "# is\n    # no run",
        "after so many updates", "one number a seed", "A row a\n# setting", "runs that are there",
    ],
)  # fmt: skip
def test_a_phrase_is_found(text):
    assert len(list(found(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "There is no file.", "if there\n    is no run", "it is no longer needed", "one per seed",
        "give one row a name", "it was told to stop", "so many files that they do not fit",
    ],
)  # fmt: skip
def test_correct_english_is_not(text):
    assert not list(found(text))
