"""The examples in the docstrings of the package run, and print what they say."""

import ast
import doctest
import importlib
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src"
MINIMUM = 20
"""Public functions, classes and methods that must have an example."""
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Example(NamedTuple):
    module: str
    name: str
    docstring: str
    path: Path
    line: int


def documented(node, name=""):
    """Yield every module, class and function that has a docstring, with its dotted name."""
    if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
        yield name, node
    for child in ast.iter_child_nodes(node):
        inner = getattr(child, "name", "") if isinstance(child, DOCUMENTED) else ""
        yield from documented(child, ".".join(filter(None, (name, inner))))


def examples():
    """Find the docstrings with examples in the source, so that collecting imports nothing."""
    for path in sorted((SOURCE / "fat2thin").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if ">>>" not in text:
            continue
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for name, node in documented(ast.parse(text)):
            docstring = node.body[0].value
            if ">>>" in docstring.value:
                yield Example(module, name, docstring.value, path, docstring.lineno - 1)


EXAMPLES = list(examples())


def failures(example, variables):
    """Run an example; return the report of what differs."""
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=FLAGS)
    title = f"{example.module}.{example.name}".rstrip(".")
    test = parser.get_doctest(example.docstring, variables, title, str(example.path), example.line)
    report = []
    runner.run(test, out=report.append)
    return "".join(report)


@pytest.mark.parametrize(
    "example", EXAMPLES, ids=lambda example: f"{example.module}.{example.name}".rstrip(".")
)
def test_the_example_prints_what_it_says(example, tmp_path, monkeypatch, own_registries):
    monkeypatch.chdir(tmp_path)
    variables = dict(vars(importlib.import_module(example.module)))
    report = failures(example, variables)
    assert not report, report


def test_enough_public_names_have_an_example():
    names = [
        f"{example.module}.{example.name}"
        for example in EXAMPLES
        if example.name and not any(part.startswith("_") for part in example.name.split("."))
    ]
    assert len(names) >= MINIMUM, f"{len(names)} names have an example: {names}"


def test_a_wrong_example_fails():
    docstring = """Add.

    >>> sum([1, 1])
    2
    >>> sum([1, 2])
    4
    """
    report = failures(Example("module", "name", docstring, Path("file.py"), 7), {})
    assert 'File "file.py", line 12, in module.name' in report
    assert "Expected:\n    4\nGot:\n    3" in report and "2 items" not in report
