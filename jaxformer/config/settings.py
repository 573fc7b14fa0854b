"""Settings of training and decoding: frozen, flat dataclasses, validated when they are created. Imports no jax."""

from typing import Literal, get_args

from jaxformer.config.configuration import configuration
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_choice, check_number, check_size

Spread = Literal["all", "others", "others_but_padding"]
OptimizerName = Literal["sgd", "adam", "adamw"]
Decay = Literal["matrices", "all"]
EarlyStopping = bool | Literal["never"]
Precision = Literal["float32", "bf16"]
ScheduleName = Literal["constant", "step", "noam", "inverse_root", "cosine"]

LEFT_OUT: dict[Spread, int] = {"all": 0, "others": 1, "others_but_padding": 2}
"""Number of classes that label smoothing leaves out: none, the target, or the target and the padding."""
MOST_PENALTY = 10.0
"""Bound of penalties: far beyond useful values, and far below an overflow of float32."""
IGNORE_INDEX = -100
"""Target id that the loss ignores; torch's default."""


@configuration
class OptimizerConfig:
    """Settings of an optimizer, with torch's definitions."""

    name: OptimizerName
    """sgd, adam, or adamw."""
    learning_rate: float
    """Step size, which the schedule scales."""
    momentum: float = 0.0
    """sgd: share of the last step that is kept."""
    beta1: float = 0.9
    """adam, adamw: decay rate of the gradient's mean."""
    beta2: float = 0.999
    """adam, adamw: decay rate of the gradient's mean square."""
    epsilon: float = 1e-8
    """adam, adamw: added to the root of the mean square."""
    weight_decay: float = 0.0
    """Weight decay, a factor of the parameter. sgd, adam: added to its gradient (L2); adamw: decoupled."""
    decay: Decay | None = None
    """Parameters that decay: all of them, or matrices (two axes or more). None: matrices with adamw, else all."""
    clip_norm: float | None = None
    """Clipping: largest global norm of the gradient. None: no clipping."""

    def __post_init__(self) -> None:
        check_choice("name", self.name, get_args(OptimizerName))
        check_number("learning_rate", self.learning_rate, 0, open_below=True)
        for name in ("momentum", "beta1", "beta2"):
            check_number(name, getattr(self, name), 0, below=1)
        check_number("epsilon", self.epsilon, 0, open_below=True)
        check_number("weight_decay", self.weight_decay, 0)
        if self.decay is not None:
            check_choice("decay", self.decay, get_args(Decay))
        if self.clip_norm is not None:
            check_number("clip_norm", self.clip_norm, 0, open_below=True)

    @property
    def decayed(self) -> Decay:
        """Parameters that decay, with the default resolved."""
        return self.decay or ("matrices" if self.name == "adamw" else "all")


@configuration
class ScheduleConfig:
    """Schedule of the learning rate, as a factor of the optimizer's."""

    name: ScheduleName = "constant"
    """constant; step: times `decay` every `decay_every` steps; noam: the paper's; inverse_root: noam with its peak at 1;
    cosine: warm-up, then a half cosine."""
    decay: float = 0.5
    """step: factor of the learning rate after each period."""
    decay_every: int = 1000
    """step: length of a period, in optimizer steps."""
    warmup: int = 0
    """noam, inverse_root, cosine: number of steps up to the peak."""
    d_model: int = 512
    """noam: width of the model, in units."""
    first_step: int = 1
    """noam, inverse_root: number of the first step. 0: as LambdaLR counts, where step 0 has the rate of step 1 (the Annotated
    Transformer)."""
    last: int = 1000
    """cosine: step at which the floor is reached; the factor is constant afterwards."""
    floor: float = 0.1
    """cosine: last value of the factor."""

    def __post_init__(self) -> None:
        check_choice("name", self.name, get_args(ScheduleName))
        check_number("decay", self.decay, 0, open_below=True)
        check_number("floor", self.floor, 0)
        check_size("decay_every", self.decay_every)
        check_size("d_model", self.d_model)
        check_size("warmup", self.warmup, least=1 if self.name in ("noam", "inverse_root") else 0)
        check_size("last", self.last)
        check_size("first_step", self.first_step, least=0)
        if self.name == "cosine" and self.last <= self.warmup:
            raise ConfigError(f"last = {self.last} does not come after warmup = {self.warmup}; give a later step")


