"""Settings of a mixture of experts, which takes the place of a block's feed-forward layer. Imports no jax."""

from dataclasses import fields
from typing import Any, Literal, get_args

from jaxformer.config.configuration import configuration
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_choice, check_divides, check_flag, check_number, check_size

Router = Literal["softmax", "top_k_softmax", "sigmoid"]
GroupScore = Literal["best", "best_two"]
ExpertPath = Literal["auto", "dense", "grouped"]


@configuration
class ExpertsConfig:
    """Settings of a mixture of experts (Shazeer et al. 2017): a router sends each token to a few feed-forward layers."""

    n_experts: int = 0
    """Number E of experts, each a feed-forward layer of width d_ff. 0: one feed-forward layer for all tokens."""
    experts_per_token: int = 1
    """Number k of experts that each token is sent to; no expert has a capacity, and no token is dropped."""
    router: Router = "softmax"
    """Weights of the chosen experts. softmax: probabilities among all experts (Mixtral, Qwen); top_k_softmax: among the chosen
    ones (gpt-oss); sigmoid: of each logit by itself."""
    router_normalised: bool = False
    """Divide the weights of the chosen experts by their sum."""
    router_scale: float = 1.0
    """Factor of the weights of the chosen experts."""
    router_bias: bool = False
    """Bias of the router's logits."""
    router_correction: bool = False
    """Number for each expert that is added to its score where experts are chosen, and not to its weight: no gradient reaches
    it (DeepSeek-V3)."""
    expert_groups: int = 1
    """Number of groups of experts; those of a token are from a few groups (DeepSeek-V2). Divides n_experts."""
    groups_per_token: int = 1
    """Number of groups that a token's experts are chosen from: those with the largest scores."""
    group_score: GroupScore = "best"
    """Score of a group. best: the largest of its experts' scores (DeepSeek-V2); best_two: the sum of the two largest
    (DeepSeek-V3)."""
    shared_d_ff: int = 0
    """Width of a shared expert, which sees every token (Qwen 2). 0: none."""
    shared_gate: bool = False
    """Multiply the shared expert's output by the sigmoid of a linear gate."""
    expert_norms: bool = False
    """Norms of what the router, the experts and the shared expert read, and of what experts and shared expert give, in place of
    one norm before all (Gemma 4)."""
    expert_scale: bool = False
    """Learned factor of the weight of each expert (Gemma 4)."""
    experts: ExpertPath = "auto"
    """Execution. dense: every expert computes every token; grouped: each expert computes its own tokens, for which there is no
    forward-mode derivative; auto: grouped from four experts per chosen one on, except on a mesh."""


LEAST_GROUPED = 4
"""Number of experts per chosen one from which on grouping them is faster on CPU."""


def check_experts(config: Any) -> None:
    """Raise ConfigError for a setting of experts that is out of range, unused or impossible."""
    check_size("n_experts", config.n_experts, least=0)
    check_choice("router", config.router, get_args(Router))
    check_choice("experts", config.experts, get_args(ExpertPath))
    check_choice("group_score", config.group_score, get_args(GroupScore))
    for name in ("expert_groups", "groups_per_token"):
        check_size(name, getattr(config, name))
    for name in ("router_normalised", "router_bias", "router_correction", "shared_gate", "expert_norms", "expert_scale"):
        check_flag(name, getattr(config, name))
    check_number("router_scale", config.router_scale, 0, open_below=True)
    check_size("shared_d_ff", config.shared_d_ff, least=0)
    if config.n_experts:
        _check_mixture(config)
        return
    for field in fields(ExpertsConfig):
        if (value := getattr(config, field.name)) != field.default:
            raise ConfigError(f"{field.name} = {value!r} is not read with n_experts = 0; set n_experts, or leave it out")


def _check_mixture(config: Any) -> None:
    check_size("experts_per_token", config.experts_per_token, most=config.n_experts)
    if not config.d_ff:
        raise ConfigError(f"n_experts = {config.n_experts} needs d_ff, the width of an expert, and it is 0")
    if config.feed_forward_dropout:
        raise ConfigError(
            f"feed_forward_dropout = {config.feed_forward_dropout} has no place in experts; set residual_dropout, or 0"
        )
    if config.shared_gate and not config.shared_d_ff:
        raise ConfigError("shared_gate = True is not read with shared_d_ff = 0; set shared_d_ff, or leave it out")
    if config.expert_norms and (config.parallel_residual or config.norm_position != "sandwich"):
        raise ConfigError("expert_norms = True needs norm_position = 'sandwich' and no parallel_residual; leave it out")
    if config.expert_norms and not config.shared_d_ff:
        raise ConfigError("expert_norms = True needs shared_d_ff, the width of the feed-forward layer beside the experts")
    _check_groups(config)
    if config.router == "top_k_softmax" and config.router_normalised:
        raise ConfigError("router_normalised = True is not read with router = 'top_k_softmax', whose weights add up to 1")


def _check_groups(config: Any) -> None:
    groups, taken = config.expert_groups, config.groups_per_token
    check_divides("expert_groups", groups, "n_experts", config.n_experts)
    check_size("groups_per_token", taken, most=groups)
    if config.router_correction and config.router == "top_k_softmax":
        raise ConfigError("router_correction = True is not read with router = 'top_k_softmax'; set router = 'sigmoid'")
    if groups == 1 and config.group_score != "best":
        raise ConfigError(f"group_score = {config.group_score!r} is not read with expert_groups = 1; set expert_groups")
    size = config.n_experts // groups
    if config.group_score == "best_two" and size == 1:
        raise ConfigError(f"group_score = 'best_two' needs two experts in a group, and expert_groups = {groups} leaves one")
    if config.experts_per_token > taken * size:
        raise ConfigError(
            f"experts_per_token = {config.experts_per_token} are more than the {taken * size} experts of groups_per_token = "
            f"{taken} groups; give more groups, or fewer experts"
        )
