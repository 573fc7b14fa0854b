"""What may be otherwise in rotary positions: rates and positions of the tables, which units are pairs, what is rotated."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import combinations

import torch

from jaxformer.parity.capture.call_sites import Site
from jaxformer.parity.explain.alterations.altered import Alteration, Dial, Inside, together
from jaxformer.parity.explain.alterations.masked_positions import by_masks
from jaxformer.parity.explain.alterations.operations import Altered, Operation
from jaxformer.parity.explain.alterations.other_ids import other_positions
from jaxformer.parity.explain.alterations.rerun import Rerun
from jaxformer.parity.explain.alterations.rotary_tables import (
    LAYOUTS,
    Rotary,
    Tables,
    plain_rates,
    rotary_of,
    smoothings,
)
from jaxformer.parity.explain.alterations.rotary_uses import STEPS, at_uses, products, relaid, uses

BASES = (10000.0, 500000.0, 1000000.0, 100000.0, 1000.0)
WHOLE = 1e-6
PARTS = (2, 4, 0.5, 0.25)
"""Of the units that torch rotates, as a port that rotates the whole of a head."""
ROUNDED = (torch.bfloat16, torch.float16)
FACTORS = {"2 pi": 2 * math.pi, "pi": math.pi, "pi / 2": math.pi / 2, "1 / (2 pi)": 0.5 / math.pi, "pi / 180": math.pi / 180}


def alterations_of(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """Of the tables, of the pairs, and of what is rotated."""
    if rotary := rotary_of(rerun):
        yield from tables(rotary)
        yield from masked(rerun, rotary)
        if rotary.name == "sinusoidal":
            return
        yield from turns(rerun.operations, rotary)
        yield from children(rerun, rotary)
        yield from uses(rerun.operations)


def tables(rotary: Rotary) -> Iterator[Alteration | Dial]:
    """Other rates, positions or signs."""
    positions, rates = rotary.positions, rotary.rates
    plain = torch.allclose(rates, plain_rates(rotary.width, rotary.base), rtol=1e-5)
    name, placed = rotary.name, f"{rotary.name} positions as they are"
    said = f"{name} base {rotary.base:.6g}" if plain else f"{name} rates as they are"
    if not plain and (by := rotary.divisor):
        said = f"{name} rates of base {rotary.base:.6g} divided by {by:.6g}"
        yield Alteration(said, "not divided", lambda: rotary.given(rotary.with_base(rotary.base)))

    def angles(positions: torch.Tensor) -> Inside:
        return rotary.given(rotary.with_angles(positions[..., None] * rates))

    for base in BASES:
        if plain and base == rotary.base:
            continue
        yield Alteration(said, f"{name} base {base:g}", lambda base=base: rotary.given(rotary.with_base(base)))
    yield from rounded(rotary)
    for says, other in () if plain else smoothings(rates, rotary.width):
        yield Alteration(
            said, f"{name} rates {says}", lambda other=other: rotary.given(rotary.with_angles(positions[..., None] * other))
        )
    yield from other_tables(rotary)
    for says, other in other_positions(positions.long()):
        yield Alteration(placed, f"{name} positions {says}", lambda other=other: angles(other))
    for width in PARTS if name == "rotary" else ():
        other = int(width * rotary.width)
        says = f"{rotary.width} units of a head rotated", f"{other} units of a head rotated"
        yield Alteration(*says, lambda other=other: rotary.given(rotary.of_width(other)))
    for more in (1, -1) if name == "sinusoidal" else ():
        yield Alteration(placed, f"{name} positions {more:+d}", lambda more=more: angles(positions + more))
    for says, factor in FACTORS.items():
        yield Alteration(placed, f"{name} positions times {says}", partial(angles, positions * factor))
    yield Dial(placed, f"{name} positions times {{}}", 1.0, lambda c: angles(positions * c), sure=True)
    yield Dial(said, f"{name} base {{}}", rotary.base, lambda base: rotary.given(rotary.with_base(base)), sure=True)


def other_tables(rotary: Rotary) -> Iterator[Alteration]:
    """Of the same angles, or of none."""
    positions, rates, name = rotary.positions, rotary.rates, rotary.name
    none = rotary.with_angles(0 * positions[..., None] * rates, 1.0)
    yield Alteration(f"{name} positions", "none", lambda: rotary.given(none))
    yield Alteration("rotated forwards", "rotated backwards", lambda: rotary.given((rotary.cos, -rotary.sin)))
    yield Alteration(f"{name} cosines and sines", "the two exchanged", lambda: rotary.given((rotary.sin, rotary.cos)))
    if abs(rotary.size - 1) > WHOLE:
        amplitude = rotary.with_angles(positions[..., None] * rates, 1.0)
        yield Alteration(f"rotary amplitude {rotary.size:.6g}", "rotary amplitude 1", lambda: rotary.given(amplitude))


def masked(rerun: Rerun, rotary: Rotary) -> Iterator[Alteration]:
    """Positions of the tokens that a mask lets be seen."""
    positions, name = rotary.positions, rotary.name
    for says, other in by_masks(rerun, positions.shape[-1]) if positions.ndim > 1 else ():
        placed = other.reshape(len(other), *[1] * (positions.ndim - 2), -1)
        tables = rotary.with_angles(placed[..., None] * rotary.rates)
        yield Alteration(f"{name} positions as they are", f"{name} positions {says}", partial(rotary.given, tables))


def rounded(rotary: Rotary) -> Iterator[Alteration]:
    """Tables, or what they are made of, in a smaller type."""
    cos, sin, rates, name = rotary.cos, rotary.sin, rotary.rates, rotary.name
    angles = rotary.positions[..., None] * rates
    for kind in ROUNDED:
        others = {
            "cosines and sines": (round_to(kind, cos), round_to(kind, sin)),
            "rates": rotary.with_angles(rotary.positions[..., None] * round_to(kind, rates)),
            "angles": rotary.with_angles(round_to(kind, angles)),
        }
        for what, tables in others.items():
            says = f"{name} {what} as they are", f"{name} {what} rounded to {str(kind).removeprefix('torch.')}"
            yield Alteration(*says, partial(rotary.given, tables))


def round_to(kind: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    """In a smaller type, and back."""
    return x.to(kind).to(x.dtype)


def turns(operations: list[Operation], rotary: Rotary) -> Iterator[Alteration]:
    """Other pairs where a pair's units are exchanged, or in the tables, or both."""
    exchanges = [operation for operation in operations if joins_pairs(operation)]
    neighbours = rotary.layout == LAYOUTS[1] or any(operation.name == "stack" for operation in exchanges)
    now, other = ("interleaved", "half and half")[:: 1 if neighbours else -1]
    said, turned = f"rotary pairs {now}", Altered({operation.place: other_pairs for operation in exchanges})
    if exchanges:
        yield Alteration(said, f"rotary pairs {other} where they are turned, {now} in the tables", lambda: turned)
    if pairs := products(operations) if exchanges else []:
        both = [(pair, relaid(pair, neighbours)) for pair in pairs]
        yield Alteration(said, f"rotary pairs {other}", lambda: together(at_uses(both), turned))
    if rotary.layout in LAYOUTS:
        laid = rotary.laid_otherwise()
        says = f"rotary pairs {now} where they are turned, {other} in the tables"
        yield Alteration(said, says, lambda: rotary.given(laid))
        if exchanges:
            yield Alteration(said, f"rotary pairs {other}", lambda: together(rotary.given(laid), turned))


