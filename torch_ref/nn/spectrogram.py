"""Log-mel spectrogram of a waveform, as Whisper reads it (Radford et al. 2022, section 2.2)."""

import math

import torch
from torch import Tensor

from jaxformer.config.spectrogram import HIGHEST, SpectrogramConfig

FLOOR = 1e-10
"""Least power of a bin, before the logarithm."""
RANGE = 8.0
"""Largest distance from the loudest bin, in powers of ten."""
LINEAR_STEP, LINEAR_MELS, LOG_STEP = 200 / 3, 15, math.log(6.4) / 27
"""Slaney's mel scale: Hz of a mel below 1000 Hz, which is mel 15, and from there on the logarithm of the ratio of two mels."""


def mel_filters(config: SpectrogramConfig) -> Tensor:
    """Return the weight of every frequency of the Fourier transform in every mel bin, `_ M`, in float64."""
    linear = LINEAR_MELS * LINEAR_STEP
    highest = LINEAR_MELS + math.log(HIGHEST / linear) / LOG_STEP
    mels = torch.linspace(0, highest, config.n_mels + 2, dtype=torch.float64)
    corners = torch.where(mels < LINEAR_MELS, mels * LINEAR_STEP, linear * ((mels - LINEAR_MELS) * LOG_STEP).exp())
    frequencies = torch.linspace(0, config.sampling_rate / 2, config.n_fft // 2 + 1, dtype=torch.float64)[:, None]
    rising = (frequencies - corners[:-2]) / corners.diff()[:-1]
    falling = (corners[2:] - frequencies) / corners.diff()[1:]
    return torch.minimum(rising, falling).clamp(min=0) * (2 / (corners[2:] - corners[:-2]))


def log_mel(waveform: Tensor, config: SpectrogramConfig) -> Tensor:
    """Return the features of one frame for each `hop` samples, `T M`, in the waveform's dtype."""
    window = torch.hann_window(config.n_fft, dtype=waveform.dtype)
    spectrum = torch.stft(waveform, config.n_fft, config.hop, window=window, return_complex=True)
    powers = spectrum[:, : len(waveform) // config.hop].abs().square().T @ mel_filters(config).to(waveform.dtype)
    logs = powers.clamp(min=FLOOR).log10()
    return (logs.clamp(min=logs.max() - RANGE) + 4) / 4
