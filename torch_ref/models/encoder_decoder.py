"""Encoder-decoder: an encoder reads the source, a decoder writes the target (Vaswani et al. 2017, section 3)."""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.validation.inputs import (
    MaskAndBias,
    check_config,
    check_frames,
    check_memory,
    check_room,
    check_rows,
    check_scored,
    check_source_mask,
    check_tokens,
    memory_shape,
)
from torch_ref.models.init import initialise
from torch_ref.nn.attention import Memory
from torch_ref.nn.cache import KeysValues, KVCache
from torch_ref.nn.convolution import ConvolutionStem
from torch_ref.nn.embeddings import InputEmbedding
from torch_ref.nn.heads import Head
from torch_ref.nn.masks import causal_mask, combine
from torch_ref.nn.norms import make_norm
from torch_ref.nn.stack import Stack


class AttentionMaps(NamedTuple):
    """Attention weights of every layer, for plotting."""

    encoder: Tensor
    """Self-attention of the source: `L B N S S`."""
    decoder: Tensor
    """Self-attention of the target: `M B N T T`."""
    cross: Tensor
    """Cross-attention of the target on the source: `M B N T S`."""


class HiddenStates(NamedTuple):
    """Embedded tokens and output of every layer, one more than layers; the last is normed, as in transformers."""

    encoder: Tensor
    """States of the source: `_ B S D`."""
    decoder: Tensor
    """States of the target: `_ B T D`."""


