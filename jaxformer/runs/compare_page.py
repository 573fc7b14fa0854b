"""HTML page of two watched runs: losses and series of both in one plot each, with the first step of divergence."""

from jaxformer.io.html_elements import Markup, code, legend, scrolling, section, tag
from jaxformer.parity.report.html import head
from jaxformer.parity.report.overlay import Curve, overlay
from jaxformer.runs.compared import GROWTH, ROUNDING, Comparison
from jaxformer.runs.watched import quantity

SHOWN = 6
"""Number of diverging series that are shown at once; the others are in the section of their quantity."""
FIRST, SECOND = "normal", "parameters"
"""Colours of the two runs."""
RULE = (
    f"At each step that both runs watched, a series may differ by {ROUNDING:g} relative to the larger value, and by "
    f"{GROWTH:g} times the largest difference at the watched step before: rounding grows from step to step, and does not jump."
)


def page(comparison: Comparison) -> str:
    """Render the whole page, which needs no network and no other file."""
    body = tag("main", header(comparison), first(comparison), losses(comparison), differences(comparison), *every(comparison))
    return f"<!doctype html>\n{tag('html', head(comparison.verdict, ''), tag('body', body), lang='en')}\n"


def header(comparison: Comparison) -> Markup:
    """Render the verdict, the runs and the rule."""
    word, _, rest = comparison.verdict.partition(": ")
    runs = (comparison.first, FIRST), (comparison.second, SECOND)
    return tag(
        "header",
        tag("p", "Two watched runs", class_="eyebrow"),
        tag("h1", tag("span", word, class_="word"), tag("span", ": ", class_="hidden"), tag("span", rest, class_="rest")),
        tag("p", RULE, class_="quiet"),
        legend(*((kind, run.name) for run, kind in runs), ("diverging", "first step of divergence")),
        id="verdict",
        class_="equal" if comparison.divergence is None else "different",
    )


def first(comparison: Comparison) -> Markup:
    """Render the series that diverge first."""
    found = comparison.divergence
    shown = [] if found is None else found.over[:SHOWN]
    return section("first", "What parts first", *(plot(comparison, series) for series in shown)) if shown else Markup()


def losses(comparison: Comparison) -> Markup:
    """Render the losses of the steps and of the evaluations."""
    runs = comparison.first, comparison.second
    names = [name for name in comparison.first.losses if name in comparison.second.losses]
    figures = [figure(comparison, name, *(run.losses[name] for run in runs)) for name in names]
    if "loss" in comparison.series:
        figures.insert(0, plot(comparison, "loss", "loss of single steps"))
    return section("losses", "Losses", *figures) if figures else Markup()


def differences(comparison: Comparison) -> Markup:
    """Render the largest relative difference at each step, and what rounding explains."""
    largest = {each.step: max(each.largest, 1e-12) for each in comparison.differences}
    allowed = {each.step: min(each.allowed, 1.0) for each in comparison.differences}
    plotted = overlay("Largest relative difference over steps", {"loss": largest, "parameters": allowed}, marked(comparison))
    key = legend(("loss", "largest relative difference of a series"), ("parameters", "explained by rounding"))
    return section("differences", "How far the runs are apart", key, scrolling("Differences", plotted))


def every(comparison: Comparison) -> list[Markup]:
    """Render every series, folded by quantity."""
    groups: dict[str, list[str]] = {}
    for series in comparison.series:
        if "/" in series:
            groups.setdefault(quantity(series), []).append(series)
    return [
        tag("details", tag("summary", f"{name}: {len(found)} series"), *(plot(comparison, series) for series in found))
        for name, found in groups.items()
    ]


def plot(comparison: Comparison, series: str, label: str = "") -> Markup:
    """Render one series of both runs."""
    runs = comparison.first, comparison.second
    curves = [{step: row[series] for step, row in run.rows.items() if series in row} for run in runs]
    return figure(comparison, label or series, *curves)


def figure(comparison: Comparison, label: str, here: Curve, there: Curve) -> Markup:
    """Render two curves with their name."""
    plotted = overlay(f"{label} of both runs over steps", {FIRST: here, SECOND: there}, marked(comparison))
    return tag("figure", tag("figcaption", code(label)), scrolling(label, plotted))


def marked(comparison: Comparison) -> int | None:
    """Return the first step of divergence."""
    return None if comparison.divergence is None else comparison.divergence.step
