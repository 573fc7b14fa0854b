"""Mutants of how encoder-decoders and encoders are put together."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxformer.evaluation.inject import Injection, Mutant, config, instead, patch, read_as, reads_as, swapped, without
from jaxformer.evaluation.mutants.attention import NO_BIAS, ONE_MORE, causal_off_by, weight_of
from jaxformer.evaluation.mutants.parts import positions_off_by
from jaxformer.evaluation.outcome import choice
from jaxformer.models import encoder, encoder_decoder
from jaxformer.nn import blocks, embeddings, heads, masks, norms


def without_norm(name: str) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Disable the norm with this name in a method of a module."""

    def replacement(original: Callable[..., Array]) -> Callable[..., Array]:
        def call(self: Any, *args: Any, **rest: Any) -> Array:
            plain = jax.tree.map(lambda leaf: leaf, self)
            setattr(plain, name, norms.Identity())
            return original(plain, *args, **rest)

        return call

    return replacement


def norm_before_position(original: Callable[..., Array]) -> Callable[..., Array]:
    """Compute norm(token) + position in place of norm(token + position)."""

    def call(self: Any, ids: Array, positions: Array, *, token: Any = None, **rest: Any) -> Array:
        alone = (self.token if token is None else token).encode(ids) * self.scale
        return self.norm(alone) + without_norm("norm")(original)(self, ids, positions, token=token, **rest) - alone

    return call


def target_one_ahead(original: Callable[..., Array]) -> Callable[..., Array]:
    """Shift the target's positions by one, but not the source's; the call for the source is the one given a shared table."""
    return lambda self, ids, positions, *, token=None, **rest: original(
        self, ids, positions + int(token is None), token=token, **rest
    )


def shared_scaled_twice(original: Callable[..., Array]) -> Callable[..., Array]:
    """Scale the shared embedding table before it is scaled again."""
    return lambda self, *args, token=None, **rest: original(
        self, *args, token=jax.tree.map(lambda leaf: leaf * self.scale, token), **rest
    )


def reads_memory_through(change: Callable[[Array, Array], Array | None]) -> Injection:
    """Change cross-attention's mask to change(source mask, target mask)."""

    def replacement(original: Callable[..., Array]) -> Callable[..., Array]:
        return lambda self, target, memory, *, mask, memory_mask, **rest: original(
            self, target, memory, mask=mask, memory_mask=change(memory_mask, mask), **rest
        )

    return patch(encoder_decoder.EncoderDecoder, decode=replacement)


def padded_to(source: Array, target: Array) -> Array:
    """Return the target's mask, padded to the width of the source's."""
    return jnp.pad(target, [(0, 0)] * 3 + [(0, source.shape[-1] - target.shape[-1])], constant_values=True)


def causal_encoder(original: Callable[..., Array]) -> Callable[..., Array]:
    """Mask the source causally."""
    return lambda self, source, *, mask, **rest: original(
        self, source, mask=masks.combine(masks.causal_mask(source.shape[1]), mask), **rest
    )


def query_as_it_is(original: Callable[..., Array]) -> Callable[..., Array]:
    """Skip the norm before cross-attention in pre-norm blocks."""
    return lambda self, norm, x: x if norm is self.cross_attention_norm else original(self, norm, x)


def always_normed(original: Callable[..., Array]) -> Callable[..., Array]:
    """Apply a LayerNorm, without weights, where a sub-layer has none."""
    return lambda self, norm, x: norms.layer_norm(x, 1e-5) if isinstance(norm, norms.Identity) else original(self, norm, x)


def normed_once_more(original: Callable[..., Array]) -> Callable[..., Array]:
    """Apply one more LayerNorm, without weights, to the memory."""
    return lambda self, *args, **rest: norms.layer_norm(original(self, *args, **rest), self.config.norm_epsilon)


def of_one_type(original: Callable[..., Array]) -> Callable[..., Array]:
    """Give every token the token type 0."""
    return lambda self, *args, token_types, **rest: original(self, *args, **rest)


