"""Heads: states -> logits, of the next token or of a task (Devlin et al. 2019, sections 3.1 and 4)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig
from torch_ref.nn.embeddings import Embedding
from torch_ref.nn.feedforward import ACTIVATIONS
from torch_ref.nn.norms import make_norm


class HeadTransform(nn.Module):
    """norm(activation(dense(x))), between the states and the layer of the logits."""

    def __init__(self, config: GPTConfig | EncoderConfig, width: int):
        super().__init__()
        self.activation = config.activation if config.head_activation is None else config.head_activation
        self.dense = nn.Linear(config.d_model, width, config.head_dense_bias)
        self.norm = make_norm(config.norm, config, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(ACTIVATIONS[self.activation](self.dense(x)))


class Head(nn.Module):
    """scale * [transform] x @ weight.T + bias, optionally soft-capped; a tied head has no weight and uses the token embedding's
    table (Press and Wolf 2017), behind a linear layer to its width if that is not d_model.
    """

    def __init__(self, config: GPTConfig | EncoderDecoderConfig):
        super().__init__()
        self.scale, self.softcap = config.logits_scale, config.logits_softcap
        self.transform = (
            HeadTransform(config, config.d_model) if isinstance(config, GPTConfig) and config.head_transform else None
        )
        shape = config.vocab_size, config.d_model
        narrow = config.tied and config.token_width != config.d_model
        self.project = nn.Linear(config.d_model, config.token_width, bias=False) if narrow else None
        self.weight = None if config.tied else nn.Parameter(torch.zeros(shape))
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.head_bias else None

    def forward(self, x: Tensor, token: Embedding) -> Tensor:
        x = (x if self.transform is None else self.transform(x)) * self.scale
        x = x if self.project is None else self.project(x)
        y = F.linear(x, token.weight if self.weight is None else self.weight, self.bias)
        return y if self.softcap is None else self.softcap * (y / self.softcap).tanh()


class ClassificationHead(nn.Module):
    """output(dropout([transform] x)): logits of the labels, or of an answer's start and end."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.transform = HeadTransform(config, config.d_model) if config.head_transform else None
        self.dropout = nn.Dropout(config.head_dropout)
        self.output = nn.Linear(config.d_model, config.n_logits)

    def forward(self, x: Tensor, token: Embedding) -> Tensor:
        return self.output(self.dropout(x if self.transform is None else self.transform(x)))


class MaskedLMHead(nn.Module):
    """transform(x) @ table.T + bias: logits of each place's token, with the token embedding's table."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.transform = HeadTransform(config, config.token_width)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x: Tensor, token: Embedding) -> Tensor:
        return token.decode(self.transform(x)) + self.bias


def make_head(config: EncoderConfig) -> ClassificationHead | MaskedLMHead | None:
    """Build the head of an encoder; None without one."""
    if config.head == "none":
        return None
    return MaskedLMHead(config) if config.head == "masked_lm" else ClassificationHead(config)
