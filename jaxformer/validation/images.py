"""Checks of images, which have their channels first: `B c height width`."""

from typing import Any

import numpy as np

from jaxformer.config.dual import DualEncoderConfig
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.errors import InputError, type_of


def check_images(images: Any, config: VisionEncoderConfig) -> None:
    """Check images: floats of the only shape that the model takes; the message says how another one becomes that. The values of
    a numpy array are known, and have to be finite.
    """
    if not hasattr(images, "dtype"):
        raise InputError(f"images are {type_of(images)}; give an array of floats, (batch, channels, height, width)")
    if "float" not in str(images.dtype):
        raise InputError(
            f"images are of type {images.dtype}; give floats, scaled and normalised as for the model's training "
            "(preprocessor_config.json)"
        )
    shape, wanted = tuple(images.shape), (config.channels, *config.image_size)
    if len(shape) != 1 + len(wanted) or shape[1:] != wanted or not shape[0]:
        raise InputError(f"images: shape {shape}; give (batch, {', '.join(map(str, wanted))}){_remedy(shape, wanted)}")
    if isinstance(images, np.ndarray) and not np.isfinite(images).all():
        place = tuple(np.argwhere(~np.isfinite(images))[0].tolist())
        raise InputError(f"images[{', '.join(map(str, place))}] = {images[place]}; give finite pixels")


def check_states(states: Any, config: VisionEncoderConfig) -> None:
    """Check that what is pooled are the states of all tokens, `B T D`."""
    shape, wanted = tuple(getattr(states, "shape", ())), (config.first_patch + config.patches, config.d_model)
    if len(shape) != 1 + len(wanted) or shape[1:] != wanted:
        given = f"of shape {shape}" if hasattr(states, "shape") else type_of(states)
        raise InputError(
            f"states are {given}; give those of encode, (batch, {wanted[0]}, {wanted[1]}): model.pool(model.encode(images))"
        )


def _remedy(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Return how images of this shape become images of the shape that is wanted; '' if that is not known."""
    channels, height, width = wanted
    if shape == wanted:
        return ": images[None]"
    if shape[1:] == (height, width, channels):
        return ", channels first: images.transpose(0, 3, 1, 2)"
    if shape[1:] == (channels, width, height):
        return ", height before width: images.swapaxes(2, 3)"
    if len(shape) == 1 + len(wanted) and shape[1] == channels:
        return f"; resize them, or make a model for them: jaxformer.with_image_size(model, {shape[2:]})"
    return ""


def check_masked(masked: Any, batch: int, config: VisionEncoderConfig) -> None:
    """Check the patches to hide: None, or booleans `B M`, one for each patch, of a model with a mask token."""
    if masked is None:
        return
    if not config.mask_token:
        raise InputError("this model has no mask token; build it with mask_token = True, or leave masked out")
    if (kind := str(masked.dtype).removeprefix("torch.")) != "bool" or tuple(masked.shape) != (batch, config.patches):
        raise InputError(
            f"masked is {kind} of shape {tuple(masked.shape)}; give booleans of shape ({batch}, {config.patches}), one for "
            "each patch, True = masked"
        )


def check_ends(tokens: Any, config: DualEncoderConfig) -> None:
    """Check that every text of known ids `X T` has the end by which it is pooled: without it, the first state would be."""
    if config.end is None or not isinstance(tokens, np.ndarray):
        return
    if (without := np.flatnonzero((tokens == config.end).sum(-1) == 0)).size:
        raise InputError(f"tokens: row {without[0]} has no end of a text, by which it is pooled; end it with id {config.end}")
