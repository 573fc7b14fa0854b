"""Dual encoder of images and texts, whose vectors lie in one space (Radford et al. 2021; Zhai et al. 2023)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxformer.config.dual import DualEncoderConfig
from jaxformer.models.encoder import Encoder
from jaxformer.models.init import Rngs, Undrawn, initialise
from jaxformer.models.shown import Shown
from jaxformer.models.vision_encoder import VisionEncoder
from jaxformer.nn.dropout import split_key
from jaxformer.nn.linear import Linear
from jaxformer.nn.pooling import unit_norm
from jaxformer.validation.arrays import Images, Tokens, as_array
from jaxformer.validation.images import check_ends
from jaxformer.validation.inputs import check_config


class DualEncoder(Shown):
    """`logits = model(images, tokens)`, one for each pair of an image and a text; with a key, dropout is on.

    `embed_images` and `embed_texts` give the vectors alone, of length 1, and `compare` the logits of such vectors.
    """

    def __init__(self, config: DualEncoderConfig, *, rngs: Rngs | None = None):
        self.config = check_config(config, DualEncoderConfig)
        self.vision = VisionEncoder(config.vision, rngs=Undrawn())
        self.text = Encoder(config.text, rngs=Undrawn())
        self.image_projection = Linear(config.vision.pooled_width, config.width, False) if config.image_projection else None
        self.text_projection = Linear(config.text.d_model, config.width, config.text_projection_bias)
        self.logit_scale = nnx.Param(jnp.zeros((), jnp.float32))
        self.logit_bias = nnx.Param(jnp.zeros((), jnp.float32)) if config.logit_bias is not None else None
        initialise(self, config, rngs)

    def __call__(
        self,
        images: Images,
        tokens: Tokens,
        *,
        mask: Bool[Array, "..."] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B X"]:
        """Return the logits of every pair of B images and X texts, image by row. Arguments are those of `embed_texts`."""
        image_key, text_key = split_key(key, 2)
        return self.compare(self.embed_images(images, key=image_key), self.embed_texts(tokens, mask=mask, key=text_key))

    def embed_images(self, images: Images, *, key: PRNGKeyArray | None = None) -> Float[Array, "B P"]:
        """Return the vector of each image, of length 1."""
        x = self.vision.pool(self.vision.encode(images, key=key))
        return unit_norm(x if self.image_projection is None else self.image_projection(x))

    def embed_texts(
        self, tokens: Tokens, *, mask: Bool[Array, "..."] | None = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "X P"]:
        """Return the vector of each text of `X T` ids, of length 1; `mask` (`X N|1 T S`, True = may attend) hides padding."""
        check_ends(as_array(tokens), self.config)
        return unit_norm(self.text_projection(self._pool(self.text(tokens, mask=mask, key=key), jnp.asarray(tokens))))

    def compare(self, images: Float[Array, "B P"], texts: Float[Array, "X P"]) -> Float[Array, "B X"]:
        """Return exp(logit_scale) * images @ texts.T [+ logit_bias], of vectors of length 1."""
        logits = images @ texts.T * jnp.exp(self.logit_scale[...])
        return logits if self.logit_bias is None else logits + self.logit_bias[...]

    def _pool(self, states: Array, tokens: Array) -> Array:
        """Return the state that stands for each text."""
        if self.config.text_pooling == "last":
            return states[:, -1]
        marked = tokens if self.config.end is None else tokens == self.config.end
        return jnp.take_along_axis(states, marked.argmax(1)[:, None, None], 1)[:, 0]
