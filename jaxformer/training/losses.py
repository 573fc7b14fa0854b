"""Losses as a sum and its normaliser: a mean over devices or micro-batches divides once."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxformer.config.settings import IGNORE_INDEX, LEFT_OUT, Spread
from jaxformer.errors import ConfigError
from jaxformer.nn.precision import wide


def cross_entropy(
    logits: Float[Array, "*rows V"],
    targets: Int[Array, "*rows"],
    *,
    ignore_index: int = IGNORE_INDEX,
    class_weights: Float[Array, " V"] | None = None,
    smoothing: float = 0.0,
    spread: Spread = "all",
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the summed loss and the divisor of a mean: the number of targets, or the sum of their class weights.

    The target's class has probability 1 - smoothing, and the rest is spread evenly over `all` K classes (torch; Szegedy et al.
    2016), over the K - 1 `others`, or over the K - 2 `others_but_padding`, with `ignore_index` as the padding class. A target
    that is not a class gives NaN.
    """
    losses, weights = target_losses(logits, targets, ignore_index, class_weights, smoothing, spread)
    return losses.sum(), weights.sum()


def kl_divergence(
    logits: Float[Array, "*rows V"],
    targets: Int[Array, "*rows"],
    *,
    ignore_index: int = IGNORE_INDEX,
    smoothing: float = 0.0,
    spread: Spread = "others_but_padding",
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the summed Kullback-Leibler divergence of the model from the smoothed targets, and the number of targets.

    Equals torch's KLDivLoss(reduction="sum") as in the Annotated Transformer, where the wanted distribution of padding is zero:
    cross-entropy minus the entropy of the wanted distribution. The gradient is cross-entropy's.
    """
    losses, counted = target_losses(logits, targets, ignore_index, None, smoothing, spread)
    return (losses - counted * entropy(logits.shape[-1], smoothing, spread)).sum(), counted.sum()


def target_losses(
    logits: Float[Array, "*rows V"],
    targets: Int[Array, "*rows"],
    ignore_index: int,
    class_weights: Float[Array, " V"] | None,
    smoothing: float,
    spread: Spread,
) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
    """Return the cross-entropy of each target, and its weight; both are 0 where the target is ignored."""
    logits = wide(logits)
    classes = logits.shape[-1]
    # Relative to the row's largest logit: where the model is sure, the loss is a small difference of two large logits.
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
        if spread != "all":
            rest = rest - wanted
        if spread == "others_but_padding":
            if not 0 <= ignore_index < classes:
                raise ConfigError(f"ignore_index = {ignore_index} is not a class; others_but_padding needs the padding's id")
            rest = rest - surprise(jnp.full_like(index, ignore_index), weights[ignore_index])
        loss = (1 - smoothing) * wanted + share(classes, smoothing, spread) * rest
    loss = jnp.where(known, loss, jnp.full_like(loss, jnp.nan))
    zero = jnp.zeros_like(loss)
    return jnp.where(kept, loss, zero), jnp.where(kept, weight, zero)


def share(classes: int, smoothing: float, spread: Spread) -> float:
    """Return the probability that smoothing gives to each class over which it is spread."""
    if classes <= LEFT_OUT[spread]:
        raise ConfigError(f"V = {classes} classes leave none for spread = {spread!r}; give smoothing = 0, or another spread")
    return smoothing / (classes - LEFT_OUT[spread])


def entropy(classes: int, smoothing: float, spread: Spread) -> float:
    """Entropy of the wanted distribution of one target, in nats."""
    if not smoothing:
        return 0.0
    part = share(classes, smoothing, spread)
    wanted = 1 - smoothing + (part if spread == "all" else 0.0)
    others = classes - max(1, LEFT_OUT[spread])
    return -sum(number * p * math.log(p) for number, p in ((1, wanted), (others, part)) if p > 0)


def mean(total: Float[Array, "*shape"], normaliser: Float[Array, ""]) -> Float[Array, "*shape"]:
    """total / normaliser; 0 if there was nothing to count."""
    return total / jnp.where(normaliser == 0, jnp.ones_like(normaliser), normaliser)
