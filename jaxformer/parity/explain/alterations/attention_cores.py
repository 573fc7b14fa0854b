"""Attention among the operations of torch's code: queries, keys, values and weights in one form, whatever the code."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from jaxformer.parity.explain.alterations.altered import Inside
from jaxformer.parity.explain.alterations.operations import Altered, Operation
from jaxformer.parity.explain.alterations.weighing import Weigh, fused_attention, parts_of_mask, parts_of_scores
from jaxformer.parity.numerics.float_masks import MASKED

FUSED = "scaled_dot_product_attention"
OF_SCORES = ("matmul", "bmm", "baddbmm", "einsum")
OF_VALUES = ("matmul", "bmm", "einsum")
HIDING = ("add", "masked_fill", "where", "baddbmm")
"""Operations that mask scores."""
Tensors = tuple[torch.Tensor, ...]
Change = Callable[[Tensors], Tensors]
"""Queries, keys and values `B N T H` -> others."""
After = Callable[[torch.Tensor], torch.Tensor]
"""What is gathered, `B N T H` -> another."""


class Axes(NamedTuple):
    """Orders of axes that give operands and output as `... T H`."""

    one: tuple[int, ...]
    other: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True)
class Core:
    """Attention: one fused operation, or a product, a softmax and a product."""

    rows: int
    """Of the batch."""
    softmax: Operation
    """Or the fused operation."""
    first: Operation | None = None
    """The product of queries and keys."""
    second: Operation | None = None
    """Of weights and values."""
    masks: Operation | None = None
    """What masks the scores."""

    @property
    def heads(self) -> Tensors:
        """Queries, keys and values, `B N T H`."""
        if not self.first or not self.second:
            return tuple(self.by_head(x) for x in self.softmax.args[:3])
        (q, k), (_, v) = operands(self.first, scores=True), operands(self.second, scores=False)
        return self.by_head(q), self.by_head(k), self.by_head(v)

    @property
    def parts(self) -> Tensors:
        """Its scores, what is added to them, and which keys are seen."""
        if self.masks:
            return parts_of_scores(self.masks.function, self.masks.args)
        if not self.first:
            return parts_of_mask(self.softmax.args, self.softmax.kwargs)
        x = self.softmax.args[0]
        return x, torch.zeros_like(x), torch.ones_like(x, dtype=torch.bool)

    @property
    def is_once(self) -> bool:
        """Whether each of its operations is computed once."""
        return all(len(each.runs) == 1 for each in (self.softmax, self.first, self.second) if each)

    def by_head(self, x: torch.Tensor) -> torch.Tensor:
        """`B N T H`, of whatever is before T."""
        return x.reshape(self.rows, -1, *x.shape[-2:])

    def with_weights(self, weigh: Weigh) -> Inside:
        """Inside, weights come of the scores in another way."""
        softmax, masks = self.softmax, self.masks
        if not self.first:
            return softmax.inside(lambda f, a, k, n: fused_attention(weigh, a, k))
        seen: list[Tensors] = []

        def masked(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
            seen.append(parts_of_scores(function, args))
            return function(*args, **kwargs)

        def weights(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
            x = args[0]
            return weigh(*(seen.pop() if masks else (x, torch.zeros_like(x), torch.ones_like(x, dtype=torch.bool))))

        return Altered({softmax.place: weights} | ({masks.place: masked} if masks else {}))

    def with_heads(self, change: Change, after: After) -> Inside:
        """Inside, it has other queries, keys and values, and what is gathered goes on as another."""
        if not self.first or not self.second:
            return self.softmax.inside(partial(self._fused, change, after))
        _, _, values = self.heads
        queries, keys, _ = self.heads

        def scores(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
            return self._product(function, args, kwargs, lambda q, k: change((q, k, values))[:2], axes_of(self.first, True))

        def gathered(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
            axes = axes_of(self.second, False)
            y = self._product(function, args, kwargs, lambda w, v: (w, change((queries, keys, v))[2]), axes)
            y = y.permute(axes.output)
            return after(self.by_head(y)).reshape(y.shape).permute(inverse(axes.output))

        return Altered({self.first.place: scores, self.second.place: gathered})

    def _fused(self, change: Change, after: After, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
        shapes = [x.shape for x in args[:3]]
        q, k, v = change(tuple(self.by_head(x) for x in args[:3]))
        those = (x.reshape(shape) for x, shape in zip((q, k, v), shapes, strict=True))
        y = function(*those, *args[3:], **kwargs)
        return after(self.by_head(y)).reshape(y.shape)

    def _product(self, function: Any, args: Any, kwargs: Any, change: Callable[..., Any], axes: Axes) -> torch.Tensor:
        """Of two other operands."""
        first = first_operand(function)
        given = [x.permute(order) for x, order in zip(args[first:], axes[:2], strict=False)]
        others = change(*map(self.by_head, given))
        back = (y.reshape(x.shape).permute(inverse(order)) for y, x, order in zip(others, given, axes[:2], strict=True))
        return function(*args[:first], *back, *args[first + 2 :], **kwargs)


def cores(operations: Sequence[Operation]) -> Iterator[Core]:
    """All that are found, in their order."""
    for i, each in enumerate(operations):
        if not isinstance(each.output, torch.Tensor) or each.output.ndim < 3:
            continue
        if each.name == FUSED and len(each.args) > 2 and each.args[0].ndim == 4:
            yield Core(len(each.output), each)
        elif each.name == "softmax":
            before, behind = operations[:i][::-1], operations[i + 1 :]
            first = next((one for one in before if gives_scores(one, each)), None)
            second = next((one for one in behind if reads_weights(one, each)), None)
            if first and second and (rows := rows_of(first, before)):
                yield Core(rows, each, first, second, next((one for one in before if masks_for(one, each)), None))


def gives_scores(operation: Operation, softmax: Operation) -> bool:
    """Whether an operation is the product of which scores are made."""
    y = operation.output
    alike = isinstance(y, torch.Tensor) and y.numel() == softmax.output.numel()
    return alike and operation.name in OF_SCORES and can_be_ordered(operation, scores=True)


def reads_weights(operation: Operation, softmax: Operation) -> bool:
    """Whether an operation is the product of weights and values."""
    if operation.name not in OF_VALUES or not can_be_ordered(operation, scores=False):
        return False
    x = operation.args[first_operand(operation.function)]
    return x.numel() == softmax.output.numel() and x.shape[-1] == softmax.output.shape[-1]


def masks_for(operation: Operation, softmax: Operation) -> bool:
    """Whether an operation gives what goes into a softmax, with keys that are masked."""
    x, y = softmax.args[0], operation.output
    same = operation.name in HIDING and isinstance(y, torch.Tensor) and y.shape == x.shape and torch.equal(y, x)
    return same and bool((x <= MASKED).any())


def rows_of(first: Operation, before: Sequence[Operation]) -> int:
    """Of the batch: where rows and heads are one axis, by how the heads were split; 0 where that is not seen."""
    q, _ = operands(first, scores=True)
    if q.ndim > 3:
        return len(q)
    width = q.shape[-1]
    for each in before:
        if each.name in ("view", "reshape") and each.output.numel() == q.numel():
            size = each.args[0].shape
            if len(size) < 4 and size[-1] % width == 0:
                return len(q) // (size[-1] // width)
    return 0


def first_operand(function: Any) -> int:
    """Where the two operands begin: behind an equation, or what is added."""
    return 1 if function.__name__ in ("einsum", "baddbmm") else 0


def operands(operation: Operation, *, scores: bool) -> Tensors:
    """Queries and keys, or weights and values, `... T H`."""
    axes, first = axes_of(operation, scores), first_operand(operation.function)
    one, other = operation.args[first : first + 2]
    return one.permute(axes.one), other.permute(axes.other)


def can_be_ordered(operation: Operation, *, scores: bool) -> bool:
    """Whether the operands have a form that is known."""
    try:
        axes_of(operation, scores)
    except (IndexError, ValueError):
        return False
    return True


def axes_of(operation: Operation | None, scores: bool) -> Axes:
    """ValueError of an einsum of another form."""
    assert operation
    if operation.name != "einsum":
        n = operation.output.ndim
        plain = tuple(range(n))
        return Axes(plain, (*plain[:-2], n - 1, n - 2) if scores else plain, plain)
    (one, other), out = labels_of(operation.args[0])
    (inner,) = (each for each in one if each in other and each not in out)
    if scores:
        t, s, lead = out[-2], out[-1], out[:-2]
        return Axes(order_in(one, lead, t, inner), order_in(other, lead, s, inner), tuple(range(len(out))))
    (units,) = (each for each in other if each not in one)
    t, lead = one[-2], one[:-2]
    return Axes(order_in(one, lead, t, inner), order_in(other, lead, inner, units), order_in(out, lead, t, units))


def labels_of(equation: str) -> tuple[list[str], str]:
    """'bthd,bshd->bhts' in its parts."""
    given, arrow, out = equation.replace(" ", "").partition("->")
    if not arrow or "." in equation:
        raise ValueError("an equation without its output, or with an ellipsis")
    return given.split(","), out


def order_in(labels: str, lead: str, *last: str) -> tuple[int, ...]:
    """The axes of an operand: those before, as far as it has them, and the last two."""
    return tuple(labels.index(each) for each in (*(x for x in lead if x in labels), *last))


def inverse(order: tuple[int, ...]) -> list[int]:
    """The order of axes that undoes one."""
    return [order.index(i) for i in range(len(order))]
