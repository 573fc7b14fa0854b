"""A vision encoder for images of another size."""

from dataclasses import replace
from typing import TypeVar, cast

import torch

from jaxformer.config.dual import DualEncoderConfig
from jaxformer.config.vision import check_pair
from torch_ref.models.build import build
from torch_ref.models.dual_encoder import DualEncoder
from torch_ref.models.vision_encoder import VisionEncoder
from torch_ref.nn.resampling import resample_grid

Seeing = TypeVar("Seeing", VisionEncoder, DualEncoder)


def with_image_size(model: Seeing, image_size: tuple[int, int], *, antialias: bool = False) -> Seeing:
    """Return the model for images of another height and width, its positions interpolated between the patches'."""
    check_pair("image_size", image_size)
    config = model.config
    dual = isinstance(config, DualEncoderConfig)
    vision = config.vision if dual else config
    wanted = replace(vision, image_size=image_size)
    name, first = f"{'vision.' * dual}embed.position.weight", vision.class_token + vision.distillation_token
    state = model.state_dict()
    table = state[name]
    patches = resample_grid(table[first:], vision.grid, wanted.grid, antialias=antialias)
    made = cast(Seeing, build(replace(config, vision=wanted) if dual else wanted).to(table.dtype))
    made.load_state_dict(state | {name: torch.cat([table[:first], patches])})
    return made.train(model.training)
