"""Explain a difference by what devices of a mesh exchange: changes of jax's own program inside of its shard_maps.

Collectives, specifications, and what devices take from their own parts alone are changed, one thing at a time, until jax's
whole program gives torch's output. Such a change is exact: it says what is wrong, along which axis of the mesh and on which
line. If none is found, axes get one device each: where jax then gives torch's arrays, the mistake is somewhere along that axis.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from jaxformer.parity.diagnose.diagnosis import Diagnosis, plain
from jaxformer.parity.diagnose.mesh_repairs import repairs
from jaxformer.parity.diagnose.mutation import Change
from jaxformer.parity.numerics.float64 import jax_float64
from jaxformer.parity.numerics.metrics import EXPLAINED, distance
from jaxformer.parity.runs.session import Budget
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import CALL
from jaxformer.parity.trace.collectives import Edit, Seen, edited
from jaxformer.parity.trace.outputs import several
from jaxformer.parity.trace.reference import REFUSALS
from jaxformer.parity.trace.transformations import written_out

SHARD_MAP = "shard_map"
REPAIRED = Change("mesh.repaired", "along axis '{axis}' of the mesh, {what}{line}", torch="")
AXIS = Change(
    "mesh.axis", "with one device along {which} of the mesh, jax gives torch's arrays: the mistake is along it", torch=""
)
COST = 2_000
"""Operations of torch's code that one run of jax's program counts as."""


def explain_mesh(traced: Traced, *, anyway: bool) -> Diagnosis:
    """Explain why jax's output is not torch's.

    Empty if the program has no shard_map, or no change of one gives torch's whole output; without `anyway`, also if the program
    is wrong on one device too: the fault is elsewhere, or the code counts on the mesh's size.
    """
    if not any(each.startswith(SHARD_MAP) for each in traced.normal_run.unopened):
        return Diagnosis()
    program = Program(traced)
    with Budget(traced.session) as budget:
        if not EXPLAINED < program.residual(Edit()) < np.inf:
            return Diagnosis()
        seen = program.seen.without_twins()
        if not anyway and EXPLAINED < program.residual(Edit(single=frozenset(seen.sizes))) < np.inf:
            return Diagnosis()
        for repair in repairs(seen):
            budget.spend(COST)
            budget.tried += 1
            if budget.is_spent:
                break
            if (residual := program.residual(repair.edit)) <= EXPLAINED:
                found = plain(REPAIRED, residual, axis=repair.axis, what=repair.what, line=f" ({repair.line})")
                return Diagnosis((found,), tried=budget.tried)
        for edit in singles(seen.sizes):
            if program.residual(edit) <= EXPLAINED:
                which = f"ax{'is' if len(edit.single) == 1 else 'es'} {' and '.join(map(repr, sorted(edit.single)))}"
                return Diagnosis((plain(AXIS, which=which),), tried=budget.tried)
    return Diagnosis(tried=budget.tried)


@dataclass
class Program:
    """The JAX program of a comparison."""

    traced: Traced
    seen: Seen = field(default_factory=Seen)
    """Parts of its shard_maps in the last run."""

    def residual(self, edit: Edit) -> float:
        """Largest relL2 of the changed program's outputs; infinite if it cannot run, or gives other shapes."""
        isolation, torch = self.traced.isolation, self.traced.reference.calls[CALL].output
        try:
            with jax_float64(self.traced.tables), written_out(), edited(edit) as self.seen:
                jax = several(isolation.call(isolation.model, *isolation.inputs), "call_jax", isolation.call)
            pairs = [(np.asarray(array), other) for array, other in zip(jax, torch, strict=True)]
        except (*REFUSALS, TypeError):  # the user's code may count on what was changed
            return np.inf
        return max(distance(array, other) if array.shape == other.shape else np.inf for array, other in pairs)


def singles(axes: Iterable[str]) -> Iterator[Edit]:
    """Yield changes that give one device to one axis, then to two, ..."""
    several = [*axes]
    for many in range(1, len(several) + 1):
        yield from (Edit(single=frozenset(some)) for some in combinations(several, many))
