"""Norms of what a training step reads, computes and changes, by quantity and module.

A series is `quantity/module`, as `gradient/stack.blocks.2.attention.query`; `training/torch_norms.py` has those of torch.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PyTree

from jaxformer.errors import InputError
from jaxformer.parity.trace.named_values import Named, with_named_values
from jaxformer.pytree import is_stacked, is_weight, named_leaves
from jaxformer.runs.watched import AMPLIFIED, ROUNDING, TINY

GRADIENT = "gradient"
"""Name of the tap that marks the gradient in a step."""
SQUARES = "nu"
"""Optax's name of the moments of squared gradients."""
ALONE = "params"
"""Name of parameters that are one array."""
STATISTICS = "batch_stats"
"""Linen's collection of running statistics."""
OPTAX = "optax."
"""Start of the modules whose named tuples are states of an optimizer."""

Norms = dict[str, Float[Array, ""]]


def norms_of(step: Callable[..., Any]) -> Callable[..., Norms]:
    """Return a function of a step's arguments that gives the norms of all series, in the order in which a step computes them.

    - `weight`: L2 norm of a module's own parameters before the step
    - `activation`: root mean square of what the module returned, over all its calls; `tap` marks other values
    - `loss`, or the name that the step gives it: each number that the step returns
    - `gradient`: L2 norm of what the step gives to `tap("gradient", ...)`
    - the optimizer's own names, as `mu`, `nu`, `trace`: L2 norm of the moments after the step; of `nu`, that of its square
      root, which is as large as gradients are
    - `update`: L2 norm of the change of the parameters
    - `rounding`: L2 norm of the updates of a module whose gradient is rounding (that of a bias before a batch norm is zero in
      exact arithmetic), which Adam makes as large as any; 0 in other modules

    Parameters are the float leaves that the step returns, or changes in place, under the names that the gradient has; without a
    tapped gradient, those outside of optax's states that are no running statistics: flax's, and those of an argument of which
    the optimizer has no moments, where it has some of another. InputError if the step changes none of its arguments.
    """

    def norms(*given: Any) -> Norms:
        def whole(*given: Any) -> tuple[Any, Any]:
            return step(*given), given

        (output, given_after), named = with_named_values(whole)(*given)
        state, numbers = _changed(given, given_after, output)
        if not state:
            raise InputError("the step returns no changed argument, and changes none in place; return the new state")
        taps = {each.part or ALONE: each.array for each in named if each.path == GRADIENT}
        before, after, moments = _sorted_out(state, taps)
        update = {name: after[name].astype(jnp.float32) - before[name].astype(jnp.float32) for name in before}
        found = module_norms("weight", before) | activations(each for each in named if each.path != GRADIENT)
        found |= numbers | module_norms(GRADIENT, taps)
        if SQUARES in moments:
            moments[SQUARES] = {name: jnp.sqrt(leaf) for name, leaf in moments[SQUARES].items()}
        for name, leaves in moments.items():
            found |= module_norms(name, leaves)
        gradients = taps or moments.get(SQUARES) or next(iter(moments.values()), {})
        return found | module_norms("update", update) | module_norms(ROUNDING, _of_rounding(gradients, update))

    return norms


def _of_rounding(gradients: Mapping[str, Array], update: Mapping[str, Array]) -> dict[str, Array]:
    """Return the updates whose gradient, or its moment, is rounding, and zeros for others; layers of a stack one by one."""
    shares, moved = _shares(gradients), _shares(update)
    return {
        name: jnp.where((shares[name] < TINY) & (moved[name] > AMPLIFIED), update[name], 0.0)
        for name in update
        if name in shares
    }


def _shares(leaves: Mapping[str, Array]) -> dict[str, Array]:
    """Return the root mean square of each leaf, as a share of the largest."""
    sizes = {}
    for name, leaf in leaves.items():
        axes = tuple(range(int(is_stacked(name)), leaf.ndim))
        sizes[name] = jnp.sqrt(jnp.square(leaf.astype(jnp.float32)).mean(axes, keepdims=True))
    largest = jnp.stack([size.max() for size in sizes.values()]).max() if sizes else jnp.zeros(())
    return {name: size / largest for name, size in sizes.items()}


