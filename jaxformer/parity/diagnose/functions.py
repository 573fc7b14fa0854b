"""torch functions that are mistaken for one another: activations, norms, poolings, exponentials, arithmetic."""

import itertools
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from jaxformer.parity.diagnose.calls import named
from jaxformer.parity.diagnose.computes import Compute, with_named
from jaxformer.parity.diagnose.trace import Op

Function = Callable[[torch.Tensor], torch.Tensor]
ACTIVATIONS: dict[str, Function] = {
    "gelu": functional.gelu,
    "gelu by tanh": partial(functional.gelu, approximate="tanh"),
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": functional.silu,
    "relu": torch.relu,
    "squared relu": lambda x: torch.relu(x) ** 2,
    "relu6": functional.relu6,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": functional.softplus,
    "exp": torch.exp,
    "elu": functional.elu,
    "leaky_relu": functional.leaky_relu,
    "leaky relu 0.2": partial(functional.leaky_relu, negative_slope=0.2),
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "mish": functional.mish,
    "selu": functional.selu,
    "softsign": functional.softsign,
    "hardtanh": functional.hardtanh,
    "logsigmoid": functional.logsigmoid,
    "hard sigmoid 0.2 x + 0.5": lambda x: (0.2 * x + 0.5).clamp(0, 1),
    "softmax": partial(torch.softmax, dim=-1),
    "log_softmax": partial(torch.log_softmax, dim=-1),
}
"""Activations by torch's names, or by words for those that torch has no function of."""
SPELLED = {"hardswish": "hard swish", "hardsigmoid": "hard sigmoid", "hardtanh": "hard tanh", "logsigmoid": "log sigmoid"}
EXPONENTIALS: dict[str, Function] = {
    "exp(-x)": lambda x: torch.exp(-x),
    "exp(x) - 1": torch.expm1,
    "2^x": torch.exp2,
    "1 + x": lambda x: 1 + x,
    "(1 + x/2) / (1 - x/2)": lambda x: (1 + x / 2) / (1 - x / 2),
}
"""Functions that stand for the exponential, or approximate it."""
POOLINGS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "mean": torch.mean,
    "largest": torch.amax,
    "sum": torch.sum,
    "first": lambda x, axis: x.select(axis, 0),
    "last": lambda x, axis: x.select(axis, -1),
}
ARITHMETIC: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "product": ("multiplies the two", torch.mul),
    "difference": ("subtracts them", torch.sub),
    "sum": ("adds the two", torch.add),
    "quotient": ("divides the first by the second", torch.div),
    "smaller": ("takes the smaller (`minimum`)", torch.minimum),
    "larger": ("takes the larger (`maximum`)", torch.maximum),
    "either": ("is true where either is, not where both are", torch.logical_or),
    "both": ("is true where both are, not where either is", torch.logical_and),
}
"""Operations of two tensors, with words."""
OTHERWISE = {
    "add": ("product", "difference"),
    "sub": ("sum",),
    "mul": ("sum", "quotient"),
    "div": ("product",),
    "truediv": ("product",),
    "maximum": ("smaller",),
    "minimum": ("larger",),
    "max": ("smaller",),
    "min": ("larger",),
    "and": ("either",),
    "logical_and": ("either",),
    "or": ("both",),
    "logical_or": ("both",),
}
"""Operations of two tensors, and the `ARITHMETIC` that may replace each."""
WITH_NUMBERS: dict[str, tuple[str, Callable[[torch.Tensor, float], torch.Tensor]]] = {
    "sum": ("adds {number} to it", torch.add),
    "product": ("multiplies it by {number}", torch.mul),
    "rest": ("subtracts it from {number}", lambda x, number: number - x),
    "inverse": ("divides {number} by it", lambda x, number: number / x),
    "power": ("takes the power {number} of it", torch.pow),
}
"""Operations of a tensor and a number, with words: those that no other number gives."""
OTHER_WITH_NUMBERS = {
    **dict.fromkeys(("mul", "rmul", "div", "truediv"), ("sum", "inverse")),
    **dict.fromkeys(("add", "radd", "sub"), ("product", "rest")),
    **dict.fromkeys(("rsub", "rdiv", "rtruediv"), ("sum", "product")),
    "pow": ("product",),
    "rpow": ("power",),
}
"""Operations of a tensor and a number, and those of `WITH_NUMBERS` that may replace each."""
COMPARING = {"lt": "`<`", "le": "`<=`", "gt": "`>`", "ge": "`>=`"}
"""Comparisons, with their signs."""
EXCHANGED = (("any", "all"), ("abs", "square"), ("argmax", "argmin"), ("sin", "cos"))
CONTRARY = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt"} | dict(EXCHANGED) | {b: a for a, b in EXCHANGED}
REDUCTIONS = ("mean", "sum", "amax", "amin")
ROUNDINGS = ("round", "floor", "ceil", "trunc")
VARIANCES = ("var", "std", "var_mean", "std_mean")
NORMALIZED = ("layer_norm", "rms_norm")
CONVOLVING = ("conv1d", "conv2d", "conv3d")
WINDOWED = {*CONVOLVING, *(f"{kind}_pool{axes}d" for kind in ("max", "avg") for axes in (1, 2, 3))}
"""Functions with windows, which may pad their input."""
RESHAPES = {"reshape", "view", "flatten", "unflatten"}
MOVES = RESHAPES | {"transpose", "permute", "contiguous", "to", "expand", "unsqueeze", "squeeze", "getitem", "get", "clone"}
"""Operations that move, copy or cast entries, and compute nothing."""
LEAST = torch.finfo(torch.float32).eps


