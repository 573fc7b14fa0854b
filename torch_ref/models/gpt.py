"""Decoder-only language model (Radford et al. 2019)."""

import torch
from torch import Tensor, nn

from jaxformer.config.models import GPTConfig
from jaxformer.errors import ConfigError
from jaxformer.validation.inputs import check_config, check_mask, check_positions, check_room, check_tokens
from torch_ref.models.init import initialise
from torch_ref.nn.cache import KVCache
from torch_ref.nn.embeddings import InputEmbedding
from torch_ref.nn.heads import Head
from torch_ref.nn.layer_embeddings import LayerEmbedding
from torch_ref.nn.masks import causal_mask, combine
from torch_ref.nn.norms import make_norm
from torch_ref.nn.place import Beside
from torch_ref.nn.stacks import make_stack


class GPT(nn.Module):
    """`logits = model(tokens)`; in training mode dropout is on; `extend` continues from a cache."""

    def __init__(self, config: GPTConfig, *, generator: torch.Generator | None = None):
        super().__init__()
        self.config = check_config(config, GPTConfig)
        self.embed = InputEmbedding(config, config.vocab_size)
        self.layer_embed = LayerEmbedding(config) if config.layer_embedding else None
        self.stack = make_stack(config, causal=True)
        self.norm = make_norm(config.final_norm, config)
        self.head = Head(config)
        initialise(self, config, generator)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of the next token at every position of `B T` ids."""
        return self.extend(tokens, None, mask=mask, bias=bias, positions=positions)[0]

    def extend(
        self,
        tokens: Tensor,
        cache: KVCache | None,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, KVCache | None]:
        """Return the logits of these tokens, which follow the cached ones, and the cache with these tokens added."""
        x, cache = self.last_hidden_state(tokens, cache, mask=mask, bias=bias, positions=positions)
        return self.read_out(x), cache

    def last_hidden_state(
        self,
        tokens: Tensor,
        cache: KVCache | None,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, KVCache | None]:
        """Return the normed output of the stack, before the read-out."""
        x, mask, beside = self._embed(tokens, cache, mask, positions)
        x, cache = self.stack.extend(x, cache, mask=mask, bias=bias, positions=positions, beside=beside)
        return self.norm(x), cache

    def routed_hidden_state(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the normed output of the stack and the router's logits of every layer, for a model with n_experts."""
        if not self.config.n_experts:
            raise ConfigError("n_experts = 0: the model has no router; take last_hidden_state")
        x, mask, beside = self._embed(tokens, None, mask, positions)
        x, logits = self.stack.routed(x, mask, bias=bias, positions=positions, beside=beside)
        return self.norm(x), logits

    def read_out(self, x: Tensor) -> Tensor:
        """States -> logits."""
        return self.head(x, self.embed.token)

    def attention_weights(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the attention weights of every layer, for plotting: `L B N T T`."""
        x, mask, beside = self._embed(tokens, None, mask, positions)
        return self.stack.weights(x, mask, bias=bias, positions=positions, beside=beside).own

    def hidden_states(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the embedded tokens and the output of every layer, L + 1 in all; the last is normed, as in transformers."""
        x, mask, beside = self._embed(tokens, None, mask, positions)
        states = self.stack.hidden_states(x, mask, bias=bias, positions=positions, beside=beside)
        return torch.cat([states[:-1], self.norm(states[-1:])])

    def _embed(
        self, tokens: Tensor, cache: KVCache | None, mask: Tensor | None, positions: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Beside]:
        """Return the embedded tokens, their mask (`mask`, with a cache combined with the causal mask), and their embeddings for
        each layer."""
        check_tokens(tokens.numpy(), self.config.vocab_size, self.config.context)
        batch, n_tokens = tokens.shape
        check_room(cache, n_tokens, self.config.context)
        start, keys = (0, n_tokens) if cache is None else (cache.length, cache.capacity)
        check_mask(mask, (batch, self.config.n_heads, n_tokens, keys))
        check_positions(None if positions is None else positions.numpy(), (batch, n_tokens), self.config.context)
        if positions is None:
            positions = (start + torch.arange(n_tokens))[None]
        seen = mask if cache is None else combine(causal_mask(n_tokens, keys, start), mask)
        x = self.embed(tokens, positions)
        return x, seen, Beside(None if self.layer_embed is None else self.layer_embed(tokens, x))
