"""Mixture of experts (Shazeer et al. 2017; Fedus et al. 2021): a router sends each token to a few of many feed-forward layers.

No expert has a capacity: every token is computed by all of its experts.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.experts import GroupScore, Router
from torch_ref.nn.feedforward import FeedForward, combine_gate
from torch_ref.nn.norms import make_norm


class Routing(NamedTuple):
    """Options of the router."""

    kind: Router
    chosen: int
    """Number k of experts for each token."""
    normalised: bool
    scale: float
    groups: int = 1
    """Number of groups of experts."""
    taken: int = 1
    """Number of groups that the experts of a token are from."""
    group_score: GroupScore = "best"


class Choice(NamedTuple):
    """Experts of each token, and their weights."""

    experts: Tensor
    """Numbers of the experts: `B T k`."""
    weights: Tensor
    """Their weights: `B T k`."""


def route(logits: Tensor, routing: Routing, correction: Tensor | None = None) -> Choice:
    """Choose the k experts with the largest scores, and weigh them; in float32 or wider. A correction is added to the scores
    by which experts are chosen, not to those that weigh them."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scores = SCORES[routing.kind](logits)
    ranked = scores if correction is None else scores + correction.to(scores.dtype)
    experts = within_groups(ranked, routing).topk(routing.chosen)[1]
    weights = scores.gather(-1, experts)
    if routing.kind == "top_k_softmax":
        weights = weights.softmax(-1)
    if routing.normalised:
        weights = weights / (weights.sum(-1, keepdim=True) + LEAST_SUM)
    return Choice(experts, weights * routing.scale)


def within_groups(scores: Tensor, routing: Routing) -> Tensor:
    """Set the scores of experts outside of the best groups to -inf."""
    if routing.groups == 1:
        return scores
    grouped = scores.unflatten(-1, (routing.groups, -1))
    best = grouped.topk(1 if routing.group_score == "best" else 2)[0].sum(-1)
    taken = torch.zeros_like(best, dtype=torch.bool).scatter(-1, best.topk(routing.taken)[1], True)
    return grouped.masked_fill(~taken[..., None], -torch.inf).flatten(-2)


LEAST_SUM = 1e-20
"""Number added to a sum of weights that they are divided by: every sigmoid may be rounded to 0."""
SCORES = {
    "softmax": lambda logits: logits.softmax(-1),
    "top_k_softmax": lambda logits: logits,
    "sigmoid": torch.sigmoid,
}
"""Scores of all experts by the kind of router."""


class ExpertLinear(nn.Module):
    """Weights of a linear layer of each expert: a weight `E O I`, and a bias `E O`."""

    def __init__(self, experts: int, n_in: int, n_out: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(experts, n_out, n_in))
        self.bias = nn.Parameter(torch.zeros(experts, n_out)) if bias else None


def apply_one(layer: ExpertLinear, x: Tensor, expert: int) -> Tensor:
    """Apply one expert's layer."""
    return F.linear(x, layer.weight[expert], None if layer.bias is None else layer.bias[expert])


class Experts(nn.Module):
    """Feed-forward layers of all experts; the output is the weighted sum over the experts of each token."""

    def __init__(self, config: BlockConfig):
        super().__init__()
        self.n_experts, self.chosen = config.n_experts, config.experts_per_token
        self.activation, self.limit = config.activation, config.gate_limit
        inner, outer = (config.n_experts, config.d_model, config.d_ff), (config.n_experts, config.d_ff, config.d_model)
        self.gate = ExpertLinear(*inner, config.feed_forward_bias) if config.gated else None
        self.up = ExpertLinear(*inner, config.feed_forward_bias)
        self.down = ExpertLinear(*outer, config.feed_forward_bias)

    def forward(self, x: Tensor, choice: Choice) -> Tensor:
        """Compute each token by its experts, one expert after another."""
        tokens, output = x.flatten(0, -2), torch.zeros_like(x).flatten(0, -2)
        experts, weights = (each.flatten(0, -2) for each in choice)
        for expert in range(self.n_experts):
            token, place = (experts == expert).nonzero(as_tuple=True)
            read = tokens[token]
            gate = None if self.gate is None else apply_one(self.gate, read, expert)
            hidden = combine_gate(self.activation, gate, apply_one(self.up, read, expert), self.limit)
            y = apply_one(self.down, hidden, expert) * weights[token, place, None].to(x.dtype)
            output = output.index_add(0, token, y)
        return output.view_as(x)


class Correction(nn.Module):
    """Number for each expert that is added to its score where experts are chosen; no gradient reaches it."""

    def __init__(self, experts: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(experts))


class ExpertScale(nn.Module):
    """Factor of the weight of each expert."""

    def __init__(self, experts: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(experts))

    def forward(self, choice: Choice) -> Choice:
        return choice._replace(weights=choice.weights * self.weight.to(choice.weights.dtype)[choice.experts])


class ExpertNorms(nn.Module):
    """Norms of what the router (over sqrt(D)), the experts and the shared expert read, and of what the latter two give."""

    def __init__(self, config: BlockConfig):
        super().__init__()
        self.factor = config.d_model**-0.5
        self.router_norm, self.experts_norm, self.shared_norm = (make_norm(config.norm, config) for _ in range(3))
        self.experts_output_norm, self.shared_output_norm = (make_norm(config.norm, config) for _ in range(2))

    def before(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the router, the experts and the shared expert read."""
        return self.router_norm(x) * self.factor, self.experts_norm(x), self.shared_norm(x)

    def after(self, y: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of the experts and of the shared expert."""
        return self.experts_output_norm(y), self.shared_output_norm(shared)


class MixtureOfExperts(nn.Module):
    """Router and experts, and a shared expert that sees every token, behind a sigmoid gate or without one."""

    def __init__(self, config: BlockConfig):
        super().__init__()
        groups = config.expert_groups, config.groups_per_token, config.group_score
        self.routing = Routing(config.router, config.experts_per_token, config.router_normalised, config.router_scale, *groups)
        self.router = nn.Linear(config.d_model, config.n_experts, config.router_bias)
        self.correction = Correction(config.n_experts) if config.router_correction else None
        self.expert_scale = ExpertScale(config.n_experts) if config.expert_scale else None
        self.experts = Experts(config)
        self.norms = ExpertNorms(config) if config.expert_norms else None
        self.shared = FeedForward(config, config.shared_d_ff) if config.shared_d_ff else None
        self.shared_gate = nn.Linear(config.d_model, 1, bias=False) if config.shared_gate else None

    def forward(self, x: Tensor) -> Tensor:
        return self.routed(x)[0]

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the router's logits."""
        read = (x, x, x) if self.norms is None else self.norms.before(x)
        logits = self.router(read[0])
        choice = route(logits, self.routing, None if self.correction is None else self.correction.bias)
        if self.expert_scale is not None:
            choice = self.expert_scale(choice)
        y = self.experts(read[1], choice)
        if self.shared is None:
            return y, logits
        shared = self.shared(read[2])
        if self.norms is not None:
            y, shared = self.norms.after(y, shared)
        return y + (shared if self.shared_gate is None else torch.sigmoid(self.shared_gate(x)) * shared), logits


def make_feed_forward(config: BlockConfig) -> FeedForward | MixtureOfExperts:
    """Build the feed-forward layer of a block, or the mixture of experts in its place."""
    return MixtureOfExperts(config) if config.n_experts else FeedForward(config)