def module_norms(quantity: str, leaves: Mapping[str, Array]) -> Norms:
    """Return the L2 norm of all leaves that a module has of its own; layers of a stack count as modules."""
    sums: Norms = {}
    for name, leaf in leaves.items():
        square = jnp.square(jnp.abs(leaf).astype(jnp.float32))
        for module, part in _layers(name, square):
            series = f"{quantity}/{module}"
            sums[series] = sums.get(series, jnp.zeros(())) + part.sum()
    return {series: jnp.sqrt(total) for series, total in sums.items()}


def _layers(name: str, leaf: Array) -> Iterator[tuple[str, Array]]:
    """Yield the path of the module that holds a leaf, and the leaf; those of each layer for a stack."""
    module = name.rpartition(".")[0] or name
    if not is_stacked(name):
        yield module, leaf
        return
    around, stack, inside = module.partition("blocks.")
    for layer in range(leaf.shape[0]):
        yield f"{around}{stack}{layer}.{inside}", leaf[layer]


def activations(named: Iterator[Named]) -> Norms:
    """Return the root mean square of each module's output, over all its arrays and calls."""
    sums: Norms = {}
    sizes: dict[str, int] = {}
    for path, _, array in named:
        series = f"activation/{path or 'model'}"
        sums[series] = sums.get(series, jnp.zeros(())) + jnp.square(array.astype(jnp.float32)).sum()
        sizes[series] = sizes.get(series, 0) + array.size
    return {series: jnp.sqrt(total / max(sizes[series], 1)) for series, total in sums.items()}


class Leaf(NamedTuple):
    """Float array that a step changes."""

    path: str
    """Name in the argument that holds it."""
    before: Array
    after: Array
    is_moment: bool
    """True inside one of optax's states."""


def _changed(given: tuple[Any, ...], given_after: tuple[Any, ...], output: Any) -> tuple[list[Leaf], Norms]:
    """Return the leaves of the arguments that the step changes, and the numbers in the rest of its output."""
    held = {str(i): each for i, each in enumerate(given)}
    held |= {f"{i}.{key}": inner for i, each in enumerate(given) for key, inner in _plain_items(each)}
    shapes = {place: _shapes(each) for place, each in held.items()}
    changed: dict[str, tuple[Any, Any]] = {}
    numbers: Norms = {}

    def visit(value: Any, name: str) -> None:
        own = _shapes(value)
        place = next((place for place, other in shapes.items() if place not in changed and other == own), None)
        if place is not None and any(own.values()):
            changed[place] = held[place], value
        elif items := _plain_items(value):
            for key, inner in items:
                visit(inner, key if isinstance(value, dict) else name)
        else:
            found = {key or name: leaf for key, leaf in _arrays(value).items() if is_weight(leaf) and leaf.ndim == 0}
            numbers.update({key: leaf.astype(jnp.float32) for key, leaf in found.items() if key not in numbers})

    visit(output, "loss")
    for i, (one, other) in enumerate(zip(given, given_after, strict=True)):
        if any(a is not b for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)):
            changed.setdefault(str(i), (one, other))
    return _without_states([[*_leaves(*pair)] for pair in changed.values()]), numbers


def _without_states(arguments: list[list[Leaf]]) -> list[Leaf]:
    """Return the leaves without those of arguments that the optimizer has no moments of, if it has some of another."""
    moments = [leaf for leaves in arguments for leaf in leaves if leaf.is_moment]
    own = [[leaf for leaf in leaves if not leaf.is_moment] for leaves in arguments]
    trained = [any(_parameter_of(each, _shapes_of(leaves)) for each in moments) for leaves in own]
    kept = [leaf for leaves, is_trained in zip(own, trained, strict=True) if is_trained or not any(trained) for leaf in leaves]
    return kept + moments


