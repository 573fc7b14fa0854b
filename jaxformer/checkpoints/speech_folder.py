"""Settings of a folder of Whisper: its spectrogram, its special tokens, and the tokens that a transcript begins with."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxformer.checkpoints.texts import GENERATION, of_search, unread
from jaxformer.config.spectrogram import SpectrogramConfig
from jaxformer.config.transcription import TranscriptionConfig
from jaxformer.errors import CheckpointError, ConfigError, InputError
from jaxformer.runs.folder import CONFIG
from jaxformer.validation.fields import check_kind, read_settings

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
"""transformers' settings of features: a file of their own, or, as version 5 writes a processor, a part of another file."""
SPECTROGRAM = {
    "feature_size": "n_mels",
    "sampling_rate": "sampling_rate",
    "n_fft": "n_fft",
    "hop_length": "hop",
    "chunk_length": "seconds",
}
NEUTRAL = {"dither": 0.0, "padding_value": 0.0, "padding_side": "right", "do_normalize": False}
"""Settings of features with one supported value."""
READ = """alignment_heads begin_suppress_tokens forced_decoder_ids is_multilingual lang_to_id language max_length
max_initial_timestamp_index no_timestamps_token_id prev_sot_token_id prompt_condition_type return_timestamps suppress_tokens
task task_to_id"""
"""Settings of generation that are read here, or change no token."""
USUAL_TOP_K = 50
"""transformers' number of likeliest tokens among which one is drawn, where a folder names none."""
IGNORED = {"bad_words_ids", "forced_bos_token_id", "forced_eos_token_id", "max_new_tokens", "min_length"}
"""Settings that texts follow, and transcripts do not."""
SETTINGS = ("compression_ratio_threshold", "condition_on_prev_tokens", "logprob_threshold", "no_speech_threshold")
"""Settings of generation that are fields of a TranscriptionConfig."""


@dataclass(frozen=True)
class Speech:
    """Special tokens and rules of a folder."""

    start: int
    end: int
    pad: int
    no_timestamps: int | None
    """Token that says that no timestamps follow; the one after it is the first timestamp."""
    languages: Mapping[str, int]
    """Token of each language by its code; empty if the model knows one language alone."""
    tasks: Mapping[str, int]
    language: str | None
    task: str | None
    timestamps: bool
    """True if timestamps are written where the user does not say."""
    forced: tuple[int | None, ...]
    """Tokens after the start where neither language nor task is given; None: the language is to be detected."""
    longest: int | None
    """Number of tokens of a transcript of one window, if the folder bounds it."""
    latest_first_timestamp: int | None
    rules: Mapping[str, Any]
    """Fields of SamplingConfig and of BeamConfig, but for those of timestamps."""
    previous: int | None
    """Token before a text that was written before; None if the folder names none."""
    top_k: int
    """Number of likeliest tokens among which one is drawn."""
    settings: TranscriptionConfig

    @property
    def first_timestamp(self) -> int | None:
        """Id of the first timestamp; None if the model has none."""
        return None if self.no_timestamps is None else self.no_timestamps + 1

    @property
    def no_speech(self) -> int:
        """Id that says that nothing is spoken, the one before `no_timestamps`; 0 if the model has no timestamps."""
        return 0 if self.no_timestamps is None else self.no_timestamps - 1

    def rules_with(self, *, timestamps: bool) -> dict[str, Any]:
        """Return the fields of SamplingConfig and of BeamConfig."""
        given = {"timestamps": self.first_timestamp, "latest_first_timestamp": self.latest_first_timestamp}
        return {**self.rules, **(given if timestamps else {})}

    def begin(self, language: str | None, task: str | None, *, timestamps: bool) -> list[int | None]:
        """Return the tokens that a transcript begins with; None stands for a language that is to be detected."""
        language, task = self.language if language is None else language, self.task if task is None else task
        found: list[int | None] = [self.start]
        if language is None and task is None:
            found += self.forced
        if language is not None:
            found[1:2] = [_token("language", language, self.languages)]
        elif self.languages and len(found) == 1:
            found.append(None)
        if task is not None:
            found.append(_token("task", task, self.tasks))
        elif language is not None and "transcribe" in self.tasks:
            found.append(self.tasks["transcribe"])
        if not timestamps and self.no_timestamps not in (None, found[-1]):
            found.append(self.no_timestamps)
        elif timestamps and found[-1] == self.no_timestamps:
            found.pop()
        return found


