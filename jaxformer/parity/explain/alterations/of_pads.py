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
DILATIONS = range(1, 5)
FURTHER = (1, 2, 3)
NAMES = ("bias", "stride", "padding", "dilation", "groups")


def pads(operation: Operation) -> Iterator[Alteration]:
    """Of `pad`: on the other side, of another kind."""
    if operation.name != "pad":
        return
    sizes, kind = [*operation.args[1]], (operation.args[2:] or (operation.kwargs.get("mode", "constant"),))[0]
    pairs = [sizes[i : i + 2] for i in range(0, len(sizes), 2)]
    others = {"on the other side": [each[::-1] for each in pairs], "for height and width exchanged": pairs[::-1]}
    others |= {f"on the other side of axis {-1 - i}": [*pairs[:i], each[::-1], *pairs[i + 1 :]] for i, each in enumerate(pairs)}
    for says, other in others.items():
        if other != pairs:
            yield instead(operation, f"pads {says}", with_argument(1, tuple(itertools.chain.from_iterable(other))))
    for mode in MODES:
        if mode != kind:
            says = "zeros" if mode == "constant" else f"'{mode}'"
            yield instead(operation, f"pads by {says}", lambda f, a, k, n, mode=mode: functional.pad(*a[:2], mode=mode))


def convolutions(operation: Operation) -> Iterator[Alteration]:
    """Of a convolution: pads of another kind, windows that begin later, another dilation."""
    if operation.name not in CONVOLUTIONS:
        return
    axes, how = CONVOLUTIONS[operation.name], settings(operation)
    if any(how["padding"]):
        for mode in MODES[1:]:
            yield instead(operation, f"pads by '{mode}'", partial(otherwise, (axes, "mode", mode)))
    for step in range(1, max(how["stride"])):
        yield instead(operation, f"begins {step} later in each direction", partial(otherwise, (axes, "later", step)))
    for dilation in DILATIONS:
        if any(dilation != each for each in how["dilation"]) and any(size > 1 for size in operation.args[1].shape[2:]):
            says = f"has a dilation of {dilation}, and pads for it"
            yield instead(operation, says, partial(otherwise, (axes, "dilation", dilation)))
    kernel = operation.args[1]
    if axes == 2 and kernel.shape[-1] != kernel.shape[-2]:
        return
    if axes == 2 and (how["stride"][0] != how["stride"][1] or how["padding"][0] != how["padding"][1]):
        yield instead(operation, "has height and width exchanged", partial(otherwise, (axes, "turned", 0)))


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
        x = functional.pad(x, [side for each in padding[::-1] for side in (each - value, each + value)])
        return function(x, kernel, **(how | {"padding": 0}))
    if what == "turned":
        how |= {key: tuple(how[key])[::-1] for key in ("stride", "padding") if isinstance(how.get(key), (tuple, list))}
        return function(x, kernel, **how)
    before = spread(how.get("dilation", 1), axes)
    moved = [(value - old) * (size - 1) for old, size in zip(before, kernel.shape[2:], strict=True)]
    changed = tuple(pad + more // 2 for pad, more in zip(padding, moved, strict=True))
    return function(x, kernel, **(how | {"dilation": value, "padding": changed}))


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


KINDS = (pads, convolutions, transforms)
