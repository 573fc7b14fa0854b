"""Rotary tables (cosines and sines) that a call is given or makes: their rates, and tables of other rates and positions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import permutations, product
from typing import Any, NamedTuple

import torch

from jaxformer.parity.diagnose.computes import behind
from jaxformer.parity.diagnose.modules import held
from jaxformer.parity.diagnose.mutation import Edit
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.rotary_rates import NEAR, plain_rates
from jaxformer.parity.diagnose.trace import Op, Place, Rewrite, same
from jaxformer.parity.trace.call_records import arrays_in, replaced
from jaxformer.parity.trace.call_sites import Site

Tables = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines."""
Arrays = dict[int, torch.Tensor]
"""Replacements of some of several arrays, by index."""
LAYOUTS = ("halves", "neighbours")
FLOAT32 = 2.0**-24
"""Relative rounding of float32."""
MOST = 60
"""Largest number of arrays of one shape among which the tables are looked for: the last ones."""


@dataclass(frozen=True)
class Rotary:
    """Tables `... T H` or `... T H/2`, cosines and sines of positions times rates."""

    given: Callable[[Tables], Edit]
    """given(tables) -> the edit in which the call has these tables."""
    cos: torch.Tensor
    sin: torch.Tensor
    rates: torch.Tensor
    """Rate of each pair, in radians a position."""
    layout: str
    """Layout of the rates in the tables: 'halves', 'neighbours', or 'once'."""
    name: str = "rotary"
    """'rotary', or 'sinusoidal' where cosines and sines are one table, which is added."""

    @property
    def width(self) -> int:
        """Units of a head that are rotated."""
        return 2 * len(self.rates)

    @property
    def size(self) -> float:
        """Factor of the rotated units."""
        return float((self.cos.square() + self.sin.square()).flatten()[0].sqrt())

    @cached_property
    def positions(self) -> torch.Tensor:
        """Positions of every row `... T`, from the slowest pair, whose angles have not wrapped around yet."""
        slowest = int(self.rates.masked_fill(self.rates <= 0, torch.inf).argmin())
        at = 2 * slowest if self.layout == "neighbours" else slowest
        return (torch.atan2(self.sin, self.cos)[..., at] / self.rates[slowest]).round()

    @property
    def base(self) -> float:
        """Base of the rates, from the first and the second, which torch may hold in float32."""
        first = float(self.rates[0]) or 1.0
        return float(f"{(float(self.rates[1]) / first) ** -len(self.rates):.6g}") if self.rates[1:2].any() else 1e4

    @property
    def divisor(self) -> float:
        """Divisor of all plain rates (linear scaling); 0 for other rates."""
        by = float(f"{1 / float(self.rates[0] or 1.0):.6g}")
        return by if torch.allclose(self.rates * by, plain_rates(self.width, self.base), rtol=NEAR, atol=0) else 0.0

    def with_angles(self, angles: torch.Tensor, size: float | None = None, layout: str = "") -> Tables:
        """Tables of angles `... T H/2`."""
        both = {"halves": torch.cat([angles, angles], -1), "neighbours": angles.repeat_interleave(2, -1)}
        full, size = both.get(layout or self.layout, angles), self.size if size is None else size
        lead = torch.broadcast_shapes(self.cos.shape[:-1], angles.shape[:-1])
        return (full.cos() * size).expand(*lead, -1), (full.sin() * size).expand(*lead, -1)

    def pushed(self, tables: Tables) -> Tables:
        """Tables turned by as much as float32 rounds torch's angles."""
        (cos, sin), (c, s) = tables, self.with_angles(self.positions[..., None] * self.rates * FLOAT32, size=1.0)
        return cos * c - sin * s, sin * c + cos * s

    def tables(self, positions: torch.Tensor | None = None, rates: torch.Tensor | None = None, **how: Any) -> Tables:
        """Tables of other positions or rates, of another size or layout."""
        at = self.positions if positions is None else positions
        return self.with_angles(at[..., None] * (self.rates if rates is None else rates), **how)


