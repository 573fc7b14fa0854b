"""Notes on modules beside their errors: draws, running statistics, unpaired calls, and outputs that change from run to run.

A model's output changes if it draws numbers on the host, counts its calls, or reads uninitialised arrays."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxformer.parity.attribute.trained_alone import row_around
from jaxformer.parity.diagnose.by_arrays.gradients import IS_ZERO, ONE_ROW
from jaxformer.parity.numerics.float64 import inputs_float64, jax_float64
from jaxformer.parity.numerics.metrics import over
from jaxformer.parity.pairing.draws import DrawPairs
from jaxformer.parity.report.data import Cause, Module
from jaxformer.parity.report.summarize import say_names
from jaxformer.parity.report.two_jax import REFERENCE
from jaxformer.parity.runs.isolated import Isolated
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_records import is_attention
from jaxformer.parity.trace.call_sites import ATTENTION, CALL, Site, last, parameters_of, parent
from jaxformer.parity.trace.outputs import side_by_side
from jaxformer.parity.trace.programs import run_once
from jaxformer.parity.trace.suspect_operations import filled_otherwise, host_draws


def reads_of_unset(traced: Traced) -> dict[Site, str]:
    """Map jax's calls whose own code reads an uninitialised array to the line that makes it.

    One pass for each line: values that are read change with the fill value; an array that is fully overwritten changes nothing.
    """
    found: dict[Site, str] = {}
    for line in dict.fromkeys(traced.normal_run.unset):
        with jax_float64(traced.tables), filled_otherwise(line):
            again = replace(traced.isolation).run(traced.isolated.orders, corrected=False)
        for site in _changed(traced.isolated, again):
            found.setdefault(site, line)
    return found


def _changed(before: Isolated, after: Isolated) -> list[Site]:
    values = {(each.owner, each.place): each.jax for each in before.mismatches}
    return [
        each.owner
        for each in after.mismatches
        if not np.array_equal(values.get((each.owner, each.place), np.nan), each.jax, equal_nan=True)
    ]


ADDRESS = re.compile(r"0x[0-9a-f]+")


def why_unsteady(traced: Traced) -> str:
    """Explain why two runs differ; '' if they do not.

    It traces the model twice, and runs it twice if something was drawn or the traces differ.
    """
    run = traced.isolation
    with jax_float64(traced.tables):
        model, inputs = run.model, inputs_float64(traced.reference.inputs)

        def fresh() -> Callable[..., Any]:
            """Return a function that JAX has not traced yet."""
            return lambda model, *inputs: side_by_side(run.call(model, *inputs))

        try:
            with host_draws(model, run.call) as places:
                first = jax.make_jaxpr(fresh())(model, *inputs)
            if not places and _is_same(first, jax.make_jaxpr(fresh())(model, *inputs)):
                return ""
            outputs = [np.asarray(run_once(fresh(), model, *inputs)[0]) for _ in range(2)]
        except Exception:  # the run itself reported why
            return ""
    if np.array_equal(*outputs, equal_nan=True):
        return ""
    if places:
        return f"it draws random numbers with numpy or random (at {places[0]})"
    drawn = [] if traced.draws else traced.normal_run.draws
    return f"it draws random numbers by another key (at {drawn[0]})" if drawn else "it counts its calls, or reads a clock"


def _is_same(program: Any, other: Any) -> bool:
    """True if two traces are the same program with the same constants."""
    one, two = (ADDRESS.sub("", str(each.jaxpr)) for each in (program, other))
    return one == two and all(map(np.array_equal, program.consts, other.consts))


def count_diverging(diverging: list[Module], rows: list[Module]) -> str:
    """Count the diverging modules: '3 of 32 modules diverge'. Work around the modules is the call's, which is not a module."""
    modules = [row for row in rows if row.jax != CALL.path]
    named = [row for row in modules if row in diverging]
    if not modules:
        return f"{CALL.path} diverges"
    if len(named) < len(diverging):
        return f"{CALL.path} diverges, and {len(named)} of {len(modules)} modules"
    return f"{len(named)} of {len(modules)} modules {'diverges' if len(named) == 1 else 'diverge'}"


def not_accused(rows: list[Module]) -> list[str]:
    """Count the taps that may differ only as a consequence, such as '2 after ln.0 differ too, and may be right'."""
    firsts = Counter(row.behind for row in rows if row.behind)
    return [f"{n} after {first} {'differs' if n == 1 else 'differ'} too, and may be right" for first, n in firsts.items()]


def first_diverging(rows: list[Module]) -> str:
    """Name the first module, in torch's order, whose own code gives other values, or else sends back other gradients."""
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
    """Name the modules between which gradients of equal values begin to differ.

    Nothing more is known of taps: their inputs are not seen, so their own code is not judged in the backward pass.
    """
    judged = [(row.name, row.gradient) for row in rows if row.gradient is not None]
    wrong = max((i for i, (_, gradient) in enumerate(judged) if over(gradient, "gradient")), default=-1)
    said = [f"are equal down to what {name} gives" for name, _ in judged[wrong + 1 :][:1]]
    for name, gradient in judged[: wrong + 1][-1:]:
        tolerance = gradient.allowed("gradient")[1]
        said.append(f"differ at what {name} gives (max/rms {gradient.peak:.1e}, tolerance {tolerance:.0e})")
    return f"on the way back, gradients {', and '.join(said)}" if said else "no module's own code was seen to differ"


