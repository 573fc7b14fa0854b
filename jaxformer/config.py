"""What a model is made of: frozen, flat dataclasses, checked when they are built. No jax is imported here."""

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from jaxformer.errors import ConfigError

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Norm = Literal["layer", "rms", "std", "none"]
NormPosition = Literal["pre", "post"]
Projections = Literal["separate", "fused"]
Positions = Literal["learned", "sinusoid", "none"]
Init = Literal["torch", "gpt2", "xavier"]
Layers = Literal["auto", "unrolled", "rolled"]
Spread = Literal["all", "others", "others_but_padding"]
OptimizerName = Literal["sgd", "adam", "adamw"]
ScheduleName = Literal["constant", "step", "noam", "cosine"]

LARGEST_SIZE = 2**31 - 1
"""Sizes index int32 arrays."""
MOST = 3.4e38
"""Numbers are used in float32."""
MOST_DIVISORS = 4096
"""A refusal lists the divisors up to here."""
IGNORE_INDEX = -100
"""A target that is not counted; torch's default."""


def check_size(name: str, value: object, least: int = 1) -> None:
    """A whole number of at least `least` that fits int32; True and 2.0 are refused."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r} is not a whole number; give an integer of at least {least}")
    if not least <= value <= LARGEST_SIZE:
        raise ConfigError(f"{name} = {value} is out of range; give an integer from {least} to {LARGEST_SIZE}")


def check_number(
    name: str, value: object, least: float | int, below: float | int = math.inf, *, open_below: bool = False
) -> None:
    """A finite number in [least, below), or in (least, below) with `open_below`."""
    interval = f"{'(' if open_below else '['}{least:g}, {below:g})"
    if not isinstance(value, int | float) or isinstance(value, bool) or not -MOST < value < MOST:
        raise ConfigError(f"{name} = {value!r:.30} is not a finite number; give one in {interval}")
    if not least <= value < below or (open_below and value == least):
        raise ConfigError(f"{name} = {value:g} is out of range; give a number in {interval}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """One of a few words; a near miss is answered with the nearest."""
    choices = list(choices)
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(choices)}"
        raise ConfigError(f"{name} = {value!r} is not known; {hint}")


def check_flag(name: str, value: object) -> None:
    """True or False, nothing that merely acts like it."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r} is not True or False")


