"""`jaxformer translate`: translate texts with a trained model."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from jaxformer.cli.flags import parse
from jaxformer.config.mesh import MeshConfig, check_model
from jaxformer.config.settings import BeamConfig
from jaxformer.data.corpora import UNPACKED
from jaxformer.errors import InputError, shown
from jaxformer.plots.style import check_can_plot, check_picture, write
from jaxformer.runtime.compilation_cache import CacheFlag, use_cache
from jaxformer.runtime.environment import in_order
from jaxformer.validation.fields import check_size

if TYPE_CHECKING:
    from jaxformer.checkpoints.translator import Translator

LINES = 512
"""Number of lines that are read before the first are translated: sources of similar lengths go into one batch."""


@dataclass(frozen=True, kw_only=True)
class Translate(CacheFlag):
    """Translate texts: those given, the lines of a file, or those of standard input."""

    folder: tyro.conf.Positional[Path]
    """The run folder, or a folder that transformers wrote, with its tokenizer.json."""
    texts: tyro.conf.Positional[tuple[str, ...]] = ()
    """Texts to translate. Left out: the lines of --file, or of standard input."""
    file: Path | None = None
    """A text file with one source in each line, plain or .gz."""
    unpacked: int = UNPACKED
    """Maximum size, in MiB, of an unpacked .gz file."""
    beam: int = 5
    """Width of the beam search; 1 takes the likeliest token at each step."""
    n_best: int = 1
    """Number of translations of each source to print; if more than one, each has its score and a tab before it."""
    length_penalty: float = 1.0
    """A score is the log-probability divided by length^length_penalty; a larger value prefers longer translations."""
    attention: Path | None = None
    """Save a PNG or SVG of the cross-attention weights. It needs exactly one text."""
    too_long: Literal["cut", "refuse"] = "cut"
    """Treatment of a source that is longer than the model's context."""
    first: str | None = None
    """A token that every target begins with, as NLLB's language: fra_Latn."""

    mesh: str | None = None
    """Devices by axes, as tensor=4: weights and cache are sharded. None: one device."""

    def __post_init__(self) -> None:
        check_size("unpacked", self.unpacked)
        check_size("beam", self.beam)
        check_size("n_best", self.n_best)
        if self.texts and self.file is not None:
            raise InputError("both texts and --file are given; give one of them")
        if self.attention is not None and len(self.texts) != 1:
            raise InputError(f"--attention draws one source, and {len(self.texts)} are given; give one text")
        if self.attention is not None:
            check_picture(self.attention)

    @property
    def chosen(self) -> dict[str, Any]:
        """Settings that replace those of a folder; None: chosen by the user."""
        given = {"num_beams": (self.beam, Translate.beam), "length_penalty": (self.length_penalty, Translate.length_penalty)}
        return {name: here if here == default else None for name, (here, default) in given.items()} | {"early_stopping": True}


def main(arguments: list[str]) -> None:
    """Print the translation of each source, in order."""
    flags = parse(Translate, arguments, prog="jaxformer translate")
    use_cache(flags.cache)
    beam = BeamConfig(width=flags.beam, n_best=flags.n_best, length_penalty=flags.length_penalty, early_stopping=True)
    from jaxformer.checkpoints.texts import open_translator
    from jaxformer.parallel.mesh import on_mesh
    from jaxformer.parallel.placement import put

    if flags.attention is not None:
        check_can_plot("--attention")
    mesh = None if flags.mesh is None else MeshConfig.read(flags.mesh)
    if mesh is not None:
        in_order()
    translator = open_translator(flags.folder, flags.too_long, flags.first, flags.chosen)
    check_model(translator.model.config, mesh)
    with on_mesh(mesh):
        show(flags, replace(translator, model=put(translator.model)), beam)


def show(flags: Translate, translator: "Translator", beam: BeamConfig) -> None:
    """Print the translation of each source."""
    from jaxformer.checkpoints.translator import one_line
    from jaxformer.plots.attention import draw_alignment

    typed = not flags.texts and flags.file is None and sys.stdin is not None and sys.stdin.isatty()
    for texts in chunks(sources(flags), 1 if typed else LINES):
        for found in translator.beam(texts, beam):
            for text, score in found:
                line = shown(one_line(text))
                print(line if flags.n_best == 1 else f"{score:.4f}\t{line}")
            if flags.attention is not None:
                write(draw_alignment(*translator.alignment(texts[0], found[0].text)), flags.attention)
        sys.stdout.flush()


def sources(flags: Translate) -> Iterable[str]:
    """Return the texts to translate."""
    from jaxformer.data.parallel import lines

    if flags.texts:
        return flags.texts
    return standard_input() if flags.file is None else lines(flags.file, flags.unpacked)


def standard_input() -> Iterator[str]:
    """Yield lines of standard input; InputError names the line and the byte that is not UTF-8."""
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
    """Yield lists of at most `size` texts."""
    rest = iter(texts)
    while chunk := list(islice(rest, size)):
        yield chunk
