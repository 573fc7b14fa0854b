"""HTML report: one self-contained page that needs no network and no other file."""

import base64
import hashlib
from importlib import resources

from jaxformer.io.html_elements import Markup, code, scrolling, section, tag, together
from jaxformer.parity.report.data import Finding, Group, Module, ReportData
from jaxformer.parity.report.html_parts import (
    error_over_depth,
    error_over_position,
    gradient_over_depth,
    heads,
    modules_table,
    training,
)
from jaxformer.parity.report.text import count, figure
from jaxformer.parity.report.two_jax import worded_html

SHOWN = 8
"""Number of diverging modules shown at first; the others can be unfolded."""


def page(report: ReportData) -> str:
    """Render the whole page."""
    found = together(
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
        not_covered(report),
    )
    body = together(Markup(worded_html(found, report)), environment(report), traceback(report))
    script = resource("html.js")
    html = tag("html", head(report.verdict, script), tag("body", tag("main", body), tag("script", Markup(script))), lang="en")
    return f"<!doctype html>\n{html}\n"


def in_notebook(report: ReportData) -> str:
    """Render the verdict, the causes and the checks, in the colours of the notebook that shows them."""
    causes = [
        tag("li", code(group.name), f": {report.reason(group.first)}") for group in report.groups(report.diverging)[:SHOWN]
    ]
    rows = [
        tag("tr", tag("th", stage.name, scope="row"), tag("td", stage.status), tag("td", stage.says)) for stage in report.stages
    ]
    found = together(tag("p", tag("strong", report.verdict)), tag("ul", *causes), tag("table", tag("tbody", *rows)))
    return worded_html(found, report)


def head(title: str, script: str) -> Markup:
    """Render the head, whose content security policy lets the page load nothing and run only its own script."""
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
    """Read a file from this package."""
    return resources.files(__package__ or "").joinpath(name).read_text("utf-8").strip()


def verdict(report: ReportData) -> Markup:
    """Render the verdict and its key figures."""
    word, _, rest = report.verdict.partition(": ")
    output = next((module for module in report.modules if not module.jax), None)
    facts = [f"tier {report.tier}", f"relL2 up to {report.tolerance:.0e} counts as equal"]
    if report.modules:
        facts += [count(len(report.modules), "module call"), f"{len(report.diverging)} diverging"]
    if output:
        facts.append(f"output differs by {figure(output.propagated.relative)}")
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


def reasons(report: ReportData) -> Markup:
    """Render every diverging module with where and why it differs; similar layers are shown once."""
    told = [reason(report, group) for group in report.groups(report.diverging)]
    rest = told[SHOWN:]
    more = tag("details", tag("summary", f"{len(rest)} more"), *rest) if rest else Markup()
    return section("causes", "What differs", *told[:SHOWN], more) if told else Markup()


def reason(report: ReportData, group: Group) -> Markup:
    """Render one diverging module, or the first of a group."""
    module = group.first
    cause = module.cause or "No known formula explains it."
    return tag(
        "article",
        tag("h3", code(group.name), tag("span", f" torch: {module.torch}", class_="quiet")),
        tag("p", cause, class_="cause" if module.cause else "cause quiet"),
        *(tag("p", finding_words(finding, module), class_="quiet") for finding in report.findings(module)),
        class_="reason",
    )


def finding_words(finding: Finding, module: Module) -> str:
    """Describe an error of a module: the differing array, its inputs, and its size."""
    by = f"differs by {finding.measure} {figure(finding.error)}; up to {finding.tolerance:.0e} counts as equal."
    if finding.where == "gradient":
        return f"Given torch's own values and gradients, the gradient that it sends back {by}"
    what = "its output" if finding.where == "output" else f"the {finding.where} that it makes"
    own_mask = any(cause.args.get("unseen") for cause in module.causes)
    return f"Given torch's own inputs{', but for a mask of the port' * own_mask}, {what} {by}"


def checks(report: ReportData) -> Markup:
    """Render the table of checks."""
    rows = [
        tag(
            "tr",
            tag("th", stage.name, scope="row"),
            tag("td", tag("span", stage.status, class_=f"status {stage.status}")),
            tag("td", stage.says),
        )
        for stage in report.stages
    ]
    table = scrolling("Checks", tag("table", tag("tbody", *rows), class_="plain"))
    return section("checks", "Checks", table) if rows else Markup()


def all_modules(report: ReportData) -> Markup:
    """Render the table of all modules and its filter, which needs no script."""
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
    """Render the list of calls that have no counterpart on the other side."""
    if not names:
        return Markup()
    items = [tag("li", code(name)) for name in names]
    title = f"{count(len(names), 'call')} of {side} not compared by {'itself' if len(names) == 1 else 'themselves'}"
    return tag("details", tag("summary", title), tag("ul", *items))


def taps(report: ReportData) -> Markup:
    """Render the list of taps that were compared with nothing."""
    items = [tag("li", text) for text in report.taps]
    says = "No array of torch was found to be the same."
    return section("taps", "Taps not compared", tag("p", says, class_="quiet"), tag("ul", *items)) if items else Markup()


def not_covered(report: ReportData) -> Markup:
    """Render the list of what this run does not cover, where a bug could hide."""
    items = [tag("li", text) for text in report.not_covered]
    says = "These do not change the output on these inputs: a difference in them would not show."
    note = tag("p", says, class_="quiet")
    return section("not_covered", "Not covered by this run", note, tag("ul", *items)) if items else Markup()


def environment(report: ReportData) -> Markup:
    """Render the table of versions, device and precision."""
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in report.environment.items()]
    return section("environment", "Environment", tag("table", tag("tbody", *rows), class_="plain")) if rows else Markup()


def traceback(report: ReportData) -> Markup:
    """Render the traceback of the error that ended the comparison."""
    text = scrolling("Traceback", tag("pre", report.traceback))
    return tag("details", tag("summary", "Traceback"), text, id="traceback") if report.traceback else Markup()
