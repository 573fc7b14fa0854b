"""Choice of the smallest call that differs."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.convert.rules import weights_of
from jaxformer.errors import InputError, JaxformerError, first_line
from jaxformer.io.atomic import refuse_existing
from jaxformer.parity.numerics.float64 import jax_float64
from jaxformer.parity.numerics.metrics import EXACT, error, over
from jaxformer.parity.reduce.files import Reduction, arrays_of, is_made, is_ours, write
from jaxformer.parity.reduce.replay import OneCall, Replay, off
from jaxformer.parity.reduce.source import IrreducibleError
from jaxformer.parity.report.data import Module, Reduced
from jaxformer.parity.report.two_jax import worded
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site, ancestors, below, join, last, parent
from jaxformer.parity.trace.outputs import Call, Outputs
from jaxformer.parity.trace.pytree_modules import open_modules
from jaxformer.pytree import named_leaves, named_weights
from jaxformer.validation.fields import check_function, check_path

ReduceTo = Path | str | tuple[Path | str, Callable[[], Any]] | None
NAMES = {"bias": ("bias", "b", "offset"), "weight": ("scale", "weight")}
"""torch's names of a bias and a gain -> those in JAX."""
WANTED = "a path that ends in .py, or a tuple: the path and a function that makes the JAX model"


def requested(reduce_to: Any, model: Any, call: Call, outputs: Outputs) -> Reduction | None:
    """Return the request for the files; None if there is none, InputError if they are not its own, or cannot be written."""
    if reduce_to is None:
        return None
    file, makes = reduce_to if isinstance(reduce_to, tuple) and len(reduce_to) == 2 else (reduce_to, None)
    file = check_path("reduce_to", file)
    if file.suffix != ".py":
        raise InputError(f"reduce_to = {file} is no Python file; give {WANTED}")
    if makes is not None:
        check_function("reduce_to", makes, WANTED)
    for each in (file, arrays_of(file)):
        if not is_ours(each):
            refuse_existing(each)
    if not os.access(file.parent, os.W_OK | os.X_OK):
        why = "cannot be written to" if file.parent.is_dir() else "is no folder"
        raise InputError(f"reduce_to = {file}: {file.parent} {why}; give another path")
    return Reduction(file, model, call, outputs, makes)


def reduced(traced: Traced, rows: Sequence[Module], torch: Mapping[str, np.ndarray], reduction: Reduction) -> Reduced:
    """Write the files for the first module whose own output differs; nothing is written if that is impossible.

    `torch` holds all of torch's weights, also those that the JAX model lacks.
    """
    wrong = [row for row in rows if row.diverging]
    if not wrong:
        return Reduced(why="no module differs by itself")
    row = next((row for row in wrong if over(row.local, "activation")), None)
    if row is None:
        return Reduced(why=f"{wrong[0].name} gives other gradients alone, and a test compares outputs")
    try:
        if traced.draws is not None:
            raise IrreducibleError("both sides run in training mode, and its draws are not kept")
        for site in sites(traced, row):
            one = call_of(traced, site, torch, reduction)
            if off(one, reduction.model, reduction.call) > (allowed := tolerance(traced, site)):
                title = f"{site if site != CALL else 'the whole model'} gives another output than torch's {traced.pairs[site]}."
                says = "\n".join([title, "", f"{row.name}: {row.cause or f'{row.what}: {row.local}'}", row.source]).strip()
                tapped = row.source if site in traced.normal_run.taps else ""
                write(one, allowed, worded(says, traced.reference), reduction, tapped)
                return Reduced(str(reduction.file), site.path)
        raise IrreducibleError("run as a whole on torch's inputs, it gives torch's output")
    except (IrreducibleError, JaxformerError) as why:
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


def call_of(traced: Traced, site: Site, torch: Mapping[str, np.ndarray], reduction: Reduction) -> OneCall:
    """Return a call with torch's arrays."""
    record, whole = traced.reference.calls[traced.pairs[site]], traced.isolation.model
    weights = {name: np.asarray(leaf) for name, leaf in named_weights(whole).items()}
    if is_made(reduction.model):  # its constants are those of the source
        weights = {name: weights[name] for name in weights_of(traced.model, traced.rules)}
    orders = {place: order for place, order in traced.isolated.orders.items() if place.site == site}
    outputs = tuple(ours for _, ours in reduction.outputs.pairs) or ("",)
    one = OneCall(site, record, orders, traced.reference.inputs, weights, dict(traced.tables.held), outputs=outputs)
    with jax_float64(traced.tables):
        read = Replay(one, whole, open_modules(reduction.model).given(reduction.call)).read()
    around = "" if site == CALL or site in traced.normal_run.taps else site.path
    read |= {name for name in named_leaves(whole) if below(name, around)}  # the mended source may read more of its own
    kept = {name: array for name, array in weights.items() if name in read}
    return replace(one, weights=smaller(kept | left_out(traced, torch)), reads_more=not read <= {*kept})


def tolerance(traced: Traced, site: Site) -> float:
    """Largest relL2 that the comparison allows of a call's output."""
    other, moved = traced.pairs[site], traced.reference.rounding.run
    arrays = enumerate(traced.reference.calls[other].output)
    found = [error(t, t, rounding=moved.get(ArrayKey(other, "output", i), EXACT)) for i, t in arrays]
    return max(each.allowed("activation")[0] for each in found)


def left_out(traced: Traced, torch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return torch's biases and gains that the JAX model lacks, by the names that they get when the source is mended."""
    held, found = {*traced.parameters.values()}, {}
    for theirs, array in torch.items():
        around = traced.names.get(parent(theirs))
        if theirs not in held and array.ndim == 1 and around is not None:
            found |= {join(around, name): array for name in NAMES.get(last(theirs), ())}
    return found


def smaller(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return float64 arrays as float32 where that loses nothing."""
    low = {name: array.astype(np.float32) for name, array in arrays.items()}
    return {name: low[name] if np.array_equal(low[name], array, equal_nan=True) else array for name, array in arrays.items()}
