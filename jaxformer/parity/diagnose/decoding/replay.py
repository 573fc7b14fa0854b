"""Replay of torch's decoding steps with a fault of the cache: a wrong position, a slot that is missed."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from jaxformer.parity.diagnose.calls import bound
from jaxformer.parity.diagnose.decoding.faults import Fault, Seen, sources
from jaxformer.parity.diagnose.operators.rotary_heads import Rotation
from jaxformer.parity.diagnose.trace import OPENED, opened
from jaxformer.parity.numerics.float_masks import MASKED
from jaxformer.parity.trace.torch_hooks import fused_scores

COSINES = (torch.cos, torch.Tensor.cos, torch.sin, torch.Tensor.sin)
PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm)


def places_of(x: Any, total: int) -> torch.Tensor | None:
    """Return the positions of the rows of rotary angles `... T H`: the step's token or all tokens so far; None if `x` cannot be
    such angles."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.ndim < 2 or x.shape[-2] not in (1, total):
        return None
    return torch.arange(total - x.shape[-2], total)


def rates_of(angles: torch.Tensor, position: int) -> torch.Tensor:
    """Return radians per position, from the last row of the angles."""
    return angles.reshape(-1, *angles.shape[-2:])[0, -1] / position


def turned_back(x: torch.Tensor, rates: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Undo the rotary positions of vectors `... T H`; units beyond the rates, which are not rotated, come last."""
    half = len(rates) // 2
    halves = torch.equal(rates[:half], rates[half:])
    return (Rotation(rates[:half]) if halves else Rotation(rates[::2], "neighbours"))(x, -places)


def is_paired(rates: torch.Tensor) -> bool:
    """True if each rate occurs twice, once for either unit of a rotated pair."""
    half = len(rates) // 2
    return len(rates) % 2 == 0 and (torch.equal(rates[:half], rates[half:]) or torch.equal(rates[::2], rates[1::2]))


def is_of_queries(q: torch.Tensor, k: torch.Tensor, width: int, total: int) -> bool:
    """True for a product of queries, of one token or of all so far, and all keys as columns. A first operand that is not
    negative and has rows with the sum 1 is attention weights."""
    if k.shape[-1] != total or q.shape[-2] not in (1, total) or k.shape[-2] < width:
        return False
    return bool((q < 0).any()) or not torch.allclose(q.sum(-1), torch.ones((), dtype=q.dtype))


def is_bias(x: Any, total: int) -> bool:
    """True if `x` may be a score bias `... T S`: it has a number for each key so far, and is not only a mask."""
    fits = isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim > 1 and x.shape[-1] == total
    return fits and bool(((x > MASKED) & (x != 0)).any())


ADDITIONS = (
    *(torch.add, torch.Tensor.add, torch.Tensor.add_),
    *(torch.Tensor.__add__, torch.Tensor.__radd__, torch.Tensor.__iadd__),
)
MASKINGS = (torch.masked_fill, torch.Tensor.masked_fill, torch.Tensor.masked_fill_, torch.where, torch.Tensor.where)
SOFTMAX = (torch.softmax, torch.Tensor.softmax, torch.special.softmax, functional.softmax)
FUSED = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
JOINS = (torch.cat, torch.concat)


class Decoding(TorchFunctionMode):
    """Context manager: torch decodes with a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault, self.step, self.prompt, self.count = fault, 0, 0, 0
        self.joined: list[torch.Tensor] = []
        self.rates: torch.Tensor | None = None

    @property
    def total(self) -> int:
        """Number of tokens so far, the step's own included."""
        return self.prompt + self.step

    def begin(self, step: int) -> None:
        """Begin a step, by its number."""
        self.step, self.joined = step, []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.count += 1
        if func in OPENED:
            with opened(self):
                return func(*args, **kwargs)
        args, kwargs = bound(func, args, kwargs)
        if func is functional.scaled_dot_product_attention:
            return self._fused(func, args, kwargs)
        if func in SOFTMAX and is_last(args, kwargs):
            return self._weights(args[0]) if self._acts(args[0]) else func(*args, **kwargs)
        if self.fault.unmasked and func in (*ADDITIONS, *MASKINGS):
            return self._masked(func, args, kwargs)
        if self.step and (other := self._in_steps(func)):
            return other(func, args, kwargs)
        if func is torch.Tensor.__getitem__ and self.fault.position and self.step:
            return func(args[0], self._placed(args[1]))
        output = func(*args, **kwargs)
        return self._positions(output) if self.fault.position and self.step else output

    def _in_steps(self, func: Any) -> Callable[..., Any] | None:
        """Return the method that computes a function in a step, if the fault concerns that function; else None."""
        fault = self.fault
        if func in JOINS and (fault.from_first or fault.cache):
            return self._joined
        if func in JOINS and fault.written != (0, 1):
            return self._written
        if func in ADDITIONS and fault.bias:
            return self._biased
        if func in COSINES and (fault.angles or fault.still):
            return self._angles
        return self._product if func in PRODUCTS and fault.still and self.rates is not None else None

    def _acts(self, scores: torch.Tensor) -> bool:
        """True in a step if the fault concerns scores. The first scores give the length of the prompt."""
        self.prompt = self.prompt or scores.shape[-2]
        fault = self.fault
        return self.step > 0 and any((fault.hides, fault.without_keys, fault.without_values, fault.empty, *fault.late))

    def _fused(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        if self.step and self.rates is not None:
            args = (self._still(0, args[0]), self._still(1, args[1]), *args[2:])
        settings = dict(zip(FUSED, args, strict=False)) | kwargs
        if self.step and self.fault.bias and is_bias(bias := settings.get("attn_mask"), self.total):
            settings["attn_mask"] = self._other_bias(bias)
        scores, v = fused_scores(**settings), settings["value"]
        if self.fault.unmasked:
            mask = settings.get("attn_mask")
            bias = None if mask is None or mask.dtype == torch.bool else mask.masked_fill(mask <= MASKED, 0.0)
            plain = fused_scores(**settings | {"attn_mask": bias, "is_causal": False})
            weights = self._open(scores, plain).softmax(-1)
        elif self._acts(scores):
            weights = self._weights(scores)
        else:
            return func(**settings)
        return weights @ v.repeat_interleave(weights.shape[-3] // v.shape[-3], -3)

    def _weights(self, scores: torch.Tensor) -> torch.Tensor:
        fault, (length, keys) = self.fault, scores.shape[-2:]
        row = torch.arange(self.total - length, self.total)[:, None]
        seen, other = Seen(torch.arange(keys), row, self.prompt), scores
        if fault.without_keys:
            other = torch.where(fault.without_keys(seen) & (scores > MASKED), 0.0, other)
        if fault.late[0]:
            held = sources(seen, fault.late[0])
            moved = other.gather(-1, held.clamp(min=0).expand(other.shape)).masked_fill(held < 0, 0.0)
            other = torch.where(scores > MASKED, moved, other)
        if fault.hides:
            other = other.masked_fill(fault.hides(seen), -torch.inf)
        slots = other.new_zeros(*other.shape[:-1], fault.empty(self.total) if fault.empty else 0)
        weights = torch.cat([other, slots], -1).softmax(-1)[..., :keys]
        if fault.without_values:
            weights = weights.masked_fill(fault.without_values(seen), 0.0)
        if fault.late[1]:
            held = sources(seen, fault.late[1])
            read = weights.masked_fill(held < 0, 0.0)
            weights = torch.zeros_like(read).scatter_add(-1, held.clamp(min=0).expand(read.shape), read)
        return torch.where(row >= self.prompt, weights, scores.softmax(-1))

    def _masked(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """Add or fill a mask; between tokens of the prompt, scores stay unmasked."""
        parts = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor) and each.is_floating_point()]
        plain = [each.clone() for each in parts if not (each <= MASKED).any() and each.ndim > 1]
        output = func(*args, **kwargs)
        masks = isinstance(output, torch.Tensor) and output.ndim > 2 and bool((output <= MASKED).any())
        return self._open(output, plain[0]) if masks and len(plain) == 1 and plain[0].shape == output.shape else output

    def _open(self, scores: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
        """Return scores `... T S`, with plain scores between tokens of the prompt."""
        length, keys = scores.shape[-2:]
        self.prompt = self.prompt or length
        rows = torch.arange(self.total - length, self.total)[:, None]
        return torch.where((rows < self.prompt) & (torch.arange(keys) < self.prompt), plain, scores)

    def _biased(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """Add scores and the fault's bias; the smaller of two operands is the bias."""
        sides = args[:2]
        if len(sides) == 2 and all(isinstance(each, torch.Tensor) for each in sides):
            i = min((1, 0), key=lambda n: sides[n].numel())
            if is_bias(sides[i], self.total) and sides[1 - i].ndim > 2 and sides[1 - i].shape[-1] == self.total:
                other = self._other_bias(sides[i])
                return torch.add(*((other, sides[1]) if i == 0 else (sides[0], other)))
        return func(*args, **kwargs)

    def _other_bias(self, bias: torch.Tensor) -> torch.Tensor:
        """Return the fault's bias in the rows of steps; masked entries stay as they are."""
        assert self.fault.bias
        row = torch.arange(self.total - bias.shape[-2], self.total)[:, None]
        masked = (bias <= MASKED) | (row < self.prompt)
        return torch.where(masked, bias, self.fault.bias(bias))

    def _angles(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """Compute cosines or sines of the fault's positions, or note the rates if the fault leaves vectors without rotation."""
        places = places_of(args[0], self.total)
        if places is None or not args[0].any():
            return func(*args, **kwargs)
        if self.fault.still:
            rates = rates_of(args[0], self.total - 1)
            self.rates = rates if is_paired(rates) else None
            return func(*args, **kwargs)
        assert self.fault.angles
        other = torch.tensor([self.fault.angles(p, self.prompt) if p >= self.prompt else p for p in places.tolist()])
        return func(args[0] * (other / places.clamp(min=1))[:, None], *args[1:], **kwargs)

    def _still(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """Return queries (0) or keys (1), without the rotation of those of steps if the fault says so."""
        places = torch.arange(self.total - x.shape[-2], self.total)
        if i not in self.fault.still or self.rates is None:
            return x
        return turned_back(x, self.rates, places * (places >= self.prompt))

    def _product(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """Compute a product; queries and keys lose their rotation first, if it is their product."""
        assert self.rates is not None
        q, k = args[:2]
        if not is_of_queries(q, k, len(self.rates), self.total):
            return func(*args, **kwargs)
        return func(self._still(0, q), self._still(1, k.mT).mT, *args[2:], **kwargs)

    def _grown(self, parts: Sequence[torch.Tensor], output: torch.Tensor) -> int | None:
        """Return the axis along which a cache and one new entry are joined; None if a concatenation is something else."""
        first = parts[0].shape
        grown = [i for i, size in enumerate(output.shape) if size != first[i]] if len(first) == output.ndim else []
        is_cache = len(parts) == 2 and [(first[i], output.shape[i]) for i in grown] == [(self.total - 1, self.total)]
        return grown[0] if is_cache else None

    def _written(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """Join a cache and its new entry, and exchange the new entries of keys and values as the fault says. Calls alternate:
        keys first, then values."""
        output = func(*args, **kwargs)
        if (axis := self._grown(args[0], output)) is not None:
            self.joined.append(output.narrow(axis, self.total - 1, 1))
            if len(self.joined) % 2 == 0:
                both = self.joined[-2:]
                others = [both[i].clone() for i in self.fault.written]
                for slot, other in zip(both, others, strict=True):
                    slot.copy_(other)
        return output

    def _joined(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """Join a cache and its new entry as the fault reads them. The first two calls of a step are the first layer's keys and
        values."""
        parts, output = args[0], func(*args, **kwargs)
        if self._grown(parts, output) is None:
            return output
        number = len(self.joined)
        self.joined.append(parts[0])
        held = self.joined[number % 2] if number % 2 in self.fault.from_first else parts[0]
        read = self.fault.cache(held, parts[1]) if self.fault.cache else (held, parts[1])
        return func([*read], *args[1:], **kwargs)

    def _other(self, positions: Sequence[int]) -> list[int]:
        assert self.fault.position
        return [self.fault.position(each, self.prompt) if each >= self.prompt else each for each in positions]

    def _positions(self, output: Any) -> Any:
        """Replace an integer array that holds the positions of the step's tokens, or of all tokens so far."""
        if not isinstance(output, torch.Tensor) or output.dtype not in (torch.int64, torch.int32) or not output.numel():
            return output
        last = output.reshape(-1, output.shape[-1])[0].tolist() if output.ndim else []
        if not last or last != [*range(self.total - len(last), self.total)] or len(last) not in (1, self.total):
            return output
        return output.new_tensor(self._other(last)).expand(output.shape).clone() if is_repeated(output) else output

    def _placed(self, index: Any) -> Any:
        """Replace the index of a table's row for a step of one token."""
        if isinstance(index, tuple):
            return tuple(map(self._placed, index))
        if isinstance(index, slice) and (index.start, index.stop, index.step) == (self.total - 1, self.total, None):
            (other,) = self._other([self.total - 1])
            return slice(other, other + 1)
        return index


def is_repeated(x: torch.Tensor) -> bool:
    """True if all rows are equal."""
    rows = x.reshape(-1, x.shape[-1])
    return bool((rows == rows[:1]).all())


def is_last(args: Any, kwargs: Any) -> bool:
    """True for a softmax over the last axis of an array of at least three axes."""
    dim, x = args[1] if len(args) > 1 else kwargs.get("dim"), args[0] if args else None
    return isinstance(x, torch.Tensor) and x.ndim > 2 and isinstance(dim, int) and dim % x.ndim == x.ndim - 1