def spelled(name: str) -> str:
    """Words for an activation."""
    return SPELLED.get(name, name.replace("_", " "))


def is_activation(op: Op) -> bool:
    """True for an operation in `ACTIVATIONS`, softmax and log softmax included."""
    return op.name in ACTIVATIONS


def kind_of(activation: Any, other: str) -> str:
    """Name of an activation's class; of one whose class does not tell it from `other`, as GELU by tanh, the function's name."""
    kind = type(activation).__name__
    named = (spelled(name) for name, function in ACTIVATIONS.items() if is_same(activation, function))
    return next(named, kind) if kind.lower() == other else kind


def is_same(one: Any, other: Any) -> bool:
    """True if two activations give equal numbers; False if the first is no function of one tensor."""
    x = torch.linspace(-4, 4, 17, dtype=torch.float64)
    with suppress(Exception):  # the user's code refuses in its own ways
        return torch.allclose(one(x), other(x), rtol=0, atol=1e-12)
    return False


def is_near(x: torch.Tensor, y: torch.Tensor) -> bool:
    """True if two tensors hold the same numbers, but for rounding."""
    return torch.allclose(x, y, rtol=1e-9, atol=1e-12)


def is_real(op: Op) -> bool:
    """True if an operation computes one tensor of floats, and does not only move entries."""
    x = op.output
    return isinstance(x, torch.Tensor) and x.is_floating_point() and op.name not in MOVES


def normalized(x: torch.Tensor, axes: tuple[int, ...], epsilon: float, kind: str) -> torch.Tensor:
    """Normalise `x`: subtract the mean and divide by the root of variance + epsilon.

    Variants by `kind`: RMS norm ("rms"), mean not subtracted ("kept"), unbiased variance ("unbiased"), epsilon added outside
    the root ("root", "rms_root").
    """
    centered = x if kind.startswith("rms") else x - x.mean(axes, keepdim=True)
    count = math.prod(x.shape[axis] for axis in axes) - (kind == "unbiased")
    size = centered.square().sum(axes, keepdim=True) / count
    root = size.sqrt() + epsilon if kind.endswith("root") else (size + epsilon).sqrt()
    return (x if kind == "kept" else centered) / root