def last_first(original: Callable[..., Array]) -> Callable[..., Array]:
    """Pool the last state in place of the first."""
    return lambda self, states: original(self, states[:, ::-1])


SEQUENCE_TO_SEQUENCE = [
    Mutant(name, injection, "seq2seq", *named)
    for name, (injection, *named) in {
        "cross-attention: query and key swapped": (
            swapped("query", "key", "cross_attention"),
            r"cross_attention\.(query|key)",
            weight_of("key", "query"),
        ),
        "cross-attention: key and value swapped": (
            swapped("key", "value", "cross_attention"),
            r"cross_attention\.(key|value)",
            weight_of("key", "value"),
        ),
        "cross-attention: key bias dropped": (without("decoder.blocks.cross_attention.key.bias"),),
        "cross-attention: value bias dropped": (
            reads_as(0.0, "cross_attention.value.bias"),
            r"cross_attention\.value",
            NO_BIAS,
        ),
        "cross-attention: output bias dropped": (
            reads_as(0.0, "cross_attention.out.bias"),
            r"cross_attention\.out",
            NO_BIAS,
        ),
        "cross-attention: self-attention's weights": (
            swapped("attention", "cross_attention", "decoder."),
            r"decoder\.blocks\.\d\.(cross_)?attention\.(query|key|value|out)",
            weight_of("decoder.blocks.*.attention.*", "decoder.blocks.*.cross_attention.*"),
        ),
        "cross-attention: query without its norm": (
            patch(blocks.Block, _before=query_as_it_is),
            r"decoder\.blocks\.\d",
            "sum.factors 'input=0, 1' 'attention=0, 1' 'cross_attention_norm=1, 0' 'at=input of *.cross_attention'",
        ),
        "memory mask ignored": (
            reads_memory_through(lambda source, target: None),
            "cross_attention",
            choice("attention", "mask=as given, none"),
        ),
        "memory mask inverted": (
            reads_memory_through(lambda source, target: ~source),
            "cross_attention",
            choice("attention", "mask=as given, inverted"),
        ),
        "memory mask is the target's": (reads_memory_through(padded_to), "cross_attention"),
        "no final norm on the memory": (
            patch(encoder_decoder.EncoderDecoder, encode=without_norm("encoder_norm")),
            "the model",
            "sum.factors 'encoder=0, 1' 'encoder_norm=1, 0'",
        ),
        "the decoder's final norm on the memory": (
            swapped("encoder_norm", "decoder_norm"),
            "encoder_norm|decoder_norm",
            choice("norm", "gain=as it is, of *coder_norm", "bias=added, of *coder_norm"),
        ),
        "causal mask in the encoder": (
            patch(encoder_decoder.EncoderDecoder, encode=causal_encoder),
            r"encoder\.blocks\.\d\.attention",
            choice("attention", "mask=as given, as given, causal"),
        ),
        "causal mask missing in the decoder": (
            causal_off_by(1000),
            r"decoder\.blocks\.\d\.attention",
            choice("attention", "mask=as given, causal, as given"),
        ),
        "causal mask of the decoder one too wide": (
            causal_off_by(1),
            r"decoder\.blocks\.\d\.attention",
            ONE_MORE,
        ),
        "target positions one ahead of the source's": (
            patch(embeddings.InputEmbedding, __call__=target_one_ahead),
            "embed",
            "ids.shifted by=1 'at=input of embed.position'",
        ),
        "position offset missing": (
            positions_off_by(-2),
            "embed|source_embed",
            "ids.shifted by=-2 'at=input of *embed.position'",
        ),
        "the source's position table for the target": (
            read_as("embed.position.table", "source_embed.position.table"),
            r"embed\.position",
            choice("table of embeddings", "table=as it is, of source_embed.position"),
        ),
        "embedding norm dropped": (
            patch(embeddings.InputEmbedding, __call__=without_norm("norm")),
            "embed|source_embed",
            "children.left_out at=norm | sum.factors 'token*=0, 4.899' 'position=0, 1' 'norm=1, 0'",
        ),
        "embedding norm before the position": (
            patch(embeddings.InputEmbedding, __call__=norm_before_position),
            "embed|source_embed",
            "sum.factors 'position=0, 1' & sum.factors 'position=1, 0' 'at=input of *.norm'"
            " | sum.factors 'position=0, 1' & operations.operand_alone ordinal=first 'at=`x + self.position*'"
            " | parameters.choice was=False other=True at=last",
        ),
        "the source's embedding norm for the target": (
            read_as("embed.norm.scale", "source_embed.norm.scale"),
            r"embed\.norm",
            choice("norm", "gain=as it is, of source_embed.norm"),
        ),
        "shared table scaled twice": (
            patch(embeddings.InputEmbedding, __call__=shared_scaled_twice),
            "source_embed",
            "parameters.number was=4.899 value=24 at=scale",
        ),
        "head bias dropped": (reads_as(0.0, "head.bias"), "head", NO_BIAS),
    }.items()
] + [
    Mutant(
        "source embedding for the target",
        read_as("embed.token.table", "source_embed.token.table"),
        "separate",
        r"embed\.token",
        choice("table of embeddings", "table=as it is, of source_embed.token"),
    ),
    Mutant(
        "final norm after post-norm blocks",
        patch(encoder_decoder.EncoderDecoder, encode=normed_once_more),
        "separate",
        "the model",
    ),
]

