"""Choice of the smallest call that differs, and the two files that show it: `failing.py` and `failing.safetensors`."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxformer.convert.rules import weights_of
from jaxformer.errors import InputError, first_line
from jaxformer.io.atomic import refuse_existing, written_whole
from jaxformer.parity.numerics.float64 import jax_float64
from jaxformer.parity.numerics.metrics import EXACT, error, over
from jaxformer.parity.reduce.replay import OneCall, Replay, off, save
from jaxformer.parity.reduce.source import IrreducibleError, Source
from jaxformer.parity.report.data import Module, Reduced
from jaxformer.parity.report.two_jax import worded
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site, ancestors
from jaxformer.parity.trace.outputs import Call, Outputs
from jaxformer.parity.trace.pytree_modules import open_modules
from jaxformer.parity.trace.reference import apply
from jaxformer.pytree import is_weight, map_named, named_weights
from jaxformer.validation.fields import check_function, check_path

ReduceTo = Path | str | tuple[Path | str, Callable[[], Any]] | None
WANTED = "a path that ends in .py, or a tuple: the path and a function that makes the JAX model"


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


def requested(reduce_to: Any, model: Any, call: Call, outputs: Outputs) -> Reduction | None:
    """Return the request for the files; None if there is none, InputError if they cannot be written there."""
    if reduce_to is None:
        return None
    file, makes = reduce_to if isinstance(reduce_to, tuple) and len(reduce_to) == 2 else (reduce_to, None)
    file = check_path("reduce_to", file)
    if file.suffix != ".py":
        raise InputError(f"reduce_to = {file} is no Python file; give {WANTED}")
    if makes is not None:
        check_function("reduce_to", makes, WANTED)
    for each in (file, arrays_of(file)):
        refuse_existing(each)
    if not os.access(file.parent, os.W_OK | os.X_OK):
        why = "cannot be written to" if file.parent.is_dir() else "is no folder"
        raise InputError(f"reduce_to = {file}: {file.parent} {why}; give another path")
    return Reduction(file, model, call, outputs, makes)


def arrays_of(file: Path) -> Path:
    """Path of the arrays that belong to a written file."""
    return file.with_suffix(".safetensors")


def reduced(traced: Traced, rows: Sequence[Module], reduction: Reduction) -> Reduced:
    """Write the files for the first module whose own output differs; nothing is written if that is impossible."""
    wrong = [row for row in rows if row.diverging]
    if not wrong:
        return Reduced(why="no module differs by itself")
    row = next((row for row in wrong if over(row.local, "activation")), None)
    if row is None:
        return Reduced(why=f"{wrong[0].name} gives other gradients alone, and a file compares outputs")
    try:
        if traced.draws is not None:
            raise IrreducibleError("both sides run in training mode, and its draws are not written")
        for site in sites(traced, row):
            one, allowed = call_of(traced, site, reduction)
            if off(one, reduction.model, reduction.call) > allowed:
                return write(Written(traced, row, one, allowed), reduction)
        raise IrreducibleError("a call of it, with its own children's values, gives what torch gives")
    except IrreducibleError as why:
        return Reduced(why=f"{row.name}: {why}")
    except Exception as failure:  # the comparison itself is not at stake
        return Reduced(why=f"{row.name}: {type(failure).__name__}: {first_line(failure)}")


def sites(traced: Traced, row: Module) -> Iterator[Site]:
    """Yield the call of a row, and then the calls around it, whose outputs are compared with torch's."""
    own = next(site for site in traced.pairs if row.jax == (str(site) if site.path or site.call else ""))
    around = (Site(path, 0) for path in ancestors(own.path if own != CALL else ""))
    once = (site for site in around if site in traced.pairs and Site(site.path, 1) not in traced.pairs)
    for site in dict.fromkeys([own, *once, CALL]):
        opened = any(place.site == site and place.part == "output" for place in traced.opened)
        if site not in traced.valid and site not in traced.unfit and not opened:
            yield site


def call_of(traced: Traced, site: Site, reduction: Reduction) -> tuple[OneCall, float]:
    """Return a call with torch's arrays, and the largest relL2 that is allowed of its output."""
    other = traced.pairs[site]
    record = traced.reference.calls[other]
    weights = {name: np.asarray(leaf) for name, leaf in named_weights(traced.isolation.model).items()}
    if is_made(reduction.model):  # its constants are those of the source
        weights = {name: weights[name] for name in weights_of(traced.model, traced.rules)}
    orders = {place: order for place, order in traced.isolated.orders.items() if place.site == site}
    names = tuple(ours for _, ours in reduction.outputs.pairs) or ("",)
    moved = traced.reference.rounding.run
    noises = (moved.get(ArrayKey(other, "output", i), EXACT) for i in range(len(record.output)))
    allowed = [error(t, t, rounding=noise).allowed("activation")[0] for t, noise in zip(record.output, noises, strict=True)]
    settings = {"tables": dict(traced.tables.held), "outputs": names}
    one = OneCall(site, record, orders, traced.reference.inputs, weights, **settings)
    with jax_float64(traced.tables):
        read = Replay(one, traced.isolation.model, open_modules(reduction.model).given(reduction.call)).read()
    kept = {name: array for name, array in weights.items() if name in read}
    return replace(one, weights=smaller(kept), reads_more=not read <= {*kept}), max(allowed)


