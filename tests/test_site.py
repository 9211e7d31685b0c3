"""The documentation site: built once, its links and names checked, and opened in a browser."""

import base64
import importlib.util
import inspect
import json
import re
import shutil
import time
from pathlib import Path
from urllib.parse import unquote

import pytest

import fat2thin
from report.browser import open_browser

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MOST_LINES, MOST_LINES_OF_A_GUIDE = 2500 + 100 + 70 + 360 + 215 + 20, 149
"""2,500 lines, and what came later: the pages of ReBRAC, EDAC and quasi-optimal learning, the
guides to clusters, decisions, values, certificates and exports, and their modules and results;
ranks of policies by estimates."""
PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5Erk"
    "Jggg=="
)
"""A PNG of one pixel, as notebooks store pictures."""
NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# A notebook\n", "See [the log](own_log.csv)."]},
        {
            "cell_type": "code",
            "source": ["print(6 * 7)\n", "draw()"],
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": ["forty-two\n"]},
                {"output_type": "display_data", "data": {"image/png": PICTURE}},
                {"output_type": "execute_result", "data": {"text/plain": ["array(7)"]}},
            ],
        },
        {"cell_type": "code", "source": [], "outputs": []},
    ]
}  # fmt: skip
TAG = re.compile(r"<(?P<name>[a-z][a-z0-9]*)\b(?P<attributes>[^>]*)>")
ATTRIBUTE = re.compile(r'\b(?P<name>id|href|src)="(?P<value>[^"]*)"')
SEARCH = "[...document.body.children].find((element) => element.shadowRoot)?.shadowRoot"
GENERATED = re.compile(r"<!-- (?!end)([a-z ]+) -->.*?<!-- end of \1 -->", re.DOTALL)


def load_builder():
    spec = importlib.util.spec_from_file_location("make_site", DOCS / "make_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_site = load_builder()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site with the notebooks of the examples, and one more."""
    examples, out = tmp_path_factory.mktemp("examples"), tmp_path_factory.mktemp("site")
    for notebook in (ROOT / "examples").glob("*.ipynb"):
        shutil.copy(notebook, examples)
    (examples / "synthetic.ipynb").write_text(json.dumps(NOTEBOOK))
    make_site.build(out, examples)
    return out


@pytest.fixture(scope="module")
def pages(site):
    """Texts of all pages by their path."""
    return {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}


@pytest.fixture(scope="module")
def anchors(pages):
    """Names that a link can point to, by the path of the page."""
    return {page: {value for _, name, value in attributes(text) if name == "id"}
            for page, text in pages.items()}  # fmt: skip


def attributes(text):
    for tag in TAG.finditer(text):
        for attribute in ATTRIBUTE.finditer(tag["attributes"]):
            yield tag["name"], attribute["name"], attribute["value"]


def test_every_link_and_anchor_leads_somewhere(pages, anchors, site):
    lost = []
    for page, text in pages.items():
        # This page is shown for any address, so its links begin at the root of a server.
        start = site if page.name == "404.html" else page.parent
        for _, name, value in attributes(text):
            if name == "id" or re.match(r"[a-z]+:", value):
                continue
            path, _, anchor = value.partition("#")
            target = (start / unquote(path).lstrip("/")).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            known = anchors.get(target, set()) | {""}
            if not target.is_file() or unquote(anchor) not in known:
                lost.append((str(page.relative_to(site)), value))
    assert lost == []


def test_nothing_comes_from_a_network(pages, site):
    """Links to other sites are only followed when a reader clicks on them."""
    outside = [
        (str(page.relative_to(site)), value)
        for page, text in pages.items()
        for tag, name, value in attributes(text)
        if name != "id" and tag != "a" and re.match(r"(https?:)?//", value)
    ]
    assert outside == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", sheet.read_text(encoding="utf-8"))


def test_every_public_name_has_an_entry(anchors, site):
    room_pages = {room: site / "reference" / f"{room}.html" for room in make_site.ROOMS}
    index = anchors[site / "reference" / "index.html"]
    parts = {name for name in fat2thin.__all__ if inspect.ismodule(getattr(fat2thin, name))}
    assert parts <= {*make_site.ROOMS}
    assert {f"fat2thin.{name}" for name in {*fat2thin.__all__} - parts} <= index
    for room, page in room_pages.items():
        package, *inside = make_site.modules(room)
        wanted = {package.__name__, *(module.__name__ for module in inside)}
        wanted |= {f"{package.__name__}.{name}" for name in getattr(package, "__all__", ())}
        for module in (package, *inside):
            wanted |= {f"{module.__name__}.{name}" for name in make_site.defined(module)}
        assert len(wanted) > 3, room
        assert wanted - anchors[page] == set(), room


def test_formulas_are_mathml(pages, site):
    assert "arithmatex" not in "".join(pages.values())
    assert pages[site / "algorithms" / "fttpo.html"].count("<math") > 20
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block"' in pages[
        site / "guides" / "distributions.html"
    ]  # fmt: skip
    index = json.loads((site / "search.json").read_text())
    assert not [item["text"] for item in index["items"] if r"\(" in item["text"]]


