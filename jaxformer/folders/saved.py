"""Models in folders: what `save` wrote, a run left behind, or transformers wrote, is opened by `load`."""

import json
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.config.configuration import from_dict, plain
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.convert.families import FAMILIES, MODEL_TYPES, find_family
from jaxformer.convert.family import Family
from jaxformer.convert.mismatch import listed
from jaxformer.convert.safetensors_io import load_weights, save_weights
from jaxformer.convert.state_files import open_state
from jaxformer.errors import CheckpointError, ConfigError, ConversionError, InputError, why_unwritten
from jaxformer.folders.hf import Checkpoint, checkpoint_of, model_of, read_checkpoint, tensor_names, write_checkpoint
from jaxformer.folders.hub import local_folder
from jaxformer.models import Model, abstract
from jaxformer.pytree import named_weights
from jaxformer.training.runs import CONFIG, WEIGHTS, RunFolder
from jaxformer.validation.fields import check_choice, check_path
from jaxformer.whole_files import new_folder

CONFIGS = {"GPT": GPTConfig, "Encoder": EncoderConfig, "EncoderDecoder": EncoderDecoderConfig}
"""Of the models that are saved, by class."""


TOKENIZER_FILES = [
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "source.spm",
    "special_tokens_map.json",
    "spiece.model",
    "target.spm",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
]
"""Files beside the weights that say how text becomes ids, and how ids are chosen."""
DTYPES = ("float32", "bfloat16", "float16")
WRAPPERS = "_orig_mod.", "module."
"""What torch.compile and DataParallel put in front of every name."""


def save(model: Model, folder: Path | str, like: Literal["jax", "hf"] = "jax", *, source: Path | str | None = None) -> None:
    """Write a model's configuration and its weights.

    Like "jax": config.json and weights.safetensors, in torch_ref's layout. Like "hf": config.json and model.safetensors, which
    transformers' `AutoModel.from_pretrained` loads; of `source`, the folder that the model came from, config.json keeps its
    other keys, and the tokenizer's files are copied. The folder appears whole or not at all. InputError if it exists, or the
    model is none of GPT, Encoder and EncoderDecoder; ConversionError where transformers has no such model; CheckpointError
    where the folder cannot be written.
    """
    if not isinstance(model, Model):
        raise InputError(f"a {type(model).__name__} cannot be saved; give a model of class {', '.join(CONFIGS)}")
    check_choice("like", like, ("jax", "hf"))
    folder = check_path("folder", folder)
    types = sorted({str(leaf.dtype) for leaf in named_weights(model).values()})
    if len(types) > 1:
        raise InputError(f"the model holds {' and '.join(types)}; cast it to one type before it is saved")
    origin = None if source is None else open_checkpoint(source)
    try:
        with new_folder(folder) as unfinished:
            if like == "hf":
                write_checkpoint(model, unfinished, source=origin)
            else:
                described = {"class": type(model).__name__, "dtype": types[0], "config": asdict(model.config)}
                (unfinished / CONFIG).write_text(json.dumps(described, indent=2, default=plain) + "\n", "utf-8")
                save_weights(unfinished / WEIGHTS, model)
            if source is not None:
                copy_beside(Path(source), unfinished)
    except (OSError, CheckpointError) as error:
        raise CheckpointError(f"{folder} cannot be written: {why_unwritten(error)}; give another name") from None


