"""Open models in folders and files, whether written by `save`, by a run, or by transformers."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checkpoints.foreign import check_foreign
from jaxformer.checkpoints.hf import Checkpoint, Origin, checkpoint_of, model_of, read_checkpoint, tensor_names, unwrapped
from jaxformer.config.configuration import from_dict
from jaxformer.config.dual import AnyModelConfig, DualEncoderConfig
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.family import Family
from jaxformer.convert.heads import find_variant, variant_for
from jaxformer.convert.registry import FAMILIES, MODEL_TYPES, find_family
from jaxformer.convert.safetensors import load_weights
from jaxformer.convert.state_files import open_state, unknown_ending
from jaxformer.convert.weight_files import PICKLES, SAFETENSORS
from jaxformer.errors import CheckpointError, ConfigError, ConversionError, InputError, first_line, listed
from jaxformer.models import Model, abstract
from jaxformer.runs.folder import CONFIG, WEIGHTS, RunFolder, read_config
from jaxformer.runs.manifest import Manifest
from jaxformer.validation.fields import check_choice, check_file, check_path

if TYPE_CHECKING:
    from jaxformer.data.tasks import Task
    from jaxformer.data.tokenizers import Tokenizer


CONFIGS: dict[str, type[AnyModelConfig]] = {
    "GPT": GPTConfig,
    "Encoder": EncoderConfig,
    "EncoderDecoder": EncoderDecoderConfig,
    "VisionEncoder": VisionEncoderConfig,
    "DualEncoder": DualEncoderConfig,
}
"""Configuration class of each model class that can be saved, by class name."""
SAVED_REMEDY = "save the model again"
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Opened:
    """Model, with everything else that its folder or file says."""

    place: Path
    model: Model
    family: Family = TWIN
    """Family that defines the names of the tensors."""
    checkpoint: Checkpoint | None = None
    """Checkpoint in transformers' format, if transformers wrote it."""
    origin: Origin | None = None
    """Settings of the folder of transformers that the model came from, if it did."""
    words: "Tokenizer | Task | None" = None
    """Tokenizer or task of a run: it encodes and decodes ids."""


def load(
    path: Path | str, *, family: Family | str | None = None, config: AnyModelConfig | None = None, dtype: str | None = None
) -> Model:
    """Load a model from a folder that `save`, a recipe or transformers wrote, or from a file of tensors.

    A path that does not exist is taken as a name on the Hugging Face hub. A file (.safetensors, or .bin, .pt and .pth with
    nothing but tensors) needs a `family`: a Family, its name, or a model type of transformers; and the `config`, unless a
    config.json lies beside the file. `dtype` casts the model; None keeps the tensors' own dtypes.

    InputError if there is no model. CheckpointError if files are corrupt or hold another model: it lists everything that is
    wrong, and no part of the model is loaded.
    """
    found = open_path(path, family=family, config=config).model
    return found if dtype is None else cast(found, dtype)


def open_path(path: Path | str, *, family: Family | str | None = None, config: AnyModelConfig | None = None) -> Opened:
    """Open a model as `load` does, and return it with everything that is known about it."""
    place = check_file(check_path("path", path))
    if place.is_file():
        return open_file(place, family, config)
    if family is not None or config is not None:
        raise InputError(f"family and config say what a file of tensors holds, and {path} is none; leave them out")
    return open_folder(local_folder(place))


def open_folder(folder: Path) -> Opened:
    """Open a model folder of any of the three kinds."""
    check_foreign(folder)
    run = RunFolder.open(folder)
    described = read_config(folder)
    if "recipe" in described:
        from jaxformer.checkpoints.trained import load_trained  # a run may need packages that a model alone does not

        model, words = load_trained(folder)
        return Opened(folder, model, words=words)
    if "model_type" in described:
        return of_checkpoint(read_checkpoint(folder, described))
    if "class" not in described:
        raise CheckpointError(f"{folder}/{CONFIG} does not describe a trained model, nor a saved one, nor one of transformers'")
    try:
        check_saved(folder, WEIGHTS)
        config, dtype = saved_config(described)
        origin = saved_origin(described, config)
    except ConfigError as error:
        raise CheckpointError(f"{folder}/{error}") from None
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise CheckpointError(f"{folder} holds {dtype}; load it under jax.enable_x64(True)")
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), abstract(config))
    return Opened(folder, load_weights(run.weights, like), origin=origin)