def rotary_of(replay: Replay) -> Rotary | None:
    """Find the first tables among what a call is given, what its children give it, what it computes, and what it holds."""
    for arrays, placed, ops in sources(replay):
        for i, j in pairs_in(arrays):
            cos, sin = arrays[i], arrays[j]
            joined = any(all(any(same(x, each) for each in joins(op)) for x in (cos, sin)) for op in ops)
            return rotary(cos, sin, partial(placed_at, placed, (i, j)), "sinusoidal" if joined else "rotary")
    return sinusoidal(replay)


def placed_at(placed: Callable[[Arrays], Edit], at: tuple[int, int], both: Tables) -> Edit:
    """Edit in which two of several arrays are these tables."""
    return placed(dict(zip(at, both, strict=True)))


def sources(replay: Replay) -> Iterator[tuple[list[Any], Callable[[Arrays], Edit], list[Op]]]:
    """Lists of arrays, each with the edit that replaces some of them, and the operations that may join two of them in one
    table."""
    yield replay.input_arrays, replay.given_inputs, []
    for site, value in replay.given.items():
        yield arrays_in(value), partial(given_by, replay, site, value), []
    made = [(op, number, array) for op in replay.operations for number, array in enumerate(parts(op.output))]
    yield [array for *_, array in made], partial(computed, made), replay.operations


def joins(op: Op) -> Sequence[torch.Tensor]:
    """Arrays that an operation joins, one after another or interleaved; none for other operations."""
    first = next(iter(op.args), None)
    return first if op.name in ("cat", "concat", "stack") and isinstance(first, (tuple, list)) else ()


def sinusoidal(replay: Replay) -> Rotary | None:
    """Find a table that a module holds: sines and cosines side by side or interleaved."""
    for table in (*replay.module.buffers(), *replay.module.parameters()):
        flat = table.squeeze()
        if flat.ndim != 2 or not flat.is_floating_point() or len(flat) < 2 or flat.shape[1] < 4 or flat.shape[1] % 2:
            continue
        for in_turns, first in product((False, True), (1, 0)):
            both = (flat[:, ::2], flat[:, 1::2]) if in_turns else flat.chunk(2, -1)
            cos, sin = both[first], both[1 - first]
            if are_tables(cos, sin):
                return rotary(cos.clone(), sin.clone(), partial(held_joined, table, in_turns, first), "sinusoidal")
    return None


def held_joined(table: torch.Tensor, in_turns: bool, first: int, both: Tables) -> Edit:
    """Edit in which a table holds these cosines and sines, those of index `first` first."""
    parts = [both[first], both[1 - first]]
    return held(table, (torch.stack(parts, -1).flatten(-2) if in_turns else torch.cat(parts, -1)).reshape(table.shape))


def parts(output: Any) -> list[torch.Tensor]:
    """Tensors of an operation's output."""
    return [output] if isinstance(output, torch.Tensor) else list(output)


def put(value: Any, others: Arrays) -> Any:
    """Replace some arrays of a value, by index."""
    arrays = arrays_in(value)
    return replaced(value, arrays, [others.get(i, array) for i, array in enumerate(arrays)])


def given_by(replay: Replay, site: Site, value: Any, others: Arrays) -> Edit:
    """Edit that replaces some of the arrays that a child gives."""
    return replay.given_outputs({site: put(value, others)})


def computed(made: list[tuple[Op, int, torch.Tensor]], others: Arrays) -> Edit:
    """Edit that replaces some of the arrays that operations give."""
    found: dict[Place, Arrays] = {}
    for i, other in others.items():
        op, number, _ = made[i]
        found.setdefault(op.place, {})[number] = other
    return Rewrite({place: behind(partial(put, others=tables)) for place, tables in found.items()})


