"""What may be otherwise in one operation of torch's code."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from jaxformer.parity.explain.alterations.altered import Alteration, Dial
from jaxformer.parity.explain.alterations.operations import Altered, Compute, Operation

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
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(-1),
}
KNOWN = {"gelu", "silu", "relu", "relu6", "tanh", "sigmoid", "softplus", "exp", "elu", "leaky_relu", "hardswish", "hardsigmoid"}
KNOWN |= {"mish", "softmax", "log_softmax", "hardtanh"}
"""torch's functions that may be taken for another one."""
ADDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: ACTIVATIONS[name] for name in ("tanh", "relu", "gelu", "gelu by tanh", "silu", "sigmoid", "softmax", "softplus")},
    "a division by the sum": lambda x: x / x.sum(-1, keepdim=True),
    "a division by the norm": lambda x: functional.normalize(x, dim=-1),
}
ROUNDED = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
CONTRARY = {"lt": torch.le, "le": torch.lt, "gt": torch.ge, "ge": torch.gt}
RESHAPES = {"reshape", "view", "flatten", "unflatten"}
MOST_AXES = 5
SWAPPED = {"sub", "div", "truediv", "matmul", "rsub", "cat", "where", "pow"}
POOLINGS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "the mean": lambda x, axis: x.mean(axis),
    "the largest": lambda x, axis: x.amax(axis),
    "the sum": lambda x, axis: x.sum(axis),
    "the first": lambda x, axis: x.select(axis, 0),
    "the last": lambda x, axis: x.select(axis, -1),
}


def alterations_of(operation: Operation) -> Iterator[Alteration | Dial]:
    """The plain ones first."""
    for kind in (others, arguments, without, twice, exchanged, outputs, orders, poolings, roundings, additions, factors):
        try:
            yield from kind(operation)
        except (IndexError, TypeError, ValueError, RuntimeError):
            continue  # an operation with other arguments than most


def instead(operation: Operation, says: str, compute: Compute) -> Alteration:
    """Something else is computed there."""
    return Alteration(f"computes {operation.source}", says, lambda: Altered({operation.place: compute}))


def others(operation: Operation) -> Iterator[Alteration]:
    """Another function of the same kind."""
    name, x = operation.name, operation.args[0] if operation.args else None
    if name in KNOWN:
        for other, function in ACTIVATIONS.items():
            if other != name.replace("_", " ") and ("softmax" in other) <= ("softmax" in name or name == "sigmoid"):
                yield instead(operation, f"{other} there", lambda f, args, kwargs, n, function=function: function(args[0]))
    if name in CONTRARY:
        yield instead(operation, f"{CONTRARY[name].__name__} there", lambda f, args, kwargs, n: CONTRARY[name](*args))
    if name in NORMS and isinstance(x, torch.Tensor):
        for says, function in NORMS[name].items():
            yield instead(operation, says, lambda f, args, kwargs, n, function=function: function(*args, **kwargs))
    if name in WINDOWED:
        yield instead(operation, "pads less before than behind, as 'SAME' does", lambda f, a, k, n: padded_same(f, a, k))
        if name.startswith("avg"):
            yield instead(operation, "counts what it pads", lambda f, a, k, n: padded_same(f, a, k))
    if name in ("var", "std", "var_mean", "std_mean"):
        for correction, says in ((0, "the biased one"), (1, "the unbiased one")):
            yield instead(operation, says, lambda f, args, kwargs, n, c=correction: corrected(f, args, kwargs, c))
    if name == "interpolate":
        for mode, more in itertools.product(("nearest", "bilinear", "bicubic", "area"), ({}, {"antialias": True}, {"align_corners": True})):
            how = {"mode": mode, "align_corners": None, "antialias": False} | more
            yield instead(operation, f"{mode}{''.join(f', {each}' for each in more)} there", lambda f, a, k, n, how=how: f(*a, **(k | how)))


def corrected(function: Any, args: Any, kwargs: Any, correction: int) -> Any:
    """A variance, biased or not."""
    kwargs = {name: value for name, value in kwargs.items() if name not in ("unbiased", "correction")}
    kept = tuple(each for each in args if not isinstance(each, bool))
    keepdim = {"keepdim": True} if True in args[2:] else {}
    return function(*kept, **kwargs, **keepdim, correction=correction)


