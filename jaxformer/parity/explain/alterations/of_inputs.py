"""What may be otherwise in what a call of torch's is given: masks, rotary tables, hidden states."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch

from jaxformer.parity.capture.call_records import arrays_in, replaced
from jaxformer.parity.explain.alterations.altered import Alteration, Dial
from jaxformer.parity.explain.alterations.rerun import Rerun
from jaxformer.parity.numerics.float_masks import allowed, kind_of

BASES = (10000.0, 500000.0, 1000000.0, 100000.0, 1000.0, 150000.0, 5000000.0)


def alterations_of(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """Of each array."""
    arrays = arrays_in(rerun.arguments)
    for i, array in enumerate(arrays):
        if array.dtype == torch.bool or (array.is_floating_point() and kind_of(array.numpy()) in ("added", "zeros")):
            yield from masks(rerun, i, array)
    pairs = [(i, j) for i, a in enumerate(arrays) for j, b in enumerate(arrays) if i != j and is_rotation(a, b)]
    for i, j in pairs[:1] if len(pairs) == 1 else [pair for pair in pairs if starts_with_one(arrays[pair[0]])][:1]:
        yield from rotations(rerun, i, j, arrays[i], arrays[j])


@contextmanager
def given(rerun: Rerun, others: dict[int, Any]) -> Iterator[None]:
    """Inside, the call is given other arrays."""
    before = rerun.arguments
    arrays = arrays_in(before)
    rerun.arguments = replaced(before, arrays, [others.get(i, array) for i, array in enumerate(arrays)])
    try:
        yield
    finally:
        rerun.arguments = before


def masks(rerun: Rerun, i: int, mask: torch.Tensor) -> Iterator[Alteration]:
    """Other keys are masked."""
    keep = torch.from_numpy(np.asarray(allowed(mask.numpy()) if mask.is_floating_point() else mask.numpy()))
    lowest = mask.min() if mask.is_floating_point() and mask.min() < 0 else torch.tensor(-torch.inf, dtype=torch.float64)
    for says, other in other_masks(keep):
        filled = torch.where(other, 0.0, lowest).to(mask.dtype) if mask.is_floating_point() else other
        yield Alteration("the mask as it is", f"the mask {says}", lambda filled=filled: given(rerun, {i: filled}))


def other_masks(keep: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The ways in which masks go wrong, of a mask that is True where a key is seen."""
    yield "left out", torch.ones_like(keep)
    yield "inverted", ~keep
    if keep.ndim < 2 or keep.shape[-1] < 2:
        return
    if keep.shape[-1] == keep.shape[-2]:
        yield "of queries for that of keys", keep.transpose(-1, -2)
        yield from windows(keep)
    if len(keep) > 1:
        yield "of the row before", keep.roll(1, 0)
        yield "of the row behind", keep.roll(-1, 0)
        yield "of the first row", keep[:1].expand_as(keep)
    if keep.shape[-2] == 1:
        yield "one key longer", keep | keep.roll(1, -1)
        yield "one key shorter", keep & keep.roll(1, -1)