def without_later(rows: list[Module], traced: Traced) -> list[Module]:
    """Clear `diverging` of statistics whose norm jax does not call by itself, unless the cause is known or nothing else
    diverges.

    Such statistics differ wherever anything before the norm differs.
    """
    seen = {other.path for other in traced.pairs.values()}
    hidden = {other.path for other in traced.pairs.values() if is_hidden(other, seen, traced)}
    if not any(row.diverging and row.torch not in hidden for row in rows):
        return rows
    return [replace(row, diverging=False) if row.torch in hidden and not row.cause else row for row in rows]


def without_padding(rows: list[Module], traced: Traced) -> list[Module]:
    """Clear `diverging` of tables whose gradients differ in torch's row of padding alone, where other modules diverge: it does
    not explain these."""
    alone = {row.jax for row in rows if row.torch in traced.reference.padding and any(map(is_of_padding, row.causes[:1]))}
    if not any(row.diverging and row.jax not in alone for row in rows):
        return rows
    return [replace(row, diverging=row.diverging and row.jax not in alone) for row in rows]


def is_of_padding(cause: Cause) -> bool:
    """True for the cause of a gradient that differs in the row of padding alone."""
    return cause.change == ONE_ROW.name or (cause.change == IS_ZERO.name and bool(cause.args["why"]))


def is_hidden(site: Site, seen: set[str], traced: Traced) -> bool:
    """True if torch's array is a buffer of a module that jax has no call of."""
    return site.path in traced.reference.buffers and parent(site.path) not in seen


def with_draws(rows: list[Module], draws: DrawPairs | None) -> list[Module]:
    """Add draws that only one side has, or at another rate, to the cause of the innermost diverging module around them."""
    said: dict[int, list[str]] = {}
    for side, path, says in draws.differences() if draws else ():
        place = row_around(rows, f"{path}.(draw)" if path else "(draw)", side == "torch")
        if rows[place].diverging:
            said.setdefault(place, []).append(says)
    return [replace(row, cause="; ".join(said.get(i, [])) or with_line(row, draws)) for i, row in enumerate(rows)]


def with_line(row: Module, draws: DrawPairs | None) -> str:
    """Cause of a row, followed by jax's line of the draw that it is about."""
    labels = {target.label for cause in row.causes for target in cause.targets}
    pairs = draws.pairs if draws else {}
    lines = [draws.jax[j].line for j, i in pairs.items() if draws and draws.torch[i].says in labels]
    return f"{row.cause}; jax has it at {lines[0]}" if lines and lines[0] else row.cause


def unsteady(traced: Traced) -> str:
    """Message that jax's output changes from run to run, and why; '' if it does not. Computed once."""
    if traced.session.unsteady is None:
        why = why_unsteady(traced)
        traced.session.unsteady = f"jax gives another output each time: {why}; take that out" if why else ""
    return traced.session.unsteady


def unset(traced: Traced, site: Site | None = None) -> str:
    """Message that this call, or any call if none is given, reads `jnp.empty`'s uninitialised values, with the line; or ''."""
    if traced.session.unset is None:
        traced.session.unset = reads_of_unset(traced)
    reads = traced.session.unset
    line = reads.get(site, "") if site is not None else next(iter(reads.values()), "")
    return line and f"jax reads jnp.empty, which is uninitialised since jax 0.11 (at {line}); use jnp.zeros"


def drawn(traced: Traced) -> str:
    """Message that jax's output changes from run to run, or that jax draws the same random numbers each time; or ''."""
    places = [] if traced.untied else traced.normal_run.draws
    both = REFERENCE in traced.reference.environment
    remedy = ": give both sides the same ones, or take them out" if both else ", which torch has not: take them out"
    same = f"jax draws random numbers (at {places[0]}){remedy}" if places else ""
    return unset(traced) or unsteady(traced) or same


def unpaired_calls(traced: Traced) -> dict[str, list[str]]:
    """Calls that only one side has, by the report's fields; none if only some calls are compared."""
    if traced.reference.left_out:
        return {"jax_only": [], "torch_only": []}
    paired, calls = set(traced.pairs.values()), traced.reference.calls
    return {
        "jax_only": [str(site) for site in traced.normal_run.outputs if site not in traced.pairs],
        "torch_only": [str(site) for site, record in calls.items() if site not in paired and not is_attention(site, record)],
    }


def unpaired_taps(traced: Traced) -> list[str]:
    """Describe jax's taps without a pair; if some are of attention, also torch's softmaxes without a pair."""
    if traced.reference.left_out:
        return []
    paired, taps = set(traced.pairs.values()), [site for site in traced.normal_run.taps if site not in traced.pairs]
    every = [str(site) for site in traced.normal_run.taps]
    said = say_names([str(site) for site in taps], every)
    if any(last(site.path) in ATTENTION for site in taps):
        shown = [str(site) for site, record in traced.reference.calls.items() if is_attention(site, record)]
        free = [str(site) for site in traced.reference.calls if str(site) in shown and site not in paired]
        said.append(f"where torch has {', '.join(say_names(free, shown)) or 'no softmax'}")
    bare = [site for site in taps if last(site.path) not in ATTENTION and not parameters_of(site.path, traced.parameters)]
    if bare:
        names = ", ".join(say_names([str(site) for site in bare], every))
        said.append(f"since no parameter of jax's is called {names}: name a tap as its parameters are named{such(traced)}")
    return said


def such(traced: Traced) -> str:
    """Example of a parameter's name, such as ", as 'layers.0.norm' is"."""
    first = next(iter(traced.parameters), "")
    return f", as '{first}' is" if first else ""
