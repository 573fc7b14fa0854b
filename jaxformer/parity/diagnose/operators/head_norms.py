"""Mutations of norms of queries and keys: on the other side of the rotation, left out, over other axes, or applied to values
too."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from jaxformer.parity.diagnose.functions import NORMALIZED, is_near, normalized, scaled
from jaxformer.parity.diagnose.modules import given_by, intercepted, its_input, name_of, norms, path_of, replaced, starred
from jaxformer.parity.diagnose.mutation import DELETES, Change, Edit, Proposal, grouped, propose, together
from jaxformer.parity.diagnose.operators.rotary_tables import parts, put
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Listing, Op, Place, Rewrite, same
from jaxformer.parity.trace.call_sites import last, parent

INPUT = Change("head_norms.input", "after it", "applies {0} before the rotation")
MOVED = Change(
    "head_norms.moved",
    {"after": "after it", "before": "before it"},
    {"after": "applies {names:and} before the rotation", "before": "applies {names:and} after the rotation"},
)
LEFT_OUT = Change("head_norms.left_out", "leaves it out", "applies {0}", cost=DELETES)
ALL_LEFT_OUT = Change("head_norms.all_left_out", "leaves them out", "applies {names:and}", cost=DELETES)
PER_HEAD = Change("head_norms.per_head", "over the {width} units of each head", "applies {names:and} over {own} units")
ALL_HEADS = Change(
    "head_norms.all_heads",
    "over axis {axis} and the last together: all heads at once",
    "applies {names:and} over the {own} units of each head",
)
TOO = Change("head_norms.too", "applies {1} to it", "uses {0} as it is")
NEAR = 1e-9
"""Tolerance of lengths and entries that count as equal."""
Function = Callable[[torch.Tensor], torch.Tensor]


class Norm(NamedTuple):
    """Norm that is called once, with its input `x` and its output `y`."""

    name: str
    x: torch.Tensor
    y: torch.Tensor
    forward: Function
    made: Any
    """Operation or module that computes the norm."""
    run: int = 0


class Moved(NamedTuple):
    """Norm, and where it can move: to part `part` of the output of `op` in run `run`, on the rotation's other side."""

    norm: Norm
    op: Op
    run: int
    part: int
    side: str
    """Side on which jax has the norm: 'after' the rotation (after it), or 'before' it."""


def moves(replay: Replay) -> Iterator[Proposal]:
    """Mutations that move norms to the other side of the rotation: the one whose input is compared, then all together, then by
    name."""
    yield from its_input_rotated(replay)
    found = [*movable(replay)]
    for side in ("after", "before"):
        those = [each for each in found if each.side == side]
        groups = by_name(those)
        for some in (those, *(groups.values() if len(groups) > 1 else ())):
            alike = [(name, {each.norm.name for each in its}) for name, its in by_name(some).items()]
            names = tuple(name if len(its) > 1 else its.pop() for name, its in alike)
            if names:
                yield propose(MOVED, names, partial(elsewhere, some), how=side, names=names)


def by_name(those: list[Moved]) -> dict[str, list[Moved]]:
    """Group by the norm's name, with `*` for numbers of layers."""
    return grouped(those, lambda each: starred(each.norm.name))


def its_input_rotated(replay: Replay) -> Iterator[Proposal]:
    """Mutation of a norm's input that is compared: jax rotates it before the norm."""
    site, listing = replay.place.site, Listing()
    if replay.place.part != "inputs" or not (module := norms(replay).get(str(site).removeprefix(f"{path_of(replay)}."))):
        return
    x = torch.from_numpy(replay.wanted)
    with replay.to_the_end():
        replay.array(together(replaced(module, "forward", its_input), listing))
    made = [each for op in listing.operations.values() for run in op.runs for each in parts(run.output)]
    rotated = [each for each in made if is_like(each, x) and is_rotated(each, x)]
    if found := [ordered for each in rotated if (ordered := in_order_of(x, each)) is not None]:
        yield propose(INPUT, last(site.path), lambda: replay.followed_by(lambda array: found[-1]))


