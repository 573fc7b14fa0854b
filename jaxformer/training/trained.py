"""Models in folders: what a run left behind, ready to use, and what `save` wrote.

Only the JAX side has runs: the twin has none.
"""

import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxformer.config.configuration import from_dict, plain
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.convert.safetensors_io import load_weights, save_weights
from jaxformer.data.tasks import TASKS, Task
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import CheckpointError, ConfigError, InputError, why_unwritten
from jaxformer.models import Model, abstract
from jaxformer.pytree import named_weights
from jaxformer.training.runs import CONFIG, WEIGHTS, RunFolder

CONFIGS = {"GPT": GPTConfig, "Encoder": EncoderConfig, "EncoderDecoder": EncoderDecoderConfig}
"""Of the models that are saved, by class."""


def save(model: Model, folder: Path | str) -> None:
    """Write a model's configuration (config.json) and its weights (weights.safetensors, in torch_ref's layout).

    The folder appears whole or not at all. InputError if it exists, or the model is none of GPT, Encoder and EncoderDecoder;
    CheckpointError where it cannot be written.
    """
    folder = Path(folder)
    if not isinstance(model, Model):
        raise InputError(f"a {type(model).__name__} cannot be saved; give a model of class {', '.join(CONFIGS)}")
    types = sorted({str(leaf.dtype) for leaf in named_weights(model).values()})
    if len(types) > 1:
        raise InputError(f"the model holds {' and '.join(types)}; cast it to one type before it is saved")
    if folder.exists():
        raise InputError(f"{folder} exists already; remove it, or give another name")
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        described = {"class": type(model).__name__, "dtype": types[0], "config": asdict(model.config)}
        (unfinished / CONFIG).write_text(json.dumps(described, indent=2, default=plain) + "\n", "utf-8")
        save_weights(unfinished / WEIGHTS, model)
        os.replace(unfinished, folder)
    except (OSError, CheckpointError) as error:
        raise CheckpointError(f"{folder} cannot be written: {why_unwritten(error)}; give another name") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def load(folder: Path | str) -> Model:
    """The model in a folder that `save` wrote, or that a recipe trained.

    InputError where the folder holds no model, CheckpointError where its files are damaged.
    """
    run = RunFolder.open(Path(folder))
    described = run.config
    if "recipe" in described:
        return load_trained(run.path)[0]
    try:
        config, dtype = from_dict(CONFIGS[described["class"]], described["config"]), jnp.dtype(described["dtype"])
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{folder}/{CONFIG} does not describe a saved model: {error}") from None
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise CheckpointError(f"{folder} holds {dtype}; load it under jax.enable_x64(True)")
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), abstract(config))
    return load_weights(run.weights, like)


def load_trained(path: Path) -> tuple[Model, Tokenizer | Task]:
    """The model of a run folder with its trained weights, and how its ids are read and written."""
    run = RunFolder.open(path)
    try:
        config, words = describe(run)
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{path}/config.json does not describe a trained model: {error}") from None
    if words.vocab_size != config.vocab_size:
        found = f"its model has {config.vocab_size} symbols, its task or text {words.vocab_size}"
        raise CheckpointError(f"{path}/config.json does not describe a trained model: {found}")
    if not run.weights.exists():
        raise CheckpointError(f"{path} has no {run.weights.name} yet; finish the run with --resume")
    return load_weights(run.weights, abstract(config)), words


def describe(run: RunFolder) -> tuple[ModelConfig, Tokenizer | Task]:
    """The model and the symbols of a run; KeyError, TypeError or ConfigError where its config.json names none."""
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
    """The tokenizer of a run; CheckpointError where the file is not the one that the run began with."""
    tokenizer = Tokenizer.load(run.tokenizer)
    if hashlib.sha256(run.tokenizer.read_bytes()).hexdigest() != run.config.get("tokenizer_sha256"):
        raise CheckpointError(f"{run.tokenizer} is not the tokenizer that this run was trained with: its sha256 differs")
    return tokenizer
