"""Mutants of mixtures of experts: the router, the experts, and the losses of routers in training."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxformer.evaluation.inject import Injection, Mutant, Weights, config, instead, patch, reads_as, swapped, weights
from jaxformer.evaluation.mutants.attention import NO_BIAS
from jaxformer.nn import experts
from jaxformer.training import routing


def ungated(original: Callable[..., Array]) -> Callable[..., Array]:
    """Add the shared expert's output as it is, without its gate."""
    return lambda self, x, key=None: self.experts(x, experts.route(self.router(x), self.routing)) + self.shared(x)


def in_another_order() -> Injection:
    """Give each expert's weights to the next expert."""

    def change(tensors: Weights) -> Weights:
        return {name: jnp.roll(leaf, 1, axis=1) if ".experts." in name else leaf for name, leaf in tensors.items()}

    return weights(change)


def without_the_last(original: Callable[..., experts.Choice]) -> Callable[..., experts.Choice]:
    """Give the last of the chosen experts no weight."""

    def route(*given: Any) -> experts.Choice:
        choice = original(*given)
        return choice._replace(weights=choice.weights.at[..., -1].set(0))

    return route


def layer_by_layer(logits: Array, chosen: int, valid: Array | None = None) -> Array:
    """Average the load-balancing losses of the layers."""
    return jnp.stack([BALANCE(layer[None], chosen, valid) for layer in logits]).mean()


BALANCE = routing.balance_loss


def over_tokens(original: Callable[..., Array]) -> Callable[..., Array]:
    """Take the softmax of the load-balancing loss over tokens, not over experts."""

    def balance_loss(logits: Array, chosen: int, valid: Array | None = None) -> Array:
        return original(jnp.log(jax.nn.softmax(logits, axis=2)), chosen, valid)

    return balance_loss


def unsquared(original: Callable[..., Array]) -> Callable[..., Array]:
    """Average the normaliser itself in the z-loss, not its square."""
    return lambda logits, valid=None: routing.token_mean(jax.nn.logsumexp(logits, -1, keepdims=True), valid)[0]


ROUTERS = [
    Mutant(
        "weights of chosen experts not normalised",
        config(router_normalised=False),
        "mixture",
        "feed_forward",
        "operations.operand_alone ordinal=first 'at=`weights / (weights.sum*'",
    ),
    Mutant(
        "router's scale missing",
        config(router_scale=1.0),
        "mixture",
        "feed_forward",
        "values.factor by=0.4 'at=input of *.experts'",
    ),
    Mutant(
        "sigmoid router for softmax",
        config(router="sigmoid"),
        "mixture",
        "feed_forward",
        "operations.activation how=sigmoid 'at=`logits.softmax*'",
    ),
    Mutant("softmax before top-k for after", config(router="softmax"), "oss", "feed_forward"),
    Mutant("last chosen expert left out", patch(experts, route=without_the_last), "oss", "feed_forward"),
    Mutant("router's bias dropped", reads_as(0.0, "router.bias"), "oss", "router", NO_BIAS),
]

EXPERTS = [
    Mutant(
        "shared expert's gate missing",
        patch(experts.MixtureOfExperts, __call__=ungated),
        "mixture",
        "feed_forward",
        "operations.operand_alone ordinal=second 'at=`torch.sigmoid*'",
    ),
    Mutant("experts in another order", in_another_order(), "mixture", "experts"),
    Mutant(
        "experts' gate and up swapped",
        swapped("gate", "up", ".experts."),
        "mixture",
        "experts",
        "exchange.children how=here at=gate at=up",
    ),
    Mutant(
        "clamped gate without its clamp",
        config(gate_limit=None),
        "oss",
        "experts",
        "parameters.number was=1.5 value=inf at=limit",
    ),
    Mutant(
        "experts' output bias dropped", reads_as(0.0, "experts.down.bias"), "oss", "experts", "parameters.left_out at=down.bias"
    ),
]

LOSSES = [
    Mutant("load-balancing loss layer by layer", instead(routing, balance_loss=layer_by_layer), "routers"),
    Mutant("load-balancing loss with a softmax over tokens", patch(routing, balance_loss=over_tokens), "routers"),
    Mutant("z-loss without its square", patch(routing, z_loss=unsquared), "routers"),
]

MUTANTS = (*ROUTERS, *EXPERTS, *LOSSES)
