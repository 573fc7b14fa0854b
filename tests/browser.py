"""A browser without a window, from this machine and never fetched; and what it was asked for."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--window-size=1200,1000"]
OWN = ("data:", "chrome:", "chrome-untrusted:")
"""Addresses of what the page and the browser carry in them."""


@contextmanager
def started(profile: Path) -> Iterator[webdriver.Chrome]:
    """The browser; the test is skipped where there is none, and fails if JAXFORMER_BROWSER says that there has to be one."""
    browser, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if not browser or not driver:
        lacking = "chromium and chromedriver are not both on this machine"
        if os.environ.get("JAXFORMER_BROWSER") == "required":
            pytest.fail(f"{lacking}, and JAXFORMER_BROWSER says that they have to be")
        pytest.skip(f"{lacking} (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in [*FLAGS, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


def asked(chrome: webdriver.Chrome) -> set[str]:
    """Every address that was asked for since the last call, but what pages and the browser carry in them."""
    messages = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    found = [message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    return {url for url in found if not url.startswith(OWN)}
