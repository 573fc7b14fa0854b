"""Windows of a transcription: their segments, how often they repeat themselves, and what is read before the next one."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.config.transcription import TranscriptionConfig

Part = tuple[int, int, np.ndarray]
"""Times of a segment's begin and end, in tokens of the source from the window's begin, and its ids."""


class Attempt(NamedTuple):
    """Text of a window, and how sure the model is of it."""

    tokens: np.ndarray
    """Ids, with the end if there is one."""
    temperature: float
    compression_ratio: float
    log_probability: float
    """Mean log-probability of the tokens; 0 where no threshold asks for it."""
    no_speech: float
    """Probability of no speech; 0 where no threshold asks for it."""

    def silent(self, settings: TranscriptionConfig) -> bool:
        """Return whether the window holds no speech, and is left out."""
        return settings.no_speech_threshold is not None and (
            self._unlikely(settings) and self.no_speech > settings.no_speech_threshold
        )

    def wanting(self, settings: TranscriptionConfig) -> bool:
        """Return whether the window is to be written again."""
        most = settings.compression_ratio_threshold
        repeats = most is not None and self.compression_ratio > most
        return (repeats or self._unlikely(settings)) and not self.silent(settings)

    def _unlikely(self, settings: TranscriptionConfig) -> bool:
        return settings.logprob_threshold is not None and self.log_probability < settings.logprob_threshold


def compression_ratio(tokens: np.ndarray, vocab_size: int) -> float:
    """Return the length of ids as bytes, as many to each as the vocabulary needs, over their length as zlib packs them."""
    width = int(np.log2(vocab_size) / 8) + 1
    packed = b"".join(int(token).to_bytes(width, "little") for token in tokens)
    return len(packed) / len(zlib.compress(packed))


def before_window(written: Sequence[np.ndarray], first_timestamp: int, most: int) -> list[int]:
    """Return the last `most` ids of what was written, where a segment that ends on two timestamps is without the second one."""
    whole = [it[:-1] if len(it) > 2 and it[-2] >= first_timestamp else it for it in written]
    return np.concatenate(whole)[-most:].tolist() if whole else []


def cut_segments(tokens: np.ndarray, first_timestamp: int, n_frames: int) -> tuple[list[Part], int]:
    """Cut the ids of a window at its pairs of timestamps; return the segments, and the number of frames that were read.

    What follows the last pair is cut off, and read again in the next window; but a single timestamp at the end says that
    nothing more is spoken in this one. Without a pair, the window is one segment.
    """
    times, timed = tokens - first_timestamp, tokens >= first_timestamp
    pairs = [int(place) + 1 for place in np.flatnonzero(timed[:-1] & timed[1:])]
    if not pairs:
        last = times[timed][-1] if timed.any() else 0
        return [(0, int(last) if last else n_frames // 2, tokens)], n_frames
    closed = bool(timed[-1] and not timed[-2])
    cuts = [*pairs, len(tokens)] if closed else [*pairs[:-1], pairs[-1] + 1]
    ends = [cut - 1 for cut in cuts[:-1]] + [cuts[-1] - (1 if closed else 2)]
    begins = [0, *cuts[:-1]]
    parts = [(max(int(times[a]), 0), int(times[z]), tokens[a:cut]) for a, z, cut in zip(begins, ends, cuts, strict=True)]
    return parts, n_frames if closed else 2 * max(int(times[cuts[-1] - 2]), 0) or n_frames
