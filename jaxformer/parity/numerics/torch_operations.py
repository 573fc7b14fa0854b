"""torch's operations, each done by a function of ours."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

Operate = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]
"""operate(operation, args, kwargs): what the operation gives."""


def torch_operations(operate: Operate) -> AbstractContextManager[Any]:
    """Inside, forwards and backwards, each of torch's operations gives what `operate` does, in which they are as ever."""
    return _mode()(operate)


@cache
def _mode() -> Any:
    """The class of these contexts."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operating(TorchDispatchMode):
        def __init__(self, operate: Operate):
            super().__init__()
            self.operate = operate

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """torch's compiler, which a compiled model alone needs, takes a second to import."""
            return False

        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self.operate(operation, args, kwargs or {})

    return Operating
