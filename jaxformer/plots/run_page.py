"""HTML page of a run: one self-contained file that asks for nothing, readable in light and dark."""

import base64
from collections.abc import Mapping
from itertools import takewhile

from jaxformer.io.html_elements import Markup, code, legend, scrolling, section, tag
from jaxformer.parity.report.html import head
from jaxformer.parity.report.overlay import Curve, overlay
from jaxformer.plots.losses import WORDS
from jaxformer.plots.run_report import RunReport, Sample

LAST = "last_spike", "last_skipped"
"""Measures that are steps themselves, and no curves."""
SMALLEST, PNG_WIDTH = 0.75, slice(16, 20)
"""Least width of a picture beside its own, so that its labels can be read, and the bytes of a PNG that are its own width."""
COLOURS = dict(zip(WORDS, ("loss", "normal", "parameters"), strict=True))
"""Measure -> kind of its curve."""
LAYOUT = """
#verdict { --mood: var(--normal); }
img { background: white; width: 100%; }
@media (max-width: 40rem) {
  figure .scroll { overflow: visible; }
  figure svg { min-width: 0 !important; overflow: visible; font-size: 18px; }
  img { min-width: 0 !important; }
}
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0 .6rem; }
dt { color: var(--quiet); font-size: .875rem; }
dd { margin: 0; }
"""


def page(report: RunReport) -> str:
    """Render the whole page."""
    body = tag(
        "main",
        tag("style", Markup(LAYOUT)),
        header(report),
        curves(report),
        samples(report.samples),
        attention(report.attention),
        table("settings", "Settings", report.settings),
        table("environment", "Environment", report.environment),
        section("certificate", "Certificate", tag("p", report.certificate)),
    )
    return f"<!doctype html>\n{tag('html', head(f'{report.name}: {report.state}', ''), tag('body', body), lang='en')}\n"


def header(report: RunReport) -> Markup:
    """Render the name of the run, how far it came, its figures, and what is not shown."""
    return tag(
        "header",
        tag("p", "A run of jaxformer", class_="eyebrow"),
        tag("h1", tag("span", report.name, class_="word"), tag("span", report.state, class_="rest")),
        tag("ul", *(tag("li", fact) for fact in report.facts), class_="facts"),
        *(tag("p", remark, class_="quiet") for remark in report.remarks),
        id="verdict",
    )


def curves(report: RunReport) -> Markup:
    """Render the losses in one plot, and each other measure in one of its own."""
    losses = {name: points for name, points in report.curves.items() if name in WORDS and points}
    others = {name: points for name, points in report.curves.items() if name not in (*WORDS, *LAST) and len(points) > 1}
    if not losses and not others:
        return section("curves", "Curves", tag("p", "Nothing is evaluated yet.", class_="quiet"))
    key = legend(*((COLOURS[name], WORDS[name]) for name in losses))
    drawn = [plot("losses", {COLOURS[name]: points for name, points in losses.items()})] if losses else []
    drawn += [plot(name.replace("_", " "), {"normal": points}) for name, points in others.items()]
    return section("curves", "Curves", key, *drawn)


def plot(name: str, lines: Mapping[str, Curve]) -> Markup:
    """Render curves over the steps with their name."""
    return tag("figure", tag("figcaption", f"{name} over steps"), scrolling(name, overlay(f"{name} over steps", lines)))


def samples(found: list[Sample]) -> Markup:
    """Render what the model writes."""
    if not found:
        return Markup()
    return section("samples", "What it writes", *(sample(each) for each in found))


def sample(found: Sample) -> Markup:
    """Render a text, what was written, and, where it is known, what was wanted and how far it is right."""
    parts = [tag("dt", "reads"), tag("dd", tag("pre", found.text)), tag("dt", "writes"), tag("dd", tag("pre", found.written))]
    if found.wanted is not None:
        same = len([*takewhile(lambda pair: pair[0] == pair[1], zip(found.written, found.wanted, strict=False))])
        word = "exact" if found.written == found.wanted else f"right up to symbol {same} of {len(found.wanted)}"
        parts += [tag("dt", f"wanted ({word})"), tag("dd", tag("pre", found.wanted))]
    return tag("dl", *parts)


def attention(pictures: Mapping[str, bytes]) -> Markup:
    """Render the pictures of the attention, folded but for the last: cross-attention, or a single stack's own."""
    if not pictures:
        return Markup()
    shown = []
    for number, (title, png) in enumerate(pictures.items(), start=1):
        source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
        least = f"min-width: {SMALLEST * int.from_bytes(png[PNG_WIDTH]):.0f}px"
        image = scrolling(title, tag("img", src=source, alt=f"Heat maps: {title}", style=least))
        shown.append(tag("details", tag("summary", title), image, open=number == len(pictures)))
    return section("attention", "Attention", *shown)


def table(name: str, title: str, rows: Mapping[str, str]) -> Markup:
    """Render names and values."""
    if not rows:
        return section(name, title, tag("p", "None was recorded.", class_="quiet"))
    lines = [tag("tr", tag("th", code(key), scope="row"), tag("td", value)) for key, value in rows.items()]
    return section(name, title, scrolling(title, tag("table", tag("tbody", *lines), class_="plain")))
