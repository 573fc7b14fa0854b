"""The parts of the page with plots: error over depth and position, attention heads, training."""

import math

from jaxformer.parity.numerics.metrics import TOLERANCES, Error
from jaxformer.parity.report.charts import depth, heat_strips, position_words, positions, training_curves
from jaxformer.parity.report.data import ReportData, Step
from jaxformer.parity.report.format import count, figure, rank, worst_step
from jaxformer.parity.report.html_elements import Markup, code, legend, scrolling, section, tag, together
from jaxformer.parity.report.html_table import call_words

DEPTH_LEGEND = legend(
    ("normal", "in the normal run"),
    ("own", "the module alone"),
    ("diverging", "diverging"),
    ("noise", "what counts as equal"),
)


def error_over_depth(report: ReportData) -> Markup:
    """The forward pass."""
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
    """The backward pass, which goes from the last call to the first."""
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
    """One figure for each module that has positions; the script shows the chosen one."""
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
    """Every attention module with figures of its heads."""
    having = [module for module in report.modules if module.heads]
    if not having:
        return Markup()
    says = "relL2 of what each head computes from torch's values; the coloured ones are over the tolerance."
    strips = scrolling("Attention heads", heat_strips(having, report.tolerance))
    return section("heads", "Attention heads", tag("p", says, class_="quiet"), strips)


def training(report: ReportData) -> Markup:
    """Loss and errors over steps."""
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
    """Where both sides differ most."""
    worst, lost = worst_step(steps), sum(not math.isfinite(step.loss) for step in steps)
    errors = f"loss {figure(worst.loss_error)}, parameters {figure(worst.parameter_error)}"
    says = f"Largest difference at step {worst.number:,}: {errors}."
    return f"{says} torch's loss is not finite at {count(lost, 'step')}." if lost else says


def plot(name: str, chart: Markup) -> Markup:
    """A plot of calls, and the text in which the script names the call that one points at."""
    label = "Plot of calls; arrow keys go from call to call"
    return together(scrolling(label, chart, class_="plot calls"), tag("output", "", id=f"{name}-says", class_="says"))


def peak(error: Error | None) -> float | None:
    """A gradient's max/rms."""
    return error.peak if error else None
