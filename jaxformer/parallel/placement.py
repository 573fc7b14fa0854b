"""Shardings of a run's arrays on the surrounding mesh; without a mesh, arrays are left as they are.

Sharding rules: one table, for all models, of the mesh axes that shard each axis of a parameter (letters as in `jaxformer`).
Rules match the end of a leaf's name. Besides the glossary's letters there are
    NH  heads times their width      Q  query, key and value side by side      P  positions      X  never sharded
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from jaxformer.errors import ConfigError
from jaxformer.parallel.mesh import current, traced_for
from jaxformer.pytree import is_stacked, map_named, named_leaves
from jaxformer.runtime.xla_options import known
from jaxformer.validation.fields import check_kind

AXES_OF = {
    "token.table": "V D",
    "position.table": "P D",
    "token_type.table": "X D",
    "layer_embed.token.table": "V X",
    "layer_embed.projection.kernel": "D X",
    "layer_input.gate.kernel": "D X",
    "layer_input.up.kernel": "X D",
    "relative_bias.table": "X N",
    "distances.table": "X D",
    "project.kernel": "X D",
    "pooler.kernel": "D X",
    "dense.kernel": "D X",
    "dense.bias": "X",
    "qkv.kernel": "D Q",
    "qkv.bias": "Q",
    "query.kernel": "D NH",
    "query.bias": "NH",
    "key.kernel": "D KH",
    "key.bias": "KH",
    "value.kernel": "D KH",
    "value.bias": "KH",
    "out.kernel": "NH D",
    "query_down.kernel": "D X",
    "query_down.bias": "X",
    "query_up.kernel": "X NH",
    "kv_down.kernel": "D X",
    "kv_down.bias": "X",
    "key_up.kernel": "X NH",
    "value_up.kernel": "X NH",
    "sinks.bias": "N",
    "gate.kernel": "D F",
    "gate.bias": "F",
    "up.kernel": "D F",
    "up.bias": "F",
    "down.kernel": "F D",
    "router.kernel": "D X",
    "router.bias": "X",
    "correction.bias": "X",
    "experts.gate.kernel": "E D F",
    "experts.gate.bias": "E F",
    "experts.up.kernel": "E D F",
    "experts.up.bias": "E F",
    "experts.down.kernel": "E F D",
    "experts.down.bias": "E X",
    "shared_gate.kernel": "D X",
    "head.kernel": "D V",
    "head.project.kernel": "D X",
    "head.output.kernel": "D X",
    "head.output.bias": "X",
    "head.bias": "V",
    "norm.scale": "X",
    "norm.bias": "X",
    "out.bias": "X",
    "down.bias": "X",
    "project.bias": "X",
    "pooler.bias": "X",
}
"""End of a leaf's name -> letters of its axes, without the layers' axis.

Parameters that are added to the residual stream, or multiplied with it, stay whole: they are small and needed everywhere.
"""

CUT_BY = {
    "V": ("tensor", "fsdp"),
    "NH": ("tensor",),
    "KH": ("tensor",),
    "Q": ("tensor",),
    "N": ("tensor",),
    "F": ("tensor",),
    "E": ("expert",),
    "D": ("fsdp",),
    "P": ("fsdp",),
    "X": (),
}
"""Axis letter -> mesh axes that shard it, in this order, unless an earlier axis of the leaf uses them."""

EXACT = ("NH", "F", "E", "D")
"""Letters of axes whose size the mesh must divide.

Other axes stay whole if it does not: a vocabulary has any size, and several query heads share a key-value head.
"""

Table = Mapping[str, str]


def letters_of(name: str, rules: Table = AXES_OF) -> tuple[str, ...]:
    """Return the letter of each axis of a leaf, 'L' for the layers' axis; ConfigError if no rule matches."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        if (found := rules.get(".".join(parts[-n:]))) is not None:
            return (*("L" if is_stacked(name) else ""), *found.split())
    if parts[-1] in ("scale", "bias") and parts[-2:-1] and parts[-2].endswith(("_norm", "_scale")):
        return letters_of(f"{'blocks.' if is_stacked(name) else ''}norm.{parts[-1]}", rules)
    raise ConfigError(f"no rule says how {name} is cut; add the end of its name and the letters of its axes to the rules")


def with_own(rules: Table | None) -> Table:
    """Add a user's own rules to the table; ConfigError if one is not letters of axes, InputError if they are no mapping."""
    rules = {} if rules is None else rules
    check_kind("rules", rules, Mapping, 'ends of names and axes, as {"fc1.kernel": "D F"}')
    for name, letters in rules.items():
        if not isinstance(name, str) or not isinstance(letters, str) or not {*letters.split()} <= CUT_BY.keys():
            raise ConfigError(f"rules: {name!r:.60} has {letters!r:.60}; give the letters of its axes, of {' '.join(CUT_BY)}")
    return {**AXES_OF, **rules}


def with_whole(rules: Table, moments: PyTree) -> Table:
    """Add rules that replicate moments which no rule fits: some optimizers keep histories, or sums over axes of a parameter."""
    whole = dict[str, str]()
    for name, leaf in named_leaves({"moments": moments}).items():
        try:
            fits = len(letters_of(name, rules)) == leaf.ndim and 1 not in leaf.shape
        except ConfigError:
            fits = False
        if not fits and leaf.ndim:
            whole[name] = " ".join("X" * (leaf.ndim - is_stacked(name)))
    return {**rules, **whole}


def spec_of(name: str, shape: tuple[int, ...], sizes: Mapping[str, int], rules: Table = AXES_OF) -> PartitionSpec:
    """Return the sharding of a leaf; a scalar is whole. ConfigError if an axis size is not divisible, or no rule matches."""
    if not shape:
        return PartitionSpec()
    letters, used, spec = letters_of(name, rules), set[str](), []
    if len(letters) != len(shape):
        raise ConfigError(
            f"{name} has shape {list(shape)}, and its rule the axes {' '.join(letters)}; give it a rule of its own"
        )
    for letter, size in zip(letters, shape, strict=True):
        axes, parts = [], 1
        for axis in CUT_BY.get(letter, ()):
            n = sizes.get(axis, 1)
            if n == 1 or axis in used or (len(shape) == 1 + ("L" in letters) and axis == "fsdp"):
                continue
            if size % (parts * n) == 0:
                axes.append(axis)
                parts *= n
            elif letter in EXACT:
                raise ConfigError(
                    f"{name}: {letter} = {size} is not divided by {axis} = {n} of the mesh; give a divisor of {size}"
                )
        used |= {*axes}
        spec.append(tuple(axes) if len(axes) > 1 else axes[0] if axes else None)
    return PartitionSpec(*spec)


def specs_of(tree: PyTree, sizes: Mapping[str, int], rules: Table = AXES_OF) -> PyTree:
    """Return the sharding of every leaf of a model, of its gradient, or of a train state."""

    def of(name: str, leaf: Any) -> PartitionSpec:
        return spec_of(name, tuple(leaf.shape), sizes, rules)

    return map_named(of, tree)


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
    quick = known({"xla_backend_optimization_level": 1}) if jax.default_backend() == "cpu" else {}  # compiled once, run once
    return jax.jit(build, out_shardings=where, compiler_options=quick)(*given)


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
