"""What is done to files: bits are flipped, pickles are hostile, and what is small unpacks to much."""

import gzip
import io
import itertools
import json
import os
import pickle
import random
import resource
import shutil
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import jaxformer as jf
from jaxformer.convert.state_files import open_state
from jaxformer.data.corpora import UNPACKED, read_text
from jaxformer.errors import JaxformerError
from jaxformer.runs.averaging import keep_weights
from jaxformer.runs.checkpoint import digest, load_state, save_state
from jaxformer.runs.folder import RUN, RunFolder
from tests.tiny import tiny_config
from tests.tokenizer_bombs import BOMBS, write_changed

Spoil = Callable[[Path, int], str]
"""Spoils a file, each time in its turn, and says how."""


def kinds(folder: Path, seed: int = 0) -> dict[str, tuple[Path, Callable[[Path], str]]]:
    """Folders of four kinds, and what is read of each."""
    model = jf.excite(jf.abstract(tiny_config()), seed)
    run = RunFolder.create(folder / "run", {"recipe": {}, RUN: f"{seed}"})
    keep_weights(run, 3, model, newest=2)
    for step in (3, 6):
        run.log({"step": step, "val_loss": (1 + seed) / step})
    jf.save(model, folder / "saved")
    state = {"w": seed + jnp.arange(3000.0), "step": jnp.int32(7)}
    save_state(RunFolder.create(folder / "states", {RUN: f"{seed}"}).checkpoints, 7, state)

    (folder / "torchs").mkdir()
    torch.save({"w": torch.arange(3000.0) + seed, "b": torch.ones(5)}, folder / "torchs" / "state.pt")

    def read_states(path: Path) -> str:
        return digest(load_state(RunFolder(path).checkpoints, jax.tree.map(jnp.zeros_like, state)))

    def read_run(path: Path) -> str:
        RunFolder(path).check_kept()
        return json.dumps([RunFolder(path).config, RunFolder(path).metrics])

    return {
        "run": (folder / "run", read_run),
        "saved": (folder / "saved", lambda path: digest(jf.load(path))),
        "states": (folder / "states", read_states),
        "torchs": (folder / "torchs", lambda path: digest(open_state(path / "state.pt"))),
    }


