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
    """Return the model for images of another height and width, its learned positions interpolated between the patches'."""
    check_pair("image_size", image_size)
    config = model.config
    dual = isinstance(config, DualEncoderConfig)
    vision = config.vision if dual else config
    wanted = replace(vision, image_size=image_size)
    name, first = f"{'vision.' * dual}embed.position.weight", vision.class_token + vision.distillation_token
    state = model.state_dict()
    if vision.learned_positions:
        patches = resample_grid(state[name][first:], vision.grid, wanted.grid, antialias=antialias)
        state |= {name: torch.cat([state[name][:first], patches])}
    made = cast(Seeing, build(replace(config, vision=wanted) if dual else wanted).to(next(model.parameters()).dtype))
    made.load_state_dict(state)
    return made.train(model.training)