def in_order_of(x: torch.Tensor, output: torch.Tensor) -> torch.Tensor | None:
    """Return `output` in the order of axes of `x`, if its vectors have the lengths of those of `x`; None if not."""
    for each in (output, output.transpose(1, -2)):
        if each.shape == x.shape and torch.allclose(lengths(each), lengths(x), rtol=NEAR, atol=0):
            return each
    return None


def movable(replay: Replay) -> Iterator[Moved]:
    """Norms, each with an operation on the rotation's other side.

    A rotation keeps the lengths of heads and changes their entries: the operation's output has the lengths of the norm's
    output (the rotation comes after the norm) or of its input (before the norm).
    """
    known = [*of_modules(replay)]
    runs = [(op, n, run) for op in replay.listed for n, run in enumerate(op.runs)]
    every = [((op, n, part), output) for op, n, run in runs for part, output in enumerate(parts(run.output))]
    for norm in (*known, *of_functions(replay, known)):
        made = [(at, output) for at, output in every if is_like(output, norm.y)]
        if behind := [at for at, output in made if is_rotated(output, norm.y)]:
            yield Moved(norm, *behind[-1], "after")
        if before := [at for at, output in made if is_rotated(output, norm.x)]:
            yield Moved(norm, *before[0], "before")


def of_modules(replay: Replay) -> Iterator[Norm]:
    """Norms that are modules and called once."""
    known, calls = norms(replay), list[Norm]()

    def noted(name: str, forward: Function, *args: Any, **kwargs: Any) -> Any:
        y, x = forward(*args, **kwargs), next(iter((*args, *kwargs.values())), None)
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.ndim > 2 and x.shape == y.shape:
            calls.append(Norm(name, x.clone(), y.clone(), forward, known[name]))
        return y

    replay.array(intercepted(known, noted))
    yield from (each[0] for each in grouped(calls, lambda norm: norm.name).values() if len(each) == 1)


def of_functions(replay: Replay, known: list[Norm]) -> Iterator[Norm]:
    """Norms that code computes by a function of torch's, without those `known`."""
    for op in replay.listed:
        for n, run in enumerate(op.runs if op.name in NORMALIZED else ()):
            x, *others = run.args
            if x.ndim > 2 and not any(same(x, each.x) for each in known):
                forward = partial(applied, op.function, others, run.kwargs)
                yield Norm(op.source, x, run.output, forward, op, n)


