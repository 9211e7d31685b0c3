"""Build the documentation site from the pages, the notebooks and the docstrings.

    python docs/make_site.py             builds into site/; open site/index.html
    python docs/make_site.py --out DIR   builds into another folder, which is replaced if it is
                                         empty or a site that this script built

Nothing is loaded from a network, neither by the build nor by the pages.
"""

import argparse
import base64
import functools
import html
import importlib
import inspect
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from latex2mathml.converter import convert

import fat2thin

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ROOMS = (
    "distributions", "policies", "algorithms", "data", "envs", "evaluation", "settings", "engine",
    "runs", "training", "export", "report", "experiments", "paper", "testing",
)  # fmt: skip
"""Subpackages in the reference."""
PARTS = {
    "Start": ("start/install.md", "start/tour.md", "start/*.md", "gallery.md", "examples/*.md"),
    "Guides": (
        "guides/own_log.md",
        "guides/decisions.md",
        "guides/export.md",
        "guides/small_logs.md",
        "guides/data.md",
        "guides/training.md",
        "guides/sweeps.md",
        "guides/distributions.md",
        "guides/extending.md",
        "guides/*.md",
    ),
    "Algorithms": ("algorithms/index.md", "algorithms/fttpo.md", "algorithms/*.md"),
    "Results": ("results/index.md", "results/claims.md", "results/reproduction.md", "results/*.md"),
    "Internals": (
        "internals/architecture.md",
        "internals/reliability.md",
        "internals/performance.md",
        "internals/*.md",
    ),
    "Reference": ("reference/index.md", *(f"reference/{room}.md" for room in ROOMS)),
}
"""Tabs of the site with their pages in order. Patterns add pages that are not listed."""
MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "CHANGELOG.md": "internals/changelog.md",
}
"""Where files outside docs/ are on the site; others are under files/."""
MARKER = ".built_by_make_site"
"""An empty file in every built site: a folder without it is not replaced."""
LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r'<(span|div) class="arithmatex">(?P<tex>.*?)</\1>', re.DOTALL)

TEX = re.compile(r"\\[(\[](.*?)\\[)\]]", re.DOTALL)
MENDED = (
    (
        r"<msup>(<mi>.</mi>)<mi>&#x02032;</mi></msup>",
        r"<mrow>\1<mo lspace='0'>&#x02032;</mo></mrow>",
    ),
    (r"<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>"),
    (r"<mi>&#x02016;</mi>", "<mo lspace='.28em' rspace='.28em'>&#x02016;</mo>"),
    (
        r"(?<!<msub>)<mi>(log|ln|exp|arctan|cos)</mi>(?!</mrow>|<m[nr]|<mo)",
        r"<mi>\1</mi><mspace width='.17em'/>",
    ),
)
"""Primes, relations and names of functions in the converter's MathML, and what they become."""


def place(path: Path) -> str:
    """Return where a file of the repository is on the site, before Markdown becomes HTML."""
    name = path.relative_to(ROOT).as_posix()
    if name in MOVED:
        return MOVED[name]
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    if path.suffix == ".ipynb":
        return Path(name).with_suffix(".md").as_posix()
    return f"files/{name}"


def relink(text: str, page: Path, pages: Path) -> str:
    """Point the links of a page to where their targets are on the site, and copy other files."""

    def moved(match: re.Match[str]) -> str:
        if re.match(r"[a-z]+:", match["target"]):
            return match[0]
        path = Path(os.path.normpath(page.parent / match["target"]))
        target = place(path)
        if target.startswith("files/") and path.is_file():
            copied = pages / target
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)
        there = os.path.relpath(target, Path(place(page)).parent)
        return f"]({there}{match['anchor'] or ''})"

    # Code is left alone: a subscript before a call looks like a link.
    done, end = [], 0
    for code in CODE.finditer(text):
        done += [LINK.sub(moved, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*done, LINK.sub(moved, text[end:])])


