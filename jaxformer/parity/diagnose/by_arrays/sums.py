"""What is said of two sums with other factors: a residual that is missing, a scale, one term in the place of another."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from jaxformer.parity.diagnose.constants import say

Factors = Mapping[str, tuple[complex, complex]]
"""torch's factor of each term, and jax's."""
INPUT = "input"


def summed(factors: Factors) -> tuple[str, str]:
    """What torch adds up, and what jax does."""
    if len(factors) == 1:
        ((name, (torch, jax)),) = factors.items()
        return of_one(name, torch, jax)
    mine, its = (" + ".join(times(name, both[side]) for name, both in factors.items() if both[side]) for side in (0, 1))
    if not mine or not its:
        return f"adds {mine or 'nothing of that'}", f"adds {its or 'nothing of that'}"
    if len(ratios := {jax / torch if torch else None for torch, jax in factors.values()}) == 1 and None not in ratios:
        return f"adds {mine}", f"adds {number(*ratios)} times that"
    gone = [name for name, (torch, jax) in factors.items() if torch and not jax]
    if all(bool(torch) != bool(jax) for torch, jax in factors.values()):
        if len(gone) == 1 and not gone[0].startswith(INPUT):
            return f"goes on with {mine}", f"goes on with {its}, and leaves out {gone[0]}"
        residual = " (the residual)" * any(name.startswith(INPUT) for name in gone)
        return f"adds {mine}{residual}", f"adds {its} in the place of that"
    return f"adds {mine}", f"adds {its}"


def of_one(name: str, torch: complex, jax: complex) -> tuple[str, str]:
    """Words for one term: it is missing, subtracted or scaled."""
    if not torch or not jax:
        there = f"adds {times(name, torch or jax)}" + " (the residual)" * name.startswith(INPUT)
        lacks = f"does not add {name}" if not torch else "does not"
        return (there, lacks) if torch else (lacks, there)
    if jax == -torch:
        return f"adds {times(name, torch)}", "subtracts it"
    if torch == 1:
        return f"takes {name} as it is", f"multiplies it by {number(jax)}"
    if jax == 1:
        return f"multiplies {name} by {number(torch)}", "does not"
    rounded = ", that rounded to bfloat16" * is_rounded(torch, jax)
    return f"multiplies {name} by {number(torch)}", f"by {number(jax)}{rounded}"


def times(name: str, factor: complex) -> str:
    """A term with its factor, unless that is 1."""
    return name if factor == 1 else f"{number(factor)} {name}"


def number(factor: complex) -> str:
    """'4.89897949 = sqrt(24)'"""
    return say(factor) if isinstance(factor, (int, float)) else f"{factor:.9g}"


def is_rounded(torch: complex, jax: complex) -> bool:
    """True if jax's factor is torch's in bfloat16."""
    real = isinstance(torch, (int, float)) and isinstance(jax, (int, float))
    return real and float(np.asarray(torch).astype(jnp.bfloat16)) == jax
