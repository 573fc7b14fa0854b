"""Where the arrays of a run lie on the surrounding mesh; without one, everything stays as it is."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from jaxformer.parallel.mesh import current, traced_for
from jaxformer.parallel.rules import AXES_OF, Table, spec_of, specs_of

T = TypeVar("T")
ROWS = ("data", "fsdp")
"""The axes that cut the sequences of a batch."""
STORES = (*ROWS, "tensor")
"""Those that cut a cache."""


def shardings(tree: PyTree, rules: Table = AXES_OF) -> PyTree:
    """Of every leaf of a model or train state, which may be abstract, on the surrounding mesh."""
    mesh = current()
    assert mesh is not None
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs_of(tree, dict(mesh.shape), rules), is_leaf=is_spec)


def is_spec(leaf: Any) -> bool:
    """Whether a leaf says how an array is cut."""
    return isinstance(leaf, PartitionSpec)


def init(build: Callable[..., T], *given: Any) -> T:
    """build(*given), compiled: every device computes its own part of a model or train state, and none holds a whole one."""
    where = None if current() is None else shardings(jax.eval_shape(build, *given))
    return jax.jit(build, out_shardings=where)(*given)


def put(tree: PyTree, rules: Table = AXES_OF) -> PyTree:
    """A model or train state that is held whole, cut; every process gives the same one."""
    if current() is None:
        return tree
    return jax.tree.map(lambda leaf, where: _cut(leaf, where), tree, shardings(tree, rules))


def put_batch(batch: Any) -> Any:
    """Arrays of the host, `B ...`: each process hands on the rows of its own devices. All give the same batch."""
    mesh = current()
    if mesh is None:
        return batch
    return jax.tree.map(
        lambda array: _cut(np.asarray(array), NamedSharding(mesh, rows_spec(array.shape, dict(mesh.shape)))), batch
    )


def _cut(array: Any, where: NamedSharding) -> Array:
    if where.is_fully_addressable:
        return jax.device_put(array, where)
    whole = np.asarray(array)
    return jax.make_array_from_callback(whole.shape, where, lambda index: whole[index])


def rows_spec(shape: tuple[int, ...], sizes: dict[str, int], axes: tuple[str, ...] = ROWS) -> PartitionSpec:
    """How `B T ...` is cut: sequences, and their tokens where the mesh has an axis for them and divides them."""
    spec: list[Any] = [None] * len(shape)
    parts = math.prod(sizes.get(name, 1) for name in axes)
    if shape[0] % parts == 0:  # jax 0.10.2 takes uneven cuts, and gave wrong losses with them
        spec[0] = axes
    if len(shape) > 1 and shape[1] % sizes.get("sequence", 1) == 0:
        spec[1] = "sequence"
    return PartitionSpec(*spec)


def along_rows(tree: T) -> T:
    """Inside of a compiled program: arrays `B T ...` stay cut along their rows, whatever they are multiplied with."""
    mesh = traced_for()
    if mesh is None:
        return tree
    sizes = dict(mesh.shape)

    def cut(array: Array) -> Array:
        return jax.lax.with_sharding_constraint(array, rows_spec(array.shape, sizes))

    return jax.tree.map(cut, tree)


def look_up(take: Callable[[Array], Array], ids: Array, table: tuple[int, ...]) -> Array:
    """take(ids): rows `B T D` of a table `V D`. Inside of a compiled program, where fsdp cuts the table along D, so it does the
    rows, and they and their ids are cut along data too: from there XLA knows a way to `along_rows`. Else it copies all rows to
    every device first.
    """
    mesh = traced_for()
    if mesh is None or spec_of("token.table", table, sizes := dict(mesh.shape))[-1] != "fsdp":
        return take(ids)
    by_data = rows_spec(ids.shape, sizes, ("data",))
    rows = take(jax.lax.with_sharding_constraint(ids, by_data))
    return along_rows(jax.lax.with_sharding_constraint(rows, PartitionSpec(*by_data, "fsdp")))


def as_placed(tree: T, rules: Table = AXES_OF) -> T:
    """Inside of a compiled program: a model or train state is cut by the table."""
    mesh = traced_for()
    if mesh is None:
        return tree
    return jax.tree.map(jax.lax.with_sharding_constraint, tree, specs_of(tree, dict(mesh.shape), rules))


def cut_cache(cache: T) -> T:
    """Inside of a compiled program: keys and values `B*K S H` are cut along the heads of all sequences, by every axis that
    divides them, as attention reads them."""
    mesh = traced_for()
    if mesh is None:
        return cache
    sizes = dict(mesh.shape)

    def cut(store: Array) -> Array:
        if not store.ndim:
            return store
        fits = (n for n in (3, 2, 1, 0) if store.shape[0] % math.prod(sizes.get(axis, 1) for axis in STORES[:n]) == 0)
        return jax.lax.with_sharding_constraint(store, PartitionSpec(STORES[: next(fits)]))

    return jax.tree.map(cut, cache)


def on_host(array: Any) -> np.ndarray:
    """A whole array as numpy; one that lies on several processes is gathered, and all of them have to call this."""
    if getattr(array, "is_fully_addressable", True) or array.is_fully_replicated:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))
