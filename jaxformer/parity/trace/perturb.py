"""Effect of perturbations on a torch model's output: by gradients for everything at once, by trying for single parts."""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from jaxformer.errors import InputError
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import entry_groups, host
from jaxformer.parity.trace.baseline import Baseline, Inputs, grid, positions
from jaxformer.parity.trace.outputs import side_by_side
from jaxformer.parity.trace.reference import REFUSALS


class InFloat64:
    """Torch model in float64, which takes arrays and gives its output as one array."""

    def __init__(self, model: Any, call: Callable[..., Any]):
        import torch

        self.model, self.call = copy.deepcopy(model).eval().double(), call
        for module in self.model.modules():
            if isinstance(module, torch.nn.Embedding):
                module.padding_idx = None  # padding_idx drops gradients, and does nothing else
        self.widening: Callable[[], AbstractContextManager[Any]] = torch_float64

    def __call__(self, inputs: Inputs) -> np.ndarray:
        import torch

        with torch.no_grad(), self.widening():
            return host(self.output(map(torch.from_numpy, inputs)))

    def output(self, tensors: Iterable[Any]) -> Any:
        """Return the outputs side by side, as a tensor."""
        return side_by_side(self.call(self.model, *tensors))

    def widen_if_needed(self, inputs: Inputs, output: np.ndarray) -> None:
        """Leave casts as they are if the model stays in float64 by itself: then a run takes a third less time."""
        self.widening = nullcontext
        try:
            stays = np.atleast_1d(self(inputs)).tobytes() == output.tobytes()
        except REFUSALS:  # float32 beside float64
            stays = False
        self.widening = nullcontext if stays else torch_float64


class Unperturbed(Baseline):
    """Torch model in float64, with its output as the baseline of every perturbation."""

    def __init__(self, model: Any, inputs: tuple[np.ndarray, ...], call: Callable[..., Any]):
        self.torch = InFloat64(model, call)
        super().__init__(self.torch, [array.astype(np.float64) if array.dtype.kind == "f" else array for array in inputs])
        self.torch.widen_if_needed(self.inputs, self.reference)
        if not np.isfinite(self.reference).any():
            raise InputError("the torch model's output holds no finite number, so it shows nothing; give it other inputs")

    def gradients(self) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        """Return what gradients prove to be covered: entries of each float parameter, and rows and positions of each input."""
        import torch

        rows, finite = self.finite_rows()
        inputs = [torch.from_numpy(array) for array in finite]
        parameters = {name: p.requires_grad_() for name, p in self.torch.model.named_parameters() if p.is_floating_point()}
        floats = {i: t.clone().requires_grad_() for i, t in enumerate(inputs) if t.is_floating_point()}
        with torch.enable_grad(), self.torch.widening(), self.lookups(inputs) as looked:
            output = self.torch.output(floats.get(i, tensor) for i, tensor in enumerate(inputs))
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
        proven = {name: self._proves(next(given), parameter) for name, parameter in parameters.items()}
        covered = [np.zeros(grid(array), bool) for array in self.inputs]
        entries = [(i, self._proves(next(given), tensor)) for i, tensor in floats.items()]
        entries += [(i, np.asarray(self._proves(next(given), found, table).any(-1))) for i, found, table in looked]
        for i, proof in entries:
            at = rows if len(finite[i]) != len(self.inputs[i]) else slice(None)
            covered[i][at] |= positions(proof, finite[i])
        return proven, covered

    def finite_rows(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the rows of the batch without NaN or infinity, and their inputs; all rows if none or all are finite.

        A single NaN, as of a query that may see nothing, makes the gradients of all parameters NaN.
        """
        every = np.arange(len(self.reference))
        rows = every[np.isfinite(self.reference).reshape(len(every), -1).all(1)]
        if len(rows) in (0, len(every)):
            return every, self.inputs
        return rows, [array[rows] if array.ndim and len(array) == len(every) else array for array in self.inputs]

    def _proves(self, gradient: Any, tensor: Any, scale: Any = None) -> np.ndarray:
        """Return where a perturbation as large as the tensor itself, or as `scale`, would be over the tolerance."""
        if gradient is None:
            return np.zeros(tuple(tensor.shape), bool)
        return self.proves(host(gradient), host(tensor if scale is None else scale))

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

        tables = [module for module in self.torch.model.modules() if isinstance(module, torch.nn.Embedding)]
        handles = [module.register_forward_hook(remember) for module in tables]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()
