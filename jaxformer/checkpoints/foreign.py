"""Folders and files of other libraries' formats, and heads of transformers', which are not opened: each is named as what it
is, with what to do instead."""

import re
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from jaxformer.convert.model_type import ModelType
from jaxformer.convert.weight_files import SAFETENSORS, WHOLE
from jaxformer.errors import InputError, printable
from jaxformer.validation.fields import parsed, read_small

ADAPTER = "adapter_config.json"
"""File that PEFT writes beside an adapter's weights."""
AGAIN = "where that is installed, transformers 4 reads it with {}=True; save that model with save_pretrained, which writes {}"
FORMATS = {
    ".gguf": "is a GGUF file of llama.cpp, mostly of quantized weights; give the folder of transformers that it was made of",
    ".msgpack": f"holds weights of flax; {AGAIN.format('from_flax', WHOLE[0])}",
    ".h5": f"holds weights of TensorFlow; {AGAIN.format('from_tf', WHOLE[0])}",
    ".ot": f"holds weights of rust-bert; give the {WHOLE[0]} or {WHOLE[1]} that it was made of",
    ".onnx": "is a program of ONNX; give the folder of transformers that it was exported from",
    ".tflite": "is a program of TensorFlow Lite; give the folder of transformers that it was exported from",
}
"""Suffix of a file of another format -> what it is, and what to do."""
TENSORFLOW = "is a part of a checkpoint of TensorFlow 1; load it there, and save the tensors by their names as safetensors"
LIGHTNING = 'is a checkpoint of Lightning: save torch.load(it)["state_dict"] as a file of tensors, and give its family'
HEAD = re.compile(r"For([A-Z]\w+)$")
WRAPPED = "transformer."
"""Prefix of the base's tensors in heads whose class has a base of another name than the type's other classes."""


def check_foreign(place: Path) -> None:
    """Raise InputError for an adapter of PEFT, and for a file of another format, or a folder with such files alone."""
    if (place / ADAPTER).is_file():
        raise InputError(f"{place} {adapter(place / ADAPTER)}")
    if place.is_dir() and any(path.name.startswith(WHOLE) or path.suffix in SAFETENSORS for path in place.iterdir()):
        return
    for path in sorted(place.iterdir()) if place.is_dir() else [place] if place.is_file() else []:
        if said := format_of(path):
            raise InputError(f"{path} {said}")


def adapter(path: Path) -> str:
    """Say what an adapter is of, and how to merge it."""
    try:
        found = parsed(read_small(path))
        kind, base = (str(found.get(name) or "not named") for name in ("peft_type", "base_model_name_or_path"))
    except (OSError, ValueError, AttributeError):
        kind = base = "not named"
    return (
        f"holds an adapter of PEFT (kind: {printable(kind):.40}; base: {printable(base):.80}), and no model alone; merge it in "
        "torch: PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(folder), and give that folder"
    )


def format_of(path: Path) -> str:
    """Say which other format a file is of, by its name; '' if it is of none that is known."""
    if path.suffix == ".ckpt" and path.is_file():
        return LIGHTNING if zipfile.is_zipfile(path) else TENSORFLOW
    if ".ckpt." in path.name:
        return TENSORFLOW
    return FORMATS.get(path.suffix, "")


def foreign_head(described: Mapping[str, Any], kind: ModelType, names: Collection[str]) -> str:
    """Say that a folder is of a class whose base has other names than the type's, for the sake of its head; '' if it is not."""
    called = next((it for it in described.get("architectures") or () if isinstance(it, str)), "")
    found = HEAD.search(called)
    if not found or kind.prefix == WRAPPED or not any(name.startswith(WRAPPED) for name in names):
        return ""
    head = " ".join(re.findall(r"[A-Z][a-z]+|[A-Z]+", found[1])).lower()
    return (
        f"it holds a {called:.60}, whose head ({head:.40}) is not loaded; save its base in torch: "
        f"transformers.{called:.60}.from_pretrained(folder).base_model.save_pretrained(other), and give that folder"
    )
