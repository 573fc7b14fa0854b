"""The cosines and sines of rotary positions that a call is given: their rates, and tables of other ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from jaxformer.parity.capture.call_records import arrays_in
from jaxformer.parity.explain.alterations.rerun import Rerun

Tables = dict[int, torch.Tensor]
"""Two arrays of a call's arguments, by their numbers."""


@dataclass(frozen=True)
class Rotary:
    """Tables `... T H` or `... T H/2`, of positions times rates."""

    places: tuple[int, int]
    """Of cosines and sines among the arguments."""
    cos: torch.Tensor
    sin: torch.Tensor
    rates: torch.Tensor
    """Radians a position of each pair."""
    layout: str
    """'halves', 'neighbours', or 'once': how the rates stand in the tables."""

    @property
    def width(self) -> int:
        """How many units of a head are rotated."""
        return 2 * len(self.rates)

    @property
    def size(self) -> float:
        """What the rotated units are multiplied by."""
        return float((self.cos.square() + self.sin.square()).flatten()[0].sqrt())

    @property
    def positions(self) -> torch.Tensor:
        """Of the first row."""
        angles = torch.atan2(self.sin, self.cos).reshape(-1, *self.cos.shape[-2:])[0, 0, 0]
        first = torch.round(angles / self.rates[0])
        return torch.arange(self.cos.shape[-2], dtype=torch.float64) + first

    @property
    def base(self) -> float:
        """By the second rate, which torch may hold in float32."""
        return float(f"{float(self.rates[1]) ** -len(self.rates):.6g}") if len(self.rates) > 1 else 1e4

    @property
    def pairs(self) -> str:
        """In words."""
        return "rotary pairs interleaved" if self.layout == "neighbours" else "rotary pairs half and half"

    def with_angles(self, angles: torch.Tensor, size: float | None = None) -> Tables:
        """Other tables, of angles `T H/2`."""
        both = {"halves": torch.cat([angles, angles], -1), "neighbours": angles.repeat_interleave(2, -1)}
        full, size = both.get(self.layout, angles), self.size if size is None else size
        i, j = self.places
        return {i: (full.cos() * size).expand_as(self.cos), j: (full.sin() * size).expand_as(self.sin)}

    def with_base(self, base: float) -> Tables:
        """Of plain rates."""
        return self.with_angles(self.positions[:, None] * plain_rates(self.width, base))

    def pairings(self) -> Iterator[tuple[str, torch.Tensor, Tables]]:
        """In words; the order of a head's units in which torch's pairs are those; and the tables.

        Scores do not change where queries and keys both have their units in another order.
        """
        units, half = torch.arange(self.width), len(self.rates)
        apart = torch.cat([units[::2], units[1::2]])
        neighbours = self.layout == "neighbours"
        yield (
            ("rotary pairs half and half" if neighbours else "rotary pairs interleaved"),
            (torch.argsort(apart) if neighbours else apart),
            {},
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
            yield f"1/{part} of a head rotated", order, self.with_angles(self.positions[:, None] * rates)

    def turned(self, x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """`B T D` with every head turned by so many positions, `T`."""
        heads = x.reshape(*x.shape[:2], -1, self.width)
        angles = (steps[:, None] * self.rates)[:, None]
        cos, sin = angles.cos(), angles.sin()
        if self.layout == "neighbours":
            a, b = heads[..., ::2], heads[..., 1::2]
            return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)
        a, b = heads.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


def plain_rates(width: int, base: float) -> torch.Tensor:
    """base^(-2i / width)"""
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)


def rotary_of(rerun: Rerun) -> Rotary | None:
    """The tables among the arguments of a call, if there are any."""
    arrays: list[Any] = arrays_in(rerun.arguments)
    pairs = [(i, j) for i, a in enumerate(arrays) for j, b in enumerate(arrays) if i != j and is_rotation(a, b)]
    for i, j in (pair for pair in pairs if begins(arrays[pair[0]], arrays[pair[1]])):
        cos, sin = arrays[i], arrays[j]
        n, turned = cos.shape[-1], torch.atan2(sin, cos).reshape(-1, *cos.shape[-2:])[0]
        rates = turned[1] - turned[0]
        if torch.equal(cos[..., : n // 2], cos[..., n // 2 :]):
            return Rotary((i, j), cos, sin, rates[: n // 2], "halves")
        if torch.equal(cos[..., ::2], cos[..., 1::2]):
            return Rotary((i, j), cos, sin, rates[::2], "neighbours")
        return Rotary((i, j), cos, sin, rates, "once")
    return None


def is_rotation(cos: Any, sin: Any) -> bool:
    """Whether two arrays are cosines and sines, up to a factor."""
    floats = cos.shape == sin.shape and cos.is_floating_point() and sin.is_floating_point()
    if not floats or cos.ndim < 2 or cos.shape[-2] < 2:
        return False
    size = cos.square() + sin.square()
    return bool(size.min() > 0 and torch.allclose(size, size.flatten()[0].expand_as(size), rtol=1e-5))


def begins(cos: Any, sin: Any) -> bool:
    """Whether the first is the cosines: one of position 0 is 1, and its sine is 0."""
    return bool(sin[..., 0, :].abs().max() < 1e-9 < cos[..., 0, :].abs().min()) or bool(cos[..., -1].min() > 0.5)
