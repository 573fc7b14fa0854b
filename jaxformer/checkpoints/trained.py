"""Trained model of a run folder, with the tokenizer or task that encodes and decodes its ids.

Only the jax side has runs; the torch twin has none.
"""

import hashlib
from pathlib import Path

from jaxformer.config.configuration import from_dict
from jaxformer.config.models import EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.convert.safetensors import load_weights
from jaxformer.data.tasks import TASKS, Task
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import CheckpointError, ConfigError
from jaxformer.models import Model, abstract
from jaxformer.runs.folder import RunFolder
from jaxformer.validation.fields import read_small


def load_trained(path: Path) -> tuple[Model, Tokenizer | Task]:
    """Load the trained model of a run folder, and the tokenizer or task that encodes and decodes its ids."""
    run = RunFolder.open(path)
    try:
        config, words = describe(run)
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{path}/config.json does not describe a trained model: {error}") from None
    if words.vocab_size != config.vocab_size:
        found = f"its model has {config.vocab_size} symbols, its task or text {words.vocab_size}"
        raise CheckpointError(f"{path}/config.json does not describe a trained model: {found}")
    run.check_trained()
    run.manifest.check(run.weights.name)
    return load_weights(run.weights, abstract(config)), words


def describe(run: RunFolder) -> tuple[ModelConfig, Tokenizer | Task]:
    """Return a run's model configuration and tokenizer or task; KeyError, TypeError or ConfigError if config.json is wrong."""
    config = run.config
    recipe = config["recipe"]
    if "task" in recipe:
        if recipe["task"] not in list(TASKS):
            raise TypeError(f"its task {recipe['task']!r:.30} is none of {', '.join(TASKS)}")
        return from_dict(EncoderDecoderConfig, recipe["model"]), TASKS[recipe["task"]]
    if "tokenizer_sha256" in config:
        return from_dict(EncoderDecoderConfig, recipe["model"]), load_tokenizer(run)
    characters = config["characters"]
    if not isinstance(characters, str) or not characters or "".join(sorted(set(characters))) != characters:
        raise TypeError("its characters are not in order, or not distinct")
    return from_dict(GPTConfig, recipe["model"]), Tokenizer.characters(characters)


def load_tokenizer(run: RunFolder) -> Tokenizer:
    """Load a run's tokenizer; CheckpointError if the file is not the one that the run began with."""
    check_tokenizer(run)
    return Tokenizer.load(run.tokenizer)


def check_tokenizer(run: RunFolder) -> None:
    """Raise CheckpointError if a run's tokenizer file is missing, or differs from the one that the run began with."""
    try:
        found = hashlib.sha256(read_small(run.tokenizer)).hexdigest()
    except FileNotFoundError:
        raise CheckpointError(f"{run.tokenizer} is missing; put it back, or --resume makes it again") from None
    except OSError as error:
        raise CheckpointError(f"{run.tokenizer} cannot be read: {error.strerror}") from None
    if found != run.config.get("tokenizer_sha256"):
        wrong = "is not the tokenizer that this run was trained with: its sha256 differs"
        raise CheckpointError(f"{run.tokenizer} {wrong}; put it back, or remove it: --resume makes it again")
