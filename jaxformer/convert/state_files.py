"""Torch states on disk: one file, or the files of a folder in transformers' format. No code in them is ever executed.

Tensors of safetensors files are memory-mapped, and read when they are used; torch reads `.bin`, `.pt` and `.pth`.
"""

import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from jaxformer.convert.host import host
from jaxformer.convert.safetensors import map_tensors, save_tensors
from jaxformer.convert.state_dict import to_tensor
from jaxformer.convert.weight_files import INDEX, PICKLES, SAFETENSORS, WHOLE, weight_files, weight_map
from jaxformer.errors import CheckpointError, InputError, first_line, listed, type_of, why_unwritten
from jaxformer.io.atomic import refuse_existing, written_whole
from jaxformer.runtime.packages import extra_package
from jaxformer.validation.fields import check_file

DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
)
"""Types of torch that have a numpy counterpart."""
INSIDE = ("state_dict", "model", "model_state_dict")
"""Keys under which training scripts save a state together with other values."""
OLD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""First bytes of a file that a torch before version 1.6 wrote."""


def open_state(path: Path) -> dict[str, Any]:
    """Read every tensor of a file by its name, as numpy arrays; CheckpointError if that is not completely and safely
    possible."""
    check_file(path)
    if path.suffix in SAFETENSORS:
        try:
            return dict(map_tensors(path))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is not a safetensors file: {first_line(error)}") from None
    if path.suffix in PICKLES:
        return {name: host(tensor) for name, tensor in _unpickled(path).items()}
    raise InputError(unknown_ending(path))


def unknown_ending(path: Path) -> str:
    """Say which files of tensors are read."""
    return f"{path} ends in no known way; give a file that ends in {', '.join(SAFETENSORS + PICKLES)}"


def _unpickled(path: Path) -> Mapping[str, Any]:
    """Read a file of torch.save that holds only tensors: `weights_only` executes no code from the file."""
    with extra_package():
        import torch

    try:
        _check_records(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # unpickling a refused file may raise anything
        raise CheckpointError(f"{path} {_why_not_opened(path, error)}") from None
    inner = next((found[key] for key in INSIDE if isinstance(found, dict) and isinstance(found.get(key), dict)), found)
    if not isinstance(inner, dict) or not inner:
        what = f"{type_of(inner)}" if inner else "empty"
        raise CheckpointError(f"{path} holds no state_dict: it is {what}; save model.state_dict()")
    odd = [f"its key {name!r:.60} is {type_of(name)}" for name in inner if not isinstance(name, str)]
    odd += [f"{name} is {type_of(it)}" for name, it in inner.items() if not hasattr(it, "detach")]
    if odd:
        raise CheckpointError(f"{path} holds no state_dict: {listed(odd)}; save model.state_dict()")
    if odd := [f"{name} is {fault}" for name, it in inner.items() if (fault := _not_plain(it))]:
        raise CheckpointError(f"{path}: {listed(odd)}; save plain tensors, such as float32 on the CPU")
    return inner


def _why_not_opened(path: Path, error: Exception) -> str:
    """Explain why torch refuses a file, and what to do: torch's own advice is to execute the file's code."""
    with path.open("rb") as file:
        if file.read(len(OLD)) == OLD:
            return "is written in torch's format of before 1.6, and is not opened; load it in torch and save it again"
    called = re.search(r"GLOBAL ([\w.]+)", str(error))
    why = f", and is not opened: it calls {called[1]}" if called else ", or is damaged, and is not opened"
    return f"is not a file of tensors alone{why}; save its state_dict()"


def _check_records(path: Path) -> None:
    """Raise CheckpointError if a record of a torch file is corrupt: torch itself does not verify checksums.

    Files of torch before 1.6, and with `torch.serialization.set_crc32_options(False)`, have no checksums.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as records:
        if packed := [each.filename for each in records.infolist() if each.compress_type != zipfile.ZIP_STORED]:
            raise CheckpointError(f"{path} cannot be read: its {packed[0]} is compressed, and torch.save never does that")
        if any(each.CRC for each in records.infolist()) and (name := records.testzip()):
            raise CheckpointError(f"{path} is damaged: its {name} has another checksum than when it was written; copy it again")


def _not_plain(tensor: Any) -> str:
    """Explain why a torch tensor cannot become a numpy array; "" if it can."""
    dtype, layout = (str(it).removeprefix("torch.") for it in (tensor.dtype, tensor.layout))
    if tensor.device.type != "cpu":
        return f"on device {tensor.device.type}"
    if layout != "strided" or tensor.is_nested:
        return f"of layout {'nested' if tensor.is_nested else layout}"
    if dtype not in DTYPES:
        return f"of type {dtype}"
    if tensor.is_conj() or tensor.is_neg():
        return "a lazy conjugate or negative"
    needed, held = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
    return f"of {needed:,} bytes, of which the file holds {held:,}" if needed > held else ""


def open_folder_state(folder: Path) -> dict[str, Any]:
    """Read every tensor of a folder; CheckpointError if two files have the same tensor, or no file has one of the index."""
    state: dict[str, Any] = {}
    for path in (files := weight_files(folder)):
        more = open_state(path)
        if twice := sorted(set(more) & set(state)):
            raise CheckpointError(f"{path}: {listed(twice)} {'are' if twice[1:] else 'is'} in another file too")
        state |= more
    if files[0].name not in WHOLE:
        index = next(index for name in WHOLE if (index := folder / f"{name}{INDEX}").is_file())
        if lost := sorted(set(weight_map(index)) - set(state)):
            raise CheckpointError(f"{index} names tensors that no file has: {listed(lost)}; copy the whole folder again")
    return state


def write_state(path: Path, state: Mapping[str, np.ndarray]) -> None:
    """Write tensors by an atomic write, into a .safetensors file or a file of torch.save.

    InputError for another suffix or an existing file; CheckpointError if the file cannot be written.
    """
    if path.suffix not in SAFETENSORS + PICKLES:
        raise InputError(f"{path} ends in no known way; name a file that ends in {', '.join(SAFETENSORS + PICKLES)}")
    refuse_existing(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as unfinished:
            if path.suffix in SAFETENSORS:
                save_tensors(unfinished, state, {"format": "pt"})
            else:
                _pickle(state, unfinished)
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be written: {why_unwritten(error)}; give another name") from None


def _pickle(state: Mapping[str, np.ndarray], path: Path) -> None:
    with extra_package():
        import torch

    torch.save({name: to_tensor(array) for name, array in state.items()}, path)
