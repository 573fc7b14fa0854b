"""HTML and SVG elements. Strings that are not `Markup` are text, and are escaped."""

from html import escape


class Markup(str):
    """String of HTML that needs no escaping."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | bool | None) -> Markup:
    """Render <name attributes>children</name>; texts among the children are escaped.

    `class_` becomes class, `data_value` becomes data-value; True gives an attribute without a value, False and None are left
    out.
    """
    given = "".join(map(_attribute, attributes, attributes.values()))
    return Markup(f"<{name}{given}>{'' if name in VOID else f'{together(*children)}</{name}>'}")


def together(*children: str) -> Markup:
    """Concatenate elements and texts; texts are escaped."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))


def code(path: str) -> Markup:
    """Render a name as code."""
    return tag("code", breakable(path))


def breakable(path: str) -> Markup:
    """Render a name that may wrap after each dot."""
    first, *rest = path.split(".")
    return together(first, *(together(".", tag("wbr"), part) for part in rest))


def section(name: str, title: str, *children: str) -> Markup:
    """Render a section of the page with its heading."""
    return tag("section", tag("h2", title, id=f"{name}-title"), *children, id=name, aria_labelledby=f"{name}-title")


def scrolling(label: str, child: Markup, *, class_: str = "") -> Markup:
    """Wrap an element that may be wider than the page, so that it scrolls sideways, by keyboard too."""
    return tag("div", child, class_=f"scroll {class_}".strip(), tabindex="0", role="region", aria_label=label)


def legend(*entries: tuple[str, str]) -> Markup:
    """Render the meaning of the colours."""
    return tag("p", *(tag("span", text, class_=f"key {kind}") for kind, text in entries), class_="legend")


VOID = ("img", "input", "link", "meta", "wbr")
"""Void elements: they have no end tag."""


def _attribute(name: str, value: str | float | bool | None) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    said = value if isinstance(value, str) else f"{value:.6g}"
    return f' {name}="{escape(said)}"'
