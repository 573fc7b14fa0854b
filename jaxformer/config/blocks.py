"""What a transformer block is made of: a frozen, flat dataclass, checked when it is built. No jax is imported here."""

from typing import Literal, get_args

from jaxformer.config.combinations import check_combinations
from jaxformer.config.configuration import configuration
from jaxformer.validation.fields import check_choice, check_divides, check_flag, check_number, check_size

Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"]
Norm = Literal["layer", "rms", "std", "none"]
NormPosition = Literal["pre", "post", "sandwich"]
Projections = Literal["separate", "fused"]
Rotary = Literal["none", "half", "interleaved"]
RotaryScaling = Literal["none", "linear", "llama3", "yarn"]
RelativeBias = Literal["none", "t5", "alibi"]
LayerKind = Literal["window", "full"]
Layers = Literal["auto", "unrolled", "rolled"]
RematPolicy = Literal["nothing", "dots", "dots_with_no_batch_dims"]

ELSEWHERE = {
    "swish": "'silu'",
    "gelu_new": "'gelu_tanh'",
    "gelu_pytorch_tanh": "'gelu_tanh'",
    "swiglu": "'silu' with gated = True",
    "geglu": "'gelu' with gated = True",
}
"""Names of activations in other libraries -> their names here."""


CHOICES = {
    "norm": Norm,
    "norm_position": NormPosition,
    "projections": Projections,
    "rotary": Rotary,
    "rotary_scaling": RotaryScaling,
    "relative_bias": RelativeBias,
    "layers": Layers,
    "remat_policy": RematPolicy,
}
FLAGS = (
    "gated",
    "norm_bias",
    "norm_unit_offset",
    "parallel_residual",
    "qkv_bias",
    "output_projection",
    "output_bias",
    "feed_forward_bias",
    "qk_norm",
    "sinks",
    "rotary_truncate",
    "remat",
)
POSITIVE = ("norm_epsilon", "rotary_beta_fast", "rotary_beta_slow")
POSITIVE_OR_NONE = (
    "attention_scale",
    "attention_softcap",
    "rotary_factor",
    "rotary_low_frequency_factor",
    "rotary_high_frequency_factor",
    "rotary_attention_factor",
)


