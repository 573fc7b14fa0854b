"""How a model is trained, and how its tokens are chosen: frozen, flat dataclasses, checked when they are built. No jax."""

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
"""How many classes label smoothing leaves out: none, the wanted one, or the padding too."""
MOST_PENALTY = 10.0
"""Far beyond use, and far from where float32 would overflow."""
IGNORE_INDEX = -100
"""A target that is not counted; torch's default."""


@configuration
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
    """Times the parameter. sgd, adam: added to its gradient (L2). adamw: decoupled."""
    decay: Decay | None = None
    """Which parameters decay: all of them, or matrices, which have two axes or more. None: matrices with adamw, else all."""
    clip_norm: float | None = None
    """Largest global norm of the gradient; None: any."""

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
        """Which parameters decay, the default filled in."""
        return self.decay or ("matrices" if self.name == "adamw" else "all")


@configuration
class ScheduleConfig:
    """How the learning rate changes, as a factor of the optimizer's."""

    name: ScheduleName = "constant"
    """constant; step: times `decay` every `decay_every`; noam: the paper's; inverse_root: the same with its peak at 1; cosine:
    warm-up, then a half cosine."""
    decay: float = 0.5
    """step: the factor."""
    decay_every: int = 1000
    """step: its period, in optimizer steps."""
    warmup: int = 0
    """noam, inverse_root, cosine: steps until the peak."""
    d_model: int = 512
    """noam: width of the model, in units."""
    first_step: int = 1
    """noam, inverse_root: number of the first step. 0: as LambdaLR counts, with step 1's rate for step 0 (the Annotated
    Transformer)."""
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
        check_size("warmup", self.warmup, least=1 if self.name in ("noam", "inverse_root") else 0)
        check_size("last", self.last)
        check_size("first_step", self.first_step, least=0)
        if self.name == "cosine" and self.last <= self.warmup:
            raise ConfigError(f"last = {self.last} does not come after warmup = {self.warmup}; give a later step")


@configuration
class TokenRules:
    """Which tokens may come next, whether they are drawn or searched for. Places count the chosen tokens, from 0."""

    suppressed: tuple[int, ...] = ()
    """Tokens that are never chosen."""
    forced: tuple[tuple[int, int], ...] = ()
    """(place, token): the token chosen there, whatever the other rules say; -1 is the last place. It costs a beam nothing."""
    min_tokens: int = 0
    """No end is chosen before so many other tokens."""
    no_repeat_ngram: int = 0
    """No run of this many tokens occurs twice, the prompt or the start token being read too; 0: any may."""

    def __post_init__(self) -> None:
        check_size("min_tokens", self.min_tokens, least=0)
        check_size("no_repeat_ngram", self.no_repeat_ngram, least=0)
        for name in ("suppressed", "forced"):
            if not isinstance(getattr(self, name), tuple):
                raise ConfigError(f"{name} = {getattr(self, name)!r:.30} is not a tuple; give one, () for none")
        for token in self.suppressed:
            check_size("suppressed", token, least=0)
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
    """How the next token is chosen from its logits; after the rules for tokens, these apply in this order."""

    repetition_penalty: float = 1.0
    """Divides positive logits of tokens that were there before, multiplies negative ones (Keskar et al. 2019); 1: none."""
    temperature: float = 1.0
    """Divides the logits; 0 takes the likeliest token."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0: all."""
    top_p: float = 1.0
    """Keep the likeliest tokens up to this total probability (Holtzman et al. 2020)."""
    min_p: float = 0.0
    """Keep tokens of at least this part of the likeliest one's probability (Nguyen et al. 2024)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("repetition_penalty", self.repetition_penalty, 1 / MOST_PENALTY, most=MOST_PENALTY)
        check_number("temperature", self.temperature, 0)
        check_size("top_k", self.top_k, least=0)
        check_number("top_p", self.top_p, 0, most=1, open_below=True)
        check_number("min_p", self.min_p, 0, most=1)


@configuration
class BeamConfig(TokenRules):
    """How the likeliest sequences are searched for: transformers' meanings, and its defaults but for the width.

    A sequence's score is its log-probability / length^length_penalty. Its length counts the chosen tokens, the end among them.
    """

    width: int = 5
    """Number W of sequences kept at each step."""
    length_penalty: float = 1.0
    """0: none; 1: the mean over its tokens; above, longer sequences still; below 0, shorter ones."""
    early_stopping: EarlyStopping = False
    """When W sequences have ended: True stops. False stops once the best that goes on is no better at its length of now.
    "never" stops once it cannot get better at any length."""
    n_best: int = 1
    """How many of them to give back, the best first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("width", self.width)
        check_size("n_best", self.n_best)
        check_number("length_penalty", self.length_penalty, -MOST_PENALTY, most=MOST_PENALTY)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise ConfigError(f'early_stopping = {self.early_stopping!r:.30} is not known; give True, False or "never"')
        if self.n_best > self.width:
            raise ConfigError(f"n_best = {self.n_best} is more than width = {self.width}; give a number up to it")
