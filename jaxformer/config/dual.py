"""Settings of a dual encoder of images and texts. Imports no jax."""

from typing import Any, Literal, get_args

from jaxformer.config.combinations import ReadWith, check_read
from jaxformer.config.configuration import configuration
from jaxformer.config.models import EncoderConfig, ModelConfig
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.errors import ConfigError, type_of
from jaxformer.validation.fields import check_choice, check_flag, check_number, check_size

TextPooling = Literal["end", "highest", "last"]
DUAL_READ_WITH: ReadWith = {"end": ("text_pooling", ("end",))}
"""Field -> the field it depends on, and the values of that field with which it is read."""
LARGEST_LOGIT = 100.0
"""Bound of the initial scale's logarithm, and of the initial bias."""


@configuration
class DualEncoderConfig:
    """Images and texts in one space (CLIP, Radford et al. 2021; SigLIP, Zhai et al. 2023)."""

    vision: VisionEncoderConfig
    """Settings of the images' encoder, which has no head."""
    text: EncoderConfig
    """Settings of the texts' encoder, which has neither pooler nor head; CLIP's is `causal`."""
    width: int
    """Width P of the vectors of images and texts, in units."""
    text_pooling: TextPooling = "end"
    """State that stands for a text. end: that of the first token `end`; highest: that of the highest id (CLIP, whose end of a
    text has the highest); last: that of the last token, padding or not (SigLIP)."""
    end: int | None = None
    """Token id at the end of a text."""
    image_projection: bool = True
    """A linear layer without bias from the pooled image to the vectors' width. False: the pooled image is the vector."""
    text_projection_bias: bool = False
    """Bias of the linear layer from the pooled text to the vectors' width."""
    logit_scale: float = 2.6592
    """Initial logarithm of the learned factor of the cosines: log(1 / 0.07) in CLIP, log(10) in SigLIP."""
    logit_bias: float | None = None
    """Initial learned bias of the logits: -10 in SigLIP. None: no bias."""

    def __post_init__(self) -> None:
        for name, kind in (("vision", VisionEncoderConfig), ("text", EncoderConfig)):
            tower: Any = getattr(self, name)
            if not isinstance(tower, kind):
                raise ConfigError(f"{name} is {type_of(tower)}; give {kind.__name__}(...)")
            if tower.head != "none":
                raise ConfigError(f"{name} has head = {tower.head!r}, which is not read in a dual encoder; leave it out")
        if self.text.pooler:
            raise ConfigError("text has pooler = True, which is not read in a dual encoder; leave it out")
        check_size("width", self.width)
        check_choice("text_pooling", self.text_pooling, get_args(TextPooling))
        check_flag("image_projection", self.image_projection)
        check_flag("text_projection_bias", self.text_projection_bias)
        check_number("logit_scale", self.logit_scale, -LARGEST_LOGIT, most=LARGEST_LOGIT)
        if self.logit_bias is not None:
            check_number("logit_bias", self.logit_bias, -LARGEST_LOGIT, most=LARGEST_LOGIT)
        check_read(self, DUAL_READ_WITH)
        if self.text_pooling == "end":
            if self.end is None:
                raise ConfigError("text_pooling = 'end' needs the id of the token at the end of a text; give end, or 'last'")
            check_size("end", self.end, least=0, most=self.text.vocab_size - 1)
        if not self.image_projection and self.vision.pooled_width != self.width:
            raise ConfigError(
                f"width = {self.width} is not the pooled image's {self.vision.pooled_width}; set image_projection = True"
            )


AnyModelConfig = ModelConfig | VisionEncoderConfig | DualEncoderConfig
"""Configuration of a model of any class."""
