"""docs/internals/architecture.md names every module, and every name in it exists."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fat2thin"
PAGE = (ROOT / "docs" / "internals" / "architecture.md").read_text()
TREE = PAGE.partition("```text\n")[2].partition("```")[0]


def listed():
    """Yield the paths in the tree; a line with less indentation starts another room."""
    rooms = []
    for line in TREE.splitlines()[1:]:
        depth = (len(line) - len(line.lstrip())) // 4
        opened = re.match(r" +([a-z_]+)/ ", line)
        if opened:
            rooms = [*rooms[: depth - 1], opened[1]]
        elif depth < len(rooms):
            rooms = rooms[:depth]
        elif depth == 1:
            rooms = []
        for name in re.findall(r"[a-z0-9_*]+\.(?:py|toml|mplstyle)\b", line):
            yield "/".join((*rooms, name))


def test_every_module_is_in_the_tree_and_every_path_exists():
    found = [*listed()]
    for name in found:
        assert [*PACKAGE.glob(name)], f"{name} does not exist"
    here = {str(path.relative_to(PACKAGE)) for name in found for path in PACKAGE.glob(name)}
    modules = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    assert not [
        name
        for name in sorted(modules - here)
        if not name.endswith("/__init__.py") and not name.startswith("testing/")
    ]


def test_every_function_named_in_the_walkthrough_exists():
    hops = re.findall(r"`([a-z_/]+)\.py:(\w+)`", PAGE)
    assert len(hops) > 10
    for module, name in hops:
        assert hasattr(importlib.import_module(f"fat2thin.{module.replace('/', '.')}"), name)
