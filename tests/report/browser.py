"""A headless browser for tests of HTML files."""

import contextlib
import csv
import io
import json
import shutil
from pathlib import Path

import pytest


@contextlib.contextmanager
def open_browser():
    """Return a headless Chromium; skip the test if it or its driver is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("chromium and chromedriver are not installed (Debian: chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.add_argument("--window-size=1200,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    window = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        yield Browser(window)
    finally:
        window.quit()


class Browser:
    """A browser window with one page."""

    def __init__(self, window):
        self.window = window

    def open(self, path: Path) -> None:
        """Open a file and discard earlier messages."""
        self.window.get("about:blank")
        self.complaints(), self.requests()
        self.window.get(path.as_uri())

    def complaints(self) -> list[str]:
        """Return console messages since the last call."""
        return [entry["message"] for entry in self.window.get_log("browser")]

    def requests(self) -> list[str]:
        """Return all requested addresses since the last call."""
        entries = (json.loads(entry["message"]) for entry in self.window.get_log("performance"))
        messages = [entry["message"] for entry in entries]
        sent = [one for one in messages if one["method"] == "Network.requestWillBeSent"]
        return [one["params"]["request"]["url"] for one in sent]

    def run(self, script: str, *arguments):
        """Run the body of a JavaScript function and return its result."""
        return self.window.execute_script(script, *arguments)

    def find(self, selector: str):
        """Return the first element that matches a selector."""
        return self.window.find_element("css selector", selector)

    def choose(self, selector: str, text: str) -> None:
        """Select the entry of a list with this text."""
        (entry,) = [
            entry
            for entry in self.find(selector).find_elements("tag name", "option")
            if entry.get_attribute("textContent") == text
        ]
        entry.click()

    def picture(self, selector: str) -> str:
        """Return the HTML of the drawings in an element."""
        return self.run("return document.querySelector(arguments[0]).innerHTML", selector)

    def data(self, selector: str) -> list[dict[str, str]]:
        """Return the rows behind a plot, as its data button shows them."""
        pre = self.find(f"{selector} pre")
        if not pre.is_displayed():
            self.find(f"{selector} button").click()
        return list(csv.DictReader(io.StringIO(pre.get_attribute("textContent"))))

    def narrow(self, width: int) -> None:
        """Set the width of the window, for example that of a phone."""
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        self.window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def wide(self) -> None:
        """Restore the width of the window."""
        self.window.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