def flips(times: int, folder: Path) -> list[str]:
    """One bit of a file."""
    draw = random.Random(0)

    def flip(path: Path, turn: int) -> str:
        if not (data := bytearray(path.read_bytes())):
            return "empty"
        place = draw.randrange(8 * len(data))
        data[place // 8] ^= 1 << place % 8
        path.write_bytes(data)
        return f"bit {place}"

    return spoiled(times, folder, flip)


def cuts(times: int, folder: Path) -> list[str]:
    """The end of a file is missing: its last byte, half, all of it, or more; of lines, the last ones."""
    draw = random.Random(0)

    def cut(path: Path, turn: int) -> str:
        if not (data := path.read_bytes()):
            return "empty"
        ends = [place + 1 for place in range(len(data) - 1) if data[place : place + 1] == b"\n"] or [1]
        lengths = [len(data) - 1, len(data) // 2, 0, draw.choice(ends), draw.randrange(len(data))]
        length = lengths[turn % len(lengths)]
        os.truncate(path, length)
        return f"cut to {length} bytes"

    return spoiled(times, folder, cut)


def swaps(times: int, folder: Path) -> list[str]:
    """A whole file or folder of another run in the place of one, and a pipe. A file of torch's stands alone:
    nothing says which it has to be."""
    kinds(folder / "other", seed=1)

    def swap(path: Path, turn: int) -> str:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        if turn % 2:
            os.mkfifo(path)
            return "is a pipe"
        other = folder / "other" / path.relative_to(folder / "copy")
        other = other if other.exists() else next(other.parent.iterdir())  # orbax draws names of its data
        shutil.copytree(other, path) if other.is_dir() else shutil.copyfile(other, path)
        return "is another run's"

    return spoiled(times, folder, swap, lambda path: path.exists() and path.suffix != ".pt")


def spoiled(times: int, folder: Path, spoil: Spoil, what: Callable[[Path], bool] = Path.is_file) -> list[str]:
    """One file at a time, in turn over all files of four kinds of folders: it is refused, warned of, or changes nothing."""
    silent = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = [(path, read, read(path)) for path, read in kinds(folder).values()]
    places = [(i, name) for i, (path, _, _) in enumerate(held) for name in sorted(path.rglob("*")) if what(name)]
    for n in range(times):
        i, name = places[n % len(places)]
        path, read, wanted = held[i]
        copy = Path(shutil.copytree(path, folder / "copy" / path.name))
        how = spoil(copy / name.relative_to(path), n // len(places))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                found = read(copy)
            except JaxformerError:
                found = wanted
        if found != wanted and not said:
            silent.append(f"{name.relative_to(folder)} {how}")
        shutil.rmtree(copy)
    return silent


class Hostile:
    """A pickle that calls a function when it is read."""

    def __init__(self, *call: Any):
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call[0], self.call[1:]


def hostile(marker: Path) -> list[Any]:
    """Ten objects; whoever reads one as a pickle makes the file `marker`."""
    touch = f"open({str(marker)!r}, 'w')"
    calls = [(os.system, f"touch {marker}"), (eval, touch), (exec, touch), (os.mkdir, str(marker)), (io.open, str(marker), "w")]
    ours = [Hostile(*call) for call in calls]
    return [*ours, *({"state_dict": each} for each in ours)]


def pickles(times: int, folder: Path) -> list[str]:
    """Hostile ones in torch's zip, bare, and under the name of a safetensors file: refused, and nothing is called."""
    marker, wrong = folder / "called", []
    for i, found in enumerate(hostile(marker) * (-(-times // 30))):
        for kind in ("zip.pt", "bare.bin", "renamed.safetensors"):
            path = folder / f"{i}.{kind}"
            if kind == "zip.pt":
                torch.save(found, path)
            else:
                path.write_bytes(pickle.dumps(found))
            try:
                open_state(path)
                wrong.append(f"{path.name} was read")
            except JaxformerError:
                pass
            if marker.exists():
                wrong.append(f"{path.name} was executed")
                return wrong
    return wrong


def bombs(times: int, folder: Path) -> list[str]:
    """What is small and says that it is large: refused within ten seconds and a gigabyte."""
    wrong = []
    for i, (path, read) in enumerate(made_bombs(folder, times)):
        begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            read(path)
            said = "was read"
        except JaxformerError as error:
            said = "" if "\n" not in str(error) else f"says {error}"
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
        if said or time.monotonic() - begun > 10 or grown > 1:
            wrong.append(f"{i} {path.name}: {said} after {time.monotonic() - begun:.1f} s, {grown:.1f} GiB")
    return wrong


def made_bombs(folder: Path, times: int) -> Iterator[tuple[Path, Callable[[Path], Any]]]:
    """Of gzip, headers, nested JSON, configurations, counts and tokenizers, in turn, of growing size."""
    packed = gzip.compress(bytes(UNPACKED * 2**20 + 1), 9)
    for i, steps in zip(range(-(-times // 6)), itertools.cycle(changes for changes, _ in BOMBS.values())):
        large = 10 ** (8 + i)
        (folder / f"{i}.gz").write_bytes(packed * (i + 1))
        yield folder / f"{i}.gz", read_text
        header = json.dumps({"w": {"dtype": "F32", "shape": [large], "data_offsets": [0, 4 * large]}}).encode()
        (folder / f"{i}.safetensors").write_bytes(struct.pack("<Q", len(header) if i % 2 else large) + header)
        yield folder / f"{i}.safetensors", open_state
        table = io.BytesIO()
        np.lib.format.write_array_header_1_0(table, {"descr": "<f8", "fortran_order": False, "shape": (large, 9)})
        (folder / f"{i}.npy").write_bytes(table.getvalue())
        yield folder / f"{i}.npy", lambda path: jf.FixedTable.load(str(path))
        (folder / f"nested{i}").mkdir()
        (folder / f"nested{i}/config.json").write_text("[" * 10**5 * (i + 1))
        yield folder / f"nested{i}", jf.load
        model = jf.excite(jf.abstract(tiny_config()), seed=0)
        jf.save(model, folder / f"deep{i}")
        (folder / f"deep{i}/manifest.json").unlink()
        described = json.loads((folder / f"deep{i}/config.json").read_text())
        described["config"] = asdict(replace(tiny_config(), n_layers=min(large, 2**31 - 1)))
        (folder / f"deep{i}/config.json").write_text(json.dumps(described))
        yield folder / f"deep{i}", jf.load
        yield write_changed(folder / f"tokenizer{i}.json", **steps), jf.Tokenizer.load