def check_divides(part_name: str, part: int, whole_name: str, whole: int) -> None:
    """`part` divides `whole` without a rest."""
    if whole % part:
        divisors = ", ".join(str(n) for n in range(1, min(whole, MOST_DIVISORS) + 1) if whole % n == 0)
        raise ConfigError(f"{part_name} = {part} does not divide {whole_name} = {whole}; choose one of {divisors}")


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """One transformer block, and with `n_layers` a stack of them."""

    d_model: int
    """Width D of the residual stream, in units."""
    n_layers: int
    """Number L of blocks."""
    n_heads: int
    """Number N of attention heads; divides d_model."""
    n_kv_heads: int | None = None
    """Number K of key/value heads; divides n_heads. None: as many as heads."""
    d_ff: int
    """Width F of the feed-forward layer, in units; 0: no feed-forward layer."""
    activation: Activation = "gelu"
    """Non-linearity of the feed-forward layer; gelu is the exact form (torch's default)."""
    gated: bool = False
    """Feed-forward as down(activation(gate(x)) * up(x)) (Shazeer 2020)."""
    norm: Norm = "layer"
    """layer: LayerNorm; rms: RMSNorm; std: by the unbiased standard deviation, epsilon outside the root."""
    norm_position: NormPosition = "pre"
    """pre: x + f(norm(x)) with a norm after the stack; post: norm(x + f(x)), the original."""
    norm_epsilon: float = 1e-5
    """Added to the variance, or to the deviation for `std` (torch's default; flax has 1e-6)."""
    projections: Projections = "separate"
    """Self-attention's query, key and value as three matrices or as one."""
    qkv_bias: bool = True
    """Bias on query, key and value."""
    output_projection: bool = True
    """Mix the heads with one more matrix after attention."""
    output_bias: bool = True
    """Bias on that matrix."""
    feed_forward_bias: bool = True
    """Bias on the feed-forward matrices."""
    attention_dropout: float = 0.0
    """Probability to drop an attention weight."""
    residual_dropout: float = 0.0
    """Probability to drop a unit of a sub-layer's output."""
    feed_forward_dropout: float = 0.0
    """Probability to drop a unit inside the feed-forward layer."""
    layers: Layers = "auto"
    """How a stack runs: unrolled (fast on CPU), rolled (flat compile time), auto: by platform and depth."""
    remat: bool = False
    """Recompute each block in the backward pass instead of keeping its activations."""

    def __post_init__(self) -> None:
        for name in ("d_model", "n_layers", "n_heads"):
            check_size(name, getattr(self, name))
        check_size("d_ff", self.d_ff, least=0)
        check_divides("n_heads", self.n_heads, "d_model", self.d_model)
        if self.n_kv_heads is not None:
            check_size("n_kv_heads", self.n_kv_heads)
            check_divides("n_kv_heads", self.n_kv_heads, "n_heads", self.n_heads)
        check_choice("activation", self.activation, get_args(Activation))
        check_choice("norm", self.norm, get_args(Norm))
        check_choice("norm_position", self.norm_position, get_args(NormPosition))
        check_choice("projections", self.projections, get_args(Projections))
        check_choice("layers", self.layers, get_args(Layers))
        check_number("norm_epsilon", self.norm_epsilon, 0, open_below=True)
        for name in ("attention_dropout", "residual_dropout", "feed_forward_dropout"):
            check_number(name, getattr(self, name), 0, below=1)
        for name in ("gated", "qkv_bias", "output_projection", "output_bias", "feed_forward_bias", "remat"):
            check_flag(name, getattr(self, name))
        if not self.output_projection and self.output_bias:
            raise ConfigError("output_bias = True needs output_projection = True; set output_bias = False")

    @property
    def head_width(self) -> int:
        """Width H of one head."""
        return self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        """Number K of key/value heads."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def final_norm(self) -> Norm:
        """The norm after the stack: pre-norm needs one, post-norm ends with one already."""
        return self.norm if self.norm_position == "pre" else "none"


@dataclass(frozen=True, kw_only=True)
class GPTConfig(BlockConfig):
    """A decoder-only language model."""

    vocab_size: int
    """Number V of token ids."""
    context: int
    """Longest sequence, in tokens."""
    positions: Positions = "learned"
    """What tells the model where a token stands."""
    embedding_scale: bool = False
    """Multiply token embeddings by sqrt(d_model) (Vaswani et al. 2017, section 3.4)."""
    embedding_dropout: float = 0.0
    """Probability to drop a unit of the embedding + position sum."""
    tied: bool = False
    """Read logits out with the token embedding's own table."""
    head_bias: bool = False
    """Bias on the logits; only for an untied head."""
    init: Init = "gpt2"
    """Where parameters start: torch's defaults, GPT-2's, or Glorot's for every matrix."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("vocab_size", self.vocab_size)
        check_size("context", self.context)
        check_choice("positions", self.positions, get_args(Positions))
        check_choice("init", self.init, get_args(Init))
        check_number("embedding_dropout", self.embedding_dropout, 0, below=1)
        for name in ("embedding_scale", "tied", "head_bias"):
            check_flag(name, getattr(self, name))
        if self.tied and self.head_bias:
            raise ConfigError("head_bias = True needs tied = False; a tied head has no bias of its own")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How parameters follow their gradients: torch's definitions."""

    name: OptimizerName
    """sgd, adam, or adamw."""
    learning_rate: float
    """Step size; the schedule scales it."""
    momentum: float = 0.0
    """sgd: the part of the last step that is kept."""
    beta1: float = 0.9
    """adam, adamw: decay rate of the gradient's mean."""
    beta2: float = 0.999
    """adam, adamw: decay rate of the gradient's mean square."""
    epsilon: float = 1e-8
    """adam, adamw: added to the root of the mean square."""
    weight_decay: float = 0.0
    """sgd, adam: times the parameter, added to its gradient (L2). adamw: decoupled, and on matrices only."""
    clip_norm: float | None = None
    """Largest global norm of the gradient; None: any."""

    def __post_init__(self) -> None:
        check_choice("name", self.name, get_args(OptimizerName))
        check_number("learning_rate", self.learning_rate, 0, open_below=True)
        for name in ("momentum", "beta1", "beta2"):
            check_number(name, getattr(self, name), 0, below=1)
        check_number("epsilon", self.epsilon, 0, open_below=True)
        check_number("weight_decay", self.weight_decay, 0)
        if self.clip_norm is not None:
            check_number("clip_norm", self.clip_norm, 0, open_below=True)


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate changes, as a factor of the optimizer's."""

    name: ScheduleName = "constant"
    """constant; step: times `decay` every `decay_every`; noam: the paper's; cosine: warm-up, then a half cosine."""
    decay: float = 0.5
    """step: the factor."""
    decay_every: int = 1000
    """step: its period, in optimizer steps."""
    warmup: int = 0
    """noam, cosine: steps until the peak."""
    d_model: int = 512
    """noam: width of the model, in units."""
    last: int = 1000
    """cosine: the step that reaches the floor; it stays there."""
    floor: float = 0.1
    """cosine: the factor at the end."""

    def __post_init__(self) -> None:
        check_choice("name", self.name, get_args(ScheduleName))
        check_number("decay", self.decay, 0, open_below=True)
        check_number("floor", self.floor, 0)
        check_size("decay_every", self.decay_every)
        check_size("d_model", self.d_model)
        check_size("warmup", self.warmup, least=1 if self.name == "noam" else 0)
        check_size("last", self.last)
        if self.name == "cosine" and self.last <= self.warmup:
            raise ConfigError(f"last = {self.last} does not come after warmup = {self.warmup}; give a later step")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How the next token is chosen from its logits."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the likeliest token."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0: all."""
    top_p: float = 1.0
    """Keep the likeliest tokens up to this total probability (Holtzman et al. 2020)."""

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, 0)
        check_size("top_k", self.top_k, least=0)
        if not isinstance(self.top_p, int | float) or isinstance(self.top_p, bool) or not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p = {self.top_p} is out of range; give a number in (0, 1]")
