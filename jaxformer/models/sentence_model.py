"""Sentence model: tokens of a sentence -> one vector (Reimers and Gurevych 2019)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxformer.config.sentences import SentenceConfig
from jaxformer.models.encoder import Encoder
from jaxformer.models.init import Rngs, Undrawn, initialise
from jaxformer.nn.feedforward import ACTIVATIONS
from jaxformer.nn.linear import Linear
from jaxformer.nn.masks import padding_mask
from jaxformer.nn.pooling import pool_tokens, unit_norm
from jaxformer.validation.arrays import Tokens
from jaxformer.validation.inputs import check_config


class SentenceModel(nnx.Module):
    """`vectors = model(tokens, valid)`; with a key, dropout is on."""

    def __init__(self, config: SentenceConfig, *, rngs: Rngs | None = None):
        self.config = check_config(config, SentenceConfig)
        self.encoder = Encoder(config.encoder, rngs=Undrawn())
        n_in = len(config.pooling) * config.encoder.d_model
        self.dense = None if config.dense_width is None else Linear(n_in, config.dense_width, config.dense_bias)
        initialise(self, config.encoder, rngs)

    def __call__(
        self, tokens: Tokens, valid: Bool[Array, "B T"], *, token_types: Tokens | None = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "B X"]:
        """Return the vector of each row of `B T` ids; `valid` is True for a token, False for padding."""
        valid = jnp.asarray(valid)
        states = self.encoder(tokens, mask=padding_mask(valid), token_types=token_types, key=key)
        x = jnp.concatenate([pool_tokens(states, valid, pooling) for pooling in self.config.pooling], -1)
        if self.dense is not None:
            x = self.dense(x)
            x = x if self.config.dense_activation is None else ACTIVATIONS[self.config.dense_activation](x)
        return unit_norm(x) if self.config.normalize else x
