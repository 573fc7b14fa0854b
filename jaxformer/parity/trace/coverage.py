"""Coverage of a run: parameters, positions and masks that its output does not depend on."""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import host
from jaxformer.parity.report.summarize import say_parameters, say_positions
from jaxformer.parity.trace.outputs import side_by_side
from jaxformer.parity.trace.perturb import Unperturbed, grid, size, spread
from jaxformer.parity.trace.reference import Reference, apply, tensors_of
from jaxformer.parity.trace.torch_hooks import without_fast_path


def sensitivity(torch_model: Any, inputs: tuple[np.ndarray, ...], call: Callable[..., Any] = apply) -> list[str]:
    """Return short phrases for everything whose change leaves the output of `call(torch_model, *inputs)` within tier A's
    tolerance.

    'wte.weight: 12 of 65 rows', 'h.*.attn.c_attn.bias: 48-95 of 144', 'input 0: positions 33-65 of row 2'. Positions that a
    mask hides are listed as 'masked by input 1'; a test should leave nothing else in the list. Axis 0 of an input is taken for
    the batch, axis 1 for positions, the last axis for a mask's positions. An id is changed to other ids that occur. The check
    takes one backward pass, and a forward pass for each position of a mask; the model is not changed. InputError if no number
    of the output is finite.
    """
    base = Unperturbed(torch_model, inputs, call)
    proven, covered = base.gradients()
    found = say_parameters(uncovered_parameters(base, proven), list(proven))
    for i, positions in enumerate(covered):
        found += uncovered_inputs(base, i, positions)
    return found


