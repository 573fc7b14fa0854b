"""Mixture of experts (Shazeer et al. 2017; Fedus et al. 2021): a router sends each token to a few of many feed-forward layers.

No expert has a capacity: every token is computed by all of its experts.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.experts import LEAST_GROUPED, GroupScore, Router
from jaxformer.nn.feedforward import FeedForward, combine_gate
from jaxformer.nn.grouped import Blocks, grouped_matmul, make_blocks
from jaxformer.nn.linear import Linear
from jaxformer.nn.norms import make_norm
from jaxformer.nn.precision import wide
from jaxformer.parallel.mesh import traced_for


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

    experts: Int[Array, "B T k"]
    weights: Float[Array, "B T k"]


def route(logits: Float[Array, "B T E"], routing: Routing, correction: Float[Array, " E"] | None = None) -> Choice:
    """Choose the k experts with the largest scores, and weigh them; in float32 or wider. A correction is added to the scores
    by which experts are chosen, not to those that weigh them."""
    logits = wide(logits)
    scores = SCORES[routing.kind](logits)
    ranked = scores if correction is None else scores + correction.astype(scores.dtype)[None, None]
    experts = jax.lax.top_k(within_groups(ranked, routing), routing.chosen)[1]
    weights = jnp.take_along_axis(scores, experts, -1)
    if routing.kind == "top_k_softmax":
        weights = jax.nn.softmax(weights)
    if routing.normalised:
        weights = weights / (weights.sum(-1, keepdims=True) + LEAST_SUM)
    return Choice(experts, weights * routing.scale)


def within_groups(scores: Float[Array, "B T E"], routing: Routing) -> Float[Array, "B T E"]:
    """Set the scores of experts outside of the best groups to -inf."""
    if routing.groups == 1:
        return scores
    grouped = scores.reshape(*scores.shape[:-1], routing.groups, -1)
    best = jax.lax.top_k(grouped, 1 if routing.group_score == "best" else 2)[0].sum(-1)
    taken = jax.nn.one_hot(jax.lax.top_k(best, routing.taken)[1], routing.groups, dtype=jnp.bool_).any(-2)
    return jnp.where(taken[..., None], grouped, jnp.full((), -jnp.inf, scores.dtype)).reshape(scores.shape)


LEAST_SUM = 1e-20
"""Number added to a sum of weights that they are divided by: every sigmoid may be rounded to 0."""
SCORES: dict[Router, Callable[[Array], Array]] = {
    "softmax": jax.nn.softmax,
    "top_k_softmax": lambda logits: logits,
    "sigmoid": jax.nn.sigmoid,
}
"""Scores of all experts by the kind of router."""


class ExpertLinear(nnx.Module):
    """Weights of a linear layer of each expert: a kernel `E I O`, and a bias `E O`."""

    def __init__(self, experts: int, n_in: int, n_out: int, bias: bool):
        self.kernel = nnx.Param(jnp.zeros((experts, n_in, n_out), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((experts, n_out), jnp.float32)) if bias else None


def apply_all(layer: ExpertLinear, x: Float[Array, "B T I"]) -> Float[Array, "B T E O"]:
    """Apply every expert's layer to every token."""
    y = jnp.einsum("bti,eio->bteo", x.astype(layer.kernel.dtype), layer.kernel[...])
    return y if layer.bias is None else y + layer.bias[...].astype(y.dtype)[None, None]


def apply_own(layer: ExpertLinear, x: Float[Array, "blocks n I"], blocks: Blocks) -> Float[Array, "blocks n O"]:
    """Apply to each block of rows the layer of its own expert."""
    y = grouped_matmul(x.astype(layer.kernel.dtype), layer.kernel[...], blocks)
    return y if layer.bias is None else y + layer.bias[...].astype(y.dtype)[blocks.group][:, None]


