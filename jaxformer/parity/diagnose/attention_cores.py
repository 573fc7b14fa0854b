"""Find attention among the operations of torch's code, with queries, keys, values and weights in one form."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.computes import Compute
from jaxformer.parity.diagnose.mutation import Edit
from jaxformer.parity.diagnose.trace import Op, Rewrite, same
from jaxformer.parity.diagnose.weighing import Scores, Weigh, fused_attention, masked_by, masked_in_fused, unmasked
from jaxformer.parity.numerics.float_masks import MASKED

FUSED = "scaled_dot_product_attention"
OF_SCORES = ("matmul", "bmm", "baddbmm", "einsum")
OF_VALUES = ("matmul", "bmm", "einsum")
HIDING = ("add", "masked_fill", "where", "baddbmm")
"""Operations that apply a mask to scores."""
Tensors = tuple[torch.Tensor, ...]
Moved = Callable[[Tensors], Tensors]
"""Function from operands `B N T H` to the operands used instead."""
After = Callable[[torch.Tensor], torch.Tensor]
"""Function from the output `B N T H` to the output used instead."""


@dataclass(frozen=True)
class Product:
    """Operation whose operands and output are `... T H` after a permutation of their axes."""

    op: Op
    orders: Sequence[Sequence[int]]
    """Permutations that give `... T H`: one for each operand, then one for the output."""

    @property
    def first(self) -> int:
        """Index of the argument that is the first operand: 1 after einsum's equation or the added term of `baddbmm`, else 0."""
        return int(self.op.name in ("einsum", "baddbmm"))

    def operands(self, args: Sequence[Any]) -> Tensors:
        """Queries and keys, or weights and values, or all three, `... T H`."""
        return tuple(x.permute(*order) for x, order in zip(args[self.first :], self.orders[:-1], strict=False))