def _shapes_of(leaves: list[Leaf]) -> dict[str, tuple[int, ...]]:
    return {leaf.path: leaf.before.shape for leaf in leaves}


def _plain_items(value: Any) -> list[tuple[str, Any]]:
    """Return the items of a plain tuple, list or dict by name; none for anything else."""
    if type(value) is dict:
        return [(str(key), inner) for key, inner in value.items()]
    return [(str(i), inner) for i, inner in enumerate(value)] if type(value) in (tuple, list) else []


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    return {name: leaf.shape for name, leaf in _arrays(tree).items()}


def _arrays(tree: PyTree) -> dict[str, Array]:
    return {name: leaf for name, leaf in named_leaves(tree).items() if hasattr(leaf, "shape")}


def _leaves(before: PyTree, after: PyTree) -> Iterator[Leaf]:
    """Yield the float leaves of a tree, before and after the step, without running statistics."""
    moments, statistics = _inside(before, _is_of_optax), _inside(before, lambda node: isinstance(node, nnx.BatchStat))
    later = named_leaves(after)
    for path, leaf in _arrays(before).items():
        is_moment = id(leaf) in moments
        if is_weight(leaf) and (is_moment or not (id(leaf) in statistics or STATISTICS in path.split("."))):
            yield Leaf(path or ALONE, leaf, later[path], is_moment)


def _inside(tree: PyTree, is_of_kind: Callable[[Any], bool]) -> set[int]:
    """Identities of the leaves inside of nodes of a kind."""
    nodes = jax.tree.leaves(tree, is_leaf=is_of_kind)
    return {id(leaf) for node in nodes if is_of_kind(node) for leaf in jax.tree.leaves(node)}


def _is_of_optax(node: Any) -> bool:
    return isinstance(node, tuple) and hasattr(node, "_fields") and type(node).__module__.startswith(OPTAX)


def _sorted_out(
    leaves: list[Leaf], gradient: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, Array], dict[str, dict[str, Array]]]:
    """Return the parameters before the step, those after it, and the moments by the optimizer's name; each by parameter."""
    known = {name: array.shape for name, array in gradient.items()}
    if not any(_parameter_of(leaf, known) for leaf in leaves):
        known = {name: leaf.before.shape for name, leaf in _without_root([it for it in leaves if not it.is_moment]).items()}
    copies: dict[str, list[tuple[list[str], Leaf]]] = {}
    for leaf in leaves:
        if name := _parameter_of(leaf, known):
            head = leaf.path.removesuffix(name).rstrip(".")
            copies.setdefault(name, []).append((head.split(".") if head else [], leaf))
    before, after = dict[str, Array](), dict[str, Array]()
    moments: dict[str, dict[str, Array]] = {}
    for name, found in copies.items():
        (_, own), *others = sorted(found, key=lambda copy: (copy[1].is_moment, len(copy[0])))
        before[name], after[name] = own.before, own.after
        for head, leaf in others:
            label = next((part for part in reversed(head) if not part.isdigit()), "moment")
            moments.setdefault(label, {})[name] = leaf.after
    return before, after, moments


def _parameter_of(leaf: Leaf, known: Mapping[str, tuple[int, ...]]) -> str:
    """Return the name of the parameter that a leaf is, or is a moment of: the longest end of its path; "" if there is none."""
    if known.keys() == {ALONE}:
        return ALONE if known[ALONE] == leaf.before.shape else ""
    parts = leaf.path.split(".")
    ends = (".".join(parts[start:]) for start in range(len(parts)))
    return next((end for end in ends if known.get(end) == leaf.before.shape), "")


def _without_root(leaves: list[Leaf]) -> dict[str, Leaf]:
    """Return the leaves by name, without a first part that all of them share, as `params` of a train state."""
    roots = {leaf.path.partition(".")[0] for leaf in leaves}
    shared = len(roots) == 1 and all("." in leaf.path for leaf in leaves)
    return {leaf.path.partition(".")[2] if shared else leaf.path: leaf for leaf in leaves}
