"""What a run left behind, ready to use.

Runs are trained on one side: the twin has none.
"""

from pathlib import Path
from typing import Any

import jax

from jaxformer.config import EncoderDecoderConfig, GPTConfig
from jaxformer.convert.safetensors_io import load_weights
from jaxformer.data.tasks import TASKS, Task
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import CheckpointError, ConfigError, InputError
from jaxformer.models import Model, build
from jaxformer.training.runs import RunFolder


def load_trained(path: Path) -> tuple[Model, Tokenizer | Task]:
    """The model of a run folder with its trained weights, and how its ids are read and written."""
    run = RunFolder.open(path)
    try:
        config, words = describe(run.config)
    except (KeyError, TypeError, ConfigError, InputError) as error:
        raise CheckpointError(f"{path}/config.json does not describe a trained model: {error}") from None
    if words.vocab_size != config.vocab_size:
        found = f"its model has {config.vocab_size} symbols, its task or text {words.vocab_size}"
        raise CheckpointError(f"{path}/config.json does not describe a trained model: {found}")
    if not run.weights.exists():
        raise CheckpointError(f"{path} has no {run.weights.name} yet; finish the run with --resume")
    return load_weights(run.weights, jax.eval_shape(lambda: build(config))), words


def describe(config: dict[str, Any]) -> tuple[GPTConfig, Tokenizer] | tuple[EncoderDecoderConfig, Task]:
    """The model and the symbols that a run's config.json names; KeyError, TypeError or ValueError where it names none."""
    recipe = config["recipe"]
    if "task" in recipe:
        if recipe["task"] not in list(TASKS):
            raise TypeError(f"its task {recipe['task']!r:.30} is none of {', '.join(TASKS)}")
        return EncoderDecoderConfig(**recipe["model"]), TASKS[recipe["task"]]
    characters = config["characters"]
    if not isinstance(characters, str) or "".join(sorted(set(characters))) != characters:
        raise TypeError("its characters are no text of distinct ones in order")
    return GPTConfig(**recipe["model"]), Tokenizer.characters(characters)
