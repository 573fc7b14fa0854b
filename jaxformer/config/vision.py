"""Settings of a vision encoder. Imports no jax."""

from dataclasses import replace
from typing import Literal, get_args

from jaxformer.config.blocks import ELSEWHERE, Activation, BlockConfig
from jaxformer.config.combinations import ReadWith, check_no_layer_embedding, check_read
from jaxformer.config.configuration import configuration
from jaxformer.config.models import Init
from jaxformer.config.rotary import RotaryEmbedding
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_choice, check_flag, check_number, check_size

ImagePooling = Literal["class", "dense", "attention", "mean", "class_mean"]
ImageHead = Literal["none", "image_classification", "distilled_image_classification"]
VISION_READ_WITH: ReadWith = {
    "pooler_activation": ("pooling", ("dense",)),
    "pooled_norm": ("pooling", ("class",)),
    "labels": ("head", ("image_classification", "distilled_image_classification")),
}
"""Field -> the field it depends on, and the values of that field with which it is read."""
LARGEST_CHANNELS = 64
"""Bound of the number of channels: more are a size in the wrong place."""


@configuration
class VisionEncoderConfig(BlockConfig):
    """Vision transformer (Dosovitskiy et al. 2020): an encoder of the patches of an image."""

    image_size: tuple[int, int]
    """Height and width of the images, in pixels."""
    patch_size: tuple[int, int]
    """Height and width of a patch, in pixels. Rows and columns that no whole patch fits into are not read."""
    channels: int = 3
    """Number of channels of the images."""
    patch_bias: bool = True
    """Bias of the projection of the patches."""
    class_token: bool = True
    """A learned token before the patches, whose state stands for the image."""
    distillation_token: bool = False
    """A second learned token, after the class token (DeiT, Touvron et al. 2020)."""
    register_tokens: int = 0
    """Number of learned tokens without a position, between the class token and the patches (Darcet et al. 2023)."""
    mask_token: bool = False
    """A learned vector that takes the place of patches which a call hides."""
    learned_positions: bool = True
    """A learned vector of each place, added to the class token, a distillation token and the patches. Rotary positions are of
    patches alone: half of the pairs turn by a patch's row and half by its column, the first of each half by one turn from the
    middle of the image to its edge (DINOv3, Siméoni et al. 2025)."""
    embedding_norm: bool = False
    """Norm of the embedded image, before the blocks (CLIP)."""
    embedding_dropout: float = 0.0
    """Probability to drop a unit of the embedded image."""
    pooling: ImagePooling = "class"
    """Vector of an image. class: the class token's state; dense: a linear layer and an activation of it (ViT); attention:
    attention of one learned query, with a feed-forward layer (SigLIP); mean: mean of all patches' states; class_mean: the class
    token's state and that mean side by side (DINOv2)."""
    pooler_activation: Activation = "tanh"
    """Activation of the dense pooling."""
    pooled_norm: bool = False
    """The norm after the stack is for the pooled state alone, and the states are without it (CLIP)."""
    head: ImageHead = "none"
    """image_classification: logits of the pooled state; distilled_image_classification: mean of the logits of the class token's
    and the distillation token's states, each by a layer of its own (DeiT)."""
    labels: tuple[str, ...] = ()
    """Names of the labels that are told apart."""
    init: Init = "normal"
    """Initial parameters, as in ModelConfig."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_no_layer_embedding(self)
        for name in ("image_size", "patch_size"):
            check_pair(name, getattr(self, name))
        if any(patch > image for patch, image in zip(self.patch_size, self.image_size, strict=True)):
            raise ConfigError(f"patch_size = {self.patch_size} exceeds image_size = {self.image_size}; give smaller patches")
        check_size("channels", self.channels, most=LARGEST_CHANNELS)
        check_size("register_tokens", self.register_tokens, least=0)
        for name in (
            "patch_bias",
            "class_token",
            "distillation_token",
            "mask_token",
            "learned_positions",
            "embedding_norm",
            "pooled_norm",
        ):
            check_flag(name, getattr(self, name))
        check_number("embedding_dropout", self.embedding_dropout, 0, below=1)
        check_choice("pooling", self.pooling, get_args(ImagePooling))
        check_choice("pooler_activation", self.pooler_activation, get_args(Activation), elsewhere=ELSEWHERE)
        check_choice("head", self.head, get_args(ImageHead))
        check_choice("init", self.init, get_args(Init))
        _check_labels(self)
        _check_tokens(self)
        _check_positions(self)
        check_read(self, VISION_READ_WITH)

    @property
    def rotary_embedding(self) -> RotaryEmbedding | None:
        """Rotary positions by row and column as a value; None if there are none."""
        along = super().rotary_embedding
        return None if along is None else replace(along, axes=2)

    @property
    def grid(self) -> tuple[int, int]:
        """Number of patches from top to bottom, and from left to right."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def patches(self) -> int:
        """Number of patches of an image."""
        return self.grid[0] * self.grid[1]

    @property
    def first_patch(self) -> int:
        """Index of the first patch among the tokens."""
        return self.class_token + self.distillation_token + self.register_tokens

    @property
    def pooled_width(self) -> int:
        """Width of an image's vector, in units."""
        return self.d_model * (2 if self.pooling == "class_mean" else 1)


