"""Random numbers drawn in training mode, on both sides: each draw is recorded with its module, and both sides get the same
numbers."""

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
from jaxformer.parity.trace.call_records import is_mapped, outside_of_vmaps
from jaxformer.parity.trace.source_lines import line_here
from jaxformer.runtime import random

DROPOUT, UNIFORM, NORMAL = "dropout", "uniform", "normal"
"""Kinds of draws: masks of units to keep, numbers between 0 and 1, and normal numbers. Other kinds cannot be shared."""


@dataclass(frozen=True)
class Draw:
    """Draw of random numbers in a run, without the numbers."""

    path: str
    """Path of the innermost module around the draw; '' for the model itself."""
    kind: str
    """Kind of draw, one of the three above, or the name of another operation."""
    shape: tuple[int, ...]
    number: int = 0
    """Number of earlier draws at this path."""
    keep: float = 1.0
    """Probability that a unit is kept."""
    line: str = field(default="", compare=False)
    """Line of the user's code, 'model.py:12'."""

    @property
    def says(self) -> str:
        """Description: 'dropout of 0.1 in layers.0'"""
        what = f"dropout of {1 - self.keep:.6g}" if self.kind == DROPOUT else f"{self.kind} numbers"
        return f"{what} in {self.path or 'the model itself'}" + (f" ({self.line})" if self.line else "")


def numbers_of(draw: Draw) -> np.ndarray:
    """Return the numbers of a draw: deterministic, representable in float32; True where a unit is kept, else floats."""
    rng = np.random.default_rng([zlib.crc32(draw.path.encode()), draw.number])
    if draw.kind == NORMAL:
        return rng.standard_normal(draw.shape).astype(np.float32)
    uniform = np.asarray(rng.random(draw.shape, np.float32))
    return np.asarray(uniform < draw.keep) if draw.kind == DROPOUT else uniform


def in_range(numbers: Any, low: Any, high: Any) -> Any:
    """Scale numbers between 0 and 1 to the range between `low` and `high`."""
    return low + (high - low) * numbers


SEED = 0
"""Seed of the draws whose numbers cannot be set."""


Change = Callable[[Any, float], Any]
"""change(numbers, keep): mutated numbers of a draw; for dropout 1.0 where a unit is kept, which is then divided by `keep`."""

_altered: list[tuple[Mapping[tuple[str, int], Change], list[Draw]]] = []
"""Mutations of draws, by module and number, while a cause is searched; and the lists in which draws are recorded."""


@contextmanager
def mutated_draws(changes: Mapping[tuple[str, int], Change], noted: list[Draw] | None = None) -> Iterator[None]:
    """Context manager: mutate the draws of `repeatable_draws`, and record them in `noted`."""
    _altered.append((changes, [] if noted is None else noted))
    try:
        yield
    finally:
        _altered.pop()


@contextmanager
def repeatable_draws(model: Any) -> Iterator[list[Draw]]:
    """Make the draws of `model` repeatable: each depends only on its module and on the number of earlier draws there.

    nn.Dropout and its kin, F.dropout, nn.MultiheadAttention, scaled_dot_product_attention, torch.rand, torch.randn,
    torch.bernoulli and torch.normal on the CPU get `numbers_of` their place; other operations draw from one seed. The state of
    torch's own generator is restored.
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
    """Running modules and their recorded draws."""

    def __init__(self) -> None:
        self.running = [""]
        self.calls: Counter[str] = Counter()
        self.found: list[Draw] = []

    def numbers(self, kind: str, shape: Any, keep: float = 1.0) -> Any:
        """Return the numbers of the next draw, in float64, since what is computed from them may be float64 too."""
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
    """Return the mask of kept units. `p` may be a tensor: units with different probabilities are kept where p exceeds a uniform
    number."""
    import torch

    if isinstance(p, torch.Tensor) and p.numel() and bool((p == p.flatten()[0]).all()):
        p = p.flatten()[0].item()
    return numbers(UNIFORM, shape) < p if isinstance(p, torch.Tensor) else numbers(DROPOUT, shape, p)


def _repeating(numbers: Callable[..., Any]) -> Any:
    """Context manager: torch's random operations return these numbers."""
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
"""seen(kind, keep, numbers, line): called for a draw, with axes mapped by vmaps in front; its result replaces the numbers."""


@contextmanager
def seen_draws(seen: Seen) -> Iterator[None]:
    """Context manager: `seen` replaces the numbers of jax.random's bernoulli, uniform and normal, with which dropouts draw in
    flax and elsewhere.

    Draws while another program is traced, such as those of Linen's initialisers for their shapes, are not seen.
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
    """Return a probability that is one known number; NaN for anything else."""
    try:
        return float(p)
    except (TypeError, jax.errors.JAXTypeError):
        return float("nan")


@contextmanager
def fed_draws(numbers: Sequence[np.ndarray | None]) -> Iterator[None]:
    """Context manager: draws return these numbers, in order.

    For None, for a wrong shape and after the last numbers, every unit is kept, and other draws are zeros.
    """
    waiting = iter(numbers)

    def seen(kind: str, keep: float, value: Any, line: str) -> Any:
        instead = next(waiting, None)
        if instead is None or instead.shape != value.shape:
            return jnp.ones_like(value) if kind == DROPOUT else jnp.zeros_like(value)
        return jnp.asarray(instead)

    with seen_draws(seen):
        yield
