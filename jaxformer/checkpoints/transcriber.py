"""Transcriber of a folder of Whisper: audio -> text, window after window."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxformer.checkpoints.opened import open_path
from jaxformer.checkpoints.speech_folder import Speech, read_spectrogram, read_speech
from jaxformer.checkpoints.texts import read_tokenizer
from jaxformer.config.settings import BeamConfig, SamplingConfig
from jaxformer.config.spectrogram import SpectrogramConfig
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.decoding import translate, translate_beam
from jaxformer.decoding.prepare import check_length
from jaxformer.errors import CheckpointError, InputError, type_of
from jaxformer.models import EncoderDecoder
from jaxformer.nn.spectrogram import log_mel
from jaxformer.runs.folder import TOKENIZER
from jaxformer.runtime.jit import jit
from jaxformer.validation.fields import check_kind, check_path


class Segment(NamedTuple):
    """Part of a transcript."""

    start: float
    """Time of its first word in the audio, in seconds."""
    end: float
    tokens: np.ndarray
    """Ids, timestamps included."""
    text: str | None
    """Text; None if the folder has no tokenizer."""


class Transcript(NamedTuple):
    """Transcript of an audio."""

    tokens: np.ndarray
    """Ids of all segments, timestamps included, without the tokens that a transcript begins and ends with."""
    segments: tuple[Segment, ...]
    text: str | None
    """Text of all segments; None if the folder has no tokenizer."""
    language: str | None
    """Code of the language that was given or detected; None if the model knows one language alone."""


@dataclass(frozen=True, eq=False)
class Transcriber:
    """Audio -> text, as transformers' WhisperForConditionalGeneration writes it.

    transcriber = jf.load_transcriber("whisper-tiny")
    found = transcriber.transcribe(waveform, 16000, language="en")
    """

    model: EncoderDecoder
    spectrogram: SpectrogramConfig
    speech: Speech
    tokenizer: Tokenizer | None

    def transcribe(
        self,
        audio: Float[np.ndarray, " X"],
        sampling_rate: int,
        *,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool | None = None,
        beam: BeamConfig | None = None,
        n_tokens: int | None = None,
    ) -> Transcript:
        """Write down a waveform of one channel, of floats within +-1.

        `language` is a code, as "en"; without one, it is detected if the model knows several. `task` is "transcribe" or
        "translate" (into English). With `timestamps`, segments have times; audio that is longer than a window of 30 s needs
        them, and is read window after window: each begins where the last whole segment ends. A `beam` searches for the
        likeliest text of each window; without one, each token is the likeliest at its place. `n_tokens` bounds the tokens of a
        window. InputError for audio that cannot be read, and for what the model does not know.
        """
        features = self.features(audio, sampling_rate)
        timestamps = self._timed(timestamps, len(features) > self.spectrogram.n_frames)
        begin = self.speech.begin(language, task, timestamps=timestamps)
        if None in begin and self.speech.languages:
            begin[begin.index(None)] = self._detected(features)
        start = [token for token in begin if token is not None]
        rules = self.speech.rules_with(timestamps=timestamps)
        if beam is None:
            settings: SamplingConfig | BeamConfig = SamplingConfig(temperature=0, **rules)
        else:
            check_kind("beam", beam, BeamConfig, "a BeamConfig")
            settings = replace(beam, **rules)
        segments = tuple(self._segments(features, start, settings, n_tokens))
        codes = {token: code for code, token in self.speech.languages.items()}
        tokens = np.concatenate([np.zeros(0, np.int32), *(each.tokens for each in segments)])
        return Transcript(tokens, segments, self._text(tokens), next((codes[it] for it in start if it in codes), None))

    def features(self, audio: Float[np.ndarray, " X"], sampling_rate: int) -> Float[np.ndarray, "T M"]:
        """Return the features of audio that is followed by silence up to the length of a window; longer audio as it is."""
        config, wide = self.spectrogram, jax.tree.leaves(self.model)[0].dtype == np.float64
        waveform = check_audio(audio, sampling_rate, config).astype(np.float64 if wide else np.float32)
        padded = np.pad(waveform, (0, max(config.n_samples - len(waveform), 0)))
        return np.asarray(_log_mel(padded, config))

    def _timed(self, timestamps: bool | None, long: bool) -> bool:
        """Return whether timestamps are written; InputError if the model has none, or if long audio lacks them."""
        check_kind("timestamps", timestamps, (bool, type(None)), "True, False or None")
        if timestamps is False and long:
            raise InputError(
                f"audio of more than {self.spectrogram.seconds} s needs timestamps, which say where a window begins; give "
                "timestamps=True, or shorter audio"
            )
        timed = long or (self.speech.timestamps if timestamps is None else timestamps)
        if timed and self.speech.no_timestamps is None:
            raise InputError("generation_config.json names no no_timestamps_token_id: this model writes no timestamps")
        return timed

    def _detected(self, features: Float[np.ndarray, "T M"]) -> int:
        """Return the token of the likeliest language of the first window."""
        window, tokens = features[None, : self.spectrogram.n_frames], np.array([*self.speech.languages.values()])
        logits = np.asarray(_next_logits(self.model, window, np.array([[self.speech.start]], np.int32)))
        return int(min(tokens[logits[tokens] == logits[tokens].max()]))

    def _segments(
        self, features: Float[np.ndarray, "T M"], start: list[int], settings: SamplingConfig | BeamConfig, n_tokens: int | None
    ) -> Iterator[Segment]:
        """Yield the segments of window after window."""
        seek, frame, context = 0, self.spectrogram.hop / self.spectrogram.sampling_rate, self.model.config.context
        longest = self.speech.longest or context
        first = self.model.config.vocab_size if self.speech.first_timestamp is None else self.speech.first_timestamp
        while seek < len(features):
            window = features[seek : seek + self.spectrogram.n_frames]
            longest = min(longest + len(start), context)  # transformers too adds the start again at every window
            room = longest - len(start) if n_tokens is None else check_length(n_tokens, context - len(start), 1)
            padded = np.pad(window, ((0, self.spectrogram.n_frames - len(window)), (0, 0)))
            tokens = self._written(padded[None], start, settings, room)
            parts, read = cut_segments(tokens, first, len(window))
            for begins, ends, some in (part for part in parts if part[2].size):
                yield Segment((seek + 2 * begins) * frame, (seek + 2 * ends) * frame, some, self._text(some))
            seek += read

    def _written(
        self, window: np.ndarray, start: list[int], settings: SamplingConfig | BeamConfig, n_tokens: int
    ) -> np.ndarray:
        """Return the ids of one window, up to its end."""
        given: dict[str, Any] = {"start": start, "eos": self.speech.end, "pad": self.speech.pad}
        if isinstance(settings, BeamConfig):
            tokens = translate_beam(self.model, window, n_tokens, settings, **given).tokens[0, 0]
        else:
            tokens = translate(self.model, window, n_tokens, settings, **given)[0]
        ends = np.flatnonzero(tokens == self.speech.end)
        return tokens[: ends[0]] if ends.size else tokens

    def _text(self, tokens: np.ndarray) -> str | None:
        """Return the text of ids without timestamps and special tokens; None without a tokenizer."""
        if self.tokenizer is None:
            return None
        first = self.speech.first_timestamp
        known = tokens < min(self.tokenizer.vocab_size, self.tokenizer.vocab_size if first is None else first)
        return self.tokenizer.decode(tokens[known])


LOUDEST = 16.0
"""Largest sample that may be one of floats within +-1, which resampling and filters go beyond a little."""
Part = tuple[int, int, np.ndarray]
"""Times of a segment's begin and end, in tokens of the source from the window's begin, and its ids."""


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


@jit
def _next_logits(model: EncoderDecoder, frames: Array, target: Array) -> Array:
    return model.decode(target, model.encode(frames))[0, -1]


_log_mel = jax.jit(log_mel, static_argnums=1)


def load_transcriber(path: Path | str) -> Transcriber:
    """Load a folder of Whisper: the model, the settings of its features and of its special tokens, and its tokenizer, if any.

    A path that does not exist is taken as a name on the Hugging Face hub. InputError if it is no such folder; CheckpointError
    if its files are corrupt, or ask for something that is not supported.
    """
    found = open_path(check_path("path", path))
    model = found.model
    if not isinstance(model, EncoderDecoder) or model.config.source_features is None:
        raise InputError(f"{path} holds a model that reads no audio; give a folder of Whisper")
    spectrogram, speech = read_spectrogram(found.place), read_speech(found.place)
    wanted = 2 * model.config.source.context, model.config.source_features
    if (spectrogram.n_frames, spectrogram.n_mels) != wanted:
        raise CheckpointError(
            f"{found.place}: its features are {spectrogram.n_frames} frames of {spectrogram.n_mels}, and the model reads "
            f"{wanted[0]} of {wanted[1]}; copy the model's own preprocessor_config.json into the folder"
        )
    tokenizer = read_tokenizer(found) if (found.place / TOKENIZER).is_file() else None
    return Transcriber(model, spectrogram, speech, tokenizer)
