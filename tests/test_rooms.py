"""Rooms import only from rooms above them, and imports have no cycles."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import fat2thin

ROOMS = (
    "distributions", "policies", "algorithms", "data", "envs", "evaluation", "settings", "engine",
    "runs", "training", "safety", "export", "report", "experiments", "paper", "testing", "cli",
)  # fmt: skip
PACKAGE = Path(fat2thin.__file__).parent
FILES = {
    ".".join(("fat2thin", *path.relative_to(PACKAGE).with_suffix("").parts)): path
    for path in PACKAGE.rglob("*.py")
}
MODULES = {name.removesuffix(".__init__"): path for name, path in FILES.items()}


def imports(module, everywhere=True):
    """Yield the package modules that a module imports: anywhere, or only at import time."""
    tree = ast.parse(MODULES[module].read_text())
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fat2thin"):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)


def room(module):
    """Return the position of a module's room in the order, from 1; 0 for modules at the root."""
    part = f"{module}.".split(".")[1]
    return ROOMS.index(part) + 1 if part in ROOMS else 0


def test_rooms_import_only_from_rooms_above():
    edges = [(module, other) for module in MODULES for other in imports(module) if room(other)]
    roots = ("fat2thin", "fat2thin.__main__")
    assert not [edge for edge in edges if edge[0] not in roots and room(edge[0]) < room(edge[1])]


def test_imports_have_no_cycle():
    graph = {module: set(imports(module, everywhere=False)) - {module} for module in MODULES}
    TopologicalSorter(graph).prepare()
