"""Gradients that differ although no module's values do, and without a cause in one module: those of code between taps, which no
module shows, and of what a module's children are given. The backward pass of torch's whole call is searched for a gradient that
stops, and then for other code with the same values."""

from dataclasses import replace

from jaxformer.parity.diagnose.explainers import diagnosed
from jaxformer.parity.diagnose.replays import backward_of_call, replay_of_values
from jaxformer.parity.numerics.metrics import error, over
from jaxformer.parity.report.data import Module
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import CALL

WHAT = "gradients of all weights and inputs"


def with_code_between(traced: Traced, rows: list[Module]) -> list[Module]:
    """Return the rows of a table in which gradients differ. If values do not, and no row has a cause, the rows that diverge get
    the cause of the gradients of all weights in the code of the call; the call alone diverges where no row does."""
    told = any(row.diverging and (row.cause or over(row.local, "activation")) for row in rows)
    if told or traced.reference.source is None:
        return rows
    from jaxformer.parity.diagnose.backward import explain_stopped
    from jaxformer.parity.diagnose.equal_values import explain_equal_values

    backward = backward_of_call(traced)
    cause = diagnosed(traced.session, lambda: explain_stopped(backward, traced.session))
    searched = any(row.diverging and row.jax == str(CALL) for row in rows)
    if not cause and not searched and (values := replay_of_values(traced, CALL)):
        cause = diagnosed(traced.session, lambda: explain_equal_values(values, backward, traced.session))
    if not cause:
        return rows
    rows = rows if any(row.diverging for row in rows) else [replace(row, diverging=row.jax == str(CALL)) for row in rows]
    own, off = {"cause": str(cause), "causes": cause.causes(WHAT), "what": WHAT}, error(backward.jax, backward.torch)
    return [replace(row, **own, local_gradient=row.local_gradient or off) if row.diverging else row for row in rows]
