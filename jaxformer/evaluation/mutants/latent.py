"""Mutants of latent attention, and of a router that chooses among groups of experts."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from jaxformer.evaluation.inject import Mutant, config, patch, swapped
from jaxformer.evaluation.mutants.attention import weight_of
from jaxformer.evaluation.mutants.models import without_norm
from jaxformer.evaluation.outcome import choice
from jaxformer.nn import experts
from jaxformer.nn.latent_attention import LatentAttention

ATTENTION = r"blocks\.\d\.attention"


def rotated_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """Take the first units of a query for those that are rotated."""

    def read(self: LatentAttention, x: Array, *more: Any) -> Any:
        q, latents, cache = original(self, x, *more)
        return jnp.concatenate([q[..., self.d_key :], q[..., : self.d_key]], -1), latents, cache

    return read


def corrected(original: Callable[..., experts.Choice]) -> Callable[..., experts.Choice]:
    """Weigh the chosen experts by their corrected scores."""

    def route(logits: Array, routing: experts.Routing, correction: Array) -> experts.Choice:
        choice = original(logits, routing._replace(normalised=False, scale=1.0), correction)
        weights = choice.weights + correction[choice.experts]
        return choice._replace(weights=routing.scale * weights / weights.sum(-1, keepdims=True))

    return route


def uncorrected(original: Callable[..., experts.Choice]) -> Callable[..., experts.Choice]:
    """Choose experts by their scores alone."""
    return lambda logits, routing, correction=None: original(logits, routing)


LATENTS = [
    Mutant(
        "the norm of the latent missing",
        patch(LatentAttention, _read=without_norm("kv_norm")),
        "deepseek",
        ATTENTION,
        "children.left_out at=*kv_norm",
    ),
    Mutant(
        "keys and values of the latent swapped",
        swapped("key_up", "value_up"),
        "deepseek",
        r"attention\.(key|value)_up",
        weight_of("value_up", "key_up"),
    ),
    Mutant(
        "the first units of queries rotated",
        patch(LatentAttention, _read=rotated_first),
        "deepseek",
        ATTENTION,
        "permute.join_reversed 'at=`torch.cat*'",
    ),
    Mutant(
        "scores scaled by the units of the latent alone",
        config(attention_scale=6**-0.5),
        "deepseek",
        ATTENTION,
        "attention.solved how=scaled value=1.291 'at=*.softmax(-1)*'",
    ),
    Mutant(
        "the latents' epsilon that of the other norms",
        config(latent_norm_epsilon=1e-5),
        "deepseek",
        "kv_norm|query_norm",
        choice("norm", "epsilon=1e-06, 1e-05"),
    ),
]

GROUPS = [
    Mutant(name, injection, "deepseek", r"parts\.1\.blocks\.\d\.feed_forward", cause)
    for name, injection, cause in (
        (
            "the correction in the weights of experts",
            patch(experts, route=corrected),
            "reroute.operand how=plain ordinal=first 'at=`scores.gather*' 'at=`grouped.masked_fill*'",
        ),
        (
            "experts chosen without their correction",
            patch(experts, route=uncorrected),
            "parameters.left_out at=correction.bias",
        ),
        (
            "a group's score that of its best expert",
            config(group_score="best"),
            "arguments.other other=1 was=2 at=1 'at=`grouped.topk*'",
        ),
        ("one group of experts too many", config(groups_per_token=3), "arguments.other other=3 was=2 at=1 'at=`best.topk*'"),
    )
]

MUTANTS = (*LATENTS, *GROUPS)
