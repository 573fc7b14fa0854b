"""`jaxformer transcribe`: write down the speech of audio files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from jaxformer.cli.flags import parse
from jaxformer.config.settings import BeamConfig
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

    def __post_init__(self) -> None:
        check_size("beam", self.beam)
        if not self.files:
            raise InputError("no file is given; give a WAV file, or several")


def main(arguments: list[str]) -> None:
    """Print the transcript of each file, in order."""
    flags = parse(Transcribe, arguments, prog="jaxformer transcribe")
    use_cache(flags.cache)
    from jaxformer.checkpoints.transcriber import load_transcriber
    from jaxformer.data.audio import read_wav

    transcriber = load_transcriber(flags.folder)
    if transcriber.tokenizer is None:
        raise InputError(f"{flags.folder} has no tokenizer.json, which makes text of ids; copy the model's own into it")
    beam = None if flags.beam == 1 else BeamConfig(width=flags.beam)
    for path in flags.files:
        waveform, rate = read_wav(path)
        timestamps = flags.timestamps or None
        found = transcriber.transcribe(
            waveform, rate, language=flags.language, task=flags.task, timestamps=timestamps, beam=beam
        )
        if not flags.timestamps:
            print(shown((found.text or "").strip()))
        for segment in found.segments if flags.timestamps else ():
            print(f"{segment.start:.2f}\t{segment.end:.2f}\t{shown((segment.text or '').strip())}")