class Experts(nnx.Module):
    """Feed-forward layers of all experts; the output is the weighted sum over the experts of each token."""

    def __init__(self, config: BlockConfig):
        self.n_experts, self.chosen, self.path = config.n_experts, config.experts_per_token, config.experts
        self.activation, self.limit = config.activation, config.gate_limit
        inner, outer = (config.n_experts, config.d_model, config.d_ff), (config.n_experts, config.d_ff, config.d_model)
        self.gate = ExpertLinear(*inner, config.feed_forward_bias) if config.gated else None
        self.up = ExpertLinear(*inner, config.feed_forward_bias)
        self.down = ExpertLinear(*outer, config.feed_forward_bias)

    def __call__(self, x: Float[Array, "B T D"], choice: Choice) -> Float[Array, "B T D"]:
        """Compute each token by its experts. The way there changes no result but by rounding."""
        enough = self.n_experts >= LEAST_GROUPED * self.chosen and traced_for() is None
        return (self._grouped if self.path == "grouped" or (self.path == "auto" and enough) else self._dense)(x, choice)

    def _dense(self, x: Array, choice: Choice) -> Array:
        """Compute every token by every expert; those that are not chosen have the weight 0."""
        hidden = self._hidden(lambda layer: apply_all(layer, x))
        chosen = jax.nn.one_hot(choice.experts, self.n_experts, dtype=hidden.dtype)
        weights = jnp.einsum("btke,btk->bte", chosen, choice.weights.astype(hidden.dtype))
        y = jnp.einsum("btef,efd->btd", hidden * weights[..., None], self.down.kernel[...])
        return y if self.down.bias is None else y + weights @ self.down.bias[...].astype(y.dtype)

    def _grouped(self, x: Array, choice: Choice) -> Array:
        """Lay out tokens in blocks of one expert each, and compute each block by its own."""
        blocks = make_blocks(choice.experts.reshape(-1), self.n_experts)
        tokens = x.reshape(-1, x.shape[-1]).at[blocks.row // self.chosen].get(mode="fill", fill_value=0)
        y = apply_own(self.down, self._hidden(lambda layer: apply_own(layer, tokens, blocks)), blocks)
        each = y.reshape(-1, y.shape[-1]).at[blocks.place].get(unique_indices=True).reshape(*choice.experts.shape, -1)
        return jnp.einsum("btkd,btk->btd", each, choice.weights.astype(y.dtype))

    def _hidden(self, apply: Callable[[ExpertLinear], Array]) -> Array:
        gate = None if self.gate is None else apply(self.gate)
        return jax.checkpoint(combine_gate, static_argnums=(0, 3))(self.activation, gate, apply(self.up), self.limit)


class Correction(nnx.Module):
    """Number for each expert that is added to its score where experts are chosen; no gradient reaches it."""

    def __init__(self, experts: int):
        self.bias = nnx.Param(jnp.zeros(experts, jnp.float32))


class ExpertScale(nnx.Module):
    """Factor of the weight of each expert."""

    def __init__(self, experts: int):
        self.scale = nnx.Param(jnp.ones(experts, jnp.float32))

    def __call__(self, choice: Choice) -> Choice:
        return choice._replace(weights=choice.weights * self.scale[...].astype(choice.weights.dtype)[choice.experts])


class ExpertNorms(nnx.Module):
    """Norms of what the router (over sqrt(D)), the experts and the shared expert read, and of what the latter two give."""

    def __init__(self, config: BlockConfig):
        self.factor = config.d_model**-0.5
        self.router_norm, self.experts_norm, self.shared_norm = (make_norm(config.norm, config) for _ in range(3))
        self.experts_output_norm, self.shared_output_norm = (make_norm(config.norm, config) for _ in range(2))

    def before(self, x: Float[Array, "B T D"]) -> tuple[Array, Array, Array]:
        """Return what the router, the experts and the shared expert read."""
        return self.router_norm(x) * self.factor, self.experts_norm(x), self.shared_norm(x)

    def after(self, y: Float[Array, "B T D"], shared: Float[Array, "B T D"]) -> tuple[Array, Array]:
        """Return the outputs of the experts and of the shared expert."""
        return self.experts_output_norm(y), self.shared_output_norm(shared)


class MixtureOfExperts(nnx.Module):
    """Router and experts, and a shared expert that sees every token, behind a sigmoid gate or without one."""

    def __init__(self, config: BlockConfig):
        groups = config.expert_groups, config.groups_per_token, config.group_score
        self.routing = Routing(config.router, config.experts_per_token, config.router_normalised, config.router_scale, *groups)
        self.router = Linear(config.d_model, config.n_experts, config.router_bias)
        self.correction = Correction(config.n_experts) if config.router_correction else None
        self.expert_scale = ExpertScale(config.n_experts) if config.expert_scale else None
        self.experts = Experts(config)
        self.norms = ExpertNorms(config) if config.expert_norms else None
        self.shared = FeedForward(config, config.shared_d_ff) if config.shared_d_ff else None
        self.shared_gate = Linear(config.d_model, 1, False) if config.shared_gate else None

    def __call__(self, x: Float[Array, "B T D"], key: PRNGKeyArray | None = None) -> Float[Array, "B T D"]:
        return self.routed(x)[0]

    def routed(self, x: Float[Array, "B T D"]) -> tuple[Float[Array, "B T D"], Float[Array, "B T E"]]:
        """Return the output and the router's logits."""
        read = (x, x, x) if self.norms is None else self.norms.before(x)
        logits = self.router(read[0])
        choice = route(logits, self.routing, None if self.correction is None else self.correction.bias[...])
        if self.expert_scale is not None:
            choice = self.expert_scale(choice)
        y = self.experts(read[1], choice)
        if self.shared is None:
            return y, logits
        shared = self.shared(read[2])
        if self.norms is not None:
            y, shared = self.norms.after(y, shared)
        return y + (shared if self.shared_gate is None else jax.nn.sigmoid(self.shared_gate(x)) * shared), logits


def make_feed_forward(config: BlockConfig) -> FeedForward | MixtureOfExperts:
    """Build the feed-forward layer of a block, or the mixture of experts in its place."""
    return MixtureOfExperts(config) if config.n_experts else FeedForward(config)
