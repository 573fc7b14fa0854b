"""Coverage of a run: parameters, positions and masks that its output does not depend on."""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import host
from jaxformer.parity.report.summarize import say_parameters, say_positions
from jaxformer.parity.trace.baseline import Baseline, changed, grid, size
from jaxformer.parity.trace.outputs import side_by_side
from jaxformer.parity.trace.perturb import Unperturbed
from jaxformer.parity.trace.reference import Reference, apply, tensors_of
from jaxformer.parity.trace.torch_hooks import without_fast_path

BLOCKS = 64
"""Number of forward passes up to which every row or column of an input is changed alone."""


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
    rng, parameters = np.random.default_rng(1), dict(base.torch.model.named_parameters())
    before = {name: parameters[name].detach().clone() for name in changes}
    with torch.no_grad():
        for name, entries in changes.items():
            noise = torch.from_numpy(size(host(before[name])) * rng.standard_normal(int(entries.sum())))
            device = before[name].device
            parameters[name][torch.from_numpy(entries.copy()).to(device)] += noise.to(device)
        found = bool(base.changed_rows(base.inputs).any())
        for name, values in before.items():
            parameters[name].copy_(values)
    return found


def uncovered_inputs(base: Baseline, i: int, covered: np.ndarray) -> list[str]:
    """Describe the rows and positions of one input that do not matter, and whether their order does; `covered` ones are proven
    to matter."""
    array = base.inputs[i]
    integers = array.dtype.kind in "iu"
    if integers and bool((array == array.ravel()[:1]).all()):
        return [f"input {i}: holds {int(array.ravel()[0])} alone"] if array.size else []
    found = uncovered_positions(base, i, covered)
    phrases = say_positions(f"input {i}", found, hidden_by(base, i, found))
    if integers and not found.all() and not order_counts(base, i, found):
        phrases.append(f"input {i}: the order of neighbours")
    return phrases


def uncovered_positions(base: Baseline, i: int, covered: np.ndarray) -> np.ndarray:
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


def covered_alone(base: Baseline, i: int, positions: np.ndarray, axis: int, independent: bool) -> np.ndarray:
    """Return the mask of the positions that change the output when each column (`axis` 1) or row (`axis` 0) is changed alone;
    row by row if rows are independent.

    More than BLOCKS columns are changed in blocks of neighbours, and in blocks of every so many; a position in a block of
    either kind without effect is not covered, and those beside one are tried one by one. A single one among others is missed.
    """
    numbers = np.flatnonzero(positions.any(1 - axis))

    def tried(some: Any) -> np.ndarray:
        entries = positions & np.isin(np.indices(positions.shape)[axis], some)
        rows = base.changed_rows(changed(base, i, entries))
        return entries & (rows[:, None] if independent else rows.any())

    if len(numbers) <= BLOCKS:
        return np.logical_or.reduce([np.zeros_like(positions), *(tried([number]) for number in numbers)])
    neighbours = np.array_split(numbers, BLOCKS)
    found = [tried(block) for block in neighbours]
    without = [bool((positions & ~effect).take(block, axis).any()) for block, effect in zip(neighbours, found, strict=True)]
    for n, block in enumerate(neighbours):
        if found[n].any() and any(without[max(n - 1, 0) : n + 2]):
            found[n] = np.logical_or.reduce([tried([number]) for number in block])
    spread_out = [tried(numbers[n::BLOCKS]) for n in range(BLOCKS)]
    return np.logical_or.reduce(found) & np.logical_or.reduce(spread_out)


def rows_independent(base: Baseline, i: int) -> bool:
    """True if each row of the output depends on the same row of the input alone."""
    shape = grid(base.inputs[i])
    if shape[0] != len(base.reference):
        return False
    return not base.changed_rows(changed(base, i, np.arange(shape[0])[:, None] == np.zeros(shape, int)))[1:].any()


def order_counts(base: Baseline, i: int, not_covered: np.ndarray) -> bool:
    """True if swapping two neighbours with different ids does more than swap their places in the output."""
    if base.inputs[i].ndim != 2:
        return True
    ids = base.inputs[i]
    swapped, places = ids.copy(), np.tile(np.arange(ids.shape[1]), (len(ids), 1))
    for row, (values, skipped) in enumerate(zip(ids, not_covered, strict=True)):
        pairs = np.flatnonzero((values[1:] != values[:-1]) & ~skipped[1:] & ~skipped[:-1])
        if pairs.size:
            places[row, pairs[0] + np.arange(2)] = pairs[0] + np.arange(2)[::-1]
            swapped[row] = ids[row, places[row]]
    tried = (places != np.arange(ids.shape[1])).any(1)
    inputs, shape = [swapped if j == i else given for j, given in enumerate(base.inputs)], base.reference.shape
    rows = base.changed_rows(inputs)
    if shape[:2] == ids.shape:
        back = places.reshape(*ids.shape, *[1] * (len(shape) - 2))
        rows &= base.changed_rows(inputs, lambda output: np.take_along_axis(output, back, 1))
    return not tried.any() or bool(rows[tried].all() if len(rows) == len(tried) else rows.any())


def hidden_by(base: Baseline, i: int, not_covered: np.ndarray) -> tuple[np.ndarray, str]:
    """Return the mask of positions that a mask among the inputs hides, if all of them are not covered, and the name of that
    input."""
    for j, values in enumerate(base.inputs):
        if j != i and values.dtype.kind != "f" and grid(values)[0] == len(not_covered) and len(np.unique(values)) == 2:
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