class EncoderDecoder(nn.Module):
    """`logits = model(source, target)`: `encode`, then `decode`; `extend` continues a target from a cache."""

    def __init__(self, config: EncoderDecoderConfig, *, generator: torch.Generator | None = None):
        super().__init__()
        self.config = check_config(config, EncoderDecoderConfig)
        self.embed = InputEmbedding(config, config.vocab_size)
        self.source_embed = InputEmbedding(config.source, config.source_vocab_size)
        self.stem = None if config.source_features is None else ConvolutionStem(config, config.source_features)
        self.encoder = Stack(config)
        self.encoder_norm = make_norm(config.final_norm, config)
        self.decoder = Stack(config.decoder, cross=True, causal=True)
        self.decoder_norm = make_norm(config.final_norm, config)
        self.head = Head(config)
        initialise(self, config, generator)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        source_bias: Tensor | None = None,
        target_bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of the next target token at every position of `B T` ids, given a source of `B S` ids, or with
        `source_features` of frames `B _ M`, two to a token.
        """
        memory = self.encode(source, mask=source_mask, bias=source_bias)
        check_source_mask(source_mask, memory.shape, self.config.n_heads)
        masks = {"mask": target_mask, "memory_mask": source_mask}
        return self.decode(target, memory, **masks, bias=target_bias, memory_bias=memory_bias)

    def encode(self, source: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """Return the memory: the state of every source token."""
        x = self._embed_source(source, mask, bias)
        return self.encoder_norm(self.encoder(x, mask, bias=bias))

    def remember(self, memory: Tensor) -> KeysValues:
        """Compute every decoder layer's keys and values of the memory, for decoding token by token."""
        return self.decoder.remember(memory)

    def decode(
        self,
        target: Tensor,
        memory: Memory,
        *,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of the next token at every position of the target."""
        masks = {"mask": mask, "memory_mask": memory_mask}
        return self.extend(target, None, memory, **masks, bias=bias, memory_bias=memory_bias)[0]

    def extend(
        self,
        target: Tensor,
        cache: KVCache | None,
        memory: Memory,
        *,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
    ) -> tuple[Tensor, KVCache | None]:
        """Return the logits of these tokens, which follow the cached ones, and the cache with these tokens added."""
        masks, biases = {"mask": mask, "memory_mask": memory_mask}, {"bias": bias, "memory_bias": memory_bias}
        x, cache = self.last_hidden_state(target, cache, memory, **masks, **biases)
        return self.read_out(x), cache

    def last_hidden_state(
        self,
        target: Tensor,
        cache: KVCache | None,
        memory: Memory,
        *,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
    ) -> tuple[Tensor, KVCache | None]:
        """Return the normed output of the decoder, before the read-out."""
        x, mask = self._embed_target(target, cache, memory, (mask, bias), (memory_mask, memory_bias))
        biases: dict[str, Any] = {"bias": bias, "memory_bias": memory_bias}
        x, cache = self.decoder.extend(x, cache, mask, memory, memory_mask, **biases)
        return self.decoder_norm(x), cache

    def read_out(self, x: Tensor) -> Tensor:
        """States -> logits."""
        return self.head(x, self.embed.token)

    def attention_weights(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        source_bias: Tensor | None = None,
        target_bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
    ) -> AttentionMaps:
        """Return the attention weights of every layer of both stacks."""
        memory = self.encode(source, mask=source_mask, bias=source_bias)
        check_source_mask(source_mask, memory.shape, self.config.n_heads)
        x = self._embed_source(source, source_mask, source_bias)
        encoder = self.encoder.weights(x, source_mask, bias=source_bias).own
        own, cross = (target_mask, target_bias), (source_mask, memory_bias)
        x, mask = self._embed_target(target, None, memory, own, cross)
        found = self.decoder.weights(x, mask, memory, source_mask, bias=target_bias, memory_bias=memory_bias)
        return AttentionMaps(encoder, found.own, cast(Tensor, found.cross))

    def hidden_states(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        source_bias: Tensor | None = None,
        target_bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
    ) -> HiddenStates:
        """Return the hidden states of every layer of both stacks."""
        x = self._embed_source(source, source_mask, source_bias)
        states = self.encoder.hidden_states(x, source_mask, bias=source_bias)
        encoder = torch.cat([states[:-1], self.encoder_norm(states[-1:])])
        check_source_mask(source_mask, x.shape, self.config.n_heads)
        own, cross = (target_mask, target_bias), (source_mask, memory_bias)
        x, mask = self._embed_target(target, None, encoder[-1], own, cross)
        biases: dict[str, Any] = {"bias": target_bias, "memory_bias": memory_bias}
        states = self.decoder.hidden_states(x, mask, encoder[-1], source_mask, **biases)
        return HiddenStates(encoder, torch.cat([states[:-1], self.decoder_norm(states[-1:])]))

    def _embed_source(self, source: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
        config, stem = self.config, self.stem
        if stem is None:
            check_tokens(source.numpy(), config.source_ids, config.source.context, name="source")
        else:
            check_frames(source.detach().numpy(), config.source_features, config.source.context)
            source = stem(source)
        batch, n_tokens = source.shape[:2]
        check_scored((batch, config.n_heads, n_tokens, n_tokens), mask, bias, name="source ")
        positions = torch.arange(n_tokens)[None]
        if stem is not None:
            return self.source_embed.place(source, positions)
        shared = self.embed.token if config.source_vocab_size is None else None
        return self.source_embed(source, positions, token=shared)

    def _embed_target(
        self, target: Tensor, cache: KVCache | None, memory: Memory, own: MaskAndBias, cross: MaskAndBias
    ) -> tuple[Tensor, Tensor | None]:
        """Return the embedded target, and its mask: `mask`, with a cache combined with the causal mask."""
        config = self.config
        check_tokens(target.numpy(), config.vocab_size, config.context, name="target")
        batch, n_tokens = target.shape
        check_room(cache, n_tokens, config.context)
        start, keys = (0, n_tokens) if cache is None else (cache.length, cache.capacity)
        check_scored((batch, config.decoder.n_heads, n_tokens, keys), *own, name="target ")
        if not isinstance(memory, KeysValues):
            check_memory(memory, config.d_model)
        rows, read = memory_shape(memory)
        check_rows(batch, rows)
        check_scored((batch, config.decoder.n_heads, n_tokens, read), *cross, name="memory ")
        x = self.embed(target, (start + torch.arange(n_tokens))[None])
        return x, own[0] if cache is None else combine(causal_mask(n_tokens, keys, start), own[0])
