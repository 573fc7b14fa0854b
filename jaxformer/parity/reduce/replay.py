"""Replay of one call of a JAX model on torch's inputs, with torch's weights: all that a written `failing.py` runs.

The user's own code runs up to the call, so that settings and masks come from the source as it is now; but nothing is computed
there that the call does not read, and only weights that it reads are kept.
"""

import base64
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
from jax.core import Tracer

from jaxformer.convert.safetensors import save_tensors
from jaxformer.parity.numerics.axis_order import Order, to_torch_axes
from jaxformer.parity.numerics.float32_tables import Tables
from jaxformer.parity.numerics.float64 import inputs_float64, jax_float64, to_float64
from jaxformer.parity.numerics.float_masks import one_number
from jaxformer.parity.numerics.metrics import distance
from jaxformer.parity.pairing.arrays import AxisOrders
from jaxformer.parity.runs.activation_patching import ActivationPatching, Code, Patched, given_by
from jaxformer.parity.runs.load_weights import joined, parted, ready
from jaxformer.parity.trace.call_records import Record, named_arrays
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.trace.jax_hooks import watch_jax
from jaxformer.parity.trace.outputs import Call, picked
from jaxformer.parity.trace.programs import UNTRACEABLE, run_once
from jaxformer.parity.trace.pytree_modules import open_modules
from jaxformer.parity.trace.reference import apply
from jaxformer.parity.trace.transformations import written_out
from jaxformer.pytree import map_named, named_leaves

Arrays = Mapping[str, np.ndarray]
PARTS = ("inputs", "output")
SETTINGS, PICKLED = "call", "pickled"
"""Keys of the file's metadata."""


@dataclass(frozen=True)
class OneCall:
    """Call of a JAX model, and what torch's call was given and gave."""

    site: Site
    record: Record
    orders: Mapping[ArrayKey, Order]
    """Known orders of torch's axes in jax's arrays of this call."""
    inputs: tuple[np.ndarray, ...]
    """Inputs of the whole model."""
    weights: Arrays
    """torch's weights by jax's names, in jax's layout: those that the call reads."""
    tables: Arrays = field(default_factory=dict)
    """torch's tables, which replace those that jax's code computes (see `Tables`)."""
    reads_more: bool = True
    """True if the call also reads arrays of the model that are not torch's, as tables that its constructor computes."""
    outputs: tuple[str, ...] = ("",)
    """jax's names of the compared arrays, if the call is that of the whole model."""


class _Patching(ActivationPatching):
    """Patching of one call, whose inputs then no longer depend on the code before it."""

    def _with_gradient(self, array: jax.Array, instead: jax.Array, place: ArrayKey, order: Order, sender: Code) -> jax.Array:
        return instead


class Replay:
    """Run of the JAX model up to the end of one call; for use in `jax_float64`."""

    def __init__(self, one: OneCall, model: Any, call: Call):
        self.one, self.call = one, call
        self.floats, self.rest = parted(model)
        given = given_by({one.site: one.record}, {}, gradients=False)
        self.values = {place: jax.device_put(array) for place, array in {**given.values, **given.others}.items()}
        self.inputs = inputs_float64(one.inputs)
        self.patching: _Patching

    def _run(self, floats: Any, values: Mapping[ArrayKey, Any]) -> list[Any]:
        """Return jax's arrays of the call's output; torch's arrays are arguments, so that none is folded in float32."""
        one = self.one
        self.patching = _Patching({one.site: one.record}, values, {}, {}, {}, AxisOrders(one.orders, ()))
        model = joined(floats, self.rest)
        with watch_jax(model, self.patching), written_out():
            output = self.call(model, *self.inputs)
            if one.site == CALL:
                self.patching.leave(CALL, picked(named_arrays(output), one.outputs))
        return [each.jax for each in self._outputs()]

    def _outputs(self) -> list[Patched]:
        return [each for each in self.patching.found if each.place.part == "output"]

    def pairs(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return jax's arrays of the call's output and torch's, with torch's axes."""
        arrays, _ = run_once(self._run, self.floats, self.values)
        orders = self.patching.orders.taken
        both = zip(arrays, self._outputs(), strict=True)
        return [(to_torch_axes(np.asarray(ours), orders[it.place], it.torch.shape), it.torch) for ours, it in both]

    def read(self) -> set[str]:
        """Return the names of the model's arrays that the call reads; all of them if JAX cannot trace the model."""
        names = [*named_leaves(self.floats), *named_leaves(self.rest)]
        floats, rest = self.floats, self.rest

        def run(floats: Any, others: Any) -> list[Any]:
            self.rest = others
            return self._run(floats, self.values)

        try:
            program = jax.make_jaxpr(run)(floats, rest).jaxpr
        except (*UNTRACEABLE, ValueError):
            return {*names}
        finally:
            self.rest = rest
        read = {id(each) for each in program.outvars}
        for operation in reversed(program.eqns):
            if any(id(each) in read for each in operation.outvars):
                read |= {id(each) for each in operation.invars}
        return {name for name, each in zip(names, program.invars, strict=True) if id(each) in read}


def difference(file: str | Path, made: Callable[[], Any]) -> float:
    """Return the largest relL2 between what a JAX call gives, in float64, and torch's output of the same call; infinite if
    shapes, NaN or infinities differ, or if the call is not reached.

    `file` has the same name as the `.safetensors` with torch's arrays. `made()` returns the JAX model, or a tuple: the model
    and the function that calls it.
    """
    one = load(Path(file).with_suffix(".safetensors"))
    found: Any = made() if one.reads_more else without_arrays(made)
    is_pair = isinstance(found, tuple) and len(found) == 2 and callable(found[1])
    model, call = found if is_pair else (found, apply)
    return off(one, model, call)


def without_arrays(made: Callable[[], Any]) -> Any:
    """Return what `made()` returns, with zeros in its arrays, so that no weights are drawn."""
    found: list[Any] = []
    try:
        jax.eval_shape(lambda: found.append(made()))
    except Exception:  # it needs concrete values, or fails without tracing too
        return made()
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, Tracer) else leaf, found[0])


