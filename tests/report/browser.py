"""A real browser without a window, for pages that are files; a reason where there is none."""

import contextlib
import csv
import io
import json
import shutil
from pathlib import Path

import pytest


@contextlib.contextmanager
def open_browser():
    """Chromium, driven by its own driver; the test is skipped where either is missing."""
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
    """A window with one page in it."""

    def __init__(self, window):
        self.window = window

    def open(self, path: Path) -> None:
        """Show a file, forgetting what an earlier one complained of."""
        self.window.get("about:blank")
        self.complaints(), self.requests()
        self.window.get(path.as_uri())

    def complaints(self) -> list[str]:
        """What the console said since it was last asked."""
        return [entry["message"] for entry in self.window.get_log("browser")]

    def requests(self) -> list[str]:
        """Every address that was asked for since the last time."""
        entries = (json.loads(entry["message"]) for entry in self.window.get_log("performance"))
        messages = [entry["message"] for entry in entries]
        sent = [one for one in messages if one["method"] == "Network.requestWillBeSent"]
        return [one["params"]["request"]["url"] for one in sent]

    def run(self, script: str, *arguments):
        """What a function body gives."""
        return self.window.execute_script(script, *arguments)

    def find(self, selector: str):
        """The first element that a selector fits."""
        return self.window.find_element("css selector", selector)

    def choose(self, selector: str, text: str) -> None:
        """Choose the entry of a list that reads so."""
        (entry,) = [
            entry
            for entry in self.find(selector).find_elements("tag name", "option")
            if entry.get_attribute("textContent") == text
        ]
        entry.click()

    def picture(self, selector: str) -> str:
        """What is drawn in a place."""
        return self.run("return document.querySelector(arguments[0]).innerHTML", selector)

    def data(self, selector: str) -> list[dict[str, str]]:
        """The rows behind a picture, as its button shows them."""
        pre = self.find(f"{selector} pre")
        if not pre.is_displayed():
            self.find(f"{selector} button").click()
        return list(csv.DictReader(io.StringIO(pre.get_attribute("textContent"))))

    def narrow(self, width: int) -> None:
        """Make the window as wide as a phone."""
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        self.window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def wide(self) -> None:
        """Undo it."""
        self.window.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
