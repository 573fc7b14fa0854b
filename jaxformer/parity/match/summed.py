"""JAX tensors that hold the sum of two of torch's: the one bias of an LSTM whose torch module has two."""

from itertools import combinations

from jaxformer.convert.axes import Join, sum_of
from jaxformer.convert.layouts import fingerprint
from jaxformer.parity.capture.module_paths import parent
from jaxformer.parity.match.candidates import Assignment
from jaxformer.parity.match.joined import template_of
from jaxformer.parity.match.parted import is_whole, match_parted


def match_summed(known: Assignment) -> None:
    """Note sums, whole or in parts, of free tensors that lie beside each other."""
    free = [(it.name, known.array(it)) for it in known.tensors()] if known.open() else []
    beside = [
        (one, other)
        for (one, its), (other, others) in combinations(free, 2)
        if parent(one) == parent(other) and its.shape == others.shape and its.dtype == others.dtype
    ]
    added = {}
    for names in beside:
        template, parts = template_of(names)
        name = template.replace("{part}", "+".join(parts))
        total = sum_of([known.torch[it] for it in names])
        if not fingerprint(total).constant:  # one number everywhere says nothing
            known.torch[name], known.joins[name], added[name] = total, (template, Join(parts, summed=True)), names
    known.resolve()
    match_parted(known)
    for name, names in added.items():
        if is_whole(known, name):
            for it in names:
                known.used[it] |= known.used[name]
        else:
            del known.torch[name], known.joins[name]
