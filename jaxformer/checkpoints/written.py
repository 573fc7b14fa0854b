"""Write models to folders, or convert one from one file format to another, and read the result back to check that no bit was
lost."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
import numpy as np
from jax.core import Tracer

from jaxformer.checkpoints.hf import Checkpoint, model_of, unwrapped, write_checkpoint
from jaxformer.checkpoints.opened import CONFIGS, Opened, cast, open_path
from jaxformer.checkpoints.sentence_folder import MODULES, copy_modules
from jaxformer.config.configuration import plain
from jaxformer.convert.family import Family
from jaxformer.convert.rules import tensors_to_torch, to_torch
from jaxformer.convert.safetensors import save_weights
from jaxformer.convert.state_files import open_folder_state, open_state, write_state
from jaxformer.convert.weight_files import weight_files
from jaxformer.errors import CheckpointError, InputError, listed, type_of, why_unwritten
from jaxformer.io.atomic import new_folder, refuse_existing
from jaxformer.models import Model, abstract
from jaxformer.pytree import path_name
from jaxformer.runs.folder import CONFIG, TOKENIZER, WEIGHTS
from jaxformer.runs.manifest import Manifest
from jaxformer.validation.fields import check_choice, check_path, read_small

if TYPE_CHECKING:
    from jaxformer.data.tokenizers import Tokenizer


Like = Literal["jax", "hf"]
TOKENIZER_FILES = [
    *("added_tokens.json", "chat_template.jinja", "generation_config.json", "merges.txt", "preprocessor_config.json"),
    *("processor_config.json", "sentencepiece.bpe.model", "source.spm", "special_tokens_map.json", "spiece.model"),
    *("target.spm", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt"),
]
"""Files beside the weights that define the tokenizer, the features of audio and the generation settings."""
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
"""Contents of tokenizer_config.json: transformers' class that reads any tokenizer.json."""


def save(model: Model, folder: Path | str, like: Like = "jax", *, source: Path | str | None = None) -> None:
    """Write a model's configuration and weights to a new folder.

    With like="jax": config.json and weights.safetensors, in torch_ref's layout. With like="hf": config.json and
    model.safetensors, which transformers' `AutoModel.from_pretrained` loads. `source` is the folder that the model came from:
    its tokenizer is copied, and if transformers wrote it, the other keys of its config.json are kept: with "jax" under a key of
    their own, until it is written as "hf" again. The write is atomic: the folder appears whole or not at all. InputError if the
    folder exists, if the model is not a GPT, Encoder or EncoderDecoder, or if `load` would refuse it (the message names the
    leaf). ConversionError if transformers has no such model; CheckpointError if the folder cannot be written.
    """
    if not isinstance(model, Model):
        raise InputError(f"{type_of(model)} cannot be saved; give a model of class {', '.join(CONFIGS)}")
    check_choice("like", like, get_args(Like))
    write_folder(model, check_path("folder", folder), like, None if source is None else open_path(source))


def write_folder(model: Model, folder: Path, like: Like, source: Opened | None) -> None:
    """Write a model to a new folder, as `save` does, with a source that is open already."""
    model = whole_model(model)
    try:
        with new_folder(folder) as unfinished:
            if like == "hf":
                write_checkpoint(model, unfinished, source and source.origin, special_ids(source))
            else:
                dtype = jax.tree.leaves(model)[0].dtype.name
                described = {"class": type(model).__name__, "dtype": dtype, "config": asdict(model.config)}
                described |= source.origin.keep(model) if source is not None and source.origin is not None else {}
                (unfinished / CONFIG).write_text(json.dumps(described, indent=2, default=plain) + "\n", "utf-8")
                save_weights(unfinished / WEIGHTS, model)
                Manifest(unfinished).begin([unfinished / CONFIG, unfinished / WEIGHTS])
            if source is not None:
                write_tokenizer(source, unfinished)
    except (OSError, CheckpointError) as error:
        raise CheckpointError(f"{folder} cannot be written: {why_unwritten(error)}; give another name") from None