def stage(pages: Path, examples: Path) -> None:
    """Put everything that the site is built from into the folder `pages`."""
    shutil.copytree(DOCS, pages, ignore=shutil.ignore_patterns("*.py", "*.toml", "__pycache__"))
    for page in [*DOCS.rglob("*.md"), *(ROOT / name for name in MOVED if name != "README.md")]:
        text = relink(page.read_text(encoding="utf-8"), page, pages)
        (pages / place(page)).write_text(text, encoding="utf-8")
    for notebook in sorted(examples.glob("*.ipynb")):
        page = ROOT / "examples" / notebook.name
        target = pages / place(page)
        target.parent.mkdir(exist_ok=True)
        text = notebook_page(json.loads(notebook.read_text(encoding="utf-8")), target)
        target.write_text(relink(text, page, pages), encoding="utf-8")
    (pages / "reference").mkdir()
    for name, text in reference_pages():
        (pages / "reference" / f"{name}.md").write_text(text, encoding="utf-8")


def notebook_page(notebook: dict, target: Path) -> str:
    """Return a notebook as Markdown: text, code, and the outputs stored in it.

    Pictures are written beside `target`.
    """
    parts = []
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code" and source.strip():
            parts.append(f"```python\n{source}\n```")
        for index, output in enumerate(cell.get("outputs", [])):
            content = output.get("data", {})
            if "image/png" in content:
                picture = target.with_name(f"{target.stem}_{number}_{index}.png")
                picture.write_bytes(base64.b64decode("".join(content["image/png"])))
                parts.append(f'<img alt="Output of the cell above" src="{picture.name}">')
            elif text := "".join(output.get("text", content.get("text/plain", ""))).rstrip():
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def modules(room: str) -> Iterator[ModuleType]:
    """Yield the modules of a subpackage, itself first."""
    package = importlib.import_module(f"fat2thin.{room}")
    yield package
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.rpartition(".")[2].startswith("_"):
            yield importlib.import_module(found.name)


def reference_pages() -> Iterator[tuple[str, str]]:
    """Yield names and texts of the reference: one page per subpackage, and an index."""
    found = {room: [*modules(room)] for room in ROOMS}
    homes = {module.__name__: room for room in ROOMS for module in found[room]}
    yield "index", "\n\n".join(["# fat2thin {#fat2thin}", docstring(fat2thin),
                                public_names(fat2thin, homes)])  # fmt: skip
    for room, (package, *inside) in found.items():
        parts = [f"# fat2thin.{room} {{#fat2thin.{room}}}", docstring(package)]
        if getattr(package, "__all__", None):
            parts.append(public_names(package, homes))
        if defined(package):
            parts.append(f"::: {package.__name__}")
        parts += [
            f"## {module.__name__} {{#{module.__name__}}}\n\n::: {module.__name__}"
            for module in inside
        ]
        yield room, "\n\n".join(parts) + "\n"


def docstring(thing: object) -> str:
    return inspect.getdoc(thing) or ""


def defined(module: ModuleType) -> list[str]:
    """Return the public functions and classes that a module defines itself."""
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
        and (inspect.isclass(thing) or inspect.isroutine(thing))
    ]  # fmt: skip


def public_names(package: ModuleType, homes: dict[str, str]) -> str:
    """Return a table of `__all__`; each name links to the entry of its definition."""
    rows = ["| name | what it is |", "|---|---|"]
    for name in package.__all__:
        thing = getattr(package, name)
        path = f"{package.__name__}.{name}"
        anchor = f'<a id="{path}"></a>'
        if inspect.ismodule(thing):
            anchor, target = "", f"{name}.md"
        elif getattr(thing, "__module__", None) in homes:
            target = f"{homes[thing.__module__]}.md#{thing.__module__}.{thing.__qualname__}"
        else:
            target = ""
        shown = f"[`{name}`]({target})" if target else f"`{name}`"
        first = docstring(thing).partition("\n\n")[0].replace("\n", " ") if target else ""
        first = first.replace("|", "\\|")
        rows.append(f"| {anchor}{shown} | {first} |")
    return "\n".join(rows)


