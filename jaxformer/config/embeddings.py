"""Settings of the embeddings of token ids and positions. Imports no jax."""

from typing import Any, Literal, get_args

from jaxformer.config.configuration import FixedTable, configuration
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_choice, check_flag, check_number, check_size

Positions = Literal["learned", "sinusoid", "sinusoid_blocks", "none"]


@configuration
class EmbeddingConfig:
    """Settings of the embeddings of token ids and positions."""

    embedding_width: int | None = None
    """Width of the embeddings, followed by a linear layer to d_model (ELECTRA, ALBERT); a tied head then has one back to it,
    without a bias (OPT of 350 M). None: d_model, and no such layers."""
    embedding_bias: bool = True
    """Bias of the linear layer after the embeddings."""
    positions: Positions | FixedTable = "learned"
    """Position embedding, added to the token embedding. sinusoid: sines and cosines alternate; sinusoid_blocks: all sines
    first; a FixedTable (a .npy file): given numbers, not trained."""
    position_offset: int = 0
    """Position of the first token (BART: 2)."""
    embedding_scale: bool = False
    """Multiply token embeddings by sqrt(d_model) (Vaswani et al. 2017, section 3.4)."""
    embedding_multiplier: float = 1.0
    """Further factor of the token embeddings (Granite)."""
    padding_idx: int | None = None
    """Token id whose embedding starts at zero and gets no gradient from lookups, as in torch.nn.Embedding; a tied head still
    trains it. None: all embeddings are trained."""
    positions_last: bool = False
    """Add the positions after the norm and the linear layer of the embeddings (OPT of 350 M); in an encoder-decoder, those of
    the target alone (Blenderbot-small)."""
    embedding_norm: bool = False
    """Norm of the sum of token and position embeddings (BERT, BART)."""
    embedding_dropout: float = 0.0
    """Probability to drop a unit of the sum of token and position embeddings."""
    embedding_std: float | None = None
    """Initial standard deviation of the token embeddings. None: that of `init`."""


def check_positions(name: str, value: object, rows: int, columns: int) -> None:
    """Check a kind of positions, or a table: at least this many rows, exactly this many columns."""
    if not isinstance(value, FixedTable):
        check_choice(name, value, get_args(Positions))
    elif value.shape[0] < rows or value.shape[1] != columns:
        raise ConfigError(f"{name} = {value} does not fit; give at least {rows} rows of {columns} numbers")


def check_embeddings(config: Any) -> None:
    """Raise ConfigError for a setting of the embeddings that is out of range, unused or impossible."""
    check_size("position_offset", config.position_offset, least=0)
    for name in ("embedding_scale", "embedding_norm", "embedding_bias", "positions_last"):
        check_flag(name, getattr(config, name))
    if config.embedding_width is not None:
        check_size("embedding_width", config.embedding_width)
    elif not config.embedding_bias:
        raise ConfigError("embedding_bias = False is not read with embedding_width = None; set embedding_width")
    check_positions("positions", config.positions, config.context + config.position_offset, config.position_width)
    if config.positions_last and (config.positions == "none" or not (config.embedding_norm or config.embedding_width)):
        raise ConfigError("positions_last = True needs positions, and an embedding_norm or an embedding_width before them")
    if config.padding_idx is not None:
        check_size("padding_idx", config.padding_idx, least=0, most=config.vocab_size - 1)
    check_number("embedding_dropout", config.embedding_dropout, 0, below=1)
    check_number("embedding_multiplier", config.embedding_multiplier, 0, open_below=True)
    if config.embedding_norm and config.norm == "none":
        raise ConfigError("embedding_norm = True needs a norm; set norm = 'layer', or embedding_norm = False")
    if config.embedding_std is not None:
        check_number("embedding_std", config.embedding_std, 0, open_below=True)