def check_saved(folder: Path, weights: str) -> None:
    """Raise CheckpointError if config.json or the weights of a saved folder were changed since they were written."""
    for name in (CONFIG, weights):
        Manifest(folder, SAVED_REMEDY).check(name)


def of_checkpoint(found: Checkpoint) -> Opened:
    """Wrap a checkpoint of transformers; a warning names the tensors that are not loaded."""
    if found.unused:
        tasks, names = ", ".join(sorted({*found.unused.values()})), listed([*found.unused])
        warnings.warn(f"{found.place}: {names} of a head for {tasks} are not loaded: this model has none", stacklevel=4)
    if found.headless:
        warnings.warn(
            f"{found.place} has no head for tokens: its states are right (last_hidden_state), its logits and what it would "
            "write mean nothing",
            stacklevel=4,
        )
    return Opened(found.place, found.model, found.kind.family_of(found.model.config), found, found.origin)


def open_file(path: Path, family: Family | str | None, config: AnyModelConfig | None) -> Opened:
    """Open the model in a file of tensors."""
    check_foreign(path)
    if path.suffix not in SAFETENSORS + PICKLES:
        raise InputError(unknown_ending(path))
    if family is None:
        where = f"docs/models.md lists the {len(FAMILIES)}"
        raise InputError(f"{path} holds tensors alone; give their family: --family gpt2, in Python family='gpt2' ({where})")
    rules = find_family(family)
    kind, state = next((it for it in MODEL_TYPES.values() if it.family.name == rules.name), None), unwrapped(open_state(path))
    described = read_config(path.parent) if (path.parent / CONFIG).is_file() else {}
    if "class" in described or "recipe" in described:
        check_saved(path.parent, path.name)
    try:
        if config is None and kind is not None and "model_type" in described:
            return of_checkpoint(checkpoint_of(path, find_variant(kind, described, state), described, state))
        config = saved_config(described)[0] if config is None and "class" in described else config
        if config is None:
            give = f"put its {CONFIG} beside it, or in Python give config=GPTConfig(...)"
            raise InputError(f"{path} does not say how many heads its model has, and more; {give}")
        if kind is not None:
            kind, rules = variant_for(kind, config) or kind, find_family(family, model=abstract(config))
            state = {own: state[name] for own, name in tensor_names(kind, state)[0].items()}
        return Opened(path, model_of(state, config, rules), rules)
    except (ConfigError, ConversionError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def saved_config(described: Mapping[str, Any]) -> tuple[AnyModelConfig, np.dtype]:
    """Return the configuration and dtype that `save` wrote; ConfigError if `described` is something else."""
    try:
        return from_dict(CONFIGS[described["class"]], described["config"]), jnp.dtype(described["dtype"])
    except (KeyError, TypeError, ConfigError) as error:
        raise ConfigError(f"{CONFIG} does not describe a saved model: {error}") from None


def saved_origin(described: Mapping[str, Any], config: AnyModelConfig) -> Origin | None:
    """Return the settings of transformers' folder that `save` kept; ConfigError if they are something else."""
    try:
        return Origin.kept_in(described, config)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{CONFIG} does not describe the folder that its model came from: {error!r}") from None


def cast(model: Model, dtype: str) -> Model:
    """Cast a model to another float dtype; InputError if a number overflows."""
    check_choice("dtype", dtype, DTYPES)
    leaves, structure = jax.tree.flatten(model)
    del model
    for i, leaf in enumerate(leaves):
        leaves[i] = leaf.astype(dtype)
        if not np.isfinite(leaves[i]).all():
            raise InputError(f"dtype = {dtype} cannot hold a number as large as {float(abs(leaf).max()):.1e}; take bfloat16")
    return jax.tree.unflatten(structure, leaves)


NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""Pattern of model names on the hub: `gpt2`, or `owner/model`."""
FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.jinja")
"""Patterns of files to download; none of these can execute code."""


def local_folder(path: Path) -> Path:
    """Return the path itself if it exists or cannot be a hub name; otherwise the folder that the hub's files are downloaded to.

    A failure is an InputError with a message of one line.
    """
    if path.exists() or not NAME.fullmatch(str(path)) or (path.parent != Path() and path.parent.exists()):
        return path
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(
            f"{path} is not here; as a name on the hub it needs huggingface_hub: pip install huggingface_hub, or give a folder"
        ) from None
    try:
        return Path(snapshot_download(str(path), allow_patterns=list(FILES), etag_timeout=5))
    except Exception as error:  # many libraries raise here
        raise InputError(f"{path} is not here, and cannot be had from the hub: {first_line(error)}; give a folder") from None