GOES_ON = "sum.factors 'blocks.0 (call 1)=0, 1' 'blocks.0 (call 2)=1, 0'"
"""Torch goes on with the output of the third call of one block, counted from 0, and jax with that of the second."""
LAST = "parameters.choice was=True other=False at=last"
ENCODERS = [
    Mutant(
        "token types ignored",
        patch(embeddings.InputEmbedding, __call__=of_one_type),
        "encoder",
        "embed",
        "children.rows how=constant number=0 at=token_type",
    ),
    Mutant(
        "pooler without its tanh",
        instead(encoder.Encoder, pool=lambda self, states: self.pooler(states[:, 0])),
        "encoder",
        r"the model \(call 1\)",
        choice("activation", "activation=tanh, none"),
    ),
    Mutant(
        "last state pooled for the first",
        patch(encoder.Encoder, pool=last_first),
        "encoder",
        r"the model \(call 1\)",
        "operations.pooling which=last axis=1",
    ),
    Mutant("positions before the norm of embeddings", config(positions_last=False), "switched", "embed", LAST),
    Mutant("one layer fewer of those that share their parameters", config(n_layers=2), "shared", "stack", GOES_ON),
    Mutant(
        "masked_lm without the norm of its head",
        patch(heads.HeadTransform, __call__=without_norm("norm")),
        "masked",
        "head.transform",
        "children.left_out at=norm",
    ),
    Mutant("a norm before the first attention", patch(blocks.Block, _before=always_normed), "modern", r"parts\.0\.blocks\.0"),
    Mutant(
        "labels of states without the head's dense layer",
        patch(heads.HeadTransform, __call__=lambda original: lambda self, x: self.norm(x)),
        "modern",
        "head.transform",
        "pairs.neither 'at=`self.dense*' 'at=`ACTIVATIONS*'",
    ),
    Mutant(
        "masked_lm with the blocks' activation in its head",
        config(head_activation=None),
        "masked",
        "head.transform",
        choice("activation", "activation=relu, gelu"),
    ),
    Mutant("bias of masked_lm's logits dropped", reads_as(0.0, "head.bias"), "masked", "head", NO_BIAS),
    Mutant(
        "pooler with another activation",
        config(pooler_activation="tanh"),
        "labelled",
        "the model",
        "operations.activation how=tanh",
    ),
    Mutant(
        "labels of the state that is not pooled",
        instead(encoder.Encoder, pool=lambda self, states: states[:, 0]),
        "labelled",
        "the model",
        "pairs.neither 'at=`self.pooler*' 'at=`ACTIVATIONS*'",
    ),
]

MUTANTS = (*SEQUENCE_TO_SEQUENCE, *ENCODERS)
