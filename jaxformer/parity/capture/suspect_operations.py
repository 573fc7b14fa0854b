"""Operations of a running model that this jaxlib may compute wrong."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

from jax.extend.core import Primitive

from jaxformer.parity.capture.source_lines import line_here
from jaxformer.runtime.xla_options import SUSPECTED, Fault, Operation, faults


class Suspect(NamedTuple):
    """An operation that one of XLA's known faults may reach."""

    fault: Fault
    name: str
    """Of the operation: 'reduce_sum'."""
    module: str
    """Path of the JAX module whose code has it; '' for the model itself."""
    line: str
    """'port.py:12', of the user's code; '' where none of it has the operation."""

    @property
    def place(self) -> str:
        """'reduce_sum in norm, port.py:12'."""
        return f"{self.name} in {', '.join(filter(None, (self.module, self.line))) or 'the model'}"


@contextmanager
def suspect_operations(module: Callable[[], str]) -> Iterator[list[Suspect]]:
    """Inside, operations are noted as they are traced, each once; `module()` is the path of the module that is running."""
    found: list[Suspect] = []
    if not (known := faults()):
        yield found
        return
    bind_as_it_is = Primitive.bind

    def bind(operation: Primitive, *args: Any, **how: Any) -> Any:
        if not operation.name.startswith(SUSPECTED):
            return bind_as_it_is(operation, *args, **how)
        seen = Operation(operation.name, [getattr(arg, "shape", ()) for arg in args], how)
        for fault in known:
            if fault.suspects(seen) and (suspect := Suspect(fault, operation.name, module(), line_here())) not in found:
                found.append(suspect)
        return bind_as_it_is(operation, *args, **how)

    with mock.patch.object(Primitive, "bind", bind):
        yield found
