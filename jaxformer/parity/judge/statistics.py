"""Running statistics after a call in training mode."""

from dataclasses import replace

from jaxformer.parity.capture.call_sites import Site
from jaxformer.parity.capture.module_paths import parent
from jaxformer.parity.report.data import Module
from jaxformer.parity.run.trace import Traced


def without_later(rows: list[Module], traced: Traced) -> list[Module]:
    """The table's rows. Statistics of a norm that is not seen by itself in jax differ wherever anything before it does: they
    diverge only for a known cause, or where nothing else diverges."""
    seen = {other.path for other in traced.pairs.values()}
    hidden = {other.path for other in traced.pairs.values() if is_hidden(other, seen, traced)}
    if not any(row.diverging and row.torch not in hidden for row in rows):
        return rows
    return [replace(row, diverging=False) if row.torch in hidden and not row.cause else row for row in rows]


def is_hidden(site: Site, seen: set[str], traced: Traced) -> bool:
    """Whether torch's array is a buffer of a module that jax has no call of."""
    return site.path in traced.reference.buffers and parent(site.path) not in seen
