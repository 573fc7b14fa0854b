"""Description of a model folder, without loading its weights; and its parity certificate.

The certificate records that converted weights were compared with transformers' own model, the verdict, and the files. It is
`parity.json` beside the converted files, and holds their checksums, so that later changes are noticed.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer import __version__
from jaxformer.checkpoints.certified import SEED, call_jax, call_torch, certified_inputs
from jaxformer.checkpoints.hf import Checkpoint, find_model_type, tensor_names, unwrapped
from jaxformer.checkpoints.opened import SAVED_REMEDY, saved_config
from jaxformer.checkpoints.written import TOKENIZER_FILES
from jaxformer.config.dual import AnyModelConfig, DualEncoderConfig
from jaxformer.config.layer_kinds import cached_numbers
from jaxformer.config.models import EncoderDecoderConfig, GPTConfig
from jaxformer.config.shown import given_fields
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.convert.safetensors import check_counts
from jaxformer.convert.state_files import open_folder_state, open_state
from jaxformer.convert.weight_files import weight_files
from jaxformer.errors import CheckpointError, ConfigError, MissingPackageError, printable
from jaxformer.io.atomic import written_whole
from jaxformer.io.checksums import checksum, sealed, unsealed
from jaxformer.models import Encoder, Model, abstract, with_head
from jaxformer.parity.compare import compare
from jaxformer.parity.report.report import Report
from jaxformer.pytree import count_parameters, named_weights
from jaxformer.runs.folder import CONFIG, RunFolder, read_config
from jaxformer.runs.manifest import Manifest
from jaxformer.validation.fields import parsed, read_small

NAME = "parity.json"
CHECKS = ("weights", "forward", "gradients")


def certificate_of(out: Path) -> Path:
    """Path of a converted model's certificate: inside its folder, or beside its file as `FILE.parity.json`."""
    return out / NAME if out.is_dir() else out.with_name(f"{out.name}.{NAME}")


def certify(source: Checkpoint, model: Model, files: list[Path], path: Path) -> Report:
    """Compare a converted model, written to `files`, with transformers' own model, and write the certificate to `path`.

    bfloat16 and float16 weights are compared bit for bit, but both models compute in float32 and float64: in half precision,
    each would round at different places. MissingPackageError if transformers or torch is not installed.
    """
    (dtype,) = {str(leaf.dtype) for leaf in named_weights(model).values()}
    torch_model = original(source, dtype)
    model = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), read_by_torch(model))
    inputs = certified_inputs(model)
    report = compare(
        torch_model,
        model,
        inputs,
        rules=source.kind.memory_of(source.model.config),
        call_torch=call_torch,
        call_jax=call_jax,
        checks=CHECKS,
    )
    found = {
        "verdict": report.verdict,
        "tier": report.tier,
        "checks": [{"name": stage.name, "status": stage.status, "says": stage.says} for stage in report.stages],
        "inputs": {"seed": SEED, "shapes": [list(array.shape) for array in inputs]},
        "versions": {
            "jaxformer": __version__,
            "transformers": import_module("transformers").__version__,
            **report.environment,
        },
        "model_type": source.kind.name,
        "dtype": dtype,
        "torch": checksums([*weight_files(source.place), source.place / CONFIG]),
        "jax": checksums(files),
    }
    with written_whole(path) as unfinished:
        unfinished.write_text(json.dumps(sealed(found), indent=1, allow_nan=False) + "\n", "utf-8")
    return report


def read_by_torch(model: Model) -> Model:
    """Return the model without a pooler that its head does not read: transformers' class with that head has none."""
    if not isinstance(model, Encoder) or not model.config.pooler or model.config.head in ("none", "sequence_classification"):
        return model
    return with_head(model, replace(model.config, pooler=False), rngs=jax.random.key(0))


def verifiers() -> tuple[Any, Any]:
    """Import transformers and torch, with which converted models are compared; MissingPackageError if one is not installed."""
    try:
        return import_module("transformers"), import_module("torch")
    except ImportError as error:
        raise MissingPackageError(
            f"--verify compares with transformers' own model, and {error.name} is not installed; pip install transformers torch"
        ) from None


