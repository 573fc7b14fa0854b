"""What several checks say of modules."""

from collections import Counter

from jaxformer.parity.capture.call_sites import CALL
from jaxformer.parity.numerics.metrics import over
from jaxformer.parity.report.data import Module


def count_diverging(diverging: list[Module], rows: list[Module]) -> str:
    """'3 of 32 modules diverge'; work around the modules is the call's, which is not one of them."""
    modules = [row for row in rows if row.jax != CALL.path]
    named = [row for row in modules if row in diverging]
    if not modules:
        return f"{CALL.path} diverges"
    if len(named) < len(diverging):
        return f"{CALL.path} diverges, and {len(named)} of {len(modules)} modules"
    return f"{len(named)} of {len(modules)} modules {'diverges' if len(named) == 1 else 'diverge'}"


def not_accused(rows: list[Module]) -> list[str]:
    """'2 behind ln.0 differ too, and may be right', of taps whose inputs are not seen."""
    firsts = Counter(row.behind for row in rows if row.behind)
    return [f"{n} behind {first} {'differs' if n == 1 else 'differ'} too, and may be right" for first, n in firsts.items()]


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
    if any(over(row.propagated, "activation") for row in rows):
        return "no module's own code differs: what is between them does"
    return first_on_the_way_back(rows)


def first_on_the_way_back(rows: list[Module]) -> str:
    """Between which modules gradients of equal values begin to differ. That is all that is known of taps: they show what a
    function gives, and not what it is given, so that its own code is not judged on the way back."""
    judged = [(row.name, row.gradient) for row in rows if row.gradient is not None]
    wrong = max((i for i, (_, gradient) in enumerate(judged) if over(gradient, "gradient")), default=-1)
    said = [f"are equal down to what {name} gives" for name, _ in judged[wrong + 1 :][:1]]
    for name, gradient in judged[: wrong + 1][-1:]:
        tolerance = gradient.allowed("gradient")[1]
        said.append(f"differ at what {name} gives (max/rms {gradient.peak:.1e}, tolerance {tolerance:.0e})")
    return f"on the way back, gradients {', and '.join(said)}" if said else "no module's own code was seen to differ"
