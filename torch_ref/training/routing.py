"""Losses of the routers of a mixture of experts, in training: experts are to be used evenly, and logits are to stay small."""

from torch import Tensor
from torch.nn import functional as F

from jaxformer.config.models import GPTConfig


def balance_loss(logits: Tensor, chosen: int, valid: Tensor | None = None) -> Tensor:
    """Return E sum_e f_e P_e (Fedus et al. 2021, equation 4) with k = `chosen` experts for each token, k if they are even.

    f_e is the number of choices of expert e per token, P_e its mean probability: both over the tokens of all layers at once,
    as transformers has it, without padding.
    """
    probabilities = logits.softmax(-1)
    experts = probabilities.topk(chosen).indices
    choices = F.one_hot(experts, logits.shape[-1]).sum(-2).to(probabilities.dtype)
    return logits.shape[-1] * (token_mean(choices, valid) * token_mean(probabilities, valid)).sum()


def z_loss(logits: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the mean of log(sum(exp(logits)))^2 over the tokens of all layers (Zoph et al. 2022, equation 5)."""
    return token_mean(logits.logsumexp(-1, keepdim=True).square(), valid)[0]


def router_loss(logits: Tensor, config: GPTConfig, valid: Tensor | None = None) -> Tensor:
    """Return the sum of both losses with the configuration's weights."""
    balance = config.balance_loss * balance_loss(logits, config.experts_per_token, valid)
    return balance + config.router_z_loss * z_loss(logits, valid)


def has_router_loss(config: GPTConfig) -> bool:
    """True if the configuration gives a weight to a loss of routers."""
    return bool(config.balance_loss or config.router_z_loss)


def token_mean(x: Tensor, valid: Tensor | None) -> Tensor:
    """Average over layers and over tokens that are no padding."""
    return (x if valid is None else x[:, valid]).flatten(0, -2).mean(0)
