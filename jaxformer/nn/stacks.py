"""Stack of several kinds of layer: runs of layers alike, one after the other."""

from collections.abc import Iterator
from dataclasses import replace

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxformer.config.layer_kinds import runs_of, starts_of
from jaxformer.config.models import EncoderConfig, GPTConfig
from jaxformer.errors import InputError
from jaxformer.nn.blocks import AttentionWeights, Block
from jaxformer.nn.cache import KVCache
from jaxformer.nn.dropout import split_key
from jaxformer.nn.place import NOTHING, Beside
from jaxformer.nn.stack import DEEPEST_UNROLLED, Stack


class Stacks(nnx.Module):
    """A stack for each run of layers alike, one after the other; `stack[i]` is layer i of all.

    The layers of a run may read the keys and values of an earlier run's last layer, and then a cache holds none of theirs.
    """

    def __init__(self, config: GPTConfig | EncoderConfig, *, causal: bool = False):
        runs, deep = runs_of(config), config.layers == "auto" and config.n_layers > DEEPEST_UNROLLED
        self.starts, self.reads = (*starts_of(config), config.n_layers), tuple(run.reads for run in runs)
        self.n_layers = config.n_layers
        self.parts = nnx.List(
            Stack(
                replace(run.config, layers="rolled") if deep else run.config,
                causal=causal,
                attention_norm=run.attention_norm,
                sharing=run.sharing,
            )
            for run in runs
        )

    def __getitem__(self, i: int) -> Block:
        if not -self.n_layers <= i < self.n_layers:
            raise IndexError(f"layer {i} of a stack of {self.n_layers}")
        i %= self.n_layers
        part = max(n for n, start in enumerate(self.starts) if start <= i)
        return self.parts[part][i - self.starts[part]]

    def __len__(self) -> int:
        return self.n_layers

    def __call__(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "_ _ _ _"] | None = None,
        key: PRNGKeyArray | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
        beside: Beside = NOTHING,
    ) -> Float[Array, "B T D"]:
        """Apply every layer."""
        return self.extend(x, None, mask, key, bias=bias, positions=positions, beside=beside)[0]

    def extend(
        self,
        x: Float[Array, "B T D"],
        cache: KVCache | None,
        mask: Bool[Array, "_ _ _ _"] | None = None,
        key: PRNGKeyArray | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
        beside: Beside = NOTHING,
    ) -> tuple[Float[Array, "B T D"], KVCache | None]:
        """Apply every layer; return the output and the cache with x in it."""
        given, kept = {"mask": mask, "bias": bias, "positions": positions}, []
        keys = split_key(key, len(self.parts))
        for n, own in enumerate(self._caches(cache)):
            x, after = self.parts[n].extend(x, own, key=keys[n], **given, beside=self._beside(n, beside, kept))
            kept.append(after)
        if cache is None:
            return x, None
        held = tuple(layer for after in kept if after is not None for layer in after.layers)
        return x, cache.advance(held, x.shape[1])

    def weights(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "_ _ _ _"] | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
        beside: Beside = NOTHING,
    ) -> AttentionWeights:
        """Return the attention weights of every layer."""
        given = {"mask": mask, "bias": bias, "positions": positions}
        found = [part.weights(x, **given, beside=own).own for part, x, own in self._inputs(x, given, beside)]
        return AttentionWeights(jnp.concatenate(found), None)

    def hidden_states(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "_ _ _ _"] | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
        beside: Beside = NOTHING,
    ) -> Float[Array, "_ B T D"]:
        """Return x and the output of every layer, L + 1 in all."""
        given = {"mask": mask, "bias": bias, "positions": positions}
        found = [part.hidden_states(x, **given, beside=own)[1:] for part, x, own in self._inputs(x, given, beside)]
        return jnp.concatenate([x[None], *found])

    def routed(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "_ _ _ _"] | None = None,
        key: PRNGKeyArray | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
        beside: Beside = NOTHING,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "_ B T E"]]:
        """Apply every layer; return the router logits of the layers that have them too."""
        given, found = {"mask": mask, "bias": bias, "positions": positions}, []
        keys = split_key(key, len(self.parts))
        for n, part in enumerate(self.parts):
            own = self._beside(n, beside, [])
            if part.routes:
                x, logits = part.routed(x, key=keys[n], **given, beside=own)
                found.append(logits)
            else:
                x = part(x, key=keys[n], **given, beside=own)
        return x, jnp.concatenate(found)

    def _caches(self, cache: KVCache | None) -> Iterator[KVCache | None]:
        """Yield the cache of each run: that of its own layers; of a run that reads an earlier one, the whole."""
        sizes = [0 if reads is not None else self.starts[n + 1] - self.starts[n] for n, reads in enumerate(self.reads)]
        if cache is not None and len(cache.layers) != sum(sizes):
            raise InputError(
                f"the cache is made for {len(cache.layers)} layers, the stack has {sum(sizes)}; make it from the stack's "
                "configuration"
            )
        for n, size in enumerate(sizes):
            first = sum(sizes[:n])
            yield cache if cache is None or not size else cache.part(slice(first, first + size))

    def _beside(self, n: int, beside: Beside, kept: list[KVCache | None]) -> Beside:
        """Return what run n is given: its layers' embeddings, and the keys and values that it reads."""
        embeddings, reads = beside.embeddings, self.reads[n]
        if embeddings is not None:
            embeddings = embeddings[self.starts[n] : self.starts[n + 1]]
        cache = None if reads is None else kept[reads]
        return Beside(embeddings, None if cache is None else cache.layers[-1])

    def _inputs(self, x: Array, given: dict[str, Array | None], beside: Beside) -> Iterator[tuple[Stack, Array, Beside]]:
        """Yield each run with its input, and what it is given beside that."""
        kept = list[KVCache | None]()
        for n, part in enumerate(self.parts):
            own = self._beside(n, beside, kept)
            yield part, x, own
            x, after = part.extend(x, None, **given, beside=own)
            kept.append(after)


def make_stack(config: GPTConfig | EncoderConfig, *, causal: bool = False) -> Stack | Stacks:
    """Build the stack of a decoder, or of an encoder."""
    first, *others = runs_of(config)
    if others:
        return Stacks(config, causal=causal)
    return Stack(first.config, causal=causal, attention_norm=first.attention_norm)
