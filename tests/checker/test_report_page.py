"""The page of a report: whole without a script, and in a real browser, which it asks for nothing."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from jaxformer.io.html_elements import Markup, tag
from jaxformer.parity.report.charts import LogAxis
from tests.browser import asked
from tests.reports import EPSILON, REPORTS, different, equal, infinite, trained


class Reader(HTMLParser):
    """The elements of a page; every one has to be closed."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.found if tag == name]


@pytest.mark.parametrize("name", REPORTS)
def test_the_page_is_whole_and_asks_for_nothing(name):
    page = Reader(REPORTS[name]().to_html())
    assert page.open == []
    assert len(page.all("script")) == 1
    assert page.all("script")[0] == {}
    links = [
        value for _, attributes in page.found for key, value in attributes.items() if key in ("src", "href", "action", "data")
    ]
    assert [link for link in links if not re.fullmatch(r"#call-\d+|data:,", link or "")] == []
    assert not {"img", "iframe", "object", "form"} & {tag for tag, _ in page.found}
    assert "url(" not in REPORTS[name]().to_html()


@pytest.mark.parametrize("name", REPORTS)
def test_every_drawn_number_is_a_number(name):
    for tag_name, attributes in Reader(REPORTS[name]().to_html()).found:
        drawn = " ".join(
            attributes.get(key) or "" for key in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height", "d")
        )
        assert not re.search("nan|inf", drawn), (tag_name, drawn)


def test_text_is_escaped_wherever_it_stands():
    assert tag("p", "<b>", Markup("<i>"), title='"') == '<p title="&quot;">&lt;b&gt;<i></p>'
    page = Reader(infinite().to_html())
    assert "alert(1)" not in [text.strip() for text in page.texts]
    assert any("<script>alert(1)</script>|x" in text for text in page.texts)


def test_the_page_needs_no_script_to_be_read():
    page = equal().to_html()
    assert "<noscript><style>#positions figure[hidden]" in page
    assert len(Reader(different().to_html()).all("figure")) == sum(bool(module.positions) for module in different().modules)


def test_heights_keep_their_order():
    axis = LogAxis.over([0.0, 3e-16, 1e-13, 2.0, float("inf")], top=0.0, bottom=100.0)
    heights = [axis.y(value) for value in (0.0, 1e-300, 3e-16, 1e-13, 2.0, 1e300, float("inf"))]
    assert heights == sorted(heights, reverse=True)
    assert len({*heights}) == 7
    assert axis.y(float("nan")) == axis.y(float("inf")) == 0.0
    assert axis.y(0.0) == 100.0


@pytest.mark.parametrize("tolerance", [0.0, 1.0, 1e-300])
def test_any_tolerance_can_be_drawn(tolerance):
    assert Reader(replace(infinite(), tolerance=tolerance).to_html()).open == []


WHOLE = "return document.readyState === 'complete' && document.URL === arguments[0]"


@pytest.fixture
def opened(chrome: webdriver.Chrome, tmp_path: Path) -> Iterator[Callable[[str], webdriver.Chrome]]:
    """opened(name) -> the browser with that report's page; at the end nothing was complained of, and nothing asked for."""
    address = (tmp_path / "report.html").as_uri()

    def show(name: str) -> webdriver.Chrome:
        (tmp_path / "report.html").write_text(REPORTS[name]().to_html(), "utf-8")
        chrome.get(address)
        WebDriverWait(chrome, 60).until(lambda _: chrome.execute_script(WHOLE, address))  # a busy machine is not there yet
        return chrome

    yield show
    assert chrome.get_log("browser") == []
    assert asked(chrome) == {address}


def column(chrome: webdriver.Chrome, name: str) -> list[str]:
    """The cells of a column of the modules' table, as they stand."""
    return chrome.execute_script(VISIBLE, name)


VISIBLE = """
const names = [...document.querySelectorAll(".modules thead button")].map((button) => button.textContent);
const rows = [...document.querySelectorAll(".modules tbody tr")].filter((row) => row.offsetParent !== null);
return rows.map((row) => row.cells[names.indexOf(arguments[0])].innerText.split("\\n")[0]);
"""


def heading(chrome: webdriver.Chrome, name: str) -> WebElement:
    return chrome.find_element(By.XPATH, f"//table[@class='modules']//th/button[text()='{name}']")


