"""Files of a folder in transformers' format that describe the model and its texts, as they are: no tensor is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxformer.convert.heads import find_variant
from jaxformer.convert.model_type import ModelType
from jaxformer.convert.registry import MODEL_TYPES
from jaxformer.convert.weight_files import SAFETENSORS, Tensor, header, weight_files
from jaxformer.errors import CheckpointError, InputError, first_line
from jaxformer.validation.fields import check_path, parsed, read_small

CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG, SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"

Described = Mapping[str, Any]


@dataclass(frozen=True)
class Folder:
    """Contents of a folder's files; empty where a file is not there."""

    path: Path
    config: Described
    generation: Described = field(default_factory=dict)
    tokenizer: Described = field(default_factory=dict)
    tokenizer_config: Described = field(default_factory=dict)
    special: Described = field(default_factory=dict)
    """Special tokens of `special_tokens_map.json`, which older versions write."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    fault: str = ""
    """Description of what is wrong with the files of weights."""

    @property
    def model_type(self) -> str:
        """Value of `model_type`, or an empty string."""
        return str(self.config.get("model_type", ""))

    @property
    def kind(self) -> ModelType | None:
        """jaxformer's model type, if it has this one; with the head that the tensors are of."""
        base = MODEL_TYPES.get(self.model_type)
        return find_variant(base, self.config, self.tensors) if base and self.tensors else base

    def has(self, name: str) -> bool:
        """True if the folder has a file of this name."""
        return (self.path / name).is_file()


def mapping(value: Any) -> Described:
    """Return an object of JSON as it is, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def read_folder(path: Path) -> Folder:
    """Read a folder; InputError if it is none of transformers', or if one of its files cannot be read."""
    if not check_path("folder", path).is_dir():
        why = "a file; give the folder that it is in" if path.exists() else "not there; give a folder with a config.json"
        raise InputError(f"{path} is {why}")
    if not (path / CONFIG).is_file():
        raise InputError(f"{path} has no {CONFIG}; give a folder that transformers wrote")
    config = read_object(path / CONFIG)
    if "model_type" not in config:
        raise InputError(f"{path / CONFIG} has no model_type; give a folder that transformers wrote")
    files = {
        "generation": GENERATION,
        "tokenizer": TOKENIZER,
        "tokenizer_config": TOKENIZER_CONFIG,
        "special": SPECIAL,
    }
    read: dict[str, Any] = {name: read_object(path / file) for name, file in files.items() if (path / file).is_file()}
    try:
        return Folder(path, config, **read, tensors=tensors_of(path))
    except CheckpointError as error:
        return Folder(path, config, **read, fault=str(error))


def read_object(path: Path) -> Described:
    """Read a JSON object; InputError if the file is unreadable, too large or something else."""
    try:
        found = parsed(read_small(path))
    except (OSError, ValueError, CheckpointError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: {first_line(error)}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no object: {found!r:.40}; it should begin with a brace")
    return found


def tensors_of(path: Path) -> dict[str, Tensor]:
    """Read the headers of a folder's weights; empty without safetensors files, whose headers alone name their tensors."""
    if not any(path.glob("*.safetensors*")):
        return {}
    files = [file for file in weight_files(path) if file.suffix in SAFETENSORS]
    return {name: tensor for file in files for name, tensor in header(file).items()}
