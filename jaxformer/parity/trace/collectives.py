"""Runs of a JAX program with one change of what the devices of its `shard_map`s exchange."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Primitive

from jaxformer.parity.trace.source_lines import is_users, line_here, shown


class Op(NamedTuple):
    """Operation inside of a shard_map."""

    name: str
    line: str
    """Line of the user's code."""
    number: int | None = None
    """Number among those of its name on its line; None for all of them, as in layers that share code."""


Bind = Callable[..., Any]
OnOp = Callable[[Bind, Primitive, tuple[Any, ...], dict[str, Any]], Any]
"""Function that runs an operation otherwise: f(bind, operation, arguments, parameters)."""


@dataclass(frozen=True)
class Edit:
    """Change of a program: what each of its parts becomes; None leaves it."""

    on_op: Mapping[Op, OnOp] = field(default_factory=dict)
    on_output: Mapping[tuple[int, int], Callable[[Any], Any]] = field(default_factory=dict)
    """Functions of arrays that a device gives, by the numbers of the shard_map and of the array."""
    on_specs: Mapping[tuple[str, int], tuple[Any, ...]] = field(default_factory=dict)
    """Specifications by 'in_specs' or 'out_specs' and the number of the shard_map."""
    single: frozenset[str] = frozenset()
    """Axes of the mesh that get one device."""


