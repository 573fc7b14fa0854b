"""Adversarial inputs for every model, and one way to call it on both sides."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, ModelConfig
from jaxformer.models import Encoder, EncoderDecoder
from jaxformer.nn import masks
from jaxformer.parity.probe.inputs import probe

SHORTER = 3
"""A target is this much shorter than its source."""


def adversarial_inputs(config: ModelConfig, batch: int, length: int, seed: int) -> tuple[np.ndarray, ...]:
    """Ids `B T` and which of them are real; also token types for an encoder, and the target's ids and which are real for an
    encoder-decoder. Neither source nor target is longer than its context."""
    if isinstance(config, EncoderDecoderConfig):
        source = probe(config.source_ids, batch, min(length, config.source.context), seed)
        return *source, *probe(config.vocab_size, batch, min(length, config.context) - SHORTER, seed + 1000)
    tokens = probe(config.vocab_size, batch, length, seed)
    if isinstance(config, EncoderConfig):
        types = np.random.default_rng(seed).integers(0, max(config.token_types, 1), (batch, length), np.int32)
        return *tokens, types
    return tokens


def call_jax(model: Any, *inputs: Any, key: PRNGKeyArray | None = None) -> jax.Array:
    """Logits, or an encoder's hidden states and, after them, the pooled one; padding is masked."""
    ids, valid, *rest = inputs
    mask = masks.padding_mask(jnp.asarray(valid))
    if isinstance(model, EncoderDecoder):
        target, target_valid = rest
        return model(ids, target, source_mask=mask, target_mask=masks.padding_mask(jnp.asarray(target_valid)), key=key)
    if isinstance(model, Encoder):
        types = rest[0] if model.config.token_types else None
        states = model(ids, mask=mask, token_types=types, key=key)
        return states if model.pooler is None else jnp.concatenate([states, model.pool(states)[:, None]], 1)
    return model(ids, mask=mask, key=key)


def call_torch(model: Any, *inputs: Any) -> Any:
    """The same for the PyTorch twin."""
    import torch

    import torch_ref.models
    from torch_ref.nn.masks import padding_mask

    ids, valid, *rest = inputs
    mask = padding_mask(valid)
    if isinstance(model, torch_ref.models.EncoderDecoder):
        target, target_valid = rest
        return model(ids, target, source_mask=mask, target_mask=padding_mask(target_valid))
    if isinstance(model, torch_ref.models.Encoder):
        states = model(ids, mask=mask, token_types=rest[0] if model.config.token_types else None)
        return states if model.pooler is None else torch.cat([states, model.pool(states)[:, None]], 1)
    return model(ids, mask=mask)
