"""Calls of torch modules, recorded with their gradients through their methods, and attention scores and weights, around each
softmax over keys; a module's state dict as arrays by name, and torch's number of threads."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial, wraps
from typing import Any
from unittest import mock

import numpy as np

from jaxformer.convert.host import host
from jaxformer.convert.rules import Family
from jaxformer.parity.probe import frozen_in
from jaxformer.parity.trace.call_records import Record, arrays_in, replaced
from jaxformer.parity.trace.call_sites import ATTENTION, ArrayKey, Observer, Site, Visits, public_methods

RecordSoftmax = Callable[[Any, Any], None]
"""record(scores, weights): of one shape, without gradients."""


def watch_softmax(record: RecordSoftmax) -> AbstractContextManager[Any]:
    """Context manager: `record` gets every softmax of torch's functions, methods and modules, also of nn.MultiheadAttention."""
    return _softmax_mode()(record)


@cache
def _softmax_mode() -> Any:
    """Return the class of these context managers; a class of each would keep the watched model until garbage is collected."""
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    ordinary = (torch.softmax, torch.Tensor.softmax, torch.special.softmax, functional.softmax)

    class Watching(TorchFunctionMode):
        """Torch function mode that is off inside its own functions: a function that calls another one is recorded once."""

        def __init__(self, record: RecordSoftmax):
            super().__init__()
            self.record = record

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func is functional.multi_head_attention_forward:  # the softmax inside it is recorded
                with mock.patch.object(functional, "has_torch_function", return_value=False), self:
                    return func(*args, **kwargs)
            output = func(*args, **kwargs)
            if func is functional.scaled_dot_product_attention:
                with torch.no_grad():
                    scores = fused_scores(*args, **kwargs)
                    self.record(scores, scores.softmax(-1))
            elif func in ordinary:
                scores, dim = (args[i] if i < len(args) else kwargs.get(name) for i, name in enumerate(("input", "dim")))
                if dim is not None and scores.ndim and dim % scores.ndim == scores.ndim - 1:
                    self.record(scores.detach(), output.detach())
            return output

    return Watching


def fused_scores(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return q k^T scale, -inf where a key is masked; the arguments are those of torch's scaled_dot_product_attention."""
    import torch

    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is None:
        return scores
    return scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask


_running: list[Callable[[str, Any], Any]] = []
"""Functions that record single values in the watched run."""


def record_in_torch(name: str, value: Any) -> None:
    """Record a value of the model's, as if a module of that name returned it; does nothing outside `watch_torch`."""
    if _running:
        _running[-1](name, value)


@contextmanager
def watch_torch(model: Any, observer: Observer) -> Iterator[None]:
    """Observe every module's `forward` and public methods of its own class, in call order.

    Each softmax inside a module is observed as two calls without arguments. Fused fast paths are off.
    """
    import torch

    visits = Visits(observer)

    def watched(module: Any, path: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs) if visits.is_open(module) else visits.run(module, path, method, args, kwargs)

        return run

    def record(*arrays: Any) -> None:
        """Record a softmax; one outside the model belongs to no module, and is skipped."""
        if visits.open:
            for name, array in zip(ATTENTION, arrays, strict=True):
                visits.record(name, array)

    with ExitStack() as stack:
        stack.enter_context(without_fast_path())
        stack.enter_context(watch_softmax(record))
        for path, module in model.named_modules():
            own = not type(module).__module__.startswith("torch.")
            names = {name for _, name, _ in public_methods(type(module), torch.nn.Module)} if own else set()
            for name in {"forward", *names}:
                stack.enter_context(mock.patch.object(module, name, watched(module, path, getattr(module, name))))
        _running.append(visits.record)
        stack.callback(_running.remove, visits.record)
        yield


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Run torch's encoders without the inference kernel that gives NaN for a row of nothing but padding."""
    import torch

    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


Arrays = Mapping[str, np.ndarray]
FLOAT32_BYTES = 4


@dataclass(frozen=True)
class TorchState:
    """Tensors of a torch module, each once; further names of tied tensors are in `tied`."""

    weights: Arrays
    """Weights in float32, by the first of their names."""
    buffers: Arrays = field(default_factory=dict)
    """Buffers in float32 or less, as float32, saved with the model or not, and other tensors that modules hold, such as GPT-J's
    sinusoids; float64 buffers are exact in every run, and left out."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Further name of a weight -> its first name."""
    frozen: frozenset[str] = frozenset()
    """Names of weights that torch does not train, `requires_grad = False`."""


def without_ignored(state: TorchState, rules: Family) -> TorchState:
    """Move weights that the conversion rules ignore to the buffers, which the JAX model may compute."""
    ignored = {name: array for name, array in state.weights.items() if rules.why_ignored(name) is not None}
    weights = {name: array for name, array in state.weights.items() if name not in ignored}
    return replace(state, weights=weights, buffers={**state.buffers, **ignored})


def torch_state(model: Any) -> TorchState:
    """Return the state of a torch module."""
    first = {parameter: name for name, parameter in model.named_parameters()}
    names = model.named_parameters(remove_duplicate=False)
    held = {**dict(model.named_buffers()), **_plain_tensors(model)}
    buffers = {name: b for name, b in held.items() if b.is_floating_point() and b.element_size() <= FLOAT32_BYTES}
    return TorchState(
        {name: host(parameter) for parameter, name in first.items()},
        {name: host(buffer.float()) for name, buffer in buffers.items()},
        {name: first[parameter] for name, parameter in names if name != first[parameter]},
        frozen_in(model),
    )


def _plain_tensors(model: Any) -> dict[str, Any]:
    """Return the tensors that modules hold as attributes, neither parameters nor buffers."""
    import torch

    return {
        f"{path}.{name}" if path else name: value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor) and not value.requires_grad
    }


