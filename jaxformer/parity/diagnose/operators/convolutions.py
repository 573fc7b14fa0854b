"""Mutations of pads, convolutions, poolings and short-time Fourier transforms: pads, dilations, windows, hop lengths, and where
windows begin."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from jaxformer.parity.diagnose.calls import named
from jaxformer.parity.diagnose.computes import Compute, with_named
from jaxformer.parity.diagnose.functions import CONVOLVING, spread
from jaxformer.parity.diagnose.mutation import Change, Proposal
from jaxformer.parity.diagnose.trace import Op

MODES = ("constant", "reflect", "replicate", "circular")
SPREAD = {"stride": 1, "padding": 0, "dilation": 1}
"""Defaults of a convolution's arguments that are one number, or one for each axis."""
DILATIONS = (1, 2, 3, 4, 8, 16, 32)
WINDOWS = ("hann", "hamming", "blackman", "bartlett")
MOST_PADS, LONGEST = 16, 7
"""Largest number of padded entries, and longest window of a pooling, that are tried."""
Ends = tuple[tuple[int, int], ...]
"""Numbers for both ends of each axis."""
FLIPPED = Change("convolutions.flipped", "pads at the other end")
AXIS_FLIPPED = Change("convolutions.axis_flipped", "pads at the other end of axis {axis}")
EXCHANGED = Change("convolutions.exchanged", "has the pads of height and width exchanged")
SPLIT = Change("convolutions.split", "pads {before} before and {behind} after")
AXIS_SPLIT = Change("convolutions.axis_split", "pads {before} before and {behind} after along axis {axis}")
MODE = Change("convolutions.mode", {mode: f"pads by '{mode}'" for mode in MODES} | {"constant": "pads by zeros"})
SIGNAL_BEGINS = Change("convolutions.signal_begins", "begins its windows {by} {side}")
BEGINS = Change("convolutions.begins", "begins its windows {by} {side} in each direction")
AXIS_BEGINS = Change("convolutions.axis_begins", "begins its windows {by} {side} along axis {axis}")
DILATION = Change("convolutions.dilation", "has dilation {dilation}, and pads for it")
AXIS_DILATION = Change("convolutions.axis_dilation", "has dilation {dilation} along axis {axis}, and pads for it")
CAUSAL_DILATION = Change("convolutions.causal_dilation", "has dilation {dilation}, and pads for it in front")
SIZES = Change("convolutions.sizes", "has windows of ({sizes}), padded by ({before}) before")
SIDE_BY_SIDE = Change("convolutions.side_by_side", "has windows of ({sizes}) side by side, without the entries that are left")
RESHAPE_WORDS = "reshapes its input to channels last where it has to transpose it"
RESHAPED = Change("convolutions.reshaped", RESHAPE_WORDS, reroutes=True)
TURNED = Change("convolutions.turned", "has height and width of it exchanged")
ONES = Change("convolutions.ones", "has a window of ones (no window)")
WINDOW = Change("convolutions.window", "has a {window} window, {symmetry}")
HOP = Change("convolutions.hop", "has hop length {hop}")


def having(change: Callable[..., dict[str, Any]], **others: Any) -> Compute:
    """Call the function with other arguments: those that `change(call, **others)` makes of all of them."""
    return lambda f, a, k, n: f(**(call := settings(f, a, k)) | change(call, **others))


