"""Encoder-decoder: an encoder reads the source, a decoder writes the target (Vaswani et al. 2017, section 3)."""

from typing import Any, NamedTuple, cast

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.models.init import Rngs, initialise
from jaxformer.models.shown import Shown
from jaxformer.nn.attention import Memory
from jaxformer.nn.cache import KeysValues, KVCache
from jaxformer.nn.convolution import ConvolutionStem
from jaxformer.nn.dropout import split_key
from jaxformer.nn.embeddings import InputEmbedding
from jaxformer.nn.heads import Head
from jaxformer.nn.masks import causal_mask, combine
from jaxformer.nn.norms import make_norm
from jaxformer.nn.stack import Stack
from jaxformer.validation.arrays import Tokens, check_frames, check_ids, check_room
from jaxformer.validation.inputs import (
    MaskAndBias,
    check_config,
    check_memory,
    check_rows,
    check_scored,
    check_source_mask,
    memory_shape,
)


class AttentionMaps(NamedTuple):
    """Attention weights of every layer, for plotting."""

    encoder: Float[Array, "L B N S S"]
    """Self-attention of the source."""
    decoder: Float[Array, "M B N T T"]
    """Self-attention of the target."""
    cross: Float[Array, "M B N T S"]
    """Cross-attention of the target on the source."""


class HiddenStates(NamedTuple):
    """Embedded tokens and output of every layer, one more than layers; the last is normed, as in transformers."""

    encoder: Float[Array, "_ B S D"]
    """States of the source."""
    decoder: Float[Array, "_ B T D"]
    """States of the target."""


