"""Models in folders: what `save` wrote, or a run left behind, is opened by `load`.

Only the JAX side saves models: torch has `torch.save`.
"""

import json
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxformer.config.configuration import from_dict, plain
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig
from jaxformer.convert.safetensors_io import load_weights, save_weights
from jaxformer.errors import CheckpointError, ConfigError, InputError, why_unwritten
from jaxformer.models import Model, abstract
from jaxformer.pytree import named_weights
from jaxformer.training.runs import CONFIG, WEIGHTS, RunFolder
from jaxformer.validation.fields import check_path
from jaxformer.whole_files import new_folder

CONFIGS = {"GPT": GPTConfig, "Encoder": EncoderConfig, "EncoderDecoder": EncoderDecoderConfig}
"""Of the models that are saved, by class."""


def save(model: Model, folder: Path | str) -> None:
    """Write a model's configuration (config.json) and its weights (weights.safetensors, in torch_ref's layout).

    The folder appears whole or not at all. InputError if it exists, or the model is none of GPT, Encoder and EncoderDecoder;
    CheckpointError where it cannot be written.
    """
    if not isinstance(model, Model):
        raise InputError(f"a {type(model).__name__} cannot be saved; give a model of class {', '.join(CONFIGS)}")
    folder = check_path("folder", folder)
    types = sorted({str(leaf.dtype) for leaf in named_weights(model).values()})
    if len(types) > 1:
        raise InputError(f"the model holds {' and '.join(types)}; cast it to one type before it is saved")
    described = {"class": type(model).__name__, "dtype": types[0], "config": asdict(model.config)}
    try:
        with new_folder(folder) as unfinished:
            (unfinished / CONFIG).write_text(json.dumps(described, indent=2, default=plain) + "\n", "utf-8")
            save_weights(unfinished / WEIGHTS, model)
    except (OSError, CheckpointError) as error:
        raise CheckpointError(f"{folder} cannot be written: {why_unwritten(error)}; give another name") from None


def load(folder: Path | str) -> Model:
    """The model in a folder that `save` wrote, or that a recipe trained.

    InputError where the folder holds no model, CheckpointError where its files are damaged.
    """
    run = RunFolder.open(check_path("folder", folder))
    described = run.config
    if "recipe" in described:
        from jaxformer.training.trained import load_trained  # a run may need packages that a model alone does not

        return load_trained(run.path)[0]
    try:
        config, dtype = from_dict(CONFIGS[described["class"]], described["config"]), jnp.dtype(described["dtype"])
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{folder}/{CONFIG} does not describe a saved model: {error}") from None
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise CheckpointError(f"{folder} holds {dtype}; load it under jax.enable_x64(True)")
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), abstract(config))
    return load_weights(run.weights, like)
