"""A report as one HTML page that needs nothing else: no network, no other file."""

import base64
import hashlib
import math
from importlib import resources

from jaxformer.parity.numerics.metrics import TOLERANCES
from jaxformer.parity.report.charts import course, depth, heat_strips, position_words, positions
from jaxformer.parity.report.format import count, figure, name_of, rank, worst_step
from jaxformer.parity.report.html_elements import Markup, code, tag, together
from jaxformer.parity.report.html_table import call_words, modules_table
from jaxformer.parity.report.report import Error, Finding, Group, Report, Step

SHOWN = 8
"""So many diverging modules are told of at once."""


def page(report: Report) -> str:
    """The whole page."""
    body = together(
        verdict(report),
        reasons(report),
        checks(report),
        error_over_depth(report),
        gradient_over_depth(report),
        error_over_position(report),
        heads(report),
        training(report),
        all_modules(report),
        taps(report),
        not_noticed(report),
        environment(report),
        traceback(report),
    )
    script = resource("html.js")
    html = tag("html", head(report.verdict, script), tag("body", tag("main", body), tag("script", Markup(script))), lang="en")
    return f"<!doctype html>\n{html}\n"


def head(title: str, script: str) -> Markup:
    """The page may load nothing, and run nothing but its own script."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Markup(resource("html.css"))),
        tag("noscript", tag("style", Markup(resource("noscript.css")))),
    )


def resource(name: str) -> str:
    """A file that lies beside this one."""
    return resources.files(__package__ or "").joinpath(name).read_text("utf-8").strip()


def verdict(report: Report) -> Markup:
    """The answer, and the figures behind it."""
    word, _, rest = report.verdict.partition(": ")
    output = next((module for module in report.modules if not module.jax), None)
    facts = [f"tier {report.tier}", f"relL2 up to {report.line:.0e} is equal"]
    if report.modules:
        facts += [count(len(report.modules), "module call"), f"{len(report.diverging)} diverging"]
    if output:
        facts.append(f"output off by {figure(output.propagated.relative)}")
    if report.steps:
        facts.append(count(len(report.steps), "training step"))
    return tag(
        "header",
        tag("p", "PyTorch against JAX", class_="eyebrow"),
        tag("h1", tag("span", word, class_="word"), tag("span", ": ", class_="hidden"), tag("span", rest, class_="rest")),
        tag("ul", *(tag("li", fact) for fact in facts), class_="facts"),
        id="verdict",
        class_=report.status,
    )


def reasons(report: Report) -> Markup:
    """Every diverging module, where it is off, and why; layers alike once."""
    told = [reason(report, group) for group in report.groups(report.diverging)]
    rest = told[SHOWN:]
    more = tag("details", tag("summary", f"{len(rest)} more"), *rest) if rest else Markup()
    return section("causes", "What differs", *told[:SHOWN], more) if told else Markup()


def reason(report: Report, group: Group) -> Markup:
    """One module in words, or the first of those alike."""
    module = group.first
    cause = module.cause or "No known formula explains it."
    return tag(
        "article",
        tag("h3", code(group.name), tag("span", f" torch: {module.torch}", class_="quiet")),
        tag("p", cause, class_="cause" if module.cause else "cause quiet"),
        *(tag("p", finding_words(finding), class_="quiet") for finding in report.findings(module)),
        class_="reason",
    )


def finding_words(finding: Finding) -> str:
    """What is off, given what, and by how much."""
    by = f"is off by {finding.measure} {figure(finding.error)}; up to {finding.line:.0e} counts as equal."
    if finding.where == "gradient":
        return f"Given torch's own values and gradients, the gradient that it sends back {by}"
    what = "its output" if finding.where == "output" else f"the {finding.where} that it makes"
    return f"Given torch's own inputs, {what} {by}"


def checks(report: Report) -> Markup:
    """The stages."""
    rows = [
        tag(
            "tr",
            tag("th", stage.name, scope="row"),
            tag("td", tag("span", stage.status, class_=f"status {stage.status}")),
            tag("td", stage.says),
        )
        for stage in report.stages
    ]
    return (
        section("checks", "Checks", scrolling("Checks", tag("table", tag("tbody", *rows), class_="plain")))
        if rows
        else Markup()
    )


def error_over_depth(report: Report) -> Markup:
    """The forward pass."""
    if not report.modules:
        return Markup()
    chart = depth(
        report.modules,
        report.line,
        label=f"Error of each module in torch's call order; {len(report.diverging)} of {len(report.modules)} diverging",
        normal=lambda module: module.propagated.relative,
        own=lambda module: module.local.relative,
        says=call_words,
    )
    says = "Along the normal run an error spreads; a module's own error is what it makes of torch's values."
    return section("depth", "Error over depth", tag("p", says, class_="quiet"), DEPTH_LEGEND, plot("depth", chart))


def gradient_over_depth(report: Report) -> Markup:
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
    says = "As max/rms. Gradients come from the last call to the first: read it from right to left."
    return section(
        "gradients", "Gradient error over depth", tag("p", says, class_="quiet"), DEPTH_LEGEND, plot("gradients", chart)
    )


def error_over_position(report: Report) -> Markup:
    """One figure for each module that has positions; the script shows the chosen one."""
    having = [module for module in report.modules if module.positions]
    if not having:
        return Markup()
    chosen = max(having, key=lambda module: (module.diverging, rank(module.propagated.relative) > report.line))
    options, figures = [], []
    for i, module in enumerate(having):
        mark = " (diverging)" if module.diverging else ""
        options.append(tag("option", f"{name_of(module)}{mark}", value=f"position-{i}", selected=module is chosen))
        figures.append(
            tag(
                "figure",
                tag("figcaption", code(name_of(module)), " ", position_words(module, report.line)),
                scrolling(f"Error of {name_of(module)} over position", positions(module, report.line), class_="plot"),
                id=f"position-{i}",
                hidden=module is not chosen,
            )
        )
    choice = tag("label", "Module ", tag("select", *options, id="position-module"), class_="choice")
    return section("positions", "Error over position", choice, *figures)


def heads(report: Report) -> Markup:
    """Every attention whose heads are seen."""
    having = [module for module in report.modules if module.heads]
    if not having:
        return Markup()
    says = "relL2 of what each head gathers, given torch's values, or of what it attends by; what is coloured is over the line."
    strips = scrolling("Attention heads", heat_strips(having, report.line))
    return section("heads", "Attention heads", tag("p", says, class_="quiet"), strips)


def training(report: Report) -> Markup:
    """Loss and errors over steps."""
    if not report.steps:
        return Markup()
    loss, errors = course(report.steps)
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
    """Where both sides are furthest apart."""
    worst, lost = worst_step(steps), sum(not math.isfinite(step.loss) for step in steps)
    says = (
        f"Furthest off at step {worst.number:,}: loss {figure(worst.loss_error)}, parameters {figure(worst.parameter_error)}."
    )
    return f"{says} torch's loss is not finite at {count(lost, 'step')}." if lost else says


def all_modules(report: Report) -> Markup:
    """The table, and its filter, which needs no script."""
    if not report.modules:
        return Markup()
    box = tag("input", type="checkbox", id="diverging-only")
    filtering = (
        (box, tag("label", f"diverging only ({len(report.diverging)})", for_="diverging-only")) if report.diverging else ()
    )
    table = scrolling("All modules", modules_table(report), class_="tall")
    return section(
        "modules", "Modules", *filtering, table, uncompared("JAX", report.jax_only), uncompared("torch", report.torch_only)
    )


def uncompared(side: str, names: list[str]) -> Markup:
    """Calls that have no pair."""
    if not names:
        return Markup()
    items = [tag("li", code(name)) for name in names]
    title = f"{count(len(names), 'call')} of {side} not compared by {'itself' if len(names) == 1 else 'themselves'}"
    return tag("details", tag("summary", title), tag("ul", *items))


def taps(report: Report) -> Markup:
    """What was meant to be compared, and was not."""
    items = [tag("li", text) for text in report.taps]
    says = "torch has nothing that was found to be the same."
    return section("taps", "Taps not compared", tag("p", says, class_="quiet"), tag("ul", *items)) if items else Markup()


def not_noticed(report: Report) -> Markup:
    """What a bug could hide in."""
    items = [tag("li", text) for text in report.not_covered]
    says = "Whatever these do, this run gives the same: a difference in them would not show."
    return (
        section("not_covered", "Not noticed by this run", tag("p", says, class_="quiet"), tag("ul", *items))
        if items
        else Markup()
    )


def environment(report: Report) -> Markup:
    """Versions, device, precision."""
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in report.environment.items()]
    return section("environment", "Environment", tag("table", tag("tbody", *rows), class_="plain")) if rows else Markup()


def traceback(report: Report) -> Markup:
    """Of what ended the comparison."""
    text = scrolling("Traceback", tag("pre", report.traceback))
    return tag("details", tag("summary", "Traceback"), text, id="traceback") if report.traceback else Markup()


def section(name: str, title: str, *children: str) -> Markup:
    """With a heading."""
    return tag("section", tag("h2", title, id=f"{name}-title"), *children, id=name, aria_labelledby=f"{name}-title")


def scrolling(label: str, child: Markup, *, class_: str = "") -> Markup:
    """What may be wider than the page is moved sideways, by keys too."""
    return tag("div", child, class_=f"scroll {class_}".strip(), tabindex="0", role="region", aria_label=label)


def plot(name: str, chart: Markup) -> Markup:
    """A plot of calls, and the line in which the script says what one points at."""
    label = "Plot of calls; arrow keys go from call to call"
    return together(scrolling(label, chart, class_="plot calls"), tag("output", "", id=f"{name}-says", class_="says"))


def legend(*entries: tuple[str, str]) -> Markup:
    """What the colours are."""
    return tag("p", *(tag("span", text, class_=f"key {kind}") for kind, text in entries), class_="legend")


DEPTH_LEGEND = legend(
    ("normal", "along the normal run"),
    ("own", "the module's own"),
    ("diverging", "diverging"),
    ("noise", "what counts as equal"),
)


def peak(error: Error | None) -> float | None:
    """A gradient's figure."""
    return error.peak if error else None
