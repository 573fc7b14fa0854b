"""Output head: vectors -> logits."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jaxformer.config.models import EncoderDecoderConfig, GPTConfig
from torch_ref.nn.embeddings import Embedding


class Head(nn.Module):
    """scale * x @ weight.T + bias, optionally soft-capped; a tied head has no weight and uses the token embedding's table
    (Press and Wolf 2017).
    """

    def __init__(self, config: GPTConfig | EncoderDecoderConfig):
        super().__init__()
        self.scale, self.softcap = config.logits_scale, config.logits_softcap
        shape = config.vocab_size, config.d_model
        self.weight = None if config.tied else nn.Parameter(torch.zeros(shape))
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.head_bias else None

    def forward(self, x: Tensor, token: Embedding) -> Tensor:
        y = F.linear(x * self.scale, token.weight if self.weight is None else self.weight, self.bias)
        return y if self.softcap is None else self.softcap * (y / self.softcap).tanh()