def applied(function: Callable[..., Any], others: list[Any], kwargs: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    """Apply a function with the other arguments of its call."""
    return function(x, *others, **kwargs)


def elsewhere(those: list[Moved]) -> Edit:
    """Edit that leaves norms out of their places, and applies them to the outputs of other operations."""
    behind: dict[Place, dict[int, dict[int, Function]]] = {}
    for each in those:
        behind.setdefault(each.op.place, {}).setdefault(each.run, {})[each.part] = each.norm.forward
    out: dict[Place, set[int]] = {}
    for norm in (each.norm for each in those if isinstance(each.norm.made, Op)):
        out.setdefault(norm.made.place, set()).add(norm.run)
    computes = {place: partial(moved, out.get(place, set()), behind.get(place, {})) for place in {*behind, *out}}
    return together(left_out([each.norm for each in those if not isinstance(each.norm.made, Op)]), Rewrite(computes))


def moved(out: set[int], behind: dict[int, dict[int, Function]], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute an operation: leave it out in the runs `out`, and apply norms to parts of its output in the runs of `after`."""
    if n in out:
        return args[0]
    output = function(*args, **kwargs)
    return put(output, {i: norm(parts(output)[i]) for i, norm in behind[n].items()}) if n in behind else output


def is_like(output: torch.Tensor, y: torch.Tensor) -> bool:
    """True if an output has as many entries as `y`, in heads of the same width."""
    return output.is_floating_point() and output.numel() == y.numel() and output.shape[-1:] == y.shape[-1:]


def lengths(x: torch.Tensor) -> torch.Tensor:
    """Squared lengths of the vectors along the last axis."""
    return x.square().sum(-1)


def is_rotated(output: torch.Tensor, x: torch.Tensor) -> bool:
    """True if two arrays have vectors of the same lengths, in any order, but other entries. Entries that differ in order or
    sign alone, as of exchanged halves, are no rotation."""

    def alike(*both: torch.Tensor) -> bool:
        one, other = (each.flatten().sort().values for each in both)
        return torch.allclose(one, other, rtol=NEAR, atol=0)

    return alike(lengths(output), lengths(x)) and not alike(output.abs(), x.abs())


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of all norms of one kind beside each other, in every layer: left out, over other axes, or applied to other
    arrays too."""
    kinds = grouped([*of_modules(replay)], lambda norm: (type(norm.made), starred(parent(norm.name))))
    for those in kinds.values():
        same_name = grouped(those, lambda norm: starred(norm.name))
        names = tuple(same_name)
        if len(those) > 1:
            yield propose(ALL_LEFT_OUT, names, partial(left_out, those), names=names)
        for name, some in same_name.items():
            if 1 < len(some) < len(those):
                yield propose(LEFT_OUT, name, partial(left_out, some))
        yield from over_others(replay, those, names)
        for norm in those:
            yield from of_others(replay, norm)


def left_out(norms: list[Norm]) -> Edit:
    """Edit in which each norm returns its input."""
    return together(*(replaced(norm.made, "forward", its_input) for norm in norms))


def over_others(replay: Replay, those: list[Norm], names: tuple[str, ...]) -> Iterator[Proposal]:
    """Mutations of what norms normalise together: each head in place of the full width, or all heads (two axes) in place of
    each."""
    if not all(map(is_known, those)):
        return
    args = {"names": names, "own": those[0].x.shape[-1]}
    outputs = (run.output for op in replay.listed for run in op.runs)
    widths = {x.shape[-1] for x in outputs if isinstance(x, torch.Tensor) and x.ndim}
    for width in sorted(widths):
        if all(1 < width < norm.x.shape[-1] and norm.x.shape[-1] % width == 0 for norm in those):
            yield propose(PER_HEAD, names, partial(all_over, those, width, (-1,)), width=width, **args)
    for axis in (1, 2) if all(norm.x.ndim == 4 for norm in those) else ():
        yield propose(ALL_HEADS, names, partial(all_over, those, None, (axis, -1)), axis=axis, **args)


def is_known(norm: Norm) -> bool:
    """True if `formula` gives the norm's output, and its weight fits the last axis: that of a norm over channels in front does
    not."""
    weight = getattr(norm.made, "weight", None)
    fits = weight is None or weight.shape == norm.x.shape[-1:]
    return fits and is_near(formula(norm, None, (-1,), norm.x), norm.y)


def all_over(norms: list[Norm], width: int | None, axes: tuple[int, ...]) -> Edit:
    """Edit in which norms go over these axes, with the last axis split into groups of `width` units (None: not split)."""
    return together(*(replaced(norm.made, "forward", partial(formula, norm, width, axes)) for norm in norms))


def formula(norm: Norm, width: int | None, axes: tuple[int, ...], x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Compute RMSNorm or LayerNorm with the module's weights, over these axes and groups of `width` units."""
    units, held = x.unflatten(-1, (-1, width)) if width else x, vars(norm.made)
    is_centered = is_near(norm.forward(norm.x + 1), norm.y)
    epsilon = next((held[name] for name in ("eps", "epsilon", "variance_epsilon") if isinstance(held.get(name), float)), 0.0)
    y = normalized(units, axes, epsilon, "" if is_centered else "rms").reshape(x.shape)
    return scaled(y, getattr(norm.made, "weight", None), getattr(norm.made, "bias", None))


def of_others(replay: Replay, norm: Norm) -> Iterator[Proposal]:
    """Mutations that apply a norm to outputs of other children too, as the norm of keys to values."""
    for site, x in given_by(replay).items():
        if x.shape == norm.x.shape and not same(x, norm.x) and not same(x, norm.y):
            names = name_of(replay, site), norm.name
            yield propose(TOO, names, lambda site=site, x=x: replay.given_outputs({site: norm.forward(x)}))
