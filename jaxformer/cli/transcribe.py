"""`jaxformer transcribe`: write down the speech of audio files."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro

from jaxformer.cli.flags import parse
from jaxformer.config.settings import BeamConfig
from jaxformer.config.transcription import TranscriptionConfig
from jaxformer.errors import InputError, shown
from jaxformer.runtime.compilation_cache import CacheFlag, use_cache
from jaxformer.validation.fields import check_size


@dataclass(frozen=True, kw_only=True)
class Transcribe(CacheFlag):
    """Write down the speech of WAV files, one line each, or with --timestamps one line for each segment."""

    folder: tyro.conf.Positional[Path]
    """A folder of Whisper that transformers wrote, with its preprocessor_config.json and tokenizer.json."""
    files: tyro.conf.Positional[tuple[Path, ...]]
    """WAV files of 16-bit PCM at the model's sampling rate, 16000 Hz; channels are averaged."""
    language: str | None = None
    """Code of the language, as en. Left out: it is detected, if the model knows several."""
    task: Literal["transcribe", "translate"] | None = None
    """transcribe: in the language that is spoken; translate: into English."""
    timestamps: bool = False
    """Print the times of each segment. Audio of more than 30 s is read with timestamps anyway."""
    beam: int = 1
    """Width of the beam search; 1 takes the likeliest token at each step."""
    prompt: str | None = None
    """A text that is read before the audio's, as names and words that occur in it."""
    temperatures: tuple[float, ...] = (0.0,)
    """Temperatures of the attempts at a window, as 0 0.2 0.4, until one is within the thresholds; 0 draws nothing."""
    compression_ratio_threshold: float | None = None
    """A window whose ids are compressed by more than this repeats itself, and is written again. None: as the folder says."""
    logprob_threshold: float | None = None
    """A window whose mean log-probability of a token is below this is written again. None: as the folder says."""
    no_speech_threshold: float | None = None
    """Probability of no speech from which on a window below --logprob-threshold is left out. None: as the folder says."""
    condition_on_prev_tokens: bool = False
    """Read before each window the text before it."""
    seed: int = 0
    """Seed of the random numbers at temperatures above 0."""

    def __post_init__(self) -> None:
        check_size("beam", self.beam)
        check_size("seed", self.seed, least=0)
        if not self.files:
            raise InputError("no file is given; give a WAV file, or several")

    def settings(self, folders: TranscriptionConfig) -> TranscriptionConfig:
        """Return the folder's settings with those that are given."""
        names = "compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        conditioned = self.condition_on_prev_tokens or folders.condition_on_prev_tokens
        return replace(folders, temperatures=self.temperatures, condition_on_prev_tokens=conditioned, **given)


def main(arguments: list[str]) -> None:
    """Print the transcript of each file, in order."""
    flags = parse(Transcribe, arguments, prog="jaxformer transcribe")
    use_cache(flags.cache)
    import jax

    from jaxformer.checkpoints.transcriber import load_transcriber
    from jaxformer.data.audio import read_wav

    transcriber = load_transcriber(flags.folder)
    if transcriber.tokenizer is None:
        raise InputError(f"{flags.folder} has no tokenizer.json, which makes text of ids; copy the model's own into it")
    beam = None if flags.beam == 1 else BeamConfig(width=flags.beam)
    settings, key = flags.settings(transcriber.speech.settings), jax.random.key(flags.seed)
    asked = {"language": flags.language, "task": flags.task, "timestamps": flags.timestamps or None, "prompt": flags.prompt}
    for path in flags.files:
        waveform, rate = read_wav(path)
        found = transcriber.transcribe(waveform, rate, **asked, beam=beam, settings=settings, key=key)
        if not flags.timestamps:
            print(shown((found.text or "").strip()))
        for segment in found.segments if flags.timestamps else ():
            print(f"{segment.start:.2f}\t{segment.end:.2f}\t{shown((segment.text or '').strip())}")
