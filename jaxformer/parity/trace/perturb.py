"""Effect of perturbations on a torch model's output: by gradients for everything at once, by trying for single parts."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from jaxformer.errors import InputError
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import TOLERANCES, entry_groups, host, part
from jaxformer.parity.trace.outputs import side_by_side
from jaxformer.parity.trace.reference import REFUSALS

MARGIN = 10.0
"""A gradient proves coverage if it predicts a change of this many tolerances: smaller ones may be rounding noise, and the
change is tried instead."""


class Unperturbed:
    """Model in float64, with its output as the baseline of every perturbation."""

    def __init__(self, model: Any, inputs: tuple[np.ndarray, ...], call: Callable[..., Any]):
        import torch

        self.model, self.call = copy.deepcopy(model).eval().double(), call
        for module in self.model.modules():
            if isinstance(module, torch.nn.Embedding):
                module.padding_idx = None  # padding_idx drops gradients, and does nothing else
        tensors = [torch.from_numpy(array) for array in inputs]
        self.inputs = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
        self.reference = self._given(self.inputs, torch_float64)
        self.widening = nullcontext if self.casts_nowhere() else torch_float64
        if not np.isfinite(self.reference).any():
            raise InputError("the torch model's output holds no finite number, so it shows nothing; give it other inputs")
        usual = part(self.reference, entry_groups(self.reference)[-1])
        self.tolerance = TOLERANCES["activation"][0] * float(np.linalg.norm(usual))

    def casts_nowhere(self) -> bool:
        """True if the model stays in float64 by itself: then a run takes a third less time."""
        try:
            return self._given(self.inputs, nullcontext).tobytes() == self.reference.tobytes()
        except REFUSALS:  # float32 beside float64
            return False

    def _given(self, inputs: list[Any], widening: Callable[[], Any]) -> np.ndarray:
        import torch

        with torch.no_grad(), widening():
            return np.atleast_1d(host(side_by_side(self.call(self.model, *inputs))))

    def changed_rows(self, inputs: list[Any], back: Callable[[np.ndarray], np.ndarray] | None = None) -> np.ndarray:
        """Return the mask of rows (axis 0) of `back(output)` that differ; all rows if the model refuses the inputs."""
        every = np.ones(len(self.reference), bool)
        try:
            output = self._given(inputs, self.widening)
        except REFUSALS:
            return every
        if output.shape != self.reference.shape:
            return every
        return self.differing(output if back is None else back(output), self.reference)

    def differing(self, output: np.ndarray, reference: np.ndarray) -> np.ndarray:
        """Return the mask of rows in which two outputs of one shape differ by more than the tolerance."""
        same = (output == reference) | (np.isnan(output) & np.isnan(reference))
        with np.errstate(invalid="ignore"):
            gap = np.where(same, 0.0, output - reference).reshape(len(output), -1)
            return ~(np.linalg.norm(gap, axis=1) <= self.tolerance)

    def gradients(self) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        """Return what gradients prove to be covered: entries of each float parameter, and rows and positions of each input."""
        import torch

        rows, inputs = self.finite_rows()
        parameters = {name: p.requires_grad_() for name, p in self.model.named_parameters() if p.is_floating_point()}
        floats = {i: t.clone().requires_grad_() for i, t in enumerate(inputs) if t.is_floating_point()}
        with torch.enable_grad(), self.widening(), self.lookups(inputs) as looked:
            output = side_by_side(self.call(self.model, *(floats.get(i, tensor) for i, tensor in enumerate(inputs))))
        sources = [*parameters.values(), *floats.values(), *(found for _, found, _ in looked)]
        given = iter([None] * len(sources))
        try:
            if not self.differing(np.atleast_1d(host(output)), self.reference[rows]).any():
                # Huge numbers are left out: a change may be lost in them.
                usual = entry_groups(self.reference[rows])[-1].reshape(tuple(output.shape))
                noise = np.asarray(np.random.default_rng(0).standard_normal(usual.shape) * usual)
                # A scalar: for the gradient of an array, torch would import sympy.
                total = (output * torch.from_numpy(noise).to(output.device)).sum()
                given = iter(torch.autograd.grad(total, sources, allow_unused=True))
        except (RuntimeError, ValueError):  # no gradient, or rows need others: everything is tried
            pass
        proven = {name: self.proves(next(given), parameter) for name, parameter in parameters.items()}
        covered = [np.zeros(grid(tensor), bool) for tensor in self.inputs]
        entries = [(i, self.proves(next(given), tensor), tensor) for i, tensor in floats.items()]
        entries += [(i, np.asarray(self.proves(next(given), found, table).any(-1)), inputs[i]) for i, found, table in looked]
        for i, proof, tensor in entries:
            at = rows if len(tensor) != len(self.inputs[i]) else slice(None)
            covered[i][at] |= positions(proof, tensor)
        return proven, covered

    def finite_rows(self) -> tuple[np.ndarray, list[Any]]:
        """Return the rows of the batch without NaN or infinity, and their inputs; all rows if none or all are finite.

        A single NaN, as of a query that may see nothing, makes the gradients of all parameters NaN.
        """
        every = np.arange(len(self.reference))
        rows = every[np.isfinite(self.reference).reshape(len(every), -1).all(1)]
        if len(rows) in (0, len(every)):
            return every, self.inputs
        return rows, [tensor[rows] if tensor.ndim and len(tensor) == len(every) else tensor for tensor in self.inputs]

    def proves(self, gradient: Any, tensor: Any, scale: Any = None) -> np.ndarray:
        """Return where a perturbation as large as the tensor itself, or as `scale`, would be over the tolerance."""
        if gradient is None:
            return np.zeros(tuple(tensor.shape), bool)
        return np.asarray(np.abs(host(gradient)) * size(tensor if scale is None else scale) > MARGIN * self.tolerance)

    @contextmanager
    def lookups(self, inputs: list[Any]) -> Iterator[list[tuple[int, Any, Any]]]:
        """Record (number of the input, its rows of a table, the table) for each embedding that gets one of the inputs as
        ids."""
        import torch

        found: list[tuple[int, Any, Any]] = []

        def remember(module: Any, given: Any, rows: Any) -> None:
            if not given or not isinstance(given[0], torch.Tensor) or not rows.requires_grad:
                return  # for example, a table of positions that is given a shape
            ids = given[0].cpu()
            if rows.shape[:-1] != ids.shape:  # or an embedding that only uses the number of ids
                return
            alike = [i for i, tensor in enumerate(inputs) if tensor.shape == ids.shape and bool((tensor == ids).all())]
            if len(alike) == 1:
                found.append((alike[0], rows, module.weight))

        tables = [module for module in self.model.modules() if isinstance(module, torch.nn.Embedding)]
        handles = [module.register_forward_hook(remember) for module in tables]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()


def grid(tensor: Any) -> tuple[int, int]:
    """Return the number of rows and positions of an input: axis 0, and axis 1 of floats or the last axis of other dtypes."""
    if tensor.ndim < 2:
        return tensor.numel(), 1
    return tensor.shape[0], tensor.shape[1 if tensor.is_floating_point() else -1]


def spread(tensor: Any) -> tuple[int, ...]:
    """Return the shape that broadcasts rows and positions against a whole input."""
    if tensor.ndim < 2:
        return tuple(tensor.shape)
    at = 1 if tensor.is_floating_point() else tensor.ndim - 1
    return tuple(n if axis in (0, at) else 1 for axis, n in enumerate(tensor.shape))


def positions(entries: np.ndarray, tensor: Any) -> np.ndarray:
    """Reduce a mask of an input's entries to rows and positions: any entry for floats, all entries for ids."""
    rows, columns = grid(tensor)
    if tensor.is_floating_point():
        return np.asarray(entries.reshape(rows, columns, -1).any(-1))
    return np.asarray(entries.reshape(rows, -1, columns).all(1))


def size(tensor: Any) -> float:
    """Return the root mean square; 1 for zeros."""
    return float(tensor.detach().double().square().mean().sqrt()) or 1.0