def run_tokenizer(source: Opened | None) -> "Tokenizer | None":
    """Return the tokenizer of the source if it is a run with one, else None."""
    if source is None or source.words is None:
        return None
    from jaxformer.data.tokenizers import Tokenizer

    return source.words if isinstance(source.words, Tokenizer) else None


def special_ids(source: Opened | None) -> dict[str, int]:
    """Return the config.json keys that name the special tokens of a run."""
    if (words := run_tokenizer(source)) is None:
        return {}
    ids = {"bos_token_id": words.start, "eos_token_id": words.end, "decoder_start_token_id": words.start}
    return {name: token for name, token in ids.items() if token is not None}


def write_tokenizer(source: Opened, folder: Path) -> None:
    """Copy the tokenizer's files and generation settings, if there are any; for a run, write its tokenizer."""
    for name in TOKENIZER_FILES if source.place.is_dir() else ():
        if (source.place / name).is_file():
            (folder / name).write_bytes(read_small(source.place / name))
    if (source.place / MODULES).is_file():
        copy_modules(source.place, folder)
    if (words := run_tokenizer(source)) is not None:
        words.save(folder / TOKENIZER)
        (folder / "tokenizer_config.json").write_text(json.dumps(FAST) + "\n", "utf-8")


FLOATS = ("float32", "bfloat16", "float16", "float64")
"""Dtypes that `save` writes and `load` reads."""


def whole_model(model: Model) -> Model:
    """Return the model in native byte order; InputError names the first leaf that `load` would refuse."""
    wanted, found = _leaves(abstract(model.config)), _leaves(model)
    kind = type(model).__name__
    if odd := next((name for name in found if name not in wanted), None):
        raise InputError(f"{odd} is {_described(found[odd])}, and a {kind} of this configuration has none; take it out")
    if odd := next((name for name in wanted if name not in found), None):
        raise InputError(f"{odd} is missing, and a {kind} of this configuration has one; give a model that has all its weights")
    for name, leaf in found.items():
        if fault := _fault(leaf, wanted[name].shape):
            raise InputError(f"{name} {fault}")
    types = sorted({leaf.dtype.name for leaf in found.values()})
    if len(types) > 1:
        raise InputError(f"the model holds {' and '.join(types)}; cast it to one type before it is saved")
    return jax.tree.map(_native, model)


def _leaves(model: Model) -> dict[str, Any]:
    """Return every leaf by name, None leaves included."""
    return {path_name(path): leaf for path, leaf in jax.tree.leaves_with_path(model, is_leaf=lambda leaf: leaf is None)}


def _fault(leaf: Any, shape: tuple[int, ...]) -> str:
    """Return why `load` would refuse a leaf, and what to do about it; '' if it would not."""
    if isinstance(leaf, Tracer):
        return "is traced and has no numbers yet; save the model outside of jax.jit, jax.grad and jax.vmap"
    if not isinstance(leaf, jax.Array | np.ndarray) or isinstance(leaf, np.ma.MaskedArray):
        return f"is {_described(leaf)}; give a jax or numpy array of shape {list(shape)}"
    dtype = leaf.dtype.name
    if dtype not in FLOATS:
        return f"is of type {dtype}; cast the model to one of {', '.join(FLOATS)}"
    if jax.dtypes.canonicalize_dtype(dtype).name != dtype:
        return f"is of type {dtype}, which load refuses here; cast the model to float32, or save under jax.enable_x64(True)"
    if leaf.shape != shape:
        stack = "save one model of the stack: jax.tree.map(lambda leaf: leaf[0], model)"
        do = stack if leaf.shape[1:] == shape else "give a model of that shape"
        return f"has shape {list(leaf.shape)}, and the model's configuration asks for {list(shape)}; {do}"
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        return "was deleted, or donated to a jitted function; save what the function returned, or save before it is called"
    return "" if np.isfinite(leaf).all() else "holds NaN or infinity, and load would refuse the model; save one that is finite"


def _described(leaf: Any) -> str:
    """Describe a leaf in a few words."""
    return "None" if leaf is None else type_of(leaf)


def _native(leaf: Any) -> Any:
    return leaf.astype(leaf.dtype.newbyteorder("="), copy=False) if isinstance(leaf, np.ndarray) else leaf


To = Literal["hf", "jax", "torch"]


