"""What a model is made of: blocks, and what comes before and behind them. No jax is imported here."""

from dataclasses import replace
from typing import Literal, get_args

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.configuration import configuration
from jaxformer.config.fixed_table import FixedTable
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_choice, check_flag, check_number, check_size

Positions = Literal["learned", "sinusoid", "sinusoid_blocks", "none"]
Init = Literal["torch", "normal", "gpt2", "xavier"]


def _check_positions(name: str, value: object, rows: int, columns: int) -> None:
    """A kind of positions, or a table that has these at least."""
    if not isinstance(value, FixedTable):
        check_choice(name, value, get_args(Positions))
    elif value.shape[0] < rows or value.shape[1] != columns:
        raise ConfigError(f"{name} = {value} does not fit; give at least {rows} rows of {columns} numbers")


def _check_head(config: "GPTConfig | EncoderDecoderConfig") -> None:
    """What makes logits of states."""
    for name in ("tied", "head_bias"):
        check_flag(name, getattr(config, name))
    check_number("logits_scale", config.logits_scale, 0, open_below=True)
    if config.logits_softcap is not None:
        check_number("logits_softcap", config.logits_softcap, 0, open_below=True)
    if config.tied and config.token_width != config.d_model:
        raise ConfigError(
            f"embedding_width = {config.embedding_width} is not d_model = {config.d_model}, and a tied head reads states "
            "with the embeddings' table; set tied = False"
        )


@configuration
class ModelConfig(BlockConfig):
    """What every model has: blocks, and token ids that come in."""

    vocab_size: int
    """Number V of token ids."""
    context: int
    """Longest sequence, in tokens."""
    embedding_width: int | None = None
    """Width of the embeddings, with a linear layer from it to d_model behind them (ELECTRA, ALBERT). None: d_model, without."""
    positions: Positions | FixedTable = "learned"
    """What is added to a token for the place where it stands; sinusoid alternates sines and cosines, sinusoid_blocks has all
    sines first; a FixedTable (a .npy file) holds numbers that are given and not trained."""
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
        if self.embedding_width is not None:
            check_size("embedding_width", self.embedding_width)
        _check_positions("positions", self.positions, self.context + self.position_offset, self.token_width)
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

    @property
    def token_width(self) -> int:
        """Width of the embeddings."""
        return self.d_model if self.embedding_width is None else self.embedding_width


@configuration
class GPTConfig(ModelConfig):
    """A decoder-only language model."""

    tied: bool = False
    """Read logits out with the token embedding's own table."""
    head_bias: bool = False
    """Bias on the logits."""
    logits_scale: float = 1.0
    """Times the logits, but for their bias (T5: d_model^-0.5 with its tied head)."""
    logits_softcap: float | None = None
    """Logits z become cap tanh(z / cap) (Gemma 2). None: they stay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_head(self)


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
    logits_softcap: float | None = None
    """Logits z become cap tanh(z / cap) (Gemma 2). None: they stay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n_decoder_layers", "source_vocab_size", "source_context"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        if self.padding_idx is not None:
            check_size("padding_idx", self.padding_idx, least=0, most=self.source_ids - 1)
        name = "positions" if self.source_positions is None else "source_positions"
        rows = (self.context if self.source_context is None else self.source_context) + self.position_offset
        _check_positions(name, getattr(self, name), rows, self.token_width)
        if self.parallel_residual:
            raise ConfigError("parallel_residual = True has no place for cross-attention; set parallel_residual = False")
        _check_head(self)

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
