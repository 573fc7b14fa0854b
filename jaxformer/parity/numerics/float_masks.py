"""Float masks: numbers added to the scores, or multipliers of 0 and 1.

As with boolean masks, their meaning and their numbers may differ between the two sides.
"""

from typing import Any

import numpy as np

from jaxformer.parity.numerics.metrics import HUGE

MASKED = -5e3
"""Scores below this belong to masked keys: masks are -inf, the lowest number, -1e9 or -1e4, with or without a score added."""
LARGEST = tuple(bits * 2.0**exponent for bits, exponent in ((2 - 2.0**-7, 127), (2 - 2.0**-23, 127), (2 - 2.0**-52, 1023)))
"""Largest finite numbers of bfloat16, float32 and float64."""
ROUND = 1e-6
"""Largest relative distance of a mask's number from a round number: a score may be added to it."""


def one_number(jax: np.ndarray, torch: np.ndarray, *, inside: bool) -> np.ndarray:
    """Return jax's array with torch's numbers where both sides have a masked entry: the number depends on the dtype.

    With `inside` (inside a model), where one side has a mask, -inf and numbers down from `MASKED` (-1e4, for example) are
    masked entries of the other side too.
    """
    if jax.shape != torch.shape or {jax.dtype.kind, torch.dtype.kind} != {"f"}:
        return jax
    found = [fillers(array, infinite=inside) for array in (torch, jax)]
    if all(each is None for each in found) or not (inside or all(each is not None for each in found)):
        return jax
    low = [(array <= MASKED) & (array > -HUGE) if own is None else own for array, own in zip((torch, jax), found, strict=True)]
    return np.where(low[0] & low[1], torch, jax)


def fillers(array: np.ndarray, *, infinite: bool) -> np.ndarray | None:
    """Return the mask of masked entries: huge, negative and round numbers, or -inf if `infinite`, among others that are not
    huge.

    None if a huge entry is of another kind, or if no entry or every entry is huge.
    """
    huge = np.abs(array) >= HUGE
    if not huge.any() or huge.all():
        return None
    endless = np.isinf(array)
    fit = (array[endless] < 0).all() if infinite else not endless.any()
    return huge if fit and is_round(array[huge & ~endless]).all() else None


def is_round(numbers: np.ndarray) -> np.ndarray:
    """Return where numbers are round negative ones: small multiples of a power of ten (-1e9, -9e15), or of a tenth of a dtype's
    lowest number."""
    sizes = -numbers.astype(np.float64)
    scales = [10.0 ** np.floor(np.log10(np.where(sizes > 0, sizes, 1.0))), *(most / 10 for most in LARGEST)]
    with np.errstate(over="ignore"):
        parts = np.stack([sizes / scale for scale in scales])
    whole = np.round(parts)
    return (sizes > 0) & ((whole >= 1) & (whole <= 40) & (np.abs(parts - whole) <= ROUND * whole)).any(0)


def kind_of(array: np.ndarray) -> str:
    """Return the kind of a float mask; '' for any other array.

    'added' for a mask of 0 and very negative numbers, 'zeros' if it hides nothing, 'switches' for one of 0 and 1.
    """
    if array.dtype.kind != "f" or not array.size or not (array.flat[0] in (0, 1) or array.flat[0] <= MASKED):
        return ""
    if ((array == 0) | (array <= MASKED)).all():
        return "added" if array.any() else "zeros"
    return "switches" if ((array == 0) | (array == 1)).all() else ""


def is_mask(array: np.ndarray) -> bool:
    """True if the array is a mask that hides something. Gradients of its numbers mean nothing, since each side may use its own
    numbers."""
    return kind_of(array) in ("added", "switches")


def allowed(mask: np.ndarray) -> np.ndarray:
    """Return the entries that a float mask keeps; a mask of 0 and 1 keeps those that are 1."""
    return mask > (0.5 if kind_of(mask) == "switches" else MASKED)


def is_left(kind: str, torch: Any, jax: Any) -> Any:
    """True if jax's mask means the same as torch's mask of this kind, or may do so because it is of another kind."""
    switches, added = ((jax == 0) | (jax == 1)).all(), ((jax == 0) | (jax <= MASKED)).all()
    if kind == "switches":
        return (added & jax.any()) | (switches & ((jax == torch).all() | (jax == 1 - torch).all()))
    return (switches & jax.any()) | (added & ((jax <= MASKED) == (torch <= MASKED)).all())


def is_other(torch: Any, jax: Any) -> Any:
    """True if one of two arrays of integers is a mask of 0 and 1, and the other is not (positions, for example)."""
    return ((torch == 0) | (torch == 1)).all() != ((jax == 0) | (jax == 1)).all()
