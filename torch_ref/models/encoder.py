"""Encoder: every token sees all others (Devlin et al. 2019)."""

import torch
from torch import Tensor, nn

from jaxformer.config.models import EncoderConfig
from jaxformer.errors import InputError
from jaxformer.validation.inputs import check_config, check_mask, check_positions, check_token_types, check_tokens
from torch_ref.models.init import initialise
from torch_ref.nn.embeddings import InputEmbedding
from torch_ref.nn.feedforward import ACTIVATIONS
from torch_ref.nn.heads import make_head
from torch_ref.nn.masks import seen_keys
from torch_ref.nn.norms import make_norm
from torch_ref.nn.pooling import pool_tokens
from torch_ref.nn.stacks import make_stack


class Encoder(nn.Module):
    """`logits = model(tokens)` with a head, else `states = model(tokens)`; in training mode dropout is on.

    `encode` gives the states whether there is a head or not, and `pool` makes one vector per sequence of them.
    """

    def __init__(self, config: EncoderConfig, *, generator: torch.Generator | None = None):
        super().__init__()
        self.config = check_config(config, EncoderConfig)
        self.embed = InputEmbedding(config, config.vocab_size, config.token_types)
        self.stack = make_stack(config, causal=config.causal)
        self.norm = make_norm(config.final_norm, config)
        self.pooler = nn.Linear(config.d_model, config.d_model) if config.pooler else None
        self.head = make_head(config)
        initialise(self, config, generator)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        token_types: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the head's logits for `B T` ids, or without a head the state of every token."""
        given = {"mask": mask, "bias": bias, "token_types": token_types, "positions": positions}
        states = self.encode(tokens, **given)
        if self.head is None:
            return states
        if self.config.head == "sequence_classification":
            states = self._sequence(states, mask)
        return self.head(states, self.embed.token)

    def encode(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        token_types: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the state of every token of `B T` ids."""
        x = self._embed(tokens, mask, token_types, positions)
        return self.norm(self.stack(x, mask, bias=bias, positions=positions))

    def pool(self, states: Tensor) -> Tensor:
        """Apply a linear layer and the pooler's activation, tanh in BERT, to the first token's state."""
        if self.pooler is None:
            raise InputError("this encoder has no pooler; build it with pooler = True")
        return ACTIVATIONS[self.config.pooler_activation](self.pooler(states[:, 0]))

    def _sequence(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """Return the state of each sequence that a classification reads: the pooled one, the first token's, or the mean."""
        if self.pooler is not None:
            return self.pool(states)
        if self.config.head_pooling == "cls":
            return states[:, 0]
        seen = seen_keys(mask, states.shape[1])
        return pool_tokens(states, seen.expand(states.shape[:2]), "mean")

    def attention_weights(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        token_types: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the attention weights of every layer, for plotting: `L B N T T`."""
        x = self._embed(tokens, mask, token_types, positions)
        return self.stack.weights(x, mask, bias=bias, positions=positions).own

    def hidden_states(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        token_types: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the embedded tokens and the output of every layer, L + 1 in all; the last is normed, as in transformers."""
        x = self._embed(tokens, mask, token_types, positions)
        states = self.stack.hidden_states(x, mask, bias=bias, positions=positions)
        return torch.cat([states[:-1], self.norm(states[-1:])])

    def _embed(self, tokens: Tensor, mask: Tensor | None, token_types: Tensor | None, positions: Tensor | None) -> Tensor:
        config = self.config
        check_tokens(tokens.numpy(), config.vocab_size, config.context)
        batch, n_tokens = tokens.shape
        check_mask(mask, (batch, config.n_heads, n_tokens, n_tokens))
        types = None if token_types is None else token_types.numpy()
        check_token_types(types, tokens, config.token_types, config.context)
        check_positions(None if positions is None else positions.numpy(), (batch, n_tokens), config.context)
        if positions is None:
            positions = torch.arange(n_tokens)[None]
        return self.embed(tokens, positions, token_types=token_types)
