"""Transcriber of a folder of Whisper: audio -> text, window after window."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxformer.checkpoints.opened import open_path
from jaxformer.checkpoints.speech_folder import Speech, read_spectrogram, read_speech
from jaxformer.checkpoints.texts import read_tokenizer
from jaxformer.checkpoints.windows import Attempt, before_window, compression_ratio, cut_segments
from jaxformer.config.settings import BeamConfig, SamplingConfig
from jaxformer.config.spectrogram import SpectrogramConfig
from jaxformer.config.transcription import TranscriptionConfig
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.decoding import translate, translate_beam
from jaxformer.decoding.likelihood import log_probabilities
from jaxformer.decoding.prepare import check_id, check_length
from jaxformer.errors import CheckpointError, InputError
from jaxformer.models import EncoderDecoder
from jaxformer.nn.spectrogram import log_mel
from jaxformer.runs.folder import TOKENIZER
from jaxformer.runtime.jit import jit
from jaxformer.validation.audio import check_audio
from jaxformer.validation.fields import check_kind, check_path


class Asked(NamedTuple):
    """Settings of every window of a transcription."""

    start: list[int]
    """Tokens that a transcript begins with."""
    rules: dict[str, Any]
    """Fields of SamplingConfig and of BeamConfig."""
    beam: BeamConfig | None
    n_tokens: int | None
    prompt: list[int]
    settings: TranscriptionConfig
    key: PRNGKeyArray | None


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
        prompt: str | Sequence[int] | None = None,
        settings: TranscriptionConfig | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Transcript:
        """Write down a waveform of one channel, of floats within +-1.

        `language` is a code, as "en"; without one, it is detected if the model knows several. `task` is "transcribe" or
        "translate" (into English). With `timestamps`, segments have times; audio that is longer than a window of 30 s needs
        them, and is read window after window: each begins where the last whole segment ends. A `beam` searches for the
        likeliest text of each window; without one, each token is the likeliest at its place. `n_tokens` bounds the tokens of a
        window. `prompt` is a text, or ids, that is read before it as if it had been spoken. `settings` say when a window is
        written again, left out, or read after the last one; None: as the folder says. Temperatures above 0 need a `key`.
        InputError for audio that cannot be read, and for what the model does not know.
        """
        features = self.features(audio, sampling_rate)
        timestamps = self._timed(timestamps, len(features) > self.spectrogram.n_frames)
        begin = self.speech.begin(language, task, timestamps=timestamps)
        if None in begin and self.speech.languages:
            begin[begin.index(None)] = self._detected(features)
        start = [token for token in begin if token is not None]
        settings = self.speech.settings if settings is None else settings
        self._check_settings(settings, key)
        asked = Asked(start, self.speech.rules_with(timestamps=timestamps), beam, n_tokens, self._prompt(prompt), settings, key)
        check_kind("beam", beam, (BeamConfig, type(None)), "a BeamConfig")
        segments = tuple(self._segments(features, asked))
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

    def _segments(self, features: Float[np.ndarray, "T M"], asked: Asked) -> Iterator[Segment]:
        """Yield the segments of window after window."""
        seek, frame, context = 0, self.spectrogram.hop / self.spectrogram.sampling_rate, self.model.config.context
        longest, settings, most = self.speech.longest or context, asked.settings, context // 2 - 1
        first = self.model.config.vocab_size if self.speech.first_timestamp is None else self.speech.first_timestamp
        written, conditioned = [np.array(asked.prompt, np.int32)] if asked.prompt else [], settings.condition_on_prev_tokens
        while seek < len(features):
            window = features[seek : seek + self.spectrogram.n_frames]
            before = before_window(written, first, most) if conditioned else asked.prompt
            start = [cast(int, self.speech.previous), *before, *asked.start] if before else asked.start
            longest = min(longest + min(len(start), most), context)  # transformers too adds them again at every window
            room = longest - len(start) if asked.n_tokens is None else check_length(asked.n_tokens, context - len(start), 1)
            padded = np.pad(window, ((0, self.spectrogram.n_frames - len(window)), (0, 0)))
            attempt = self._attempt(padded[None], start, asked, room, seek)
            conditioned = settings.condition_on_prev_tokens and attempt.temperature < HIGH_TEMPERATURE
            if attempt.silent(settings):
                seek += len(window)
                continue
            tokens = attempt.tokens[:-1] if attempt.tokens[-1] == self.speech.end else attempt.tokens
            parts, read = cut_segments(tokens, first, len(window))
            written += [some for *_, some in parts]
            for begins, ends, some in (part for part in parts if part[2].size):
                yield Segment((seek + 2 * begins) * frame, (seek + 2 * ends) * frame, some, self._text(some))
            seek += read

    def _attempt(self, window: np.ndarray, start: list[int], asked: Asked, n_tokens: int, seek: int) -> Attempt:
        """Write one window at one temperature after another, until the settings are content."""
        settings, attempt = asked.settings, None
        for number, temperature in enumerate(settings.temperatures):
            key = None if asked.key is None else jax.random.fold_in(jax.random.fold_in(asked.key, seek), number)
            drawn = {"temperature": temperature, "top_k": self.speech.top_k if temperature else 0}
            sampling = SamplingConfig(**drawn, **asked.rules)
            searched = None if asked.beam is None or temperature else replace(asked.beam, **asked.rules)
            tokens = self._written(window, start, searched or sampling, n_tokens, key)
            likelihood, no_speech = 0.0, 0.0
            if settings.logprob_threshold is not None:
                found, first = log_probabilities(self.model, window, tokens, sampling, start=start, eos=self.speech.end)
                likelihood, no_speech = float(found.mean()), float(first[-len(asked.start), self.speech.no_speech])
            ratio = compression_ratio(tokens, self.model.config.vocab_size)
            attempt = Attempt(tokens, temperature, ratio, likelihood, no_speech)
            if not attempt.wanting(settings):
                break
        return cast(Attempt, attempt)

    def _written(
        self,
        window: np.ndarray,
        start: list[int],
        settings: SamplingConfig | BeamConfig,
        n_tokens: int,
        key: PRNGKeyArray | None,
    ) -> np.ndarray:
        """Return the ids of one window, with its end."""
        given: dict[str, Any] = {"start": start, "eos": self.speech.end, "pad": self.speech.pad}
        if isinstance(settings, BeamConfig):
            tokens = translate_beam(self.model, window, n_tokens, settings, **given).tokens[0, 0]
        else:
            tokens = translate(self.model, window, n_tokens, settings, key=key, **given)[0]
        ends = np.flatnonzero(tokens == self.speech.end)
        return tokens[: ends[0] + 1] if ends.size else tokens

    def _check_settings(self, settings: TranscriptionConfig, key: PRNGKeyArray | None) -> None:
        """Raise InputError for settings that ask for a key, or for a token that the model has not."""
        check_kind("settings", settings, TranscriptionConfig, "a TranscriptionConfig")
        if any(settings.temperatures) and key is None:
            raise InputError(f"temperatures = {settings.temperatures} draw at random; give a key, as key=jax.random.key(0)")
        if settings.no_speech_threshold is not None and self.speech.no_timestamps is None:
            raise InputError("no_speech_threshold needs a no_timestamps_token_id, which generation_config.json does not name")
        if settings.condition_on_prev_tokens and self.speech.previous is None:
            raise InputError("condition_on_prev_tokens needs a prev_sot_token_id, which generation_config.json does not name")

    def _prompt(self, prompt: str | Sequence[int] | None) -> list[int]:
        """Return the ids of a prompt; none without one."""
        if prompt is None:
            return []
        if self.speech.previous is None:
            raise InputError("a prompt needs a prev_sot_token_id, which generation_config.json does not name; leave it out")
        check_kind("prompt", prompt, (str, list, tuple, np.ndarray), "a text, or a list of ids")
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InputError("prompt is a text, and the folder has no tokenizer.json; give ids")
            prompt = self.tokenizer.encode(f" {prompt.strip()}", name="prompt").tolist()
        ids = np.asarray(prompt).tolist()
        for token in ids:
            check_id("prompt", token, self.speech.end)
        if len(ids) > (most := self.model.config.context // 2 - 1):
            raise InputError(f"prompt has {len(ids)} tokens; give at most {most}, half of what the model reads")
        return ids

    def _text(self, tokens: np.ndarray) -> str | None:
        """Return the text of ids without timestamps and special tokens; None without a tokenizer."""
        if self.tokenizer is None:
            return None
        first = self.speech.first_timestamp
        known = tokens < min(self.tokenizer.vocab_size, self.tokenizer.vocab_size if first is None else first)
        return self.tokenizer.decode(tokens[known])


HIGH_TEMPERATURE = 0.5
"""Temperature from which on the next window is not read after what was drawn."""


@jit
def _next_logits(model: EncoderDecoder, frames: Array, target: Array) -> Array:
    return model.decode(target, model.encode(frames))[0, -1]


_log_mel = jit(log_mel, work="write", static_argnums=1)


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
