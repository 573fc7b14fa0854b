"""Rows of weights that JAX holds in another order than torch, such as rotary pairs side by side in place of half and half.

JAX's code may expect them in that order. torch's outputs of such modules are then given to it, and compared, in JAX's order, so
that these modules do not differ because of a difference elsewhere."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jaxformer.convert.axes import WHOLE
from jaxformer.convert.rules import Rule, weights_of
from jaxformer.parity.numerics.float64 import jax_float64
from jaxformer.parity.numerics.metrics import over
from jaxformer.parity.runs.trace import WHERE, Traced
from jaxformer.parity.trace.call_records import Record
from jaxformer.parity.trace.call_sites import CALL, Site, parent
from jaxformer.parity.trace.reference import saying


def with_permuted_rows(traced: Traced) -> Traced:
    """Return the runs, module by module, with torch's outputs in the order of JAX's rows.

    They are kept if fewer modules then differ, and none differs more; a model that gives torch's output needs none.
    """
    outcome = traced.normal[CALL]
    rows = permuted_rows(traced) if outcome is not None and over(outcome, "activation") else {}
    if not rows or not traced.isolated.mismatches:
        return traced
    calls = {site: in_rows(record, rows.get(site.path)) for site, record in traced.reference.calls.items()}
    isolation = replace(traced.isolation, calls=calls)
    isolated = jax_float64(traced.tables)(saying(WHERE)(isolation.run))(traced.isolated.orders)
    reference = replace(traced.reference, calls=calls)
    permuted = replace(traced, reference=reference, isolation=isolation, isolated=isolated)
    before, after = errors_by_owner(traced), errors_by_owner(permuted)
    fewer = len(after) < len(before) and all(after[owner] <= before.get(owner, 0.0) for owner in after)
    return permuted if fewer else traced


def errors_by_owner(traced: Traced) -> dict[Site, float]:
    """Largest relL2 of what each diverging module's own code makes of torch's arrays."""
    found = defaultdict[Site, float](float)
    for error, mismatch in traced.values:
        if over(error, "activation"):
            found[mismatch.owner] = max(found[mismatch.owner], error.relative)
    return found


def permuted_rows(traced: Traced) -> dict[str, np.ndarray]:
    """torch's modules all of whose tensors JAX holds with their rows in one other order -> that order."""
    family, weights, sizes = traced.rules, traced.reference.by_all_names, traced.rules.sizes_for(traced.model)
    orders = defaultdict[str, list[np.ndarray | None]](list)
    for name, leaf in weights_of(traced.model, family).items():
        rule = family.rule(name)
        for torch in family.torch_names(name, leaf.shape[0] if family.stacked(name) else 1):
            orders[parent(torch)].append(order_of_rows(rule, weights[torch].shape, sizes))
    return {path: first for path, (first, *more) in orders.items() if first is not None and all_equal(first, more)}


def all_equal(first: np.ndarray, more: list[np.ndarray | None]) -> bool:
    """True if all orders are the first one."""
    return all(each is not None and np.array_equal(each, first) for each in more)


def order_of_rows(rule: Rule, shape: tuple[int, ...], sizes: Mapping[str, int]) -> np.ndarray | None:
    """Order in which JAX's tensor holds the rows of torch's; None if that is their own, or no single axis has them."""
    if rule.join or rule.part != WHOLE or rule.layout in ("same", "transposed") or not shape:
        return None
    numbers = np.broadcast_to(np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)), shape)
    jax = rule.to_jax(numbers, sizes)
    for axis in (axis for axis, size in enumerate(jax.shape) if size == shape[0]):
        order = np.moveaxis(jax, axis, 0).reshape(shape[0], -1)
        if (order == order[:, :1]).all() and len({*order[:, 0].tolist()}) == shape[0]:
            return None if (order[:, 0] == np.arange(shape[0])).all() else order[:, 0]
    return None


def in_rows(record: Record, rows: np.ndarray | None) -> Record:
    """Return a record whose outputs, and their gradients, have their last axis in this order."""
    if rows is None:
        return record

    def ordered(array: np.ndarray | None) -> np.ndarray | None:
        return array[..., rows] if array is not None and array.shape[-1:] == rows.shape else array

    output, back = (tuple(map(ordered, arrays)) for arrays in (record.output, record.output_gradients))
    return replace(record, output=output, output_gradients=back)
