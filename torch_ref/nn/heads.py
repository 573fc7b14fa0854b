"""Heads of encoders: states -> the logits of a task (Devlin et al. 2019, sections 3.1 and 4)."""

import torch
from torch import Tensor, nn

from jaxformer.config.models import EncoderConfig
from torch_ref.nn.embeddings import Embedding
from torch_ref.nn.feedforward import ACTIVATIONS
from torch_ref.nn.norms import make_norm


class HeadTransform(nn.Module):
    """norm(activation(dense(x))), between the states and the layer of the logits."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.activation = config.activation if config.head_activation is None else config.head_activation
        self.dense = nn.Linear(config.d_model, config.transform_width, config.head_dense_bias)
        self.norm = make_norm(config.norm, config, config.transform_width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(ACTIVATIONS[self.activation](self.dense(x)))


class ClassificationHead(nn.Module):
    """output(dropout([transform] x)): logits of the labels, or of an answer's start and end."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.transform = HeadTransform(config) if config.head_transform else None
        self.dropout = nn.Dropout(config.head_dropout)
        self.output = nn.Linear(config.d_model, config.n_logits)

    def forward(self, x: Tensor, token: Embedding) -> Tensor:
        return self.output(self.dropout(x if self.transform is None else self.transform(x)))


class MaskedLMHead(nn.Module):
    """transform(x) @ table.T + bias: logits of each place's token, with the token embedding's table."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.transform = HeadTransform(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x: Tensor, token: Embedding) -> Tensor:
        return token.decode(self.transform(x)) + self.bias


def make_head(config: EncoderConfig) -> ClassificationHead | MaskedLMHead | None:
    """Build the head of a configuration; None without one."""
    if config.head == "none":
        return None
    return MaskedLMHead(config) if config.head == "masked_lm" else ClassificationHead(config)
