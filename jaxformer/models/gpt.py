"""Decoder-only language model (Radford et al. 2019)."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxformer.config.models import GPTConfig
from jaxformer.errors import ConfigError
from jaxformer.models.init import Rngs, initialise
from jaxformer.models.shown import Shown
from jaxformer.nn.cache import KVCache
from jaxformer.nn.dropout import split_key
from jaxformer.nn.embeddings import InputEmbedding
from jaxformer.nn.heads import Head
from jaxformer.nn.layer_embeddings import LayerEmbedding
from jaxformer.nn.masks import causal_mask, combine
from jaxformer.nn.norms import make_norm
from jaxformer.nn.place import Beside
from jaxformer.nn.stacks import make_stack
from jaxformer.validation.arrays import Tokens, as_array, check_ids, check_room
from jaxformer.validation.inputs import check_config, check_mask, check_positions


class GPT(Shown):
    """`logits = model(tokens)`; with a key, dropout is on; `extend` continues from a cache."""

    def __init__(self, config: GPTConfig, *, rngs: Rngs | None = None):
        self.config = check_config(config, GPTConfig)
        self.embed = InputEmbedding(config, config.vocab_size)
        self.layer_embed = LayerEmbedding(config) if config.layer_embedding else None
        self.stack = make_stack(config, causal=True)
        self.norm = make_norm(config.final_norm, config)
        self.head = Head(config)
        initialise(self, config, rngs)

    def __call__(
        self,
        tokens: Tokens,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "_ T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B T V"]:
        """Return the logits of the next token at every position of `B T` ids.

        `mask` (`B N|1 T S`, True = may attend) narrows the causal mask; `bias` of that shape is added to attention's scores;
        `positions` default to 0, 1, 2, ... Raises InputError for ids that are not integers, too many, or, where their values
        are known, out of range.
        """
        return self.extend(tokens, None, mask=mask, bias=bias, positions=positions, key=key)[0]

    def extend(
        self,
        tokens: Tokens,
        cache: KVCache | None,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "_ T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B T V"], KVCache | None]:
        """Return the logits of these tokens, which follow the cached ones, and the cache with these tokens added."""
        x, cache = self.last_hidden_state(tokens, cache, mask=mask, bias=bias, positions=positions, key=key)
        return self.read_out(x), cache

    def last_hidden_state(
        self,
        tokens: Tokens,
        cache: KVCache | None,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "_ T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B T D"], KVCache | None]:
        """Return the normed output of the stack, before the read-out, which can then be of single positions."""
        embed_key, stack_key = split_key(key, 2)
        x, mask, beside = self._embed(tokens, cache, mask, positions, embed_key)
        x, cache = self.stack.extend(x, cache, mask=mask, key=stack_key, bias=bias, positions=positions, beside=beside)
        return self.norm(x), cache

    def routed_hidden_state(
        self,
        tokens: Tokens,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "_ T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "L B T E"]]:
        """Return the normed output of the stack and the router's logits of every layer, for a model with n_experts."""
        if not self.config.n_experts:
            raise ConfigError("n_experts = 0: the model has no router; take last_hidden_state")
        embed_key, stack_key = split_key(key, 2)
        x, mask, beside = self._embed(tokens, None, mask, positions, embed_key)
        x, logits = self.stack.routed(x, mask, stack_key, bias=bias, positions=positions, beside=beside)
        return self.norm(x), logits

    def read_out(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """States -> logits."""
        return self.head(x, self.embed.token)

    def attention_weights(
        self,
        tokens: Tokens,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "_ T"] | None = None,
    ) -> Float[Array, "L B N T T"]:
        """Return the attention weights of every layer, for plotting."""
        x, mask, beside = self._embed(tokens, None, mask, positions, None)
        return self.stack.weights(x, mask, bias=bias, positions=positions, beside=beside).own

    def hidden_states(
        self,
        tokens: Tokens,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "_ T"] | None = None,
    ) -> Float[Array, "_ B T D"]:
        """Return the embedded tokens and the output of every layer, L + 1 in all; the last is normed, as in transformers."""
        x, mask, beside = self._embed(tokens, None, mask, positions, None)
        states = self.stack.hidden_states(x, mask, bias=bias, positions=positions, beside=beside)
        return jnp.concatenate([states[:-1], self.norm(states[-1:])])

    def _embed(
        self,
        tokens: Tokens,
        cache: KVCache | None,
        mask: Array | None,
        positions: Array | None,
        key: PRNGKeyArray | None,
    ) -> tuple[Array, Array | None, Beside]:
        """Return the embedded tokens, their mask (`mask`, with a cache combined with the causal mask), and their embeddings for
        each layer."""
        tokens = check_ids(tokens, self.config.vocab_size, self.config.context)
        batch, n_tokens = tokens.shape
        check_room(cache, n_tokens, self.config.context)
        start, keys = (0, n_tokens) if cache is None else (cache.length, cache.capacity)
        check_mask(mask, (batch, self.config.n_heads, n_tokens, keys))
        check_positions(None if positions is None else as_array(positions), (batch, n_tokens), self.config.context)
        if positions is None:
            positions = (start + jnp.arange(n_tokens, dtype=jnp.int32))[None]
        x = self.embed(ids := jnp.asarray(tokens), positions, key=key)
        beside = Beside(None if self.layer_embed is None else self.layer_embed(ids, x))
        return x, mask if cache is None else combine(causal_mask(n_tokens, keys, start), mask), beside