def settings(function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by their names; those of a convolution with one stride, padding and dilation for each axis."""
    call = named(function, args, kwargs)
    for name, default in SPREAD.items() if "weight" in call else ():
        given, axes = call.get(name, default), call["weight"].ndim - 2
        if given != "same":
            call[name] = (spread(0 if given == "valid" else given, axes) * axes)[:axes]
    return call


def pads(op: Op) -> Iterator[Proposal]:
    """Mutations of `pad`: at the other end, exchanged between axes, split differently, or in another mode."""
    if op.name != "pad":
        return
    call = settings(op.function, op.args, op.kwargs)
    sizes = call["pad"]
    pairs = [tuple(sizes[i : i + 2]) for i in range(0, len(sizes), 2)]
    flips = [(FLIPPED, {}, [each[::-1] for each in pairs]), (EXCHANGED, {}, pairs[::-1])]
    for i, each in enumerate(pairs):
        flips.append((AXIS_FLIPPED, {"axis": -1 - i}, [*pairs[:i], each[::-1], *pairs[i + 1 :]]))
    for change, axis, other in flips:
        if other != pairs:
            yield op.instead(change, with_named(pad=[*itertools.chain.from_iterable(other)]), **axis)
    total = sum(sizes[:2])
    for before in range(total + 1 if total <= MOST_PADS else 0):
        if all(sum(each) == total for each in pairs):
            behind = total - before
            yield op.instead(SPLIT, with_named(pad=[before, behind] * len(pairs)), before=before, behind=behind)
    for mode in MODES:
        if mode != call.get("mode", "constant"):
            yield op.instead(MODE, with_named(mode=mode, value=None), how=mode)


def convolutions(op: Op) -> Iterator[Proposal]:
    """Mutations of a convolution: another mode of padding, windows that begin elsewhere, another dilation, an input that is
    reshaped where it has to be transposed, height and width exchanged."""
    if op.name not in CONVOLVING:
        return
    call = settings(op.function, op.args, op.kwargs)
    stride, sizes = call["stride"], call["weight"].shape[2:]
    none = (0,) * len(sizes)
    padding = none if call["padding"] == "same" else call["padding"]
    for mode in MODES[1:] if any(padding) else ():
        yield op.instead(MODE, having(padded, mode=mode, later=none), how=mode)
    most = max(*(step - 1 for step in stride), *padding)
    yield from beginnings(op, lambda later: having(padded, mode="constant", later=later), most, padding)
    yield from uneven(op, padding, lambda more: having(with_more, more=more))
    yield from dilations(op, call["dilation"], sizes)
    yield op.instead(RESHAPED, having(channels_reshaped))
    if len(sizes) == 2 and sizes[0] == sizes[1] and (stride[0] != stride[1] or padding[0] != padding[1]):
        yield op.instead(TURNED, having(lambda call: {name: call[name][::-1] for name in ("stride", "padding")}))


def dilations(op: Op, own: tuple[int, ...], sizes: Sequence[int]) -> Iterator[Proposal]:
    """Mutations of a convolution's dilation, along all axes or one."""
    axes = range(len(sizes))
    for axis, dilation in itertools.product((None, *axes) if len(axes) > 1 else (None,), DILATIONS):
        others = tuple(dilation if axis in (None, i) else its for i, its in enumerate(own))
        if all(other == its or size == 1 for other, its, size in zip(others, own, sizes, strict=True)):
            continue
        at: dict[str, Any] = {} if axis is None else {"axis": axis + 2}
        yield op.instead(AXIS_DILATION if at else DILATION, having(dilated, dilation=others), dilation=dilation, **at)
        if len(axes) == 1:
            yield op.instead(CAUSAL_DILATION, having(dilated, dilation=others, front=True), dilation=dilation)


def transposed(op: Op) -> Iterator[Proposal]:
    """Mutations of a transposed convolution: another slice of its full output."""
    if op.name in ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"):
        sizes = op.args[1].shape[2:]
        yield from beginnings(op, lambda later: partial(another_part, later), max(sizes) - 1, (0,) * len(sizes))


def pools(op: Op) -> Iterator[Proposal]:
    """Mutations of a pooling: shorter and longer windows, along all axes or one, which begin where torch's do, are centred, or
    begin at the first entry; more or fewer pads at one end."""
    if op.name[:-2] not in ("max_pool", "avg_pool"):
        return
    call, axes = named(op.function, op.args, op.kwargs), range(int(op.name[-2]))
    own, pads = (spread(call.get(name, 0), len(axes)) for name in ("kernel_size", "padding"))
    for axis, size in itertools.product((None, *axes) if len(axes) > 1 else (None,), range(1, LONGEST + 1)):
        sizes = tuple(size if axis in (None, i) else its for i, its in zip(axes, own, strict=True))
        begins = pads, *(tuple((each - even) // 2 for each in sizes) for even in (0, 1)), (0,) * len(axes)
        for before in dict.fromkeys(begins) if sizes != own else ():
            yield op.instead(SIZES, partial(of_size, sizes, tuple((pad, None) for pad in before)), sizes=sizes, before=before)
    yield from uneven(op, pads, lambda more: partial(of_size, own, both(pads, more)))


def adaptive_pools(op: Op) -> Iterator[Proposal]:
    """Mutations of an adaptive pooling, whose windows overlap where its number of windows does not divide the input's length:
    windows side by side."""
    if op.name[:-2] not in ("adaptive_max_pool", "adaptive_avg_pool"):
        return
    call, axes = named(op.function, op.args, op.kwargs), int(op.name[-2])
    counts, lengths = spread(call["output_size"], axes), call["input"].shape[-axes:]
    if None not in counts and any(length % count for length, count in zip(lengths, counts, strict=True)):
        sizes = tuple(max(length // count, 1) for length, count in zip(lengths, counts, strict=True))
        pool = getattr(functional, op.name.removeprefix("adaptive_"))
        yield op.instead(SIDE_BY_SIDE, lambda f, a, k, n: pool(named(f, a, k)["input"], sizes), sizes=sizes)


def of_size(
    sizes: tuple[int, ...], ends: Sequence[tuple[int, int | None]], function: Any, args: Any, kwargs: Any, n: int
) -> Any:
    """Compute a pooling with windows of another size, and these pads at both ends of each axis; None behind the last entry
    stands for as many as torch's number of windows needs."""
    call, wanted = named(function, args, kwargs), function(*args, **kwargs).shape[2:]
    strides, steps = call.get("stride") or call["kernel_size"], call.get("dilation", 1)
    several = (spread(each, len(sizes)) for each in (strides, steps))
    sides: list[int] = []
    x = call["input"]
    for length, count, size, (pad, end), stride, step in zip(x.shape[2:], wanted, sizes, ends, *several, strict=True):
        fits = (count - 1) * stride + (size - 1) * step + 1 - length - pad
        sides = [pad, fits if end is None else end, *sides]
    pool = partial(function, **call | {"kernel_size": sizes, "stride": strides, "padding": 0, "ceil_mode": False})
    if function.__name__.startswith("max"):
        return pool(input=functional.pad(x, sides, value=-torch.inf))
    y = pool(input=functional.pad(x, sides))
    return y if call.get("count_include_pad", True) else y / pool(input=functional.pad(torch.ones_like(x), sides))


def beginnings(op: Op, moved: Callable[..., Compute], most: int, padding: tuple[int, ...]) -> Iterator[Proposal]:
    """Mutations in which windows begin up to `most` entries later or earlier, along all axes or one. Where nothing is cut off,
    their words give the pads at both ends."""
    axes = range(len(padding))
    for axis in (None, *axes) if len(axes) > 1 else (None,):
        at: dict[str, Any] = {} if axis is None else {"axis": axis + 2}
        pad = padding[axis or 0]
        for later in (side * size for size in range(1, most + 1) for side in (1, -1)):
            compute = moved(tuple(later * (axis in (None, i)) for i in axes))
            if abs(later) <= pad:
                yield op.instead(AXIS_SPLIT if at else SPLIT, compute, before=pad - later, behind=pad + later, **at)
            else:
                yield op.instead(AXIS_BEGINS if at else BEGINS, compute, **said(later), **at)


def uneven(op: Op, padding: tuple[int, ...], computed: Callable[[Ends], Compute]) -> Iterator[Proposal]:
    """Mutations of a convolution or a pooling with more or fewer pads at one end, along all axes or one: its output may have
    other sizes."""
    axes, most = range(len(padding)), (1, 2, -1)
    several = (*((number, 0) for number in most), *((0, number) for number in most))
    for axis, more in itertools.product((None, *axes) if len(axes) > 1 else (None,), several):
        before, behind = (padding[axis or 0] + each for each in more)
        if min(before, behind) >= 0:
            at: dict[str, Any] = {} if axis is None else {"axis": axis + 2}
            ends = tuple(more if axis in (None, i) else (0, 0) for i in axes)
            yield op.instead(AXIS_SPLIT if at else SPLIT, computed(ends), before=before, behind=behind, **at)


def both(padding: tuple[int, ...], more: Ends) -> Ends:
    """Pads at both ends of each axis."""
    return tuple((pad + before, pad + behind) for pad, (before, behind) in zip(padding, more, strict=True))


def said(later: int) -> dict[str, Any]:
    """Arguments of the words for windows that begin later or earlier."""
    return {"by": abs(later), "side": "later" if later > 0 else "earlier"}


def padded(call: dict[str, Any], mode: str, later: tuple[int, ...]) -> dict[str, Any]:
    """Arguments of a convolution whose input is padded first, so that its windows begin later."""
    return with_more(call, tuple((-move, move) for move in later), mode)


def with_more(call: dict[str, Any], more: Ends, mode: str = "constant") -> dict[str, Any]:
    """Arguments of a convolution whose input is padded first, by its padding and `more` entries at the ends of each axis."""
    sides = [each for ends in both(call["padding"], more)[::-1] for each in ends]
    return {"input": functional.pad(call["input"], sides, mode=mode), "padding": 0}


def dilated(call: dict[str, Any], dilation: tuple[int, ...], front: bool = False) -> dict[str, Any]:
    """Arguments of a convolution with another dilation, and with the pads that it needs at both ends, or in front alone
    (causal)."""
    x, padding, sizes = call["input"], call["padding"], call["weight"].shape[2:]
    more = [(new - old) * (size - 1) for new, old, size in zip(dilation, call["dilation"], sizes, strict=True)]
    if front:
        x = functional.pad(x, (more[0], 0))
    elif padding != "same":
        padding = tuple(pad + each // 2 for pad, each in zip(padding, more, strict=True))
    return {"input": x, "padding": padding, "dilation": dilation}


def channels_reshaped(call: dict[str, Any]) -> dict[str, Any]:
    """Arguments with an input whose entries, in memory order, are read as `B ... C` in place of `B C ...`."""
    x = call["input"]
    return {"input": x.reshape(x.shape[0], *x.shape[2:], x.shape[1]).movedim(-1, 1)}


def another_part(later: tuple[int, ...], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute a transposed convolution without padding, and take a slice of torch's size that begins `later`; 0 beyond its
    ends."""
    call, wanted = settings(function, args, kwargs), function(*args, **kwargs).shape[2:]
    whole, bias = function(**call | {"bias": None, "padding": 0, "output_padding": 0}), call.get("bias")
    sides: list[int] = []
    for size, length, start, pad in zip(whole.shape[2:], wanted, later, call["padding"], strict=True):
        sides = [-(pad + start), pad + start + length - size, *sides]
    part = functional.pad(whole, sides)
    return part if bias is None else part + bias.view(-1, *[1] * len(later))


def transforms(op: Op) -> Iterator[Proposal]:
    """Mutations of a short-time Fourier transform: its mode of padding, its window function, where its windows begin, its hop
    length."""
    if op.name != "stft":
        return
    for mode in MODES[:3]:
        yield op.instead(MODE, with_named(pad_mode=mode), how=mode)
    call = settings(op.function, op.args, op.kwargs)
    size, hop = call["n_fft"], call.get("hop_length") or 0
    yield op.instead(ONES, with_named(window=torch.ones(size).double()))
    for name, symmetry in itertools.product(WINDOWS, ("symmetric", "periodic")):
        window = getattr(torch, f"{name}_window")(size, periodic=symmetry == "periodic").double()
        yield op.instead(WINDOW, with_named(window=window), window=name, symmetry=symmetry)
    for later in (1, 2, 3, -1):
        yield op.instead(SIGNAL_BEGINS, having(signal_moved, later=later), **said(later))
    for other in dict.fromkeys((size // 4, size // 2, size // 3, size // 8, size, hop * 2, hop // 2)):
        if 0 < other != hop:
            yield op.instead(HOP, with_named(hop_length=other), hop=other)


def signal_moved(call: dict[str, Any], later: int) -> dict[str, Any]:
    """Arguments with the signal padded as torch does it, then rolled so that windows begin `later`."""
    name, x = next(iter(call.items()))
    if call.get("center", True):
        sides = [call["n_fft"] // 2] * 2
        x = functional.pad(x.reshape(1, -1, x.shape[-1]), sides, mode=call.get("pad_mode", "reflect")).reshape(
            *x.shape[:-1], -1
        )
    return {name: x.roll(-later, -1), "center": False}


KINDS = (pads, convolutions, transposed, pools, adaptive_pools, transforms)
