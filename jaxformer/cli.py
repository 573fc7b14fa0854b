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
    """Continue a prompt with a trained model."""

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    prompt: str | None = None
    """What comes before, in characters of the model's vocabulary. None: the start of a text."""
    tokens: int = 200
    """How many tokens to write."""
    temperature: float = 1.0
    """Divides the logits; 0 takes the likeliest token."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0: all."""
    top_p: float = 1.0
    """Keep the likeliest tokens up to this total probability."""
    seed: int = 0
    """Start of the random numbers."""


def generate(arguments: list[str]) -> None:
    """Print the prompt and what follows it."""
    flags = parse(Generate, arguments, prog="jaxformer generate")
    check_size("tokens", flags.tokens)
    check_size("seed", flags.seed, least=0)
    sampling = SamplingConfig(temperature=flags.temperature, top_k=flags.top_k, top_p=flags.top_p)
    if flags.prompt == "":
        raise InputError("prompt is empty; give at least one character")
    import jax

    from jaxformer.decoding import generate
    from jaxformer.training.trained import load_trained

    model, tokenizer = load_trained(flags.folder)
    prompt = tokenizer.start if flags.prompt is None else flags.prompt
    ids = generate(model, tokenizer.encode(prompt, name="prompt")[None], flags.tokens, jax.random.key(flags.seed), sampling)
    print(prompt + tokenizer.decode(ids[0]))


COMMANDS: dict[str, Callable[[list[str]], None]] = {"generate": generate}


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
