"""What a run on these inputs could not have noticed: parameters, positions and masks that its output does not depend on.

A gradient of the output, times the size of what it belongs to, shows what is noticed, all of it in one backward pass. The rest
is changed for real, in float64, and counts as not_covered only if the output stays within the line. Where there is no
gradient, as behind a detach(), parameters are tried as a whole, and positions column by column in all rows of the batch at
once; where rows reach one another, row by row too.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxformer.parity.numerics.metrics import TOLERANCES, host
from jaxformer.parity.record.perturb import Run, grid, size, spread
from jaxformer.parity.record.reference import apply
from jaxformer.parity.report.summarize import say_parameters, say_positions


def sensitivity(
    torch_model: Any,
    inputs: tuple[np.ndarray, ...],
    call: Callable[..., Any] = apply,
    line: float = TOLERANCES["activation"][0],
) -> list[str]:
    """Short phrases for all whose change leaves the output of `call(torch_model, *inputs)` within `line` (relL2), in float64.

    'wte.weight: 12 of 65 rows', 'h.*.attn.c_attn.bias: 48-95 of 144', 'input 0: positions 33-65 of row 2'. Positions that a
    mask hides are said to be 'masked by input 1'; nothing else in the list should be left as it is in a test. Axis 0 of an
    input is taken for the batch, axis 1 for positions, the last one for a mask's. An id is changed to others that occur.
    It takes one backward pass, and a forward pass for each position of a mask; the model is not changed.
    InputError where no number of the output is finite.
    """
    run = Run(torch_model, inputs, call, line)
    proven, seen = run.gradients()
    found = say_parameters(uncovered_parameters(run, proven), list(proven))
    for i, positions in enumerate(seen):
        found += uncovered_inputs(run, i, positions)
    return found


def uncovered_parameters(run: Run, proven: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Entries of parameters that may have any value: whole tensors, rows and columns, and single entries of vectors."""
    suspects = {name: whole_slices(np.asarray(~noticed)) for name, noticed in proven.items()}
    suspects = {name: entries for name, entries in suspects.items() if entries.any()}
    if not moved_by(run, suspects):
        return suspects
    return {name: entries for name, entries in suspects.items() if not moved_by(run, {name: entries})}


def whole_slices(entries: np.ndarray) -> np.ndarray:
    """Those entries of a matrix that fill a row or a column: that single ones show no gradient is chance."""
    if entries.ndim < 2:
        return entries
    rows = entries.all(axis=tuple(range(1, entries.ndim)), keepdims=True)
    columns = entries.all(axis=(0, *range(2, entries.ndim)), keepdims=True)
    return np.broadcast_to(rows | columns, entries.shape)


def moved_by(run: Run, changes: dict[str, np.ndarray]) -> bool:
    """Whether new values of these entries, all at once, are noticed."""
    import torch

    if not changes:
        return False
    rng, parameters = np.random.default_rng(1), dict(run.model.named_parameters())
    before = {name: parameters[name].detach().clone() for name in changes}
    with torch.no_grad():
        for name, entries in changes.items():
            noise = torch.from_numpy(size(before[name]) * rng.standard_normal(int(entries.sum())))
            device = before[name].device
            parameters[name][torch.from_numpy(entries.copy()).to(device)] += noise.to(device)
        found = bool(run.moved(run.inputs).any())
        for name, values in before.items():
            parameters[name].copy_(values)
    return found


def uncovered_inputs(run: Run, i: int, seen: np.ndarray) -> list[str]:
    """Rows and positions of one input that may hold anything, and whether their order counts; `seen` is proven already."""
    import torch

    tensor = run.inputs[i]
    integers = not tensor.is_floating_point() and tensor.dtype != torch.bool
    if integers and bool((tensor == tensor.ravel()[:1]).all()):
        return [f"input {i}: holds {int(tensor.ravel()[0])} alone"] if tensor.numel() else []
    found = uncovered_positions(run, i, seen)
    said = say_positions(f"input {i}", found, hidden_by(run, i, found))
    if integers and not found.all() and not order_counts(run, i, found):
        said.append(f"input {i}: the order of neighbours")
    return said