@dataclass(frozen=True)
class Core:
    """Attention core: one fused operation, or a product, a softmax and a product."""

    rows: int
    """Size of the batch."""
    softmax: Op
    """Softmax of the scores, or the fused operation."""
    products: tuple[Product, ...]
    """Fused attention alone, or the products that give the scores and the output."""
    masks: Op | None = None
    """Operation that applies the mask to the scores."""

    @property
    def is_fused(self) -> bool:
        """True for fused attention: one operation."""
        return len(self.products) == 1

    @property
    def heads(self) -> Tensors:
        """Queries, keys and values, `B N T H`."""
        q, k, *_, v = (x for each in self.products for x in each.operands(each.op.args))
        return self.by_head(q), self.by_head(k), self.by_head(v)

    @property
    def scores(self) -> Scores:
        """Scores before the mask, and the mask."""
        op = self.softmax if self.is_fused else self.masks
        if not op:
            return unmasked(self.softmax.args[0])
        return (masked_in_fused if self.is_fused else masked_by)(op.function, op.args, op.kwargs)

    @property
    def is_once(self) -> bool:
        """True if each operation of the core runs once."""
        return all(len(op.runs) == 1 for op in (self.softmax, *(each.op for each in self.products)))

    def by_head(self, x: torch.Tensor) -> torch.Tensor:
        """Reshape `... T H` to `B N T H`."""
        return x.reshape(self.rows, -1, *x.shape[-2:])

    def with_weights(self, weigh: Weigh) -> Edit:
        """Return an edit: torch computes the attention weights from the scores with `weigh`."""
        if self.is_fused:
            return self.softmax.rewrite(partial(fused_attention, weigh))
        if not self.masks:
            return self.softmax.rewrite(lambda f, a, k, n: weigh(unmasked(a[0])))
        seen: list[Scores] = []

        def masked(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
            seen.append(masked_by(function, args, kwargs))
            return function(*args, **kwargs)

        return Rewrite({self.masks.place: masked, self.softmax.place: lambda f, a, k, n: weigh(seen.pop())})

    def with_heads(self, moved: Moved, after: After | None = None) -> Rewrite:
        """Return an edit: attention reads the queries, keys and values that `moved` gives, and `after` maps its output."""
        first, *second = self.products
        if not second:
            return first.op.rewrite(self._of_others(first, moved, after))
        q, k, v = self.heads
        scores = self._of_others(first, lambda given: moved((*given, v))[:2], None)
        output = self._of_others(second[0], lambda given: (given[0], moved((q, k, given[1]))[2]), after)
        return Rewrite({first.op.place: scores, second[0].op.place: output})

    def _of_others(self, product: Product, moved: Moved, after: After | None) -> Compute:
        """Return a function that computes the product with the operands that `moved` gives, and maps its output by `after`."""
        *orders, last = product.orders
        first, behind = product.first, product.first + len(orders)

        def compute(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
            given = product.operands(args)
            others = moved(tuple(map(self.by_head, given)))
            back = (y.reshape(x.shape).permute(inverse(order)) for y, x, order in zip(others, given, orders, strict=True))
            y = function(*args[:first], *back, *args[behind:], **kwargs)
            z = y.permute(*last)
            return after(self.by_head(z)).reshape(z.shape).permute(inverse(last)) if after else y

        return compute


def inverse(order: Sequence[int]) -> list[int]:
    """Return the permutation that undoes `order`."""
    return [order.index(i) for i in range(len(order))]


def cores(operations: Sequence[Op]) -> Iterator[Core]:
    """Yield the attention cores among the operations, in their order."""
    for i, op in enumerate(operations):
        if not isinstance(op.output, torch.Tensor) or op.output.ndim < 3:
            continue
        if op.name == FUSED and len(op.args) > 2 and op.args[0].ndim == 4:
            yield Core(len(op.output), op, (Product(op, [range(4)] * 4),))
        elif op.name == "softmax":
            before, y = operations[:i][::-1], op.output
            made = (found for each in before if (found := product_of(each, scores=True)) and each.output.numel() == y.numel())
            read = (found for each in operations[i + 1 :] if (found := product_of(each, scores=False)) and reads(found, y))
            first, second = next(made, None), next(read, None)
            if first and second and (rows := rows_of(first, before)):
                yield Core(rows, op, (first, second), next((each for each in before if hides(each, op)), None))


def reads(product: Product, weights: torch.Tensor) -> bool:
    """True if the first operand of a product has the size and last axis of the attention weights."""
    x = product.op.args[product.first]
    return x.numel() == weights.numel() and x.shape[-1] == weights.shape[-1]


def hides(op: Op, softmax: Op) -> bool:
    """True for an operation that masks scores and whose output is the softmax's input."""
    scores = softmax.args[0]
    arrays = op.name != "add" or all(isinstance(each, torch.Tensor) for each in op.args[:2])
    return op.name in HIDING and arrays and same(op.output, scores) and bool((scores <= MASKED).any())


def rows_of(first: Product, before: Sequence[Op]) -> int:
    """Return the size of the batch. Where batch and heads are one axis, the reshape that split the heads gives it; 0 if there
    is none."""
    q = first.operands(first.op.args)[0]
    if q.ndim > 3:
        return len(q)
    for op in before:
        if op.name in ("view", "reshape") and op.output.numel() == q.numel():
            size, width = op.args[0].shape, q.shape[-1]
            if len(size) < 4 and size[-1] % width == 0:
                return len(q) // (size[-1] // width)
    return 0


def product_of(op: Op, *, scores: bool) -> Product | None:
    """Return the product of queries and keys, or of weights and values; None if an operation has another form."""
    if op.name not in (OF_SCORES if scores else OF_VALUES) or not isinstance(op.output, torch.Tensor):
        return None
    try:
        found = Product(op, orders_of(op, scores))
        found.operands(op.args)
    except (AttributeError, IndexError, RuntimeError, ValueError):
        return None
    return found


def orders_of(op: Op, scores: bool) -> tuple[Sequence[int], ...]:
    """Return the permutations of operands and output to `... T H`; ValueError for an einsum of another form."""
    if op.name != "einsum":
        plain = range(op.output.ndim)
        return plain, (*plain[:-2], plain[-1], plain[-2]) if scores else plain, plain
    equation, arrow, out = op.args[0].replace(" ", "").partition("->")
    if not arrow or "." in equation:
        raise ValueError("an equation without its output, or with an ellipsis")
    one, other = equation.split(",")
    (inner,) = (each for each in one if each in other and each not in out)

    def order(labels: str, lead: Sequence[str], *last: str) -> tuple[int, ...]:
        return tuple(labels.index(each) for each in (*(x for x in lead if x in labels), *last))

    if scores:
        *lead, t, s = out
        return order(one, lead, t, inner), order(other, lead, s, inner), range(len(out))
    (units,) = (each for each in other if each not in one)
    *lead, t, _ = one
    return order(one, lead, t, inner), order(other, lead, inner, units), order(out, lead, t, units)
