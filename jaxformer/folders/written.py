"""Models into folders."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import jax

from jaxformer.config.configuration import plain
from jaxformer.convert.safetensors_io import save_weights
from jaxformer.errors import CheckpointError, InputError, type_of, why_unwritten
from jaxformer.folders.hf import write_checkpoint
from jaxformer.folders.opened import CONFIGS, Opened, open_path
from jaxformer.folders.whole_model import whole_model
from jaxformer.models import Model
from jaxformer.training.manifest import Manifest
from jaxformer.training.runs import CONFIG, TOKENIZER, WEIGHTS
from jaxformer.validation.fields import check_choice, check_path, read_small
from jaxformer.whole_files import new_folder

if TYPE_CHECKING:
    from jaxformer.data.tokenizers import Tokenizer

Like = Literal["jax", "hf"]
TOKENIZER_FILES = [
    *("added_tokens.json", "chat_template.jinja", "generation_config.json", "merges.txt", "sentencepiece.bpe.model"),
    *("source.spm", "special_tokens_map.json", "spiece.model", "target.spm", "tokenizer.json", "tokenizer.model"),
    *("tokenizer_config.json", "vocab.json", "vocab.txt"),
]
"""Files beside the weights that say how text becomes ids, and how ids are chosen."""
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
"""tokenizer_config.json: transformers' class that reads any tokenizer.json."""


def save(model: Model, folder: Path | str, like: Like = "jax", *, source: Path | str | None = None) -> None:
    """Write a model's configuration and its weights.

    Like "jax": config.json and weights.safetensors, in torch_ref's layout. Like "hf": config.json and model.safetensors, which
    transformers' `AutoModel.from_pretrained` loads. `source` is the folder that the model came from: its tokenizer is copied,
    and where transformers wrote it, config.json keeps its other keys with "hf". The folder appears whole or not at all.
    InputError if it exists, or the model is none of GPT, Encoder and EncoderDecoder, or one that `load` would refuse: it names
    the leaf. ConversionError where transformers has no such model; CheckpointError where the folder cannot be written.
    """
    if not isinstance(model, Model):
        raise InputError(f"{type_of(model)} cannot be saved; give a model of class {', '.join(CONFIGS)}")
    check_choice("like", like, get_args(Like))
    write_folder(model, check_path("folder", folder), like, None if source is None else open_path(source))


def write_folder(model: Model, folder: Path, like: Like, source: Opened | None) -> None:
    """The same, of a source that is open."""
    model = whole_model(model)
    try:
        with new_folder(folder) as unfinished:
            if like == "hf":
                write_checkpoint(model, unfinished, source and source.checkpoint, special_ids(source))
            else:
                dtype = jax.tree.leaves(model)[0].dtype.name
                described = {"class": type(model).__name__, "dtype": dtype, "config": asdict(model.config)}
                (unfinished / CONFIG).write_text(json.dumps(described, indent=2, default=plain) + "\n", "utf-8")
                save_weights(unfinished / WEIGHTS, model)
                Manifest(unfinished).begin([unfinished / CONFIG, unfinished / WEIGHTS])
            if source is not None:
                write_tokenizer(source, unfinished)
    except (OSError, CheckpointError) as error:
        raise CheckpointError(f"{folder} cannot be written: {why_unwritten(error)}; give another name") from None


def run_tokenizer(source: Opened | None) -> "Tokenizer | None":
    """The tokenizer of a run."""
    if source is None or source.words is None:
        return None
    from jaxformer.data.tokenizers import Tokenizer

    return source.words if isinstance(source.words, Tokenizer) else None


def special_ids(source: Opened | None) -> dict[str, int]:
    """The keys of config.json that name the special tokens of a run."""
    if (words := run_tokenizer(source)) is None:
        return {}
    ids = {"bos_token_id": words.start, "eos_token_id": words.end, "decoder_start_token_id": words.start}
    return {name: token for name, token in ids.items() if token is not None}


def write_tokenizer(source: Opened, folder: Path) -> None:
    """Copy the tokenizer's files, and how ids are chosen, where there are any; of a run, write them."""
    for name in TOKENIZER_FILES if source.place.is_dir() else ():
        if (source.place / name).is_file():
            (folder / name).write_bytes(read_small(source.place / name))
    if (words := run_tokenizer(source)) is not None:
        words.save(folder / TOKENIZER)
        (folder / "tokenizer_config.json").write_text(json.dumps(FAST) + "\n", "utf-8")