def uncovered_positions(run: Run, i: int, seen: np.ndarray) -> np.ndarray:
    """Of those not seen yet: which of them change without any effect."""
    found = ~seen
    if not found.any():
        return found
    apart, undecided = rows_apart(run, i), found
    if seen.any():  # what has gradients elsewhere is tried together; a mask is not: hiding everything may hide nothing
        moved = run.moved(changed(run, i, found))
        undecided = found & (moved[:, None] if apart else moved.any())
    noticed = noticed_alone(run, i, undecided, 1, apart)
    if not apart:
        noticed &= noticed_alone(run, i, undecided, 0, apart)
    return found & ~noticed


def noticed_alone(run: Run, i: int, positions: np.ndarray, axis: int, apart: bool) -> np.ndarray:
    """Those whose change is noticed, each column (`axis` 1) or row (0) by itself; where rows are apart, in each row."""
    noticed = np.zeros_like(positions)
    for number in np.flatnonzero(positions.any(1 - axis)):
        entries = positions & (np.indices(positions.shape)[axis] == number)
        moved = run.moved(changed(run, i, entries))
        noticed |= entries & (moved[:, None] if apart else moved.any())
    return noticed


def rows_apart(run: Run, i: int) -> bool:
    """Whether a row of the input reaches the same row of the output and no other."""
    shape = grid(run.inputs[i])
    if shape[0] != len(run.reference):
        return False
    return not run.moved(changed(run, i, np.arange(shape[0])[:, None] == np.zeros(shape, int)))[1:].any()


def changed(run: Run, i: int, positions: np.ndarray) -> list[Any]:
    """The inputs, with other values at these rows and positions of one: not, another id that occurs, or noise added."""
    import torch

    tensor = run.inputs[i]
    where = torch.from_numpy(positions).to(tensor.device).reshape(spread(tensor)).expand(tensor.shape)
    if tensor.dtype == torch.bool:
        other = ~tensor
    elif tensor.is_floating_point():
        noise = np.random.default_rng(2).standard_normal(tuple(tensor.shape))
        other = tensor + size(tensor) * torch.from_numpy(noise).to(tensor.device)
    else:
        values, place = torch.unique(tensor, return_inverse=True)
        other = values[(place + 1) % len(values)]
    return [torch.where(where, other, tensor) if j == i else given for j, given in enumerate(run.inputs)]


def order_counts(run: Run, i: int, not_covered: np.ndarray) -> bool:
    """Whether it shows that two neighbours with different ids changed places, other than by their places in the output."""
    if run.inputs[i].ndim != 2:
        return True
    ids = host(run.inputs[i])
    swapped, places = run.inputs[i].clone(), np.tile(np.arange(ids.shape[1]), (len(ids), 1))
    for row, (values, skipped) in enumerate(zip(ids, not_covered, strict=True)):
        pairs = np.flatnonzero((values[1:] != values[:-1]) & ~skipped[1:] & ~skipped[:-1])
        if pairs.size:
            places[row, pairs[0] + np.arange(2)] = pairs[0] + np.arange(2)[::-1]
            swapped[row] = run.inputs[i][row, places[row]]
    tried = (places != np.arange(ids.shape[1])).any(1)
    inputs, shape = [swapped if j == i else given for j, given in enumerate(run.inputs)], run.reference.shape
    noticed = run.moved(inputs)
    if shape[:2] == ids.shape:
        back = places.reshape(*ids.shape, *[1] * (len(shape) - 2))
        noticed &= run.moved(inputs, lambda output: np.take_along_axis(output, back, 1))
    return not tried.any() or bool(noticed[tried].all() if len(noticed) == len(tried) else noticed.any())


def hidden_by(run: Run, i: int, not_covered: np.ndarray) -> tuple[np.ndarray, str]:
    """Positions that a mask among the inputs hides, if all of them are not_covered, and which input that is."""
    for j, tensor in enumerate(run.inputs):
        values = host(tensor)
        if j != i and not tensor.is_floating_point() and grid(tensor)[0] == len(not_covered) and len(np.unique(values)) == 2:
            marked = (values != values.min()).reshape(len(not_covered), -1, values.shape[-1])
            for hidden in (~marked.any(1), marked.all(1)):
                if hidden.shape == not_covered.shape and hidden.any() and not (hidden & ~not_covered).any():
                    return hidden, f"input {j}"
    return np.zeros_like(not_covered), ""
