"""What may be otherwise in what convolutions and signals are given: where pads lie, what they are, where windows begin."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operations import instead, with_argument
from jaxformer.parity.explain.alterations.operations import Operation
from jaxformer.parity.explain.alterations.other_functions import spread

MODES = ("constant", "reflect", "replicate", "circular")
CONVOLUTIONS = {"conv1d": 1, "conv2d": 2, "conv3d": 3}
DILATIONS = (1, 2, 3, 4, 8, 16, 32)
FURTHER = (1, 2, 3)
MOST_PADS = 16
NAMES = ("bias", "stride", "padding", "dilation", "groups")
TRANSPOSED = {"conv_transpose1d": 1, "conv_transpose2d": 2, "conv_transpose3d": 3}
TRANSPOSED_NAMES = ("bias", "stride", "padding", "output_padding", "groups", "dilation")


def pads(operation: Operation) -> Iterator[Alteration]:
    """Of `pad`: on the other side, of another kind."""
    if operation.name != "pad":
        return
    sizes, kind = [*operation.args[1]], (operation.args[2:] or (operation.kwargs.get("mode", "constant"),))[0]
    pairs = [sizes[i : i + 2] for i in range(0, len(sizes), 2)]
    others = {"on the other side": [each[::-1] for each in pairs], "for height and width exchanged": pairs[::-1]}
    others |= {f"on the other side of axis {-1 - i}": [*pairs[:i], each[::-1], *pairs[i + 1 :]] for i, each in enumerate(pairs)}
    others |= {
        f"{before} before and {total - before} behind": [(before, total - before)] * len(pairs)
        for total in {sum(each) for each in pairs}
        for before in range(total + 1 if total <= MOST_PADS else 0)
        if all(sum(each) == total for each in pairs)
    }
    for says, other in others.items():
        if other != pairs:
            yield instead(operation, f"pads {says}", with_argument(1, tuple(itertools.chain.from_iterable(other))))
    for mode in MODES:
        if mode != kind:
            says = "zeros" if mode == "constant" else f"'{mode}'"
            yield instead(operation, f"pads by {says}", lambda f, a, k, n, mode=mode: functional.pad(*a[:2], mode=mode))


def convolutions(operation: Operation) -> Iterator[Alteration]:
    """Of a convolution: pads of another kind, windows that begin elsewhere, another dilation."""
    if operation.name not in CONVOLUTIONS:
        return
    axes, how = CONVOLUTIONS[operation.name], settings(operation)
    if any(how["padding"]):
        for mode in MODES[1:]:
            yield instead(operation, f"pads by '{mode}'", partial(otherwise, (axes, "mode", mode)))
    for later, at in shifts(max(*(step - 1 for step in how["stride"]), *how["padding"]), axes):
        says = begins(later, how["padding"][at[0]], where(at, axes))
        yield instead(operation, says, partial(otherwise, (axes, "later", tuple(later * (i in at) for i in range(axes)))))
    for dilation in DILATIONS:
        if any(dilation != each for each in how["dilation"]) and any(size > 1 for size in operation.args[1].shape[2:]):
            says = f"has a dilation of {dilation}, and pads for it"
            yield instead(operation, says, partial(otherwise, (axes, "dilation", dilation)))
            if axes == 1:
                says = f"has a dilation of {dilation}, and pads for it in front"
                yield instead(operation, says, partial(otherwise, (axes, "causal dilation", dilation)))
    yield instead(operation, "reads its input reshaped to channels last, where it has to be transposed", channels_reshaped)
    kernel = operation.args[1]
    if axes == 2 and kernel.shape[-1] != kernel.shape[-2]:
        return
    if axes == 2 and (how["stride"][0] != how["stride"][1] or how["padding"][0] != how["padding"][1]):
        yield instead(operation, "has height and width exchanged", partial(otherwise, (axes, "turned", 0)))


def channels_reshaped(function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """The same numbers in the same order, taken for `B ... C`."""
    x = args[0]
    return function(x.reshape(x.shape[0], *x.shape[2:], x.shape[1]).movedim(-1, 1), *args[1:], **kwargs)


def shifts(most: int, axes: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """How much later windows begin, and along which of the axes: all of them, or one."""
    for at in dict.fromkeys((tuple(range(axes)), *((i,) for i in range(axes)))):
        yield from ((later, at) for size in range(1, most + 1) for later in (size, -size))


def where(at: tuple[int, ...], axes: int) -> str:
    """' along axis 2', of the array; '' where it is all of them."""
    return "" if len(at) == axes else f" along axis {at[0] + 2}"


def begins(later: int, pad: int, along: str) -> str:
    """How windows that begin elsewhere are told: by their pads, if nothing is cut off."""
    if abs(later) > pad:
        return f"begins {abs(later)} {'later' if later > 0 else 'earlier'}{along or ' in each direction'}"
    return f"pads {pad - later} before and {pad + later} behind{along}"


def settings(operation: Operation) -> dict[str, Any]:
    """Stride, padding and dilation, one number for each axis."""
    axes = CONVOLUTIONS[operation.name]
    how = dict(zip(NAMES, operation.args[2:], strict=False)) | operation.kwargs
    padding = how.get("padding", 0)
    return {
        "stride": spread(how.get("stride", 1), axes),
        "padding": (0,) * axes if isinstance(padding, str) else spread(padding, axes),
        "dilation": spread(how.get("dilation", 1), axes),
    }


def otherwise(change: tuple[int, str, Any], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """The convolution with one thing changed."""
    axes, what, value = change
    x, kernel = args[:2]
    how = dict(zip(NAMES, args[2:], strict=False)) | kwargs
    padding = spread(how.get("padding", 0), axes)
    if what == "mode":
        x = functional.pad(x, [side for each in padding[::-1] for side in (each, each)], mode=value)
        return function(x, kernel, **(how | {"padding": 0}))
    if what == "later":
        pairs = zip(padding[::-1], value[::-1], strict=True)
        x = functional.pad(x, [side for pad, later in pairs for side in (pad - later, pad + later)])
        return function(x, kernel, **(how | {"padding": 0}))
    if what == "turned":
        how |= {key: tuple(how[key])[::-1] for key in ("stride", "padding") if isinstance(how.get(key), (tuple, list))}
        return function(x, kernel, **how)
    before = spread(how.get("dilation", 1), axes)
    if what == "causal dilation":
        x = functional.pad(x, ((value - before[0]) * (kernel.shape[2] - 1), 0))
        return function(x, kernel, **(how | {"dilation": value}))
    moved = [(value - old) * (size - 1) for old, size in zip(before, kernel.shape[2:], strict=True)]
    changed = tuple(pad + more // 2 for pad, more in zip(padding, moved, strict=True))
    return function(x, kernel, **(how | {"dilation": value, "padding": changed}))


def transposed(operation: Operation) -> Iterator[Alteration]:
    """Of a transposed convolution: another part of all that it could give."""
    if operation.name not in TRANSPOSED:
        return
    axes = TRANSPOSED[operation.name]
    for later, at in shifts(max(operation.args[1].shape[2:]) - 1, axes):
        says = f"begins {abs(later)} {'later' if later > 0 else 'earlier'}{where(at, axes) or ' in each direction'}"
        yield instead(operation, says, partial(another_part, tuple(later * (i in at) for i in range(axes))))


def another_part(later: tuple[int, ...], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """The same size of a transposed convolution without padding, begun so much later; 0 beyond its ends."""
    x, kernel = args[:2]
    how = dict(zip(TRANSPOSED_NAMES, args[2:], strict=False)) | kwargs
    bias, wanted = how.get("bias"), function(*args, **kwargs).shape[2:]
    whole = function(x, kernel, **(how | {"bias": None, "padding": 0, "output_padding": 0}))
    sides: list[int] = []
    for size, length, start, pad in zip(whole.shape[2:], wanted, later, spread(how.get("padding", 0), len(later)), strict=True):
        sides = [-(pad + start), pad + start + length - size, *sides]
    part = functional.pad(whole, sides)
    return part if bias is None else part + bias.view(-1, *[1] * len(later))


def transforms(operation: Operation) -> Iterator[Alteration]:
    """Of a short-time Fourier transform: what it pads, its window, where it begins, its steps."""
    if operation.name != "stft":
        return
    for mode in MODES[:3]:
        says = "zeros" if mode == "constant" else f"'{mode}'"
        yield instead(operation, f"pads by {says}", lambda f, a, k, n, mode=mode: f(*a, **(k | {"pad_mode": mode})))
    size = operation.args[1]
    for says, make in windows().items():
        window = make(size).double()
        yield instead(operation, f"has {says} for its window", lambda f, a, k, n, w=window: f(*a, **(k | {"window": w})))
    for later in (*FURTHER, -1):
        says = f"begins {abs(later)} {'later' if later > 0 else 'earlier'}"
        yield instead(operation, says, partial(begun_later, later))
    hop = operation.args[2] if len(operation.args) > 2 else operation.kwargs.get("hop_length")
    for other in dict.fromkeys((size // 4, size // 2, size // 3, size // 8, size, (hop or 0) * 2, (hop or 0) // 2)):
        if 0 < other != hop:
            yield instead(operation, f"goes {other} on each time", partial(hopping, other))


def windows() -> dict[str, Any]:
    """By their names."""
    found = {"ones": torch.ones}
    for name in ("hann", "hamming", "blackman", "bartlett"):
        make = getattr(torch, f"{name}_window")
        found |= {f"{name}, symmetric,": partial(make, periodic=False), f"{name}, periodic,": make}
    return found


def hopping(hop: int, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """With steps of another length."""
    if len(args) > 2:
        return function(*args[:2], hop, *args[3:], **kwargs)
    return function(*args, **(kwargs | {"hop_length": hop}))


def begun_later(later: int, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """What is padded, moved around."""
    x, size = args[0], args[1]
    if kwargs.get("center", True):
        shape = x.shape
        x = functional.pad(x.reshape(1, -1, shape[-1]), (size // 2, size // 2), mode=kwargs.get("pad_mode", "reflect"))
        x = x.reshape(*shape[:-1], -1)
    return function(x.roll(-later, -1), *args[1:], **(kwargs | {"center": False}))


KINDS = (pads, convolutions, transposed, transforms)