@configuration
class TokenRules:
    """Rules for the next token, in sampling and in beam search. Places count generated tokens, from 0."""

    suppressed: tuple[int, ...] = ()
    """Tokens that are never chosen."""
    forced: tuple[tuple[int, int], ...] = ()
    """Pairs (place, token): the token is chosen at that place, regardless of other rules; place -1 is the last one. Costs a
    beam no probability."""
    min_tokens: int = 0
    """Number of other tokens that have to come before an end token."""
    no_repeat_ngram: int = 0
    """Length of token runs that may not occur twice, in the prompt or start token and the generated tokens. 0: no limit."""
    not_first: tuple[int, ...] = ()
    """Tokens that are not chosen at place 0."""
    timestamps: int | None = None
    """Id of the first timestamp; all ids from it on are timestamps, and the one before it is never chosen. A text begins with
    one, they come in pairs (end and begin) and never decrease, and a timestamp is chosen where all of them together are
    likelier than any other token (Radford et al. 2022, section 4.5). None: none."""
    latest_first_timestamp: int | None = None
    """Largest index of the first timestamp, counted from `timestamps`. None: no bound."""

    def __post_init__(self) -> None:
        for name in ("timestamps", "latest_first_timestamp"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name), least=0 if name != "timestamps" else 1)
        if self.latest_first_timestamp is not None and self.timestamps is None:
            raise ConfigError(
                f"latest_first_timestamp = {self.latest_first_timestamp} is not read with timestamps = None; give timestamps, "
                "or leave it out"
            )
        check_size("min_tokens", self.min_tokens, least=0)
        check_size("no_repeat_ngram", self.no_repeat_ngram, least=0)
        for name in ("suppressed", "forced", "not_first"):
            if not isinstance(getattr(self, name), tuple):
                raise ConfigError(f"{name} = {getattr(self, name)!r:.30} is not a tuple; give one, () for none")
        for name in ("suppressed", "not_first"):
            for token in getattr(self, name):
                check_size(name, token, least=0)
        for pair in self.forced:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise ConfigError(f"forced = {pair!r:.30} is not a pair; give (place, token)")
            check_size("forced", pair[0], least=-1)
            check_size("forced", pair[1], least=0)
        places, tokens = [place for place, _ in self.forced], {token for _, token in self.forced}
        if len(set(places)) != len(places):
            raise ConfigError(f"forced = {self.forced!r:.60} names a place twice; give one token to each")
        if both := tokens & set(self.suppressed):
            raise ConfigError(f"forced = {self.forced!r:.60} names token {min(both)}, which is suppressed; choose one")


@configuration
class SamplingConfig(TokenRules):
    """Settings of sampling: after the token rules, these apply to the logits in the order of the fields."""

    repetition_penalty: float = 1.0
    """Divisor of positive logits, and factor of negative ones, of tokens seen before (Keskar et al. 2019). 1: no penalty."""
    temperature: float = 1.0
    """Divisor of the logits. 0: always take the likeliest token."""
    top_k: int = 0
    """Number k of likeliest tokens to keep. 0: all."""
    top_p: float = 1.0
    """Total probability of the likeliest tokens to keep (Holtzman et al. 2020)."""
    min_p: float = 0.0
    """Minimum probability of the tokens to keep, relative to the likeliest one's (Nguyen et al. 2024)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("repetition_penalty", self.repetition_penalty, 1 / MOST_PENALTY, most=MOST_PENALTY)
        check_number("temperature", self.temperature, 0)
        check_size("top_k", self.top_k, least=0)
        check_number("top_p", self.top_p, 0, most=1, open_below=True)
        check_number("min_p", self.min_p, 0, most=1)


@configuration
class BeamConfig(TokenRules):
    """Settings of beam search, with transformers' meanings and, except for the width, its defaults.

    A sequence's score is its log-probability / length^length_penalty, where the length counts the generated tokens including
    the end token.
    """

    width: int = 5
    """Number W of sequences kept at each step."""
    length_penalty: float = 1.0
    """Exponent of the length in a score. 0: no normalization; 1: the mean over tokens; above 1: favors longer sequences; below
    0: shorter ones."""
    early_stopping: EarlyStopping = False
    """Rule for stopping once W sequences have ended. True: stop. False: stop once the best unfinished sequence, scored at its
    current length, is no better. "never": stop once it cannot become better at any length."""
    n_best: int = 1
    """Number of sequences to return, the best first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("width", self.width)
        check_size("n_best", self.n_best)
        check_number("length_penalty", self.length_penalty, -MOST_PENALTY, most=MOST_PENALTY)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise ConfigError(f'early_stopping = {self.early_stopping!r:.30} is not known; give True, False or "never"')
        if self.n_best > self.width:
            raise ConfigError(f"n_best = {self.n_best} is more than width = {self.width}; give a number up to it")
