"""A decoder-only language model (Radford et al. 2019)."""

import jax.core
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from jaxformer.config import GPTConfig
from jaxformer.errors import InputError
from jaxformer.inputs import check_tokens
from jaxformer.nn.cache import KVCache
from jaxformer.nn.dropout import split_key
from jaxformer.nn.embeddings import InputEmbedding
from jaxformer.nn.linear import Linear
from jaxformer.nn.masks import causal_mask, combine
from jaxformer.nn.norms import make_norm
from jaxformer.nn.stack import Stack

Tokens = Shaped[Array, "..."] | Shaped[np.ndarray, "..."]


class GPT(nnx.Module):
    """`logits = model(tokens)`; with a key, dropout is on; `extend` continues from a cache."""

    def __init__(self, config: GPTConfig):
        self.config = config
        self.embed = InputEmbedding(config)
        self.stack = Stack(config)
        self.norm = make_norm(config.final_norm, config)
        self.head = None if config.tied else Linear(config.d_model, config.vocab_size, config.head_bias)

    def __call__(
        self,
        tokens: Tokens,
        *,
        mask: Bool[Array, "_ _ _ _"] | None = None,
        positions: Int[Array, "_ T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B T V"]:
        """Logits of the next token at every place of `B T` ids.

        `mask` (`B N|1 T S`, True = may attend) narrows the causal one; `positions` default to 0, 1, 2, ...
        Raises InputError for ids that are not integers, too many, or, where their values are known, out of range.
        """
        return self.extend(tokens, None, mask=mask, positions=positions, key=key)[0]

    def extend(
        self,
        tokens: Tokens,
        cache: KVCache | None,
        *,
        mask: Bool[Array, "_ _ _ _"] | None = None,
        positions: Int[Array, "_ T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B T V"], KVCache | None]:
        """Logits behind what the cache holds, and the cache that holds these tokens too."""
        x, cache = self.states(tokens, cache, mask=mask, positions=positions, key=key)
        return self.read_out(x), cache

    def states(
        self,
        tokens: Tokens,
        cache: KVCache | None,
        *,
        mask: Bool[Array, "_ _ _ _"] | None = None,
        positions: Int[Array, "_ T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B T D"], KVCache | None]:
        """The normed output of the stack, before the read-out: whoever needs one place's logits reads out that one."""
        self._check(tokens, cache)
        n_tokens = tokens.shape[1]
        start, keys = (0, n_tokens) if cache is None else (cache.length, cache.capacity)
        if positions is None:
            positions = (start + jnp.arange(n_tokens, dtype=jnp.int32))[None]
        embed_key, stack_key = split_key(key, 2)
        x = self.embed(jnp.asarray(tokens), positions, embed_key)
        mask = combine(causal_mask(n_tokens, keys, start), mask)
        x, cache = self.stack.extend(x, cache, mask=mask, key=stack_key)
        return self.norm(x), cache

    def read_out(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """States -> logits."""
        return self.embed.token.decode(x) if self.head is None else self.head(x)

    def _check(self, tokens: Tokens, cache: KVCache | None) -> None:
        concrete = not isinstance(tokens, jax.core.Tracer)
        check_tokens(np.asarray(tokens) if concrete else tokens, self.config.vocab_size, self.config.context)
        if cache is not None and not isinstance(cache.length, jax.core.Tracer):
            held, room = int(cache.length), min(cache.capacity, self.config.context)
            if held + tokens.shape[1] > room:
                raise InputError(f"the cache holds {held} tokens and {tokens.shape[1]} more exceed its {room}")
