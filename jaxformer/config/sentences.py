"""Settings of a sentence encoder: an encoder, and how the states of a sentence's tokens become one vector. Imports no jax."""

from typing import Literal, get_args

from jaxformer.config.blocks import ELSEWHERE, Activation
from jaxformer.config.combinations import ReadWith, check_read
from jaxformer.config.configuration import configuration
from jaxformer.config.models import EncoderConfig
from jaxformer.errors import ConfigError, type_of
from jaxformer.validation.fields import check_choice, check_flag, check_size

Pooling = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
SENTENCE_READ_WITH: ReadWith = {"dense_activation": ("dense", (True,)), "dense_bias": ("dense", (True,))}
"""Field -> the field it depends on, and the values of that field with which it is read."""


@configuration
class SentenceConfig:
    """Settings of a sentence encoder (Reimers and Gurevych 2019), by the names of sentence-transformers."""

    encoder: EncoderConfig
    """Settings of the encoder, which has no head."""
    pooling: tuple[Pooling, ...] = ("mean",)
    """Pooling of the states of all tokens but padding; several give vectors side by side. cls: the first token's; lasttoken:
    the last one's; max: the largest of each unit; mean; mean_sqrt_len_tokens: the sum divided by the root of the number;
    weightedmean: the mean weighted by place, 1, 2, 3, ..."""
    dense_width: int | None = None
    """Width of a dense layer after the pooling, in units. None: no such layer."""
    dense_activation: Activation | None = None
    """Activation of the dense layer. None: none."""
    dense_bias: bool = True
    """Bias of the dense layer."""
    normalize: bool = False
    """Divide every vector by its Euclidean norm."""

    def __post_init__(self) -> None:
        if not isinstance(self.encoder, EncoderConfig):
            raise ConfigError(f"encoder is {type_of(self.encoder)}; give an EncoderConfig")
        if self.encoder.head != "none":
            raise ConfigError(f"head = {self.encoder.head!r} has no use in a sentence encoder; take an encoder without a head")
        if not isinstance(self.pooling, tuple) or not self.pooling:
            raise ConfigError(f"pooling = {self.pooling!r:.60} is no tuple of names; give one, as ('mean',)")
        for name in self.pooling:
            check_choice("pooling", name, get_args(Pooling))
        if self.dense_width is not None:
            check_size("dense_width", self.dense_width)
        if self.dense_activation is not None:
            check_choice("dense_activation", self.dense_activation, get_args(Activation), elsewhere=ELSEWHERE)
        check_flag("dense_bias", self.dense_bias)
        check_flag("normalize", self.normalize)
        check_read(self, SENTENCE_READ_WITH)

    @property
    def dense(self) -> bool:
        """True if there is a dense layer."""
        return self.dense_width is not None

    @property
    def width(self) -> int:
        """Width of a sentence's vector, in units."""
        return len(self.pooling) * self.encoder.d_model if self.dense_width is None else self.dense_width
