"""Parity certificate: records that converted weights were compared with transformers' own model, the verdict, and the files.

The certificate is `parity.json` beside the converted files. It holds their checksums, so that later changes are noticed.
"""

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import __version__
from jaxformer.checkpoints.hf import Checkpoint
from jaxformer.checkpoints.written import TOKENIZER_FILES
from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.convert.state_files import weight_files
from jaxformer.errors import CheckpointError, MissingPackageError
from jaxformer.io.atomic import written_whole
from jaxformer.io.checksums import checksum, sealed, unsealed
from jaxformer.models import Encoder, EncoderDecoder, Model
from jaxformer.nn import padding_mask
from jaxformer.parity.compare import compare
from jaxformer.parity.report.report import Report
from jaxformer.pytree import named_weights
from jaxformer.runs.folder import CONFIG
from jaxformer.validation.fields import parsed, read_small

NAME = "parity.json"
SEED, ROWS, LONGEST = 0, 4, 66
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
    model = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), model)
    inputs = certified_inputs(model)
    report = compare(
        torch_model,
        model,
        inputs,
        rules=source.kind.family_of(source.model.config),
        call_torch=lambda it, *tensors: call_torch(it, isinstance(model, Encoder) and model.config.pooler, *tensors),
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


def original(source: Checkpoint, dtype: str) -> Any:
    """Load transformers' own model of a folder: weights rounded to `dtype`, then held in float32, which is exact."""
    try:
        transformers, torch = import_module("transformers"), import_module("torch")
    except ImportError as error:
        raise MissingPackageError(
            f"--verify compares with transformers' own model, and {error.name} is not installed; pip install transformers torch"
        ) from None
    transformers.utils.logging.disable_progress_bar()
    cls = getattr(transformers, source.kind.model)
    model = cls.from_pretrained(source.place, dtype=torch.float32, local_files_only=True).eval()
    for name, tensor in model.state_dict().items():
        if source.kind.family_of(source.model.config).why_ignored(name) is None:  # buffers that the model computes stay exact
            tensor.copy_(tensor.to(getattr(torch, dtype)))
    return model


def certified_inputs(model: Model) -> tuple[np.ndarray, ...]:
    """Return ids `B T` and a bool mask `B T`, True for tokens that are not padding; some rows are full, others shorter.

    For an encoder-decoder the ids are the source, and target ids follow. A sliding window never holds padding alone: there
    torch attends to all keys alike and jax to none, and the result is not used.
    """
    config, rng = model.config, np.random.default_rng(SEED)
    seq2seq = isinstance(config, EncoderDecoderConfig)
    context, size = (config.source.context, config.source_ids) if seq2seq else (config.context, config.vocab_size)
    length = min(context, LONGEST)
    least = 1 if config.window is None else max(length - config.window + 1, 1)
    valid = np.arange(length) < np.array([[length], [length], [max(length // 2, least)], [least]])
    ids = some_ids(rng, size, config.padding_idx, (ROWS, length))
    if not seq2seq:
        return ids, valid
    return ids, valid, some_ids(rng, config.vocab_size, config.padding_idx, (ROWS, min(config.context, LONGEST) // 2 + 1))


def some_ids(rng: np.random.Generator, size: int, padding: int | None, shape: tuple[int, int]) -> np.ndarray:
    """Draw random ids other than the padding id, because some models give padding a position of its own."""
    ids = rng.integers(0, size, shape)
    return np.where(ids == padding, (ids + 1) % size, ids).astype(np.int32)


def call_torch(model: Any, pooled: bool, ids: Any, valid: Any, *target: Any) -> Any:
    """Return torch's logits or hidden states, followed by the pooled state if `pooled`; hidden states at padding are zero."""
    if target:
        return model(ids.long(), attention_mask=valid.long(), decoder_input_ids=target[0].long(), use_cache=False).logits
    found = model(ids.long(), attention_mask=valid.long())
    states = found[0] * valid[..., None]
    return import_module("torch").cat([states, found.pooler_output[:, None]], 1) if pooled else states


def call_jax(model: Model, ids: jax.Array, valid: jax.Array, *target: jax.Array) -> jax.Array:
    """Return jax's logits or hidden states, laid out as by `call_torch`."""
    mask = padding_mask(valid)
    if isinstance(model, EncoderDecoder):
        return model(ids, *target, source_mask=mask)
    states = model(ids, mask=mask)
    found = jnp.where(valid[..., None], states, jnp.zeros_like(states))
    if isinstance(model, Encoder) and model.config.pooler:
        return jnp.concatenate([found, model.pool(states)[:, None]], 1)
    return found


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
