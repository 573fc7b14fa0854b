"""Sentence model: tokens of a sentence -> one vector (Reimers and Gurevych 2019)."""

import torch
from torch import Tensor, nn

from jaxformer.config.sentences import SentenceConfig
from jaxformer.validation.inputs import check_config
from torch_ref.models.encoder import Encoder
from torch_ref.models.init import initialise
from torch_ref.nn.feedforward import ACTIVATIONS
from torch_ref.nn.masks import padding_mask
from torch_ref.nn.pooling import pool_tokens, unit_norm


class SentenceModel(nn.Module):
    """`vectors = model(tokens, valid)`; in training mode dropout is on."""

    def __init__(self, config: SentenceConfig, *, generator: torch.Generator | None = None):
        super().__init__()
        self.config = check_config(config, SentenceConfig)
        self.encoder = Encoder(config.encoder, generator=generator)
        n_in = len(config.pooling) * config.encoder.d_model
        self.dense = None if config.dense_width is None else nn.Linear(n_in, config.dense_width, config.dense_bias)
        initialise(self, config.encoder, generator)

    def forward(self, tokens: Tensor, valid: Tensor, *, token_types: Tensor | None = None) -> Tensor:
        """Return the vector of each row of `B T` ids; `valid` is True for a token, False for padding."""
        states = self.encoder(tokens, mask=padding_mask(valid), token_types=token_types)
        x = torch.cat([pool_tokens(states, valid, pooling) for pooling in self.config.pooling], -1)
        if self.dense is not None:
            x = self.dense(x)
            x = x if self.config.dense_activation is None else ACTIVATIONS[self.config.dense_activation](x)
        return unit_norm(x) if self.config.normalize else x
