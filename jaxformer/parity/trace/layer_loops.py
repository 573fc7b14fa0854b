"""Layers in a loop: `jax.lax.scan` over stacked parameters, each iteration of which is a layer, and `jax.vmap` over them.

If scans are `written_out`, the body of a scan runs once per layer, on slices of the model's arrays. The paths of all calls in
the body get the layer's number, after the outermost module whose arrays are all sliced: `layers.dense` becomes
`layers.2.dense`. A vmap over such arrays runs as such a loop; a vmap over anything else stays.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from jaxformer.parity.trace.call_sites import Visits, ancestors, below
from jaxformer.pytree import named_leaves

MOST_LAYERS = 128
"""Maximum number of layers: a vmap over more maps over the rows of a table."""


@contextmanager
def watch_layers(model: Any, visits: Visits) -> Iterator[None]:
    """Record in `visits` which layer of which of the model's stacks is running."""
    names = {id(leaf): name.removeprefix("params.") for name, leaf in named_leaves(model).items()}

    def stacks(leaves: Iterable[Any]) -> frozenset[str]:
        """Return the stacks that these arrays belong to."""
        cut = {names[id(leaf)] for leaf in leaves if id(leaf) in names}
        return frozenset(stacks_of(cut, names.values(), visits.open[-1][1] if visits.open else ""))

    with (
        mock.patch.object(jax.lax, "scan", _scan(jax.lax.scan, stacks, visits)),
        mock.patch.object(jax, "vmap", _vmap(jax.vmap, stacks, visits)),
    ):
        yield


def stacks_of(cut: set[str], names: Iterable[str], around: str) -> Iterator[str]:
    """Yield the outermost modules inside the module `around` whose arrays are all sliced; a sliced array outside of them is its
    own stack."""
    others = set(names) - cut
    for name in cut:
        inside = [path for path in (name, *ancestors(name)) if path != around and below(path, around)]
        alone = [path for path in inside if not any(path == other or below(other, path) for other in others)]
        yield from alone[-1:]


def _scan(as_it_is: Callable[..., Any], stacks: Callable[..., frozenset[str]], visits: Visits) -> Callable[..., Any]:
    """Wrap `jax.lax.scan`, recording the layer of each iteration."""

    def scan(
        f: Callable[..., Any], init: Any, xs: Any = None, length: Any = None, reverse: bool = False, *more: Any, **how: Any
    ):
        if not (found := stacks(leaves := jax.tree.leaves(xs))):
            return as_it_is(f, init, xs, length, reverse, *more, **how)
        layers = iter(sorted(range(leaves[0].shape[0]), reverse=reverse))

        def turn(carry: Any, x: Any) -> Any:
            with visits.turn(found, next(layers, 0)):
                return f(carry, x)

        return as_it_is(turn, init, xs, length, reverse, *more, **how)

    return scan


def _vmap(as_it_is: Callable[..., Any], stacks: Callable[..., frozenset[str]], visits: Visits) -> Callable[..., Any]:
    """Wrap `jax.vmap`: it becomes a loop if it maps over layers without a named axis."""

    def vmap(
        fun: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, axis_name: Any = None, *more: Any, **how: Any
    ) -> Any:
        @wraps(fun)
        def mapped(*args: Any, **kwargs: Any) -> Any:
            given, outputs = (args, kwargs), []
            leaves, tree = jax.tree.flatten(given)
            axes = _axes((tuple(in_axes) if isinstance(in_axes, list) else in_axes, 0), given) if stacks(leaves) else []
            cut = [(leaf, axis) for leaf, axis in zip(leaves, axes, strict=False) if axis is not None]
            found = stacks(leaf for leaf, axis in cut if axis == 0)
            n = cut[0][0].shape[cut[0][1]] if found else 0
            if not 0 < n <= MOST_LAYERS or axis_name is not None:
                return as_it_is(visits.in_vmap(fun), in_axes, out_axes, axis_name, *more, **how)(*args, **kwargs)
            for layer in range(n):
                own, named = jax.tree.unflatten(tree, [_slice(*each, layer) for each in zip(leaves, axes, strict=True)])
                with visits.turn(found, layer):
                    outputs.append(fun(*own, **named))
            return _stacked(outputs, out_axes)

        return mapped

    return vmap


def _slice(leaf: Any, axis: int | None, number: int) -> Any:
    return leaf if axis is None else jax.lax.index_in_dim(leaf, number, axis, keepdims=False)


def _stacked(outputs: list[Any], out_axes: Any) -> Any:
    """Stack the outputs of all layers; an output without an axis for them is taken from the first layer."""
    leaves = zip(*map(jax.tree.leaves, outputs), strict=True)
    axes = _axes(out_axes, outputs[0])
    one = [parts[0] if axis is None else jnp.stack(parts, axis) for parts, axis in zip(leaves, axes, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(outputs[0]), one)


def _axes(prefix: Any, tree: Any) -> list[int | None]:
    """Return the mapped axis of each leaf, None for leaves that are not mapped."""
    axes: list[int | None] = []
    jax.tree.map(
        lambda axis, part: axes.extend([axis] * len(jax.tree.leaves(part))), prefix, tree, is_leaf=lambda axis: axis is None
    )
    return axes
