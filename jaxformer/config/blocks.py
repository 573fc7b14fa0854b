"""Settings of a transformer block: a frozen, flat dataclass, validated when it is created. Imports no jax."""

from typing import Literal, get_args

from jaxformer.config.combinations import check_combinations
from jaxformer.config.configuration import configuration
from jaxformer.config.experts import ExpertsConfig, check_experts
from jaxformer.config.latent import LatentConfig, check_latent
from jaxformer.config.rotary import RotaryConfig, RotaryEmbedding, check_rotary
from jaxformer.validation.fields import check_choice, check_divides, check_flag, check_number, check_size

Activation = Literal["relu", "relu_squared", "gelu", "gelu_tanh", "gelu_bloom", "quick_gelu", "silu", "tanh"]
Norm = Literal["layer", "rms", "std", "none"]
NormPosition = Literal["pre", "post", "sandwich", "output"]
Projections = Literal["separate", "fused"]
RelativeBias = Literal["none", "t5", "alibi", "alibi_bfloat16", "disentangled"]
QKNormOver = Literal["head", "each", "all"]
QKNormKind = Literal["rms", "layer"]
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
"""Names of activations in other libraries -> their names in jaxformer."""


CHOICES = {
    "norm": Norm,
    "norm_position": NormPosition,
    "projections": Projections,
    "relative_bias": RelativeBias,
    "qk_norm_over": QKNormOver,
    "qk_norm_kind": QKNormKind,
    "layers": Layers,
    "remat_policy": RematPolicy,
}
FLAGS = (
    "gated",
    "norm_bias",
    "norm_affine",
    "norm_unit_offset",
    "parallel_residual",
    "shared_norm",
    "qkv_bias",
    "key_bias",
    "value_projection",
    "value_norm",
    "output_projection",
    "output_bias",
    "feed_forward_bias",
    "qk_norm",
    "qk_norm_affine",
    "qk_norm_bias",
    "qk_norm_after_rotary",
    "sinks",
    "relative_per_layer",
    "relative_norm",
    "output_scale",
    "shared_layers",
    "remat",
)
POSITIVE = ("norm_epsilon", "residual_multiplier")
POSITIVE_OR_NONE = ("attention_scale", "attention_softcap", "clip_qkv", "gate_limit", "layer_scale")


