"""Loss of an encoder-decoder on pairs of a source and a target, `<s> tokens </s>`, padded at the right."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxformer.config.settings import Spread
from jaxformer.data.tasks import Pairs
from jaxformer.models import EncoderDecoder
from jaxformer.nn.dropout import split_key
from jaxformer.nn.masks import ids_to_valid, padding_mask
from jaxformer.runtime.jit import jit
from jaxformer.training.chunked_loss import read_out_cross_entropy
from jaxformer.training.losses import cross_entropy


def last_hidden_state(
    model: EncoderDecoder, batch: Pairs, key: PRNGKeyArray | None, *, pad: int
) -> tuple[Float[Array, "B T D"], Int[Array, "B T"]]:
    """Return the decoder states that predict every target token but the first, and these tokens."""
    encoder_key, decoder_key = split_key(key, 2)
    mask = padding_mask(ids_to_valid(jnp.asarray(batch.source), pad))
    memory = model.encode(batch.source, mask=mask, key=encoder_key)
    states, _ = model.last_hidden_state(batch.target[:, :-1], None, memory, memory_mask=mask, key=decoder_key)
    return states, jnp.asarray(batch.target[:, 1:])


def pair_loss(
    model: EncoderDecoder,
    batch: Pairs,
    key: PRNGKeyArray | None,
    *,
    pad: int,
    smoothing: float = 0.0,
    spread: Spread = "others_but_padding",
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Cross-entropy of the target, without padding: its sum and its count."""
    states, targets = last_hidden_state(model, batch, key, pad=pad)
    return read_out_cross_entropy(model, states, targets, ignore_index=pad, smoothing=smoothing, spread=spread)


def pair_sums(model: EncoderDecoder, batch: Pairs, *, pad: int) -> tuple[Float[Array, ""], Int[Array, ""], Int[Array, ""]]:
    """Return the summed loss without dropout or smoothing, the number of targets that were likeliest, and the number of all."""
    states, targets = last_hidden_state(model, batch, None, pad=pad)
    logits = model.read_out(states)
    total, _ = cross_entropy(logits, targets, ignore_index=pad)
    counted = targets != pad
    return total, ((logits.argmax(-1) == targets) & counted).sum(), counted.sum()


measure_pairs = jit(pair_sums, static_argnames="pad")
