"""Settings of a head's transform: a dense layer, an activation and a norm before the layer of the logits. Imports no jax."""

from typing import Any, get_args

from jaxformer.config.blocks import ELSEWHERE, Activation
from jaxformer.config.configuration import configuration
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_choice, check_flag


@configuration
class HeadTransformConfig:
    """Settings of the transform of a decoder's or an encoder's head."""

    head_transform: bool = False
    """Dense layer, activation and norm before the layer of the logits (ModernBERT); an encoder's masked_lm has them whatever
    this says."""
    head_activation: Activation | None = None
    """Activation of that dense layer. None: `activation`."""
    head_dense_bias: bool = True
    """Bias of that dense layer."""

    @property
    def transformed(self) -> bool:
        """True if the head has a dense layer, activation and norm before the layer of the logits."""
        return self.head_transform


def check_head_transform(config: Any) -> None:
    """Raise ConfigError for a transform that does not exist, or whose settings nothing reads."""
    for name in ("head_transform", "head_dense_bias"):
        check_flag(name, getattr(config, name))
    if config.head_activation is not None:
        check_choice("head_activation", config.head_activation, get_args(Activation), elsewhere=ELSEWHERE)
    for name, unset in (("head_activation", None), ("head_dense_bias", True)):
        if (value := getattr(config, name)) != unset and not config.transformed:
            raise ConfigError(
                f"{name} = {value!r} is not read with head_transform = False; set head_transform, or leave it out"
            )
