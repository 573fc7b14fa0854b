"""What a model is made of: frozen, flat dataclasses, checked when they are built. No jax is imported here."""

from dataclasses import replace
from typing import Literal, get_args

from jaxformer.config.configuration import configuration
from jaxformer.config.fixed_table import FixedTable
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_choice, check_divides, check_flag, check_number, check_size

Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"]
Norm = Literal["layer", "rms", "std", "none"]
NormPosition = Literal["pre", "post"]
Projections = Literal["separate", "fused"]
Positions = Literal["learned", "sinusoid", "sinusoid_blocks", "none"]
Init = Literal["torch", "normal", "gpt2", "xavier"]
Layers = Literal["auto", "unrolled", "rolled"]

ELSEWHERE = {
    "swish": "'silu'",
    "gelu_new": "'gelu_tanh'",
    "gelu_pytorch_tanh": "'gelu_tanh'",
    "swiglu": "'silu' with gated = True",
    "geglu": "'gelu' with gated = True",
}
"""Names of activations in other libraries -> their names here."""


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
    """pre: x + f(norm(x)); post: norm(x + f(x)), the original."""
    norm_epsilon: float = 1e-5
    """Added to the variance, or to the deviation for `std` (torch's default; flax has 1e-6)."""
    norm_bias: bool = True
    """Bias on every norm but RMSNorm, which has none."""
    stack_norm: bool | None = None
    """One more norm behind a stack of blocks (torch.nn.Transformer has it with post-norm too). None: with pre-norm."""
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
        if self.head_dim is None:
            check_divides("n_heads", self.n_heads, "d_model", self.d_model)
        else:
            check_size("head_dim", self.head_dim)
        if self.n_kv_heads is not None:
            check_size("n_kv_heads", self.n_kv_heads)
            check_divides("n_kv_heads", self.n_kv_heads, "n_heads", self.n_heads)
        check_choice("activation", self.activation, get_args(Activation), elsewhere=ELSEWHERE)
        check_choice("norm", self.norm, get_args(Norm))
        check_choice("norm_position", self.norm_position, get_args(NormPosition))
        check_choice("projections", self.projections, get_args(Projections))
        check_choice("layers", self.layers, get_args(Layers))
        check_number("norm_epsilon", self.norm_epsilon, 0, open_below=True)
        for name in ("attention_dropout", "residual_dropout", "feed_forward_dropout"):
            check_number(name, getattr(self, name), 0, below=1)
        for name in ("gated", "norm_bias", "qkv_bias", "output_projection", "output_bias", "feed_forward_bias", "remat"):
            check_flag(name, getattr(self, name))
        if self.stack_norm is not None:
            check_flag("stack_norm", self.stack_norm)
        if not self.output_projection and self.output_bias:
            raise ConfigError("output_bias = True needs output_projection = True; set output_bias = False")
        if not self.output_projection and self.n_heads * self.head_width != self.d_model:
            raise ConfigError(
                f"head_dim = {self.head_dim} makes heads {self.n_heads * self.head_width} wide in all, which "
                f"output_projection = False adds to d_model = {self.d_model}; set output_projection = True"
            )

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
        wanted = self.norm_position == "pre" if self.stack_norm is None else self.stack_norm
        return self.norm if wanted else "none"


def _check_positions(name: str, value: object, rows: int, columns: int) -> None:
    """A kind of positions, or a table that has these at least."""
    if not isinstance(value, FixedTable):
        check_choice(name, value, get_args(Positions))
    elif value.shape[0] < rows or value.shape[1] != columns:
        raise ConfigError(f"{name} = {value} does not fit; give at least {rows} rows of {columns} numbers")


