"""What an encoder-decoder loses on pairs of a source and a target, `<s> tokens </s>` with padding behind."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxformer.config.settings import Spread
from jaxformer.data.tasks import Pairs
from jaxformer.models import EncoderDecoder
from jaxformer.nn.masks import ids_to_valid, padding_mask
from jaxformer.training.losses import cross_entropy


def predict(
    model: EncoderDecoder, batch: Pairs, key: PRNGKeyArray | None, *, pad: int
) -> tuple[Float[Array, "B T V"], Int[Array, "B T"]]:
    """Logits of every target token but the first, and these tokens."""
    mask = padding_mask(ids_to_valid(jnp.asarray(batch.source), pad))
    return model(batch.source, batch.target[:, :-1], source_mask=mask, key=key), jnp.asarray(batch.target[:, 1:])


def pair_loss(
    model: EncoderDecoder,
    batch: Pairs,
    key: PRNGKeyArray | None,
    *,
    pad: int,
    smoothing: float = 0.0,
    spread: Spread = "others_but_padding",
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Cross-entropy of the target: its sum and its count, padding left out."""
    logits, targets = predict(model, batch, key, pad=pad)
    return cross_entropy(logits, targets, ignore_index=pad, smoothing=smoothing, spread=spread)


def pair_sums(model: EncoderDecoder, batch: Pairs, *, pad: int) -> tuple[Float[Array, ""], Int[Array, ""], Int[Array, ""]]:
    """Without dropout or smoothing: the summed loss, how many tokens are the likeliest ones, and how many there are."""
    logits, targets = predict(model, batch, None, pad=pad)
    total, _ = cross_entropy(logits, targets, ignore_index=pad)
    counted = targets != pad
    return total, ((logits.argmax(-1) == targets) & counted).sum(), counted.sum()


measure_pairs = jax.jit(pair_sums, static_argnames="pad")
