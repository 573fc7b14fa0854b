"""Changes of what the devices of a JAX program's shard_maps exchange, after which the program may be right."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxformer.parity.diagnose.mutation import grouped
from jaxformer.parity.trace.collectives import Bind, Edit, OnOp, Op, Seen, axes_of, plainly, used

REDUCED: dict[str, Callable[..., Any]] = {"reduce_sum": jax.lax.psum, "reduce_max": jax.lax.pmax, "reduce_min": jax.lax.pmin}
"""Reductions of a device's own part -> the exchange that makes them those of all."""
SUMS = ("psum", "reduce_scatter")
MOVES = ("all_gather", "ppermute", "reduce_scatter", "all_to_all")
DIMENSIONS = ("all_gather_dimension", "scatter_dimension", "split_axis", "concat_axis")


class Repair(NamedTuple):
    """Change of jax's program after which it may be torch's."""

    axis: str
    what: str
    """Description of the program as it is."""
    edit: Edit
    line: str = ""


def repairs(seen: Seen) -> Iterator[Repair]:
    """Yield changes of what a program exchanges, kind by kind."""
    for kind in (of_sums, of_moves, of_places, of_outputs, of_own_parts, of_products, of_specs):
        for axis in seen.sizes:
            yield from kind(seen, axis)


def then(f: Callable[[Any], Any], first: OnOp = plainly) -> OnOp:
    """Run an operation, and f of each array that it gives."""

    def on_op(bind: Bind, operation: Any, args: tuple[Any, ...], how: dict[str, Any]) -> Any:
        return jax.tree.map(f, first(bind, operation, args, how))

    return on_op


def given(**changes: Any) -> OnOp:
    """Run an operation with other parameters."""

    def on_op(bind: Bind, operation: Any, args: tuple[Any, ...], how: dict[str, Any]) -> Any:
        return bind(operation, *args, **how | changes)

    return on_op


def left_out(bind: Bind, operation: Any, args: tuple[Any, ...], how: dict[str, Any]) -> Any:
    """Give an operation's arguments back."""
    return list(args) if operation.multiple_results else args[0]


def of_sums(seen: Seen, axis: str) -> Iterator[Repair]:
    """Yield changes of sums over axes of the mesh."""
    n = seen.sizes[axis]
    for op, how in seen.ops.items():
        over = axes_of(how.get("axes" if op.name == "psum" else "axis_name")) if op.name in SUMS else ()
        if op.name == "psum" and axis in over:
            rest = tuple(other for other in over if other != axis)
            yield Repair(axis, "jax sums once too often", Edit({op: given(axes=rest) if rest else left_out}), op.line)
        if axis in over:
            yield Repair(axis, "jax takes a mean, or divides by the size, where a sum is wanted", times(op, n), op.line)
            yield Repair(axis, "jax sums where a mean is wanted", times(op, 1 / n), op.line)
        if op.name == "psum" and axis not in over:
            yield Repair(axis, "jax leaves out the sum", Edit({op: given(axes=(*over, axis))}), op.line)
            yield from of_other_axes(op, over, axis, seen.sizes)


def of_other_axes(op: Op, over: tuple[str, ...], axis: str, sizes: Mapping[str, int]) -> Iterator[Repair]:
    """Yield sums and means along this axis in the place of another one."""
    for other in over:
        instead = given(axes=tuple(axis if each == other else each for each in over))
        for factor, word in ((1.0, "sum"), (sizes.get(other, 1) / sizes[axis], "mean")):
            changed = Edit({op: then(partial(jnp.multiply, factor), instead)})
            yield Repair(axis, f"jax leaves out the {word}: it is taken along axis '{other}'", changed, op.line)


def times(op: Op, factor: float) -> Edit:
    """Multiply what an operation gives."""
    return Edit({op: then(lambda x: x * factor)})


def of_outputs(seen: Seen, axis: str) -> Iterator[Repair]:
    """Yield changes of what devices give at the end of a shard_map: of each array."""
    n = seen.sizes[axis]
    changes: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("jax leaves out the sum of what devices give", lambda x: jax.lax.psum(x, axis)),
        ("jax leaves out the mean of what devices give", lambda x: jax.lax.pmean(x, axis)),
        ("jax divides by its size once too often", lambda x: x * n),
        ("jax sums once too often", lambda x: x / n),
    )
    for number, specs in enumerate(seen.out_specs):
        for i, spec in enumerate(specs):
            for says, f in changes if axis not in used(spec) else ():
                yield Repair(axis, f"{says} (array {i})", Edit(on_output={(number, i): f}), seen.lines[number])


def of_moves(seen: Seen, axis: str) -> Iterator[Repair]:
    """Yield changes of collectives that move parts between devices."""
    for op, how in seen.ops.items():
        over = axes_of(how.get("axis_name")) if op.name in MOVES else ()
        if over == (axis,):
            yield from (of_ppermute if op.name == "ppermute" else of_gather)(op, how, axis, seen.sizes[axis])


