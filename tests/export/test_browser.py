"""The example page decides with an exported ONNX file in a headless browser."""

import contextlib
import functools
import http.server
import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from export.cases import policy
from fat2thin.export.contents import from_npz
from fat2thin.export.folder import export_policy
from report.browser import open_browser

EXAMPLE = Path(__file__).parents[2] / "examples" / "browser"


@contextlib.contextmanager
def served(folder):
    """Serve a folder on this machine and yield its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        extensions_map = {  # noqa: RUF012
            **http.server.SimpleHTTPRequestHandler.extensions_map,
            ".mjs": "text/javascript", ".wasm": "application/wasm",
        }  # fmt: skip

        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return a folder with the page, the export and the runtime; skip without npm or network."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    place = tmp_path_factory.mktemp("page") / "made"
    export_policy(policy("sparse", "limits"), place, ("onnx",))
    for name in ("index.html", "package.json"):
        shutil.copy(EXAMPLE / name, place)
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    try:
        found = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        pytest.skip("npm could not install onnxruntime-web within five minutes")
    if found.returncode:
        pytest.skip(f"npm could not install onnxruntime-web: {found.stderr.strip():.200}")
    return place


def ask(browser, **values):
    """Type values by field and return the table of the answer, after it has settled."""
    browser.run(
        """for (const [name, value] of Object.entries(arguments[0])) {
          const field = document.querySelector(`[name="${name.replace("__", ":")}"]`);
          field.value = value;
          field.dispatchEvent(new Event("input", { bubbles: true }));
        }""",
        values,
    )
    time.sleep(0.5)
    text = browser.find("#answer p").text
    cells = [one.text for one in browser.window.find_elements("css selector", "#answer td")]
    return text, cells


@pytest.mark.slow
@pytest.mark.long
def test_the_page_decides_as_the_policy_does(page):
    with open_browser() as browser, served(page) as address:
        browser.window.get(address)
        for _ in range(100):
            if ready := browser.run("return document.body.dataset.ready"):
                break
            time.sleep(0.2)
        assert ready == "yes", browser.find("#answer").text
        state = {"observation__severity": 0.8, "observation__weight": 1.2, "observation__rate": 0.1}
        text, cells = ask(browser, **state, uniform__dose=0.25)
        decide = from_npz((page / "weights.npz").read_bytes()).policy()
        expected = decide([[0.8, 1.2, 0.1]], [[0.25, 0.5]], [[np.nan, np.nan]])
        assert text == "Act" and expected.refer[0] == 0
        shown = np.array([cells[1:5], cells[6:10]], float)
        made = np.stack([expected.action[0], expected.centre[0], expected.low[0], expected.high[0]])
        np.testing.assert_allclose(shown, made.T, rtol=2e-4, atol=1e-5)
        text, cells = ask(browser, observation__rate=9)
        assert text == "Refer: outside the log; limits forbid acting"
        text, cells = ask(browser, observation__rate="")
        assert text == "Refer: invalid input" and cells[1:3] == ["0.5", "–"]
        complaints = [one for one in browser.complaints() if "favicon" not in one]
        assert not complaints
