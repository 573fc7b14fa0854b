"""torch's draws in training mode: each one is noted with its module, and gives the same numbers in every run."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jaxformer.parity.capture.draws import DROPOUT, NORMAL, UNIFORM, Draw, in_range, numbers_of
from jaxformer.parity.capture.source_lines import line_here

SEED = 0
"""Of the draws that cannot be given numbers."""


Change = Callable[[Any, float], Any]
"""change(numbers, keep): other numbers for a draw; of dropout 1.0 where a unit is kept, which is then divided by `keep`."""

_altered: list[tuple[Mapping[tuple[str, int], Change], list[Draw]]] = []
"""What changes draws while a cause is looked for, by module and number; and where they are noted."""


@contextmanager
def altered_draws(changes: Mapping[tuple[str, int], Change], noted: list[Draw] | None = None) -> Iterator[None]:
    """Inside, draws of `repeatable_draws` are changed, and noted."""
    _altered.append((changes, [] if noted is None else noted))
    try:
        yield
    finally:
        _altered.pop()


@contextmanager
def repeatable_draws(model: Any) -> Iterator[list[Draw]]:
    """Inside, whatever `model` draws is decided by its place alone: its module, and how many draws came before it there.

    nn.Dropout and its kin, F.dropout, nn.MultiheadAttention, scaled_dot_product_attention, torch.rand and torch.randn on the
    CPU get `numbers_of` their place; other operations draw from one seed. torch's own generator stays as it was.
    """
    import torch
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
    from torch.utils._python_dispatch import TorchDispatchMode

    paths, running, calls = {module: path for path, module in model.named_modules()}, [""], Counter[str]()
    found: list[Draw] = []

    def given(kind: str, shape: Any, keep: float = 1.0) -> Any:
        draw = Draw(running[-1], kind, tuple(shape), calls[running[-1]], keep, line_here())
        calls[draw.path] += 1
        found.append(draw)
        numbers = torch.from_numpy(numbers_of(draw))
        for changes, noted in _altered:
            noted.append(draw)
            if change := changes.get((draw.path, draw.number)):
                numbers = change(numbers.double(), keep)
        return numbers

    aten = torch.ops.aten

    class Repeating(TorchDispatchMode):
        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if operation is aten.bernoulli_.float:
                keep = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
                return args[0].copy_(given(DROPOUT, args[0].shape, keep))
            output = operation(*args, **kwargs)
            if torch.Tag.nondeterministic_seeded not in operation.tags or not isinstance(output, torch.Tensor):
                return output
            if operation.overloadpacket in (aten.rand, aten.rand_like):
                return output.copy_(given(UNIFORM, output.shape))
            if operation is aten.uniform_.default:
                low, high = (args[i] if len(args) > i else kwargs.get(name, i - 1.0) for i, name in ((1, "from"), (2, "to")))
                return output.copy_(in_range(given(UNIFORM, output.shape), low, high))
            if operation.overloadpacket in (aten.randn, aten.randn_like):
                return output.copy_(given(NORMAL, output.shape))
            if operation is aten.normal_.default:
                mean, std = (args[i] if len(args) > i else kwargs.get(name, i - 1.0) for i, name in ((1, "mean"), (2, "std")))
                return output.copy_(mean + std * given(NORMAL, output.shape))
            if "attention" not in str(operation):
                given(operation.overloadpacket.__name__, output.shape)
            return output

    def enter(module: Any, _: Any) -> None:
        running.append(paths.get(module, running[-1]))

    def leave(*_: Any) -> None:
        running.pop()

    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)
    try:
        with torch.random.fork_rng(devices=[]), Repeating():
            torch.manual_seed(SEED)
            yield found
    finally:
        for hook in hooks:
            hook.remove()
