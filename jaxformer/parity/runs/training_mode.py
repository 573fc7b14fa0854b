"""Models in training mode. torch's: its draws are repeatable, and its running statistics are recorded and restored.

The JAX model's: with torch's numbers for its draws, and with its running statistics as values of the run."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
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
from jaxformer.parity.trace.draws import DROPOUT, Draw, fed_draws, repeatable_draws, seen_draws
from jaxformer.parity.trace.jax_hooks import tap, watch_jax
from jaxformer.parity.trace.outputs import state_behind
from jaxformer.parity.trace.programs import UNTRACEABLE
from jaxformer.parity.trace.reference import Call, Reference, saying
from jaxformer.parity.trace.suspect_operations import jax_draws
from jaxformer.parity.trace.torch_hooks import record_in_torch
from jaxformer.parity.trace.transformations import written_out
from jaxformer.pytree import named_leaves

Modes = Mapping[str, bool]
"""Training mode of each module by path: True if it is trained."""


def modes_of(model: Any) -> Modes:
    """Return the modes of a model in training mode, so that modules that the user keeps in inference mode stay in it; all True
    for a model in inference mode."""
    return {path: module.training or not model.training for path, module in model.named_modules()}


class TorchInTraining:
    """Call in training mode: each run has the same draws, and begins with the same buffers."""

    def __init__(self, call: Call, model: Any):
        self.call, self.modes = call, modes_of(model)
        self.draws: tuple[Draw, ...] = ()
        """Draws of the last run."""
        update_wrapper(self, call)

    def __call__(self, model: Any, *inputs: Any) -> Any:
        with self.inside(model) as draws:
            output = self.call(model, *inputs)
        self.draws = tuple(draws)
        return output

    def inside(self, model: Any) -> AbstractContextManager[list[Draw]]:
        """Return a context manager in which the model, or a part of it, runs as in this call."""
        return training(model, self.modes)


@contextmanager
def training(model: Any, modes: Modes) -> Iterator[list[Draw]]:
    """Run a model in training mode, recording its draws.

    Its running statistics are recorded as if a module of their name returned them, and then restored.
    """
    before = {path: module.training for path, module in model.named_modules()}
    buffers = {module: dict(module._buffers) for module in model.modules()}
    for path, module in model.named_modules():
        module.training = modes.get(path, True)
        module._buffers.update({name: None if b is None else b.clone() for name, b in module._buffers.items()})
    try:
        with repeatable_draws(model) as draws:
            yield draws
        for name, value in statistics(model, buffers).items():
            record_in_torch(name, value)
    finally:
        for path, module in model.named_modules():
            module.training = before[path]
            module._buffers.update(buffers.get(module, {}))


def statistics(model: Any, before: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the float buffers of one or more axes that a run changes, and the running statistics of norms, changed or not."""
    found = {}
    for path, module in model.named_modules():
        for name, value in module._buffers.items():
            if value is None or not value.is_floating_point() or not value.ndim:
                continue
            old = before.get(module, {}).get(name)
            is_new = old is not None and (old.shape != value.shape or not old.equal(value))
            if is_new or name in ("running_mean", "running_var"):
                found[f"{path}.{name}" if path else name] = value.detach()
    return found


DRAW = "(draw)"
"""Name of a draw inside the module that draws."""


class JaxInTraining:
    """Call of the JAX model in training mode, into which an NNX module is put; for other models the call itself sets the mode.

    The call returns its output, or, like Linen's `apply` with `mutable`, the output and a tree of updated arrays.
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
    """Return the output of a call, and the model's leaves after it by name; no leaves if the call does not return them."""
    before = named_leaves(model)
    if isinstance(model, nnx.Module):
        return output, before
    found = state_behind(output, model)
    return (output[0], before | found) if found else (output, {})


def with_training(candidate: Candidate, reference: Reference) -> Candidate:
    """Return the candidate in training mode, with its draws and its running statistics paired with torch's."""
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
    return replace(candidate, call=JaxInTraining(candidate.call, found, statistics), draws=found, statistics=statistics)


def as_output_tells(draws: DrawPairs, candidate: Candidate, reference: Reference) -> DrawPairs:
    """Choose the reading of torch's numbers under which jax's output equals torch's, or else has the most similar direction.

    The direction decides, because a wrong dropout rate only scales the output.
    """
    readings = list(draws.readings())
    if len(readings) == 1:
        return draws
    gaps: list[tuple[float, float]] = []
    with jax_float64(Tables(candidate.tables)):
        for each in readings:
            model, run = float64_run(candidate.like, candidate.family, reference, JaxInTraining(candidate.call, each))
            try:
                output = run(model)
                gaps.append((angle(output, reference.output), distance(output, reference.output)))
            except Exception:  # the run itself will report why
                return draws
            if gaps[-1][1] <= TOLERANCES["activation"][0]:
                return each
    return readings[gaps.index(min(gaps))]


def angle(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Angle between two arrays, in radians to six digits; pi if numbers are not finite."""
    if ours.shape != theirs.shape:
        return np.pi
    with np.errstate(all="ignore"):
        cosine = (ours * theirs).sum() / (np.linalg.norm(ours) * np.linalg.norm(theirs))
    return round(float(np.arccos(np.clip(cosine, -1, 1))), 6) if np.isfinite(cosine) else np.pi


def is_statistic(site: Site, reference: Reference) -> bool:
    """True if the record is not a call of torch's but a buffer after the run."""
    return site.path in reference.buffers and not reference.calls[site].inputs


def draws_of(model: PyTree, call: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[list[Draw], list[str]]:
    """Observe all draws of the JAX model in training mode, in order, and the lines that draw in another way."""
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
    """Observer that notes the modules in which draws are."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return arguments

    def leave(self, site: Site, output: Any) -> Any:
        if last(site.path) == DRAW:
            self.found.append(parent(site.path))
        return output
