"""Run the notebooks in examples/ from top to bottom and store their outputs.

    python docs/run_notebooks.py                              all of them
    python docs/run_notebooks.py examples/own_log.ipynb       one

Cells are plain Python, so no Jupyter is needed. Files that a notebook writes go to a temporary
folder. tests/test_notebooks.py runs the same function.
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

EXAMPLES = Path(__file__).parents[1] / "examples"
DOTS_PER_INCH = 110
Output = dict[str, Any]


def run_notebook(
    notebook: dict[str, Any], folder: Path, parameters: Mapping[str, Any] | None = None
) -> list[list[Output]]:
    """Return the outputs of each code cell, run in order in one namespace inside a folder.

    `parameters` replace variables after the cell with the tag "parameters".
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    found = []
    with contextlib.chdir(folder), plt.rc_context():
        for number, cell in enumerate(code_cells(notebook), start=1):
            found.append(_run_cell("".join(cell["source"]), number, namespace))
            if "parameters" in cell["metadata"].get("tags", ()):
                namespace |= parameters or {}
    return found


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _run_cell(source: str, number: int, namespace: dict[str, Any]) -> list[Output]:
    """Return what a cell prints, the figures it leaves open, and the value of its last line."""
    statements = ast.parse(source).body
    last = statements.pop() if statements and isinstance(statements[-1], ast.Expr) else None
    name, printed, value = f"<cell {number}>", io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(statements, []), name, "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    outputs: list[Output] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    for figure in map(plt.figure, plt.get_fignums()):
        outputs.append({"output_type": "display_data", "data": _data(figure), "metadata": {}})
    plt.close("all")
    if value is not None:
        result = {"output_type": "execute_result", "execution_count": number, "metadata": {}}
        outputs.append(result | {"data": _data(value)})
    return outputs


def _data(value: Any) -> dict[str, Any]:
    """Return a value by the type of its content, as a notebook stores it."""
    if isinstance(value, Figure):
        picture = io.BytesIO()
        value.savefig(picture, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
        encoded = base64.b64encode(picture.getvalue()).decode()
        return {"image/png": encoded, "text/plain": ["<Figure>"]}
    html = getattr(value, "_repr_html_", lambda: None)()
    shown = {"text/html": html.splitlines(keepends=True)} if html else {}
    return shown | {"text/plain": repr(value).splitlines(keepends=True)}


def store_outputs(path: Path) -> None:
    """Run a notebook and write its outputs into its file."""
    notebook = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        found = run_notebook(notebook, Path(folder))
    for number, (cell, outputs) in enumerate(zip(code_cells(notebook), found, strict=True), 1):
        cell |= {"execution_count": number, "outputs": outputs}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    for path in map(Path, sys.argv[1:] or sorted(map(str, EXAMPLES.glob("*.ipynb")))):
        began = time.perf_counter(), time.process_time()
        store_outputs(path)
        wall, busy = time.perf_counter() - began[0], time.process_time() - began[1]
        size = os.path.getsize(path) / 1024
        print(f"{path.name}: {wall:.0f} s, {busy:.0f} s of CPU time, {size:.0f} KB")


if __name__ == "__main__":
    main()
