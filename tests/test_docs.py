"""Every code block of the README and the documentation is run, in the order of its page."""

import importlib.util
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from fat2thin.cli.main import main
from fat2thin.evaluation.returns import Reference, TreatmentEvaluator

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONG = (
    "docs/guides/certificates.md", "docs/guides/decisions.md", "docs/guides/distributions.md",
    "docs/guides/export.md", "docs/guides/own_log.md", "docs/guides/sweeps.md",
    "docs/guides/training.md", "docs/guides/value.md", "docs/start/tour.md",
)  # fmt: skip
"""Pages whose blocks take half a minute or more each."""
MARKED = [
    pytest.param(page, marks=[pytest.mark.slow, pytest.mark.long])
    if str(page.relative_to(ROOT)) in LONG
    else pytest.param(page)
    for page in PAGES
]
FENCE = re.compile(r"^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(match["language"].strip(), match["code"], text.count("\n", 0, match.start()) + 1)
        for match in FENCE.finditer(text)
    ]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])


def check_make(words: list[str]) -> None:
    targets = {word for word in words if "=" not in word}
    assert targets, "make without a target"
    assert targets <= make_targets()


def check_pip(words: list[str]) -> None:
    named = re.findall(r"\[([a-z,]+)\]", " ".join(words))
    assert {extra for names in named for extra in names.split(",")} <= extras()
    files = [words[at + 1] for at, word in enumerate(words) if word in ("-c", "--constraint")]
    assert all((ROOT / file).is_file() for file in files)


def check_script(words: list[str]) -> None:
    """A benchmark may take hours: see that it is there, and knows the flags."""
    script = (ROOT / words[0]).read_text(encoding="utf-8")
    assert all(f'"{flag}"' in script for flag in words[1:])


def run_console_line(line: str) -> None:
    """Run a command of ours; of make and pip, which would set up the world, check the words."""
    program, *words = shlex.split(line, comments=True)
    match Path(program).name:
        case "fat2thin":
            main(words)
        case "make":
            check_make(words)
        case "python":
            check_script(words)
        case "pip":
            check_pip(words)
        case _:
            pytest.fail(f"no way to check {line!r}")


def run_python(block: Block, page: Path, namespace: dict[str, object]) -> None:
    # Empty lines before the code: a traceback then names the line of the page.
    source = "\n" * block.line + block.code
    exec(compile(source, str(page), "exec"), namespace)


@pytest.fixture
def quick_references(monkeypatch):
    """What a treatment is compared with has tests of its own, and takes long to measure."""
    row = Reference(5.2, 0.1, {"dose_mean": 0.44}, "one dose", 2)
    names = ("uniform", "best constant", "best latent")
    monkeypatch.setattr(TreatmentEvaluator, "references", lambda self: dict.fromkeys(names, row))


@pytest.mark.parametrize("page", MARKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks_run(page, tmp_path, monkeypatch, quick_references, own_registries):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        match block.language:
            case "python":
                run_python(block, page, namespace)
            case "console":
                for line in filter(None, map(str.strip, block.code.splitlines())):
                    run_console_line(line)
            case "text" | "bibtex":
                pass
            case language:
                pytest.fail(f"{page.name}:{block.line}: nobody knows how to run {language!r}")


ALGORITHM_PAGES = [page for page in PAGES if page.parent.name == "algorithms"]
FUNCTION = re.compile(r"`(?P<module>[a-z_]+)\.(?!sh`)(?P<name>[A-Za-z_]+)(?:\.[a-z_]+)?`")


@pytest.mark.parametrize("page", ALGORITHM_PAGES, ids=lambda page: page.name)
def test_functions_named_on_the_page_of_an_algorithm_exist(page):
    """As `module.function`; a step of an update is one that the algorithm itself takes."""
    source = ROOT / f"src/fat2thin/algorithms/{page.stem}.py"
    for match in FUNCTION.finditer(page.read_text()):
        module, name = match["module"], match["name"]
        rooms = ("fat2thin", "fat2thin.algorithms", "fat2thin.policies", "fat2thin.distributions")
        homes = filter(importlib.util.find_spec, (f"{room}.{module}" for room in rooms))
        assert any(hasattr(importlib.import_module(home), name) for home in homes), match[0]
        if module == "steps" and source.exists():
            assert re.search(rf"\b{name}\b", source.read_text()), match[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    lost = []
    for match in LINK.finditer(without_code(page)):
        if match["target"].startswith("https://"):
            continue
        target = page.parent / match["target"] if match["target"] else page
        if not target.exists() or (match["anchor"] and match["anchor"] not in anchors(target)):
            lost.append(match[0])
    assert lost == []


def without_code(page: Path) -> str:
    return re.sub(r"`[^`\n]+`", "", FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """Return what a link can point to in a page: its headings and named places."""
    text = FENCE.sub("", page.read_text())
    titles = (match["title"].lower() for match in HEADING.finditer(text))
    slugs = {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in titles}
    return slugs | {*re.findall(r'<a id="([^"]+)">', text)}


def test_a_wrong_anchor_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One title\n\n```text\n# no title\n```\n[here](#one-title)")
    test_links_lead_somewhere(page)
    for anchor in ("no-title", "two"):
        page.write_text(f"# One title\n\n```text\n# no title\n```\n[here](#{anchor})")
        with pytest.raises(AssertionError):
            test_links_lead_somewhere(page)


@pytest.mark.parametrize(
    "line", ["make nonsense", "pip install '.[nonsense]'", "curl x", "fat2thin nonsense"]
)
def test_a_wrong_command_is_noticed(line):
    with pytest.raises((AssertionError, pytest.fail.Exception, SystemExit)):
        run_console_line(line)


def test_the_documentation_has_code():
    languages = [block.language for page in PAGES for block in blocks(page)]
    assert languages.count("python") >= 2
    assert languages.count("console") >= 3
