"""`jaxformer translate`: translate texts with a trained model."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import tyro

from jaxformer.config.settings import BeamConfig
from jaxformer.errors import InputError
from jaxformer.flags import parse
from jaxformer.validation.fields import check_size

LINES = 512
"""Lines that are read before the first of them are translated: sources of similar lengths go into one batch."""


@dataclass(frozen=True, kw_only=True)
class Translate:
    """Translate texts: those given, the lines of a file, or those of standard input."""

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    texts: tyro.conf.Positional[tuple[str, ...]] = ()
    """What to translate. None: the lines of --file, or of standard input."""
    file: Path | None = None
    """A text file, a source in each line; may be packed as .gz."""
    beam: int = 5
    """Sequences that the search keeps; 1 takes the likeliest token at each place."""
    n_best: int = 1
    """How many translations of each source to write; more than one are written with their scores before them, and a tab."""
    length_penalty: float = 1.0
    """A score is the log-probability / length^this: above 1 for longer translations, 0 for none."""
    attention: Path | None = None
    """Draw what each token of the one translation looks at in the one source: a PNG."""
    too_long: Literal["cut", "refuse"] = "cut"
    """What happens to a source of more tokens than the model reads."""

    def __post_init__(self) -> None:
        check_size("beam", self.beam)
        check_size("n_best", self.n_best)
        if self.texts and self.file is not None:
            raise InputError("both texts and --file are given; give one of them")
        if self.attention is not None and len(self.texts) != 1:
            raise InputError(f"--attention draws one source, and {len(self.texts)} are given; give one text")
        if self.attention is not None and (self.attention.suffix != ".png" or not self.attention.parent.is_dir()):
            raise InputError(f"--attention {self.attention} cannot be written; name a .png file in a folder that is there")


def main(arguments: list[str]) -> None:
    """Print the translation of each source, in their order."""
    flags = parse(Translate, arguments, prog="jaxformer translate")
    beam = BeamConfig(width=flags.beam, n_best=flags.n_best, length_penalty=flags.length_penalty, early_stopping=True)
    from jaxformer.training.plots import can_plot, plot_alignment
    from jaxformer.training.translator import load_translator

    if flags.attention is not None and not can_plot():
        raise InputError("--attention needs matplotlib; pip install 'jaxformer[viz]'")
    translator = load_translator(flags.folder, too_long=flags.too_long)
    typed = not flags.texts and flags.file is None and sys.stdin is not None and sys.stdin.isatty()
    for texts in chunks(sources(flags), 1 if typed else LINES):
        for found in translator.beam(texts, beam):
            for text, score in found:
                print(text if flags.n_best == 1 else f"{score:.4f}\t{text}")
            if flags.attention is not None:
                plot_alignment(flags.attention, *translator.alignment(texts[0], found[0].text))
        sys.stdout.flush()


def sources(flags: Translate) -> Iterable[str]:
    """The texts to translate, one after another."""
    from jaxformer.data.parallel import lines

    if flags.texts:
        return flags.texts
    return standard_input() if flags.file is None else lines(flags.file)


def standard_input() -> Iterator[str]:
    """Lines as they come; InputError names the line and the byte that is not UTF-8."""
    if sys.stdin is None:
        raise InputError("nothing to translate: standard input is closed; give texts, or --file")
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            where = f"standard input, line {number}"
            raise InputError(f"{where}, is not UTF-8: byte 0x{byte:02x} at offset {error.start}; convert it first") from None


def chunks(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of at most so many texts."""
    rest = iter(texts)
    while chunk := list(islice(rest, size)):
        yield chunk