@configuration
class ModelConfig(BlockConfig):
    """What every model has: blocks, and token ids that come in."""

    vocab_size: int
    """Number V of token ids."""
    context: int
    """Longest sequence, in tokens."""
    positions: Positions | FixedTable = "learned"
    """What tells the model where a token stands; sinusoid alternates sines and cosines, sinusoid_blocks has all sines first; a
    FixedTable (a .npy file) holds numbers that are given and not trained."""
    position_offset: int = 0
    """Position of the first token (BART: 2)."""
    embedding_scale: bool = False
    """Multiply token embeddings by sqrt(d_model) (Vaswani et al. 2017, section 3.4)."""
    padding_idx: int | None = None
    """Token id whose embedding starts at zero and gets no gradient from being looked up, as torch.nn.Embedding has it; a tied
    head still trains it. None: all are trained."""
    embedding_norm: bool = False
    """A norm after the embedding + position sum (BERT, BART)."""
    embedding_dropout: float = 0.0
    """Probability to drop a unit of the embedding + position sum."""
    init: Init = "gpt2"
    """Where parameters start: torch's defaults, N(0, 0.02), GPT-2's, or Glorot's for every matrix."""
    embedding_std: float | None = None
    """Standard deviation that token embeddings start with. None: as `init` has it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("vocab_size", self.vocab_size)
        check_size("context", self.context)
        check_size("position_offset", self.position_offset, least=0)
        _check_positions("positions", self.positions, self.context + self.position_offset, self.d_model)
        if self.padding_idx is not None:
            check_size("padding_idx", self.padding_idx, least=0, most=self.vocab_size - 1)
        check_choice("init", self.init, get_args(Init))
        check_number("embedding_dropout", self.embedding_dropout, 0, below=1)
        for name in ("embedding_scale", "embedding_norm"):
            check_flag(name, getattr(self, name))
        if self.embedding_norm and self.norm == "none":
            raise ConfigError("embedding_norm = True needs a norm; set norm = 'layer', or embedding_norm = False")
        if self.embedding_std is not None:
            check_number("embedding_std", self.embedding_std, 0, open_below=True)


@configuration
class GPTConfig(ModelConfig):
    """A decoder-only language model."""

    tied: bool = False
    """Read logits out with the token embedding's own table."""
    head_bias: bool = False
    """Bias on the logits."""
    logits_scale: float = 1.0
    """Times the logits, but for their bias (T5: d_model^-0.5 with its tied head)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tied", "head_bias"):
            check_flag(name, getattr(self, name))
        check_number("logits_scale", self.logits_scale, 0, open_below=True)


@configuration
class EncoderConfig(ModelConfig):
    """An encoder whose every token sees all others."""

    token_types: int = 0
    """Number of token types (BERT's segments), each with an embedding; 0: none."""
    pooler: bool = False
    """A tanh layer on the first token's state, for the whole sequence (BERT)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("token_types", self.token_types, least=0)
        check_flag("pooler", self.pooler)


@configuration
class EncoderDecoderConfig(ModelConfig):
    """A sequence to sequence model; `n_layers` is the encoder's, `vocab_size` the target's."""

    n_decoder_layers: int | None = None
    """Number of decoder blocks. None: as many as the encoder has."""
    source_vocab_size: int | None = None
    """Number of source token ids, with an embedding of their own. None: source and target share one embedding."""
    source_context: int | None = None
    """Longest source, in tokens. None: as the target, `context`."""
    source_positions: Positions | FixedTable | None = None
    """What tells the encoder where a token stands. None: as the decoder, `positions`."""
    tied: bool = False
    """Read logits out with the target embedding's own table."""
    head_bias: bool = False
    """Bias on the logits."""
    logits_scale: float = 1.0
    """Times the logits, but for their bias (T5: d_model^-0.5 with its tied head)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n_decoder_layers", "source_vocab_size", "source_context"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        if self.padding_idx is not None:
            check_size("padding_idx", self.padding_idx, least=0, most=self.source_ids - 1)
        name = "positions" if self.source_positions is None else "source_positions"
        rows = (self.context if self.source_context is None else self.source_context) + self.position_offset
        _check_positions(name, getattr(self, name), rows, self.d_model)
        for name in ("tied", "head_bias"):
            check_flag(name, getattr(self, name))
        check_number("logits_scale", self.logits_scale, 0, open_below=True)

    @property
    def decoder(self) -> BlockConfig:
        """The decoder's blocks: the encoder's with their own number."""
        return self if self.n_decoder_layers is None else replace(self, n_layers=self.n_decoder_layers)

    @property
    def source(self) -> "EncoderDecoderConfig":
        """What embeds the source: the same settings with the source's own context and positions."""
        if self.source_context is None and self.source_positions is None:
            return self
        positions = self.positions if self.source_positions is None else self.source_positions
        context = self.context if self.source_context is None else self.source_context
        return replace(self, context=context, positions=positions, source_context=None, source_positions=None)

    @property
    def source_ids(self) -> int:
        """Number of source token ids."""
        return self.vocab_size if self.source_vocab_size is None else self.source_vocab_size
