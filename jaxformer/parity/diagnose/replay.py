"""Replay of one torch call: its own code runs alone, and its children return what they gave before."""

import copy
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from typing import Any
from unittest import mock

import numpy as np

from jaxformer.parity.diagnose.calls import Arguments
from jaxformer.parity.diagnose.slices import slice_of, uses_of
from jaxformer.parity.diagnose.trace import Listing, Op, entries
from jaxformer.parity.numerics.axis_order import AGAIN, Part, part_of
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import distance, host
from jaxformer.parity.trace.call_records import arrays_in, copied, replaced
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site, below
from jaxformer.parity.trace.torch_hooks import without_fast_path

LARGE, BEGINNING = 20_000, 250
"""Number of output entries that cost as much time as one operation, and cost of starting a replay, in operations."""
INNER = 0.1
"""Cost of an operation inside one of torch's functions: all of them together take about as long as one."""

PLAIN = (bool, int, float, str, tuple, type(None))
NOWHERE = ArrayKey(Site("", -1), "", 0)


class Reached(Exception):  # noqa: N818  # no error: nothing more has to run
    """Signal that the wanted array was made, so that the run can stop."""


@dataclass
class Replay:
    """Replay of the torch call `owner`, with or without mutations."""

    model: Any
    """Private float64 copy of torch's model."""
    run_model: Callable[[], Any]
    """Function that makes the user's call of the model."""
    owner: Site
    place: ArrayKey
    """Place of torch's array that is compared with jax's."""
    boundaries: frozenset[Site]
    """Boundaries: calls of torch's that jax has too; their outputs stay as recorded."""
    wanted: np.ndarray
    """torch's array."""
    arguments: Arguments = ((), {})
    given: dict[Site, Any] = field(default_factory=dict)
    """Recorded outputs of the boundaries."""
    inputs: dict[Site, Any] = field(default_factory=dict)
    """First input array of each boundary."""
    later: dict[Site, Any] = field(default_factory=dict)
    """Recorded outputs of all boundaries, also of those after the array: mutated code may call them before."""
    found: Any = None
    part: Part = ()
    """Part of the array that is compared with jax's; empty for all of it."""
    inside: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    """Context manager, of the model, in which a module runs as in the user's call."""
    cotangent: np.ndarray = field(default_factory=lambda: np.ones(()))
    """Cotangent of the user's call."""
    jax_gradients: Mapping[str, np.ndarray] = field(default_factory=dict)
    """jax's gradients of torch's parameters by name, if the array is the output of the user's call."""
    call_inputs: list[Any] = field(default_factory=list)
    """Input tensors of the user's call, which `run_model` reads."""
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    """jax's own arrays that are no weights, by name."""
    compared: Mapping[ArrayKey, np.ndarray] = field(default_factory=dict)
    """jax's arrays, by torch's places."""
    watched: dict[ArrayKey, Any] | None = None
    """Arrays of the call's own code at the places in `compared`, in a run to the end; None in other runs."""
    behind: Callable[[Any], Any] | None = None
    """Function that is applied to the array, in one run."""
    originals: list[tuple[Any, Any]] = field(default_factory=list)
    """Parameters and buffers of the model, each with the original that it is a copy of."""
    versions: dict[int, int] = field(default_factory=dict)
    """Version counter of each of these tensors, by its id: torch counts writes."""
    ends: float = math.inf
    """Time (`time.monotonic`) at which `in_time` stops."""

    @cached_property
    def begins(self) -> bool:
        """True if a replay gives torch's array again; inputs and outputs of the boundaries are recorded on the way."""
        with running():
            with self.to_the_end():
                self.array()
                self.later = self.given
            again = self.array()
        if again is not None and (part := part_of(again, self.wanted)):
            again, self.part = again[part], part
        return again is not None and bool(np.isfinite(self.wanted).all()) and distance(again, self.wanted) <= AGAIN

    @cached_property
    def settings(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Attributes of each module, and initial values of the plain ones, since code may set them during a run."""
        every = [vars(module) for module in self.model.modules()]
        return [(held, {name: x for name, x in held.items() if isinstance(x, PLAIN)}) for held in every]

    @property
    def module(self) -> Any:
        """torch's module whose call is replayed."""
        return self.model if self.owner == CALL else self.model.get_submodule(self.owner.path)

    @cached_property
    def listed(self) -> list[Op]:
        """Operations of the call's code, in their order, until the array is made."""
        return self._listed()

    @cached_property
    def operations(self) -> list[Op]:
        """Slice of the operations: those that the array depends on."""
        return slice_of(self.in_time, self.listed)

    @cached_property
    def read(self) -> frozenset[tuple[int, str]]:
        """Attributes of modules and configurations that the code reads: the owner's id, and the attribute's name."""
        return uses_of(self.array, self.module)

    @cached_property
    def every_operation(self) -> list[Op]:
        """Operations of the call's code, also those after the array."""
        with self.to_the_end():
            return self._listed()

    def _listed(self) -> list[Op]:
        listing = Listing()
        self.array(listing)
        return list(listing.operations.values())

    @cached_property
    def cost(self) -> float:
        """Cost of one replay: the number of its operations, of which large ones count for several."""
        runs = ((operation.is_inner, run.output) for operation in self.listed for run in operation.runs)
        return BEGINNING + sum((INNER if inner else 1) + entries(output) / LARGE for inner, output in runs)

    @contextmanager
    def to_the_end(self) -> Iterator[None]:
        """Run the call to its end instead of to the array, and record the boundaries' outputs apart."""
        before = self.place, self.given, self.inputs
        self.place, self.given, self.inputs = NOWHERE, {}, {}
        try:
            yield
        finally:
            self.place, self.given, self.inputs = before

    def everywhere(self, mutated: AbstractContextManager[Any] | None = None) -> dict[ArrayKey, np.ndarray]:
        """Replay the call to its end with a mutation, and return all arrays of its own code that jax has too."""
        self.watched = {}
        try:
            with self.to_the_end():
                self.array(mutated)
            return {place: host(array) for place, array in self.watched.items()}
        finally:
            self.watched = None

    def array(self, mutated: AbstractContextManager[Any] | None = None) -> np.ndarray | None:
        """Replay the call with a mutation, and return the array; None if it is not made."""
        self.found = self.behind = None
        calls: Counter[str] = Counter()
        with running(), ExitStack() as stack:
            for path in {site.path for site in (*self.boundaries, self.place.site)} - {self.owner.path, CALL.path}:
                module = self.model.get_submodule(path)
                watched = partial(self._stand_in, path, module.forward, calls)
                stack.enter_context(mock.patch.object(module, "forward", wraps(module.forward)(watched)))
            stack.callback(self._restore)
            with suppress(Reached):
                with mutated or nullcontext():
                    output = self.run_model() if self.owner == CALL else self._own()
                self._watch(self.owner, "output", output)
                if self.place == ArrayKey(self.owner, "output", self.place.number):
                    self.found = arrays_in(output)[self.place.number]
        if self.found is None:
            return None
        with running():  # the children's own `forward` is in place again
            found = host(self.behind(self.found) if self.behind else self.found)
        return found[self.part] if self.part else found

    def in_time(self, mutated: AbstractContextManager[Any] | None = None) -> np.ndarray | None:
        """Replay the call with a mutation, and return the array; None if the time is up."""
        return None if time.monotonic() >= self.ends else self.array(mutated)

    def tried(self, mutated: AbstractContextManager[Any]) -> np.ndarray | None:
        """Replay the call with a mutation, and return the array; None if the time is up, or the user's code refuses it."""
        with suppress(Exception):
            return self.in_time(mutated)
        return None

    @property
    def input_arrays(self) -> list[Any]:
        """Arrays that the call is given."""
        return [*self.call_inputs] if self.owner == CALL else arrays_in(self.arguments)

    @contextmanager
    def given_inputs(self, others: Mapping[int, Any]) -> Iterator[None]:
        """Edit: the call gets other input arrays, by their numbers among `input_arrays`."""
        before, arrays = self.arguments, self.input_arrays
        instead = [others.get(i, array) for i, array in enumerate(arrays)]
        if self.owner == CALL:
            self.call_inputs[:] = instead
        else:
            self.arguments = replaced(before, arrays, instead)
        try:
            yield
        finally:
            self.arguments = before
            if self.owner == CALL:
                self.call_inputs[:] = arrays

    @contextmanager
    def followed_by(self, function: Callable[[Any], Any]) -> Iterator[None]:
        """Edit: a function is applied to the array."""
        self.behind = function
        yield

    @contextmanager
    def given_outputs(self, others: Mapping[Site, Any]) -> Iterator[None]:
        """Edit: boundaries return other outputs."""
        before = dict(self.given)
        self.given |= others
        try:
            yield
        finally:
            self.given = before

    def _restore(self) -> None:
        """Restore tensors that a run changed in place, as an embedding with `max_norm` does, and settings."""
        for held, settings in self.settings:
            held.update(settings)
        for tensor, original in self.originals:  # vectors always: a batch norm's writes do not count as versions
            if tensor.ndim == 1 or tensor._version != self.versions.get(id(tensor), tensor._version):
                tensor.copy_(original)
            self.versions[id(tensor)] = tensor._version

    def _own(self) -> Any:
        import torch

        with torch._C.DisableTorchFunction():  # copying is no operation of the call's code
            args, kwargs = copy.deepcopy(self.arguments)  # a cache among them grows with every call
        with self.inside(self.model):
            return self.module(*args, **kwargs)

    def _stand_in(self, path: str, forward: Callable[..., Any], calls: Counter[str], *args: Any, **kwargs: Any) -> Any:
        """Replace the call of a child: return the recorded output, but compute if the child makes the array."""
        site = Site(path, calls[path])
        calls[path] += 1
        if self.place == ArrayKey(site, "inputs", self.place.number):
            self._reach(arrays_in((args, kwargs)))
        self._watch(site, "inputs", (args, kwargs))
        makes = site == self.place.site or below(self.place.site.path, path)
        known = self.given if makes else self.later | self.given
        is_open = self.watched is not None and self._is_open(site)
        output = forward(*args, **kwargs) if is_open or site not in known else None
        if is_open:
            self._watch(site, "output", output)
        output = known.get(site, output)
        if self.place == ArrayKey(site, "output", self.place.number):
            self._reach(arrays_in(output))
        if not makes and site in self.boundaries:
            self.given.setdefault(site, output)
            self.inputs.setdefault(site, next(iter(arrays_in((args, kwargs))), None))
            output = copied(output)  # later code may change the output in place
        return output

    def _is_open(self, site: Site) -> bool:
        """True if jax shows the outputs of a call but not its inputs: its code then belongs to the owner."""
        parts = {place.part for place in self.compared if place.site == site}
        return parts == {"output"}

    def _watch(self, site: Site, part: str, values: Any) -> None:
        if self.watched is not None:
            places = ((ArrayKey(site, part, i), array) for i, array in enumerate(arrays_in(values)))
            self.watched |= {place: array.clone() for place, array in places if place in self.compared}

    def _reach(self, arrays: list[Any]) -> None:
        self.found = arrays[self.place.number].clone()  # a buffer would change back when the edit ends
        raise Reached


@contextmanager
def running() -> Iterator[None]:
    """Run torch as for a recorded reference, without gradients; warnings are hidden, since the reference gave them before."""
    import torch

    with warnings.catch_warnings(), torch.no_grad(), torch_float64(), without_fast_path():
        warnings.simplefilter("ignore")
        yield
