"""Alterations that give jax's array, and what is said of them."""

from typing import NamedTuple

from jaxformer.parity.capture.call_sites import ArrayKey
from jaxformer.parity.explain.alterations.altered import Alteration, Dial, Found
from jaxformer.parity.numerics.metrics import EXPLAINED


class Fit(NamedTuple):
    """An alteration that gives jax's array."""

    says: str
    residual: float
    found: Found
    gives: frozenset[ArrayKey]
    """All places of the same call at which jax's arrays come with it."""


def also(says: str, alteration: Alteration | Dial | Found) -> str:
    """That it is not the only one."""
    return says.replace(f"; jax {alteration.jax}", f"; jax as if {alteration.jax}, others fit too", 1)


def is_new(says: str, found: list[Fit]) -> bool:
    """Whether it is about another place than what was found."""
    return not any(says.partition(";")[0] == other.says.partition(";")[0] for other in found)


def takes_another(found: Found) -> bool:
    """Whether another array is taken: what is left out, or done with another number, may be told so once more."""
    return found.jax.startswith(("reads ", "the two exchanged")) or found.jax.endswith("in its place")


def said(found: list[Fit]) -> str:
    """The plainest, and what fits as well, each with its own place."""
    first, *others = found
    if not takes_another(first.found):
        others = [other for other in others if not takes_another(other.found)]
    more = f", or the same: {', or '.join(other.says for other in others)}" if others else ""
    rounded = "" if first.residual <= EXPLAINED else ", float32's rounding"
    return f"{first.says} (residual {first.residual:.0e}{rounded}){more}"
