"""What several checks say of modules."""

from jaxformer.parity.capture.call_sites import CALL
from jaxformer.parity.report.data import Module
from jaxformer.parity.run.trace import over


def count_diverging(diverging: list[Module], rows: list[Module]) -> str:
    """'3 of 32 modules diverge'; work around the modules is the call's, which is not one of them."""
    modules = [row for row in rows if row.jax != CALL.path]
    named = [row for row in modules if row in diverging]
    if not modules:
        return f"{CALL.path} diverges"
    if len(named) < len(diverging):
        return f"{CALL.path} diverges, and {len(named)} of {len(modules)} modules"
    return f"{len(named)} of {len(modules)} modules {'diverges' if len(named) == 1 else 'diverge'}"


def first_diverging(rows: list[Module]) -> str:
    """The first module, in torch's order, whose own code gives other values, or else sends back other gradients."""
    diverging = [row for row in rows if row.diverging]
    for row in diverging:
        if over(row.local, "activation"):
            tolerance = row.local.allowed("activation")[0]
            return f"first at {row.name} (local {row.local.relative:.1e}, tolerance {tolerance:.0e})"
    for row in diverging:
        if row.local_gradient is not None and over(row.local_gradient, "gradient"):
            tolerance = row.local_gradient.allowed("gradient")[1]
            return f"first at {row.name} (local gradient {row.local_gradient.peak:.1e}, tolerance {tolerance:.0e})"
    return "no module's own code differs: what is between them does"