def _token(name: str, chosen: str, tokens: Mapping[str, int]) -> int:
    """Return the token of a language's code, or of a task; InputError names those that there are."""
    check_kind(name, chosen, str, "a text")
    if not tokens:
        raise InputError(f"{name} = {chosen!r:.40} cannot be chosen: this model has one {name}; leave it out")
    if chosen not in tokens:
        raise InputError(f"{name} = {chosen!r:.40} is none of this model's; give one of {', '.join(tokens)}")
    return tokens[chosen]


def read_spectrogram(folder: Path) -> SpectrogramConfig:
    """Read the settings of features; InputError if there are none, CheckpointError for what is not supported."""
    said = read_settings(folder / PREPROCESSOR) or read_settings(folder / PROCESSOR).get("feature_extractor", {})
    if not said:
        raise InputError(f"{folder} has no {PREPROCESSOR}, which says how audio becomes features; copy the model's own into it")
    for name, value in NEUTRAL.items():
        if said.get(name, value) != value:
            raise CheckpointError(f"{folder}: {name} = {said[name]!r:.40} of its features is not supported ({value!r} is)")
    try:
        return SpectrogramConfig(**{ours: said[name] for name, ours in SPECTROGRAM.items() if name in said})
    except ConfigError as error:
        raise CheckpointError(f"{folder}/{PREPROCESSOR}: {error}") from None


def read_speech(folder: Path) -> Speech:
    """Read the special tokens and rules, as transformers' generate does; a warning names ignored settings.

    CheckpointError for files that are damaged, lack a token, or ask for what is not supported.
    """
    config, settings = read_settings(folder / CONFIG), read_settings(folder / GENERATION)
    older = of_search(config) if settings else {}
    found = {name: value for name, value in config.items() if name not in older} | settings
    if found.get("prompt_condition_type", "first-segment") != "first-segment":
        raise CheckpointError(f"{folder}: prompt_condition_type of its {GENERATION} is not supported ('first-segment' is)")
    try:
        ignored = {name: settings[name] for name in settings if name in IGNORED}
        if left := unread(settings, found, dict.fromkeys([*READ.split(), *SETTINGS])) | ignored:
            listed = ", ".join(f"{name} = {value!r:.40}" for name, value in left.items())
            warnings.warn(f"{folder}: {listed} of its {GENERATION}: not read here, so transcripts may differ", stacklevel=3)
        return _speech(found)
    except ConfigError as error:
        raise CheckpointError(f"{folder}/{GENERATION}: {error}") from None
    except (TypeError, AttributeError, LookupError, ValueError) as error:
        raise CheckpointError(f"{folder}/{GENERATION} says no way to write transcripts: {error!r:.80}") from None


def _speech(found: Mapping[str, Any]) -> Speech:
    end, forced = found["eos_token_id"], found.get("forced_decoder_ids", ())
    suppressed = found.get("suppress_tokens", ())  # the last but one stands before earlier texts, as in transformers
    if isinstance(end, list):
        (end,) = end
    if [place for place, _ in forced] != [*range(1, len(forced) + 1)]:
        raise ValueError(f"forced_decoder_ids = {forced!r:.60} leave a place out")
    return Speech(
        start=found["decoder_start_token_id"],
        end=end,
        pad=found.get("pad_token_id", end),
        no_timestamps=found.get("no_timestamps_token_id"),
        languages={name.strip("<|>"): token for name, token in found.get("lang_to_id", {}).items()},
        tasks=dict(found.get("task_to_id", {})) if found.get("is_multilingual", True) else {},
        language=found["language"].strip("<|>") if "language" in found else None,
        task=found.get("task"),
        timestamps=bool(found.get("return_timestamps", False)),
        forced=tuple(token for _, token in forced),
        longest=found.get("max_length"),
        latest_first_timestamp=found.get("max_initial_timestamp_index"),
        rules={
            "suppressed": tuple(sorted({*suppressed})),
            "not_first": tuple(found.get("begin_suppress_tokens", ())),
            "no_repeat_ngram": found.get("no_repeat_ngram_size", 0),
        },
        previous=found.get("prev_sot_token_id", suppressed[-2] if len(suppressed) > 1 else None),
        top_k=found.get("top_k", USUAL_TOP_K),
        settings=TranscriptionConfig(**{name: found[name] for name in SETTINGS if name in found}),
    )