@dataclass(frozen=True)
class Converted:
    """Converted model, with its files."""

    theirs: Checkpoint | None
    """Folder of transformers that holds the model: the source, or else the written one; None if neither is one."""
    model: Model
    """Model as read back from the written files."""
    files: list[Path]
    """Files that were written."""
    state: Mapping[str, Any]
    """Tensors in the written files."""
    said: str
    """Verdict of the round trip."""


def convert(
    path: Path, out: Path, to: To, *, family: str | None = None, dtype: str | None = None, verifiable: bool = False
) -> Converted:
    """Convert the model at `path` into `out`, and read it back; CheckpointError if a bit was lost.

    If `verifiable`, raise InputError before anything is written unless there is, or will be, a folder of transformers.
    """
    refuse_existing(out)
    source = open_path(path, family=family)
    theirs = source.checkpoint if source.place.is_dir() else None
    if verifiable and theirs is None and to != "hf":
        no_folder = f"--verify compares with transformers' own model, and {path} is not a folder of transformers'"
        raise InputError(f"{no_folder}; give --to hf, which writes one")
    model = source.model if dtype is None else cast(source.model, dtype)
    if to == "torch":
        write_state(out, tensors_to_torch(model, source.family))
        files, state = [out], open_state(out)
        back = replace(source, model=model_of(state, model.config, source.family))
    else:
        write_folder(model, out, "hf" if to == "hf" else "jax", source)
        files = sorted(path for path in out.iterdir() if path.is_file())
        state, back = open_state(weight_files(out)[0] if to == "hf" else out / WEIGHTS), open_path(out)
    again = tensors_to_torch(back.model, back.family)
    wanted = tensors_to_torch(model, back.family)
    if lost := [name for name, array in wanted.items() if not same_bits(array, again[name])]:
        raise CheckpointError(f"{out} was written, and reads otherwise: {listed(lost)}; the disk or the memory is faulty")
    del again, wanted
    theirs = theirs or (back.checkpoint if to == "hf" else None)
    return Converted(theirs, back.model, files, state, round_trip(source, state, back.model, dtype))


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """True if two arrays have the same dtype, shape and bytes."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def round_trip(source: Opened, written: Mapping[str, Any], model: Model, dtype: str | None) -> str:
    """Report what became of the source's tensors: written unchanged, recovered from `model` (which was read back), or lost."""
    said = f"round trip: {len(written)} tensors, read again bit for bit"
    if source.checkpoint is None or dtype is not None:
        return said
    origin = open_folder_state(source.place) if source.place.is_dir() else open_state(source.place)
    same = {name for name, array in written.items() if name in origin and same_bits(array, origin[name])}
    if same:
        said += f"; {len(same)} are the source's, name and bits"
    rest = {own: array for name, (own, array) in zip(origin, unwrapped(origin).items(), strict=True) if name not in same}
    return "; ".join([said, *fates(source.checkpoint, source.family, rest, model)] if rest else [said])


def fates(source: Checkpoint, family: Family, tensors: Mapping[str, Any], model: Model) -> list[str]:
    """Return a phrase for each fate of the source's tensors that were not written unchanged."""
    owns, back = {name: own for own, name in source.names.items()}, to_torch(model, family)
    found: dict[str, list[str]] = {"renamed": [], "unneeded": [], "head": [], "lost": []}
    for name, array in tensors.items():
        own = owns.get(name, name)
        if own in back and same_bits(back[own], array):
            fate = "renamed"
        elif name in source.unused:
            fate = "head"
        else:
            fate = "lost" if own in back or family.why_ignored(own) is None else "unneeded"
        found[fate].append(name)
    heads = ", ".join(sorted({source.unused[name] for name in found["head"]}))
    phrases = {
        "renamed": "{n} of the source are written under other names; back again: bitwise equal",
        "unneeded": "{n} of the source are left out, as the model computes or ignores them: {names}",
        "head": f"not in it: {{n}} of the source, of a head for {heads}: {{names}}",
        "lost": "LOST: {n} of the source: {names}",
    }
    return [phrases[fate].format(n=len(names), names=listed(names)) for fate, names in found.items() if names]