def joins_pairs(operation: Operation) -> bool:
    """Whether it may be the last of `rotate_half(x)`: two arrays of one shape, one after the other or in turns."""
    first = next(iter(operation.args), None)
    if operation.name not in ("cat", "concat", "stack") or not isinstance(first, (tuple, list)) or len(first) != 2:
        return False
    one, other = first
    floats = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.is_floating_point()
    alike = floats and one.shape == other.shape and one.shape[-1] > 1 and one.ndim > 2
    return bool(alike) and not torch.equal(one, other)  # tables are of one array twice


def other_pairs(function: object, args: tuple[tuple[torch.Tensor, torch.Tensor]], kwargs: object, n: int) -> torch.Tensor:
    """(-b, a) of pairs of neighbours, where those were of halves, or the other way round."""
    minus, plus = args[0]
    if "stack" in getattr(function, "__name__", ""):
        x = torch.stack([plus, -minus], -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat([-b, a], -1).reshape(*minus.shape, 2)
    x = torch.cat([plus, -minus], -1)
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def children(rerun: Rerun, rotary: Rotary) -> Iterator[Alteration]:
    """Of those that jax calls too: queries and keys as other pairs have them, and each at other positions."""
    width = rotary.width
    given = {site: x for site, x in rerun.given.items() if isinstance(x, torch.Tensor) and x.is_floating_point()}
    length = rotary.positions.shape[-1]
    heads = {site: x for site, x in given.items() if x.ndim == 3 and x.shape[1] == length and x.shape[-1] % width == 0}
    names = {site: str(site).removeprefix(f"{rerun.owner.path}.") for site in heads}
    for says, order, both in rotary.pairings():
        for those in [*combinations(heads, 2)][::-1]:
            others = {site: by_head(heads[site], width)[..., order].reshape(heads[site].shape) for site in those}
            yield Alteration(rotary.pairs, says, lambda o=others, b=both: with_tables(rerun, o, rotary, b))
    for site, x in heads.items():
        for says, steps in STEPS.items():
            other = rotary.turned(x, torch.full((x.shape[1],), float(steps), dtype=x.dtype))
            yield child(rerun, site, f"{names[site]} at its positions", f"{names[site]} {says}", other)
        forth, back = (rotary.turned(x, sense * rotary.positions) for sense in (1, -1))
        yield child(rerun, site, f"{names[site]} as it is", f"as if {names[site]} rotated once more", forth)
        yield child(rerun, site, f"{names[site]} rotated", f"{names[site]} not rotated", back)


def child(rerun: Rerun, site: Site, torch_says: str, jax_says: str, other: torch.Tensor) -> Alteration:
    """A child gives something else."""
    return Alteration(torch_says, jax_says, lambda: rerun.given_outputs({site: other}))


def by_head(x: torch.Tensor, width: int) -> torch.Tensor:
    """`... D` as `... N H`."""
    return x.reshape(*x.shape[:-1], -1, width)


def with_tables(rerun: Rerun, others: dict[Site, torch.Tensor], rotary: Rotary, both: Tables | None) -> Inside:
    """Inside, children give something else, and the tables may be others."""
    altered = rerun.given_outputs(others)
    return together(altered, rotary.given(both)) if both else altered
