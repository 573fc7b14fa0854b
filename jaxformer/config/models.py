"""Settings of models: their blocks, embeddings and heads. Imports no jax."""

from dataclasses import replace
from typing import Any, Literal, get_args

from jaxformer.config.blocks import ELSEWHERE, Activation, BlockConfig
from jaxformer.config.combinations import ReadWith, check_no_layer_embedding, check_read
from jaxformer.config.configuration import FixedTable, configuration
from jaxformer.config.embeddings import EmbeddingConfig, Positions, check_embeddings, check_positions
from jaxformer.config.heads import HeadTransformConfig, check_head_transform
from jaxformer.config.layer_kinds import FirstLayersConfig, LayerKindsConfig, check_first_layer, check_layer_kinds
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_choice, check_divides, check_flag, check_number, check_size

Init = Literal["torch", "normal", "gpt2", "xavier"]
EncoderHead = Literal["none", "masked_lm", "sequence_classification", "token_classification", "question_answering"]
LABELLED = ("sequence_classification", "token_classification")
HeadPooling = Literal["cls", "mean"]


def _check_head(config: "GPTConfig | EncoderDecoderConfig") -> None:
    """Check the settings of the head, which computes logits from states."""
    for name in ("tied", "head_bias"):
        check_flag(name, getattr(config, name))
    check_number("logits_scale", config.logits_scale, 0, open_below=True)
    if config.logits_softcap is not None:
        check_number("logits_softcap", config.logits_softcap, 0, open_below=True)


