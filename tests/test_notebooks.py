"""The notebooks run from top to bottom, and their stored outputs are those of a run."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from fat2thin.evaluation.returns import Reference, TreatmentEvaluator

ROOT = Path(__file__).parents[1]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "examples").glob("*.ipynb"))}
LARGEST = 400 * 1024
"""Bytes of a notebook."""


def load_runner():
    spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "docs/run_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


runner = load_runner()


def read(name):
    return json.loads(NOTEBOOKS[name].read_text())


def kinds(outputs):
    """What a cell shows: the types of its outputs, without their content."""
    return [(one["output_type"], sorted(one.get("data", ()))) for one in outputs]


def run_and_compare(name, folder, **parameters):
    """Run every cell with other sizes: each shows what its stored outputs show."""
    notebook = read(name)
    found = runner.run_notebook(notebook, folder, parameters)
    stored = [cell["outputs"] for cell in runner.code_cells(notebook)]
    assert [*map(kinds, found)] == [*map(kinds, stored)]
    return found


def printed(outputs):
    return "".join(line for one in outputs for line in one.get("text", ()))


def test_own_log_runs(tmp_path):
    found = run_and_compare("own_log", tmp_path, patients=10, steps=2, minutes=0.01)
    everything = "".join(map(printed, found))
    assert "2 updates, seeds (0, 1, 2, 3, 4)\n20% of the episodes held out" in everything
    assert "0 errors" in everything and "2 episodes that no update saw" in everything
    assert (tmp_path / "runs/own_log_notebook/run/dossier.html").exists()


@pytest.mark.slow
@pytest.mark.long
def test_first_policy_runs(tmp_path, monkeypatch):
    # References have tests of their own, and take long to measure.
    row = Reference(5.2, 0.1, {"dose_mean": 0.44}, "one dose", 2)
    names = ("uniform", "best constant", "best latent")
    monkeypatch.setattr(TreatmentEvaluator, "references", lambda self: dict.fromkeys(names, row))
    found = run_and_compare("first_policy", tmp_path, steps=4, seeds=2)
    everything = "".join(map(printed, found))
    assert "4 updates" in everything and "log density just above: -inf" in everything


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_are_stored(name):
    assert NOTEBOOKS[name].stat().st_size < LARGEST
    cells = runner.code_cells(read(name))
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    shown = {kind for cell in cells for one in cell["outputs"] for kind in one.get("data", ())}
    assert "image/png" in shown
    for cell in cells:
        source = "".join(cell["source"])
        assert cell["outputs"] or "print(" not in source, source
        assert {one["output_type"] for one in cell["outputs"]}.isdisjoint({"error"}), source
    # Folders of the machine that ran it belong in no output.
    texts = "".join(printed(cell["outputs"]) for cell in cells)
    assert not re.search(r"(?<![\w.])/(tmp|home|root|work|Users|var)\b", texts)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_code_cell_follows_an_explanation(name):
    kinds = [cell["cell_type"] for cell in read(name)["cells"]]
    assert kinds[0] == "markdown"
    assert all(kinds[at - 1] == "markdown" for at, kind in enumerate(kinds) if kind == "code")


def test_a_cell_that_fails_is_named(tmp_path):
    cell = {"cell_type": "code", "metadata": {}, "source": ["1 / 0"]}
    with pytest.raises(ZeroDivisionError) as error:
        runner.run_notebook({"cells": [cell]}, tmp_path)
    assert str(error.traceback[-1].path) == "<cell 1>"


def test_values_and_open_figures_are_shown(tmp_path):
    sources = (
        ["size = 1"],
        ["import matplotlib.pyplot as plt\n", "figure, axes = plt.subplots(figsize=(size, 1))"],
        [
            "class Shown:\n",
            "    def _repr_html_(self):\n",
            "        return '<b>1</b>'\n",
            "Shown()",
        ],
        ["size"],
    )
    cells = [{"cell_type": "code", "metadata": {}, "source": source} for source in sources]
    cells[0]["metadata"] = {"tags": ["parameters"]}
    found = runner.run_notebook({"cells": cells}, tmp_path, {"size": 2})
    assert found[0] == []
    assert kinds(found[1]) == [("display_data", ["image/png", "text/plain"])]
    assert found[2][0]["data"]["text/html"] == ["<b>1</b>"]
    assert found[3][0]["data"] == {"text/plain": ["2"]}