def rms(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Without its mean subtracted."""
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + (eps or 0.0))
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def unbiased(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """By the unbiased variance."""
    y = (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + eps)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def outside(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """With its epsilon behind the root."""
    y = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, correction=0) + eps)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def of_batch(x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None, *others: Any, eps: float = 1e-5, **_: Any) -> Any:
    """By the batch's own statistics."""
    return functional.batch_norm(x, None, None, weight, bias, True, 0.0, others[-1] if len(others) == 3 else eps)


def strided_groups(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Groups of every nth channel."""
    shape = x.shape
    turned = x.reshape(shape[0], -1, groups, *shape[2:]).transpose(1, 2).reshape(shape)
    y = functional.group_norm(turned, groups, None, None, eps)
    y = y.reshape(shape[0], groups, -1, *shape[2:]).transpose(1, 2).reshape(shape)
    axes = (1, -1) + (1,) * (len(shape) - 2)
    return y * (1 if weight is None else weight.reshape(axes)) + (0 if bias is None else bias.reshape(axes))


def groups_of(n: int) -> Callable[..., Any]:
    """Another number of groups."""
    return lambda x, groups, *others, **kwargs: functional.group_norm(x, n, *others, **kwargs)


NORMS: dict[str, dict[str, Callable[..., Any]]] = {
    "layer_norm": {
        "without its mean subtracted": rms,
        "by the unbiased variance": unbiased,
        "with epsilon outside the root": outside,
    },
    "rms_norm": {"with its mean subtracted": lambda x, shape, w=None, eps=None: functional.layer_norm(x, shape, w, None, eps or 0)},
    "batch_norm": {"by the statistics of the batch": of_batch},
    "group_norm": {
        "with groups of every nth channel": strided_groups,
        **{f"with {n} group{'s' * (n > 1)}": groups_of(n) for n in (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)},
    },
}
WINDOWED = {"conv1d": 1, "conv2d": 2, "conv3d": 3, "max_pool1d": 1, "max_pool2d": 2, "avg_pool1d": 1, "avg_pool2d": 2}


def padded_same(function: Any, args: Any, kwargs: Any) -> Any:
    """A convolution or pooling that pads as XLA's 'SAME' does: what is odd, behind."""
    name, x = function.__name__, args[0]
    n, conv = WINDOWED[name], name.startswith("conv")
    names = ("bias", "stride", "padding", "dilation", "groups") if conv else ("stride", "padding", "dilation")
    if name.startswith("avg"):
        names = ("stride", "padding")
    how = dict(zip(names, args[2:], strict=False)) | kwargs
    sizes = tuple(args[1].shape[2:]) if conv else spread(args[1] if len(args) > 1 else how.pop("kernel_size"), n)
    strides, steps = spread(how.get("stride") or (1 if conv else sizes), n), spread(how.get("dilation", 1), n)
    pads: list[int] = []
    for length, size, stride, step in zip(x.shape[2:], sizes, strides, steps, strict=True):
        total = max((-(-length // stride) - 1) * stride + (size - 1) * step + 1 - length, 0)
        pads = [total // 2, total - total // 2, *pads]
    filled = functional.pad(x, pads, value=-torch.inf if name.startswith("max") else 0.0)
    how["padding"] = 0
    return function(filled, args[1] if conv else sizes, **how)


def spread(value: Any, n: int) -> tuple[int, ...]:
    """One number for all axes, or one each."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


def arguments(operation: Operation) -> Iterator[Alteration | Dial]:
    """Another number, switch or word; a tensor left out."""
    places = [*range(len(operation.args)), *operation.kwargs]
    for at in places:
        value = operation.args[at] if isinstance(at, int) else operation.kwargs[at]
        if isinstance(value, float):
            yield number(operation, at, value)
        elif isinstance(value, torch.Tensor) and at != 0 and (isinstance(at, str) or at > 1) and operation.name not in ("where",):
            yield instead(operation, f"without {'its bias' if value.ndim == 1 else at}", with_argument(at, None))
        else:
            for other in other_values(value, operation):
                said = f"with {shown(other)} for {shown(value)} there"
                yield instead(operation, said, with_argument(at, other))
    if operation.name == "scaled_dot_product_attention" and operation.kwargs.get("scale") is None:
        yield number(operation, "scale", operation.args[0].shape[-1] ** -0.5)


def other_values(value: Any, operation: Operation) -> list[Any]:
    """What could stand there instead."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        near = [value - 1, value + 1]
        return [*([-1] if value == 0 else [0] if value == -1 else []), *near] if operation.name == "getitem" else near
    if isinstance(value, slice):
        ends = [(value.start, value.stop)]
        ends += [(each, value.stop) for each in moved(value.start)] + [(value.start, each) for each in moved(value.stop)]
        return [slice(*each, value.step) for each in ends[1:]]
    if isinstance(value, (tuple, list)) and 0 < len(value) <= 4:
        kind = type(value) if type(value) in (tuple, list) else tuple
        found = [kind([*value[:i], other, *value[i + 1 :]]) for i, each in enumerate(value) for other in other_values(each, operation)]
        same = len(set(map(repr, value))) == 1 and len(value) > 1 and isinstance(value[0], int)
        return [kind([other] * len(value)) for other in (other_values(value[0], operation) if same else [])] + found
    return []


def moved(end: Any) -> list[int]:
    """An end of a slice, one further on either side."""
    return [end - 1, end + 1] if isinstance(end, int) else []


def shown(value: Any) -> str:
    """As Python has it; a slice as in brackets."""
    if isinstance(value, slice):
        return ":".join("" if each is None else str(each) for each in (value.start, value.stop))
    if isinstance(value, tuple) and any(isinstance(each, slice) for each in value):
        return f"[{', '.join(map(shown, value))}]"
    return "..." if value is ... else repr(value)


def number(operation: Operation, at: int | str, value: float) -> Dial:
    """A number among its arguments."""
    return Dial(
        f"computes {operation.source}",
        f"with {{}} for {value:.9g} there",
        value,
        lambda other: Altered({operation.place: with_argument(at, other)}),
    )


def with_argument(at: int | str, other: Any) -> Compute:
    """The same function with another argument."""

    def compute(function: Any, args: Any, kwargs: Any, n: int) -> Any:
        if isinstance(at, str):
            return function(*args, **(kwargs | {at: other}))
        return function(*args[:at], other, *args[at + 1 :], **kwargs)

    return compute


def without(operation: Operation) -> Iterator[Alteration]:
    """It is left out: one of its tensors goes on as it is."""
    if not isinstance(operation.output, torch.Tensor) or operation.name in ("clone", "contiguous", "to", "detach", "float"):
        return
    tensors = [i for i, each in enumerate(operation.args) if isinstance(each, torch.Tensor)]
    for i in tensors:
        if operation.args[i].shape == operation.output.shape:
            said = "leaves it out" if len(tensors) == 1 else f"has its {('first', 'second', 'third')[i]} operand alone"
            yield instead(operation, said, lambda f, args, kwargs, n, i=i: args[i])


def twice(operation: Operation) -> Iterator[Alteration]:
    """What is done is done again."""
    first = operation.args[0] if operation.args else None
    if isinstance(first, torch.Tensor) and first.is_floating_point() and isinstance(operation.output, torch.Tensor):
        if first.shape == operation.output.shape and operation.name not in ("linear",):
            yield instead(operation, "does it twice", lambda f, args, kwargs, n: f(f(*args, **kwargs), *args[1:], **kwargs))


def exchanged(operation: Operation) -> Iterator[Alteration]:
    """Its operands exchanged."""
    args = operation.args
    if operation.name in SWAPPED and len(args) > 1 and all(isinstance(each, torch.Tensor) for each in args[-2:]):
        if args[-1].shape == args[-2].shape:
            yield instead(operation, "exchanges the two", lambda f, a, kwargs, n: f(*a[:-2], a[-1], a[-2], **kwargs))
    if operation.name in ("cat", "concat") and isinstance(args[0], (tuple, list)):
        yield instead(operation, "has them in the other order", lambda f, a, kwargs, n: f(a[0][::-1], *a[1:], **kwargs))


def outputs(operation: Operation) -> Iterator[Alteration]:
    """Integers moved, booleans inverted, parts in another order."""
    x = operation.output
    if isinstance(x, (tuple, list)):
        if len(x) < 5:
            for order in [*itertools.permutations(range(len(x)))][1:]:
                said = f"takes its parts in the order {', '.join(map(str, order))}"
                yield instead(operation, said, lambda f, a, k, n, order=order: type(x)([f(*a, **k)[i] for i in order]) if type(x) in (tuple, list) else tuple(f(*a, **k)[i] for i in order))
        return
    if x.dtype == torch.bool:
        yield instead(operation, "has the contrary", lambda f, a, k, n: ~f(*a, **k))
    elif not x.is_floating_point() and not x.is_complex():
        for more in (1, -1, 2):
            yield instead(operation, f"has {more:+d} on it", lambda f, a, k, n, more=more: f(*a, **k) + more)
    elif x.ndim > 2 and x.shape[1] > 1:
        for more, says in ((1, "one later"), (-1, "one earlier")):
            yield instead(operation, f"has it {says} along axis 1", lambda f, a, k, n, more=more: f(*a, **k).roll(more, 1))


def orders(operation: Operation) -> Iterator[Alteration]:
    """Axes in another order where they are merged or split."""
    if operation.name not in RESHAPES or not isinstance(operation.output, torch.Tensor):
        return
    before, after = operation.args[0], operation.output
    if 3 <= before.ndim <= MOST_AXES and after.ndim < before.ndim:
        for order in [*itertools.permutations(range(1, before.ndim))][1:]:
            full = (0, *order)
            said = f"merges the axes in the order {', '.join(map(str, full))}"
            yield instead(operation, said, lambda f, a, k, n, full=full: f(a[0].permute(full).contiguous(), *a[1:], **k) if len(a) > 1 or k else f(a[0].permute(full).contiguous()))
    if after.ndim > before.ndim:
        for axis in range(after.ndim - 1):
            sizes = [*after.shape]
            sizes[axis], sizes[axis + 1] = sizes[axis + 1], sizes[axis]
            said = f"splits axes {axis} and {axis + 1} the other way round"
            yield instead(operation, said, lambda f, a, k, n, sizes=tuple(sizes), axis=axis: a[0].reshape(fitted(sizes, f(*a, **k).shape, axis)).transpose(axis, axis + 1))


def fitted(sizes: tuple[int, ...], shape: Any, axis: int) -> list[int]:
    """A later run's sizes, in this order."""
    found = [*shape]
    found[axis], found[axis + 1] = found[axis + 1], found[axis]
    return found


def poolings(operation: Operation) -> Iterator[Alteration]:
    """Another way to make one of many."""
    x, y = operation.args[0] if operation.args else None, operation.output
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor) or x.ndim != y.ndim + 1 or not y.is_floating_point():
        return
    if operation.name not in ("getitem", "mean", "sum", "select", "amax"):
        return
    for axis in (axis for axis in range(x.ndim) if x.shape[:axis] + x.shape[axis + 1 :] == y.shape):
        for says, pool in POOLINGS.items():
            yield instead(operation, f"takes {says} of axis {axis}", lambda f, a, k, n, pool=pool, axis=axis: pool(a[0], axis))


def is_real(operation: Operation) -> bool:
    """Whether it gives one tensor of floats, and computes it."""
    x = operation.output
    moves = operation.name in RESHAPES | {"transpose", "permute", "contiguous", "to", "expand", "unsqueeze", "squeeze", "getitem", "get"}
    return isinstance(x, torch.Tensor) and x.is_floating_point() and not moves


def roundings(operation: Operation) -> Iterator[Alteration]:
    """Its output in a smaller type."""
    if is_real(operation):
        for name, kind in ROUNDED.items():
            yield instead(operation, f"rounds it to {name}", lambda f, a, k, n, kind=kind: f(*a, **k).to(kind).double())


def additions(operation: Operation) -> Iterator[Alteration]:
    """Something comes behind it."""
    if is_real(operation) and operation.output.ndim > 1:
        for name, function in ADDED.items():
            yield instead(operation, f"has {name} behind it", lambda f, a, k, n, function=function: function(f(*a, **k)))


def factors(operation: Operation) -> Iterator[Dial]:
    """A multiple of it."""
    if is_real(operation):
        says = "{} times that"
        yield Dial(f"computes {operation.source}", says, 1.0, lambda c: Altered({operation.place: lambda f, a, k, n: f(*a, **k) * c}))
