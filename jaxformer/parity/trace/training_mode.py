"""torch's model in training mode: its draws are repeatable, and its running statistics are recorded and left as they were."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import update_wrapper
from typing import Any

from jaxformer.parity.trace.draws import Draw, repeatable_draws
from jaxformer.parity.trace.reference import Call
from jaxformer.parity.trace.torch_hooks import record_in_torch

Modes = Mapping[str, bool]
"""Which modules are trained, by their paths."""


def modes_of(model: Any) -> Modes:
    """Those of a model that is in training mode, so that what the user keeps in inference mode stays in it; else all train."""
    return {path: module.training or not model.training for path, module in model.named_modules()}


class InTraining:
    """A call in training mode. Each run has the same draws, and begins with the same buffers."""

    def __init__(self, call: Call, model: Any):
        self.call, self.modes = call, modes_of(model)
        self.draws: tuple[Draw, ...] = ()
        """Of the last run."""
        update_wrapper(self, call)

    def __call__(self, model: Any, *inputs: Any) -> Any:
        with self.inside(model) as draws:
            output = self.call(model, *inputs)
        self.draws = tuple(draws)
        return output

    def inside(self, model: Any) -> AbstractContextManager[list[Draw]]:
        """In which the model, or a part of it, runs as in this call."""
        return training(model, self.modes)


@contextmanager
def training(model: Any, modes: Modes) -> Iterator[list[Draw]]:
    """Inside, a model is in training mode; notes its draws. Its running statistics are recorded as if a module of their name
    gave them, and then taken back."""
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
    """Float buffers of one or more axes that a run changes, and those of norms, whether it does or not."""
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
