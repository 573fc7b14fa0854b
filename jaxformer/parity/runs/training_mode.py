"""The JAX model in training mode: with torch's numbers for what it draws, and its running statistics as values of the run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import update_wrapper
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import PyTree

from jaxformer.parity.numerics.float32_tables import Tables
from jaxformer.parity.numerics.float64 import inputs_float64, jax_float64, to_float64
from jaxformer.parity.numerics.metrics import TOLERANCES, distance
from jaxformer.parity.pairing.buffers import pair_statistics, path_of
from jaxformer.parity.pairing.draws import DrawPairs, pair_draws
from jaxformer.parity.pairing.modules import numbered_stacks, parameter_pairs
from jaxformer.parity.runs.load_weights import Candidate, float64_run, ready
from jaxformer.parity.trace.call_records import arrays_in
from jaxformer.parity.trace.call_sites import Site, last, parent
from jaxformer.parity.trace.draws import DROPOUT, Draw, fed_draws, seen_draws
from jaxformer.parity.trace.host_draws import jax_draws
from jaxformer.parity.trace.jax_hooks import UNTRACEABLE, tap, watch_jax
from jaxformer.parity.trace.outputs import state_behind
from jaxformer.parity.trace.reference import Call, Reference, saying
from jaxformer.parity.trace.transformations import written_out
from jaxformer.pytree import named_leaves

DRAW = "(draw)"
"""What a draw is called below the module that draws."""


class InTraining:
    """A call of the JAX model in training mode; an NNX module is put in it, other models are told by the call itself.

    The call gives its output, or, as Linen's `apply` with `mutable` does, that and a tree of what has changed.
    """

    def __init__(self, call: Call, draws: DrawPairs | None = None, statistics: Mapping[str, str] | None = None):
        self.call, self.statistics = call, statistics or {}
        self.numbers = draws.numbers() if draws else []
        update_wrapper(self, call)

    def __call__(self, model: PyTree, *inputs: Any) -> Any:
        with written_out(), fed_draws(self.numbers):
            output = self.call(ready(model, training=True), *inputs)
        output, state = with_state(output, model)
        for name, leaf in state.items():
            if (path := path_of(name, model)) in self.statistics:
                tap(path, leaf)
        return output


def with_state(output: Any, model: PyTree) -> tuple[Any, dict[str, Any]]:
    """The output of a call, and the model's leaves after it by name; none where the call does not tell them."""
    before = named_leaves(model)
    if isinstance(model, nnx.Module):
        return output, before
    found = state_behind(output, model)
    return (output[0], before | found) if found else (output, {})


def with_training(candidate: Candidate, reference: Reference) -> Candidate:
    """The candidate in training mode: its draws and its running statistics are paired with torch's."""
    tables = Tables(candidate.tables)
    with jax_float64(tables), saying("jax in float64"):
        model = ready(to_float64(candidate.like), training=False)
        draws, unseen = draws_of(model, candidate.call, inputs_float64(reference.inputs))
    stacks = numbered_stacks(each.path for each in draws)
    parameters = parameter_pairs(candidate.like, candidate.family, stacks)
    found = as_output_tells(pair_draws(reference.draws or (), draws, parameters, unseen), candidate, reference)
    buffers = {site.path: record.output[0].shape for site, record in reference.calls.items() if is_statistic(site, reference)}
    constants = candidate.family.constants
    statistics = pair_statistics(buffers, candidate.like, constants, parameters)
    return replace(candidate, call=InTraining(candidate.call, found, statistics), draws=found, statistics=statistics)


def as_output_tells(draws: DrawPairs, candidate: Candidate, reference: Reference) -> DrawPairs:
    """The reading of torch's numbers under which jax's output is torch's, or points where it does: a wrong rate is a factor."""
    readings = list(draws.readings())
    if len(readings) == 1:
        return draws
    gaps: list[tuple[float, float]] = []
    with jax_float64(Tables(candidate.tables)):
        for each in readings:
            model, run = float64_run(candidate.like, candidate.family, reference, InTraining(candidate.call, each))
            try:
                output = run(model)
                gaps.append((angle(output, reference.output), distance(output, reference.output)))
            except Exception:  # the run itself will tell why
                return draws
            if gaps[-1][1] <= TOLERANCES["activation"][0]:
                return each
    return readings[gaps.index(min(gaps))]


def angle(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Between two arrays, in radians to six digits; the largest one where numbers are not finite."""
    if ours.shape != theirs.shape:
        return np.pi
    with np.errstate(all="ignore"):
        cosine = (ours * theirs).sum() / (np.linalg.norm(ours) * np.linalg.norm(theirs))
    return round(float(np.arccos(np.clip(cosine, -1, 1))), 6) if np.isfinite(cosine) else np.pi


def is_statistic(site: Site, reference: Reference) -> bool:
    """Whether a call of torch's is none, but a buffer after the run."""
    return site.path in reference.buffers and not reference.calls[site].inputs


def draws_of(model: PyTree, call: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[list[Draw], list[str]]:
    """All that the JAX model draws in training mode, in its order; and the lines that draw otherwise."""
    found: list[Draw] = []
    lines: list[str] = []

    def run(model: PyTree, *inputs: Any) -> Any:
        found.clear()
        paths = _Paths()

        def seen(kind: str, keep: float, value: Any, line: str) -> Any:
            tap(DRAW, value)
            path = paths.found[-1]
            number = sum(each.path == path for each in found)
            found.append(Draw(path, kind, tuple(value.shape), number, keep, line))
            return jnp.ones_like(value) if kind == DROPOUT else jnp.zeros_like(value)

        with watch_jax(ready(model, training=True), paths), written_out(), seen_draws(seen), jax_draws() as places:
            output = arrays_in(call(model, *inputs))
        lines[:] = places
        return output

    try:
        jax.eval_shape(run, model, *inputs)
    except UNTRACEABLE:
        run(jax.tree.map(lambda leaf: leaf, model), *inputs)
    return found, list(dict.fromkeys(line for line in lines if line not in {draw.line for draw in found}))


class _Paths:
    """Notes in which modules draws are."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return arguments

    def leave(self, site: Site, output: Any) -> Any:
        if last(site.path) == DRAW:
            self.found.append(parent(site.path))
        return output
