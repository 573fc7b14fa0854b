"""torch's own rounding error: torch is replayed with the last bit of each operation's result perturbed at random.

Monte Carlo arithmetic (Parker 1997). Operations that subtract internally are perturbed by the last bit of what they subtract
(`SUBTRACTED`): the log-softmax of a near-certain class is tiny, and rounded as its logits are. Exact results stay: copies, and
numbers that float32 represents too, such as a weight of 1 where attention saturates; and the largest number, of which masks are
made. A rounded result is representable in float32 by chance once in 2^28.
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
"""Number of perturbed runs. A single one may perturb two close scores alike, and leave what depends on their difference
unperturbed."""
LARGE = 30_000_000
"""Total entries of all gradients from which a single run is used: it takes seconds, and each array has enough entries."""
FEW = 64
"""An output with fewer entries than this may be left unchanged, or nearly so, by a single draw, by chance."""
COPIES = ("clone", "_to_copy", "cat", "stack", "embedding", "index", "index_select", "gather", "where", "masked_fill", "repeat")
COPIES += ("amax", "amin", "max", "min", "topk", "sort", "abs", "neg")
"""Operations that do not round. The backward pass of a maximum finds its position by value, which must stay exact."""
NORMS = "norm", "linalg_vector_norm"
"""Operations that return a maximum if their order is infinite."""
BEYOND_FLOAT32 = 2**29 - 1
"""Mask of the low bits of a float64 that float32 does not have."""

SUBTRACTED: Mapping[str, Callable[..., Any]] = {
    "_log_softmax": lambda x, axis, *_: x.logsumexp(axis, keepdim=True).abs().maximum(x.abs()),
    "_log_softmax_backward_data": lambda dy, y, axis, *_: dy.abs() + y.exp() * dy.sum(axis, keepdim=True).abs(),
    "gelu": lambda x, **_: x.abs(),
    "gelu_backward": lambda dy, x, **_: dy.abs() * (1 + x * x),
}
"""Operation -> magnitude of the numbers that it subtracts, entry by entry, from its arguments.

The operations are x - log(sum(exp(x))) and x (1 + erf(x / sqrt(2))) / 2, and their derivatives: in that of tanh-GELU, the
subtraction 1 - tanh(u)^2 is multiplied by x du/dx.
"""
CHUNK = 2**16
"""Number of entries that are perturbed together."""
LAST_BIT = 2.0**-52
"""Distance between neighbouring float64 numbers above 1."""


def measure_rounding(module: Any, reference: Reference, call: Call) -> Rounding:
    """Measure how far rounding perturbs the arrays of `reference`; empty if the first runs stay far below the tolerances.

    It takes one run, or four for a model with an output of few entries. An ill-conditioned model takes four runs in all, and
    one more with each module alone, or four if the modules are ill-conditioned too. A large model takes one run in place of
    four.
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
        return Rounding()  # a model that refuses perturbed values has the usual tolerances
    return Rounding(_largest(run), _largest(alone), output)


def holders(reference: Reference) -> set[Site]:
    """Return the calls of modules that hold parameters: the modules of `Rounding.alone`."""
    return {site for site in reference.calls if site != CALL and any(below(name, site.path) for name in reference.weights)}


def _matters(reference: Reference, perturbed: Perturbed) -> Iterable[bool]:
    """Yield for each array True if rounding relaxes its tolerance; never for null gradients."""
    nulls = [
        NULL_GRADIENT * rms(reference.gradients.values()),
        NULL_GRADIENT * rms(a for record in reference.calls.values() for a in record.output_gradients if a is not None),
    ]
    for key, noise in perturbed.items():
        array, kind = _array(reference, key)
        null = kind == "gradient" and is_null(array, array, nulls[key.part != "gradient"])
        yield not null and Error(0.0, 0.0, *noise.of(array)).allowed(kind) != TOLERANCES[kind]


