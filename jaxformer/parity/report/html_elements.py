"""HTML and SVG elements. Whatever is not made here is text, and escaped."""

from html import escape


class Markup(str):
    """HTML that is already written."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | bool | None) -> Markup:
    """<name attributes>children</name>; texts among the children are escaped.

    `class_` is class, `data_value` is data-value; True is an attribute without a value, False and None are left out.
    """
    given = "".join(map(_attribute, attributes, attributes.values()))
    return Markup(f"<{name}{given}>{'' if name in VOID else f'{together(*children)}</{name}>'}")


def together(*children: str) -> Markup:
    """Elements and texts, one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))


def code(path: str) -> Markup:
    """A name."""
    return tag("code", breakable(path))


def breakable(path: str) -> Markup:
    """A name that may be broken after each dot."""
    first, *rest = path.split(".")
    return together(first, *(together(".", tag("wbr"), part) for part in rest))


def section(name: str, title: str, *children: str) -> Markup:
    """A part of the page with its heading."""
    return tag("section", tag("h2", title, id=f"{name}-title"), *children, id=name, aria_labelledby=f"{name}-title")


def scrolling(label: str, child: Markup, *, class_: str = "") -> Markup:
    """What may be wider than the page: it scrolls sideways, by keys too."""
    return tag("div", child, class_=f"scroll {class_}".strip(), tabindex="0", role="region", aria_label=label)


def legend(*entries: tuple[str, str]) -> Markup:
    """The meaning of the colours."""
    return tag("p", *(tag("span", text, class_=f"key {kind}") for kind, text in entries), class_="legend")


VOID = ("input", "link", "meta", "wbr")
"""Elements without an end."""


def _attribute(name: str, value: str | float | bool | None) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    said = value if isinstance(value, str) else f"{value:.6g}"
    return f' {name}="{escape(said)}"'
