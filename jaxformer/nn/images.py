"""Image -> vectors of its patches, with learned tokens before them (Dosovitskiy et al. 2020, section 3.1)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.nn.dropout import dropout
from jaxformer.nn.embeddings import Embedding
from jaxformer.nn.linear import Linear
from jaxformer.nn.norms import make_norm


def cut_patches(images: Float[Array, "B c height width"], size: tuple[int, int]) -> Float[Array, "B M X"]:
    """Cut images into patches of this height and width, row by row; a patch has its channels one after the other.

    Rows and columns that no whole patch fits into are left out.
    """
    batch, channels, *sides = images.shape
    (down, across), (height, width) = (side // part for side, part in zip(sides, size, strict=True)), size
    whole = images[:, :, : down * height, : across * width].reshape(batch, channels, down, height, across, width)
    return whole.transpose(0, 2, 4, 1, 3, 5).reshape(batch, down * across, channels * height * width)


class PatchProjection(Linear):
    """Linear layer of every patch: a convolution with a stride of one patch, as the product with one matrix."""

    def __init__(self, config: VisionEncoderConfig):
        self.patch_size = config.patch_size
        super().__init__(config.channels * config.patch_size[0] * config.patch_size[1], config.d_model, config.patch_bias)

    def __call__(self, images: Float[Array, "B c height width"]) -> Float[Array, "B M D"]:
        return super().__call__(cut_patches(images, self.patch_size))


class ImageEmbedding(nnx.Module):
    """dropout(norm([class token, distillation token, patches] + position)), with register tokens before the patches.

    The norm is there with `embedding_norm` only, positions with `learned_positions`; register tokens have none.
    """

    def __init__(self, config: VisionEncoderConfig):
        width = config.d_model
        self.dropout_rate = config.embedding_dropout
        self.patch = PatchProjection(config)
        self.class_token = Embedding(1, width) if config.class_token else None
        self.distillation_token = Embedding(1, width) if config.distillation_token else None
        self.register_tokens = Embedding(config.register_tokens, width) if config.register_tokens else None
        self.mask_token = Embedding(1, width) if config.mask_token else None
        places = config.patches + config.class_token + config.distillation_token
        self.position = Embedding(places, width) if config.learned_positions else None
        self.norm = make_norm(config.norm if config.embedding_norm else "none", config)

    def __call__(
        self, images: Float[Array, "B c height width"], masked: Bool[Array, "B M"] | None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "B T D"]:
        """Return the vectors of these images; where `masked` is True, the mask token takes the place of a patch."""
        x = self.patch(images)
        if masked is not None and self.mask_token is not None:
            x = jnp.where(masked[..., None], self.mask_token.table[...], x)
        first = [token.table[...] for token in (self.class_token, self.distillation_token) if token is not None]
        x = _before(first, x)
        x = x if self.position is None else x + self.position.table[...][None]
        if self.register_tokens is not None:
            tokens, patches = jnp.split(x, [len(first)], axis=1)
            x = jnp.concatenate([tokens, _before([self.register_tokens.table[...]], patches)], 1)
        return dropout(self.norm(x), self.dropout_rate, key)


def _before(tokens: list[Array], x: Array) -> Array:
    """Put learned tokens before the vectors of every image."""
    rows = [jnp.broadcast_to(token[None], (x.shape[0], *token.shape)) for token in tokens]
    return jnp.concatenate([*rows, x], 1) if rows else x