def pairs_in(arrays: list[Any]) -> Iterator[tuple[int, int]]:
    """Indices of two arrays that are cosines and sines of positions along their second-last axis."""
    alike: dict[Any, list[int]] = {}
    for j, array in enumerate(arrays):
        if array.is_floating_point() and array.ndim > 1 and array.shape[-2] > 1:
            before = alike.setdefault(tuple(array.shape), [])
            for cos, sin in (pair for i in before for pair in permutations((i, j))):
                if are_tables(arrays[cos], arrays[sin]):
                    yield cos, sin
            before[:] = [*before, j][-MOST:]


def rotary(cos: torch.Tensor, sin: torch.Tensor, given: Callable[[Tables], Edit], name: str = "rotary") -> Rotary:
    """Find the rates of two tables, and their layout."""
    cos, sin = cos.double(), sin.double()
    n, turned = cos.shape[-1], torch.atan2(sin, cos).reshape(-1, *cos.shape[-2:])
    steps = turned[:, 1] - turned[:, 0]
    rates = steps[int(steps.any(-1).double().argmax())]  # positions of padding may all be the same
    layout = "once"
    if torch.equal(cos[..., : n // 2], cos[..., n // 2 :]):
        layout, rates = "halves", rates[: n // 2]
    elif torch.equal(cos[..., ::2], cos[..., 1::2]):
        layout, rates = "neighbours", rates[::2]
    return Rotary(given, cos, sin, rates, layout, name)


def are_tables(cos: torch.Tensor, sin: torch.Tensor, axis: int = -2) -> bool:
    """True for cosines and sines of positions along an axis, times a common factor; at position 0, only the sines are 0."""
    if not cos.numel():
        return False
    few = cos.flatten()[:3].square() + sin.flatten()[:3].square()
    if not few.min() > 0 or not torch.allclose(few, few[:1], rtol=1e-5):
        return False
    size = cos.square() + sin.square()
    if not torch.allclose(size, size.flatten()[:1].expand_as(size), rtol=1e-5) or not sin.any():
        return False
    begins = sin.select(axis, 0).abs().max() < 1e-9 < cos.select(axis, 0).abs().min()
    return bool(begins) or bool(cos[..., -1].min() > 0.5)


class Use(NamedTuple):
    """Product with a table, in one run of an operation."""

    op: Op
    run: int
    at: int
    """Index of the factor that is the table."""
    table: torch.Tensor
    other: Any
    """Other factor of the product."""


Pair = tuple[Use, Use]
"""Product with cosines, and product with sines."""


def table_products(ops: list[Op]) -> list[Pair]:
    """Pairs of products with cosines and with sines, in the order in which they run."""
    every = [
        Use(op, i, at, x, run.args[1 - at])
        for op in ops
        if op.name == "mul"
        for i, run in enumerate(op.runs)
        for at, x in enumerate(run.args if len(run.args) == 2 else ())
        if isinstance(x, torch.Tensor) and x.ndim > 1 and x.is_floating_point() and x.shape[-1] > 1
    ]
    every.sort(key=lambda use: use.op.runs[use.run].number)
    found: list[Pair] = []
    taken: set[int] = set()
    for i, one in enumerate(every):
        for j, other in enumerate(every[i + 1 : i + 5], i + 1):
            if taken & {i, j} or one.table.shape != other.table.shape:
                continue
            for cos, sin in permutations((one, other)):
                axis = positions_axis(cos.table)
                if axis is not None and are_tables(cos.table, sin.table, axis):
                    found.append((cos, sin))
                    taken |= {i, j}
                    break
    return found


def positions_axis(table: torch.Tensor) -> int | None:
    """Axis of positions: the last one along which a table changes, its very last axis aside; None if there is none."""
    axes = (axis for axis in range(table.ndim - 2, -1, -1) if table.shape[axis] > 1)
    return next((axis for axis in axes if not torch.equal(table.narrow(axis, 0, 1), table.narrow(axis, 1, 1))), None)