def smaller(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return float64 arrays as float32 where that loses nothing."""
    low = {name: array.astype(np.float32) for name, array in arrays.items()}
    return {name: low[name] if np.array_equal(low[name], array, equal_nan=True) else array for name, array in arrays.items()}


def is_made(model: Any) -> bool:
    """True if classes of the source make the model, so that it is more than a tree of arrays."""
    return isinstance(model, nnx.Module) or open_modules(model).rest is not None


@dataclass(frozen=True)
class Written:
    """Contents of the two files."""

    traced: Traced
    row: Module
    one: OneCall
    allowed: float


def write(content: Written, reduction: Reduction) -> Reduced:
    """Write both files, after a run that has to fail as it should."""
    source = Source()
    text = text_of(content, reduction, source)
    file, arrays = reduction.file, arrays_of(reduction.file)
    with TemporaryDirectory() as folder:
        trial = Path(folder) / file.name
        save(content.one, arrays_of(trial), source.pickle())
        text = text.replace(FOLDERS, f"sys.path[:0] = {source.folders()!r}")
        trial.write_text(text, "utf-8")
        check_fails(trial, content.row)
        for path, made in ((arrays, arrays_of(trial)), (file, trial)):
            with written_whole(path) as unfinished:
                unfinished.write_bytes(made.read_bytes())
    return Reduced(str(file), content.one.site.path)


def check_fails(file: Path, row: Module) -> None:
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


FOLDERS = "# folders"
TEXT = '''"""{title}

{says}

The test fails until the source is mended: run it with pytest. {arrays} holds the inputs and weights of this
call, and the output to expect, all of them torch's; both sides compute in float64. It needs jaxformer, and no torch.{fixed}
"""

import sys

{folders}

{imports}

TOLERANCE = {allowed:.0e}  # of the relL2 |ours - theirs| / |theirs|


def made():
    return {made}


def test_{name}():
    assert difference(__file__, made) <= TOLERANCE
'''


def text_of(content: Written, reduction: Reduction, source: Source) -> str:
    """Return the text of `failing.py`."""
    row, site, traced = content.row, content.one.site, content.traced
    made = made_by(content, reduction, source)
    source.pickle()
    called = f"{site}" if site != CALL else "the whole model"
    title = worded(f"{called} gives another output than torch's {traced.pairs[site]}.", traced.reference.environment)
    why = row.cause or f"{row.what}: {row.local}"
    says = worded("\n".join(filter(None, [f"{row.name}: {why}", row.source])), traced.reference.environment)
    fixed = f"\nKept as it was, whatever its source says now: {', '.join(source.fixed)}." if source.fixed else ""
    ours = ["difference", *(["kept"] if "kept(" in made else [])]
    imports = [*(f"import {name}" for name in sorted(source.imports))]
    return TEXT.format(
        title=quoted(title),
        says=quoted(says),
        fixed=quoted(fixed),
        arrays=arrays_of(reduction.file).name,
        folders=FOLDERS,
        imports="\n".join([*imports, f"from jaxformer.parity.reduce.replay import {', '.join(ours)}"]),
        allowed=content.allowed,
        made=made,
        name=re.sub(r"\W+", "_", called).strip("_").lower(),
    )


def made_by(content: Written, reduction: Reduction, source: Source) -> str:
    """Return an expression of the model and of the function that calls it."""
    if reduction.makes is not None:
        return f"{source.of(reduction.makes, 'makes')}()"
    model = reduction.model
    if not is_made(model):
        source.pickled["model"] = shapes_of(model, content.one)
        made = "kept(__file__)['model']"
    else:
        try:
            made = source._of(model)
        except LookupError:
            raise IrreducibleError(f"no expression makes the model; give reduce_to {WANTED}") from None
    return made if reduction.call is apply else f"({made}, {source.of(reduction.call, 'call')})"


def shapes_of(model: Any, one: OneCall) -> Any:
    """Return a tree of arrays with shapes in place of its floats: the file holds those that are read."""

    def shape(name: str, leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_weight(leaf) else leaf

    return map_named(shape, model)


def quoted(text: str) -> str:
    """Return a text that may stand in a docstring."""
    return text.replace("\\", "\\\\").replace('"""', "'''")
