"""Random numbers drawn in training mode, on both sides: each draw is noted with its module, and both are given the same
ones."""

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax.core.tracers import current_trace

from jaxformer.parity.numerics.float64 import torch_operations
from jaxformer.parity.trace.batched_values import is_mapped, outside_of_vmaps
from jaxformer.parity.trace.source_lines import line_here
from jaxformer.runtime import random

DROPOUT, UNIFORM, NORMAL = "dropout", "uniform", "normal"
"""Kinds of draws: which units are kept, numbers between 0 and 1, and normal ones. Any other cannot be shared."""


@dataclass(frozen=True)
class Draw:
    """One draw of one run, without its numbers."""

    path: str
    """Of the innermost module around it; '' where that is the model itself."""
    kind: str
    """Of these, or the name of another operation."""
    shape: tuple[int, ...]
    number: int = 0
    """How many there were before at this path."""
    keep: float = 1.0
    """The probability that a unit is kept."""
    line: str = field(default="", compare=False)
    """Of the user's code, 'model.py:12'."""

    @property
    def says(self) -> str:
        """'dropout of 0.1 in layers.0'"""
        what = f"dropout of {1 - self.keep:.6g}" if self.kind == DROPOUT else f"{self.kind} numbers"
        return f"{what} in {self.path or 'the model itself'}" + (f" ({self.line})" if self.line else "")


def numbers_of(draw: Draw) -> np.ndarray:
    """The same ones every time, which float32 holds too: True where a unit is kept, else floats."""
    rng = np.random.default_rng([zlib.crc32(draw.path.encode()), draw.number])
    if draw.kind == NORMAL:
        return rng.standard_normal(draw.shape).astype(np.float32)
    uniform = np.asarray(rng.random(draw.shape, np.float32))
    return np.asarray(uniform < draw.keep) if draw.kind == DROPOUT else uniform


def in_range(numbers: Any, low: Any, high: Any) -> Any:
    """Numbers between 0 and 1 moved to between these two."""
    return low + (high - low) * numbers


SEED = 0
"""Of the draws that cannot be given numbers."""


Change = Callable[[Any, float], Any]
"""change(numbers, keep): other numbers for a draw; of dropout 1.0 where a unit is kept, which is then divided by `keep`."""

_altered: list[tuple[Mapping[tuple[str, int], Change], list[Draw]]] = []
"""What changes draws while a cause is looked for, by module and number; and where they are noted."""


@contextmanager
def mutated_draws(changes: Mapping[tuple[str, int], Change], noted: list[Draw] | None = None) -> Iterator[None]:
    """Inside, draws of `repeatable_draws` are changed, and noted."""
    _altered.append((changes, [] if noted is None else noted))
    try:
        yield
    finally:
        _altered.pop()


@contextmanager
def repeatable_draws(model: Any) -> Iterator[list[Draw]]:
    """Inside, whatever `model` draws is decided by its place alone: its module, and how many draws came before it there.

    nn.Dropout and its kin, F.dropout, nn.MultiheadAttention, scaled_dot_product_attention, torch.rand, torch.randn,
    torch.bernoulli and torch.normal on the CPU get `numbers_of` their place; other operations draw from one seed. torch's own
    generator stays as it was.
    """
    import torch
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    paths, notes = {module: path for path, module in model.named_modules()}, _Notes()

    def enter(module: Any, _: Any) -> None:
        notes.running.append(paths.get(module, notes.running[-1]))

    def leave(*_: Any) -> None:
        notes.running.pop()

    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)
    try:
        with torch.random.fork_rng(devices=[]), _repeating(notes.numbers):
            torch.manual_seed(SEED)
            yield notes.found
    finally:
        for hook in hooks:
            hook.remove()


class _Notes:
    """The modules that are running, and what they have drawn."""

    def __init__(self) -> None:
        self.running = [""]
        self.calls: Counter[str] = Counter()
        self.found: list[Draw] = []

    def numbers(self, kind: str, shape: Any, keep: float = 1.0) -> Any:
        """Those of the next draw, in float64: what is made of them may be so too."""
        import torch

        path = self.running[-1]
        draw = Draw(path, kind, tuple(shape), self.calls[path], keep, line_here())
        self.calls[path] += 1
        self.found.append(draw)
        numbers = torch.from_numpy(numbers_of(draw)).double()
        for changes, noted in _altered:
            noted.append(draw)
            if change := changes.get((draw.path, draw.number)):
                numbers = change(numbers, keep)
        return numbers


def _kept(numbers: Callable[..., Any], shape: Any, p: Any) -> Any:
    """Which units are kept. `p` may be a tensor: of several probabilities, they are those above uniform numbers."""
    import torch

    if isinstance(p, torch.Tensor) and p.numel() and bool((p == p.flatten()[0]).all()):
        p = p.flatten()[0].item()
    return numbers(UNIFORM, shape) < p if isinstance(p, torch.Tensor) else numbers(DROPOUT, shape, p)