def test_the_verdict_comes_first(opened):
    for name, word in (("different", "DIFFERENT"), ("equal", "EQUAL"), ("failed", "COULD NOT COMPARE")):
        chrome = opened(name)
        assert chrome.title == REPORTS[name]().verdict
        head = chrome.find_element(By.CSS_SELECTOR, "h1")
        assert head.get_attribute("textContent") == REPORTS[name]().verdict
        assert head.find_element(By.CLASS_NAME, "word").text == word
    assert not chrome.find_elements(By.TAG_NAME, "svg")


def test_the_cause_is_told_in_words(opened):
    chrome = opened("different")
    first, second = chrome.find_elements(By.CLASS_NAME, "reason")
    assert first.text.splitlines() == [
        "stack.blocks.1.attention_norm torch: torch.stack.blocks.1.attention_norm",
        EPSILON,
        "Given torch's own inputs, its output differs by relL2 1.7e-04; up to 1e-13 counts as equal.",
    ]
    assert "No known formula explains it." in second.text
    chrome = opened("backward")
    says = "the gradient that it sends back differs by max/rms 3.1e-03; up to 1e-12 counts as equal."
    assert says in chrome.find_element(By.CLASS_NAME, "reason").text
    assert len(chrome.find_elements(By.CSS_SELECTOR, "#gradients .call.diverging")) == 1
    assert len(chrome.find_elements(By.CSS_SELECTOR, "#depth .call.diverging")) == 0


def test_a_click_on_a_heading_sorts_by_size(opened):
    chrome = opened("infinite")
    report = infinite()
    by_call = [module.jax or "the model" for module in report.modules]
    assert [name.removesuffix(" diverging") for name in column(chrome, "module")] == by_call
    heading(chrome, "propagated").click()
    falling = sorted(report.modules, key=lambda module: -module.propagated.relative)
    assert [name.removesuffix(" diverging") for name in column(chrome, "module")] == [
        module.jax or "the model" for module in falling
    ]
    figures = column(chrome, "propagated")
    assert figures[0] == "inf"
    assert figures[1] == "2.2e-04"
    assert figures[-1] == "0"
    assert [float(figure) for figure in figures] == sorted(map(float, figures), reverse=True)
    assert figures != sorted(figures, reverse=True)  # by size, not by letters
    heading(chrome, "propagated").send_keys(Keys.ENTER)
    assert column(chrome, "propagated") == figures[::-1]
    assert heading(chrome, "propagated").find_element(By.XPATH, "..").get_attribute("aria-sort") == "ascending"
    assert len(chrome.find_elements(By.CSS_SELECTOR, "[aria-sort]")) == 1


def test_names_are_sorted_by_their_numbers_and_causes_before_none(opened):
    chrome = opened("different")
    heading(chrome, "module").click()
    blocks = [int(match[1]) for name in column(chrome, "module") if (match := re.search(r"blocks\.(\d+)", name))]
    assert blocks == sorted(blocks)
    assert blocks[-1] == 11
    for _ in range(2):
        heading(chrome, "cause").click()
        assert column(chrome, "cause")[0] == EPSILON
    heading(chrome, "call").click()
    assert column(chrome, "call") == [str(i) for i in range(len(different().modules))]


def test_gradients_that_are_missing_come_last(opened):
    chrome = opened("backward")
    heading(chrome, "local gradient").click()
    assert column(chrome, "module")[0] == "stack.blocks.2.attention.query diverging"
    assert column(chrome, "where")[0] == "gradient"


def test_diverging_only(opened):
    chrome = opened("different")
    assert len(column(chrome, "module")) == len(different().modules)
    chrome.find_element(By.CSS_SELECTOR, "label[for=diverging-only]").click()
    diverging = ["stack.blocks.1.attention_norm diverging", "stack.blocks.10.attention diverging"]
    assert column(chrome, "module") == diverging
    heading(chrome, "local").click()
    assert column(chrome, "module") == diverging[::-1]
    chrome.execute_script("location.hash = '#call-3'")
    assert len(column(chrome, "module")) == len(different().modules)
    assert not opened("equal").find_elements(By.ID, "diverging-only")


