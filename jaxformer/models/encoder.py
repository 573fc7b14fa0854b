"""Encoder: every token sees all others (Devlin et al. 2019)."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxformer.config.models import EncoderConfig
from jaxformer.errors import InputError
from jaxformer.models.init import Rngs, initialise
from jaxformer.models.shown import Shown
from jaxformer.nn.dropout import split_key
from jaxformer.nn.embeddings import InputEmbedding
from jaxformer.nn.feedforward import ACTIVATIONS
from jaxformer.nn.heads import make_head
from jaxformer.nn.linear import Linear
from jaxformer.nn.masks import seen_keys
from jaxformer.nn.norms import make_norm
from jaxformer.nn.pooling import pool_tokens
from jaxformer.nn.stacks import make_stack
from jaxformer.validation.arrays import Tokens, as_array, check_ids
from jaxformer.validation.inputs import check_config, check_mask, check_positions, check_token_types


class Encoder(Shown):
    """`logits = model(tokens)` with a head, else `states = model(tokens)`; with a key, dropout is on.

    `encode` gives the states whether there is a head or not, and `pool` makes one vector per sequence of them.
    """

    def __init__(self, config: EncoderConfig, *, rngs: Rngs | None = None):
        self.config = check_config(config, EncoderConfig)
        self.embed = InputEmbedding(config, config.vocab_size, config.token_types)
        self.stack = make_stack(config, causal=config.causal)
        self.norm = make_norm(config.final_norm, config)
        self.pooler = Linear(config.d_model, config.d_model, True) if config.pooler else None
        self.head = make_head(config)
        initialise(self, config, rngs)

    def __call__(
        self,
        tokens: Tokens,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        token_types: Tokens | None = None,
        positions: Int[Array, "_ T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B *rows"]:
        """Return the head's logits for `B T` ids, or without a head the state of every token.

        Logits are `B T V` of masked_lm, `B T C` and `B C` of token and sequence classification with C labels, `B T 2` (start
        and end) of question_answering. Arguments are those of `encode`.
        """
        given = {"mask": mask, "bias": bias, "token_types": token_types, "positions": positions}
        if self.head is None:
            return self.encode(tokens, **given, key=key)
        key, head_key = split_key(key, 2)
        states = self.encode(tokens, **given, key=key)
        if self.config.head == "sequence_classification":
            states = self._sequence(states, mask)
        return self.head(states, self.embed.token, head_key)

    def encode(
        self,
        tokens: Tokens,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        token_types: Tokens | None = None,
        positions: Int[Array, "_ T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B T D"]:
        """Return the state of every token of `B T` ids.

        `mask` (`B N|1 T S`, True = may attend) hides padding; `bias` of that shape is added to attention's scores;
        `token_types` (`B T`) default to 0; `positions` to 0, 1, 2, ...
        """
        embed_key, stack_key = split_key(key, 2)
        x = self._embed(tokens, mask, token_types, positions, embed_key)
        return self.norm(self.stack(x, mask, key=stack_key, bias=bias, positions=positions))

    def pool(self, states: Float[Array, "B T D"]) -> Float[Array, "B D"]:
        """Apply a linear layer and the pooler's activation, tanh in BERT, to the first token's state."""
        if self.pooler is None:
            raise InputError("this encoder has no pooler; build it with pooler = True")
        return ACTIVATIONS[self.config.pooler_activation](self.pooler(states[:, 0]))

    def _sequence(self, states: Array, mask: Array | None) -> Array:
        """Return the state of each sequence that a classification reads: the pooled one, the first token's, or the mean."""
        if self.pooler is not None:
            return self.pool(states)
        if self.config.head_pooling == "cls":
            return states[:, 0]
        seen = seen_keys(mask, states.shape[1])
        return pool_tokens(states, jnp.broadcast_to(seen, states.shape[:2]), "mean")

    def attention_weights(
        self,
        tokens: Tokens,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        token_types: Tokens | None = None,
        positions: Int[Array, "_ T"] | None = None,
    ) -> Float[Array, "L B N T T"]:
        """Return the attention weights of every layer, for plotting."""
        x = self._embed(tokens, mask, token_types, positions, None)
        return self.stack.weights(x, mask, bias=bias, positions=positions).own

    def hidden_states(
        self,
        tokens: Tokens,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        token_types: Tokens | None = None,
        positions: Int[Array, "_ T"] | None = None,
    ) -> Float[Array, "_ B T D"]:
        """Return the embedded tokens and the output of every layer, L + 1 in all; the last is normed, as in transformers."""
        x = self._embed(tokens, mask, token_types, positions, None)
        states = self.stack.hidden_states(x, mask, bias=bias, positions=positions)
        return jnp.concatenate([states[:-1], self.norm(states[-1:])])

    def _embed(
        self,
        tokens: Tokens,
        mask: Array | None,
        token_types: Tokens | None,
        positions: Array | None,
        key: PRNGKeyArray | None,
    ) -> Array:
        config = self.config
        tokens = check_ids(tokens, config.vocab_size, config.context)
        batch, n_tokens = tokens.shape
        check_mask(mask, (batch, config.n_heads, n_tokens, n_tokens))
        if token_types is not None:
            check_token_types(as_array(token_types), tokens, config.token_types, config.context)
            token_types = jnp.asarray(token_types)
        check_positions(None if positions is None else as_array(positions), (batch, n_tokens), config.context)
        if positions is None:
            positions = jnp.arange(n_tokens, dtype=jnp.int32)[None]
        return self.embed(jnp.asarray(tokens), positions, token_types=token_types, key=key)
