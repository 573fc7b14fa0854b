"""Settings of a log-mel spectrogram. Imports no jax."""

from jaxformer.config.configuration import configuration
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_size


@configuration
class SpectrogramConfig:
    """Settings of a log-mel spectrogram; the defaults are Whisper's (Radford et al. 2022, section 2.2)."""

    n_mels: int = 80
    """Number M of mel bins (large-v3: 128)."""
    sampling_rate: int = 16000
    """Samples in a second."""
    n_fft: int = 400
    """Length of the Fourier transform and of its window, in samples."""
    hop: int = 160
    """Distance of two frames, in samples."""
    seconds: int = 30
    """Length of the audio that a model reads at once; shorter audio is followed by silence."""

    def __post_init__(self) -> None:
        for name in ("n_mels", "sampling_rate", "n_fft", "hop", "seconds"):
            check_size(name, getattr(self, name))
        if self.sampling_rate < 2 * HIGHEST:
            raise ConfigError(f"sampling_rate = {self.sampling_rate} is too low for mel bins up to {HIGHEST} Hz; give 16000")
        if self.n_samples <= self.n_fft:
            raise ConfigError(f"n_fft = {self.n_fft} is longer than {self.seconds} s of audio; give a smaller one")

    @property
    def n_samples(self) -> int:
        """Number of samples that a model reads at once."""
        return self.seconds * self.sampling_rate

    @property
    def n_frames(self) -> int:
        """Number of frames that a model reads at once."""
        return self.n_samples // self.hop


HIGHEST = 8000
"""Upper edge of the highest mel bin, in Hz."""
