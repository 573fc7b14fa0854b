"""Mutants of encoders of images, and of images and texts in one space."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.evaluation.inject import Injection, Mutant, config, instead, patch, reads_as
from jaxformer.evaluation.mutants.attention import causal_off_by
from jaxformer.evaluation.mutants.models import without_norm
from jaxformer.evaluation.outcome import choice
from jaxformer.models import dual_encoder, vision_encoder
from jaxformer.models.dual_encoder import DualEncoder
from jaxformer.nn import image_pooling, images


def tokens_last(tokens: list[Array], x: Array) -> Array:
    """Put learned tokens after the patches."""
    return jnp.concatenate([x, *(jnp.broadcast_to(token[None], (len(x), *token.shape)) for token in tokens)], 1)


def column_by_column(original: Callable[..., Array]) -> Callable[..., Array]:
    """Cut an image into patches from top to bottom, then from left to right."""

    def cut_patches(pixels: Array, size: tuple[int, int]) -> Array:
        down, across = (side // part for side, part in zip(pixels.shape[2:], size, strict=True))
        found = original(pixels, size)
        return found.reshape(len(found), down, across, -1).swapaxes(1, 2).reshape(found.shape)

    return cut_patches


def channels_last(original: Callable[..., Array]) -> Callable[..., Array]:
    """Read the pixels of a patch with their channels last."""

    def cut_patches(pixels: Array, size: tuple[int, int]) -> Array:
        found = original(pixels, size)
        return found.reshape(*found.shape[:2], pixels.shape[1], -1).swapaxes(2, 3).reshape(found.shape)

    return cut_patches


def unmasked(original: Callable[..., Array]) -> Callable[..., Array]:
    """Leave the masked patches as they are."""
    return lambda self, pixels, masked, key=None: original(self, pixels, None, key)


def without_exp(self: Any, first: Array, second: Array) -> Array:
    """Multiply cosines by the learned scale itself, not by its exponential."""
    logits = first @ second.T * self.logit_scale[...]
    return logits if self.logit_bias is None else logits + self.logit_bias[...]


def by_highest_id(self: Any, states: Array, tokens: Array) -> Array:
    """Pool a text by the highest id, where another id ends it."""
    return jnp.take_along_axis(states, tokens.argmax(1)[:, None, None], 1)[:, 0]


def angles(change: Callable[[Array, VisionEncoderConfig], Array]) -> Injection:
    """Change the rows and columns by which tokens are rotated."""
    return patch(vision_encoder, patch_positions=lambda original: lambda config: change(original(config), config))


def from_the_corner(positions: Array, config: VisionEncoderConfig) -> Array:
    """Measure rows and columns at a patch's first pixel, not in its middle."""
    patches = positions[:, config.first_patch :] - 2 * jnp.pi / jnp.asarray(config.grid)
    return jnp.concatenate([positions[:, : config.first_patch], patches], 1)


def from_the_class_token(positions: Array, config: VisionEncoderConfig) -> Array:
    """Rotate tokens from the first one on, and leave the last patches as they are."""
    return jnp.roll(positions, -config.first_patch, 1)


PLACES = [
    Mutant(
        "columns before rows",
        angles(lambda positions, config: positions[..., ::-1]),
        "dinov3",
        "the model",
        "order.along_an_axis axis=2 'order=shifted by 1 of 2, the last first' pattern=exchanged by=0 'at=input of stack'",
    ),
    Mutant(
        "patches placed by their corner",
        angles(from_the_corner),
        "dinov3",
        "the model",
        "operations.left_out at=*",
    ),
    Mutant(
        "rotation from the class token on", angles(from_the_class_token), "dinov3", "the model", "convolutions.flipped at=*"
    ),
]

ENCODERS = [
    Mutant("class token after the patches", instead(images, _before=tokens_last), "vit", "embed"),
    Mutant(
        "patches column by column",
        patch(images, cut_patches=column_by_column),
        "vit",
        "patch",
        "order.along_an_axis axis=1 'order=0, 4, 8, 1, *' pattern=strided by=3",
    ),
    Mutant("channels of a patch last", patch(images, cut_patches=channels_last), "vit", "patch"),
    Mutant(
        "masked patches seen",
        patch(images.ImageEmbedding, __call__=unmasked),
        "vit",
        "embed",
        "masks.given_left_out how=left_out true=hidden unseen=True 'at=input 1'",
    ),
    Mutant(
        "layer scale left out",
        reads_as(1.0, "attention_layer_scale.scale", "feed_forward_layer_scale.scale"),
        "vit",
        "attention_layer_scale|feed_forward_layer_scale",
        "parameters.read how=ones at=weight",
    ),
    Mutant(
        "GELU by erf for quick GELU",
        config(activation="gelu"),
        "vit",
        "feed_forward",
        choice("activation", "activation=quick gelu, gelu"),
    ),
]

TOWERS = [
    Mutant(
        "norm before the blocks left out",
        patch(images.ImageEmbedding, __call__=without_norm("norm")),
        "clip",
        r"vision\.embed",
        "children.left_out at=norm",
    ),
    Mutant(
        "texts that see later tokens",
        causal_off_by(1000),
        "clip",
        r"text\.stack\.blocks\.\d\.attention",
        choice("attention", "mask=as given, causal, as given"),
    ),
    Mutant("a text pooled by the highest id", instead(DualEncoder, _pool=by_highest_id), "clip"),
    Mutant("scale of logits without exp", instead(DualEncoder, compare=without_exp), "clip"),
    Mutant("vectors of any length", instead(dual_encoder, unit_norm=lambda x: x), "clip"),
    Mutant(
        "norm of the attention pooling left out",
        patch(image_pooling.AttentionPooling, __call__=without_norm("norm")),
        "siglip",
        "pooler",
        "sum.factors 'attention=0, 1' 'norm=1, 0' 'at=input of vision.pooler.feed_forward'",
    ),
    Mutant("bias of logits left out", reads_as(0.0, "logit_bias"), "siglip"),
    Mutant("a text pooled by its first token", instead(DualEncoder, _pool=lambda self, states, tokens: states[:, 0]), "siglip"),
]

MUTANTS = (*PLACES, *ENCODERS, *TOWERS)
