"""Settings of a transcription, window after window. Imports no jax."""

import math

from jaxformer.config.configuration import configuration
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_flag, check_number


@configuration
class TranscriptionConfig:
    """Settings by which a window is written again, left out, or read after the text before it (Radford et al. 2022, sec. 3.8).

    They mean what the arguments of transformers' `generate` mean.
    """

    temperatures: tuple[float, ...] = (0.0,)
    """Temperatures of the attempts at a window, until one is within the thresholds; the last one is kept. 0: the likeliest
    tokens, or a beam's; above 0, tokens are drawn."""
    compression_ratio_threshold: float | None = None
    """Largest ratio of a window's ids, in bytes, to the same compressed by zlib: a larger one says that a text repeats itself.
    transformers names 1.35. None: no bound."""
    logprob_threshold: float | None = None
    """Least mean log-probability of a window's tokens, with its end. None: no bound."""
    no_speech_threshold: float | None = None
    """Probability of no speech from which on a window whose tokens are below `logprob_threshold` is left out. None: none is."""
    condition_on_prev_tokens: bool = False
    """Read before each window the last tokens that were written, as many as fill half of the context, unless the window before
    was drawn at a temperature of 0.5 or more."""

    def __post_init__(self) -> None:
        if not isinstance(self.temperatures, tuple) or not self.temperatures:
            raise ConfigError(f"temperatures = {self.temperatures!r:.60} is no tuple of numbers; give one, as (0.0, 0.2, 0.4)")
        for temperature in self.temperatures:
            check_number("temperatures", temperature, 0)
        ranges = ("compression_ratio", 0, math.inf), ("logprob", -math.inf, 0), ("no_speech", 0, 1)
        for name, least, most in ((f"{name}_threshold", least, most) for name, least, most in ranges):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), least, most=most)
        check_flag("condition_on_prev_tokens", self.condition_on_prev_tokens)
        if self.no_speech_threshold is not None and self.logprob_threshold is None:
            raise ConfigError(
                f"no_speech_threshold = {self.no_speech_threshold} is not read with logprob_threshold = None; give both"
            )