def uncovered_parameters(base: Unperturbed, proven: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return masks of parameter entries that may have any value: whole tensors, rows and columns, and single entries of
    vectors."""
    suspects = {name: whole_slices(np.asarray(~entries)) for name, entries in proven.items()}
    suspects = {name: entries for name, entries in suspects.items() if entries.any()}
    if not is_covered(base, suspects):
        return suspects
    return {name: entries for name, entries in suspects.items() if not is_covered(base, {name: entries})}


def whole_slices(entries: np.ndarray) -> np.ndarray:
    """Return the entries of a matrix that fill a row or a column: single entries without a gradient are chance."""
    if entries.ndim < 2:
        return entries
    rows = entries.all(axis=tuple(range(1, entries.ndim)), keepdims=True)
    columns = entries.all(axis=(0, *range(2, entries.ndim)), keepdims=True)
    return np.broadcast_to(rows | columns, entries.shape)


def is_covered(base: Unperturbed, changes: dict[str, np.ndarray]) -> bool:
    """True if new values of these entries, all changed at once, change the output."""
    import torch

    if not changes:
        return False
    rng, parameters = np.random.default_rng(1), dict(base.model.named_parameters())
    before = {name: parameters[name].detach().clone() for name in changes}
    with torch.no_grad():
        for name, entries in changes.items():
            noise = torch.from_numpy(size(before[name]) * rng.standard_normal(int(entries.sum())))
            device = before[name].device
            parameters[name][torch.from_numpy(entries.copy()).to(device)] += noise.to(device)
        found = bool(base.changed_rows(base.inputs).any())
        for name, values in before.items():
            parameters[name].copy_(values)
    return found


def uncovered_inputs(base: Unperturbed, i: int, covered: np.ndarray) -> list[str]:
    """Describe the rows and positions of one input that do not matter, and whether their order does; `covered` ones are proven
    to matter."""
    import torch

    tensor = base.inputs[i]
    integers = not tensor.is_floating_point() and tensor.dtype != torch.bool
    if integers and bool((tensor == tensor.ravel()[:1]).all()):
        return [f"input {i}: holds {int(tensor.ravel()[0])} alone"] if tensor.numel() else []
    found = uncovered_positions(base, i, covered)
    phrases = say_positions(f"input {i}", found, hidden_by(base, i, found))
    if integers and not found.all() and not order_counts(base, i, found):
        phrases.append(f"input {i}: the order of neighbours")
    return phrases


def uncovered_positions(base: Unperturbed, i: int, covered: np.ndarray) -> np.ndarray:
    """Return the mask of the positions not yet `covered` whose change has no effect."""
    found = ~covered
    if not found.any():
        return found
    independent, undecided = rows_independent(base, i), found
    if covered.any():  # try all at once, but not for a mask: hiding everything may hide nothing
        rows = base.changed_rows(changed(base, i, found))
        undecided = found & (rows[:, None] if independent else rows.any())
    changes = covered_alone(base, i, undecided, 1, independent)
    if not independent:
        changes &= covered_alone(base, i, undecided, 0, independent)
    return found & ~changes


def covered_alone(base: Unperturbed, i: int, positions: np.ndarray, axis: int, independent: bool) -> np.ndarray:
    """Return the mask of the positions that change the output when each column (`axis` 1) or row (`axis` 0) is changed alone;
    row by row if rows are independent."""
    covered = np.zeros_like(positions)
    for number in np.flatnonzero(positions.any(1 - axis)):
        entries = positions & (np.indices(positions.shape)[axis] == number)
        rows = base.changed_rows(changed(base, i, entries))
        covered |= entries & (rows[:, None] if independent else rows.any())
    return covered


def rows_independent(base: Unperturbed, i: int) -> bool:
    """True if each row of the output depends on the same row of the input alone."""
    shape = grid(base.inputs[i])
    if shape[0] != len(base.reference):
        return False
    return not base.changed_rows(changed(base, i, np.arange(shape[0])[:, None] == np.zeros(shape, int)))[1:].any()


def changed(base: Unperturbed, i: int, positions: np.ndarray) -> list[Any]:
    """Return the inputs with other values at these rows and positions of input i: booleans inverted, ids replaced by another id
    that occurs, floats with noise added."""
    import torch

    tensor = base.inputs[i]
    where = torch.from_numpy(positions).to(tensor.device).reshape(spread(tensor)).expand(tensor.shape)
    if tensor.dtype == torch.bool:
        other = ~tensor
    elif tensor.is_floating_point():
        noise = np.random.default_rng(2).standard_normal(tuple(tensor.shape))
        other = tensor + size(tensor) * torch.from_numpy(noise).to(tensor.device)
    else:
        values, place = torch.unique(tensor, return_inverse=True)
        other = values[(place + 1) % len(values)]
    return [torch.where(where, other, tensor) if j == i else given for j, given in enumerate(base.inputs)]


def order_counts(base: Unperturbed, i: int, not_covered: np.ndarray) -> bool:
    """True if swapping two neighbours with different ids does more than swap their places in the output."""
    if base.inputs[i].ndim != 2:
        return True
    ids = host(base.inputs[i])
    swapped, places = base.inputs[i].clone(), np.tile(np.arange(ids.shape[1]), (len(ids), 1))
    for row, (values, skipped) in enumerate(zip(ids, not_covered, strict=True)):
        pairs = np.flatnonzero((values[1:] != values[:-1]) & ~skipped[1:] & ~skipped[:-1])
        if pairs.size:
            places[row, pairs[0] + np.arange(2)] = pairs[0] + np.arange(2)[::-1]
            swapped[row] = base.inputs[i][row, places[row]]
    tried = (places != np.arange(ids.shape[1])).any(1)
    inputs, shape = [swapped if j == i else given for j, given in enumerate(base.inputs)], base.reference.shape
    rows = base.changed_rows(inputs)
    if shape[:2] == ids.shape:
        back = places.reshape(*ids.shape, *[1] * (len(shape) - 2))
        rows &= base.changed_rows(inputs, lambda output: np.take_along_axis(output, back, 1))
    return not tried.any() or bool(rows[tried].all() if len(rows) == len(tried) else rows.any())


def hidden_by(base: Unperturbed, i: int, not_covered: np.ndarray) -> tuple[np.ndarray, str]:
    """Return the mask of positions that a mask among the inputs hides, if all of them are not covered, and the name of that
    input."""
    for j, tensor in enumerate(base.inputs):
        values = host(tensor)
        if j != i and not tensor.is_floating_point() and grid(tensor)[0] == len(not_covered) and len(np.unique(values)) == 2:
            last = values.shape[-1] if values.ndim > 1 else 1
            marked = (values != values.min()).reshape(len(not_covered), -1, last)
            for hidden in (~marked.any(1), marked.all(1)):
                if hidden.shape == not_covered.shape and hidden.any() and not (hidden & ~not_covered).any():
                    return hidden, f"input {j}"
    return np.zeros_like(not_covered), ""


def unread_by_torch(names: Iterable[str], reference: Reference) -> Iterator[str]:
    """Yield those of the named parameters that torch's output does not depend on; none if torch's model is not available."""
    import torch

    if (source := reference.source) is None:
        return
    model, tensors = copy.deepcopy(source.module).double().eval(), tensors_of(reference.inputs, torch.float64)
    parameters = dict(model.named_parameters())
    with torch.no_grad(), torch_float64(), without_fast_path():
        usual = host(side_by_side(source.call(model, *tensors)))
        for name in names:
            before = parameters[name].clone()
            parameters[name].fill_(torch.nan)
            if np.array_equal(usual, host(side_by_side(source.call(model, *tensors))), equal_nan=True):
                yield name
            parameters[name].copy_(before)