def scaled(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply by a gain and add a bias, where they are not None."""
    return x * (1 if weight is None else weight) + (0 if bias is None else bias)


@dataclass(frozen=True)
class Norm:
    """Replacement of a layer norm or RMS norm: another kind, other axes or another epsilon, with the same gain and bias."""

    kind: str = ""
    """Kind, as in `normalized`, or "centered": an RMS norm that subtracts the mean."""
    axes: tuple[int, ...] = ()
    """Axes to normalise over; empty: torch's."""
    epsilon: float | None = None
    """Epsilon; None: torch's."""

    def __call__(self, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
        name = function.__name__
        held, kind, default = named(getattr(functional, name), args, kwargs), self.kind, 1e-5
        if name == "rms_norm":
            kind, default = {"": "rms", "root": "rms_root", "centered": ""}[kind], LEAST
        epsilon = next(each for each in (self.epsilon, held.get("eps"), default) if each is not None)
        axes = self.axes or tuple(range(-len(held["normalized_shape"]), 0))
        return scaled(normalized(held["input"], axes, epsilon, kind), held.get("weight"), held.get("bias"))


def group_norm(kind: str, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Compute a group norm of another kind, or with other groups or axes."""
    held = named(functional.group_norm, args, kwargs)
    x, groups = held["input"], 1 if kind == "channels" else held["num_groups"]
    parts = x.reshape(len(x), *((-1, groups) if kind == "strided" else (groups, -1)), *x.shape[2:])
    axes = {"strided": (1,), "rows": (0, 2)}.get(kind, (2,))
    axes += () if kind in ("positions", "channels") else tuple(range(3, parts.ndim))
    y = normalized(parts, axes, held.get("eps", 1e-5), kind).reshape(x.shape)
    affine = (held.get("weight"), held.get("bias"))
    return scaled(y, *(each if each is None else each.reshape(-1, *[1] * (x.ndim - 2)) for each in affine))


NORMS: dict[str, dict[str, Compute]] = {
    "layer_norm": {kind: Norm(kind) for kind in ("rms", "unbiased", "kept")},
    "rms_norm": {"centered": Norm("centered")},
    "weight_norm": {"undivided": lambda f, a, k, n: a[0] * a[1]},
    "batch_norm": {"batch": with_named(running_mean=None, running_var=None, training=True)},
    "group_norm": {
        kind: partial(group_norm, kind) for kind in ("strided", "positions", "channels", "rows", "rms", "kept", "unbiased")
    },
}


def spread(value: Any, n: int) -> tuple[int, ...]:
    """Return one number per axis, from one for all or one for each."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


def padded(where: str, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute a convolution or pooling with other padding.

    "same" and "counted" pad as XLA's 'SAME' does, an odd entry at the end. "before" and "after" put all of torch's padding on
    one side, "zeros" fills torch's padding of a max pooling with 0.
    """
    name, held = function.__name__, named(function, args, kwargs)
    ndim, is_convolution = int(name[-2]), name.startswith("conv")
    sizes = tuple(held["weight"].shape[2:]) if is_convolution else spread(held["kernel_size"], ndim)
    strides = spread(held.get("stride") or (1 if is_convolution else sizes), ndim)
    steps, given = spread(held.get("dilation", 1), ndim), spread(held.get("padding", 0), ndim)
    pads: list[int] = []
    for length, size, stride, step, pad in zip(held["input"].shape[2:], sizes, strides, steps, given, strict=True):
        total = max((-(-length // stride) - 1) * stride + (size - 1) * step + 1 - length, 0)
        others = {"after": (0, 2 * pad), "before": (2 * pad, 0), "zeros": (pad, pad)}
        pads = [*others.get(where, (total // 2, total - total // 2)), *pads]
    filled = functional.pad(held["input"], pads, value=-torch.inf if name.startswith("max") and where != "zeros" else 0.0)
    return function(**(held | {"input": filled, "padding": 0}))


def pooled(kind: str, counted: bool, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Compute another pooling of the same windows, without dilation. `counted`: a mean counts the padding too."""
    held, name = named(function, args, kwargs), function.__name__
    plain = {key: held[key] for key in ("input", "kernel_size", "stride", "padding", "ceil_mode") if key in held}
    return getattr(functional, kind + name[-2:])(**plain, **({"count_include_pad": counted} if kind == "avg_pool" else {}))


def adaptive(kind: str, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Compute another adaptive pooling to the same size."""
    return getattr(functional, kind + function.__name__[-2:])(*args, **kwargs)


def apart(evenly: bool, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Compute an adaptive mean over windows that do not overlap: of lengths that differ by one, the longer ones first
    (`evenly`, as `jnp.array_split`), or from the floor of each bound to that of the next."""
    held, ndim = named(function, args, kwargs), int(function.__name__[-2])
    x = held["input"]
    for axis, size in zip(range(-ndim, 0), spread(held["output_size"], ndim), strict=True):
        length = x.shape[axis]
        size = length if size is None else size
        bounds = [i * (length // size) + min(i, length % size) if evenly else i * length // size for i in range(size + 1)]
        x = torch.stack([x.narrow(axis, a, b - a).mean(axis) for a, b in itertools.pairwise(bounds)], axis)
    return x


WINDOWS: dict[str, dict[str, Compute]] = {
    "adaptive_avg_pool": {
        "largest": partial(adaptive, "adaptive_max_pool"),
        "apart": partial(apart, False),
        "apart_evenly": partial(apart, True),
    },
    "adaptive_max_pool": {"mean": partial(adaptive, "adaptive_avg_pool")},
    "max_pool": {"mean": partial(pooled, "avg_pool", True), "mean_uncounted": partial(pooled, "avg_pool", False)},
    "avg_pool": {"largest": partial(pooled, "max_pool", False), "uncounted": partial(pooled, "avg_pool", False)},
}
"""Other poolings of the same windows, by the functions' names without their number of axes."""
