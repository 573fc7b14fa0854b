"""Words of a report whose sides are both JAX: the reference, which is else torch, and the port, which is else jax."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

SIDES = {"torch": "the reference", "pytorch": "The reference", "jax": "the port"}
WORD = r"(?<![\w./`-])(?:(?:[Tt]he )?JAX model|torch|PyTorch|jax|JAX)(?![\w./`-]|\.\w)"
SIDE = re.compile(WORD)
"""A side in a sentence, and not in a path, a name or a line of code."""
BESIDE_NAMES = re.compile(rf"(?:(?<=^)|(?<=[;:,(] )|(?<=where )){WORD}(?= [a-z`])|(?<=\bin ){WORD}|{WORD}(?='s)")
"""A side where a module is called `jax` or `torch`: only in places where a sentence has no such name."""
COUNTED = re.compile(r"(?<=\d )JAX (tensors?)\b")
"""A number of tensors of the port's."""
REFERENCE = "reference"
"""Key of the environment of a report, or of a recording, whose reference is a JAX model."""
RAISED = re.compile(r"\b\w+(Error|Exception|Exit|Interrupt): ")
"""Beginning of the message of an error, which is not ours."""
OTHERWISE = ("environment", "traceback", "jax", "torch", "jax_only", "torch_only", "source", "file", "module")
"""Fields of a report that hold packages, names, or lines of code."""


def named_as_jax(value: Any, side: re.Pattern[str] | None = None) -> Any:
    """Return a report, or a part of it, in which every sentence names the sides so. `side` finds a side in a sentence."""
    side = side or side_in(value)
    if isinstance(value, str):
        jax = value[: raised.start()] if (raised := RAISED.search(value)) else value
        return side.sub(_renamed, COUNTED.sub(r"\1 of the port", jax)) + value[len(jax) :]
    kind: Any = type(value)
    if isinstance(value, Mapping):
        return kind((key, named_as_jax(part, side)) for key, part in value.items())
    if kind in (list, tuple):
        return kind(named_as_jax(part, side) for part in value)
    if not is_dataclass(kind):
        return value
    parts = {each.name: getattr(value, each.name) for each in fields(kind) if each.init}
    return replace(value, **{name: part if name in OTHERWISE else named_as_jax(part, side) for name, part in parts.items()})


def _renamed(found: re.Match[str]) -> str:
    return SIDES["jax" if "model" in found[0] else found[0].lower()]


def side_in(report: Any) -> re.Pattern[str]:
    """Return what finds a side in the sentences of a report; modules may be called like one."""
    names = {part for each in getattr(report, "modules", ()) for part in re.split(r"[.#]", f"{each.torch}.{each.jax}")}
    names |= {*getattr(report, "jax_only", ()), *getattr(report, "torch_only", ())}
    return BESIDE_NAMES if names & {"jax", "torch"} else SIDE


def worded(text: str, report: Any) -> str:
    """Return text of a report with the sides named as they are."""
    return named_as_jax(text, side_in(report)) if REFERENCE in report.environment else text


def worded_html(html: str, report: Any) -> str:
    """Return HTML of a report in which the sides are named as they are, in what is read or read aloud."""
    return re.sub(r'>[^<>]+<|aria-label="[^"]*"', lambda found: worded(found[0], report), html)
