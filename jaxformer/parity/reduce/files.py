"""The two files of a call that differs: `failing.py`, a test, and `failing.safetensors` with torch's arrays."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open

from jaxformer.io.atomic import written_whole
from jaxformer.parity.reduce.replay import SETTINGS, OneCall, difference, save
from jaxformer.parity.reduce.source import IrreducibleError, Source
from jaxformer.parity.trace.call_sites import CALL
from jaxformer.parity.trace.outputs import Call, Outputs
from jaxformer.parity.trace.pytree_modules import open_modules
from jaxformer.parity.trace.reference import apply
from jaxformer.pytree import is_weight, named_leaves


@dataclass(frozen=True)
class Reduction:
    """Request for the two files."""

    file: Path
    model: Any
    """JAX model as the user gave it."""
    call: Call
    outputs: Outputs
    makes: Callable[[], Any] | None = None
    """Function that makes the model, or a tuple: the model and the function that calls it."""


def arrays_of(file: Path) -> Path:
    """Path of the arrays that belong to a written file."""
    return file.with_suffix(".safetensors")


MARK = "# Written by jaxformer, whose next run writes it anew."
"""Line of a written file, which may be overwritten."""
TEXT = '''"""{says}

The test fails until the source is mended: run it with pytest. {arrays} holds the inputs, the weights and the
output of the reference's call; both sides compute in float64. It needs jaxformer, and no torch where your own code needs
none.{fixed}
"""

{mark}
import sys

sys.path[:0] = {folders}

{imports}

TOLERANCE = {allowed:.0e}  # of the relL2 |ours - reference| / |reference|


def made():
    return {made}


def test_{name}():
    assert difference(__file__, made) <= TOLERANCE
'''


def write(one: OneCall, allowed: float, says: str, reduction: Reduction, tapped: str) -> None:
    """Write both files, after a run of the test; IrreducibleError unless it fails because the outputs differ.

    `tapped` is the line of the code at fault if that is known to be a function's, with a tap; else ''.
    """
    source = Source()
    made = made_by(one, reduction, source)
    pickled, ours = source.pickle(), "difference, kept" if "kept(" in made else "difference"
    if source.keeps(tapped):
        raise IrreducibleError(f"the code at {tapped} has no name to import; define its function at the top level of a module")
    fixed = f"\nKept as it was, whatever its source says now: {source.kept()}." if source.fixed else ""
    text = TEXT.format(
        says=quoted(says),
        arrays=arrays_of(reduction.file).name,
        fixed=quoted(fixed),
        mark=MARK,
        folders=source.folders(),
        imports="\n".join([*map("import {}".format, sorted(source.imports)), f"from {difference.__module__} import {ours}"]),
        allowed=allowed,
        made=made,
        name=re.sub(r"\W+", "_", str(one.site) if one.site != CALL else "the whole model").strip("_").lower(),
    )
    with TemporaryDirectory() as folder:
        trial = Path(folder) / reduction.file.name
        save(one, arrays_of(trial), pickled)
        trial.write_text(text, "utf-8")
        check_fails(trial)
        with written_whole(arrays_of(reduction.file)) as arrays, written_whole(reduction.file) as test:
            arrays.write_bytes(arrays_of(trial).read_bytes())
            test.write_bytes(trial.read_bytes())


def is_ours(path: Path) -> bool:
    """True if `write` wrote a file, which is then written anew."""
    try:
        if path.suffix == ".py":
            return MARK in path.read_text("utf-8").splitlines()
        with safe_open(path, "np") as file:
            return SETTINGS in (file.metadata() or {})
    except (OSError, ValueError, SafetensorError):
        return False


def check_fails(file: Path) -> None:
    """Run the test of a file; IrreducibleError unless it fails because the outputs differ."""
    before = [*sys.path]
    names: dict[str, Any] = {"__file__": str(file), "__name__": file.stem}
    try:
        exec(compile(file.read_text("utf-8"), str(file), "exec"), names)
        next(value for name, value in names.items() if name.startswith("test_"))()
    except AssertionError:
        return
    finally:
        sys.path[:] = before
    raise IrreducibleError("made again, it gives torch's output: its settings are not those of the compared model")


def is_made(model: Any) -> bool:
    """True if classes of the source make the model, so that it is more than a tree of arrays."""
    parts = jax.tree.leaves(model, is_leaf=lambda part: isinstance(part, nnx.Module))
    return any(isinstance(part, nnx.Module) for part in parts) or open_modules(model).rest is not None


def made_by(one: OneCall, reduction: Reduction, source: Source) -> str:
    """Return an expression of the model and of the function that calls it."""
    if reduction.makes is not None:
        return f"{source.of(reduction.makes, 'makes')}()"
    model = reduction.model
    if not is_made(model):
        source.pickled["model"] = shapes_of(model, one)
        made = "kept(__file__)['model']"
    else:
        try:
            made = source.expression(model)
        except LookupError:
            raise IrreducibleError("no expression makes the model; give reduce_to a function that makes it, too") from None
    return made if reduction.call is apply else f"({made}, {source.of(reduction.call, 'call')})"


def shapes_of(model: Any, one: OneCall) -> Any:
    """Return a tree of arrays with shapes in place of its floats: the file holds those that are read.

    In nested dicts, weights that only the mended source reads get a place.
    """

    def shape(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_weight(leaf) else leaf

    tree = jax.tree.map(shape, model)
    for name in one.weights.keys() - named_leaves(model).keys():
        *path, own = name.split(".")
        inner = tree
        for part in path:
            inner = inner.get(part) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner[own] = jax.ShapeDtypeStruct(one.weights[name].shape, np.float32)
    return tree


def quoted(text: str) -> str:
    """Return a text that may stand in a docstring."""
    return text.replace("\\", "\\\\").replace('"""', "'''")