def thawed(model: Any) -> Any:
    """Unfreeze a model in place if all of it is frozen, so that it has gradients; return the model."""
    return model if any(parameter.requires_grad for parameter in model.parameters()) else model.requires_grad_()


RECENT = 8
"""Number of recent arrays that are searched for an equal one, so that it is stored once."""


class Recorder:
    """Observer that records the inputs, outputs and gradients of torch's calls."""

    def __init__(self) -> None:
        self.arrays: dict[tuple[Site, str], list[np.ndarray]] = {}
        """Inputs and outputs by call."""
        self.gradients: dict[ArrayKey, np.ndarray] = {}
        """Gradients by the key of their array."""
        self.differentiated: set[ArrayKey] = set()
        """Arrays that may get a gradient. If none comes although others do, it is 0: nothing uses the array, or it is
        detached."""
        self.recent, self.returned = (deque[np.ndarray](maxlen=RECENT) for _ in range(2))
        """Recent arrays, and recent gradients."""

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._note(site, "inputs", arguments)

    def leave(self, site: Site, output: Any) -> Any:
        return self._note(site, "output", output)

    def _note(self, site: Site, part: str, value: Any) -> Any:
        """Record a call's arrays. The call gets copies of differentiated tensors, so that their gradients are its own."""
        tensors = arrays_in(value)
        copies = [tensor.clone() if getattr(tensor, "requires_grad", False) else tensor for tensor in tensors]
        for i, tensor in enumerate(copies):
            if getattr(tensor, "requires_grad", False):
                self.differentiated.add(ArrayKey(site, part, i))
                tensor.register_hook(partial(self._returned, ArrayKey(site, part, i)))
        self.arrays[site, part] = [self.kept(host(tensor)) for tensor in copies]
        return replaced(value, tensors, copies)

    def _returned(self, key: ArrayKey, gradient: Any) -> None:
        self.gradients[key] = kept(host(gradient), self.returned)

    def kept(self, array: np.ndarray) -> np.ndarray:
        """Return a copy, or an equal array that is stored already: the output of a module is the input of the next."""
        return kept(array, self.recent)

    def _gradients(self, site: Site, part: str) -> tuple[np.ndarray | None, ...]:
        return tuple(self._gradient(ArrayKey(site, part, i), array) for i, array in enumerate(self.arrays[site, part]))

    def _gradient(self, key: ArrayKey, array: np.ndarray) -> np.ndarray | None:
        stops = self.gradients and key in self.differentiated and key not in self.gradients
        return np.zeros(array.shape, array.dtype) if stops else self.gradients.get(key)

    def records(self) -> dict[Site, Record]:
        """Return the records in the order in which calls end; a call without an array in its output is not part of the forward
        pass."""
        ended = [site for (site, part), output in self.arrays.items() if part == "output" and output]
        return {
            site: Record(
                tuple(self.arrays[site, "inputs"]),
                tuple(self.arrays[site, "output"]),
                self._gradients(site, "inputs"),
                self._gradients(site, "output"),
            )
            for site in ended
        }


def kept(array: np.ndarray, recent: deque[np.ndarray]) -> np.ndarray:
    """Return an equal array among the recent ones, or a copy, which is added to them."""
    for known in recent:
        if known.dtype == array.dtype and np.array_equal(known, array, equal_nan=array.dtype.kind in "fc"):
            return known
    recent.append(array.copy())
    return recent[-1]


SMALL = 5e8
"""Product of parameters and input size below which torch uses one thread: about 50 ms on one core. On a core that others use
too, threads that wait for each other at every operation made a comparison of a small model take 20 times as long."""


@contextmanager
def one_if_small(torch_model: Any, arrays: Sequence[np.ndarray]) -> Iterator[None]:
    """Run torch with one thread if the model with these inputs is small."""
    import torch

    threads, parameters = torch.get_num_threads(), sum(each.numel() for each in torch_model.parameters())
    is_small = parameters * max((math.prod(array.shape) for array in arrays), default=0) < SMALL
    torch.set_num_threads(1 if is_small else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
