"""Parts of the HTML report: the table of all modules, and the plots of errors, attention heads and training."""

import math

from jaxformer.io.html_elements import Markup, breakable, code, legend, scrolling, section, tag, together
from jaxformer.parity.numerics.metrics import TOLERANCES, Error
from jaxformer.parity.report.charts import depth, heat_strips, position_words, positions, training_curves
from jaxformer.parity.report.data import Module, ReportData, Step
from jaxformer.parity.report.text import count, figure, rank, worst_step


def modules_table(report: ReportData) -> Markup:
    """Render the table of module calls: forward errors as relL2, gradients as max/rms, with gradient columns only if there are
    gradients."""
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
    """Render a sortable column heading: figures sort largest first, texts and call numbers smallest first."""
    first = "descending" if kind == "number" and name != "call" else "ascending"
    return tag("th", tag("button", name, type="button"), scope="col", class_=kind, data_first=first, aria_sort=sort)


def wheres(report: ReportData, module: Module) -> str:
    """Return the places where a diverging module differs; for another module, the place of its largest error."""
    return ", ".join(found.where for found in report.findings(module)) if module.diverging else module.what


def row(number: int, module: Module, where: str, backward: bool) -> Markup:
    """Render the table row of one call."""
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
    """Render one error measure; both measures are in the tooltip."""
    if error is None:
        return tag("td", class_="number", data_value="")
    value = error.relative if measure == "relative" else error.peak
    both = f"relL2 {figure(error.relative)}, max/rms {figure(error.peak)}"
    return tag("td", figure(value), class_="number", data_value=for_script(value), title=both)


def for_script(value: float) -> str:
    """Format a float so that JavaScript's Number() reads it."""
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"


def call_words(module: Module) -> str:
    """Describe all errors of a module in one line."""
    says = f"{module.name}: propagated {figure(module.propagated.relative)}, local {figure(module.local.relative)}"
    if module.gradient:
        says += f", gradient {figure(module.gradient.peak)}"
    if module.local_gradient:
        says += f", local gradient {figure(module.local_gradient.peak)}"
    return says + (f" · diverging{': ' + module.cause if module.cause else ''}" if module.diverging else "")


DEPTH_LEGEND = legend(
    ("normal", "in the normal run"),
    ("own", "the module alone"),
    ("diverging", "diverging"),
    ("noise", "what counts as equal"),
)


def error_over_depth(report: ReportData) -> Markup:
    """Render the errors of the forward pass over depth."""
    if not report.modules:
        return Markup()
    chart = depth(
        report.modules,
        report.tolerance,
        label=f"Error of each module in torch's call order; {len(report.diverging)} of {len(report.modules)} diverge",
        normal=lambda module: module.propagated.relative,
        own=lambda module: module.local.relative,
        says=call_words,
    )
    says = "In the normal run an error spreads to later modules. A module alone is given torch's values: its error is its own."
    return section("depth", "Error over depth", tag("p", says, class_="quiet"), DEPTH_LEGEND, plot("depth", chart))


def gradient_over_depth(report: ReportData) -> Markup:
    """Render the errors of the backward pass, which goes from the last call to the first."""
    if not any(module.gradient or module.local_gradient for module in report.modules):
        return Markup()
    chart = depth(
        report.modules,
        TOLERANCES["gradient"][1],
        label="Error of the gradient of each module in torch's call order",
        normal=lambda module: peak(module.gradient),
        own=lambda module: peak(module.local_gradient),
        says=call_words,
    )
    says = "As max/rms. Gradients go from the last call to the first: read it from right to left."
    return section(
        "gradients", "Gradient error over depth", tag("p", says, class_="quiet"), DEPTH_LEGEND, plot("gradients", chart)
    )


def error_over_position(report: ReportData) -> Markup:
    """Render a figure for each module that has positions; the script shows the chosen one."""
    having = [module for module in report.modules if module.positions]
    if not having:
        return Markup()
    chosen = max(having, key=lambda module: (module.diverging, rank(module.propagated.relative) > report.tolerance))
    options, figures = [], []
    for i, module in enumerate(having):
        mark = " (diverging)" if module.diverging else ""
        options.append(tag("option", f"{module.name}{mark}", value=f"position-{i}", selected=module is chosen))
        figures.append(
            tag(
                "figure",
                tag("figcaption", code(module.name), " ", position_words(module, report.tolerance)),
                scrolling(f"Error of {module.name} over position", positions(module, report.tolerance), class_="plot"),
                id=f"position-{i}",
                hidden=module is not chosen,
            )
        )
    choice = tag("label", "Module ", tag("select", *options, id="position-module"), class_="choice")
    return section("positions", "Error over position", choice, *figures)


def heads(report: ReportData) -> Markup:
    """Render a heat strip for each attention module that has errors per head."""
    having = [module for module in report.modules if module.heads]
    if not having:
        return Markup()
    says = "relL2 of what each head computes from torch's values; the coloured ones are over the tolerance."
    strips = scrolling("Attention heads", heat_strips(having, report.tolerance))
    return section("heads", "Attention heads", tag("p", says, class_="quiet"), strips)


def training(report: ReportData) -> Markup:
    """Render loss and errors over training steps."""
    if not report.steps:
        return Markup()
    loss, errors = training_curves(report.steps)
    return section(
        "training",
        "Training",
        tag("p", training_words(report.steps), class_="quiet"),
        legend(("loss", "torch's loss")),
        scrolling("Loss over steps", loss, class_="plot"),
        legend(("normal", "JAX's loss, relative error"), ("parameters", "parameters, max/rms")),
        scrolling("Errors over steps", errors, class_="plot"),
    )


def training_words(steps: list[Step]) -> str:
    """Describe the step at which both sides differ most."""
    worst, lost = worst_step(steps), sum(not math.isfinite(step.loss) for step in steps)
    errors = f"loss {figure(worst.loss_error)}, parameters {figure(worst.parameter_error)}"
    says = f"Largest difference at step {worst.number:,}: {errors}."
    return f"{says} torch's loss is not finite at {count(lost, 'step')}." if lost else says


def plot(name: str, chart: Markup) -> Markup:
    """Wrap a plot of calls with the text element in which the script shows the call under the pointer."""
    label = "Plot of calls; arrow keys go from call to call"
    return together(scrolling(label, chart, class_="plot calls"), tag("output", "", id=f"{name}-says", class_="says"))


def peak(error: Error | None) -> float | None:
    """Return the max/rms of a gradient; None if there is none."""
    return error.peak if error else None