def windows(keep: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A mask of valid keys in a window around each query: how far it goes back and ahead."""
    length = keep.shape[-1]
    apart = torch.arange(length)[:, None] - torch.arange(length)
    back, ahead = int(apart[keep.any(0).reshape(-1, length, length).any(0)].max()), -int(apart[keep.any(0).reshape(-1, length, length).any(0)].min())
    keys = keep.any(-2, keepdim=True)
    blind = ~keep.any(-1, keepdim=True)

    def seen(back: int, ahead: int, keys: Any = keys) -> torch.Tensor:
        near = (apart <= back) & (apart >= -ahead)
        return (keys & near).expand_as(keep) & ~blind

    if not torch.equal(seen(back, ahead), keep):
        return
    for says, further in ((f"{back + 2} keys wide for {back + 1}", 1), (f"{back} keys wide for {back + 1}", -1)):
        if back < length - 1:
            yield f"with a window {says}", seen(back + further, ahead)
    if back < length - 1:
        yield "without its window", seen(length, ahead)
    if ahead < length - 1:
        yield "with one key more ahead", seen(back, ahead + 1)
        yield "with one key fewer ahead", seen(back, ahead - 1)
        yield "with the query itself alone where that is the first, else one key fewer ahead", seen(back, ahead - 1) | (
            (apart == 0) & ~seen(back, ahead - 1).any(-1, keepdim=True)
        )
        yield "without its causal part", seen(back, length)
        if back < length - 1:
            yield "without its window and its causal part", seen(length, length)
    if not keys.all():
        yield "without its padding", seen(back, ahead, torch.ones_like(keys))
        yield "with its padding inverted", seen(back, ahead, ~keys)


def is_rotation(cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Whether two arrays are cosines and sines of positions times rates, up to a factor."""
    if cos.shape != sin.shape or cos.ndim < 2 or cos.shape[-2] < 2 or not cos.is_floating_point() or not sin.is_floating_point():
        return False
    size = cos.square() + sin.square()
    return bool(size.min() > 0 and torch.allclose(size, size.flatten()[0].expand_as(size), rtol=1e-5)) and bool(sin.any())


def starts_with_one(cos: torch.Tensor) -> bool:
    """As the cosines of a rotation by 0 do."""
    return bool(torch.allclose(cos[..., 0, :], cos[..., :1, :1].squeeze(-1)))


def rotations(rerun: Rerun, i: int, j: int, cos: torch.Tensor, sin: torch.Tensor) -> Iterator[Alteration | Dial]:
    """Other rates, positions, signs or parts of rotary positions."""
    n, size = cos.shape[-1], float((cos.square() + sin.square()).flatten()[0].sqrt())
    rates = torch.atan2(sin, cos)[..., 1, :] - torch.atan2(sin, cos)[..., 0, :]
    halves = bool(torch.equal(cos[..., : n // 2], cos[..., n // 2 :]))
    pairs = bool(torch.equal(cos[..., ::2], cos[..., 1::2])) and not halves
    own = rates.reshape(-1, n)[0]
    own = own[: n // 2] if halves else own[::2] if pairs else own
    width = 2 * len(own)
    positions = torch.arange(cos.shape[-2], dtype=torch.float64)
    first = torch.round(torch.atan2(sin, cos).reshape(-1, *cos.shape[-2:])[0, 0, 0] / own[0])

    def tables(angles: torch.Tensor, size: float = size) -> AbstractContextManager[Any]:
        full = torch.cat([angles, angles], -1) if halves else angles.repeat_interleave(2, -1) if pairs else angles
        return given(rerun, {i: (full.cos() * size).expand_as(cos), j: (full.sin() * size).expand_as(sin)})

    def of_base(base: float) -> AbstractContextManager[Any]:
        return tables((positions + first)[:, None] * base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width))

    usual = float(own[1]) ** (-width / 2) if len(own) > 1 else 1e4
    plain = own[-1] > 0 and torch.allclose(own, usual ** -(torch.arange(0, width, 2, dtype=torch.float64) / width), rtol=1e-5)
    said = f"rotary base {usual:.6g}" if plain else "its rotary tables"
    for base in BASES:
        yield Alteration(said, f"rotary base {base:g}", lambda base=base: of_base(base))
    yield Alteration("rotary positions", "none of them", lambda: tables(0 * positions[:, None] * own, 1.0))
    yield Alteration("rotations forwards", "rotations backwards", lambda: given(rerun, {j: -sin}))
    yield Alteration("cosines and sines", "them exchanged", lambda: given(rerun, {i: sin, j: cos}))
    if abs(size - 1) > 1e-6:
        yield Alteration(f"rotary amplitude {size:.6g}", "rotary amplitude 1", lambda: given(rerun, {i: cos / size, j: sin / size}))
    for part in (2, 4):
        few = width // part // 2
        if few:
            some = (torch.arange(0, 2 * few, 2, dtype=torch.float64) / (2 * few)).neg()
            partly = torch.cat([usual**some, torch.zeros(len(own) - few)])
            yield Alteration("all of a head rotated", f"1/{part} of a head's rates alone", lambda partly=partly: tables(positions[:, None] * partly))
    for says, changed in (("restarted in the middle", positions % (len(positions) // 2)), ("from the end", positions.flip(0))):
        yield Alteration("positions as they are", f"positions {says}", lambda changed=changed: tables(changed[:, None] * own))
    yield Dial("rotary positions as they are", "rotary positions times {}", 1.0, lambda c: tables((positions + first)[:, None] * own * c))
    yield Dial(said, "rotary base {}", usual, of_base)