@configuration
class BlockConfig:
    """One transformer block, and with `n_layers` a stack of them."""

    d_model: int
    """Width D of the residual stream, in units."""
    n_layers: int
    """Number L of blocks."""
    n_heads: int
    """Number N of attention heads; divides d_model unless head_dim is given."""
    n_kv_heads: int | None = None
    """Number K of key/value heads; divides n_heads. None: as many as heads."""
    head_dim: int | None = None
    """Width H of one head. None: d_model / n_heads."""
    d_ff: int
    """Width F of the feed-forward layer, in units; 0: no feed-forward layer."""
    activation: Activation = "gelu"
    """Non-linearity of the feed-forward layer; gelu is the exact form (torch's default), quick_gelu is x sigmoid(1.702 x)."""
    gated: bool = False
    """Feed-forward as down(activation(gate(x)) * up(x)) (Shazeer 2020)."""
    norm: Norm = "layer"
    """layer: LayerNorm; rms: RMSNorm; std: by the unbiased standard deviation, epsilon outside the root."""
    norm_position: NormPosition = "pre"
    """pre: x + f(norm(x)); post: norm(x + f(x)), the original; sandwich: x + norm(f(norm(x))) (Gemma 2)."""
    norm_epsilon: float = 1e-5
    """Added to the variance, or to the deviation for `std` (torch's default; flax has 1e-6)."""
    norm_bias: bool = True
    """Bias on every norm but RMSNorm, which has none."""
    norm_unit_offset: bool = False
    """The gain of a norm is 1 + its weight, which starts at 0 (Gemma)."""
    stack_norm: bool | None = None
    """One more norm behind a stack of blocks (torch.nn.Transformer has it with post-norm too). None: with all but post-norm."""
    parallel_residual: bool = False
    """x + attention(norm(x)) + feed_forward(other_norm(x)), side by side (GPT-NeoX)."""
    projections: Projections = "separate"
    """Self-attention's query, key and value as three matrices or as one."""
    qkv_bias: bool = True
    """Bias on query, key and value."""
    output_projection: bool = True
    """Mix the heads with one more matrix after attention."""
    output_bias: bool = True
    """Bias on that matrix."""
    attention_scale: float | None = None
    """Times the product of query and key (T5: 1). None: H^-0.5."""
    attention_softcap: float | None = None
    """Scores s become cap tanh(s / cap), before bias and mask (Gemma 2). None: they stay."""
    qk_norm: bool = False
    """RMSNorm over the width of a head, on queries and on keys, before they are rotated (Qwen 3, Gemma 3)."""
    sinks: bool = False
    """A learned logit a head that joins the softmax over the keys and gives nothing (gpt-oss)."""
    window: int | None = None
    """A query sees the keys less than this many tokens away, itself among them; behind it too, where no mask is causal. It goes
    by a token's index, whatever its position. Cross-attention has none. None: all."""
    layer_pattern: tuple[LayerKind, ...] | None = None
    """Which layers have the window and which see all, repeated over the layers (Gemma 2: ("window", "full")). None: with a
    window, every layer has it."""
    rotary: Rotary = "none"
    """Queries and keys are rotated by their position (Su et al. 2021), but not in cross-attention. Unit i of a head pairs with
    unit i + H / 2 (half: Llama, GPT-NeoX), or units 2i and 2i + 1 pair (interleaved: GPT-J, the paper)."""
    rotary_dim: int | None = None
    """The first so many units of a head are rotated, and the others stay; even. None: all."""
    rotary_base: float = 10000.0
    """Pair i of n turns by base^(-i / n) a token."""
    rotary_window_base: float | None = None
    """The same in layers with a window, where nothing is scaled (Gemma 3). None: as in all layers."""
    rotary_scaling: RotaryScaling = "none"
    """How the angles a token become smaller for longer texts. linear: all by the factor; llama3: long waves alone, with a
    smooth passage; yarn: by a ramp over the pairs (Peng et al. 2023)."""
    rotary_factor: float | None = None
    """How much longer texts are than those before the scaling."""
    rotary_original_context: int | None = None
    """The longest text before the scaling, in tokens (llama3, yarn)."""
    rotary_low_frequency_factor: float | None = None
    """llama3: waves longer than the original context over this are scaled in full."""
    rotary_high_frequency_factor: float | None = None
    """llama3: waves shorter than the original context over this stay."""
    rotary_beta_fast: float = 32.0
    """yarn: pairs that turn more often in the original context stay."""
    rotary_beta_slow: float = 1.0
    """yarn: pairs that turn less often in it are scaled in full."""
    rotary_truncate: bool = True
    """yarn: the ramp begins and ends at whole pairs."""
    rotary_attention_factor: float | None = None
    """yarn: times the rotated units of queries and of keys. None: 0.1 ln(rotary_factor) + 1."""
    relative_bias: RelativeBias = "none"
    """Added to the scores by the distance of key and query, but not in cross-attention. t5: learned for buckets of distances
    (Raffel et al. 2020), one table for all layers; alibi: a fixed slope a head (Press et al. 2022)."""
    relative_buckets: int = 32
    """t5: number of buckets; without a causal mask, half of them are for keys behind the query."""
    relative_distance: int = 128
    """t5: keys so far away and farther share a bucket."""
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
    remat_policy: RematPolicy = "nothing"
    """What remat keeps all the same: nothing, all matrix products (dots), or those with weights (dots_with_no_batch_dims)."""

    def __post_init__(self) -> None:
        for name in ("d_model", "n_layers", "n_heads"):
            check_size(name, getattr(self, name))
        check_size("d_ff", self.d_ff, least=0)
        if self.head_dim is None:
            check_divides("n_heads", self.n_heads, "d_model", self.d_model)
        else:
            check_size("head_dim", self.head_dim)
        if self.n_kv_heads is not None:
            check_size("n_kv_heads", self.n_kv_heads)
            check_divides("n_kv_heads", self.n_kv_heads, "n_heads", self.n_heads)
        check_choice("activation", self.activation, get_args(Activation), elsewhere=ELSEWHERE)
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), get_args(choices))
        for name in ("attention_dropout", "residual_dropout", "feed_forward_dropout"):
            check_number(name, getattr(self, name), 0, below=1)
        for name in FLAGS:
            check_flag(name, getattr(self, name))
        for name in POSITIVE:
            check_number(name, getattr(self, name), 0, open_below=True)
        for name in (name for name in POSITIVE_OR_NONE if getattr(self, name) is not None):
            check_number(name, getattr(self, name), 0, open_below=True)
        if self.stack_norm is not None:
            check_flag("stack_norm", self.stack_norm)
        check_combinations(self)

    @property
    def head_width(self) -> int:
        """Width H of one head."""
        return self.d_model // self.n_heads if self.head_dim is None else self.head_dim

    @property
    def kv_heads(self) -> int:
        """Number K of key/value heads."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def final_norm(self) -> Norm:
        """The norm behind a stack: pre-norm needs one, post-norm ends with one already."""
        wanted = self.norm_position != "post" if self.stack_norm is None else self.stack_norm
        return self.norm if wanted else "none"

    @property
    def windowed_layers(self) -> tuple[bool, ...] | None:
        """Which layers have a window. None: either all or none."""
        pattern = self.layer_pattern
        return None if pattern is None else tuple(pattern[i % len(pattern)] == "window" for i in range(self.n_layers))
