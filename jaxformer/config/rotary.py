"""Settings of rotary positions (Su et al. 2021). Imports no jax."""

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from jaxformer.config.configuration import configuration
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_choice, check_flag, check_number, check_size

Rotary = Literal["none", "half", "interleaved"]
RotaryScaling = Literal["none", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"]


@dataclass(frozen=True)
class LinearScaling:
    """Linear scaling: all angles are divided by the factor."""

    factor: float


@dataclass(frozen=True)
class DynamicScaling:
    """Dynamic NTK scaling: the base grows with the text, from the original context on."""

    factor: float
    original_context: int


@dataclass(frozen=True)
class Llama3Scaling:
    """Scaling of Llama 3.1: long waves only, with a smooth transition."""

    factor: float
    original_context: int
    low_frequency_factor: float
    high_frequency_factor: float


@dataclass(frozen=True)
class YarnScaling:
    """YaRN: a ramp over the pairs, and an amplitude."""

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float | None


@dataclass(frozen=True)
class LongRopeScaling:
    """LongRoPE: a divisor for each pair, one set for texts within the original context and one for longer ones."""

    factor: float
    original_context: int
    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    attention_factor: float | None


@dataclass(frozen=True)
class ProportionalScaling:
    """Proportional angles: the first pairs alone turn, by angles that are divided by the factor; the others stay."""

    factor: float
    pairs: int


Scaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongRopeScaling | ProportionalScaling
SCALINGS: dict[str, type[Scaling]] = {
    "linear": LinearScaling,
    "dynamic": DynamicScaling,
    "llama3": Llama3Scaling,
    "yarn": YarnScaling,
    "longrope": LongRopeScaling,
    "proportional": ProportionalScaling,
}
"""Scaling of the rotary angles by its name in `rotary_scaling`; its fields are those with the prefix `rotary_`."""


@dataclass(frozen=True)
class RotaryEmbedding:
    """Rotary positions of a block, as one value: what its `rotary` fields say, and nothing that is not read."""

    interleaved: bool
    dim: int
    base: float
    window_base: float | None
    scaling: Scaling | None
    reversed: bool
    axes: int = 1
    """Number of coordinates of a position: each turns as many consecutive pairs."""


@configuration
class RotaryConfig:
    """Settings of rotary positions of queries and keys."""

    rotary: Rotary = "none"
    """Rotary position embedding of queries and keys (Su et al. 2021), not applied in cross-attention. half: unit i of a head
    pairs with unit i + H / 2 (Llama, GPT-NeoX); interleaved: units 2i and 2i + 1 pair (GPT-J, the paper)."""
    rotary_dim: int | None = None
    """Number of units of a head that are rotated, even: from the first on, with kv_latent the last ones. None: all."""
    rotary_pattern: tuple[bool, ...] | None = None
    """Layers whose queries and keys are rotated, repeated: (True, True, True, False) in SmolLM 3. None: all."""
    rotary_reversed: bool = False
    """Rotate by the negative angles (nanochat)."""
    rotary_base: float = 10000.0
    """Base of the rotary angles: pair i of n turns by base^(-i / n) per token."""
    rotary_window_base: float | None = None
    """Base of the rotary angles in sliding window layers, whose angles are not scaled (Gemma 3). None: as in all layers."""
    rotary_scaling: RotaryScaling = "none"
    """Scaling of the rotary angles for longer contexts. linear: all by the factor; dynamic: by a base that grows with the
    longest position of a call; llama3: long waves only, with a smooth transition; yarn: by a ramp over the pairs (Peng et al.
    2023); longrope: by a divisor for each pair (Ding et al. 2024); proportional: by the factor, and the first rotary_pairs of a
    head alone turn (Gemma 4)."""
    rotary_factor: float | None = None
    """Ratio of the longest context with scaling to the longest one without."""
    rotary_original_context: int | None = None
    """Longest context before the scaling, in tokens (all but linear)."""
    rotary_low_frequency_factor: float | None = None
    """llama3: waves longer than the original context divided by this are fully scaled."""
    rotary_high_frequency_factor: float | None = None
    """llama3: waves shorter than the original context divided by this are not scaled."""
    rotary_beta_fast: float = 32.0
    """yarn: pairs that make more than this many turns in the original context are not scaled."""
    rotary_beta_slow: float = 1.0
    """yarn: pairs that make fewer than this many turns in the original context are fully scaled."""
    rotary_truncate: bool = True
    """yarn: round the ramp's ends to whole pairs."""
    rotary_attention_factor: float | None = None
    """yarn, longrope: factor of the rotated units of queries and keys. None: 0.1 ln(rotary_factor) + 1 (yarn), sqrt(1 +
    ln(rotary_factor) / ln(rotary_original_context)) (longrope)."""
    rotary_short_factors: tuple[float, ...] | None = None
    """longrope: divisors of the angles of each pair in calls whose positions are all within the original context."""
    rotary_long_factors: tuple[float, ...] | None = None
    """longrope: divisors of the angles of each pair in all other calls."""

    rotary_pairs: int | None = None
    """proportional: number of pairs that turn, from the first on; the others have the angle 0."""

    def rotary_of(self, head_width: int) -> RotaryEmbedding | None:
        """Return the rotary positions of heads of this width as a value; None if there are none."""
        if self.rotary == "none":
            return None
        dim = head_width if self.rotary_dim is None else self.rotary_dim
        scaling = None
        if kind := SCALINGS.get(self.rotary_scaling):
            scaling = kind(**{field.name: getattr(self, f"rotary_{field.name}") for field in fields(kind)})
        pairs = self.rotary == "interleaved"
        return RotaryEmbedding(pairs, dim, self.rotary_base, self.rotary_window_base, scaling, self.rotary_reversed)


POSITIVE = ("rotary_beta_fast", "rotary_beta_slow")
POSITIVE_OR_NONE = (
    "rotary_factor",
    "rotary_low_frequency_factor",
    "rotary_high_frequency_factor",
    "rotary_attention_factor",
)
LEAST_DYNAMIC = 4
"""Fewest rotated units with a base that grows: with two of them there is one angle, which no base changes."""


def check_rotary(config: Any) -> None:
    """Raise ConfigError for a rotary setting that is out of range; `check_combinations` finds those that nothing reads."""
    check_choice("rotary", config.rotary, get_args(Rotary))
    check_choice("rotary_scaling", config.rotary_scaling, get_args(RotaryScaling))
    for name in ("rotary_truncate", "rotary_reversed"):
        check_flag(name, getattr(config, name))
    for name in (*POSITIVE, *(name for name in POSITIVE_OR_NONE if getattr(config, name) is not None)):
        check_number(name, getattr(config, name), 0, open_below=True)
    for name in ("rotary_base", "rotary_window_base"):
        if getattr(config, name) is not None or name == "rotary_base":
            check_number(name, getattr(config, name), 1, open_below=True)
    if config.rotary_original_context is not None:
        check_size("rotary_original_context", config.rotary_original_context)
    if config.rotary_pairs is not None:
        check_size("rotary_pairs", config.rotary_pairs, least=0)
    pattern = config.rotary_pattern
    if pattern is not None and (not isinstance(pattern, tuple) or {*map(type, pattern)} != {bool} or len({*pattern}) != 2):
        raise ConfigError(
            f"rotary_pattern = {pattern!r:.60} is not a tuple of True and False; give one with both, as (True, True, False)"
        )


def check_rotated(config: Any) -> None:
    """Raise ConfigError if rotated units are no pairs of a head, or the numbers of a scaling do not fit them."""
    dim = config.head_width if config.rotary_dim is None else config.rotary_dim
    if config.rotary_dim is not None:
        check_size("rotary_dim", dim, least=2, most=config.head_width)
        if dim % 2:
            raise ConfigError(f"rotary_dim = {dim} is odd; units are rotated in pairs, give an even number")
    elif config.rotary != "none" and dim % 2:
        raise ConfigError(
            f"rotary = {config.rotary!r} rotates pairs of units, and a head is {dim} wide; give an even rotary_dim"
        )
    if config.rotary_scaling == "dynamic" and dim < LEAST_DYNAMIC:
        raise ConfigError(f"rotary_scaling = 'dynamic' needs {LEAST_DYNAMIC} rotated units of a head, and there are {dim}")
    of_head = getattr(config, "full_head_dim", None) is None  # else of layers of another width
    if of_head and config.rotary_pairs is not None and config.rotary_pairs > dim // 2:
        raise ConfigError(f"rotary_pairs = {config.rotary_pairs} are more than the {dim // 2} pairs of a head; give fewer")
    for name in ("rotary_short_factors", "rotary_long_factors"):
        if (factors := getattr(config, name)) is None:
            continue
        if not isinstance(factors, tuple) or len(factors) != dim // 2:
            raise ConfigError(f"{name} = {factors!r:.60} is not a tuple of {dim // 2} numbers, one for each pair of units")
        for factor in factors:
            check_number(name, factor, 0, open_below=True)
