"""The `jaxformer` command."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tyro

from jaxformer import __version__
from jaxformer.checks import check_choice, check_size
from jaxformer.errors import InputError
from jaxformer.flags import parse, run
from jaxformer.settings import SamplingConfig

USAGE = "usage: jaxformer {commands} ...   (jaxformer COMMAND --help explains its flags; jaxformer -v COMMAND shows tracebacks)"


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
    from jaxformer.decoding import generate, translate
    from jaxformer.training.trained import load_trained

    model, words = load_trained(flags.folder)
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
        print(words.decode(translate(model, source, n_tokens, start=SOS, eos=EOS, sampling=sampling, key=key)[0]))
    else:
        prompt = words.opening if flags.prompt is None else flags.prompt
        print(prompt + words.decode(generate(model, words.encode(prompt, name="prompt")[None], flags.tokens, key, sampling)[0]))


def parity(arguments: list[str]) -> None:
    """Compare models; see jaxformer.parity.cli."""
    from jaxformer.parity import cli

    cli.main(arguments)


COMMANDS: dict[str, Callable[[list[str]], None]] = {"generate": generate, "parity": parity}


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


if __name__ == "__main__":
    main()
