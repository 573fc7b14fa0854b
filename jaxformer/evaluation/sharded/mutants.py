"""Known mistakes of sharded code, put into the step on the mesh and nothing else; the comparison has to find each.

The compiler makes none of them: they are mistakes in code that shards arrays by hand, with `jax.shard_map`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

from jaxformer.evaluation.sharded import compare, recorded_step
from jaxformer.nn import linear
from jaxformer.nn.embeddings import InputEmbedding
from jaxformer.parallel.placement import Table, put
from jaxformer.runtime import random

Injection = Callable[[], Any]


@dataclass(frozen=True)
class ShardMutant:
    """Mistake, the mesh that it is put into, and the verdict that is expected."""

    name: str
    mesh: str
    inject: Callable[[], Any]
    axis: str
    """Axis that has to be named."""
    cause: str = ""
    """Text that the verdict has to contain; '' if only the axis is expected."""


def replaced(owner: Any, **make: Callable[[Any], Any]) -> Injection:
    """Replace functions of a module: name=f, where f(original) is the replacement."""

    @contextmanager
    def inject() -> Iterator[None]:
        with ExitStack() as stack:
            for name, f in make.items():
                stack.enter_context(mock.patch.object(owner, name, f(getattr(owner, name))))
            yield

    return inject


def size(axis: str) -> int:
    """Size of an axis of the surrounding mesh."""
    return jax.sharding.get_abstract_mesh().shape[axis]


def by_hand(f: Callable[..., Any], *cut: P, out: P) -> Callable[..., Any]:
    """Run f on each device's own parts; that outputs are replicated is not checked."""
    return jax.shard_map(f, in_specs=cut, out_specs=out, check_vma=False)


