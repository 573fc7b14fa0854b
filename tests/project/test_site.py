"""The site: every page is found and every link leads somewhere; built, it is read in a browser that has no network."""

import functools
import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

import jaxformer as jf
from tests.links import ROOT, documents, pages_of_toctrees, wrong_links

COMMAND = "sphinx-build -n -W -b html docs docs/_build"
"""Command that the documents give; a test writes elsewhere."""


def test_every_link_leads_somewhere():
    assert [*wrong_links()] == []


def test_every_page_is_in_the_navigation():
    assert {path for path in documents() if ROOT / "docs" in path.parents} == pages_of_toctrees()


def test_every_public_name_has_a_page():
    pages = {path: text for path, text in documents().items() if path.parent.name == "api"}
    named = re.findall(r"^```\{public-names\}\n(.*?)^```", "".join(pages.values()), re.M | re.S)
    assert sorted(" ".join(named).split()) == sorted(jf.__all__)


def test_the_command_is_told():
    for name in ("docs/conf.py", "CONTRIBUTING.md"):
        assert COMMAND in (ROOT / name).read_text("utf-8")


def test_a_link_or_a_page_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "docs/part").mkdir(parents=True)
    text = "# One\n\n## A & `b`\n\n[x](#a--b) [y](part/two.md#three) [z](#a) `[no](link.md)`\n"
    (tmp_path / "docs/index.md").write_text(text + "\n```{toctree}\nname <part/two>\n```\n")
    (tmp_path / "docs/part/two.md").write_text("# Two\n\n[a](../index.md#one) [b](gone.md) [c](https://host)\n")
    (tmp_path / "docs/part/lost.md").write_text("# Lost\n")
    assert [*wrong_links(tmp_path)] == ["docs/index.md: part/two.md#three", "docs/index.md: #a", "docs/part/two.md: gone.md"]
    assert {*documents(tmp_path)} - pages_of_toctrees(tmp_path) == {tmp_path / "docs/part/lost.md"}


def build(out: Path, source: Path = ROOT / "docs") -> subprocess.CompletedProcess[str]:
    """Build the site as the command does."""
    flags = [*COMMAND.split()[1:-2], "-c", ROOT / "docs"]
    return subprocess.run([sys.executable, "-m", "sphinx", *flags, source, out], cwd=ROOT, capture_output=True, text=True)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that prints nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of its parent's)
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The built site: its folder, and its address on this machine."""
    out = tmp_path_factory.mktemp("site") / "html"
    done = build(out)
    assert done.returncode == 0, done.stderr
    handler = functools.partial(Quiet, directory=str(out))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield out, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
def test_no_page_asks_the_network_for_anything(site):
    out, _ = site
    asked = re.compile(r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=\"((?:https?:)?//[^\"]*)\"")
    assert asked.findall('<img alt="" src="https://host/x.png">') == ["https://host/x.png"]
    assert [url for path in out.rglob("*.html") for url in asked.findall(path.read_text("utf-8"))] == []
    assert not [path for path in out.rglob("*.css") if re.search(r"url\(['\"]?(?:https?:)?//", path.read_text("utf-8"))]


def overflow(browser: webdriver.Chrome) -> int:
    """Pixels by which the page is wider than its window."""
    return browser.execute_script("return document.scrollingElement.scrollWidth - window.innerWidth")


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_the_window(site, chrome, width, scheme):
    out, address = site
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wide = {}
    for path in sorted(out.rglob("*.html")):
        chrome.get(f"{address}/{path.relative_to(out)}")
        wide[path.name] = overflow(chrome)
    assert {name: pixels for name, pixels in wide.items() if pixels > 0} == {}
    paper = chrome.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) > 380) == (scheme == "light")
    chrome.execute_script("document.body.insertAdjacentHTML('beforeend', '<div style=\"width: 3000px\">wide</div>')")
    assert overflow(chrome) > 0, "a page that is too wide is noticed"
    chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
@pytest.mark.parametrize(("words", "finds"), [("layer_pattern", "Models"), ("excite", "excite"), ("xyzzyq", None)])
def test_search_finds(site, chrome, words, finds):
    chrome.get(f"{site[1]}/search.html?q={words}")
    says = WebDriverWait(chrome, 20).until(
        lambda it: re.findall("found|did not match", it.find_element(By.ID, "search-results").text)
    )
    titles = [item.text for item in chrome.find_elements(By.CSS_SELECTOR, "#search-results li a")]
    assert (says[0] == "did not match") == (finds is None)
    assert finds is None or any(finds in title for title in titles), titles


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["[gone](nowhere.md)", "{py:obj}`jaxformer.nothing`"])
def test_a_wrong_reference_stops_the_build(tmp_path, wrong):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(f"# One\n\n{wrong}\n")
    done = build(tmp_path / "out", tmp_path / "docs")
    assert done.returncode != 0
    assert re.search("nowhere.md|jaxformer.nothing", done.stderr)
