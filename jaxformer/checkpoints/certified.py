"""Inputs for a model of any class, and its output as torch and as jax give it: what a certificate compares."""

from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.config.dual import DualEncoderConfig
from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.data.drawn import draw_images, draw_texts
from jaxformer.models import DualEncoder, Encoder, EncoderDecoder, Model, VisionEncoder
from jaxformer.nn import padding_mask

SEED, ROWS, LONGEST = 0, 4, 66
SPOKEN = 2
"""Number of sources of frames, which have the full length."""
FRAMES = 3
"""Number of axes of frames of sound; images have four."""
PER_SEQUENCE = 2
"""Number of axes of logits that a sequence has one set of."""


def certified_inputs(model: Model) -> tuple[np.ndarray, ...]:
    """Return ids `B T` and a bool mask `B T`, True for tokens that are not padding; some rows are full, others shorter.

    For an encoder-decoder the ids are the source, or frames of full length are, and target ids follow; for a vision encoder
    there are images alone, and for a dual encoder texts with their ends follow. A sliding window never holds padding alone:
    there torch attends to all keys alike and jax to none, and the result is not used.
    """
    config, rng = model.config, np.random.default_rng(SEED)
    if isinstance(config, VisionEncoderConfig):
        return (draw_images(rng, config, ROWS),)
    if isinstance(config, DualEncoderConfig):
        ids, _ = draw_texts(rng, config, ROWS + 1, min(config.text.context, LONGEST))  # one more than there are images
        return draw_images(rng, config.vision, ROWS), ids
    seq2seq = isinstance(config, EncoderDecoderConfig)
    if seq2seq and config.source_features is not None:
        frames = rng.standard_normal((SPOKEN, 2 * config.source.context, config.source_features)).astype(np.float32)
        return frames, some_ids(rng, config.vocab_size, config.padding_idx, (SPOKEN, min(config.context, LONGEST) // 2 + 1))
    context, size = (config.source.context, config.source_ids) if seq2seq else (config.context, config.vocab_size)
    length = min(context, LONGEST)
    least = 1 if config.window is None else max(length - config.window + 1, 1)
    valid = np.arange(length) < np.array([[length], [length], [max(length // 2, least)], [least]])
    ids = some_ids(rng, size, config.padding_idx, (ROWS, length))
    if not seq2seq:
        return ids, valid
    return ids, valid, some_ids(rng, config.vocab_size, config.padding_idx, (ROWS, min(config.context, LONGEST) // 2 + 1))


def some_ids(rng: np.random.Generator, size: int, padding: int | None, shape: tuple[int, int]) -> np.ndarray:
    """Draw random ids other than the padding id, because some models give padding a position of its own."""
    ids = rng.integers(0, size, shape)
    return np.where(ids == padding, (ids + 1) % size, ids).astype(np.int32)


def call_torch(model: Any, *inputs: Any) -> Any:
    """Return torch's logits, or hidden states followed by the pooled state if there is one; at padding they are zero."""
    torch = import_module("torch")
    if inputs[0].is_floating_point() and inputs[0].ndim == FRAMES:
        return model(inputs[0].mT, decoder_input_ids=inputs[1].long(), use_cache=False).logits
    if inputs[0].is_floating_point():
        return _of_images(model, *inputs)
    ids, valid, *target = inputs
    if target:
        return model(ids.long(), attention_mask=valid.long(), decoder_input_ids=target[0].long(), use_cache=False).logits
    found = model(ids.long(), attention_mask=valid.long())
    if "end_logits" in found:
        return torch.stack([found.start_logits, found.end_logits], -1) * valid[..., None]
    if found[0].ndim == PER_SEQUENCE:
        return found[0]
    states, pooled = found[0] * valid[..., None], found.get("pooler_output")
    return states if pooled is None else torch.cat([states, pooled[:, None]], 1)


def _of_images(model: Any, images: Any, *texts: Any) -> Any:
    """Return torch's logits of images, or of images and texts, or the states and the pooled one."""
    torch = import_module("torch")
    if texts:
        return model(input_ids=texts[0].long(), pixel_values=images).logits_per_image
    found = model(images)
    if found[0].ndim == PER_SEQUENCE:
        return found[0]
    pooled = found.get("pooler_output")
    return found[0] if pooled is None else torch.cat([found[0], pooled[:, None]], 1)


def call_jax(model: Model, *inputs: jax.Array) -> jax.Array:
    """Return jax's logits or hidden states, laid out as by `call_torch`."""
    if isinstance(model, DualEncoder):
        return model(*inputs)
    if isinstance(model, VisionEncoder):
        found = model(*inputs)
        if model.head is not None or model.config.pooling == "mean":
            return found
        return jnp.concatenate([found, model.pool(found)[:, None]], 1)
    if isinstance(model, EncoderDecoder) and model.stem is not None:
        return model(*inputs)
    ids, valid, *target = inputs
    mask = padding_mask(valid)
    if isinstance(model, EncoderDecoder):
        return model(ids, *target, source_mask=mask)
    found = model(ids, mask=mask)
    if found.ndim == PER_SEQUENCE:
        return found
    states = jnp.where(valid[..., None], found, jnp.zeros_like(found))
    if isinstance(model, Encoder) and model.head is None and model.pooler is not None:
        return jnp.concatenate([states, model.pool(found)[:, None]], 1)
    return states