@configuration
class BlockConfig(RotaryConfig, LatentConfig, ExpertsConfig):
    """Settings of a transformer block, and with `n_layers` of a stack of blocks."""

    d_model: int
    """Width D of the residual stream, in units."""
    n_layers: int
    """Number L of blocks."""
    n_heads: int
    """Number N of attention heads; divides d_model unless head_dim is given."""
    n_kv_heads: int | None = None
    """Number K of key/value heads; divides n_heads. None: n_heads."""
    head_dim: int | None = None
    """Width H of one head. None: d_model / n_heads."""
    d_ff: int
    """Width F of the feed-forward layer, in units. 0: no feed-forward layer."""
    activation: Activation = "gelu"
    """Activation of the feed-forward layer; gelu is the exact form (torch's default), quick_gelu is x sigmoid(1.702 x), and
    gelu_bloom is gelu_tanh with sqrt(2 / pi) rounded to 0.79788456 (BLOOM)."""
    gated: bool = False
    """Gated feed-forward layer: down(activation(gate(x)) * up(x)) (Shazeer 2020)."""
    gate_limit: float | None = None
    """Clamped gated layer: down(activation(min(gate(x), limit)) * (1 + up(x) clamped to +-limit)) (gpt-oss). None: no clamp."""
    norm: Norm = "layer"
    """layer: LayerNorm; rms: RMSNorm; std: division by the unbiased standard deviation plus epsilon."""
    norm_position: NormPosition = "pre"
    """pre: x + f(norm(x)); post: norm(x + f(x)), the original; sandwich: x + norm(f(norm(x))) (Gemma 2); output: x + norm(f(x))
    (OLMo 2)."""
    norm_epsilon: float = 1e-5
    """Epsilon added to the variance, or to the deviation for `std` (default: torch's; flax has 1e-6)."""
    norm_bias: bool = True
    """Bias of every norm except RMSNorm, which has none."""
    norm_affine: bool = True
    """Gain, and bias, of every norm except those of queries, keys and latents. False: none (OLMo)."""
    norm_unit_offset: bool = False
    """Gain of a norm as 1 + weight, with weights that start at 0 (Gemma)."""
    stack_norm: bool | None = None
    """One more norm after a stack of blocks (torch.nn.Transformer has it with post-norm too). None: yes, except with
    post-norm."""
    parallel_residual: bool = False
    """Parallel residual connection: x + attention(norm(x)) + feed_forward(other_norm(x)) (GPT-NeoX)."""
    shared_norm: bool = False
    """One norm for both branches of a parallel residual connection (GPT-J, Phi, Falcon, Cohere)."""
    residual_multiplier: float = 1.0
    """Factor of the output of every sub-layer before it is added (Granite)."""
    layer_scale: float | None = None
    """Layer scale: a learned factor of each unit of a sub-layer's output, which starts at this number (Touvron et al. 2021;
    DINOv2). None: none."""
    output_scale: bool = False
    """Factor of a block's output, one number that is not trained (Gemma 4)."""
    layer_embedding: int = 0
    """Width P of an embedding of each token for every layer, which a gate of the layer's output lets through (per-layer
    embeddings, Gemma 4). 0: none."""
    projections: Projections = "separate"
    """Query, key and value of self-attention as three matrices (separate) or as one (fused)."""
    qkv_bias: bool = True
    """Bias of the query, key and value projections; with kv_latent, of the projections to latents."""
    key_bias: bool = True
    """Bias of the key projection; False: queries and values alone have one (Whisper)."""
    value_projection: bool = True
    """Projection of values. False: the projected keys, before their norm and rotation, are values too (Gemma 4)."""
    value_norm: bool = False
    """RMSNorm of the values of each head, without a gain (Gemma 4)."""
    output_projection: bool = True
    """Output projection after attention, which mixes the heads."""
    output_bias: bool = True
    """Bias of the output projection."""
    attention_scale: float | None = None
    """Factor of the attention scores before the softmax (T5: 1). None: H^-0.5."""
    attention_softcap: float | None = None
    """Soft cap of the attention scores s, before bias and mask: cap tanh(s / cap) (Gemma 2). None: no cap."""
    clip_qkv: float | None = None
    """Clamp of queries, keys and values to +-clip_qkv, after their norms and before their rotation (OLMo, MPT). None: none."""
    qk_norm: bool = False
    """Norm of queries and keys, before their rotation (Qwen 3, Gemma 3)."""
    qk_norm_kind: QKNormKind = "rms"
    """Kind of that norm. rms: RMSNorm; layer: LayerNorm (Phi, StableLM, Cohere)."""
    qk_norm_over: QKNormOver = "head"
    """Units that the norm of queries and keys goes over. head: those of each head; each: the same, with a gain for every head
    of its own (StableLM, Cohere); all: those of all heads (OLMoE)."""
    qk_norm_affine: bool = True
    """Gain of the norm of queries and keys. False: none (nanochat)."""
    qk_norm_bias: bool = False
    """Bias of a LayerNorm of queries and keys (Phi)."""
    qk_norm_after_rotary: bool = False
    """Norm queries and keys after their rotation (nanochat)."""
    sinks: bool = False
    """Attention sinks: one learned logit per head that joins the softmax over the keys and contributes no value (gpt-oss)."""
    window: int | None = None
    """Sliding window: a query attends to keys with `abs(i - j) < window`, where i and j are indices, not `positions`. Keys on
    both sides, unless a causal mask is given; not applied in cross-attention. None: all keys."""
    layer_pattern: tuple[LayerKind, ...] | None = None
    """Attention of each layer, repeated over the layers: sliding window or full, as ("window", "full") for Gemma 2. None: if
    `window` is set, all layers use it."""
    relative_bias: RelativeBias = "none"
    """Bias added to the attention scores by the distance of key and query, not applied in cross-attention. t5: learned for
    buckets of distances (Raffel et al. 2020); alibi: a fixed slope per head (Press et al. 2022); alibi_bfloat16: a slope times
    the position of the key, rounded to bfloat16 and divided by sqrt(head_dim), meant for causal masks (Falcon);
    disentangled: products of queries and keys with those of an encoding of the distance (He et al. 2020, DeBERTa)."""
    relative_buckets: int = 32
    """t5: number of buckets; without a causal mask, half of them are for keys after the query. disentangled: number of buckets
    for keys before the query, and for those after it."""
    relative_distance: int = 128
    """t5, disentangled: distance from which on all keys share one bucket."""
    relative_per_layer: bool = False
    """t5: a table for each layer (umT5)."""
    relative_norm: bool = False
    """disentangled: norm of the encodings of distances."""
    feed_forward_bias: bool = True
    """Bias of the feed-forward matrices."""
    attention_dropout: float = 0.0
    """Probability to drop an attention weight."""
    residual_dropout: float = 0.0
    """Probability to drop a unit of a sub-layer's output."""
    feed_forward_dropout: float = 0.0
    """Probability to drop a unit inside the feed-forward layer."""
    shared_layers: bool = False
    """One block for all layers: they share its parameters (ALBERT, Lan et al. 2020)."""
    layers: Layers = "auto"
    """Execution of a stack. unrolled: fast; rolled: compile time does not grow with depth; auto: by depth."""
    remat: bool = False
    """Rematerialization: recompute each block in the backward pass instead of storing its activations."""
    remat_policy: RematPolicy = "nothing"
    """Values that remat stores nevertheless: nothing, all matrix products (dots), or products with weights
    (dots_with_no_batch_dims)."""

    def __post_init__(self) -> None:
        for name in ("d_model", "n_layers", "n_heads"):
            check_size(name, getattr(self, name))
        check_size("d_ff", self.d_ff, least=0)
        check_size("layer_embedding", self.layer_embedding, least=0)
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
        check_rotary(self)
        check_combinations(self)
        check_latent(self)
        check_experts(self)

    @property
    def head_width(self) -> int:
        """Width H of one head."""
        return self.d_model // self.n_heads if self.head_dim is None else self.head_dim

    @property
    def kv_heads(self) -> int:
        """Number K of key/value heads."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def value_width(self) -> int:
        """Width of the values of one head."""
        if self.kv_latent is None or self.rotary_dim is None:
            return self.head_width
        return self.head_width - self.rotary_dim if self.value_dim is None else self.value_dim

    @property
    def cached_heads(self) -> tuple[int, int]:
        """Number and width of the key heads that a cache holds; latents are one head, and their own values."""
        if self.kv_latent is None or self.rotary_dim is None:
            return self.kv_heads, self.head_width
        return 1, self.kv_latent + self.rotary_dim

    @property
    def cached_numbers(self) -> int:
        """Number of numbers that a cache holds of one token in one layer."""
        heads, width = self.cached_heads
        return heads * width * (2 if self.kv_latent is None else 1)

    @property
    def rotary_embedding(self) -> RotaryEmbedding | None:
        """Rotary positions as a value; None if there are none."""
        return self.rotary_of(self.head_width)

    @property
    def final_norm(self) -> Norm:
        """Norm after a stack ("none" if there is none): pre-norm needs one, post-norm already ends with one."""
        wanted = self.norm_position != "post" if self.stack_norm is None else self.stack_norm
        return self.norm if wanted else "none"

    @property
    def windowed_layers(self) -> tuple[bool, ...] | None:
        """True for each layer with a sliding window; None if no layer_pattern is given: all layers are alike."""
        pattern = self.layer_pattern
        return None if pattern is None else tuple(pattern[i % len(pattern)] == "window" for i in range(self.n_layers))

    @property
    def rotated_layers(self) -> tuple[bool, ...] | None:
        """True for each layer with rotary positions; None if no rotary_pattern is given: all layers are alike."""
        pattern = self.rotary_pattern
        return None if pattern is None else tuple(pattern[i % len(pattern)] for i in range(self.n_layers))
