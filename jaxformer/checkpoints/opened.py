"""Models of folders and files: what `save` wrote, a run left behind, or transformers wrote."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checkpoints.hf import Checkpoint, checkpoint_of, model_of, read_checkpoint, tensor_names, unwrapped
from jaxformer.config.configuration import from_dict
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.family import Family
from jaxformer.convert.mismatch import listed
from jaxformer.convert.registry import FAMILIES, MODEL_TYPES, find_family
from jaxformer.convert.safetensors import load_weights
from jaxformer.convert.state_files import open_state
from jaxformer.errors import CheckpointError, ConfigError, ConversionError, InputError, first_line
from jaxformer.models import Model, abstract
from jaxformer.runs.folder import CONFIG, WEIGHTS, RunFolder, read_config
from jaxformer.runs.manifest import Manifest
from jaxformer.validation.fields import check_choice, check_file, check_path

if TYPE_CHECKING:
    from jaxformer.data.tasks import Task
    from jaxformer.data.tokenizers import Tokenizer


CONFIGS = {"GPT": GPTConfig, "Encoder": EncoderConfig, "EncoderDecoder": EncoderDecoderConfig}
"""Of the models that are saved, by class."""
SAVED_REMEDY = "save the model again"
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Opened:
    """A model, and what else its folder or file says."""

    place: Path
    model: Model
    family: Family = TWIN
    """Whose names its tensors have."""
    checkpoint: Checkpoint | None = None
    """All that transformers wrote, where it did."""
    words: "Tokenizer | Task | None" = None
    """How ids are read and written, of a run."""


def load(
    path: Path | str, *, family: Family | str | None = None, config: ModelConfig | None = None, dtype: str | None = None
) -> Model:
    """The model in a folder that `save` or transformers wrote, or that a recipe trained; or of a file that holds a state alone.

    A path that is not there is a name on the Hugging Face hub. A file (.safetensors, or .bin, .pt and .pth of tensors alone)
    needs a `family`: a Family, its name, or a model type of transformers; and the `config`, unless a config.json lies beside
    it. `dtype` casts the model; None keeps the tensors' own types. InputError where there is no model, CheckpointError where
    files are damaged, or hold another one: it lists all that is wrong, and no part is loaded.
    """
    found = open_path(path, family=family, config=config).model
    return found if dtype is None else cast(found, dtype)


def open_path(path: Path | str, *, family: Family | str | None = None, config: ModelConfig | None = None) -> Opened:
    """The same with all that is known about the model."""
    place = check_file(check_path("path", path))
    if place.is_file():
        return open_file(place, family, config)
    if family is not None or config is not None:
        raise InputError(f"family and config say what a file of tensors holds, and {path} is none; leave them out")
    return open_folder(local_folder(place))


def open_folder(folder: Path) -> Opened:
    """The model of a folder of any kind."""
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
    except ConfigError as error:
        raise CheckpointError(f"{folder}/{error}") from None
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise CheckpointError(f"{folder} holds {dtype}; load it under jax.enable_x64(True)")
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), abstract(config))
    return Opened(folder, load_weights(run.weights, like))


def check_saved(folder: Path, weights: str) -> None:
    """CheckpointError where the configuration or the weights of a folder of ours were changed since they were written."""
    for name in (CONFIG, weights):
        Manifest(folder, SAVED_REMEDY).check(name)


def of_checkpoint(found: Checkpoint) -> Opened:
    """A model that transformers wrote; a warning names tensors that are not loaded."""
    if found.unused:
        tasks, names = ", ".join(sorted({*found.unused.values()})), listed([*found.unused])
        warnings.warn(f"{found.place}: {names} of a head for {tasks} are not loaded: this model has none", stacklevel=4)
    if found.headless:
        warnings.warn(
            f"{found.place} has no head for tokens: its states are right (last_hidden_state), its logits and what it would "
            "write mean nothing",
            stacklevel=4,
        )
    return Opened(found.place, found.model, found.kind.family_of(found.model.config), found)


def open_file(path: Path, family: Family | str | None, config: ModelConfig | None) -> Opened:
    """The model of a file of tensors."""
    if family is None:
        raise InputError(f"{path} holds tensors alone; give their family, one of {', '.join(FAMILIES)}")
    rules = find_family(family)
    kind, state = MODEL_TYPES.get(rules.name), unwrapped(open_state(path))
    described = read_config(path.parent) if (path.parent / CONFIG).is_file() else {}
    if "class" in described or "recipe" in described:
        check_saved(path.parent, path.name)
    try:
        if config is None and kind is not None and "model_type" in described:
            return of_checkpoint(checkpoint_of(path, kind, described, state))
        config = saved_config(described)[0] if config is None and "class" in described else config
        if config is None:
            raise InputError(f"{path} does not say how many heads its model has, and more; give config=GPTConfig(...)")
        if kind is not None:
            state = {own: state[name] for own, name in tensor_names(kind, state)[0].items()}
        return Opened(path, model_of(state, config, rules), rules)
    except (ConfigError, ConversionError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def saved_config(described: Mapping[str, Any]) -> tuple[ModelConfig, np.dtype]:
    """What `save` wrote down of a model; ConfigError where it is something else."""
    try:
        return from_dict(CONFIGS[described["class"]], described["config"]), jnp.dtype(described["dtype"])
    except (KeyError, TypeError, ConfigError) as error:
        raise ConfigError(f"{CONFIG} does not describe a saved model: {error}") from None


def cast(model: Model, dtype: str) -> Model:
    """The same of another float type; InputError where it cannot hold a number."""
    check_choice("dtype", dtype, DTYPES)
    leaves, structure = jax.tree.flatten(model)
    del model
    for i, leaf in enumerate(leaves):
        leaves[i] = leaf.astype(dtype)
        if not np.isfinite(leaves[i]).all():
            raise InputError(f"dtype = {dtype} cannot hold a number as large as {float(abs(leaf).max()):.1e}; take bfloat16")
    return jax.tree.unflatten(structure, leaves)


NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""What models are called there: `gpt2`, or `owner/model`."""
FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.jinja")
"""What is downloaded; no file there can run code."""


def local_folder(path: Path) -> Path:
    """The path itself where it is there, or cannot be a name; otherwise the folder into which the hub's files are downloaded.

    InputError in one line where that is not possible.
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
    except Exception as error:  # of many libraries
        raise InputError(f"{path} is not here, and cannot be had from the hub: {first_line(error)}; give a folder") from None
