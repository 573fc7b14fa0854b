"""Configurations as HTML, which notebooks show in place of their text."""

from dataclasses import fields
from html import escape
from typing import Any


def as_table(config: Any) -> str:
    """Render a table of the fields that differ from their defaults; colours are left to the notebook, light or dark."""
    every = fields(config)
    given = [field for field in every if getattr(config, field.name) != field.default]
    rows = "".join(
        f'<tr><th scope="row">{escape(field.name)}</th><td>{escape(repr(getattr(config, field.name)))}</td></tr>'
        for field in given
    )
    left = f"{type(config).__name__}: {len(given)} fields given, {len(every) - len(given)} as by default"
    return f"<table><caption>{escape(left)}</caption><tbody>{rows}</tbody></table>"