def _array(reference: Reference, key: ArrayKey) -> tuple[np.ndarray, Kind]:
    """Return torch's array and its kind."""
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
    """Measure one perturbed run; with `alone`, each holder is given torch's own arrays."""
    replay = _Replay(reference.calls, holders(reference) if alone else ())
    with perturbation(seed):
        outputs, _, gradients = run_float64(module, reference.inputs, call, replay, gradients=bool(reference.gradients))
    for i, (array, recorded) in enumerate(zip(outputs, reference.calls[CALL].output, strict=True)):
        replay.note(ArrayKey(CALL, "output", i), array, recorded)
    for name, gradient in gradients.items():
        replay.note(ArrayKey.gradient(name), gradient, reference.gradients[name])
    return replay.perturbed


def move_last_bits(bits: np.ndarray, steps: Callable[[int], np.ndarray]) -> None:
    """Move each float64's last bit by -1, 0 or 1, in place, in chunks that stay in a processor's cache."""
    spare = np.empty(min(CHUNK, bits.size), np.int64)
    for start in range(0, bits.size, CHUNK):
        piece = bits[start : start + CHUNK]
        step = np.add(piece, 1, out=spare[: len(piece)])
        step &= BEYOND_FLOAT32
        step >>= 1  # 0 for numbers that float32 has, before or after a step up
        np.minimum(step, 1, out=step)
        step *= steps(len(piece))
        piece += step


def perturbation(seed: int) -> Any:
    """Context manager: torch perturbs what it computes in float64, forward and backward."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map_only

    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(-1, 2, (2 * CHUNK,), generator=generator).numpy()

    def steps(count: int) -> np.ndarray:
        """Return a random step of -1, 0 or 1 for each of at most `CHUNK` entries."""
        start = int(torch.randint(0, CHUNK, (), generator=generator))
        return drawn[start : start + count]

    def perturbed(x: Any) -> Any:
        """Perturb a tensor, in place where it is contiguous and on the host."""
        if x.dtype != torch.float64 or not x.numel():
            return x
        moved = x.detach().cpu().contiguous()
        move_last_bits(moved.numpy().view(np.int64).reshape(-1), steps)
        return moved.to(x.device)

    def run(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        given = operation(*args, **kwargs)
        aliased = operation.is_view or any(result.alias_info is not None for result in operation._schema.returns)
        name = operation.overloadpacket.__name__
        if name in SUBTRACTED and given.dtype == torch.float64:
            step = torch.randint(-1, 2, given.shape, generator=generator).to(given.device)
            return given + step * LAST_BIT * SUBTRACTED[name](*args, **kwargs)
        if aliased or name in COPIES or (name in NORMS and float("inf") in args[1:2]):
            return given
        known = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        own = tree_map_only(torch.Tensor, lambda x: x.clone() if x.untyped_storage().data_ptr() in known else x, given)
        return tree_map_only(torch.Tensor, perturbed, own)

    return torch_operations(run)


class _Replay:
    """Observer of a replay that measures the noise in each call's arrays; `fixed` calls are given torch's arrays again."""

    def __init__(self, records: Trace, fixed: Container[Site]):
        self.records, self.fixed = records, fixed
        self.perturbed: dict[ArrayKey, Noise] = {}

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._visit(site, "inputs", "input_gradients", arguments)

    def leave(self, site: Site, output: Any) -> Any:
        return self._visit(site, "output", "output_gradients", output)

    def note(self, key: ArrayKey, array: np.ndarray, reference: np.ndarray) -> None:
        """Record the noise in an array."""
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
        """Return a copy, so that its gradient comes from this call alone."""
        self.note(key, host(tensor), array)
        copy = tensor.clone()
        if key.site in self.fixed:
            copy.data.copy_(perturbed_again(array))
        return copy

    def _returned(self, key: ArrayKey, reference: np.ndarray, gradient: Any) -> Any:
        """Record the noise in a gradient that comes back."""
        self.note(key, host(gradient), reference)
        return perturbed_again(reference) if key.site in self.fixed else None


def perturbed_again(array: np.ndarray) -> Any:
    """Return torch's array as the result of an operation, so that it is perturbed: this stands for the rounding of the next
    operation."""
    import torch

    return torch.from_numpy(array) + 0
