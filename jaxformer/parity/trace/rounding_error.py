"""torch's own rounding error: torch runs again, with the last bit of each operation's result perturbed at random.

Monte Carlo arithmetic (Parker 1997). Operations that subtract inside of themselves are perturbed by the last bit of what they
subtract (`SUBTRACTED`): the log-softmax of a class that is sure is tiny, and rounded as its logits are. Exact results stay:
copies, and numbers that float32 holds too, such as a weight of 1 where attention saturates; and the largest number, of which
masks are made. A rounded result is one of these once in 2^28.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from jaxformer.parity.numerics.float64 import torch_operations
from jaxformer.parity.numerics.metrics import EXACT, NULL_GRADIENT, TOLERANCES, Error, Kind, Noise, host, is_null, rms
from jaxformer.parity.trace.call_records import Trace, arrays_in, is_attention, replaced, valid_entries
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site, below
from jaxformer.parity.trace.reference import REFUSALS, Call, Perturbed, Reference, Rounding, run_float64

DRAWS = 4
"""How many runs. In one alone two close scores may be perturbed alike, and what depends on their difference not at all."""
LARGE = 30_000_000
"""Entries of all gradients, from which a run takes seconds, and one has to do: each array is of so many numbers."""
FEW = 64
"""Entries of an output that one draw may leave as they are, or nearly so, by chance."""
COPIES = ("clone", "_to_copy", "cat", "stack", "embedding", "index", "index_select", "gather", "where", "masked_fill", "repeat")
COPIES += ("amax", "amin", "max", "min", "topk", "sort", "abs", "neg")
"""Operations that round nothing; what is the largest is found again by its value, on the way back."""
NORMS = "norm", "linalg_vector_norm"
"""Operations that find the largest where their order is infinite."""
BEYOND_FLOAT32 = 2**29 - 1
"""The bits of a float64 that float32 does not have."""

SUBTRACTED: Mapping[str, Callable[..., Any]] = {
    "_log_softmax": lambda x, axis, *_: x.logsumexp(axis, keepdim=True).abs().maximum(x.abs()),
    "_log_softmax_backward_data": lambda dy, y, axis, *_: dy.abs() + y.exp() * dy.sum(axis, keepdim=True).abs(),
    "gelu": lambda x, **_: x.abs(),
    "gelu_backward": lambda dy, x, **_: dy.abs() * (1 + x * x),
}
"""Operation -> the size of the numbers that it subtracts, entry by entry, from its arguments: x - log(sum(exp(x))) and
x (1 + erf(x / sqrt(2))) / 2, and their derivatives: that of tanh, 1 - tanh(u)^2, stands beside x du/dx there."""
CHUNK = 2**16
"""Entries that are perturbed together."""
LAST_BIT = 2.0**-52
"""Distance between neighbours above 1 in float64."""


def measure_rounding(module: Any, reference: Reference, call: Call) -> Rounding:
    """How far rounding perturbs the arrays of `reference`; nothing where one draw stays far below the tolerances.

    It takes one run, four for a model that gives a few numbers; for one that is ill-conditioned four in all, and as many of its
    modules by themselves, if these are. Large ones have one for four.
    """
    most = 1 if sum(array.size for array in reference.gradients.values()) > LARGE else DRAWS
    draws = DRAWS if any(array.size < FEW for array in reference.calls[CALL].output) else 1
    try:
        run = [_draw(module, reference, call, seed, alone=False) for seed in range(draws)]
        found = _largest(run)
        output = {key: noise for key, noise in found.items() if key.site == CALL and key.part == "output"}
        if not any(_matters(reference, found)):
            return Rounding(output=output)
        run += [_draw(module, reference, call, seed, alone=False) for seed in range(draws, most)]
        alone = [_draw(module, reference, call, 0, alone=True)]
        if any(_matters(reference, alone[0])):
            alone += [_draw(module, reference, call, seed, alone=True) for seed in range(1, most)]
    except REFUSALS:
        return Rounding()  # a model that refuses to be perturbed has the usual tolerances
    return Rounding(_largest(run), _largest(alone), output)


def holders(reference: Reference) -> set[Site]:
    """Calls of modules that hold parameters: the modules of `Rounding.alone`."""
    return {site for site in reference.calls if site != CALL and any(below(name, site.path) for name in reference.weights)}


def _matters(reference: Reference, perturbed: Perturbed) -> Iterable[bool]:
    """Whether rounding relaxes the tolerance, array by array; null gradients have none."""
    nulls = [
        NULL_GRADIENT * rms(reference.gradients.values()),
        NULL_GRADIENT * rms(a for record in reference.calls.values() for a in record.output_gradients if a is not None),
    ]
    for key, noise in perturbed.items():
        array, kind = _array(reference, key)
        null = kind == "gradient" and is_null(array, array, nulls[key.part != "gradient"])
        yield not null and Error(0.0, 0.0, *noise.of(array)).allowed(kind) != TOLERANCES[kind]


def _array(reference: Reference, key: ArrayKey) -> tuple[np.ndarray, Kind]:
    """torch's array, and its kind."""
    if key.part == "gradient":
        return reference.gradients[key.site.path], "gradient"
    record = reference.calls[key.site]
    return getattr(record, key.part)[key.number], "gradient" if key.part.endswith("gradients") else "activation"


