"""Configurations by the fields that were given; as HTML, which notebooks show in place of their text."""

from dataclasses import fields
from html import escape
from typing import Any


def given_fields(config: Any) -> dict[str, Any]:
    """Return the fields that differ from their defaults."""
    return {field.name: value for field in fields(config) if (value := getattr(config, field.name)) != field.default}


def as_table(config: Any) -> str:
    """Render a table of the fields that differ from their defaults; colours are left to the notebook, light or dark."""
    given = given_fields(config)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(repr(value))}</td></tr>' for name, value in given.items()
    )
    left = f"{type(config).__name__}: {len(given)} fields given, {len(fields(config)) - len(given)} as by default"
    return f"<table><caption>{escape(left)}</caption><tbody>{rows}</tbody></table>"
