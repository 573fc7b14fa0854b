"""Cross-entropy as a sum and its normaliser: whoever averages over devices or micro-batches divides once."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxformer.errors import ConfigError
from jaxformer.nn.precision import wide
from jaxformer.settings import IGNORE_INDEX, Spread


def cross_entropy(
    logits: Float[Array, "*rows V"],
    targets: Int[Array, "*rows"],
    *,
    ignore_index: int = IGNORE_INDEX,
    class_weights: Float[Array, " V"] | None = None,
    smoothing: float = 0.0,
    spread: Spread = "all",
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The summed loss, and what a mean divides by: the number of targets, or the sum of their class weights.

    The wanted class has probability 1 - smoothing, and the rest is spread evenly over `all` K classes (torch; Szegedy et
    al. 2016), over the K - 1 `others`, or over the K - 2 `others_but_padding`, with `ignore_index` as the padding class.
    A target that is no class gives NaN.
    """
    logits = wide(logits)
    classes = logits.shape[-1]
    # From the row's largest logit on: where the model is sure, the loss is a small difference of two large logits.
    largest = jax.lax.stop_gradient(logits.max(-1))
    below = logits - largest[..., None]
    normalizer = jnp.log(jnp.exp(below).sum(-1))
    kept = targets != ignore_index
    known = (targets >= 0) & (targets < classes)
    index = jnp.where(known, targets, 0)
    weights = jnp.ones(classes, logits.dtype) if class_weights is None else class_weights.astype(logits.dtype)
    weight = weights[index]

    def surprise(index, weight):
        return weight * (normalizer - (jnp.take_along_axis(logits, index[..., None], -1)[..., 0] - largest))

    loss = wanted = surprise(index, weight)
    if smoothing:
        rest = (
            weights.sum() * normalizer - below @ weights if class_weights is not None else classes * normalizer - below.sum(-1)
        )
        sharers = classes
        if spread != "all":
            rest, sharers = rest - wanted, sharers - 1
        if spread == "others_but_padding":
            if not 0 <= ignore_index < classes:
                raise ConfigError(f"ignore_index = {ignore_index} is no class; others_but_padding needs the padding's id")
            rest, sharers = rest - surprise(jnp.full_like(index, ignore_index), weights[ignore_index]), sharers - 1
        loss = (1 - smoothing) * wanted + smoothing / sharers * rest
    loss = jnp.where(known, loss, jnp.full_like(loss, jnp.nan))
    zero = jnp.zeros_like(loss)
    return jnp.where(kept, loss, zero).sum(), jnp.where(kept, weight, zero).sum()


def mean(total: Float[Array, "*shape"], normaliser: Float[Array, ""]) -> Float[Array, "*shape"]:
    """total / normaliser; 0 where there was nothing to count."""
    return total / jnp.where(normaliser == 0, jnp.ones_like(normaliser), normaliser)