def off(one: OneCall, model: Any, call: Call) -> float:
    """Return `difference` of a model, and of the function that calls it."""
    opened = open_modules(model)
    with jax_float64(Tables(one.tables)):
        tree = ready(loaded(opened.tree, one.weights), training=False)
        pairs = Replay(one, tree, opened.given(call)).pairs()
    inside = one.site != CALL
    return max((distance(one_number(ours, theirs, inside=inside), theirs) for ours, theirs in pairs), default=np.inf)


def loaded(tree: Any, weights: Arrays) -> Any:
    """Return the tree in float64 with these weights by name; shapes without values get zeros."""

    def held(leaf: Any) -> Any:
        return np.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    tree = to_float64(jax.tree.map(held, tree))
    return map_named(lambda name, leaf: jax.device_put(weights[name].astype(leaf.dtype)) if name in weights else leaf, tree)


def save(one: OneCall, path: Path, pickled: bytes) -> None:
    """Write the arrays of a call, with its other data and the pickled values of a file as metadata."""
    arrays = {f"weight/{name}": array for name, array in one.weights.items()}
    arrays |= {f"table/{name}": array for name, array in one.tables.items()}
    arrays |= {f"model's input/{i}": array for i, array in enumerate(one.inputs)}
    arrays |= {f"{part}/{i}": array for part in PARTS for i, array in enumerate(getattr(one.record, part))}
    orders = [[*key.site, key.part, key.number, order] for key, order in one.orders.items()]
    settings = {"site": one.site, "orders": orders, "outputs": one.outputs, "reads_more": one.reads_more}
    metadata = {SETTINGS: json.dumps(settings), PICKLED: base64.b64encode(pickled).decode()}
    save_tensors(path, {name: np.array(array, order="C") for name, array in arrays.items()}, metadata)


def load(path: Path) -> OneCall:
    """Read what `save` wrote."""
    held: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in ("weight", "table", "model's input", *PARTS)}
    with safetensors.safe_open(path, "np") as file:
        settings = json.loads(file.metadata()[SETTINGS])
        for key in file.keys():  # noqa: SIM118  # it is no dict
            kind, _, name = key.partition("/")
            held[kind][name] = file.get_tensor(key)
    inputs, *record = (tuple(held[kind][str(i)] for i in range(len(held[kind]))) for kind in ("model's input", *PARTS))
    orders = {ArrayKey(Site(*at), part, i): tuple(order) for *at, part, i, order in settings["orders"]}
    more = settings["reads_more"], tuple(settings["outputs"])
    return OneCall(Site(*settings["site"]), Record(*record), orders, inputs, held["weight"], held["table"], *more)


def kept(file: str | Path) -> dict[str, Any]:
    """Unpickle the values of a written file that have no expression in Python; like any pickle, it may run code."""
    with safetensors.safe_open(Path(file).with_suffix(".safetensors"), "np") as held:
        return pickle.loads(base64.b64decode(held.metadata()[PICKLED]))
