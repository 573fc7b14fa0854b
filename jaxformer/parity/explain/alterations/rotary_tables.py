"""The cosines and sines of rotary positions that a call is given, or makes: their rates, and tables of other ones."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from jaxformer.parity.capture.call_records import arrays_in, replaced
from jaxformer.parity.capture.call_sites import Site
from jaxformer.parity.explain.alterations.altered import Inside
from jaxformer.parity.explain.alterations.of_modules import held
from jaxformer.parity.explain.alterations.operations import Altered, Operation
from jaxformer.parity.explain.alterations.rerun import Rerun

Tables = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines."""
Placed = Callable[[Tables], Inside]
"""Inside, the call has these tables."""
LAYOUTS = ("halves", "neighbours")
NEAR = 1e-5
MOST = 60
"""Arrays of one shape, two of which may be the tables."""


@dataclass(frozen=True)
class Rotary:
    """Tables `... T H` or `... T H/2`, of positions times rates."""

    given: Placed
    cos: torch.Tensor
    sin: torch.Tensor
    rates: torch.Tensor
    """Radians a position of each pair."""
    layout: str
    """'halves', 'neighbours', or 'once': how the rates stand in the tables."""
    name: str = "rotary"
    """Or 'sinusoidal', where both tables are one, which is added."""

    @property
    def width(self) -> int:
        """How many units of a head are rotated."""
        return 2 * len(self.rates)

    @property
    def size(self) -> float:
        """What the rotated units are multiplied by."""
        return float((self.cos.square() + self.sin.square()).flatten()[0].sqrt())

    @cached_property
    def positions(self) -> torch.Tensor:
        """Of every row `... T`, by the slowest pair, which has not gone round yet."""
        slowest = int(self.rates.masked_fill(self.rates <= 0, torch.inf).argmin())
        at = 2 * slowest if self.layout == "neighbours" else slowest
        return (torch.atan2(self.sin, self.cos)[..., at] / self.rates[slowest]).round()

    @property
    def base(self) -> float:
        """By the second rate and the first, which torch may hold in float32."""
        first = float(self.rates[0]) or 1.0
        return float(f"{(float(self.rates[1]) / first) ** -len(self.rates):.6g}") if len(self.rates) > 1 else 1e4

    @property
    def divisor(self) -> float:
        """By what all plain rates are divided; 0 where they are others."""
        by = float(f"{1 / float(self.rates[0] or 1.0):.6g}")
        return by if torch.allclose(self.rates * by, plain_rates(self.width, self.base), rtol=NEAR, atol=0) else 0.0

    @property
    def pairs(self) -> str:
        """In words."""
        return "rotary pairs interleaved" if self.layout == "neighbours" else "rotary pairs half and half"

    def with_angles(self, angles: torch.Tensor, size: float | None = None, layout: str = "") -> Tables:
        """Other tables, of angles `... T H/2`."""
        both = {"halves": torch.cat([angles, angles], -1), "neighbours": angles.repeat_interleave(2, -1)}
        full, size = both.get(layout or self.layout, angles), self.size if size is None else size
        lead = torch.broadcast_shapes(self.cos.shape[:-1], angles.shape[:-1])
        return (full.cos() * size).expand(*lead, -1), (full.sin() * size).expand(*lead, -1)

    def with_base(self, base: float) -> Tables:
        """Of plain rates."""
        return self.with_angles(self.positions[..., None] * plain_rates(self.width, base))

    def of_width(self, width: int) -> Tables:
        """For another part of a head, of plain rates."""
        return self.with_angles(self.positions[..., None] * plain_rates(width, self.base))

    def laid_otherwise(self) -> Tables:
        """With the same angles, as the other pairs have them."""
        other = LAYOUTS[self.layout == LAYOUTS[0]]
        return self.with_angles(self.positions[..., None] * self.rates, layout=other)

    def pairings(self) -> Iterator[tuple[str, torch.Tensor, Tables | None]]:
        """In words; the order of a head's units in which torch's pairs are those; and the tables, where they are others.

        Scores do not change where queries and keys both have their units in another order.
        """
        units, half = torch.arange(self.width), len(self.rates)
        apart = torch.cat([units[::2], units[1::2]])
        neighbours = self.layout == "neighbours"
        yield (
            ("rotary pairs half and half" if neighbours else "rotary pairs interleaved"),
            (torch.argsort(apart) if neighbours else apart),
            None,
        )
        for part in (2, 4):
            few = half // part
            if not few or neighbours:
                continue
            rotated = torch.zeros(self.width, dtype=torch.bool)
            first = torch.cat([torch.arange(few), torch.arange(half, half + few)])
            order = torch.empty(self.width, dtype=torch.long)
            rotated[first] = True
            order[first], order[~rotated] = torch.arange(2 * few), torch.arange(2 * few, self.width)
            rates = torch.cat([plain_rates(2 * few, self.base), torch.zeros(half - few, dtype=torch.float64)])
            yield f"1/{part} of a head rotated", order, self.with_angles(self.positions[..., None] * rates)

    def turned(self, x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """`B T D` with every head turned by so many positions, `... T`."""
        heads = x.reshape(*x.shape[:2], -1, self.width)
        angles = (steps.reshape(-1, x.shape[1], 1) * self.rates)[:, :, None]
        cos, sin = angles.cos(), angles.sin()
        if self.layout == "neighbours":
            a, b = heads[..., ::2], heads[..., 1::2]
            return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)
        a, b = heads.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