def check_pair(name: str, value: object) -> None:
    """Check a height and a width; ConfigError for anything but a tuple of two positive integers."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise ConfigError(f"{name} = {value!r:.60} is no pair; give a tuple (height, width), in pixels")
    for size in value:
        check_size(name, size)


def _check_labels(config: VisionEncoderConfig) -> None:
    if not isinstance(config.labels, tuple) or not all(isinstance(it, str) for it in config.labels):
        raise ConfigError(f"labels = {config.labels!r:.60} is no tuple of names; give one, as ('cat', 'dog')")
    if config.head != "none" and not config.labels:
        raise ConfigError(f"head = {config.head!r} needs labels; give their names, as ('cat', 'dog')")


def _check_tokens(config: VisionEncoderConfig) -> None:
    """Check that the tokens which others need are there, and that settings of the blocks fit an image."""
    needed = {
        "pooling": config.pooling in ("class", "dense", "class_mean"),
        "distillation_token": config.distillation_token,
    }
    for name in (name for name, needs in needed.items() if needs and not config.class_token):
        raise ConfigError(f"{name} = {getattr(config, name)!r} needs class_token = True; or set pooling = 'mean'")
    if config.head == "distilled_image_classification" and not config.distillation_token:
        raise ConfigError(f"head = {config.head!r} needs distillation_token = True; or set head = 'image_classification'")
    if config.head == "distilled_image_classification" and config.pooling != "class":
        raise ConfigError(f"pooling = {config.pooling!r} is not read with head = {config.head!r}; leave it out")
    if config.embedding_norm and config.norm == "none":
        raise ConfigError("embedding_norm = True needs a norm; set norm = 'layer', or embedding_norm = False")
    if config.pooled_norm and config.final_norm == "none":
        raise ConfigError("pooled_norm = True needs the norm after the stack; set stack_norm = True, or pooled_norm = False")


def _check_positions(config: VisionEncoderConfig) -> None:
    """Check that patches have an order, and that pairs which turn are as many by row as by column."""
    if not config.learned_positions and config.rotary == "none":
        raise ConfigError(
            "learned_positions = False leaves patches without an order; set rotary = 'half', or learned_positions = True"
        )
    if config.rotary_scaling != "none":
        raise ConfigError(f"rotary_scaling = {config.rotary_scaling!r} is for longer texts, and images have none; leave it out")
    if (along := config.rotary_embedding) is not None and along.dim % 4:
        raise ConfigError(
            f"rotary = {config.rotary!r} turns pairs by row and by column, and {along.dim} units of a head are rotated; give a "
            "rotary_dim that 4 divides"
        )
