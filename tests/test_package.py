import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import jax.numpy as jnp
import pytest

import fat2thin
from fat2thin.cli.main import main

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def modules_after(statement: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter has loaded after a statement."""
    program = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return set(result.stdout.decode().split())


def test_importing_the_package_loads_no_heavy_module():
    assert not modules_after("import fat2thin") & {"jax", "numpy", "numpyro", "matplotlib", "tyro"}


@pytest.mark.parametrize("name", ["fat2thin.distributions", "fat2thin.testing"])
def test_computing_loads_no_plotting_command_line_or_task_package(name):
    loaded = modules_after(f"import {name}")
    assert "numpyro" in loaded
    assert not loaded & {"matplotlib", "plotly", "tyro", "gymnasium"}


def test_submodules_are_loaded_on_first_use():
    loaded = modules_after("import fat2thin\nassert fat2thin.distributions.QGaussian")
    assert "numpyro" in loaded


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'fat2thin' has no attribute 'distribution'"):
        fat2thin.distribution  # noqa: B018


def test_public_names_exist_and_are_listed():
    assert set(fat2thin.__all__) <= set(dir(fat2thin))
    assert all(hasattr(fat2thin, name) for name in fat2thin.__all__)


def test_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[([\d.]+)\] - (\d{4}-\d{2}-\d{2})$", changelog, re.MULTILINE)
    assert fat2thin.__version__ == project["version"] == importlib.metadata.version("fat2thin")
    assert f"\nversion: {fat2thin.__version__}\ndate-released: {released[0][1]}\n" in citation
    assert released[0][0] == fat2thin.__version__
    assert changelog.index("## [Unreleased]") < changelog.index(f"## [{released[0][0]}]")


def imported_packages(source: Path) -> set[str]:
    tree = ast.parse(source.read_text())
    plain = (node.names for node in ast.walk(tree) if isinstance(node, ast.Import))
    froms = (node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    names = [alias.name for aliases in plain for alias in aliases] + [name or "" for name in froms]
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_nothing_can_run_code_from_a_file(source):
    assert not imported_packages(source) & {"pickle", "cloudpickle", "dill", "joblib", "shelve"}
    assert "allow_pickle=True" not in source.read_text()


def test_a_wheel_contains_the_actors_of_the_robot_data(tmp_path):
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    actors = {
        f"fat2thin/envs/actors/{robot}.npz" for robot in ("halfcheetah", "hopper", "walker2d")
    }
    assert actors <= {*zipfile.ZipFile(wheel).namelist()}


def test_every_constraint_pins_one_version():
    """One version for all Pythons, or one for 3.11 and one for 3.12 and later."""
    pins = {"": [], 'python_version < "3.12"': [], 'python_version >= "3.12"': []}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        pin, _, marker = line.partition("; ")
        assert pin.count("==") == 1 and " " not in pin and "/" not in pin
        pins[marker].append(pin.split("==")[0])
    everywhere, old, new = pins.values()
    assert old == new
    for names in (everywhere, old):
        assert names == sorted(set(names))
    assert not set(everywhere) & set(old)


def test_the_package_contains_its_data_files():
    files = {path.as_posix() for path in importlib.resources.files("fat2thin").rglob("*")}
    assert any(name.endswith("report/style.mplstyle") for name in files)
    assert any(name.endswith("fat2thin/py.typed") for name in files)


def help_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_help_names_every_command(capsys):
    text = help_of([], capsys)
    assert "usage: fat2thin" in text
    assert "gallery" in text


def test_help_of_a_command_explains_its_options(capsys):
    text = help_of(["gallery"], capsys)
    assert "--out PATH" in text
    assert "Folder for the pictures" in text


def test_a_folder_that_cannot_be_created_is_a_plain_message(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"fat2thin: .*file"):
        main(["gallery", "--out", str(tmp_path / "file" / "folder")])


def test_rank_promotion_is_an_error_in_tests():
    """Set before JAX is imported: see conftest.py."""
    with pytest.raises(ValueError, match="jax_numpy_rank_promotion"):
        jnp.ones((2, 3)) + jnp.ones(3)
