"""The pages of the algorithms agree with the code."""

import subprocess
import sys
from pathlib import Path

import pytest

from fat2thin import algorithms

ROOT = Path(__file__).parents[1]
BASES = [name for name in algorithms.names() if not algorithms.get(name).variant_of]


def test_generated_tables_are_up_to_date():
    """Settings, metrics and scores; the check also fails for a metric without an explanation."""
    command = [sys.executable, "docs/make_pages.py", "--check"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("name", BASES)
def test_every_algorithm_has_a_page(name):
    page = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text()
    assert "## Equations and functions" in page
    assert "## Where it departs from its paper" in page
    assert "<!-- metrics -->" in page
    variants = [other for other in algorithms.names() if algorithms.get(other).variant_of == name]
    assert all(f"`{variant}`" in page for variant in variants)
