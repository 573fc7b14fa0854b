"""Shardings of a run's arrays on the surrounding mesh; without a mesh, arrays are left as they are."""

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
"""Mesh axes that shard the sequences of a batch."""
STORES = (*ROWS, "tensor")
"""Mesh axes that shard a key-value cache."""


def shardings(tree: PyTree, rules: Table = AXES_OF) -> PyTree:
    """Return the sharding of every leaf of a model or train state, abstract or not, on the surrounding mesh."""
    mesh = current()
    assert mesh is not None
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs_of(tree, dict(mesh.shape), rules), is_leaf=is_spec)


def is_spec(leaf: Any) -> bool:
    """True if a leaf is a PartitionSpec."""
    return isinstance(leaf, PartitionSpec)


def init(build: Callable[..., T], *given: Any) -> T:
    """Compute build(*given), jitted: every device computes its own part of a model or train state, and none holds the whole."""
    where = None if current() is None else shardings(jax.eval_shape(build, *given))
    return jax.jit(build, out_shardings=where)(*given)


def put(tree: PyTree, rules: Table = AXES_OF) -> PyTree:
    """Shard a model or train state that is held whole; every process passes the same one."""
    if current() is None:
        return tree
    return jax.tree.map(lambda leaf, where: _cut(leaf, where), tree, shardings(tree, rules))


def put_batch(batch: Any) -> Any:
    """Shard host arrays `B ...` along rows: every process passes the same batch, and its devices hold their own rows."""
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
    """Return the sharding of `B T ...`: sequences by `axes`, tokens by the mesh's sequence axis if it divides their number."""
    spec: list[Any] = [None] * len(shape)
    parts = math.prod(sizes.get(name, 1) for name in axes)
    if shape[0] % parts == 0:  # jax 0.10.2 accepts uneven shards, and gave wrong losses with them
        spec[0] = axes
    if len(shape) > 1 and shape[1] % sizes.get("sequence", 1) == 0:
        spec[1] = "sequence"
    return PartitionSpec(*spec)


def along_rows(tree: T) -> T:
    """Constrain arrays `B T ...` of a compiled program to a batch's sharding (`rows_spec`); without a mesh, leave them."""
    mesh = traced_for()
    if mesh is None:
        return tree
    sizes = dict(mesh.shape)

    def cut(array: Array) -> Array:
        return jax.lax.with_sharding_constraint(array, rows_spec(array.shape, sizes))

    return jax.tree.map(cut, tree)


def look_up(take: Callable[[Array], Array], ids: Array, table: tuple[int, ...]) -> Array:
    """Look up rows `B T D` of a table `V D`, as take(ids).

    If fsdp shards the table along D in a compiled program, rows are sharded along D as well, and rows and ids along data. XLA
    has a direct way from there to `along_rows`; otherwise it would first copy all rows to every device.
    """
    mesh = traced_for()
    if mesh is None or spec_of("token.table", table, sizes := dict(mesh.shape))[-1] != "fsdp":
        return take(ids)
    by_data = rows_spec(ids.shape, sizes, ("data",))
    rows = take(jax.lax.with_sharding_constraint(ids, by_data))
    return along_rows(jax.lax.with_sharding_constraint(rows, PartitionSpec(*by_data, "fsdp")))


def as_placed(tree: T, rules: Table = AXES_OF) -> T:
    """Constrain a model or train state in a compiled program to the shardings of the table."""
    mesh = traced_for()
    if mesh is None:
        return tree
    return jax.tree.map(jax.lax.with_sharding_constraint, tree, specs_of(tree, dict(mesh.shape), rules))


def cut_cache(cache: T) -> T:
    """Constrain a cache's keys and values `B*K S H` in a compiled program to shards of `B*K`, as attention reads them.

    The mesh axes are the longest prefix of STORES that divides the axis.
    """
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
    """Return a whole array as numpy. An array spread over several processes is gathered: all of them must call this."""
    if getattr(array, "is_fully_addressable", True) or array.is_fully_replicated:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))
