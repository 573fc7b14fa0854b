"""Alterations that give jax's array, and what is said of them."""

from typing import NamedTuple

from jaxformer.parity.capture.call_sites import ArrayKey
from jaxformer.parity.explain.alterations.altered import Alteration, Dial, Found
from jaxformer.parity.numerics.metrics import EXPLAINED

OTHER_ARRAYS = ("reads ", "the two exchanged")
"""How alterations begin that take another array: what is left out, or done with another number, is told so once more."""


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


def said(found: list[Fit]) -> str:
    """The plainest, and what fits as well, each with its own place."""
    first, *others = found
    if not first.found.jax.startswith(OTHER_ARRAYS):
        others = [other for other in others if not other.found.jax.startswith(OTHER_ARRAYS)]
    more = f", or the same: {', or '.join(other.says for other in others)}" if others else ""
    rounded = "" if first.residual <= EXPLAINED else ", float32's rounding"
    return f"{first.says} (residual {first.residual:.0e}{rounded}){more}"