@pytest.mark.slow
def test_positions_of_another_module(opened):
    chrome = opened("different")
    choice = Select(chrome.find_element(By.ID, "position-module"))
    assert choice.first_selected_option.text == "stack.blocks.1.attention_norm (diverging)"
    assert shown_figures(chrome) == [
        "stack.blocks.1.attention_norm Largest 5.4e-07 at position 65; "
        "61 of 66 positions are over the tolerance, first position 5."
    ]
    choice.select_by_visible_text("stack.blocks.0.attention")
    assert shown_figures(chrome) == [
        "stack.blocks.0.attention Largest 1.0e-16 at position 0; all 66 positions are within the tolerance."
    ]


def shown_figures(chrome: webdriver.Chrome) -> list[str]:
    """What is said above each plot of positions that can be seen."""
    return [figure.text for figure in chrome.find_elements(By.TAG_NAME, "figcaption") if figure.is_displayed()]


def test_the_plot_says_what_one_points_at(opened):
    chrome = opened("different")
    says = chrome.find_element(By.ID, "depth-says")
    assert says.text.startswith("stack.blocks.1.attention_norm: propagated 3.3e-07, local 1.7e-04 · diverging")
    webdriver.ActionChains(chrome).move_to_element(chrome.find_elements(By.CSS_SELECTOR, "#depth .call")[3]).perform()
    assert says.text == "stack.blocks.0.attention: propagated 3.0e-16, local 3.0e-16"
    plot = chrome.find_element(By.CSS_SELECTOR, "#depth .plot")
    plot.send_keys(Keys.ARROW_RIGHT)
    assert says.text.startswith("stack.blocks.0.feed_forward_norm: ")
    plot.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ENTER)
    assert says.text.startswith("stack.blocks.0.attention.query: ")
    assert chrome.current_url.endswith("#call-2")


def test_heads_are_hotter_where_they_are_worse(opened):
    chrome = opened("different")
    cells = chrome.find_elements(By.CSS_SELECTOR, ".strips tbody tr:nth-child(2) td")
    assert [cell.text for cell in cells] == ["2.0e-16", "0", "3.1e-04", "8.0e-09"]
    within, zero, worst, bad = (cell.value_of_css_property("background-color") for cell in cells)
    assert len({within, worst, bad}) == 3
    assert within == zero


def test_training(opened):
    chrome = opened("trained")
    says = chrome.find_element(By.ID, "training").text
    assert "Largest difference at step 17: loss 4.4e-09, parameters 5.1e-15." in says
    assert len(chrome.find_elements(By.CSS_SELECTOR, "#training svg path")) == 3
    assert len(trained().steps) == 40


def test_what_was_not_covered_and_what_it_ran_on(opened):
    chrome = opened("different")
    assert "rope" in chrome.find_element(By.ID, "taps").text
    assert "stack.*.attention.key.bias" in chrome.find_element(By.ID, "not_covered").text
    assert "jax highest, torch highest" in chrome.find_element(By.ID, "environment").text
    closed = chrome.find_elements(By.CSS_SELECTOR, "#modules summary")
    assert [summary.text for summary in closed] == [
        "1 call of JAX not compared by itself",
        "2 calls of torch not compared by themselves",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_both_schemes(opened, scheme):
    chrome = opened("infinite")
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    size = {"width": 360, "height": 780, "deviceScaleFactor": 1, "mobile": True}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= 360
    paper = chrome.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) > 380) == (scheme == "light")
    chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_foreign_script_does_not_run(opened):
    chrome = opened("infinite")
    chrome.find_element(By.ID, "depth-says")
    assert chrome.execute_script("return document.scripts.length") == 1
    assert "<script>alert(1)</script>|x" in chrome.find_element(By.CSS_SELECTOR, "h1").text


def test_whatever_slips_in_is_neither_run_nor_loaded(chrome, tmp_path):
    slipped = "<script>document.title = 'run'</script><img src='http://127.0.0.1:9/x.png'></body>"
    path = tmp_path / "slipped.html"
    path.write_text(equal().to_html().replace("</body>", slipped), "utf-8")
    chrome.get(path.as_uri())
    chrome.get_log("performance")
    assert chrome.title == equal().verdict
    refused = [entry["message"] for entry in chrome.get_log("browser")]
    assert len(refused) == 2
    assert all("Content Security Policy" in message for message in refused)
