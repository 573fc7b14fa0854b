"""What an encoder-decoder loses on pairs of a source and a target, `<s> tokens </s>` with padding behind."""

import torch
from torch import Tensor

from jaxformer.config.settings import Spread
from torch_ref.models.encoder_decoder import EncoderDecoder
from torch_ref.nn.masks import ids_to_valid, padding_mask
from torch_ref.training.losses import cross_entropy

Pairs = tuple[Tensor, Tensor]
"""A source `B S` and a target `B U`."""


def last_hidden_state(model: EncoderDecoder, batch: Pairs, *, pad: int) -> tuple[Tensor, Tensor]:
    """The states that every target token but the first is read out of, and these tokens."""
    source, target = batch
    mask = padding_mask(ids_to_valid(source, pad))
    memory = model.encode(source, mask=mask)
    states, _ = model.last_hidden_state(target[:, :-1], None, memory, memory_mask=mask)
    return states, target[:, 1:]


def pair_loss(
    model: EncoderDecoder, batch: Pairs, *, pad: int, smoothing: float = 0.0, spread: Spread = "others_but_padding"
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the target: its sum and its count, padding left out."""
    states, targets = last_hidden_state(model, batch, pad=pad)
    return cross_entropy(model.read_out(states), targets, ignore_index=pad, smoothing=smoothing, spread=spread)


@torch.no_grad()
def pair_sums(model: EncoderDecoder, batch: Pairs, *, pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Without smoothing: the summed loss, how many tokens are the likeliest ones, and how many there are."""
    states, targets = last_hidden_state(model, batch, pad=pad)
    logits = model.read_out(states)
    total, _ = cross_entropy(logits, targets, ignore_index=pad)
    counted = targets != pad
    return total, ((logits.argmax(-1) == targets) & counted).sum(), counted.sum()
