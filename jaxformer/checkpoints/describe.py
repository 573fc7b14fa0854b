"""Description of a model folder, without loading its weights."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from jaxformer.checkpoints.certificate import read_certificate
from jaxformer.checkpoints.hf import find_model_type, tensor_names, unwrapped
from jaxformer.checkpoints.opened import SAVED_REMEDY, saved_config
from jaxformer.config.models import EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.convert.safetensors import check_counts
from jaxformer.convert.state_files import open_folder_state, open_state, weight_files
from jaxformer.errors import CheckpointError, ConfigError, printable
from jaxformer.models import abstract
from jaxformer.pytree import count_parameters
from jaxformer.runs.folder import CONFIG, RunFolder, read_config
from jaxformer.runs.manifest import Manifest

ADAMW = 4
"""float32 values for each parameter in training with AdamW: weight, gradient and two moments."""


@dataclass(frozen=True)
class Description:
    """Configuration of a model, and its tensors on disk."""

    kind: str
    config: ModelConfig
    state: Mapping[str, Any]
    files: list[Path]


def describe_folder(folder: Path) -> Description:
    """Describe a folder by its config.json; CheckpointError if that describes no model."""
    run = RunFolder.open(folder)
    described = read_config(folder)
    try:
        if "model_type" in described:
            kind, state = find_model_type(described["model_type"]), unwrapped(open_folder_state(folder))
            config = kind.read(described, tensor_names(kind, state)[0])
            return Description(f"{kind.name}, of transformers", config, state, weight_files(folder))
        if "recipe" in described:
            from jaxformer.checkpoints.trained import describe  # a run may need packages that a model alone does not

            kind, config = "a trained run", describe(run)[0]
            run.check_trained()
        else:
            Manifest(folder, SAVED_REMEDY).check(CONFIG)
            kind, config = "a saved model", saved_config(described)[0]
    except (ConfigError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder}: {error}") from None
    return Description(
        f"{kind}, {type(config).__name__.removesuffix('Config')}", config, open_state(run.weights), [run.weights]
    )


def lines(found: Description, folder: Path) -> dict[str, str]:
    """Return the lines that `jaxformer info` prints: label -> text."""
    config, shapes = found.config, abstract(found.config)
    check_counts(str(folder), shapes, found.state)
    held = sum(array.nbytes for array in found.state.values())
    types = sorted({str(array.dtype) for array in found.state.values()})
    n, bare = count_parameters(shapes), count_parameters(shapes, embeddings=False)
    run, train = held + cache_bytes(config, max(array.itemsize for array in found.state.values())), ADAMW * 4 * n
    return {
        "family": found.kind,
        "config": said(config),
        "parameters": f"{n:,} ({bare:,} without embeddings)",
        "types": ", ".join(types),
        "weights": f"{as_bytes(held)} in {len(found.files)} file{'s' * (len(found.files) > 1)}",
        "to run": f"{as_bytes(run)}: the weights, and what attention keeps of one text of full length",
        "to train": f"{as_bytes(train)}: weights, gradients and AdamW's two moments in float32; activations come on top",
        "longest text": longest(config),
        "certificate": read_certificate(folder),
    }


def said(config: ModelConfig) -> str:
    """Format a configuration with the fields that differ from their defaults."""
    shown = (f"{it.name} = {value!r}" for it in fields(config) if (value := getattr(config, it.name)) != it.default)
    return f"{type(config).__name__}({', '.join(shown)})"


def longest(config: ModelConfig) -> str:
    """Format the longest text, in tokens, that the model reads and writes."""
    if isinstance(config, EncoderDecoderConfig) and config.source.context != config.context:
        return f"{config.source.context:,} tokens of the source, {config.context:,} of the target"
    return f"{config.context:,} tokens"


def cache_bytes(config: ModelConfig, itemsize: int) -> int:
    """Bytes of the key-value cache for one text of full length; 0 for an encoder, which has no cache."""
    per_token = 2 * config.kv_heads * config.head_width * itemsize
    if isinstance(config, EncoderDecoderConfig):
        return config.decoder.n_layers * per_token * (config.context + config.source.context)
    return config.n_layers * per_token * config.context if isinstance(config, GPTConfig) else 0


def as_bytes(n: int) -> str:
    """Format a number of bytes for people."""
    size, unit = (1e9, "GB") if abs(n) >= 1e9 else (1e6, "MB") if abs(n) >= 1e6 else (1e3, "kB")
    return f"{n / size:,.2f} {unit}"


def tensor_table(state: Mapping[str, Any]) -> list[str]:
    """Format a table of tensors, a line each: name, shape and dtype; layers with equal shape and dtype share a line."""
    rows: dict[tuple[str, str, str], list[int]] = {}
    for name, array in ((printable(name), array) for name, array in state.items()):
        number = re.search(r"\.(\d+)\.", name)
        general = name if number is None else f"{name[: number.start()]}.{{layer}}.{name[number.end() :]}"
        key = general, str(list(array.shape)), str(array.dtype)
        rows.setdefault(key, []).append(-1 if number is None else int(number[1]))
    width, wide = (max(len(row[i]) for row in rows) for i in (0, 1))
    return [
        f"{name:{width}}  {shape:{wide}}  {dtype}{'' if numbers == [-1] else f'  layers {min(numbers)} to {max(numbers)}'}"
        for (name, shape, dtype), numbers in rows.items()
    ]