def copy_beside(source: Path, folder: Path) -> None:
    """Copy the tokenizer's files, and how ids are chosen, where there are any."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def load(
    path: Path | str, *, family: Family | str | None = None, config: ModelConfig | None = None, dtype: str | None = None
) -> Model:
    """The model in a folder that `save` or transformers wrote, or that a recipe trained; or of a file that holds a state alone.

    A path that is not there is a name on the Hugging Face hub. Such a file (.safetensors, or .bin, .pt and .pth of tensors
    alone) needs a `family`: a Family, its name, or a model type of transformers; and the `config`, unless a config.json of that
    model type lies beside it. `dtype` casts the model; None keeps the tensors' own types. InputError where there is no model,
    CheckpointError where files are damaged, or hold another one: it lists all that is wrong, and no part is loaded.
    """
    path = check_path("path", path)
    if path.is_file():
        model = load_state(path, family, config)
    elif family is not None or config is not None:
        raise InputError(f"family and config say what a file of tensors holds, and {path} is a folder; leave them out")
    else:
        model = load_folder(local_folder(path))
    return model if dtype is None else cast(model, dtype)


def load_folder(folder: Path) -> Model:
    """The model of a folder of any kind."""
    run = RunFolder.open(folder)
    described = run.config
    if "recipe" in described:
        from jaxformer.training.trained import load_trained  # a run may need packages that a model alone does not

        return load_trained(run.path)[0]
    if "model_type" in described:
        return told_unused(read_checkpoint(folder, described), folder).model
    try:
        config, dtype = saved_config(described)
    except ConfigError as error:
        raise CheckpointError(f"{folder}/{error}") from None
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise CheckpointError(f"{folder} holds {dtype}; load it under jax.enable_x64(True)")
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), abstract(config))
    return load_weights(run.weights, like)


def open_checkpoint(path: Path | str) -> Checkpoint:
    """The model of a folder that transformers wrote, with what the folder says about it."""
    folder = local_folder(check_path("path", path))
    described = RunFolder.open(folder).config
    if "model_type" not in described:
        raise InputError(f"{folder}/{CONFIG} has no model_type: transformers did not write it; give a folder of its")
    return read_checkpoint(folder, described)


def told_unused(found: Checkpoint, place: Path) -> Checkpoint:
    """A warning for tensors that are not loaded."""
    if found.unused:
        tasks = ", ".join(sorted({*found.unused.values()}))
        warnings.warn(
            f"{place}: not loaded, for it belongs to a head that this model has not ({tasks}): {listed([*found.unused])}",
            stacklevel=3,
        )
    return found


def load_state(path: Path, family: Family | str | None, config: ModelConfig | None) -> Model:
    """The model of a file of tensors."""
    if family is None:
        raise InputError(f"{path} holds tensors alone; give their family, one of {', '.join(FAMILIES)}")
    state, rules = unwrapped(open_state(path)), find_family(family)
    kind = MODEL_TYPES.get(rules.name)
    described = RunFolder.open(path.parent).config if config is None and (path.parent / CONFIG).is_file() else {}
    try:
        if kind is not None and "model_type" in described:
            return told_unused(checkpoint_of(kind, described, state), path).model
        config = saved_config(described)[0] if "class" in described else config
        if config is None:
            raise InputError(f"{path} does not say how many heads its model has, and more; give config=GPTConfig(...)")
        if kind is not None:
            state = {own: state[name] for own, name in tensor_names(kind, state)[0].items()}
        return model_of(state, config, rules)
    except (ConfigError, ConversionError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def saved_config(described: Mapping[str, Any]) -> tuple[ModelConfig, np.dtype]:
    """What `save` wrote down of a model; ConfigError where it is something else."""
    try:
        return from_dict(CONFIGS[described["class"]], described["config"]), jnp.dtype(described["dtype"])
    except (KeyError, TypeError, ConfigError) as error:
        raise ConfigError(f"{CONFIG} does not describe a saved model: {error}") from None


def unwrapped(state: dict[str, Any]) -> dict[str, Any]:
    """Without what torch.compile or DataParallel puts in front of every name."""
    for start in WRAPPERS:
        if state and all(name.startswith(start) for name in state):
            state = {name.removeprefix(start): tensor for name, tensor in state.items()}
    return state


def cast(model: Model, dtype: str) -> Model:
    """The same of another float type; a tensor that becomes infinite is refused."""
    check_choice("dtype", dtype, DTYPES)
    leaves, structure = jax.tree.flatten(model)
    del model
    for i, leaf in enumerate(leaves):
        leaves[i] = leaf.astype(dtype)
        if not np.isfinite(leaves[i]).all():
            raise InputError(f"dtype = {dtype} cannot hold numbers as large as {float(abs(leaf).max()):.1e}; give bfloat16")
    return jax.tree.unflatten(structure, leaves)
