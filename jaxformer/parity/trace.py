"""What went in and out of every submodule, on both sides; and what each one does with the other side's inputs.

Along a normal run an error spreads: every module behind a bug is off. So each JAX module is also run on its own ground: it is
given the inputs that torch's module had, and everything around it the outputs that torch's module gave. Then a module is off
only if its own code is: between its inputs, its children's outputs, and what it hands to its children or returns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.parity.measure import host
from jaxformer.parity.watch import Site, watch_flax, watch_torch

Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Record:
    """One call: its arrays, in the order of the arguments; whatever is no array is left out."""

    inputs: Arrays
    output: Arrays


Trace = Mapping[Site, Record]
"""In the order in which calls end."""


def is_array(value: Any) -> bool:
    """Of either framework."""
    return isinstance(value, (np.ndarray, jax.Array)) or hasattr(value, "detach")


def arrays_in(value: Any) -> list[Any]:
    """The arrays of an argument or a result, those in lists, tuples and dicts among them."""
    if is_array(value):
        return [value]
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return [array for item in value for array in arrays_in(item)] if isinstance(value, (list, tuple)) else []


def replaced(value: Any, arrays: list[Any]) -> Any:
    """The same argument or result with these arrays, which are used up."""
    if is_array(value):
        return arrays.pop(0)
    if isinstance(value, dict):
        return {name: replaced(item, arrays) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [replaced(item, arrays) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


@dataclass
class Recorder:
    """Notes what goes in and out."""

    calls: dict[Site, tuple[list[Any], list[Any]]] = field(default_factory=dict)
    begun: dict[Site, list[Any]] = field(default_factory=dict)

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Copies: torch may write over them."""
        self.begun[site] = [array.clone() if hasattr(array, "clone") else array for array in arrays_in(arguments)]
        return arguments

    def leave(self, site: Site, output: Any) -> Any:
        """Calls without an array in what they give are no part of the forward pass."""
        if arrays := arrays_in(output):
            copies = [array.clone() if hasattr(array, "clone") else array for array in arrays]
            self.calls[site] = self.begun.pop(site), copies
        return output


def trace_torch(model: Any, call: Callable[..., Any], inputs: tuple[Any, ...]) -> dict[Site, Record]:
    """Every call inside of call(model, *inputs), without gradients."""
    import torch

    recorder = Recorder()
    with torch.no_grad(), watch_torch(model, recorder):
        call(model, *inputs)
    return {site: Record(tuple(map(host, given)), tuple(map(host, output))) for site, (given, output) in recorder.calls.items()}


def trace_jax(model: Any, call: Callable[..., Any], inputs: tuple[Any, ...]) -> dict[Site, Record]:
    """The same of a Flax NNX model, in one compiled program."""
    order: list[Site] = []

    @jax.jit
    def run(model: Any, inputs: tuple[Any, ...]) -> list[Any]:
        recorder = Recorder()
        with watch_flax(model, recorder), jax.disable_jit():
            call(model, *inputs)
        order[:] = recorder.calls
        return list(recorder.calls.values())

    found = run(model, inputs)
    return {
        site: Record(tuple(map(np.asarray, given)), tuple(map(np.asarray, output)))
        for site, (given, output) in zip(order, found, strict=True)
    }


@dataclass(frozen=True)
class Gap:
    """An array of ours beside torch's, and whose doing the difference is."""

    owner: Site
    child: Site | None
    """Of ours, where the array is on its way into one of the owner's children; None for its output."""
    ours: np.ndarray
    theirs: np.ndarray

    @property
    def what(self) -> str:
        """Which array it is."""
        return "output" if self.child is None else f"input of {self.child}"


def local_gaps(
    model: Any, call: Callable[..., Any], inputs: tuple[Any, ...], theirs: Trace, pairs: Mapping[Site, Site]
) -> list[Gap]:
    """What each paired JAX module makes of torch's inputs; `pairs` leads from our calls to torch's."""
    labels: list[tuple[Site, Site | None, np.ndarray]] = []

    @jax.jit
    def run(model: Any, inputs: tuple[Any, ...]) -> list[Any]:
        forcing = _Forcing(theirs, pairs)
        with watch_flax(model, forcing), jax.disable_jit():
            call(model, *inputs)
        labels[:] = [(owner, child, array) for owner, child, _, array in forcing.found]
        return [ours for _, _, ours, _ in forcing.found]

    found = run(model, inputs)
    return [Gap(owner, child, np.asarray(ours), array) for (owner, child, array), ours in zip(labels, found, strict=True)]


class _Forcing:
    """Puts torch's arrays in place of ours, wherever a paired call begins or ends."""

    def __init__(self, theirs: Trace, pairs: Mapping[Site, Site]):
        self.theirs, self.pairs = theirs, pairs
        self.open: list[Site] = []
        self.found: list[tuple[Site, Site | None, Any, np.ndarray]] = []

    def record(self, site: Site) -> Record | None:
        return self.theirs.get(self.pairs[site]) if site in self.pairs else None

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        record = self.record(site)
        if record is None:
            return arguments
        if self.open:
            arguments = self._force(arguments, record.inputs, self.open[-1], site)
        self.open.append(site)
        return arguments

    def leave(self, site: Site, output: Any) -> Any:
        record = self.record(site)
        if record is None:
            return output
        self.open.pop()
        return self._force(output, record.output, site, None)

    def _force(self, value: Any, theirs: Arrays, owner: Site, child: Site | None) -> Any:
        """Numbers of ours, in their order, against torch's of the same shape; masks stay, since their sense may differ."""
        left, put = [array for array in theirs if array.dtype != bool], []
        for ours in arrays_in(value):
            found = self._first_fitting(left, ours)
            if found is None:
                put.append(ours)
                continue
            i, array = found
            del left[: i + 1]
            self.found.append((owner, child, ours, array))
            put.append(jnp.asarray(array, ours.dtype))
        return replaced(value, put)

    def _first_fitting(self, theirs: list[np.ndarray], ours: Any) -> tuple[int, np.ndarray] | None:
        floating = jnp.issubdtype(ours.dtype, jnp.floating)
        for i, array in enumerate(theirs):
            same_kind = np.issubdtype(array.dtype, np.floating) == floating and ours.dtype != bool
            if same_kind and (turned := fit(array, ours.shape)) is not None:
                return i, turned
        return None


def fit(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """torch's array in our shape: as it is, or in the one order of axes that fits; None where there is none."""
    if array.shape == tuple(shape):
        return array
    if array.ndim != len(shape) or array.ndim > 5:
        return None
    orders = [order for order in permutations(range(array.ndim)) if tuple(array.shape[axis] for axis in order) == tuple(shape)]
    return array.transpose(orders[0]) if len(orders) == 1 else None
