"""`jaxformer generate`: continue a text with a trained model, or write the target of a source."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from jaxformer.cli.flags import parse
from jaxformer.config.mesh import MeshConfig, check_model
from jaxformer.config.settings import SamplingConfig
from jaxformer.errors import InputError, shown
from jaxformer.runtime.compilation_cache import CacheFlag, use_cache
from jaxformer.runtime.environment import in_order
from jaxformer.validation.fields import check_size

if TYPE_CHECKING:
    from jaxformer.checkpoints.opened import Opened
    from jaxformer.data.tasks import Task
    from jaxformer.data.tokenizers import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Generate(CacheFlag):
    """Continue a text with a trained model, or write the target of a source."""

    folder: tyro.conf.Positional[Path]
    """The run folder, or a folder that transformers wrote, with its tokenizer.json."""
    prompt: str | None = None
    """The text to continue, or the source, in characters of the model's vocabulary. None: the start of a text."""
    tokens: int = 200
    """Maximum number of tokens to write."""
    temperature: float | None = None
    """Divides the logits; 0 takes the likeliest token. None: 1 for a text, 0 for a target."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0: all."""
    top_p: float = 1.0
    """Keep the likeliest tokens up to this total probability."""
    min_p: float = 0.0
    """Keep tokens of at least this fraction of the likeliest one's probability."""
    repetition_penalty: float = 1.0
    """Above 1, makes tokens that occurred before less likely; 1 changes nothing."""
    seed: int = 0
    """Seed of the random numbers."""
    mesh: str | None = None
    """Devices by axes, as tensor=4: weights and cache are sharded. None: one device."""

    def __post_init__(self) -> None:
        check_size("tokens", self.tokens)
        check_size("seed", self.seed, least=0)
        if self.prompt == "":
            raise InputError("prompt is empty; give at least one character")

    @property
    def given(self) -> list[str]:
        """Names of the flags in SAMPLING that differ from their defaults."""
        return [name for name in SAMPLING if getattr(self, name) != getattr(Generate, name)]

    @property
    def chosen(self) -> dict[str, None]:
        """Settings of a folder that the user's flags replace; nothing is sampled at a temperature of 0."""
        from jaxformer.checkpoints.texts import DRAWING

        return dict.fromkeys(["do_sample", *self.given, *(DRAWING if self.temperature == 0 else ())])

    def sampling(self, default_temperature: float) -> SamplingConfig:
        """Return the settings for choosing tokens."""
        return SamplingConfig(
            temperature=default_temperature if self.temperature is None else self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )


SAMPLING = "tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"
"""Flags that say how much is written, and how tokens are chosen."""


def main(arguments: list[str]) -> None:
    """Print the prompt and its continuation, or the target."""
    flags = parse(Generate, arguments, prog="jaxformer generate")
    use_cache(flags.cache)
    from jaxformer.checkpoints.opened import open_path
    from jaxformer.checkpoints.texts import text_config
    from jaxformer.parallel.mesh import on_mesh
    from jaxformer.parallel.placement import put

    mesh = None if flags.mesh is None else MeshConfig.read(flags.mesh)
    if mesh is not None:
        in_order()
    found = open_path(flags.folder)
    check_model(text_config(found), mesh)
    with on_mesh(mesh):
        print(shown(written(flags, replace(found, model=put(found.model)))))


def written(flags: Generate, found: "Opened") -> str:
    """Write with a model of any kind."""
    from jaxformer.data.tokenizers import Tokenizer

    if found.words is None:
        return write_text(flags, found)
    if not isinstance(found.words, Tokenizer):
        return write_target(flags, found.model, found.words)
    if found.words.alphabet is not None:
        return continue_text(flags, found.model, found.words)
    raise InputError(f"{flags.folder} holds a model that translates; use jaxformer translate")


def write_text(flags: Generate, found: "Opened") -> str:
    """Write with a model that is not of a run: a GPT continues the prompt, an encoder-decoder writes the target of a source."""
    import jax
    import numpy as np

    from jaxformer.checkpoints.texts import read_ids, read_tokenizer, translator_of
    from jaxformer.decoding import generate
    from jaxformer.models import GPT, EncoderDecoder

    if not isinstance(found.model, GPT | EncoderDecoder):
        raise InputError(f"{flags.folder} holds an encoder, which writes no text; load it with jaxformer.load")
    if flags.prompt is None:
        raise InputError(f"{flags.folder} holds a model that needs a text to begin with; give it with --prompt")
    if isinstance(found.model, EncoderDecoder):
        if unread := [f"--{name.replace('_', '-')}" for name in flags.given]:
            raise InputError(f"{flags.folder} writes the likeliest target, and reads no {', '.join(unread)}; leave them out")
        return translator_of(found).greedy([flags.prompt])[0]
    tokenizer, ids = read_tokenizer(found), read_ids(found.place, flags.chosen)
    prompt = tokenizer.encode(flags.prompt, special=True, name="prompt")[None]
    sampling = replace(flags.sampling(1.0), **ids.rules)
    key, ends = jax.random.key(flags.seed), ids.ends or None
    (written,) = generate(found.model, prompt, flags.tokens, sampling, key=key, eos=ends, pad=ids.pad)
    stop = np.flatnonzero(np.isin(written, ids.ends) | (written >= tokenizer.vocab_size))
    written = written[: stop[0]] if stop.size else written
    given, whole = tokenizer.decode(prompt[0]), tokenizer.decode(np.concatenate([prompt[0], written]))
    return flags.prompt + whole[len(given) :] if whole.startswith(given) else whole


def continue_text(flags: Generate, model: Any, tokenizer: "Tokenizer") -> str:
    """Return the prompt and its continuation."""
    import jax

    from jaxformer.decoding import generate

    prompt = tokenizer.opening if flags.prompt is None else flags.prompt
    ids = tokenizer.encode(prompt, name="prompt")[None]
    (written,) = generate(model, ids, flags.tokens, flags.sampling(1.0), key=jax.random.key(flags.seed))
    return prompt + tokenizer.decode(written)


def write_target(flags: Generate, model: Any, task: "Task") -> str:
    """Return the target of the source in the prompt."""
    import jax

    from jaxformer.data.tasks import EOS, SOS
    from jaxformer.decoding import translate

    if flags.prompt is None:
        raise InputError(f"{flags.folder} holds a model that needs a source; give it with --prompt")
    source, n_tokens = task.encode(flags.prompt)[None], min(flags.tokens, model.config.context)
    sampling, key = flags.sampling(0.0), jax.random.key(flags.seed)
    if len(flags.prompt) < task.shortest:
        said = f"prompt: {len(flags.prompt)} symbols; the model was trained on {task.shortest} to {task.longest}"
        warnings.warn(said, stacklevel=1)
    (written,) = translate(model, source, n_tokens, sampling, start=SOS, eos=EOS, key=key)
    return task.decode(written)