class EncoderDecoder(Shown):
    """`logits = model(source, target)`: `encode`, then `decode`; `extend` continues a target from a cache."""

    def __init__(self, config: EncoderDecoderConfig, *, rngs: Rngs | None = None):
        self.config = check_config(config, EncoderDecoderConfig)
        self.embed = InputEmbedding(config, config.vocab_size)
        self.source_embed = InputEmbedding(config.source, config.source_vocab_size)
        self.stem = None if config.source_features is None else ConvolutionStem(config, config.source_features)
        self.encoder = Stack(config)
        self.encoder_norm = make_norm(config.final_norm, config)
        self.decoder = Stack(config.decoder, cross=True, causal=True)
        self.decoder_norm = make_norm(config.final_norm, config)
        self.head = Head(config)
        initialise(self, config, rngs)

    def __call__(
        self,
        source: Tokens,
        target: Tokens,
        *,
        source_mask: Bool[Array, "..."] | None = None,
        target_mask: Bool[Array, "..."] | None = None,
        source_bias: Float[Array, "..."] | None = None,
        target_bias: Float[Array, "..."] | None = None,
        memory_bias: Float[Array, "..."] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B T V"]:
        """Return the logits of the next target token at every position of `B T` ids, given a source of `B S` ids, or with
        `source_features` of frames `B _ M`, two to a token.

        `source_mask` (`B 1 1 S`, True = may attend) hides padding from both stacks, `target_mask` (`B N|1 T T`) narrows the
        causal mask. Biases are added to attention's scores: of the source on itself (`B N|1 S S`), of the target on itself (`T
        T`), and of the target on the memory (`T S`). Raises InputError for ids that are not integers, too many, or, where their
        values are known, out of range.
        """
        encoder_key, decoder_key = split_key(key, 2)
        memory = self.encode(source, mask=source_mask, bias=source_bias, key=encoder_key)
        check_source_mask(source_mask, memory.shape, self.config.n_heads)
        masks = {"mask": target_mask, "memory_mask": source_mask}
        return self.decode(target, memory, **masks, bias=target_bias, memory_bias=memory_bias, key=decoder_key)

    def encode(
        self,
        source: Tokens,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B S D"]:
        """Return the memory: the state of every source token."""
        embed_key, stack_key = split_key(key, 2)
        x = self._embed_source(source, mask, bias, embed_key)
        return self.encoder_norm(self.encoder(x, mask, key=stack_key, bias=bias))

    def remember(self, memory: Float[Array, "B S D"]) -> KeysValues:
        """Compute every decoder layer's keys and values of the memory, for decoding token by token."""
        return self.decoder.remember(memory)

    def decode(
        self,
        target: Tokens,
        memory: Memory,
        *,
        mask: Bool[Array, "..."] | None = None,
        memory_mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        memory_bias: Float[Array, "..."] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B T V"]:
        """Return the logits of the next token at every position of the target."""
        masks = {"mask": mask, "memory_mask": memory_mask}
        return self.extend(target, None, memory, **masks, bias=bias, memory_bias=memory_bias, key=key)[0]

    def extend(
        self,
        target: Tokens,
        cache: KVCache | None,
        memory: Memory,
        *,
        mask: Bool[Array, "..."] | None = None,
        memory_mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        memory_bias: Float[Array, "..."] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B T V"], KVCache | None]:
        """Return the logits of these tokens, which follow the cached ones, and the cache with these tokens added."""
        masks, biases = {"mask": mask, "memory_mask": memory_mask}, {"bias": bias, "memory_bias": memory_bias}
        x, cache = self.last_hidden_state(target, cache, memory, **masks, **biases, key=key)
        return self.read_out(x), cache

    def last_hidden_state(
        self,
        target: Tokens,
        cache: KVCache | None,
        memory: Memory,
        *,
        mask: Bool[Array, "..."] | None = None,
        memory_mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        memory_bias: Float[Array, "..."] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B T D"], KVCache | None]:
        """Return the normed output of the decoder, before the read-out, which a loss over a large vocabulary does in chunks."""
        embed_key, stack_key = split_key(key, 2)
        x, mask = self._embed_target(target, cache, memory, (mask, bias), (memory_mask, memory_bias), embed_key)
        biases: dict[str, Any] = {"bias": bias, "memory_bias": memory_bias}
        x, cache = self.decoder.extend(x, cache, mask, memory, memory_mask, stack_key, **biases)
        return self.decoder_norm(x), cache

    def read_out(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """States -> logits."""
        return self.head(x, self.embed.token)

    def attention_weights(
        self,
        source: Tokens,
        target: Tokens,
        *,
        source_mask: Bool[Array, "..."] | None = None,
        target_mask: Bool[Array, "..."] | None = None,
        source_bias: Float[Array, "..."] | None = None,
        target_bias: Float[Array, "..."] | None = None,
        memory_bias: Float[Array, "..."] | None = None,
    ) -> AttentionMaps:
        """Return the attention weights of every layer of both stacks."""
        memory = self.encode(source, mask=source_mask, bias=source_bias)
        check_source_mask(source_mask, memory.shape, self.config.n_heads)
        x = self._embed_source(source, source_mask, source_bias, None)
        encoder = self.encoder.weights(x, source_mask, bias=source_bias).own
        own, cross = (target_mask, target_bias), (source_mask, memory_bias)
        x, mask = self._embed_target(target, None, memory, own, cross, None)
        found = self.decoder.weights(x, mask, memory, source_mask, bias=target_bias, memory_bias=memory_bias)
        return AttentionMaps(encoder, found.own, cast(Array, found.cross))

    def hidden_states(
        self,
        source: Tokens,
        target: Tokens,
        *,
        source_mask: Bool[Array, "..."] | None = None,
        target_mask: Bool[Array, "..."] | None = None,
        source_bias: Float[Array, "..."] | None = None,
        target_bias: Float[Array, "..."] | None = None,
        memory_bias: Float[Array, "..."] | None = None,
    ) -> HiddenStates:
        """Return the hidden states of every layer of both stacks."""
        x = self._embed_source(source, source_mask, source_bias, None)
        states = self.encoder.hidden_states(x, source_mask, bias=source_bias)
        encoder = jnp.concatenate([states[:-1], self.encoder_norm(states[-1:])])
        check_source_mask(source_mask, x.shape, self.config.n_heads)
        own, cross = (target_mask, target_bias), (source_mask, memory_bias)
        x, mask = self._embed_target(target, None, encoder[-1], own, cross, None)
        biases: dict[str, Any] = {"bias": target_bias, "memory_bias": memory_bias}
        states = self.decoder.hidden_states(x, mask, encoder[-1], source_mask, **biases)
        return HiddenStates(encoder, jnp.concatenate([states[:-1], self.decoder_norm(states[-1:])]))

    def _embed_source(self, source: Tokens, mask: Array | None, bias: Array | None, key: PRNGKeyArray | None) -> Array:
        config, stem = self.config, self.stem
        if stem is None:
            source = check_ids(source, config.source_ids, config.source.context, name="source")
        else:
            source = stem(jnp.asarray(check_frames(source, config.source_features, config.source.context)))
        batch, n_tokens = source.shape[:2]
        check_scored((batch, config.n_heads, n_tokens, n_tokens), mask, bias, name="source ")
        positions = jnp.arange(n_tokens, dtype=jnp.int32)[None]
        if stem is not None:
            return self.source_embed.place(jnp.asarray(source), positions, key=key)
        shared = self.embed.token if config.source_vocab_size is None else None
        return self.source_embed(jnp.asarray(source), positions, token=shared, key=key)

    def _embed_target(
        self,
        target: Tokens,
        cache: KVCache | None,
        memory: Memory,
        own: MaskAndBias,
        cross: MaskAndBias,
        key: PRNGKeyArray | None,
    ) -> tuple[Array, Array | None]:
        """Return the embedded target, and its mask: `mask`, with a cache combined with the causal mask."""
        config = self.config
        target = check_ids(target, config.vocab_size, config.context, name="target")
        batch, n_tokens = target.shape
        check_room(cache, n_tokens, config.context)
        start, keys = (0, n_tokens) if cache is None else (cache.length, cache.capacity)
        check_scored((batch, config.decoder.n_heads, n_tokens, keys), *own, name="target ")
        if not isinstance(memory, KeysValues):
            check_memory(memory, config.d_model)
        rows, read = memory_shape(memory)
        check_rows(batch, rows)
        check_scored((batch, config.decoder.n_heads, n_tokens, read), *cross, name="memory ")
        positions = (start + jnp.arange(n_tokens, dtype=jnp.int32))[None]
        x = self.embed(jnp.asarray(target), positions, key=key)
        return x, own[0] if cache is None else combine(causal_mask(n_tokens, keys, start), own[0])