def of_ppermute(op: Op, how: dict[str, Any], axis: str, n: int) -> Iterator[Repair]:
    """Yield other orders: around the ring, or up to its ends."""
    sends = f"`ppermute` sends {', '.join(f'{a} to {b}' for a, b in how['perm'])}"
    yield Repair(axis, f"{sends}, where nothing is to be moved", Edit({op: left_out}), op.line)
    for by in range(1 - n, n):
        line = tuple((i, i + by) for i in range(n) if 0 <= i + by < n)
        for perm in (line, tuple((i, (i + by) % n) for i in range(n))):
            says = f"{sends}, not {', '.join(f'{a} to {b}' for a, b in perm)}"
            yield Repair(axis, says, Edit({op: given(perm=perm)}), op.line)


def of_gather(op: Op, how: dict[str, Any], axis: str, n: int) -> Iterator[Repair]:
    """Yield other orders of parts, and other dimensions."""
    if op.name == "all_gather":
        for by, step in (*((by, 1) for by in range(1, n)), (n - 1, -1)):
            order = ", ".join(str((by + step * i) % n) for i in range(n))
            says = f"`all_gather` joins parts in another order; these devices' places make it right: {order}"
            yield Repair(axis, says, Edit({op: moved_before(axis, n, by, step)}), op.line)
    for word in DIMENSIONS:
        for dim in range(len(how["shape"])) if word in how else ():
            if dim != how[word]:
                yield Repair(axis, f"`{op.name}` has {word} {how[word]}, not {dim}", Edit({op: given(**{word: dim})}), op.line)


def moved_before(axis: str, n: int, by: int, step: int) -> OnOp:
    """Exchange parts between devices before an operation."""
    perm = tuple((i, (by + step * i) % n) for i in range(n))

    def on_op(bind: Bind, operation: Any, args: tuple[Any, ...], how: dict[str, Any]) -> Any:
        return bind(operation, *(jax.lax.ppermute(x, axis, perm) for x in args), **how)

    return on_op


def of_own_parts(seen: Seen, axis: str) -> Iterator[Repair]:
    """Yield changes that make what devices take of their own parts that of the whole: of an operation, of a line, of all."""
    ops = [op for op in seen.ops if op.name in REDUCED and op.number is not None]
    lines = grouped(ops, lambda op: op.line)
    groups = [[op] for op in ops] + [several for several in lines.values() if len(several) > 1]
    for group in (*groups, *([ops] if len(lines) > 1 else ())):
        for kind, word in ((jax.lax.pmean, "mean"), (jax.lax.psum, "sum")):
            how = {op: then(partial(kind if op.name == "reduce_sum" else REDUCED[op.name], axis_name=axis)) for op in group}
            what = word if any(op.name == "reduce_sum" for op in group) else "maximum"
            yield Repair(axis, f"each device takes the {what} of its own part alone", Edit(how), group[0].line)


def of_products(seen: Seen, axis: str) -> Iterator[Repair]:
    """Yield sums of what devices multiply."""
    for op in seen.ops:
        if op.name == "dot_general":
            says = "jax leaves out the sum of a product's parts"
            yield Repair(axis, says, Edit({op: then(lambda x: jax.lax.psum(x, axis))}), op.line)


def of_places(seen: Seen, axis: str) -> Iterator[Repair]:
    """Yield changes that count places from the beginning of the whole array, or along another axis."""
    for op, how in seen.ops.items():
        if op.name == "axis_index" and axes_of(how.get("axis_name")) != (axis,):
            says = f"`axis_index` is that of axis '{how.get('axis_name')}'"
            yield Repair(axis, says, Edit({op: given(axis_name=axis)}), op.line)
        if op.name == "iota":
            yield Repair(axis, "each device counts places from 0", Edit({op: counted_on(axis)}), op.line)


def counted_on(axis: str) -> OnOp:
    """Count places on from one device to the next."""

    def on_op(bind: Bind, operation: Any, args: tuple[Any, ...], how: dict[str, Any]) -> Any:
        places = bind(operation, *args, **how)
        return places + (jax.lax.axis_index(axis) * how["shape"][how["dimension"]]).astype(places.dtype)

    return on_op


def of_specs(seen: Seen, axis: str) -> Iterator[Repair]:
    """Yield changes of the specification of one input or output: the axis at another dimension, or left out."""
    for which, found in (("in_specs", seen.specs), ("out_specs", seen.out_specs)):
        for number, specs in enumerate(found):
            for i, spec in enumerate(specs):
                for other in other_specs(spec, axis):
                    edit = Edit(on_specs={(which, number): (*specs[:i], other, *specs[i + 1 :])})
                    yield Repair(axis, f"{which} has {spec} for array {i}, not {other}", edit, seen.lines[number])


def other_specs(spec: Any, axis: str) -> Iterator[PartitionSpec]:
    """Yield specifications with an axis of the mesh at another dimension, exchanged with what cuts that one."""
    parts = [*spec]
    for at in (at for at, part in enumerate(parts) if part == axis):
        for i in (i for i in range(max(len(parts), 2)) if i != at):
            moved = [*parts, None, None]
            moved[at], moved[i] = moved[i], moved[at]
            yield PartitionSpec(*moved[: max(len(parts), i + 1)])