@dataclass
class Seen:
    """Parts of a program's shard_maps."""

    ops: dict[Op, dict[str, Any]] = field(default_factory=dict)
    """Operations, with the parameters of the first of each."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of the axes of all meshes."""
    specs: list[tuple[Any, ...]] = field(default_factory=list)
    out_specs: list[tuple[Any, ...]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """Lines of the shard_maps."""

    def without_twins(self) -> "Seen":
        """Return the same without what stands for all operations of a line that has one."""
        several = {op[:2] for op in self.ops if op.number}
        return replace(self, ops={op: how for op, how in self.ops.items() if op.number is not None or op[:2] in several})


@contextmanager
def edited(edit: Edit) -> Iterator[Seen]:
    """Run the user's code with a change inside of every shard_map that it calls; give what is seen of them.

    A shard_map runs on one device, as a `vmap` over the parts of its inputs with the mesh's axes as names. What JAX itself
    binds, as for derivatives, is no operation of the user's.
    """
    program = _Edited(edit)
    with mock.patch.object(Primitive, "bind", lambda operation, *args, **how: program.bind(operation, args, how)):
        yield program.seen


class _Edited:
    """Running program."""

    def __init__(self, edit: Edit):
        self.edit, self.seen, self.as_it_is = edit, Seen(), Primitive.bind
        self.inside = self.busy = False
        self.runs: Counter[tuple[str, str]] = Counter()
        """Numbers of runs in this shard_map, by operation and line."""

    def bind(self, operation: Primitive, args: tuple[Any, ...], how: dict[str, Any]) -> Any:
        """Run an operation, changed where the user's code in a shard_map calls it."""
        if operation.name == "shard_map" and "subfuns" in how and not self.inside:
            return self._mapped(args, how["mesh"], how["subfuns"][0], tuple(how["in_specs"]))
        if self.busy or not self.inside:
            return self.as_it_is(operation, *args, **how)
        if operation.name in TYPES_ALONE:
            return list(args) if operation.multiple_results else args[0]
        self.busy = True
        try:
            name, line = operation.name, users_line()
            op, every = Op(name, line, self.runs[name, line]), Op(name, line)
            self.runs[name, line] += 1
            for each in (op, every):
                self.seen.ops.setdefault(each, how | {"shape": getattr(args[0], "shape", ()) if args else ()})
            return self.edit.on_op.get(op, self.edit.on_op.get(every, plainly))(self._run, operation, args, how)
        finally:
            self.busy = False

    def _run(self, operation: Primitive, *args: Any, **how: Any) -> Any:
        if operation.name != "ppermute":
            return self.as_it_is(operation, *args, **how)
        found = self.as_it_is(operation, *args, **how | {"perm": completed(how["perm"], size_of(how["axis_name"]))})
        here = jax.lax.axis_index(how["axis_name"])
        reached = jnp.isin(here, jnp.asarray([to for _, to in how["perm"]], here.dtype))
        return jax.tree.map(lambda x: jnp.where(reached, x, jnp.zeros_like(x)), found)

    def _mapped(self, args: tuple[Any, ...], mesh: Any, body: Callable[..., Any], specs: tuple[Any, ...]) -> Any:
        """Run a shard_map."""
        edit, seen, number = self.edit, self.seen, len(self.seen.lines)
        sizes = {name: 1 if name in edit.single else size for name, size in mesh.shape.items()}
        seen.sizes |= {name: size for name, size in sizes.items() if size > 1}
        seen.lines.append(users_line())
        seen.specs.append(specs)
        specs, held = edit.on_specs.get(("in_specs", number), specs), list[Any]()
        self.runs.clear()

        def on_part(*parts: Any) -> Any:
            self.inside = True
            try:
                held[:] = body(*parts).unpack_aux()
                return [edit.on_output.get((number, i), lambda x: x)(leaf) for i, leaf in enumerate(held[0].vals)]
            finally:
                self.inside = False

        for axis in reversed(sizes):
            along = tuple(0 if axis in used(spec) else None for spec in specs)
            on_part = jax.vmap(on_part, along, 0, axis_name=axis, axis_size=sizes[axis])
        leaves = on_part(*(cut(unsharded(array), spec, sizes) for array, spec in zip(args, specs, strict=True)))
        found, out = held
        seen.out_specs.append(tuple(out))
        out = edit.on_specs.get(("out_specs", number), out)
        whole = iter([put_together(leaf, spec, sizes) for leaf, spec in zip(leaves, out, strict=True)])
        return found.map(lambda _: next(whole))


TYPES_ALONE = ("pvary", "pcast", "vary_unreduced_cast", "sharding_constraint")
"""Operations that change no number."""


def users_line() -> str:
    """Return the innermost line of the user's code that is running; quick, since it is asked for at every operation."""
    frame = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return shown(frame.f_code.co_filename, frame.f_lineno) if frame else line_here()


def completed(perm: Any, n: int) -> tuple[tuple[int, int], ...]:
    """Return pairs that reach every device, as vmap wants them."""
    perm = tuple(pair for pair in perm if max(pair) < n)  # on fewer devices
    sources, targets = ([*(set(range(n)) - {pair[side] for pair in perm})] for side in (0, 1))
    return (*perm, *zip(sources, targets, strict=True))


def size_of(axes: Any) -> int:
    """Number of devices along axes of the mesh, inside of a shard_map."""
    return int(np.prod([jax.lax.axis_size(axis) for axis in axes_of(axes)]))


def plainly(bind: Bind, operation: Primitive, args: tuple[Any, ...], how: dict[str, Any]) -> Any:
    """Run an operation as it is."""
    return bind(operation, *args, **how)


def used(spec: Any) -> tuple[str, ...]:
    """Axes of the mesh in a specification."""
    return tuple(axis for part in spec for axis in axes_of(part))


def axes_of(part: Any) -> tuple[str, ...]:
    """Axes of the mesh that cut one dimension."""
    return () if part is None else (part,) if isinstance(part, str) else tuple(part)


def unsharded(array: Any) -> Any:
    """Return an array without the axes of a mesh in its type, which those of explicit meshes have."""
    return array if isinstance(array, Tracer) else jnp.asarray(np.asarray(array))


def cut(array: Any, spec: Any, sizes: Mapping[str, int]) -> Any:
    """Cut an array in parts: an axis for each of the mesh's in front, in their order, then those of a part."""
    shape, front = [], {}
    for dim, size in enumerate(array.shape):
        axes = axes_of(spec[dim]) if dim < len(spec) else ()
        for axis in axes:
            front[axis] = len(shape)
            shape.append(sizes[axis])
            size //= sizes[axis]
        shape.append(size)
    order = [front[axis] for axis in sizes if axis in front]
    return array.reshape(shape).transpose(*order, *(i for i in range(len(shape)) if i not in order))


def put_together(parts: Any, spec: Any, sizes: Mapping[str, int]) -> Any:
    """Join the parts that `cut` makes; along other axes of the mesh the first is taken."""
    names = [*sizes]
    parts = parts[tuple(slice(None) if axis in used(spec) else 0 for axis in names)]
    names = [axis for axis in names if axis in used(spec)]
    order, shape = [], []
    for dim in range(parts.ndim - len(names)):
        axes = axes_of(spec[dim]) if dim < len(spec) else ()
        order += [*(names.index(axis) for axis in axes), len(names) + dim]
        shape.append(int(np.prod([sizes[axis] for axis in axes], dtype=int)) * parts.shape[len(names) + dim])
    return parts.transpose(order).reshape(shape)
