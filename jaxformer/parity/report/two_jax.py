"""Words of a report whose sides are both JAX: the reference, which is else torch, and the port, which is else jax."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

SIDES = {"torch": "the reference", "pytorch": "The reference", "jax": "the port"}
SIDE = re.compile(r"(?<![\w./`-])(torch|PyTorch|jax|JAX)(?![\w./`-]|\.\w)")
"""A side in a sentence, and not in a path, a name or a line of code."""
COUNTED = re.compile(r"(?<=\d )JAX (tensors?)\b")
"""A number of tensors of the port's."""
REFERENCE = "reference"
"""Key of the environment of a report, or of a recording, whose reference is a JAX model."""
RAISED = re.compile(r"\b\w+(Error|Exception|Exit|Interrupt): ")
"""Beginning of the message of an error, which is not ours."""
OTHERWISE = ("environment", "traceback", "jax", "torch", "jax_only", "torch_only", "source", "file", "module")
"""Fields of a report that hold packages, names, or lines of code."""


def named_as_jax(value: Any) -> Any:
    """Return a report, or a part of it, in which every sentence names the sides so."""
    if isinstance(value, str):
        ours = value[: raised.start()] if (raised := RAISED.search(value)) else value
        return SIDE.sub(lambda found: SIDES[found[0].lower()], COUNTED.sub(r"\1 of the port", ours)) + value[len(ours) :]
    kind: Any = type(value)
    if isinstance(value, Mapping):
        return kind((key, named_as_jax(part)) for key, part in value.items())
    if kind in (list, tuple):
        return kind(map(named_as_jax, value))
    if not is_dataclass(kind):
        return value
    parts = {each.name: getattr(value, each.name) for each in fields(kind) if each.init}
    return replace(value, **{name: part if name in OTHERWISE else named_as_jax(part) for name, part in parts.items()})


def worded(text: str, environment: Mapping[str, str]) -> str:
    """Return the text of a report of this environment, with the sides named as they are."""
    return named_as_jax(text) if REFERENCE in environment else text


def worded_html(html: str, environment: Mapping[str, str]) -> str:
    """Return HTML in which the sides are named as they are, in what is read or read aloud."""
    return re.sub(r'>[^<>]+<|aria-label="[^"]*"', lambda found: worded(found[0], environment), html)
