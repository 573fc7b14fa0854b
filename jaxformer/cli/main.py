"""The `jaxformer` command."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import tyro

from jaxformer import __version__
from jaxformer.config.settings import BeamConfig, SamplingConfig
from jaxformer.errors import InputError
from jaxformer.flags import parse, run
from jaxformer.validation.fields import check_choice, check_size

USAGE = "usage: jaxformer {commands} ...   (jaxformer COMMAND --help explains its flags; jaxformer -v COMMAND shows tracebacks)"

LINES = 512
"""Lines that are read before the first of them are translated: sources of like lengths go together."""


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Continue a text with a trained model, or write the target of a source."""

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    prompt: str | None = None
    """What comes before, or the source, in characters of the model's vocabulary. None: the start of a text."""
    tokens: int = 200
    """How many tokens to write, at most."""
    temperature: float | None = None
    """Divides the logits; 0 takes the likeliest token. None: 1 for a text, 0 for a target."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0: all."""
    top_p: float = 1.0
    """Keep the likeliest tokens up to this total probability."""
    min_p: float = 0.0
    """Keep tokens of at least this part of the likeliest one's probability."""
    repetition_penalty: float = 1.0
    """Makes tokens that were there before less likely; 1: does not."""
    seed: int = 0
    """Start of the random numbers."""


def generate(arguments: list[str]) -> None:
    """Print the prompt and what follows it, or the target."""
    flags = parse(Generate, arguments, prog="jaxformer generate")
    check_size("tokens", flags.tokens)
    check_size("seed", flags.seed, least=0)
    if flags.prompt == "":
        raise InputError("prompt is empty; give at least one character")
    import jax

    from jaxformer.data.tasks import EOS, SOS, Task
    from jaxformer.data.tokenizers import Tokenizer
    from jaxformer.decoding import generate, translate
    from jaxformer.training.trained import load_trained

    model, words = load_trained(flags.folder)
    if isinstance(words, Tokenizer) and words.alphabet is None:
        raise InputError(f"{flags.folder} holds a model that translates; use jaxformer translate")
    seq2seq = isinstance(words, Task)
    sampling = SamplingConfig(
        temperature=(0.0 if seq2seq else 1.0) if flags.temperature is None else flags.temperature,
        top_k=flags.top_k,
        top_p=flags.top_p,
        min_p=flags.min_p,
        repetition_penalty=flags.repetition_penalty,
    )
    key = jax.random.key(flags.seed)
    if isinstance(words, Task):
        if flags.prompt is None:
            raise InputError(f"{flags.folder} holds a model that needs a source; give it with --prompt")
        source, n_tokens = words.encode(flags.prompt)[None], min(flags.tokens, model.config.context)
        print(words.decode(translate(model, source, n_tokens, sampling, start=SOS, eos=EOS, key=key)[0]))
    else:
        prompt = words.opening if flags.prompt is None else flags.prompt
        ids = words.encode(prompt, name="prompt")[None]
        print(prompt + words.decode(generate(model, ids, flags.tokens, sampling, key=key)[0]))


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


def translate(arguments: list[str]) -> None:
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


def parity(arguments: list[str]) -> None:
    """Compare models; see jaxformer.parity.cli."""
    from jaxformer.parity import cli
    from jaxformer.selfcheck.cli import mutants

    cli.main(arguments, {"mutants": mutants})


COMMANDS: dict[str, Callable[[list[str]], None]] = {"generate": generate, "translate": translate, "parity": parity}


def dispatch(arguments: list[str]) -> None:
    """The command named first, with the flags after it."""
    if arguments[:1] == ["--version"]:
        print(f"jaxformer {__version__}")
    elif not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE.format(commands="|".join(COMMANDS)))
    else:
        check_choice("command", arguments[0], COMMANDS)
        COMMANDS[arguments[0]](arguments[1:])


def main() -> None:
    """The console script."""
    run(dispatch)
