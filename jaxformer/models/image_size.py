"""A vision encoder for images of another size."""

from dataclasses import replace
from typing import Any, TypeVar

import jax.numpy as jnp
from jaxtyping import Array

from jaxformer.config.dual import DualEncoderConfig
from jaxformer.config.vision import VisionEncoderConfig, check_pair
from jaxformer.errors import InputError, type_of
from jaxformer.models.build import abstract
from jaxformer.models.dual_encoder import DualEncoder
from jaxformer.models.vision_encoder import VisionEncoder
from jaxformer.nn.resampling import resample_grid
from jaxformer.pytree import map_named, named_leaves

Seeing = TypeVar("Seeing", VisionEncoder, DualEncoder)


def with_image_size(model: Seeing, image_size: tuple[int, int], *, antialias: bool = False) -> Seeing:
    """Return the model for images of another height and width, its learned positions interpolated between the patches'.

    This is transformers' `interpolate_pos_encoding=True`; `antialias` is for DINOv2 with registers, which has it there. The
    positions of the new size are parameters of the model that is returned; under `jax.grad`, in a loss that calls this
    function, the gradient is that of the model's own.
    """
    if not isinstance(model, VisionEncoder | DualEncoder):
        raise InputError(f"model is {type_of(model)}; give a VisionEncoder or a DualEncoder")
    check_pair("image_size", image_size)
    config = model.config
    dual = isinstance(config, DualEncoderConfig)
    vision: VisionEncoderConfig = config.vision if dual else config
    wanted = replace(vision, image_size=image_size)
    name, first = f"{'vision.' * dual}embed.position.table", vision.class_token + vision.distillation_token
    held = named_leaves(model)

    def resized(path: str, _: Any) -> Array:
        if path != name:
            return held[path]
        table = held[name]
        patches = resample_grid(table[first:], vision.grid, wanted.grid, antialias=antialias)
        return jnp.concatenate([table[:first], patches])

    return map_named(resized, abstract(replace(config, vision=wanted) if dual else wanted))
