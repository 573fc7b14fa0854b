"""Functions of torch's that are taken for one another: activations, norms, and what pads."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

Function = Callable[..., Any]

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "gelu by tanh": lambda x: functional.gelu(x, approximate="tanh"),
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
    "leaky relu": functional.leaky_relu,
    "leaky relu 0.2": lambda x: functional.leaky_relu(x, 0.2),
    "hard swish": functional.hardswish,
    "hard sigmoid": functional.hardsigmoid,
    "mish": functional.mish,
    "selu": functional.selu,
    "softsign": functional.softsign,
    "hard tanh": functional.hardtanh,
    "log sigmoid": functional.logsigmoid,
    "hard sigmoid 0.2 x + 0.5": lambda x: (0.2 * x + 0.5).clamp(0, 1),
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(-1),
}
EXPONENTIALS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp(-x)": lambda x: torch.exp(-x),
    "exp(x) - 1": torch.expm1,
    "2^x": torch.exp2,
    "1 + x": lambda x: 1 + x,
    "(1 + x/2) / (1 - x/2)": lambda x: (1 + x / 2) / (1 - x / 2),
}
"""Taken for the exponential, or near it."""
PLAIN_NAMES = {
    "leaky_relu": "leaky relu",
    "hardswish": "hard swish",
    "hardsigmoid": "hard sigmoid",
    "log_softmax": "log softmax",
    "hardtanh": "hard tanh",
    "logsigmoid": "log sigmoid",
}
"""Of torch's functions, where they differ."""
ADDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: ACTIVATIONS[name] for name in ("tanh", "relu", "gelu", "gelu by tanh", "silu", "sigmoid", "softmax", "softplus")},
    "a division by the sum": lambda x: x / x.sum(-1, keepdim=True),
    "a division by the norm": lambda x: functional.normalize(x, dim=-1),
}
"""What may come behind an operation."""
POOLINGS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "the mean": lambda x, axis: x.mean(axis),
    "the largest": lambda x, axis: x.amax(axis),
    "the sum": lambda x, axis: x.sum(axis),
    "the first": lambda x, axis: x.select(axis, 0),
    "the last": lambda x, axis: x.select(axis, -1),
}
WINDOWED = {"conv1d": 1, "conv2d": 2, "conv3d": 3, "max_pool1d": 1, "max_pool2d": 2, "avg_pool1d": 1, "avg_pool2d": 2}
"""Functions with windows, and along how many axes."""


def layer_norm(kind: str, x: Any, shape: Any, *affine: Any, eps: float | None = None, **named: Any) -> Any:
    """torch's, but for its `kind`. `affine` may have weight, bias and epsilon."""
    held = dict(zip(("weight", "bias", "eps"), affine, strict=False)) | named
    epsilon = next((each for each in (eps, held.get("eps")) if each is not None), 1e-5)
    y = around = x if kind.startswith("rms") else x - x.mean(-1, keepdim=True)
    y = x if kind == "kept" else y
    size = around.square().sum(-1, keepdim=True) / (x.shape[-1] - (kind == "unbiased"))
    y = y / (size.sqrt() + epsilon if kind.endswith("root") else (size + epsilon).sqrt())
    weight, bias = held.get("weight"), held.get("bias")
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def rms_as_layer_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """With its mean subtracted."""
    return functional.layer_norm(x, shape, weight, None, torch.finfo(torch.float32).eps if eps is None else eps)


def rms_behind_root(x: Any, shape: Any, weight: Any = None, eps: float = 0.0) -> Any:
    """Divided by the root plus epsilon."""
    return layer_norm("rms behind root", x, shape, weight, eps=eps)


def of_batch(x: Any, mean: Any, var: Any, *others: Any, **named: Any) -> Any:
    """A batch norm by the batch's own statistics."""
    held: dict[str, Any] = dict(zip(("weight", "bias", "training", "momentum", "eps"), others, strict=False)) | named
    held["training"] = True
    return functional.batch_norm(x, None, None, **held)


def group_norm(kind: str, x: Any, groups: int, *others: Any, **named: Any) -> Any:
    """torch's, but for its `kind`. `others` may have weight, bias and epsilon."""
    held = dict(zip(("weight", "bias", "eps"), others, strict=False)) | named
    apart = (len(x), -1, groups) if kind == "strided" else (len(x), groups, -1)
    parts = x.reshape(*apart, *x.shape[2:])
    first = {"strided": (1,), "batch": (0, 2)}.get(kind, (2,))
    axes = first if kind == "positions" else (*first, *range(3, parts.ndim))
    around = parts if kind == "rms" else parts - parts.mean(axes, keepdim=True)
    size = around.square().mean(axes, keepdim=True)
    if kind == "unbiased":
        many = x[0].numel() / groups
        size = size * many / (many - 1)
    y = parts if kind == "kept" else around
    y = (y / (size + held.get("eps", 1e-5)).sqrt()).reshape(x.shape)
    shape = (-1, *[1] * (x.ndim - 2))
    weight, bias = (None if held.get(name) is None else held[name].reshape(shape) for name in ("weight", "bias"))
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def channels_norm(x: Any, groups: int, *others: Any, **named: Any) -> Any:
    """A layer norm of the channels of each position."""
    return group_norm("positions", x, 1, *others, **named)


