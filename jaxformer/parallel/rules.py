"""Sharding rules: one table, for all models, of the mesh axes that shard each axis of a parameter (letters as in `jaxformer`).

Rules match the end of a leaf's name. Besides the glossary's letters there are
    NH  heads times their width      Q  query, key and value side by side      P  positions      X  never sharded
"""

from collections.abc import Mapping
from typing import Any

from jax.sharding import PartitionSpec
from jaxtyping import PyTree

from jaxformer.errors import ConfigError
from jaxformer.pytree import is_stacked, map_named, named_leaves
from jaxformer.validation.fields import check_kind

AXES_OF = {
    "token.table": "V D",
    "position.table": "P D",
    "token_type.table": "X D",
    "relative_bias.table": "X N",
    "project.kernel": "X D",
    "pooler.kernel": "D X",
    "qkv.kernel": "D Q",
    "qkv.bias": "Q",
    "query.kernel": "D NH",
    "query.bias": "NH",
    "key.kernel": "D KH",
    "key.bias": "KH",
    "value.kernel": "D KH",
    "value.bias": "KH",
    "out.kernel": "NH D",
    "sinks.bias": "N",
    "gate.kernel": "D F",
    "gate.bias": "F",
    "up.kernel": "D F",
    "up.bias": "F",
    "down.kernel": "F D",
    "head.kernel": "D V",
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
    "D": ("fsdp",),
    "P": ("fsdp",),
    "X": (),
}
"""Axis letter -> mesh axes that shard it, in this order, unless an earlier axis of the leaf uses them."""

EXACT = ("NH", "F", "D")
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
    if parts[-1] in ("scale", "bias") and parts[-2:-1] and parts[-2].endswith("_norm"):
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