def plain_rates(width: int, base: float) -> torch.Tensor:
    """base^(-2i / width)"""
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)


def smoothings(rates: torch.Tensor, width: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Of rates of which the slow ones are scaled, and those between by parts: other rates, in words."""
    ends = {float(f"{float(rates[i] / rates[i + 1]) ** len(rates):.6g}") for i in (0, len(rates) - 2) if len(rates) > 1}
    for base in sorted(ends):
        plain = plain_rates(width, base)
        parts = (rates / plain).clamp(max=1.0)
        low = parts.min()
        between = (parts > low * (1 + NEAR)) & (parts < 1 - NEAR)
        if (rates > plain * (1 + NEAR)).any() or not 0 < low < 1 - NEAR:
            continue
        factor = f"{float(1 / low):.6g}"
        yield f"not scaled, of base {base:g}", plain
        if between.any():
            yield f"not smoothed: those between divided by {factor}", torch.where(between, plain * low, rates)
            yield "not smoothed: those between not divided", torch.where(between, plain, rates)
            yield "smoothed the other way round", torch.where(between, plain * (1 + low - parts), rates)
        yield f"all divided by {factor}", plain * low


def rotary_of(rerun: Rerun) -> Rotary | None:
    """The first tables among what a call is given, what its children give it, and what it computes."""
    arrays: list[Any] = arrays_in(rerun.arguments)
    for i, j in pairs_in(arrays):
        return rotary(arrays[i], arrays[j], lambda both, i=i, j=j: rerun.given_inputs({i: both[0], j: both[1]}))
    for site, value in rerun.given.items():
        arrays = arrays_in(value)
        for i, j in pairs_in(arrays):
            return rotary(arrays[i], arrays[j], partial(given_by, rerun, site, value, i, j))
    made = [(each, number, array) for each in rerun.operations for number, array in enumerate(parts(each.output))]
    for i, j in pairs_in([array for _, _, array in made]):
        (one, m, cos), (other, n, sin) = made[i], made[j]
        joined = any(is_join(each, cos, sin) for each in rerun.operations)
        return rotary(cos, sin, partial(computed, (one, m), (other, n)), "sinusoidal" if joined else "rotary")
    return sinusoidal(rerun)


def is_join(operation: Operation, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Whether an operation makes one table of both."""
    if operation.name not in ("cat", "concat", "stack") or not isinstance(operation.args[0], (tuple, list)):
        return False
    return all(any(torch.equal(table, each) for each in operation.args[0]) for table in (cos, sin))


def sinusoidal(rerun: Rerun) -> Rotary | None:
    """A table that the module, or one inside of it, holds: sines and cosines side by side or in turns."""
    for table in (*rerun.module.buffers(), *rerun.module.parameters()):
        flat = table.squeeze()
        if flat.ndim != 2 or not flat.is_floating_point() or len(flat) < 2 or flat.shape[1] < 4 or flat.shape[1] % 2:
            continue
        for in_turns in (False, True):
            one, other = (flat[:, ::2], flat[:, 1::2]) if in_turns else flat.chunk(2, -1)
            for cos, sin, first in ((other, one, 1), (one, other, 0)):
                if is_rotation(cos, sin) and begins(cos, sin):
                    return rotary(cos.clone(), sin.clone(), partial(held_joined, table, in_turns, first), "sinusoidal")
    return None


def held_joined(table: torch.Tensor, in_turns: bool, first: int, both: Tables) -> Inside:
    """Inside, a table holds these cosines and sines, `first` of them first."""
    parts = [both[first], both[1 - first]]
    return held(table, (torch.stack(parts, -1).flatten(-2) if in_turns else torch.cat(parts, -1)).reshape(table.shape))


def parts(output: Any) -> list[torch.Tensor]:
    """The tensors that an operation gives."""
    return [output] if isinstance(output, torch.Tensor) else list(output)


def put(value: Any, others: dict[int, torch.Tensor]) -> Any:
    """The same with some of its arrays replaced."""
    arrays = arrays_in(value)
    return replaced(value, arrays, [others.get(i, array) for i, array in enumerate(arrays)])


def given_by(rerun: Rerun, site: Site, value: Any, i: int, j: int, both: Tables) -> Inside:
    """Inside, two of the arrays that a child gives are these tables."""
    return rerun.given_outputs({site: put(value, {i: both[0], j: both[1]})})


def computed(one: tuple[Operation, int], other: tuple[Operation, int], both: Tables) -> Inside:
    """Inside, two operations, or parts of what they give, are these tables."""
    found: dict[Any, dict[int, torch.Tensor]] = {}
    for (operation, number), table in zip((one, other), both, strict=True):
        found.setdefault(operation.place, {})[number] = table
    return Altered({place: partial(with_parts, tables) for place, tables in found.items()})


def with_parts(tables: dict[int, torch.Tensor], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """What an operation gives, with these parts."""
    return put(function(*args, **kwargs), tables)


def pairs_in(arrays: list[Any]) -> Iterator[tuple[int, int]]:
    """Which two arrays are cosines and sines of positions along their axis before the last."""
    alike: dict[Any, list[int]] = {}
    for j, array in enumerate(arrays):
        if array.is_floating_point() and array.ndim > 1 and array.shape[-2] > 1:
            before = alike.setdefault(tuple(array.shape), [])
            for i in before:
                for cos, sin in ((i, j), (j, i)):
                    if is_rotation(arrays[cos], arrays[sin]) and begins(arrays[cos], arrays[sin]):
                        yield cos, sin
            before[:] = [*before, j][-MOST:]


def rotary(cos: torch.Tensor, sin: torch.Tensor, given: Placed, name: str = "rotary") -> Rotary:
    """Of two tables."""
    cos, sin = cos.double(), sin.double()
    n, turned = cos.shape[-1], torch.atan2(sin, cos).reshape(-1, *cos.shape[-2:])
    steps = turned[:, 1] - turned[:, 0]
    rates = steps[int(steps.any(-1).double().argmax())]  # a row of padding stands still
    if torch.equal(cos[..., : n // 2], cos[..., n // 2 :]):
        return Rotary(given, cos, sin, rates[: n // 2], "halves", name)
    if torch.equal(cos[..., ::2], cos[..., 1::2]):
        return Rotary(given, cos, sin, rates[::2], "neighbours", name)
    return Rotary(given, cos, sin, rates, "once", name)


def is_rotation(cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Whether two arrays are cosines and sines, up to a factor."""
    few = cos.flatten()[:3].square() + sin.flatten()[:3].square()
    if not few.min() > 0 or not torch.allclose(few, few[:1], rtol=1e-5):
        return False
    size = cos.square() + sin.square()
    return torch.allclose(size, size.flatten()[:1].expand_as(size), rtol=1e-5) and bool(sin.any())


def begins(cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Whether the first is the cosines: one of position 0 is 1, and its sine is 0."""
    return bool(sin[..., 0, :].abs().max() < 1e-9 < cos[..., 0, :].abs().min()) or bool(cos[..., -1].min() > 0.5)