def padded(function: Function, args: Any, kwargs: Any, where: str) -> Any:
    """A convolution or pooling that pads as XLA's 'SAME' does, with what is odd behind; or as much as torch, but 'before' or
    'behind' alone, or 'with 0'."""
    name, x = function.__name__, args[0]
    n, conv = WINDOWED[name], name.startswith("conv")
    names = ("bias", "stride", "padding", "dilation", "groups") if conv else ("stride", "padding", "dilation")
    how = dict(zip(names[:2] if name.startswith("avg") else names, args[2:], strict=False)) | kwargs
    sizes = tuple(args[1].shape[2:]) if conv else spread(args[1] if len(args) > 1 else how.pop("kernel_size"), n)
    strides, steps = spread(how.get("stride") or (1 if conv else sizes), n), spread(how.get("dilation", 1), n)
    pads: list[int] = []
    for length, size, stride, step, pad in zip(
        x.shape[2:], sizes, strides, steps, spread(how.get("padding", 0), n), strict=True
    ):
        total = max((-(-length // stride) - 1) * stride + (size - 1) * step + 1 - length, 0)
        same = total // 2, total - total // 2
        both = {"same": same, "behind": (0, 2 * pad), "before": (2 * pad, 0), "with 0": (pad, pad)}[where]
        pads = [*both, *pads]
    filled = functional.pad(x, pads, value=-torch.inf if name.startswith("max") and where != "with 0" else 0.0)
    return function(filled, args[1] if conv else sizes, **(how | {"padding": 0}))


def of_windows(name: str) -> dict[str, Function]:
    """Other poolings of the same windows, in words."""
    n, kind = name[-2:], name[:-2]
    plain = {"adaptive_avg_pool": "adaptive_max_pool", "adaptive_max_pool": "adaptive_avg_pool"}
    if kind in plain:
        return {f"takes the {'largest' if 'avg' in kind else 'mean'} there": getattr(functional, plain[kind] + n)}
    if kind == "max_pool":
        counts = {"": True, ", without what it pads": False}
        return {f"takes the mean{says} there": partial(mean_pool, n, counted) for says, counted in counts.items()}
    if kind == "avg_pool":
        return {"takes the largest there": partial(max_pool, n), "does not count what it pads": partial(mean_pool, n, False)}
    return {}


def mean_pool(
    n: str, counted: bool, x: Any, size: Any, stride: Any = None, padding: Any = 0, *others: Any, **named: Any
) -> Any:
    """Of a pooling's windows; those with dilation are left out."""
    how = {"ceil_mode": named.get("ceil_mode", False), "count_include_pad": counted}
    return getattr(functional, f"avg_pool{n}")(x, size, stride, padding, **how)


def max_pool(n: str, x: Any, size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, *others: Any) -> Any:
    """Of a mean pooling's windows."""
    return getattr(functional, f"max_pool{n}")(x, size, stride, padding, ceil_mode=ceil_mode)


def spread(value: Any, n: int) -> tuple[int, ...]:
    """One number for all axes, or one each."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


def with_operand(i: int, change: Callable[[Any], Any], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """The same function of another operand."""
    return function(*args[:i], change(args[i]), *args[i + 1 :], **kwargs)


def in_order(parts: Any, order: Sequence[int]) -> Any:
    """The parts of a tuple, of named ones without their names."""
    found = [parts[i] for i in order]
    return found if type(parts) is list else tuple(found)


def merged(order: tuple[int, ...], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Axes in another order, merged."""
    return function(args[0].permute(order).contiguous(), *args[1:], **kwargs)


def split_in(first: int, order: tuple[int, ...], function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """The axes from the first on, where they lie in another order in what is split."""
    y = function(*args, **kwargs)
    axes = [*range(first), *order, *range(first + len(order), y.ndim)]
    return args[0].reshape([y.shape[axis] for axis in axes]).permute([axes.index(axis) for axis in range(y.ndim)])


def shifted(move: tuple[int, int], cut: bool, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Its output, moved along an axis by so many: around, or `cut` off at the end."""
    axis, more = move
    y = function(*args, **kwargs).roll(more, axis)
    if cut:
        y.select(axis, 0 if more > 0 else -1).zero_()
    return y


def corrected(correction: int, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """A variance, biased or not."""
    kwargs = {name: value for name, value in kwargs.items() if name not in ("unbiased", "correction")}
    kept = tuple(each for each in args if not isinstance(each, bool))
    keepdim = {"keepdim": True} if True in args[2:] else {}
    return function(*kept, **kwargs, **keepdim, correction=correction)


NORMS: dict[str, dict[str, Function]] = {
    "layer_norm": {
        "without its mean subtracted": partial(layer_norm, "rms"),
        "by the unbiased variance": partial(layer_norm, "unbiased"),
        "with its mean subtracted in the variance alone": partial(layer_norm, "kept"),
    },
    "rms_norm": {"with its mean subtracted": rms_as_layer_norm},
    "weight_norm": {"does not divide by the norm": lambda v, g, axis=0: v * g},
    "batch_norm": {"by the statistics of the batch": of_batch},
    "group_norm": {
        "with groups of every nth channel": partial(group_norm, "strided"),
        "at each position by itself": partial(group_norm, "positions"),
        "at each position by itself, over all channels": channels_norm,
        "over all rows of the batch": partial(group_norm, "batch"),
        "without its mean subtracted": partial(group_norm, "rms"),
        "with its mean subtracted in the variance alone": partial(group_norm, "kept"),
        "by the unbiased variance": partial(group_norm, "unbiased"),
    },
}
"""Other norms than torch's, in words."""
EPSILON_BEHIND_ROOT: dict[str, Function] = {"layer_norm": partial(layer_norm, "behind root"), "rms_norm": rms_behind_root}
