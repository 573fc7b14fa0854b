"""Checks of audio: one channel of samples at the rate that a model reads."""

from typing import Any

import numpy as np

from jaxformer.config.spectrogram import SpectrogramConfig
from jaxformer.errors import InputError, type_of

LOUDEST = 16.0
"""Largest sample that may be one of floats within +-1, which resampling and filters go beyond a little."""


def check_audio(audio: Any, sampling_rate: Any, config: SpectrogramConfig) -> np.ndarray:
    """Return a waveform as an array; InputError names what is wrong with it."""
    if sampling_rate != config.sampling_rate:
        raise InputError(
            f"sampling_rate = {sampling_rate!r:.40}, and this model reads {config.sampling_rate} Hz; resample the audio"
        )
    waveform = np.asarray(audio)
    if not np.issubdtype(waveform.dtype, np.floating):
        raise InputError(f"audio is {waveform.dtype if waveform.shape else type_of(audio)}; give floats within +-1")
    if waveform.ndim != 1:
        raise InputError(f"audio has shape {waveform.shape}; give one channel, as the mean of several")
    if not waveform.size:
        raise InputError("audio is empty; give at least one sample")
    if (bad := np.flatnonzero(~np.isfinite(waveform))).size:
        raise InputError(f"audio[{bad[0]}] = {waveform[bad[0]]}; give finite samples")
    if (most := np.abs(waveform).max()) > LOUDEST:
        raise InputError(f"audio has samples up to {most:.3g}; give floats within +-1 (of 16 bits, divide by 32768)")
    return waveform
