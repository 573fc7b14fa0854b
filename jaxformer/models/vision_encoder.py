"""Vision encoder: every patch of an image sees all others (Dosovitskiy et al. 2020)."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.models.init import Rngs, initialise
from jaxformer.models.shown import Shown
from jaxformer.nn.dropout import split_key
from jaxformer.nn.image_pooling import make_image_head, make_pooler
from jaxformer.nn.images import ImageEmbedding
from jaxformer.nn.norms import make_norm
from jaxformer.nn.rotary import patch_positions
from jaxformer.nn.stack import Stack
from jaxformer.validation.arrays import Images, Masked, as_array, check_not_torch, check_values
from jaxformer.validation.images import check_images, check_masked, check_states
from jaxformer.validation.inputs import check_config


class VisionEncoder(Shown):
    """`logits = model(images)` with a head, else `states = model(images)`; with a key, dropout is on.

    `encode` gives the states whether there is a head or not, and `pool` makes one vector per image of them. Images are floats
    `B c height width`, channels first as in torch.
    """

    def __init__(self, config: VisionEncoderConfig, *, rngs: Rngs | None = None):
        self.config = check_config(config, VisionEncoderConfig)
        self.embed = ImageEmbedding(config)
        self.stack = Stack(config)
        self.norm = make_norm(config.final_norm, config)
        self.pooler = make_pooler(config)
        self.head = make_image_head(config)
        initialise(self, config, rngs)

    def __call__(
        self, images: Images, *, masked: Masked | None = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "B *rows"]:
        """Return the head's logits `B C`, or without a head the state of every token. Arguments are those of `encode`."""
        states = self.encode(images, masked=masked, key=key)
        return states if self.head is None else self.head(self.pool(states), states)

    def encode(self, images: Images, *, masked: Masked | None = None, key: PRNGKeyArray | None = None) -> Float[Array, "B T D"]:
        """Return the state of every token of an image: the class token, others that are learned, and the patches row by row.

        `masked` (one bool for each patch) is True where the mask token takes the place of a patch.
        """
        embed_key, stack_key = split_key(key, 2)
        states = self.stack(self._embed(images, masked, embed_key), key=stack_key, positions=patch_positions(self.config))
        return states if self.config.pooled_norm else self.norm(states)

    def pool(self, states: Float[Array, "..."] | Float[np.ndarray, "..."]) -> Float[Array, "B X"]:
        """Return the vector of each image, of the states `B T D` that `encode` returns."""
        check_states(states, self.config)
        states = jnp.asarray(states)
        if self.pooler is not None:
            return self.pooler(states)
        mean = states[:, self.config.first_patch :].mean(1)
        match self.config.pooling:
            case "mean":
                return mean
            case "class_mean":
                return jnp.concatenate([states[:, 0], mean], -1)
        return self.norm(states[:, 0]) if self.config.pooled_norm else states[:, 0]

    def attention_weights(self, images: Images, *, masked: Masked | None = None) -> Float[Array, "L B N T T"]:
        """Return the attention weights of every layer, for plotting."""
        return self.stack.weights(self._embed(images, masked, None), positions=patch_positions(self.config)).own

    def hidden_states(self, images: Images, *, masked: Masked | None = None) -> Float[Array, "_ B T D"]:
        """Return the embedded image and the output of every layer, L + 1 in all; none has the last norm, as in transformers."""
        return self.stack.hidden_states(self._embed(images, masked, None), positions=patch_positions(self.config))

    def _embed(self, images: Images, masked: Masked | None, key: PRNGKeyArray | None) -> Array:
        check_not_torch(images=images, masked=masked)
        check_images(as_array(images) if hasattr(images, "dtype") else images, self.config)
        check_masked(masked, images.shape[0], self.config)
        check_values(self.embed)
        return self.embed(jnp.asarray(images), None if masked is None else jnp.asarray(masked), key)
