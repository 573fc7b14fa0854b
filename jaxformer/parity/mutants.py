"""The bugs people make when they port a transformer: each is put into the JAX side, and has to be noticed."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import PyTree

from jaxformer.convert.rules import Rule
from jaxformer.models import encoder, encoder_decoder, gpt
from jaxformer.nn import attention, blocks, embeddings, feedforward, masks, matmul, norms
from jaxformer.nn.tree import STACKED
from jaxformer.parity.injections import Injection, Mutant, Weights, config, instead, patch, rule, weights, without
from jaxformer.settings import OptimizerConfig, ScheduleConfig
from jaxformer.training import losses, optimizers
from jaxformer.training.schedules import Schedule


def reads_as(value: float, *endings: str) -> Injection:
    """Tensors whose path ends so are taken for a constant."""
    endings = tuple(f".{ending}" for ending in endings)

    def change(tensors: Weights) -> Weights:
        return {name: jnp.full_like(leaf, value) if f".{name}".endswith(endings) else leaf for name, leaf in tensors.items()}

    return weights(change)


def swapped(first: str, second: str, within: str = "") -> Injection:
    """Two sub-modules of equal shapes exchange their tensors, everywhere or within one kind of module."""

    def counterpart(name: str) -> str:
        exchanged = {first: second, second: first} if within in name else {}
        return ".".join(exchanged.get(part, part) for part in name.split("."))

    return weights(lambda tensors: {name: tensors[counterpart(name)] for name in tensors})


def layers_reversed(tensors: Weights) -> Weights:
    """The last block runs first."""
    return {name: leaf[::-1] if STACKED in name else leaf for name, leaf in tensors.items()}


def layer_norm_as(normalise: Callable[[Array, float], Array]) -> Injection:
    """Another formula for LayerNorm, on x and epsilon."""
    return instead(norms.FUNCTIONS, layer=normalise)


def mean(x: Array) -> Array:
    """Over the last axis, which stays."""
    return x.mean(-1, keepdims=True)


def variance(x: Array, correction: int = 0) -> Array:
    """Over the last axis, which stays."""
    return x.var(-1, keepdims=True, ddof=correction)


def fast_variance(x: Array) -> Array:
    """E[x^2] - E[x]^2: cancels where the mean is large."""
    return mean(x * x) - mean(x) * mean(x)


def scores_times(factor: Callable[[Array], float]) -> Injection:
    """Attention scores with another scale: factor(q) on top of 1 / sqrt(H)."""
    return patch(attention, attention_weights=lambda original: lambda q, k, mask: original(q * factor(q), k, mask))


def softmax_of(masked: Callable[[Array, Array], Array]) -> Injection:
    """The ordinary softmax of masked(scores, mask)."""
    return instead(attention, masked_softmax=lambda scores, mask: jax.nn.softmax(masked(scores, mask), -1))


def zeroed_afterwards(scores: Array, mask: Array) -> Array:
    """Zeros for rows without a key, and NaN gradients behind them: -inf is added, and its row is NaN before it is zero."""
    return jnp.where(mask.any(-1, keepdims=True), jax.nn.softmax(scores + jnp.where(mask, 0.0, -jnp.inf), -1), 0.0)


def over_queries(original: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """The softmax on the wrong axis."""
    return lambda scores, mask: original(scores.swapaxes(-1, -2), mask.swapaxes(-1, -2)).swapaxes(-1, -2)


def split_per_head(qkv: Array, heads: int, kv_heads: int) -> list[Array]:
    """q, k, v of the first head, then of the second, ..., as GPT-NeoX packs them."""
    parts = qkv.reshape(*qkv.shape[:-1], heads, 3, -1)
    return [parts[..., i, :].reshape(*qkv.shape[:-1], -1) for i in range(3)]


def split_width_first(x: Array, heads: int) -> Array:
    """`H N` along the last axis where it is `N H`."""
    return x.reshape(*x.shape[:-1], -1, heads).swapaxes(-1, -2)


def merge_width_first(x: Array) -> Array:
    """The inverse of split_width_first."""
    return x.swapaxes(-1, -2).reshape(*x.shape[:-2], -1)


def heads_tiled(original: Callable[..., Array]) -> Callable[..., Array]:
    """Head n reads key head n mod K where it is n // (N / K)."""

    def attend(q: Array, k: Array, v: Array, *rest: object) -> Array:
        copies = (1, 1, q.shape[2] // k.shape[2], 1)
        return original(q, jnp.tile(k, copies), jnp.tile(v, copies), *rest)

    return attend


def causal_off_by(n: int, where: ModuleType = gpt) -> Injection:
    """Query t sees the keys up to t + n."""
    return patch(where, causal_mask=lambda original: lambda queries, keys, offset: original(queries, keys, offset + n))


def positions_off_by(n: int) -> Injection:
    """Token t stands at t + n."""

    def shifted(original: Callable[..., Array]) -> Callable[..., Array]:
        return lambda self, ids, positions, **rest: original(self, ids, positions + n, **rest)

    return patch(embeddings.InputEmbedding, __call__=shifted)


def in_blocks(original: Callable[[int, int], np.ndarray]) -> Callable[[int, int], np.ndarray]:
    """All sines, then all cosines (Marian's and fairseq's order) where they alternate."""

    def table(n_positions: int, d_model: int) -> np.ndarray:
        alternating = original(n_positions, d_model)
        return np.concatenate([alternating[:, 0::2], alternating[:, 1::2]], -1)

    return table


def padding_row_frozen(original: Callable[..., Array]) -> Callable[..., Array]:
    """torch's `padding_idx=0`: that row of the table gets no gradient."""

    def encode(self: embeddings.Embedding, ids: Array) -> Array:
        x = original(self, ids)
        return jnp.where((ids == 0)[..., None], jax.lax.stop_gradient(x), x)

    return encode


def without_norm(name: str) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """A method of a module whose norm of that name does nothing."""

    def replacement(original: Callable[..., Array]) -> Callable[..., Array]:
        def call(self: Any, *args: Any, **rest: Any) -> Array:
            plain = jax.tree.map(lambda leaf: leaf, self)
            setattr(plain, name, norms.Identity())
            return original(plain, *args, **rest)

        return call

    return replacement


def norm_before_position(original: Callable[..., Array]) -> Callable[..., Array]:
    """norm(token) + position for norm(token + position)."""

    def call(self: Any, ids: Array, positions: Array, *, token: Any = None, **rest: Any) -> Array:
        alone = (self.token if token is None else token).encode(ids) * self.scale
        return self.norm(alone) + without_norm("norm")(original)(self, ids, positions, token=token, **rest) - alone

    return call


def target_one_ahead(original: Callable[..., Array]) -> Callable[..., Array]:
    """The target's places are one ahead, the source's are not; the source's embedding is given the table that it shares."""
    return lambda self, ids, positions, *, token=None, **rest: original(
        self, ids, positions + int(token is None), token=token, **rest
    )


def shared_scaled_twice(original: Callable[..., Array]) -> Callable[..., Array]:
    """The table that is shared comes scaled, and is scaled again."""
    return lambda self, *args, token=None, **rest: original(
        self, *args, token=jax.tree.map(lambda leaf: leaf * self.scale, token), **rest
    )


def reads_memory_through(change: Callable[[Array, Array], Array | None]) -> Injection:
    """Cross-attention's mask is change(the source's, the target's)."""

    def replacement(original: Callable[..., Array]) -> Callable[..., Array]:
        return lambda self, target, memory, *, mask, memory_mask, key: original(
            self, target, memory, mask=mask, memory_mask=change(memory_mask, mask), key=key
        )

    return patch(encoder_decoder.EncoderDecoder, decode=replacement)


def padded_to(source: Array, target: Array) -> Array:
    """The target's mask, as wide as the source's."""
    return jnp.pad(target, [(0, 0)] * 3 + [(0, source.shape[-1] - target.shape[-1])], constant_values=True)


def causal_encoder(original: Callable[..., Array]) -> Callable[..., Array]:
    """Source tokens see no later ones."""
    return lambda self, source, *, mask, key: original(
        self, source, mask=masks.combine(masks.causal_mask(source.shape[1]), mask), key=key
    )


def query_as_it_is(original: Callable[..., Array]) -> Callable[..., Array]:
    """Pre-norm without the norm before cross-attention."""
    return lambda self, norm, x: x if norm is self.cross_attention_norm else original(self, norm, x)


def normed_once_more(original: Callable[..., Array]) -> Callable[..., Array]:
    """The memory goes through one more LayerNorm, which has no weights."""
    return lambda self, *args, **rest: norms.layer_norm(original(self, *args, **rest), self.config.norm_epsilon)


def of_one_type(original: Callable[..., Array]) -> Callable[..., Array]:
    """Every token is of type 0."""
    return lambda self, *args, token_types, **rest: original(self, *args, **rest)


def last_first(original: Callable[..., Array]) -> Callable[..., Array]:
    """The last state counts as the first."""
    return lambda self, states: original(self, states[:, ::-1])


def read_as(name: str, other: str) -> Injection:
    """One tensor is taken for another of its shape."""
    return weights(lambda tensors: tensors | {name: tensors[other]})


ACTIVATIONS = [
    Mutant("GELU by tanh for GELU by erf", config(activation="gelu_tanh")),
    Mutant("quick-GELU for GELU", instead(feedforward.ACTIVATIONS, gelu=lambda x: x * jax.nn.sigmoid(1.702 * x))),
    Mutant("ReLU for SiLU in the gate", config(activation="relu"), "rich"),
    Mutant("gate and up swapped", swapped("gate", "up"), "rich"),
]

NORMS = [
    Mutant("LayerNorm epsilon 1e-6 for 1e-5", config(norm_epsilon=1e-6)),
    Mutant("LayerNorm epsilon 1e-12 for 1e-5", config(norm_epsilon=1e-12)),
    Mutant("RMSNorm epsilon 1e-6 for 1e-5", config(norm_epsilon=1e-6), "rich"),
    Mutant("epsilon outside the root", layer_norm_as(lambda x, e: (x - mean(x)) / (jnp.sqrt(variance(x)) + e))),
    Mutant(
        "epsilon inside the root",
        instead(norms.FUNCTIONS, std=lambda x, e: (x - mean(x)) / jnp.sqrt(variance(x, 1) + e)),
        "fused",
    ),
    Mutant("unbiased deviation for biased", layer_norm_as(lambda x, e: (x - mean(x)) / jnp.sqrt(variance(x, 1) + e))),
    Mutant(
        "biased deviation for unbiased",
        instead(norms.FUNCTIONS, std=lambda x, e: (x - mean(x)) / (jnp.sqrt(variance(x)) + e)),
        "fused",
    ),
    Mutant("fast variance", layer_norm_as(lambda x, e: (x - mean(x)) / jnp.sqrt(fast_variance(x) + e)), "shifted"),
    Mutant("LayerNorm bias dropped", reads_as(0.0, "attention_norm.bias")),
    Mutant("LayerNorm gain dropped", reads_as(1.0, "feed_forward_norm.scale")),
    Mutant("final LayerNorm gain dropped", reads_as(1.0, "norm.scale")),
    Mutant("norm after the residual sum for before it", config(norm_position="post")),
]

PROJECTIONS = [
    Mutant("query bias dropped", reads_as(0.0, "query.bias")),
    Mutant("value bias dropped", reads_as(0.0, "value.bias")),
    Mutant("fused query, key and value bias dropped", reads_as(0.0, "qkv.bias"), "fused"),
    Mutant("key bias dropped", without("stack.blocks.attention.key.bias")),
    Mutant("output bias dropped", reads_as(0.0, "out.bias")),
    Mutant("bias of the logits dropped", reads_as(0.0, "head.bias")),
    Mutant("feed-forward bias dropped", reads_as(0.0, "down.bias")),
    Mutant("query and key swapped", swapped("query", "key")),
    Mutant("square weight not transposed", rule(Rule("out.kernel", "out.weight"))),
    Mutant("fused query, key and value split per head", instead(attention, split_qkv=split_per_head), "fused"),
    Mutant("heads (H, N) for (N, H)", instead(attention, split_heads=split_width_first, merge_heads=merge_width_first)),
    Mutant("key heads tiled for repeated", patch(attention, attention=heads_tiled), "rich"),
    Mutant("layers in reverse", weights(layers_reversed)),
]

ATTENTION = [
    Mutant("scale 1/sqrt(D)", scores_times(lambda q: q.shape[2] ** -0.5)),
    Mutant("no scale", scores_times(lambda q: q.shape[3] ** 0.5)),
    Mutant("-1e9 for -inf", softmax_of(lambda scores, mask: jnp.where(mask, scores, -1e9))),
    Mutant("-1e4 for -inf", softmax_of(lambda scores, mask: jnp.where(mask, scores, -1e4))),
    Mutant("-1e4 added", softmax_of(lambda scores, mask: scores + jnp.where(mask, 0.0, -1e4))),
    Mutant("NaN for a row without keys", softmax_of(lambda scores, mask: jnp.where(mask, scores, -jnp.inf))),
    Mutant("NaN gradient behind a row without keys", instead(attention, masked_softmax=zeroed_afterwards)),
    Mutant("softmax over the queries", patch(attention, masked_softmax=over_queries)),
    Mutant(
        "softmax in bfloat16",
        patch(attention, masked_softmax=lambda f: lambda s, mask: f(s.astype(jnp.bfloat16), mask).astype(s.dtype)),
    ),
    Mutant("padding mask inverted", patch(masks, padding_mask=lambda original: lambda valid: original(~valid))),
    Mutant("padding mask ignored", patch(masks, padding_mask=lambda original: lambda valid: original(jnp.ones_like(valid)))),
    Mutant("causal mask one too wide", causal_off_by(1)),
    Mutant("causal mask one too narrow", causal_off_by(-1)),
]

EMBEDDINGS = [
    Mutant("learned positions off by one", positions_off_by(1)),
    Mutant("learned positions off by two", positions_off_by(2)),
    Mutant("sinusoid positions off by one", positions_off_by(1), "rich"),
    Mutant("sinusoid positions off by two", positions_off_by(2), "rich"),
    Mutant("sinusoid in blocks", patch(embeddings.TABLES, sinusoid=in_blocks), "rich"),
    Mutant("embedding scale missing", config(embedding_scale=False), "rich"),
]

SEQUENCE_TO_SEQUENCE = [
    Mutant(name, injection, "seq2seq")
    for name, injection in {
        "cross-attention: query and key swapped": swapped("query", "key", "cross_attention"),
        "cross-attention: key and value swapped": swapped("key", "value", "cross_attention"),
        "cross-attention: key bias dropped": without("decoder.blocks.cross_attention.key.bias"),
        "cross-attention: value bias dropped": reads_as(0.0, "cross_attention.value.bias"),
        "cross-attention: output bias dropped": reads_as(0.0, "cross_attention.out.bias"),
        "cross-attention: self-attention's weights": swapped("attention", "cross_attention", "decoder."),
        "cross-attention: query without its norm": patch(blocks.Block, _before=query_as_it_is),
        "memory mask ignored": reads_memory_through(lambda source, target: None),
        "memory mask inverted": reads_memory_through(lambda source, target: ~source),
        "memory mask is the target's": reads_memory_through(padded_to),
        "no final norm on the memory": patch(encoder_decoder.EncoderDecoder, encode=without_norm("encoder_norm")),
        "the decoder's final norm on the memory": swapped("encoder_norm", "decoder_norm"),
        "causal mask in the encoder": patch(encoder_decoder.EncoderDecoder, encode=causal_encoder),
        "causal mask missing in the decoder": causal_off_by(1000, encoder_decoder),
        "causal mask of the decoder one too wide": causal_off_by(1, encoder_decoder),
        "target positions one ahead of the source's": patch(embeddings.InputEmbedding, __call__=target_one_ahead),
        "position offset missing": positions_off_by(-2),
        "the source's position table for the target": read_as("embed.position.table", "source_embed.position.table"),
        "embedding norm dropped": patch(embeddings.InputEmbedding, __call__=without_norm("norm")),
        "embedding norm before the position": patch(embeddings.InputEmbedding, __call__=norm_before_position),
        "the source's embedding norm for the target": read_as("embed.norm.scale", "source_embed.norm.scale"),
        "shared table scaled twice": patch(embeddings.InputEmbedding, __call__=shared_scaled_twice),
        "head bias dropped": reads_as(0.0, "head.bias"),
    }.items()
] + [
    Mutant("source embedding for the target", read_as("embed.token.table", "source_embed.token.table"), "separate"),
    Mutant("final norm after post-norm blocks", patch(encoder_decoder.EncoderDecoder, encode=normed_once_more), "separate"),
]

ENCODERS = [
    Mutant("token types ignored", patch(embeddings.InputEmbedding, __call__=of_one_type), "encoder"),
    Mutant("pooler without its tanh", instead(encoder.Encoder, pool=lambda self, states: self.pooler(states[:, 0])), "encoder"),
    Mutant("last state pooled for the first", patch(encoder.Encoder, pool=last_first), "encoder"),
]

GRADIENTS = [
    Mutant("no gradient for the padding id's row", patch(embeddings.Embedding, encode=padding_row_frozen)),
    Mutant("weight gradient halved", patch(matmul, _weight_tangent=lambda f: lambda x, dw: 0.5 * f(x, dw))),
]


def over_padding(original: Callable[..., tuple[Array, Array]]) -> Callable[..., tuple[Array, Array]]:
    """The loss is divided by all targets, padding among them."""
    return lambda logits, targets, **rules: (original(logits, targets, **rules)[0], jnp.full((), targets.size, logits.dtype))


def spread_over_all(original: Callable[..., tuple[Array, Array]]) -> Callable[..., tuple[Array, Array]]:
    """Label smoothing by epsilon / K, whatever was asked for."""
    return lambda logits, targets, **rules: original(logits, targets, **(rules | {"spread": "all"}))


def epsilon_in_the_root(config: OptimizerConfig) -> list[optax.GradientTransformation]:
    """m / sqrt(v + epsilon) for m / (sqrt(v) + epsilon)."""
    return [optax.scale_by_adam(config.beta1, config.beta2, eps=0.0, eps_root=config.epsilon)]


def unscaled(original: Callable[..., Array]) -> Callable[..., Array]:
    """Dropout that does not make up for what it drops."""
    return lambda x, rate, key: original(x, rate, key) * (1 - rate)


def everywhere(tree: PyTree) -> PyTree:
    """Weight decay on every tensor."""
    return jax.tree.map(lambda leaf: True, tree)


def one_step_ahead(original: Callable[[ScheduleConfig], Schedule]) -> Callable[[ScheduleConfig], Schedule]:
    """The first step takes the second step's rate."""
    return lambda config: lambda step: original(config)(step + 1)


LOSSES = [
    Mutant("label smoothing epsilon/K for epsilon/(K-1)", patch(losses, cross_entropy=spread_over_all), "sgd"),
    Mutant("label smoothing epsilon/K for epsilon/(K-2)", patch(losses, cross_entropy=spread_over_all), "adam"),
    Mutant("loss averaged over padding", patch(losses, cross_entropy=over_padding), "sgd"),
    Mutant("dropout without its scale", patch(blocks, dropout=unscaled), "sgd"),
]

OPTIMIZERS = [
    Mutant("Adam epsilon inside the root", instead(optimizers.DIRECTIONS, adam=epsilon_in_the_root), "adam"),
    Mutant("coupled for decoupled decay", instead(optimizers.DIRECTIONS, adamw=optimizers.DIRECTIONS["adam"]), "adamw"),
    Mutant(
        "decay on gains and biases", instead(optimizers, matrices=lambda tree: jax.tree.map(lambda leaf: True, tree)), "adamw"
    ),
    Mutant("clip without the 1e-6", instead(optimizers, clip=optax.clip_by_global_norm), "sgd"),
    Mutant("learning rate one step ahead", patch(optimizers, make_schedule=one_step_ahead), "adamw"),
    Mutant("Noam's rate one step ahead", patch(optimizers, make_schedule=one_step_ahead), "noam"),
    Mutant("encoder and decoder with one key", patch(encoder_decoder, split_key=lambda f: lambda key, n: [key] * n), "noam"),
]

MUTANTS = (
    *ACTIVATIONS,
    *NORMS,
    *PROJECTIONS,
    *ATTENTION,
    *EMBEDDINGS,
    *SEQUENCE_TO_SEQUENCE,
    *ENCODERS,
    *GRADIENTS,
    *LOSSES,
    *OPTIMIZERS,
)