@configuration
class ModelConfig(BlockConfig, EmbeddingConfig):
    """Settings of every model of tokens: its blocks and its embeddings."""

    vocab_size: int
    """Number V of token ids."""
    context: int
    """Longest sequence, in tokens."""
    init: Init = "gpt2"
    """Initial parameters: torch's defaults, N(0, 0.02), GPT-2's, or Glorot's uniform distribution for every matrix."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("vocab_size", self.vocab_size)
        check_size("context", self.context)
        check_choice("init", self.init, get_args(Init))
        check_embeddings(self)

    @property
    def token_width(self) -> int:
        """Width of the embeddings."""
        return self.d_model if self.embedding_width is None else self.embedding_width

    @property
    def position_width(self) -> int:
        """Width of the position embedding."""
        return self.d_model if self.positions_last else self.token_width


@configuration
class GPTConfig(ModelConfig, LayerKindsConfig, HeadTransformConfig):
    """Decoder-only language model."""

    tied: bool = False
    """Compute logits with the token embedding's table (tied weights)."""
    head_bias: bool = False
    """Bias of the logits."""
    logits_scale: float = 1.0
    """Factor of the logits before their bias (T5: d_model^-0.5 with its tied head)."""
    logits_softcap: float | None = None
    """Soft cap of the logits z: cap tanh(z / cap) (Gemma 2). None: no cap."""
    balance_loss: float = 0.0
    """Weight of the load-balancing loss of experts in training (Fedus et al. 2021, equation 4, over all layers)."""
    router_z_loss: float = 0.0
    """Weight of the router's z-loss in training (Zoph et al. 2022, equation 5)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_head(self)
        check_head_transform(self)
        for name in ("balance_loss", "router_z_loss"):
            check_number(name, getattr(self, name), 0)
            if getattr(self, name) and not self.n_experts:
                raise ConfigError(
                    f"{name} = {getattr(self, name)} is not read with n_experts = 0; set n_experts, or leave it out"
                )
        check_first_layer(self)
        check_layer_kinds(self)
        if self.balance_loss and (self.router_correction or self.expert_groups > 1):
            raise ConfigError(
                f"balance_loss = {self.balance_loss} counts the experts with the largest scores, which router_correction and "
                "expert_groups change; set balance_loss = 0"
            )


ENCODER_READ_WITH: ReadWith = {
    "pooler_activation": ("pooler", (True,)),
    "labels": ("head", LABELLED),
    "head_transform": ("head", (*LABELLED, "question_answering")),
    "head_dropout": ("head", (*LABELLED, "question_answering")),
    "head_pooling": ("head", ("sequence_classification",)),
}
"""Field of an encoder -> the field it depends on, and the values of that field with which it is read."""


@configuration
class EncoderConfig(ModelConfig, FirstLayersConfig, HeadTransformConfig):
    """Encoder: every token attends to all tokens."""

    causal: bool = False
    """Causal mask: every token attends to itself and to those before it alone (CLIP's texts)."""
    token_types: int = 0
    """Number of token types (BERT's segments), each with an embedding. 0: none."""
    pooler: bool = False
    """Pooler: a dense layer on the first token's state, for the whole sequence (BERT)."""
    pooler_activation: Activation = "tanh"
    """Activation of the pooler (DistilBERT's classifier: relu; ELECTRA's: gelu)."""
    head: EncoderHead = "none"
    """Head, which computes logits from states. masked_lm: of every token, with the token embedding's table;
    token_classification: of every token; sequence_classification: of the pooled state, or without a pooler of the state that
    `head_pooling` names; question_answering: of every token as the start and as the end of an answer."""
    head_pooling: HeadPooling = "cls"
    """State of a sequence without a pooler. cls: the first token's; mean: the mean of the tokens that some token sees, all but
    padding (ModernBERT)."""
    labels: tuple[str, ...] = ()
    """Names of the labels, one for each logit of a classification."""
    head_dropout: float = 0.0
    """Probability to drop a unit of what the layer of the logits reads, except in masked_lm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_no_layer_embedding(self)
        check_size("token_types", self.token_types, least=0)
        for name in ("causal", "pooler"):
            check_flag(name, getattr(self, name))
        check_choice("pooler_activation", self.pooler_activation, get_args(Activation), elsewhere=ELSEWHERE)
        check_choice("head", self.head, get_args(EncoderHead))
        check_choice("head_pooling", self.head_pooling, get_args(HeadPooling))
        check_head_transform(self)
        check_number("head_dropout", self.head_dropout, 0, below=1)
        if not isinstance(self.labels, tuple) or not all(isinstance(it, str) for it in self.labels):
            raise ConfigError(f"labels = {self.labels!r:.60} is no tuple of names; give one, as ('negative', 'positive')")
        check_read(self, ENCODER_READ_WITH)
        check_first_layer(self)
        if self.pooler and self.head_pooling != "cls":
            raise ConfigError(f"head_pooling = {self.head_pooling!r} is not read with pooler = True; leave one of them out")
        if self.head in LABELLED and not self.labels:
            raise ConfigError(f"head = {self.head!r} needs labels; give their names, as ('negative', 'positive')")

    @property
    def transformed(self) -> bool:
        """True if the head has a dense layer, activation and norm before the layer of the logits."""
        return self.head == "masked_lm" or self.head_transform

    @property
    def n_logits(self) -> int:
        """Number of logits of a token, or of a sequence."""
        return {"masked_lm": self.vocab_size, "question_answering": 2}.get(self.head, len(self.labels))


@configuration
class EncoderDecoderConfig(ModelConfig):
    """Sequence to sequence model; `n_layers` counts the encoder's blocks, `vocab_size` the target's token ids."""

    n_decoder_layers: int | None = None
    """Number of decoder blocks. None: n_layers, as in the encoder."""
    n_decoder_heads: int | None = None
    """Number of the decoder's attention heads; divides d_model. None: n_heads, as in the encoder."""
    source_vocab_size: int | None = None
    """Number of source token ids, which have an embedding of their own. None: source and target share one embedding."""
    source_features: int | None = None
    """Number M of features of each frame of a source that has no ids, as the bins of a log-mel spectrogram; a convolution stem
    makes one source token of two frames (Whisper). None: the source is ids."""
    source_context: int | None = None
    """Longest source, in tokens. None: `context`."""
    source_positions: Positions | FixedTable | None = None
    """Position embedding of the encoder. None: `positions`, as in the decoder."""
    source_embedding_scale: bool | None = None
    """Multiply the source's token embeddings by sqrt(d_model). None: `embedding_scale`, as the target's."""
    tied: bool = False
    """Compute logits with the target embedding's table (tied weights)."""
    head_bias: bool = False
    """Bias of the logits."""
    logits_scale: float = 1.0
    """Factor of the logits before their bias (T5: d_model^-0.5 with its tied head)."""
    logits_softcap: float | None = None
    """Soft cap of the logits z: cap tanh(z / cap) (Gemma 2). None: no cap."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_no_layer_embedding(self)
        for name in ("n_decoder_layers", "source_vocab_size", "source_features", "source_context"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        if self.source_embedding_scale is not None:
            check_flag("source_embedding_scale", self.source_embedding_scale)
        if self.n_decoder_heads is not None:
            self._check_decoder_heads(self.n_decoder_heads)
        if self.source_features is not None and self.source_vocab_size is not None:
            raise ConfigError(
                f"source_vocab_size = {self.source_vocab_size} is not read with source_features = {self.source_features}, as "
                "such a source has no ids; leave one of them out"
            )
        if self.padding_idx is not None:
            check_size("padding_idx", self.padding_idx, least=0, most=self.source_ids - 1)
        name = "positions" if self.source_positions is None else "source_positions"
        rows = (self.context if self.source_context is None else self.source_context) + self.position_offset
        check_positions(name, getattr(self, name), rows, self.token_width)
        if self.rotary_scaling in ("dynamic", "longrope"):
            raise ConfigError(f"rotary_scaling = {self.rotary_scaling!r} is for models of one stack; give 'linear' or 'yarn'")
        if self.kv_latent is not None:
            raise ConfigError(f"kv_latent = {self.kv_latent} is for models of one stack; leave it out")
        if self.parallel_residual:
            raise ConfigError("parallel_residual = True has no place for cross-attention; set parallel_residual = False")
        _check_head(self)

    def _check_decoder_heads(self, heads: int) -> None:
        check_size("n_decoder_heads", heads)
        check_divides("n_decoder_heads", heads, "d_model", self.d_model)
        for name in ("n_kv_heads", "head_dim"):
            if (value := getattr(self, name)) is not None:
                raise ConfigError(
                    f"{name} = {value} with n_decoder_heads = {heads} would be of two kinds of heads; leave it out"
                )

    @property
    def decoder(self) -> "EncoderDecoderConfig":
        """Settings of the decoder's blocks: the encoder's, with the decoder's own numbers of blocks and heads."""
        if self.n_decoder_layers is None and self.n_decoder_heads is None:
            return self
        layers = self.n_layers if self.n_decoder_layers is None else self.n_decoder_layers
        heads = self.n_heads if self.n_decoder_heads is None else self.n_decoder_heads
        return replace(self, n_layers=layers, n_heads=heads, n_decoder_layers=None, n_decoder_heads=None)

    @property
    def source(self) -> "EncoderDecoderConfig":
        """Settings of the source embedding: this configuration with what is the source's own."""
        own: dict[str, Any] = {
            "context": self.source_context,
            "positions": self.source_positions,
            "embedding_scale": self.source_embedding_scale,
        }
        given = {name: value for name, value in own.items() if value is not None}
        if not given and not self.positions_last:
            return self
        return replace(self, **given, **{f"source_{name}": None for name in own}, positions_last=False)

    @property
    def source_ids(self) -> int:
        """Number of source token ids."""
        return self.vocab_size if self.source_vocab_size is None else self.source_vocab_size