def navigation(pages: Path) -> list[tuple[str, list[str]]]:
    """Return the parts of the site with their pages. A page in no part is an error."""
    seen = {"index.md"}
    parts = []
    for part, patterns in PARTS.items():
        found = [path.relative_to(pages).as_posix() for pattern in patterns
                 for path in sorted(pages.glob(pattern))]  # fmt: skip
        mine = [page for page in dict.fromkeys(found) if page not in seen]
        seen.update(mine)
        parts.append((part, mine))
    lost = {path.relative_to(pages).as_posix() for path in pages.rglob("*.md")} - seen
    if lost:
        sys.exit(f"in no part of the site, see PARTS in {Path(__file__).name}: {sorted(lost)}")
    return parts


def configuration(pages: Path) -> str:
    """Return Zensical's settings, with the navigation and where to find the sources."""
    parts = [f"{{ {json.dumps(part)} = {json.dumps(found)} }}" for part, found in navigation(pages)]
    head = f'[project]\nnav = [{{ "Home" = "index.md" }}, {", ".join(parts)}]'
    sources = f"[project.plugins.mkdocstrings.handlers.python]\npaths = [{str(ROOT / 'src')!r}]"
    text = (DOCS / "zensical.toml").read_text(encoding="utf-8")
    return text.replace("[project]", f'{head}\ndocs_dir = "pages"', 1) + f"\n{sources}\n"


def mathml(tex: str, display: str = "inline") -> str:
    """Return a formula as MathML, which browsers show without a script.

    The converter's output is mended where browsers would space it badly or ignore an attribute.
    """

    def script(match: re.Match[str]) -> str:
        return unicodedata.lookup(f"MATHEMATICAL SCRIPT CAPITAL {match[1]}")

    found = convert(re.sub(r"\\mathcal *([A-Z])", script, tex), display=display)
    return functools.reduce(lambda text, change: re.sub(*change, text), MENDED, found)


def with_mathml(page: str) -> str:
    """Return a page with MathML in place of TeX."""

    def shown(match: re.Match[str]) -> str:
        tex = html.unescape(match["tex"]).strip()
        return mathml(tex[2:-2], "block" if tex.startswith(r"\[") else "inline")

    return FORMULA.sub(shown, page)


def clean_search(site: Path) -> None:
    """Write formulas in the index of the search as text, instead of TeX."""

    def plain(match: re.Match[str]) -> str:
        return re.sub(r"<[^>]*>", "", mathml(html.unescape(match[1])))

    index = json.loads((site / "search.json").read_text(encoding="utf-8"))
    for item in index["items"]:
        item["text"] = TEX.sub(plain, item["text"])
    text = json.dumps(index)
    (site / "search.json").write_text(text, encoding="utf-8")
    (site / "search.js").write_text(f"var __index = {text}", encoding="utf-8")


def build(out: Path, examples: Path = ROOT / "examples") -> None:
    """Build the site into the folder `out`, which is replaced; other files are never deleted."""
    refuse_other_files(out)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        stage(work / "pages", examples)
        (work / "zensical.toml").write_text(configuration(work / "pages"), encoding="utf-8")
        command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", "zensical.toml"]
        ran = subprocess.run(command, cwd=work, capture_output=True, text=True)
        if ran.returncode:
            sys.exit(f"{ran.stdout}{ran.stderr}")
        for page in (work / "site").rglob("*.html"):
            page.write_text(with_mathml(page.read_text(encoding="utf-8")), encoding="utf-8")
        clean_search(work / "site")
        (work / "site" / MARKER).touch()
        refuse_other_files(out)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(work / "site", out)


def refuse_other_files(out: Path) -> None:
    """Exit if `out` is not a folder that is new, empty, or a site that this script built."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        sys.exit(f"{out} is not a folder: give --out a new or empty one")
    if out.is_dir() and any(out.iterdir()) and not (out / MARKER).is_file():
        sys.exit(
            f"{out} holds files that are not a site built by this script (no {MARKER}): delete it, "
            "or give --out an empty folder"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    out = parser.parse_args().out
    build(out)
    print(f"open {out / 'index.html'}")


if __name__ == "__main__":
    main()