def _repeating(numbers: Callable[..., Any]) -> Any:
    """Inside, torch's operations draw these numbers."""
    import torch

    aten = torch.ops.aten
    bernoulli = aten.bernoulli_.float, aten.bernoulli_.Tensor, aten.bernoulli.p, aten.bernoulli.default
    plain = {aten.rand: UNIFORM, aten.rand_like: UNIFORM, aten.randn: NORMAL, aten.randn_like: NORMAL}

    def repeating(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        def given(i: int, name: str, usual: Any) -> Any:
            return args[i] if len(args) > i else kwargs.get(name, usual)

        if operation in bernoulli:
            place = args[0] if operation.overloadpacket is aten.bernoulli_ else torch.empty_like(args[0])
            p = given(1, "p", 0.5 if operation is aten.bernoulli_.float else args[0])
            return place.copy_(_kept(numbers, place.shape, p))
        output = operation(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded not in operation.tags or not isinstance(output, torch.Tensor):
            return output
        if kind := plain.get(operation.overloadpacket):
            return output.copy_(numbers(kind, output.shape))
        if operation is aten.uniform_.default:
            return output.copy_(in_range(numbers(UNIFORM, output.shape), given(1, "from", 0.0), given(2, "to", 1.0)))
        if operation.overloadpacket is aten.normal:
            return output.copy_(given(0, "mean", 0.0) + given(1, "std", 1.0) * numbers(NORMAL, output.shape))
        if operation is aten.normal_.default:
            return output.copy_(given(1, "mean", 0.0) + given(2, "std", 1.0) * numbers(NORMAL, output.shape))
        if "attention" not in str(operation):
            numbers(operation.overloadpacket.__name__, output.shape)
        return output

    return torch_operations(repeating)


Seen = Callable[[str, float, Any, str], Any]
"""seen(kind, keep, numbers, line): a draw with what is mapped by vmaps in front; what it gives is used instead."""


@contextmanager
def seen_draws(seen: Seen) -> Iterator[None]:
    """Inside, `seen` decides what jax.random's bernoulli, uniform and normal give, as flax's and other models' dropouts draw.

    What is drawn while another program is traced, as Linen's initialisers for their shapes, is not seen.
    """
    level = current_trace()

    def watched(draw: Callable[..., Any], read: Callable[..., tuple[str, float, Callable[[Any], Any]]]) -> Callable[..., Any]:
        @wraps(draw)
        def drawn(*args: Any, **kwargs: Any) -> Any:
            mapped = is_mapped((args, kwargs))
            if not (mapped or current_trace() == level):
                return draw(*args, **kwargs)
            kind, keep, finished = read(*args, **kwargs)
            line = line_here()
            if mapped:
                numbers = draw(*args, **kwargs)
            else:
                shape = jax.eval_shape(lambda: draw(*args, **kwargs))
                numbers = jnp.zeros(shape.shape, shape.dtype)
            return outside_of_vmaps(lambda value: finished(seen(kind, keep, value, line)).astype(value.dtype), numbers)

        return drawn

    with ExitStack() as stack:
        for owner, name, read in (
            (random, "dropout_mask", _dropout_mask),
            (jax.random, "bernoulli", _bernoulli),
            (jax.random, "uniform", _uniform),
            (jax.random, "normal", _normal),
        ):
            stack.enter_context(mock.patch.object(owner, name, watched(getattr(owner, name), read)))
        yield


def _dropout_mask(key: Any, rate: float, *_: Any, **__: Any) -> tuple[str, float, Callable[[Any], Any]]:
    return DROPOUT, 1 - float(rate), lambda numbers: numbers


def _bernoulli(key: Any, p: Any = 0.5, *_: Any, **__: Any) -> tuple[str, float, Callable[[Any], Any]]:
    keep = _plain(p)
    return (UNIFORM, 1.0, lambda numbers: numbers < p) if math.isnan(keep) else (DROPOUT, keep, lambda numbers: numbers)


def _uniform(
    key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0, **_: Any
) -> tuple[str, float, Callable[[Any], Any]]:
    return UNIFORM, 1.0, lambda numbers: in_range(numbers, minval, maxval)


def _normal(key: Any, *_: Any, **__: Any) -> tuple[str, float, Callable[[Any], Any]]:
    return NORMAL, 1.0, lambda numbers: numbers


def _plain(p: Any) -> float:
    """A probability that is one known number; NaN elsewhere."""
    try:
        return float(p)
    except (TypeError, jax.errors.JAXTypeError):
        return float("nan")


@contextmanager
def fed_draws(numbers: Sequence[np.ndarray | None]) -> Iterator[None]:
    """Inside, the draws give these numbers, in their order; None, and what comes after the last, gives numbers of its own:
    every unit is kept, or zeros."""
    waiting = iter(numbers)

    def seen(kind: str, keep: float, value: Any, line: str) -> Any:
        instead = next(waiting, None)
        if instead is None or instead.shape != value.shape:
            return jnp.ones_like(value) if kind == DROPOUT else jnp.zeros_like(value)
        return jnp.asarray(instead)

    with seen_draws(seen):
        yield
