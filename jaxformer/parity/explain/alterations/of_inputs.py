"""What may be otherwise in what a call of torch's is given: masks, rotary tables, hidden states."""

from collections.abc import Iterator

import numpy as np
import torch

from jaxformer.parity.capture.call_records import arrays_in
from jaxformer.parity.explain.alterations.altered import Alteration, Dial, Inside
from jaxformer.parity.explain.alterations.rerun import Rerun
from jaxformer.parity.explain.alterations.rotary_tables import Rotary, plain_rates, rotary_of
from jaxformer.parity.numerics.float_masks import allowed, kind_of

BASES = (10000.0, 500000.0, 1000000.0, 100000.0, 1000.0)
WHOLE = 1e-6


def alterations_of(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """Of each array."""
    arrays = arrays_in(rerun.arguments)
    for i, array in enumerate(arrays):
        if array.dtype == torch.bool or (array.is_floating_point() and kind_of(array.numpy()) in ("added", "zeros")):
            yield from masks(rerun, i, array)
    if rotary := rotary_of(rerun):
        yield from rotations(rerun, rotary)


def masks(rerun: Rerun, i: int, mask: torch.Tensor) -> Iterator[Alteration]:
    """Other keys are masked."""
    keep = torch.from_numpy(np.asarray(allowed(mask.numpy()) if mask.is_floating_point() else mask.numpy()))
    lowest = mask.min() if mask.is_floating_point() and mask.min() < 0 else torch.tensor(-torch.inf, dtype=torch.float64)
    for says, other in other_masks(keep):
        filled = torch.where(other, 0.0, lowest).to(mask.dtype) if mask.is_floating_point() else other
        yield Alteration("mask as given", f"mask {says}", lambda filled=filled: rerun.given_inputs({i: filled}))


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
    """Of a mask of valid keys in a window around each query: other windows, and other keys."""
    length, keys = keep.shape[-1], keep.any(-2, keepdim=True)
    apart = torch.arange(length)[:, None] - torch.arange(length)
    seen = apart[keep.reshape(-1, length, length).any(0)]
    if not len(seen):
        return
    back, ahead = int(seen.max()), -int(seen.min())

    def window(back: int, ahead: int, keys: torch.Tensor = keys) -> torch.Tensor:
        near = (apart <= back) & (apart >= -ahead)
        return (keys & near).expand_as(keep) & keep.any(-1, keepdim=True)

    if not torch.equal(window(back, ahead), keep):
        return
    if back < length - 1:
        yield f"with a window of {back + 2} keys for {back + 1}", window(back + 1, ahead)
        yield f"with a window of {back} keys for {back + 1}", window(back - 1, ahead)
        yield "without its window", window(length, ahead)
        yield "without its window and its causal part", window(length, length)
    if ahead < length - 1:
        yield "with one key more ahead", window(back, ahead + 1)
        fewer = window(back, ahead - 1)
        yield "with one key fewer ahead", fewer
        yield "with one key fewer ahead, where there is another", fewer | (keep & ~fewer.any(-1, keepdim=True))
        yield "without its causal part", window(back, length)
    if not keys.all():
        yield "without its padding", window(back, ahead, torch.ones_like(keys))
        yield "with its padding inverted", window(back, ahead, ~keys)


def rotations(rerun: Rerun, rotary: Rotary) -> Iterator[Alteration | Dial]:
    """Other rates, positions or signs of rotary positions."""
    positions, rates, size = rotary.positions, rotary.rates, rotary.size
    plain = torch.allclose(rates, plain_rates(rotary.width, rotary.base), rtol=1e-5)
    said = f"rotary base {rotary.base:.6g}" if plain else "rotary rates as they are"

    def angles(positions: torch.Tensor) -> Inside:
        return rerun.given_inputs(rotary.with_angles(positions[:, None] * rates))

    for base in BASES:
        yield Alteration(said, f"rotary base {base:g}", lambda base=base: rerun.given_inputs(rotary.with_base(base)))
    yield Alteration(
        "rotary positions", "none", lambda: rerun.given_inputs(rotary.with_angles(0 * positions[:, None] * rates, 1.0))
    )
    yield Alteration("rotated forwards", "rotated backwards", lambda: angles(-positions))
    if abs(size - 1) > WHOLE:
        amplitude = rotary.with_angles(positions[:, None] * rates, 1.0)
        yield Alteration(f"rotary amplitude {size:.6g}", "rotary amplitude 1", lambda: rerun.given_inputs(amplitude))
    half = positions % (len(positions) // 2)
    yield Alteration("positions as they are", "positions that begin again in the middle", lambda: angles(half))
    yield Dial("rotary positions as they are", "rotary positions times {}", 1.0, lambda c: angles(positions * c), sure=True)
    yield Dial(said, "rotary base {}", rotary.base, lambda base: rerun.given_inputs(rotary.with_base(base)), sure=True)
