"""One call of torch's, run again by itself: its own code alone, with what its children gave before."""

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
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
"""Entries of an output that take about as long as an operation does, and operations that take as long as beginning a run."""
INNER = 0.1
"""What an operation inside of one of torch's functions counts: all of them together are about as long as one."""

PLAIN = (bool, int, float, str, tuple, type(None))
NOWHERE = ArrayKey(Site("", -1), "", 0)


class Reached(Exception):  # noqa: N818  # no error: nothing more has to run
    """The array that is asked for was made."""


@dataclass
class Replay:
    """The torch call `owner`, again and again."""

    model: Any
    """In float64, of its own."""
    run_model: Callable[[], Any]
    """The user's call of it."""
    owner: Site
    place: ArrayKey
    """Of torch's array that jax's is compared with."""
    boundaries: frozenset[Site]
    """Calls of torch's that jax has too: what they give stays."""
    wanted: np.ndarray
    """torch's array."""
    arguments: Arguments = ((), {})
    given: dict[Site, Any] = field(default_factory=dict)
    """What the boundaries gave."""
    inputs: dict[Site, Any] = field(default_factory=dict)
    """The first array that each boundary was given."""
    later: dict[Site, Any] = field(default_factory=dict)
    """What all boundaries give, those too that come behind the array: mutated code may call them before."""
    found: Any = None
    part: Part = ()
    """Of the array, which jax's is compared with."""
    inside: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    """In which the module runs as in the user's call."""
    cotangent: np.ndarray = field(default_factory=lambda: np.ones(()))
    """Of the user's call."""
    jax_gradients: Mapping[str, np.ndarray] = field(default_factory=dict)
    """jax's, of torch's parameters by name, where the array is what the user's call gives."""
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    """jax's own arrays that are no weights, by name."""
    compared: Mapping[ArrayKey, np.ndarray] = field(default_factory=dict)
    """jax's arrays, by torch's places."""
    watched: dict[ArrayKey, Any] | None = None
    """In a run to the end: torch's arrays at those places, of the call's own code."""
    behind: Callable[[Any], Any] | None = None
    """What comes behind the array, in one run."""
    originals: list[tuple[Any, Any]] = field(default_factory=list)
    """The model's parameters and buffers, and those that they are copies of."""
    versions: dict[int, int] = field(default_factory=dict)
    """How often torch wrote to each of them, by its id."""

    @cached_property
    def begins(self) -> bool:
        """What comes in and what the children give is recorded; False if torch's array does not come again."""
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
        """The attributes of each module, and the plain ones as they are at first: code may set them by what it is given."""
        every = [vars(module) for module in self.model.modules()]
        return [(held, {name: x for name, x in held.items() if isinstance(x, PLAIN)}) for held in every]

    @property
    def module(self) -> Any:
        """torch's, whose call it is."""
        return self.model if self.owner == CALL else self.model.get_submodule(self.owner.path)

    @cached_property
    def listed(self) -> list[Op]:
        """Of its code, in their order, until the array is made."""
        return self._listed()

    @cached_property
    def operations(self) -> list[Op]:
        """Those of them that the array depends on."""
        return slice_of(self.array, self.listed)

    @cached_property
    def read(self) -> frozenset[tuple[int, str]]:
        """Attributes of modules and configurations that its code reads: whose, by its id, and their names."""
        return uses_of(self.array, self.module)

    @cached_property
    def every_operation(self) -> list[Op]:
        """Those behind the array too."""
        with self.to_the_end():
            return self._listed()

    def _listed(self) -> list[Op]:
        listing = Listing()
        self.array(listing)
        return list(listing.operations.values())

    @cached_property
    def cost(self) -> float:
        """Of one run: its operations, large ones for several."""
        runs = ((operation.is_inner, run.output) for operation in self.listed for run in operation.runs)
        return BEGINNING + sum((INNER if inner else 1) + entries(output) / LARGE for inner, output in runs)

    @contextmanager
    def to_the_end(self) -> Iterator[None]:
        """Inside, the call does not stop where the array is made, and what boundaries give is recorded apart."""
        before = self.place, self.given, self.inputs
        self.place, self.given, self.inputs = NOWHERE, {}, {}
        try:
            yield
        finally:
            self.place, self.given, self.inputs = before

    def everywhere(self, mutated: AbstractContextManager[Any] | None = None) -> dict[ArrayKey, np.ndarray]:
        """All arrays of the call's own code that jax has too, with torch altered."""
        self.watched = {}
        try:
            with self.to_the_end():
                self.array(mutated)
            return {place: host(array) for place, array in self.watched.items()}
        finally:
            self.watched = None

    def array(self, mutated: AbstractContextManager[Any] | None = None) -> np.ndarray | None:
        """The array, with torch altered; None where it is not made."""
        self.found = self.behind = None
        calls: Counter[str] = Counter()
        with running(), ExitStack() as stack:
            for path in {site.path for site in (*self.boundaries, self.place.site)} - {self.owner.path, CALL.path}:
                module = self.model.get_submodule(path)
                watched = partial(self._child, path, module.forward, calls)
                stack.enter_context(mock.patch.object(module, "forward", wraps(module.forward)(watched)))
            stack.callback(self._restore)
            try:
                with mutated or nullcontext():
                    output = self.run_model() if self.owner == CALL else self._own()
                self._watch(self.owner, "output", output)
                if self.place == ArrayKey(self.owner, "output", self.place.number):
                    self.found = arrays_in(output)[self.place.number]
            except Reached:
                pass
        if self.found is None:
            return None
        with running():  # by then the children compute again
            found = host(self.behind(self.found) if self.behind else self.found)
        return found[self.part] if self.part else found

    @contextmanager
    def given_inputs(self, others: Mapping[int, Any]) -> Iterator[None]:
        """Inside, the call is given other arrays, by their numbers among its arguments."""
        before, arrays = self.arguments, arrays_in(self.arguments)
        self.arguments = replaced(before, arrays, [others.get(i, array) for i, array in enumerate(arrays)])
        try:
            yield
        finally:
            self.arguments = before

    @contextmanager
    def followed_by(self, function: Callable[[Any], Any]) -> Iterator[None]:
        """Inside, a function comes behind the array."""
        self.behind = function
        yield

    @contextmanager
    def given_outputs(self, others: Mapping[Site, Any]) -> Iterator[None]:
        """Inside, children give something else."""
        before = dict(self.given)
        self.given |= others
        try:
            yield
        finally:
            self.given = before

    def _restore(self) -> None:
        """What a run changed in place, as an embedding with a `max_norm` does its rows, is as it was; so are settings. The
        statistics of a batch norm are written without a new version."""
        for held, settings in self.settings:
            held.update(settings)
        for tensor, original in self.originals:
            if tensor.ndim == 1 or tensor._version != self.versions.get(id(tensor), tensor._version):
                tensor.copy_(original)
            self.versions[id(tensor)] = tensor._version

    def _own(self) -> Any:
        import torch

        with torch._C.DisableTorchFunction():  # copies are no operations of its code
            args, kwargs = copy.deepcopy(self.arguments)  # a cache among them grows with every call
        with self.inside(self.model):
            return self.module(*args, **kwargs)

    def _child(self, path: str, forward: Callable[..., Any], calls: Counter[str], *args: Any, **kwargs: Any) -> Any:
        """A child's call: what it gave before, unless it is the one that makes the array."""
        site = Site(path, calls[path])
        calls[path] += 1
        if self.place == ArrayKey(site, "inputs", self.place.number):
            self._reach(arrays_in((args, kwargs)))
        self._watch(site, "inputs", (args, kwargs))
        makes = site == self.place.site or below(self.place.site.path, path)
        known = self.given if makes else self.later | self.given
        if self.watched is not None and self._is_open(site):
            self._watch(site, "output", forward(*args, **kwargs))
        output = known[site] if site in known else forward(*args, **kwargs)
        if self.place == ArrayKey(site, "output", self.place.number):
            self._reach(arrays_in(output))
        if not makes and site in self.boundaries:
            self.given.setdefault(site, output)
            self.inputs.setdefault(site, next(iter(arrays_in((args, kwargs))), None))
            output = copied(output)  # what goes on with it may change it in place
        return output

    def _is_open(self, site: Site) -> bool:
        """Whether jax shows what a call gives, and not what it is given: its code is the owner's."""
        parts = {place.part for place in self.compared if place.site == site}
        return parts == {"output"}

    def _watch(self, site: Site, part: str, values: Any) -> None:
        if self.watched is not None:
            places = ((ArrayKey(site, part, i), array) for i, array in enumerate(arrays_in(values)))
            self.watched |= {place: array.clone() for place, array in places if place in self.compared}

    def _reach(self, arrays: list[Any]) -> None:
        self.found = arrays[self.place.number].clone()  # it may be a buffer that is mutated just now
        raise Reached

    @cached_property
    def is_called(self) -> bool:
        """Whether the owner is called again in the model's run, as a module is: what it is given is kept."""
        if self.owner == CALL:
            return True
        number, forward = 0, self.module.forward

        @wraps(forward)
        def watched(*args: Any, **kwargs: Any) -> Any:
            nonlocal number
            number += 1
            if number == self.owner.call + 1:
                self.arguments = args, kwargs
                raise Reached
            return forward(*args, **kwargs)

        with running(), mock.patch.object(self.module, "forward", watched):
            try:
                self.run_model()
            except Reached:
                return True
        return False


@contextmanager
def running() -> Iterator[None]:
    """torch, as it runs for a recorded reference, without gradients. What it warns of was heard before."""
    import torch

    with warnings.catch_warnings(), torch.no_grad(), torch_float64(), without_fast_path():
        warnings.simplefilter("ignore")
        yield
