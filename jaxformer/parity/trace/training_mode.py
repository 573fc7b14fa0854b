"""torch's model in training mode: its draws are repeatable, and its running statistics are recorded and restored."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import update_wrapper
from typing import Any

from jaxformer.parity.trace.draws import Draw, repeatable_draws
from jaxformer.parity.trace.reference import Call
from jaxformer.parity.trace.torch_hooks import record_in_torch

Modes = Mapping[str, bool]
"""Training mode of each module by path: True if it is trained."""


def modes_of(model: Any) -> Modes:
    """Return the modes of a model in training mode, so that modules that the user keeps in inference mode stay in it; all True
    for a model in inference mode."""
    return {path: module.training or not model.training for path, module in model.named_modules()}


class InTraining:
    """Call in training mode: each run has the same draws, and begins with the same buffers."""

    def __init__(self, call: Call, model: Any):
        self.call, self.modes = call, modes_of(model)
        self.draws: tuple[Draw, ...] = ()
        """Draws of the last run."""
        update_wrapper(self, call)

    def __call__(self, model: Any, *inputs: Any) -> Any:
        with self.inside(model) as draws:
            output = self.call(model, *inputs)
        self.draws = tuple(draws)
        return output

    def inside(self, model: Any) -> AbstractContextManager[list[Draw]]:
        """Return a context manager in which the model, or a part of it, runs as in this call."""
        return training(model, self.modes)


@contextmanager
def training(model: Any, modes: Modes) -> Iterator[list[Draw]]:
    """Run a model in training mode, recording its draws.

    Its running statistics are recorded as if a module of their name returned them, and then restored.
    """
    before = {path: module.training for path, module in model.named_modules()}
    buffers = {module: dict(module._buffers) for module in model.modules()}
    for path, module in model.named_modules():
        module.training = modes.get(path, True)
        module._buffers.update({name: None if b is None else b.clone() for name, b in module._buffers.items()})
    try:
        with repeatable_draws(model) as draws:
            yield draws
        for name, value in statistics(model, buffers).items():
            record_in_torch(name, value)
    finally:
        for path, module in model.named_modules():
            module.training = before[path]
            module._buffers.update(buffers.get(module, {}))


def statistics(model: Any, before: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the float buffers of one or more axes that a run changes, and the running statistics of norms, changed or not."""
    found = {}
    for path, module in model.named_modules():
        for name, value in module._buffers.items():
            if value is None or not value.is_floating_point() or not value.ndim:
                continue
            old = before.get(module, {}).get(name)
            is_new = old is not None and (old.shape != value.shape or not old.equal(value))
            if is_new or name in ("running_mean", "running_var"):
                found[f"{path}.{name}" if path else name] = value.detach()
    return found
