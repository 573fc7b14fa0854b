"""Norms of a torch training step, by the same quantities and modules as those of a JAX step (`jaxformer.training.norms`)."""

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from jaxformer.errors import InputError, type_of
from jaxformer.parity.trace.call_records import arrays_in
from jaxformer.parity.trace.call_sites import ATTENTION, Site, last, parent
from jaxformer.parity.trace.torch_hooks import watch_torch as watch_calls
from jaxformer.runs.watched import AMPLIFIED, ROUNDING, TINY, Monitor
from jaxformer.validation.fields import check_function, check_path, check_size, whole

SQUARES = "nu"
"""Name of the moments of squared gradients, whose square roots are measured."""
MOMENTS = {"exp_avg": "mu", "exp_avg_sq": SQUARES, "momentum_buffer": "trace"}
"""Torch's names of moments -> optax's."""


class _Outputs:
    """Observer that sums the squares of each module's output, and counts its elements."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, int]] = {}

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments as they are."""
        return arguments

    def leave(self, site: Site, output: Any) -> Any:
        """Return the output of the call."""
        if last(site.path) not in ATTENTION:
            for array in arrays_in(output):
                if array.is_floating_point():
                    total, count = self.sums.get(site.path, (0.0, 0))
                    self.sums[site.path] = total + square(array), count + array.numel()
        return output


class TorchWatched:
    """Training step of torch that is watched."""

    def __init__(self, step: Callable[..., Any], model: Any, optimizer: Any, monitor: Monitor, taken: int):
        self.step, self.model, self.optimizer, self.monitor, self.taken = step, model, optimizer, monitor, taken

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Take a step, and look at it if it is due."""
        self.taken += 1
        if not self.monitor.is_due(self.taken):
            return self.step(*args, **kwargs)
        output, norms = self._looked(*args, **kwargs)
        self.monitor.write(self.taken, norms)
        return output

    def _looked(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, float]]:
        """Take a step; return its output and the norms by series."""
        parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        before = {name: p.detach().clone() for name, p in parameters.items()}
        outputs, gradients = _Outputs(), dict[str, Any]()
        with ExitStack() as stack:
            for name, parameter in parameters.items():
                hook = parameter.register_post_accumulate_grad_hook(
                    lambda p, name=name: gradients.update({name: p.grad.detach().clone()})
                )
                stack.callback(hook.remove)
            stack.enter_context(watch_calls(self.model, outputs))
            output = self.step(*args, **kwargs)
        found = module_norms("weight", before)
        found |= {f"activation/{path or 'model'}": (s / max(n, 1)) ** 0.5 for path, (s, n) in outputs.sums.items()}
        found |= _numbers(output) | module_norms("gradient", gradients)
        moments: dict[str, dict[str, Any]] = {}
        for name, parameter in parameters.items():
            for label, value in self.optimizer.state.get(parameter, {}).items():
                if getattr(value, "shape", None) == parameter.shape:
                    called = MOMENTS.get(label) or str(label)
                    moments.setdefault(called, {})[name] = value.sqrt() if called == SQUARES else value
        for label, tensors in moments.items():
            found |= module_norms(label, tensors)
        update = {name: p.detach() - before[name] for name, p in parameters.items()}
        return output, found | module_norms("update", update) | module_norms(ROUNDING, _of_rounding(gradients, update))


def watch_torch(
    step: Callable[..., Any], model: Any, optimizer: Any, *, every: int, out: str | Path, taken: int = 0
) -> TorchWatched:
    """Return the torch step, watched as `watch` watches a JAX step: the same series in OUT/watch.jsonl.

    `step` computes a loss of `model`, its gradients, and takes a step of `optimizer`; a loss that it returns, or a dict of
    numbers, is written too. Gradients are those of the backward pass, before anything clips them. `jaxformer runs compare`
    overlays two such folders. InputError for other arguments, and for a folder with rows of later steps.
    """
    check_function("step", step, "the training step")
    if not hasattr(model, "named_modules"):
        raise InputError(f"model is {type_of(model)}; give the torch.nn.Module that the step trains")
    if not hasattr(optimizer, "param_groups"):
        raise InputError(f"optimizer is {type_of(optimizer)}; give the torch.optim.Optimizer of the step")
    check_size("every", every := whole(every))
    check_size("taken", taken := whole(taken), least=0)
    return TorchWatched(step, model, optimizer, Monitor.begin(check_path("out", out), every, taken), taken)


def module_norms(quantity: str, tensors: Mapping[str, Any]) -> dict[str, float]:
    """Return the L2 norm of all tensors that a module has of its own."""
    sums: dict[str, float] = {}
    for name, tensor in tensors.items():
        series = f"{quantity}/{parent(name) or name}"
        sums[series] = sums.get(series, 0.0) + square(tensor)
    return {series: total**0.5 for series, total in sums.items()}


def _of_rounding(gradients: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    """Return the updates whose gradient is rounding, as `jaxformer.training.norms` tells them."""
    shares, moved = _shares(gradients), _shares(update)
    return {name: update[name] for name in shares if moved[name] > AMPLIFIED and shares[name] < TINY}


def _shares(tensors: Mapping[str, Any]) -> dict[str, float]:
    """Return the root mean square of each tensor, as a share of the largest."""
    sizes = {name: (square(tensor) / max(tensor.numel(), 1)) ** 0.5 for name, tensor in tensors.items()}
    return {name: size / (max(sizes.values()) or math.nan) for name, size in sizes.items()}


def square(tensor: Any) -> float:
    """Sum of the squares of a tensor, in float32."""
    return float(tensor.detach().float().square().sum())


def _numbers(output: Any, name: str = "loss") -> dict[str, float]:
    """Return the numbers that a step returns: those of a dict by their keys, the first other one as the loss."""
    if isinstance(output, dict):
        return {key: value for name, inner in output.items() for key, value in _numbers(inner, str(name)).items()}
    if isinstance(output, tuple | list):
        found = [_numbers(inner, name) for inner in output]
        return {key: value for each in reversed(found) for key, value in each.items()}
    if hasattr(output, "numel"):
        return {name: float(output.item())} if output.numel() == 1 else {}
    return {name: output} if isinstance(output, float) else {}
