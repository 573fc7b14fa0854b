"""Log-mel spectrogram of a waveform, as Whisper reads it (Radford et al. 2022, section 2.2)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxformer.config.spectrogram import HIGHEST, SpectrogramConfig

FLOOR = 1e-10
"""Least power of a bin, before the logarithm."""
RANGE = 8.0
"""Largest distance from the loudest bin, in powers of ten."""
AT_ONCE = 3000
"""Number of frames whose Fourier transforms are computed at once, so that memory does not grow with the audio."""
LINEAR_STEP, LINEAR_MELS, LOG_STEP = 200 / 3, 15, math.log(6.4) / 27
"""Slaney's mel scale: Hz of a mel below 1000 Hz, which is mel 15, and from there on the logarithm of the ratio of two mels."""


def mel_filters(config: SpectrogramConfig) -> Float[np.ndarray, "_ M"]:
    """Return the weight of every frequency of the Fourier transform in every mel bin, in float64.

    Bins are triangles of equal area whose corners lie at equal distances on Slaney's mel scale (Slaney 1998, Auditory Toolbox),
    from 0 to 8000 Hz.
    """
    linear = LINEAR_MELS * LINEAR_STEP
    mels = np.linspace(0, LINEAR_MELS + math.log(HIGHEST / linear) / LOG_STEP, config.n_mels + 2)
    corners = np.where(mels < LINEAR_MELS, mels * LINEAR_STEP, linear * np.exp((mels - LINEAR_MELS) * LOG_STEP))
    frequencies = np.linspace(0, config.sampling_rate / 2, config.n_fft // 2 + 1)[:, None]
    rising = (frequencies - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - frequencies) / (corners[2:] - corners[1:-1])
    return np.maximum(np.minimum(rising, falling), 0) * (2 / (corners[2:] - corners[:-2]))


def log_mel(waveform: Float[Array, " X"], config: SpectrogramConfig) -> Float[Array, "T M"]:
    """Return the features of one frame for each `hop` samples, in the waveform's dtype.

    The waveform, of more than n_fft / 2 samples, is mirrored at both ends, and cut into frames under Hann's window. The powers
    in mel bins are at least FLOOR; their logarithms to base 10, at most RANGE below the greatest, are shifted and scaled:
    (x + 4) / 4.
    """
    mirrored = jnp.pad(waveform, config.n_fft // 2, mode="reflect")
    window = jnp.asarray(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(config.n_fft) / config.n_fft), waveform.dtype)
    filters = jnp.asarray(mel_filters(config), waveform.dtype)

    def powers(start: Int[Array, ""]) -> Float[Array, " M"]:
        spectrum = jnp.fft.rfft(jax.lax.dynamic_slice_in_dim(mirrored, start, config.n_fft) * window)
        return jnp.matmul(spectrum.real**2 + spectrum.imag**2, filters, precision="highest")

    starts = jnp.arange(len(waveform) // config.hop, dtype=jnp.int32) * config.hop
    logs = jnp.log10(jnp.maximum(jax.lax.map(powers, starts, batch_size=AT_ONCE), FLOOR))
    return (jnp.maximum(logs, logs.max() - RANGE) + 4) / 4
