"""JSON schemas of reports (draft 2020-12), made from the reports' own classes, so that both cannot differ.

Descriptions are the classes' and fields' docstrings."""

import ast
import inspect
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from jaxformer.parity.report.report import NO_NUMBERS, SCHEMA, Report

TYPES: dict[Any, dict[str, Any]] = {
    Any: {},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"anyOf": [{"type": "number"}, {"enum": list(NO_NUMBERS)}]},
}
"""Types of fields -> their schemas."""


def schema(kind: type = Report, version: int = SCHEMA, title: str = "Report of jaxformer parity") -> dict[str, Any]:
    """Return the schema of what a report's `to_json` writes: the fields of its class, its verdict and this version."""
    classes: dict[str, Any] = {}
    report = _of_class(kind, classes)
    report["properties"] |= {
        "verdict": {
            "type": "string",
            "description": "The last line of the report: EQUAL, DIFFERENT or COULD NOT COMPARE, and why.",
        },
        "schema": {"const": version, "description": "Version of this schema; it grows when a field is renamed or removed."},
    }
    report["required"] += ["verdict", "schema"]
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"{title}, version {version}"}
    return about | report | {"$defs": classes}


def _of(kind: Any, classes: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; those of classes are collected."""
    outer, inner = get_origin(kind) or kind, get_args(kind)
    if is_dataclass(kind):
        name = getattr(kind, "__name__", "")
        if name not in classes:
            classes[name] = {}
            classes[name] = _of_class(kind, classes)
        return {"$ref": f"#/$defs/{name}"}
    if outer is list:
        return {"type": "array", "items": _of(inner[0], classes)}
    if outer is dict:
        return {"type": "object", "additionalProperties": _of(inner[1], classes)}
    if outer is Literal:
        return {"enum": list(inner)}
    if NoneType in inner:
        return {"anyOf": [_of(inner[0], classes), {"type": "null"}]}
    return dict(TYPES[kind])


def _of_class(kind: Any, classes: dict[str, Any]) -> dict[str, Any]:
    hints, described = get_type_hints(kind), _descriptions(kind)
    properties = {each.name: _of(hints[each.name], classes) | described.get(each.name, {}) for each in fields(kind)}
    required = [each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING]
    about = {"description": (kind.__doc__ or "").strip().split("\n")[0]}
    return {"type": "object", **about, "properties": properties, "required": required, "additionalProperties": False}


def _descriptions(kind: Any) -> dict[str, dict[str, str]]:
    """Return the docstrings of a class's fields, those of its bases among them."""
    found: dict[str, dict[str, str]] = {}
    for owner in reversed(kind.__mro__[:-1]):
        (tree,) = ast.parse(inspect.getsource(owner)).body
        assert isinstance(tree, ast.ClassDef)
        for field, after in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
                text = ast.get_docstring(ast.Module([after], []))
                found |= {field.target.id: {"description": " ".join(text.split())}} if text else {}
    return found
