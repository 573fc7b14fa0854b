"""Loss of an encoder-decoder on pairs of a source and a target, `<s> tokens </s>`, padded at the right."""

import torch
from torch import Tensor

from jaxformer.config.settings import Spread
from torch_ref.models.encoder_decoder import EncoderDecoder
from torch_ref.nn.masks import ids_to_valid, padding_mask
from torch_ref.training.losses import cross_entropy

Pairs = tuple[Tensor, Tensor]
"""Source `B S` and target `B U`."""


def last_hidden_state(model: EncoderDecoder, batch: Pairs, *, pad: int) -> tuple[Tensor, Tensor]:
    """Return the decoder states that predict every target token but the first, and these tokens."""
    source, target = batch
    mask = padding_mask(ids_to_valid(source, pad))
    memory = model.encode(source, mask=mask)
    states, _ = model.last_hidden_state(target[:, :-1], None, memory, memory_mask=mask)
    return states, target[:, 1:]


def pair_loss(
    model: EncoderDecoder, batch: Pairs, *, pad: int, smoothing: float = 0.0, spread: Spread = "others_but_padding"
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the target, without padding: its sum and its count."""
    states, targets = last_hidden_state(model, batch, pad=pad)
    return cross_entropy(model.read_out(states), targets, ignore_index=pad, smoothing=smoothing, spread=spread)


@torch.no_grad()
def pair_sums(model: EncoderDecoder, batch: Pairs, *, pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the summed loss without smoothing, the number of targets that were likeliest, and the number of all."""
    states, targets = last_hidden_state(model, batch, pad=pad)
    logits = model.read_out(states)
    total, _ = cross_entropy(logits, targets, ignore_index=pad)
    counted = targets != pad
    return total, ((logits.argmax(-1) == targets) & counted).sum(), counted.sum()