def own_product(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Shard the product of feed_forward.down by hand along its input axis; a sum over tensor is wanted at the end."""

    def make(matmul: Any) -> Any:
        def product(x: Any, w: Any) -> Any:
            if w.shape[0] <= w.shape[1]:  # every product but that of `down`
                return matmul(x, w)
            parts = P(None, None, "tensor"), P("tensor", None)
            return by_hand(lambda x, w: reduce(matmul(x, w)), *parts, out=P(None, None, None))(x, w)

        return product

    return make


def shared_mask(axis: str) -> Callable[[Any], Any]:
    """Draw the same dropout mask in each shard, as if its rows were numbered from 0."""

    def make(mask: Any) -> Any:
        def repeated(key: Any, rate: float, shape: tuple[int, ...]) -> Any:
            n = size(axis)
            return jnp.concatenate([mask(key, rate, (shape[0] // n, *shape[1:]))] * n)

        return repeated

    return make


def mean_of_means(axis: str) -> Callable[[Any], Any]:
    """Average the mean losses of shards."""

    def make(loss: Any) -> Any:
        def averaged(logits: Any, targets: Any) -> Any:
            n = size(axis)
            sums = [loss(*part) for part in zip(jnp.split(logits, n), jnp.split(targets, n), strict=True)]
            return sum(total / count for total, count in sums), jnp.asarray(n, logits.dtype)

        return averaged

    return make


def loss_twice_over(axis: str) -> Callable[[Any], Any]:
    """Sum a loss over an axis along which every device has all of it."""

    def make(loss: Any) -> Any:
        def summed(logits: Any, targets: Any) -> Any:
            total, count = loss(logits, targets)
            return by_hand(psum(axis), P(), out=P())(total), count

        return summed

    return make


def own_gradient(axis: str, reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Reduce over an axis what each device adds to a kernel's gradient from its own rows; a sum is wanted."""

    def make(matmul: Any) -> Any:
        @jax.custom_vjp
        def product(x: Any, w: Any) -> Any:
            return matmul(x, w)

        def forward(x: Any, w: Any) -> Any:
            return matmul(x, w), (x, w)

        def backward(kept: Any, dy: Any) -> Any:
            x, w = kept
            rows = P(axis, None, None)
            of_w = by_hand(lambda x, dy: reduce(jnp.einsum("bti,bto->io", x, dy)), rows, rows, out=P(None, None))
            return dy @ w.T, of_w(x, dy)

        product.defvjp(forward, backward)
        return product

    return make


def gathered(change: Callable[[Any, int], Any]) -> Callable[[Any], Any]:
    """Gather a kernel's fsdp shards by hand, after change(shard, n)."""

    def make(matmul: Any) -> Any:
        def product(x: Any, w: Any) -> Any:
            n = size("fsdp")
            whole = by_hand(
                lambda w: jax.lax.all_gather(change(w, n), "fsdp", axis=0, tiled=True), P("fsdp", None), out=P(None, None)
            )
            return matmul(x, whole(w))

        return product

    return make


def norm_of_shards(norm: Any) -> Any:
    """Clip by the norm of a device's own shards: here, of the first ones."""

    def own(tree: Any) -> Any:
        n = size("fsdp")
        return norm(jax.tree.map(lambda leaf: leaf[: max(leaf.shape[0] // n, 1)], tree))

    return own


def counted_anew(embed: Any) -> Any:
    """Count positions from 0 in each shard of a sequence."""

    def call(self: Any, ids: Any, positions: Any, **more: Any) -> Any:
        return embed(self, ids, positions % (ids.shape[1] // size("sequence")), **more)

    return call


def stale(state: Any, rules: Table) -> Any:
    """Shard the state, but give the last device an outdated copy of the first replicated parameter."""
    leaves, structure = jax.tree.flatten(put(state, rules))
    place = next(i for i, leaf in enumerate(leaves) if leaf.ndim and leaf.sharding.is_fully_replicated)
    old = leaves[place]
    *same, last = old.addressable_shards
    held = [*(shard.data for shard in same), jax.device_put(1.01 * np.asarray(last.data), last.device)]
    leaves[place] = jax.make_array_from_single_device_arrays(old.shape, old.sharding, held)
    return jax.tree.unflatten(structure, leaves)


def psum(*axes: str) -> Callable[[Any], Any]:
    """Return a function that sums over these axes."""
    return lambda x: jax.lax.psum(x, axes) if axes else x


def rolled(w: Any, n: int) -> Any:
    """Return the neighbour's shard."""
    return jax.lax.ppermute(w, "fsdp", [(i, (i + 1) % n) for i in range(n)])


def of_first(w: Any, n: int) -> Any:
    """Return the first device's shard."""
    return jax.lax.all_gather(w, "fsdp")[0]


def pmean(axis: str) -> Callable[[Any], Any]:
    """Return a function that averages over an axis."""
    return lambda x: jax.lax.pmean(x, axis)


def twice(x: Any) -> Any:
    """Sum over data twice."""
    return psum("data")(psum("data")(x))


LEFT_OUT = "the sum over it is left out"
PRODUCT = {
    "no": replaced(linear, matmul=own_product(psum())),
    "other": replaced(linear, matmul=own_product(psum("data"))),
    "mean": replaced(linear, matmul=own_product(pmean("tensor"))),
}
GRADIENT = {
    "no": replaced(linear, matmul=own_gradient("data", psum())),
    "mean": replaced(linear, matmul=own_gradient("data", pmean("data"))),
    "twice": replaced(linear, matmul=own_gradient("data", twice)),
}
MASKS = {axis: replaced(random, dropout_mask=shared_mask(axis)) for axis in ("data", "fsdp")}
GATHERED = {name: replaced(linear, matmul=gathered(f)) for name, f in {"rolled": rolled, "first": of_first}.items()}
MEANS = replaced(recorded_step, cross_entropy=mean_of_means("data"))
TWICE = replaced(recorded_step, cross_entropy=loss_twice_over("tensor"))
NORM = replaced(optax.tree, norm=norm_of_shards)
COUNTED = replaced(InputEmbedding, __call__=counted_anew)
STALE = replaced(compare, put=lambda original: stale)

MUTANTS = (
    ShardMutant("the sum of a product's parts left out", "tensor=4", PRODUCT["no"], "tensor", LEFT_OUT),
    ShardMutant("that sum over a wrong axis", "data=2,tensor=2", PRODUCT["other"], "tensor", "another axis"),
    ShardMutant("that sum a mean", "tensor=4", PRODUCT["mean"], "tensor"),
    ShardMutant("the sum of a gradient left out", "data=4", GRADIENT["no"], "data", LEFT_OUT),
    ShardMutant("a mean of a gradient in the place of its sum", "data=4", GRADIENT["mean"], "data", "divided by its size"),
    ShardMutant("a gradient summed twice", "data=4", GRADIENT["twice"], "data", "summed over it once too often"),
    ShardMutant("a mean of unequal shards", "data=4", MEANS, "data", "a mean of the shards' means"),
    ShardMutant("a loss summed once too often", "data=2,tensor=2", TWICE, "tensor", "summed over it once too often"),
    ShardMutant("the same dropout in each shard", "data=4", MASKS["data"], "data", "dropout repeats"),
    ShardMutant("the same dropout in each shard of fsdp", "fsdp=2,tensor=2", MASKS["fsdp"], "fsdp", "dropout repeats"),
    ShardMutant("shards gathered in another order", "fsdp=4", GATHERED["rolled"], "fsdp"),
    ShardMutant("every shard the first one's", "fsdp=4", GATHERED["first"], "fsdp"),
    ShardMutant("the norm of a shard alone", "fsdp=4", NORM, "fsdp"),
    ShardMutant("positions counted from 0 in each shard", "sequence=4", COUNTED, "sequence"),
    ShardMutant("a stale replica", "data=2,tensor=2", STALE, "data, tensor", "copies differ"),
)