def original(source: Checkpoint, dtype: str) -> Any:
    """Load transformers' own model of a folder: weights rounded to `dtype`, then held in float32, which is exact."""
    transformers, torch = verifiers()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # what is missing or left over, the check of weights tells
    cls = getattr(transformers, source.kind.model)
    model = cls.from_pretrained(source.place, dtype=torch.float32, local_files_only=True).eval()
    for name, tensor in model.state_dict().items():
        if source.kind.family_of(source.model.config).why_ignored(name) is None:  # buffers that the model computes stay exact
            tensor.copy_(tensor.to(getattr(torch, dtype)))
    return model


def read_certificate(folder: Path) -> str:
    """Return the verdict in a folder's certificate, and whether the certificate is still valid.

    It covers the weights and their configuration; tokenizer files are listed, but a change to them does not invalidate it.
    """
    path = folder / NAME
    if not path.is_file():
        return "none; jaxformer convert ... --verify writes one"
    try:
        found: Mapping[str, Any] = unsealed(parsed(read_small(path)))
        verdict, version = str(found["verdict"]), str(found["versions"]["transformers"])
        changed = [name for name, digest in found["jax"].items() if _digest(folder, name) != digest]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        said = f"{path} is damaged, or not a certificate: {error!r:.80}; write it again with --verify"
        raise CheckpointError(said) from None
    said = f"{verdict}; beside transformers {version}"
    if judged := [name for name in changed if name not in TOKENIZER_FILES]:
        return f"NO LONGER VALID: {', '.join(judged)} changed since it was written; it said {said}"
    if changed:
        return f"{said}; still valid for the weights; changed since: {', '.join(changed)}"
    return f"{said}; its files are unchanged"


def checksums(files: list[Path]) -> dict[str, str]:
    """Return the sha256 of each file, by file name."""
    return {path.name: _digest(path.parent, path.name) for path in files}


def _digest(folder: Path, name: str) -> str:
    """Return the sha256 of a file beside the certificate; '' if there is no such file."""
    found = None if "/" in name or "\\" in name else checksum(folder / name)
    return found["sha256"] if found else ""


ADAMW = 4
"""float32 values for each parameter in training with AdamW: weight, gradient and two moments."""


@dataclass(frozen=True)
class Description:
    """Configuration of a model, and its tensors on disk."""

    kind: str
    config: AnyModelConfig
    state: Mapping[str, Any]
    files: list[Path]


def describe_folder(folder: Path) -> Description:
    """Describe a folder by its config.json; CheckpointError if that describes no model."""
    run = RunFolder.open(folder)
    described = read_config(folder)
    try:
        if "model_type" in described:
            state = unwrapped(open_folder_state(folder))
            kind = find_model_type(described, state)
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


def said(config: Any) -> str:
    """Format a configuration with the fields that differ from their defaults."""
    values = given_fields(config).items()
    shown = (f"{name} = {said(value) if is_dataclass(value) else repr(value)}" for name, value in values)
    return f"{type(config).__name__}({', '.join(shown)})"


def longest(config: AnyModelConfig) -> str:
    """Format the longest text, in tokens, and the size of the images that the model reads."""
    if isinstance(config, VisionEncoderConfig):
        return f"none; images of {config.image_size[0]} x {config.image_size[1]} pixels, height first"
    if isinstance(config, DualEncoderConfig):
        return f"{longest(config.text)}; {longest(config.vision).removeprefix('none; ')}"
    if isinstance(config, EncoderDecoderConfig) and config.source.context != config.context:
        return f"{config.source.context:,} tokens of the source, {config.context:,} of the target"
    return f"{config.context:,} tokens"


def cache_bytes(config: AnyModelConfig, itemsize: int) -> int:
    """Bytes of the key-value cache for one text of full length; 0 for an encoder, which has no cache."""
    if not isinstance(config, GPTConfig | EncoderDecoderConfig):
        return 0
    if isinstance(config, EncoderDecoderConfig):
        return cached_numbers(config.decoder) * itemsize * (config.context + config.source.context)
    return cached_numbers(config) * itemsize * config.context


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
