"""The table of all modules: a row a call, in torch's order, sortable by the script."""

import math

from jaxformer.parity.numerics.metrics import Error
from jaxformer.parity.report.data import Module, ReportData
from jaxformer.parity.report.format import figure
from jaxformer.parity.report.html_elements import Markup, breakable, code, tag


def modules_table(report: ReportData) -> Markup:
    """Forward errors as relL2, gradients as max/rms; columns of gradients only where there are some."""
    backward = any(module.gradient or module.local_gradient for module in report.modules)
    numbers = ["propagated", "local", *(["gradient", "local gradient"] if backward else [])]
    titles = [
        ("call", "number"),
        ("module", "text"),
        *((name, "number") for name in numbers),
        ("cause", "text"),
        ("where", "text"),
    ]
    header = [heading(name, kind, sort="ascending" if name == "call" else None) for name, kind in titles]
    rows = [row(i, module, wheres(report, module), backward) for i, module in enumerate(report.modules)]
    return tag("table", tag("thead", tag("tr", *header)), tag("tbody", *rows), class_="modules")


def heading(name: str, kind: str, *, sort: str | None) -> Markup:
    """Figures start with the largest, texts and the number of the call with the first."""
    first = "descending" if kind == "number" and name != "call" else "ascending"
    return tag("th", tag("button", name, type="button"), scope="col", class_=kind, data_first=first, aria_sort=sort)


def wheres(report: ReportData, module: Module) -> str:
    """Where a diverging module differs; for the others, where their largest error is."""
    return ", ".join(found.where for found in report.findings(module)) if module.diverging else module.what


def row(number: int, module: Module, where: str, backward: bool) -> Markup:
    """One call."""
    mark = tag("strong", " diverging", class_="mark") if module.diverging else Markup()
    gradients = (error_cell(module.gradient, "peak"), error_cell(module.local_gradient, "peak")) if backward else ()
    return tag(
        "tr",
        tag("td", str(number), class_="number", data_value=str(number)),
        tag(
            "th",
            code(module.name),
            mark,
            tag("span", breakable(module.torch), class_="torch"),
            scope="row",
            data_value=module.name,
        ),
        error_cell(module.propagated, "relative"),
        error_cell(module.local, "relative"),
        *gradients,
        tag("td", module.cause, class_="why", data_value=module.cause),
        tag("td", where, class_="where", data_value=where),
        id=f"call-{number}",
        class_="diverging" if module.diverging else None,
    )


def error_cell(error: Error | None, measure: str) -> Markup:
    """The measure that counts; the other one on hover."""
    if error is None:
        return tag("td", class_="number", data_value="")
    value = error.relative if measure == "relative" else error.peak
    both = f"relL2 {figure(error.relative)}, max/rms {figure(error.peak)}"
    return tag("td", figure(value), class_="number", data_value=for_script(value), title=both)


def for_script(value: float) -> str:
    """A float as the script's Number() reads it."""
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"


def call_words(module: Module) -> str:
    """All figures of a module in a line."""
    says = f"{module.name}: propagated {figure(module.propagated.relative)}, local {figure(module.local.relative)}"
    if module.gradient:
        says += f", gradient {figure(module.gradient.peak)}"
    if module.local_gradient:
        says += f", local gradient {figure(module.local_gradient.peak)}"
    return says + (f" · diverging{': ' + module.cause if module.cause else ''}" if module.diverging else "")
