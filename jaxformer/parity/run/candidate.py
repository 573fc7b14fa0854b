"""The JAX side of a comparison."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jaxtyping import PyTree

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family, to_jax
from jaxformer.parity.match.draw_pairs import DrawPairs
from jaxformer.parity.match.one_sided import OneSided
from jaxformer.parity.record.reference import Call, Reference, apply
from jaxformer.parity.record.torch_state import Arrays
from jaxformer.parity.run.load_weights import ready


@dataclass(frozen=True)
class Candidate:
    """The JAX side: a module, possibly abstract, whose weights come from the reference."""

    like: PyTree
    call: Call = apply
    family: Family = TWIN
    tables: Arrays = field(default_factory=dict)
    """torch's buffers that the JAX model holds none of, by name: its code may compute them."""
    alone: tuple[OneSided, ...] = ()
    """Parameters that one side does not have."""
    draws: DrawPairs | None = None
    """In training mode: what both sides draw."""
    statistics: Mapping[str, str] = field(default_factory=dict)
    """In training mode: jax's running statistics -> torch's."""

    def model(self, reference: Reference) -> PyTree:
        """The module with the reference's weights, in inference mode."""
        return ready(to_jax(reference.weights, self.like, self.family), training=False)


def without_absent(reference: Reference, rules: Family) -> Reference:
    """The reference without the weights that the JAX model leaves out."""
    weights, gradients = (
        {name: array for name, array in arrays.items() if rules.why_ignored(name) is None}
        for arrays in (reference.weights, reference.gradients)
    )
    return replace(reference, weights=weights, gradients=gradients)
