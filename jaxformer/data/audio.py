"""Waveforms of WAV files."""

import wave
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from jaxformer.errors import InputError, first_line
from jaxformer.validation.fields import check_file

SAMPLE_BYTES, FULL_SCALE = 2, 2**15
"""Bytes of a sample, and the absolute value of the least one."""


def read_wav(path: Path) -> tuple[Float32[np.ndarray, " X"], int]:
    """Return the waveform of a WAV file of 16-bit PCM, within +-1, and its sampling rate in Hz; channels are averaged.

    InputError for a file that is none, or holds samples of another kind.
    """
    check_file(path)
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            held = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise InputError(f"{path} is no WAV file of PCM samples: {first_line(error) or 'it ends too early'}") from None
    if width != SAMPLE_BYTES:
        raise InputError(f"{path} holds samples of {8 * width} bits; convert it to 16 bits, as by ffmpeg -c:a pcm_s16le")
    whole = len(held) // (SAMPLE_BYTES * channels) * channels
    samples = np.frombuffer(held, "<i2", whole).reshape(-1, channels)
    return samples.mean(1, dtype=np.float32) / FULL_SCALE, rate
