"""torch's draws in training mode: each one is noted with its module, and gives the same numbers in every run."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jaxformer.parity.capture.draws import DROPOUT, NORMAL, UNIFORM, Draw, in_range, numbers_of
from jaxformer.parity.capture.source_lines import line_here
from jaxformer.parity.numerics.torch_operations import torch_operations

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

    nn.Dropout and its kin, F.dropout, nn.MultiheadAttention, scaled_dot_product_attention, torch.rand, torch.randn,
    torch.bernoulli and torch.normal on the CPU get `numbers_of` their place; other operations draw from one seed. torch's own
    generator stays as it was.
    """
    import torch
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    paths, notes = {module: path for path, module in model.named_modules()}, _Notes()

    def enter(module: Any, _: Any) -> None:
        notes.running.append(paths.get(module, notes.running[-1]))

    def leave(*_: Any) -> None:
        notes.running.pop()

    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)
    try:
        with torch.random.fork_rng(devices=[]), _repeating(notes.numbers):
            torch.manual_seed(SEED)
            yield notes.found
    finally:
        for hook in hooks:
            hook.remove()


class _Notes:
    """The modules that are running, and what they have drawn."""

    def __init__(self) -> None:
        self.running = [""]
        self.calls: Counter[str] = Counter()
        self.found: list[Draw] = []

    def numbers(self, kind: str, shape: Any, keep: float = 1.0) -> Any:
        """Those of the next draw, in float64: what is made of them may be so too."""
        import torch

        path = self.running[-1]
        draw = Draw(path, kind, tuple(shape), self.calls[path], keep, line_here())
        self.calls[path] += 1
        self.found.append(draw)
        numbers = torch.from_numpy(numbers_of(draw)).double()
        for changes, noted in _altered:
            noted.append(draw)
            if change := changes.get((draw.path, draw.number)):
                numbers = change(numbers, keep)
        return numbers


def _kept(numbers: Callable[..., Any], shape: Any, p: Any) -> Any:
    """Which units are kept. `p` may be a tensor: of several probabilities, they are those above uniform numbers."""
    import torch

    if isinstance(p, torch.Tensor) and p.numel() and bool((p == p.flatten()[0]).all()):
        p = p.flatten()[0].item()
    return numbers(UNIFORM, shape) < p if isinstance(p, torch.Tensor) else numbers(DROPOUT, shape, p)


def _repeating(numbers: Callable[..., Any]) -> Any:
    """Inside, torch's operations draw these numbers."""
    import torch

    aten = torch.ops.aten
    bernoulli = aten.bernoulli_.float, aten.bernoulli_.Tensor, aten.bernoulli.p, aten.bernoulli.default
    plain = {aten.rand: UNIFORM, aten.rand_like: UNIFORM, aten.randn: NORMAL, aten.randn_like: NORMAL}

    def repeating(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        def given(i: int, name: str, usual: Any) -> Any:
            return args[i] if len(args) > i else kwargs.get(name, usual)

        if operation in bernoulli:
            place = args[0] if operation.overloadpacket is aten.bernoulli_ else torch.empty_like(args[0])
            p = given(1, "p", 0.5 if operation is aten.bernoulli_.float else args[0])
            return place.copy_(_kept(numbers, place.shape, p))
        output = operation(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded not in operation.tags or not isinstance(output, torch.Tensor):
            return output
        if kind := plain.get(operation.overloadpacket):
            return output.copy_(numbers(kind, output.shape))
        if operation is aten.uniform_.default:
            return output.copy_(in_range(numbers(UNIFORM, output.shape), given(1, "from", 0.0), given(2, "to", 1.0)))
        if operation.overloadpacket is aten.normal:
            return output.copy_(given(0, "mean", 0.0) + given(1, "std", 1.0) * numbers(NORMAL, output.shape))
        if operation is aten.normal_.default:
            return output.copy_(given(1, "mean", 0.0) + given(2, "std", 1.0) * numbers(NORMAL, output.shape))
        if "attention" not in str(operation):
            numbers(operation.overloadpacket.__name__, output.shape)
        return output

    return torch_operations(repeating)