def _largest(draws: Iterable[Perturbed]) -> Perturbed:
    found: dict[ArrayKey, Noise] = {}
    for perturbed in draws:
        for key, noise in perturbed.items():
            before = found.get(key, EXACT)
            found[key] = Noise(max(before.size, noise.size), max(before.peak, noise.peak))
    return found


def _draw(module: Any, reference: Reference, call: Call, seed: int, *, alone: bool) -> Perturbed:
    """One perturbed run; `alone`: each holder given torch's own arrays."""
    rerun = _Rerun(reference.calls, holders(reference) if alone else ())
    with _perturbation(seed):
        outputs, _, gradients = run_float64(module, reference.inputs, call, rerun, gradients=bool(reference.gradients))
    for i, (array, recorded) in enumerate(zip(outputs, reference.calls[CALL].output, strict=True)):
        rerun.note(ArrayKey(CALL, "output", i), array, recorded)
    for name, gradient in gradients.items():
        rerun.note(ArrayKey.gradient(name), gradient, reference.gradients[name])
    return rerun.perturbed


def _perturbation(seed: int) -> Any:
    """Inside, torch perturbs what it computes in float64, forwards and backwards."""
    import torch
    from torch.utils._pytree import tree_map_only

    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(-1, 2, (2 * CHUNK,), generator=generator)

    def steps(count: int) -> Any:
        """One up, one down, or none, for each of at most `CHUNK` entries."""
        start = int(torch.randint(0, CHUNK, (), generator=generator))
        return drawn[start : start + count]

    def perturbed(x: Any) -> Any:
        """Each entry's last bit one up, one down, or as it is: chunk by chunk, which stays in a processor's cache."""
        if x.dtype != torch.float64 or not x.numel():
            return x
        bits = x.detach().cpu().contiguous().view(torch.int64).view(-1)
        other = torch.empty_like(bits)
        for piece, to in zip(bits.split(CHUNK), other.split(CHUNK), strict=True):
            inexact = (piece + 1).bitwise_and_(BEYOND_FLOAT32).sub_(1).clamp_(0, 1)
            torch.add(piece, inexact.mul_(steps(len(piece))), out=to)
        return other.view(x.dtype).view(x.shape).to(x.device)

    def run(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        given = operation(*args, **kwargs)
        aliased = operation.is_view or any(result.alias_info is not None for result in operation._schema.returns)
        name = operation.overloadpacket.__name__
        if name in SUBTRACTED and given.dtype == torch.float64:
            step = torch.randint(-1, 2, given.shape, generator=generator).to(given.device)
            return given + step * LAST_BIT * SUBTRACTED[name](*args, **kwargs)
        exact = aliased or name in COPIES or (name in NORMS and float("inf") in args[1:2])
        return given if exact else tree_map_only(torch.Tensor, perturbed, given)

    return torch_operations(run)


class _Rerun:
    """Measures how far each call's arrays are off; `fixed` calls get torch's arrays again."""

    def __init__(self, records: Trace, fixed: Container[Site]):
        self.records, self.fixed = records, fixed
        self.perturbed: dict[ArrayKey, Noise] = {}

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._visit(site, "inputs", "input_gradients", arguments)

    def leave(self, site: Site, output: Any) -> Any:
        return self._visit(site, "output", "output_gradients", output)

    def note(self, key: ArrayKey, array: np.ndarray, reference: np.ndarray) -> None:
        """How far that array is off."""
        attention = key.site in self.records and is_attention(key.site, self.records[key.site])
        self.perturbed[key] = Noise.between(
            array, reference, valid_entries(key.site, self.records, reference) if attention else True
        )

    def _visit(self, site: Site, part: str, gradients: str, value: Any) -> Any:
        if site not in self.records:
            return value
        record, tensors = self.records[site], arrays_in(value)
        arrays, back = getattr(record, part), getattr(record, gradients)
        if len(tensors) != len(arrays):
            raise ValueError(f"{site} has other arrays than before")
        copies = []
        for i, (tensor, array) in enumerate(zip(tensors, arrays, strict=True)):
            copies.append(self._copy(tensor, array, ArrayKey(site, part, i)) if tensor.is_floating_point() else tensor)
            if copies[-1].requires_grad and i < len(back) and back[i] is not None:
                copies[-1].register_hook(partial(self._returned, ArrayKey(site, gradients, i), back[i]))
        return replaced(value, tensors, copies)

    def _copy(self, tensor: Any, array: np.ndarray, key: ArrayKey) -> Any:
        """A copy, so that its gradient is that of this call alone."""
        self.note(key, host(tensor), array)
        copy = tensor.clone()
        if key.site in self.fixed:
            copy.data.copy_(perturbed_again(array))
        return copy

    def _returned(self, key: ArrayKey, reference: np.ndarray, gradient: Any) -> Any:
        """Measure the gradient that comes back."""
        self.note(key, host(gradient), reference)
        return perturbed_again(reference) if key.site in self.fixed else None


def perturbed_again(array: np.ndarray) -> Any:
    """torch's array as the result of an operation, so that it is perturbed: that stands for the rounding in the next one."""
    import torch

    return torch.from_numpy(array) + 0