@pytest.mark.parametrize(
    ("tex", "expected"),
    [
        ("s'", "<mi>s</mi><mo lspace='0'>&#x02032;</mo>"),
        (r"a \sim \mathcal D", "<mo>&#x0223C;</mo><mi>\N{MATHEMATICAL SCRIPT CAPITAL D}</mi>"),
        (r"\log \phi", "<mi>log</mi><mspace width='.17em'/><mi>&#x003D5;</mi>"),
        (r"\exp_q x", "<msub><mi>exp</mi><mi>q</mi></msub>"),
    ],
)
def test_mathml_is_mended(tex, expected):
    assert expected in make_site.mathml(tex)


def test_notebooks_become_pages(pages, site):
    page = pages[site / "examples" / "synthetic.html"]
    assert re.search(r"<h1[^>]*>A notebook", page)
    assert "forty-two" in page and "array(7)" in page
    assert (site / "examples" / "synthetic_1_1.png").read_bytes() == base64.b64decode(PICTURE)
    assert 'src="synthetic_1_1.png"' in page
    assert "files/examples/own_log.csv" in page
    for notebook in (ROOT / "examples").glob("*.ipynb"):
        assert (site / "examples" / f"{notebook.stem}.html").is_file()


def test_a_page_in_no_part_is_noticed(tmp_path):
    (tmp_path / "index.md").write_text("# Home")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "new.md").write_text("# New")
    with pytest.raises(SystemExit, match="other/new"):
        make_site.navigation(tmp_path)


def test_a_folder_of_other_files_is_not_replaced(tmp_path, site):
    kept = tmp_path / "notes.txt"
    kept.write_text("mine")
    with pytest.raises(SystemExit, match="holds files that are not a site"):
        make_site.build(tmp_path)
    with pytest.raises(SystemExit, match="is not a folder"):
        make_site.build(kept)
    assert kept.read_text() == "mine"
    make_site.refuse_other_files(site)
    make_site.refuse_other_files(tmp_path / "new")


def handwritten(page):
    return len(GENERATED.sub("", page.read_text(encoding="utf-8")).splitlines())


def test_guides_and_the_whole_are_short():
    guides = {page.name: handwritten(page) for page in (DOCS / "guides").glob("*.md")}
    assert len(guides) > 5
    assert {name: lines for name, lines in guides.items() if lines > MOST_LINES_OF_A_GUIDE} == {}
    # `fat2thin claims --markdown` writes the whole page of claims.
    pages = {*DOCS.rglob("*.md")} - {DOCS / "results" / "claims.md"}
    assert sum(map(handwritten, pages)) <= MOST_LINES


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        # A page remembers the theme of an earlier one.
        forget = {"source": "try { localStorage.clear() } catch {}"}
        opened.window.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", forget)
        yield opened


def wait_for(condition):
    until = time.monotonic() + 20
    while not (found := condition()):
        assert time.monotonic() < until, "nothing appeared"
        time.sleep(0.1)
    return found


def test_search_works_on_a_page_opened_from_disk(browser, site):
    from selenium.webdriver import ActionChains

    browser.open(site / "index.html")
    wait_for(lambda: browser.run("return document.querySelectorAll('iframe').length"))
    browser.find(".md-search__button").click()
    wait_for(lambda: browser.run(f"return {SEARCH}?.activeElement?.tagName") == "INPUT")
    ActionChains(browser.window).send_keys("resuming").perform()
    links = f"return [...{SEARCH}.querySelectorAll('a')].map((link) => link.href)"
    wait_for(lambda: any("#the-run-folder-and-resuming" in link for link in browser.run(links)))
    assert browser.run(f"return {SEARCH}.querySelector('input').value") == "resuming"
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == []
    assert browser.complaints() == []


@pytest.mark.parametrize("name", ["index", "guides/training", "algorithms/fttpo", "reference/data"])
def test_pages_fit_a_phone_in_both_themes(browser, site, name):
    browser.narrow(380)
    shades = set()
    for theme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": theme}
        browser.window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        browser.open(site / f"{name}.html")
        assert browser.run("return document.documentElement.scrollWidth") <= 380
        shades.add(browser.run("return getComputedStyle(document.body).backgroundColor"))
    browser.wide()
    assert len(shades) == 2
