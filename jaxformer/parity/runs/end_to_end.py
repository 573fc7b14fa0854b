"""The JAX model's normal run: the output of every module, and the gradients that come back to it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.errors import ParityError
from jaxformer.io.on_disk import kept, kept_tree
from jaxformer.parity.runs.load_weights import joined, parted
from jaxformer.parity.trace.call_records import arrays_in, replaced
from jaxformer.parity.trace.call_sites import CALL, Site
from jaxformer.parity.trace.jax_hooks import watch_jax
from jaxformer.parity.trace.outputs import said, several
from jaxformer.parity.trace.programs import UNTRACEABLE, run_once
from jaxformer.parity.trace.source_lines import definition_of
from jaxformer.parity.trace.suspect_operations import Suspect, empty_arrays, jax_draws, suspect_operations
from jaxformer.parity.trace.transformations import unopened, written_out

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class NormalRun:
    """Result of a run of the JAX model, by call, in the order in which calls end."""

    outputs: Mapping[Site, Arrays]
    gradients: Mapping[Site, Arrays] = field(default_factory=dict)
    """Gradients of the float arrays of each output; empty if none were requested."""
    weights: Callable[[], PyTree] | None = None
    """Function that returns the gradients of the model's arrays, a tree of the model's shape; None if none were requested."""
    inputs: Mapping[int, np.ndarray] = field(default_factory=dict)
    """Gradients of the float inputs, by their index."""
    taps: Sequence[Site] = ()
    """Calls without an input array: tapped values, not modules."""
    untraced: str = ""
    """Operation that jit cannot trace, and its line; the model then ran without jit."""
    draws: Sequence[str] = ()
    """Lines that draw random numbers."""
    unset: Sequence[str] = ()
    """Lines that make uninitialised arrays."""
    unopened: Sequence[str] = ()
    """Transformations whose inner calls are not seen, and their lines."""
    lines: Mapping[str, str] = field(default_factory=dict)
    """Line where the code of each module begins, by path; for a library's module the line that calls it, for a tap its own
    line."""
    suspects: Sequence[Suspect] = ()
    """Operations that this jaxlib may compute wrong."""


def _weighted(name: str, output: Any, cotangent: np.ndarray | None, call: Callable[..., Any]) -> Any:
    """Sum of output * cotangent, 0 without a cotangent; ParityError if jax's output has another shape than torch's."""
    if cotangent is None:
        return jnp.zeros(())
    if output.shape != cotangent.shape:
        at = f" (at {place})" if (place := definition_of(call)) else ""
        hint = f"; give call_jax or call_torch that makes them one shape{at}" if output.size == cotangent.size else ""
        raise ParityError(f"{said(name)} is {list(output.shape)} in jax and {list(cotangent.shape)} in torch{hint}")
    return (output * jnp.asarray(cotangent, output.dtype)).sum().astype(float)


def propagate(model: Any, call: Callable[..., Any], inputs: tuple[Any, ...], cotangents: Mapping[str, Any] | None) -> NormalRun:
    """Run call(model, *inputs), and differentiate the sum of output * cotangent if `cotangents` are given, by output name."""
    given = {i: array for i, array in enumerate(inputs) if is_floating(array)}
    weights, rest = parted(model)
    order: list[Site] = []
    taps: list[Site] = []
    noted: dict[str, Any] = {}

    def run(probes: Mapping[Site, Any], weights: Any, given: Mapping[int, Any]) -> tuple[Any, Any]:
        probing = _Probing(probes)
        arrays, model = [given.get(i, array) for i, array in enumerate(inputs)], joined(weights, rest)
        outputs, seen = observed(model, call, arrays, probing)
        noted.update(seen)
        found = probing.found | {CALL: list(outputs)}  # their gradients are the cotangents
        order[:], taps[:] = found, probing.taps
        every = zip(cotangents or (), outputs, (cotangents or {}).values(), strict=cotangents is not None)
        return sum((_weighted(*each, call) for each in every), jnp.zeros(())), list(found.values())

    def by_site(found: list[Any]) -> Mapping[Site, Arrays]:
        return kept({site: [*map(np.asarray, arrays)] for site, arrays in zip(order, found, strict=True)})

    if cotangents is None:
        (_, found), untraced = run_once(run, {}, weights, given)
        return NormalRun(by_site(found), taps=taps, untraced=untraced, **noted)
    try:
        _, shapes = jax.eval_shape(run, {}, weights, given)
    except UNTRACEABLE:
        _, shapes = run({}, weights, given)
    probes = {site: list(map(zeros, leaves)) for site, leaves in zip(order[:-1], shapes[:-1], strict=True)}
    ((_, found), back), untraced = run_once(jax.value_and_grad(run, (0, 1, 2), has_aux=True), probes, weights, given)
    return NormalRun(
        by_site(found),
        kept({site: [np.asarray(array) for array in arrays if array is not None] for site, arrays in back[0].items()}),
        kept_tree(back[1]),
        jax.tree.map(np.asarray, back[2]),
        taps,
        untraced,
        **noted,
    )


def observed(
    model: Any, call: Callable[..., Any], arrays: list[Any], probing: Any, *, name: str = "call_jax"
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the outputs of call(model, *arrays), and the fields of a NormalRun that are observed during the call.

    `name` is that of the argument `call`.
    """
    suspected = suspect_operations(lambda: probing.running[-1])
    with (
        watch_jax(model, probing) as visits,
        written_out(),
        jax_draws() as draws,
        empty_arrays() as unset,
        unopened() as used,
        suspected as suspects,
    ):
        outputs = several(call(model, *arrays), name, call)
    return outputs, {
        "draws": draws,
        "unset": unset,
        "unopened": used,
        "suspects": suspects,
        "lines": visits.lines | {CALL.path: definition_of(call)},
    }


class _Probing:
    """Observer that notes the outputs of calls and adds zeros to them: the gradient of such a zero is that of the output."""

    def __init__(self, probes: Mapping[Site, list[Any]]):
        self.probes = probes
        self.found: dict[Site, list[Any]] = {}
        self.taps: list[Site] = []
        self.running = [""]
        """Paths of the running modules, the innermost last."""

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        self.running.append(site.path)
        if not arrays_in(arguments):
            self.taps.append(site)
        return arguments

    def leave(self, site: Site, output: Any) -> Any:
        self.running.pop()
        arrays = arrays_in(output)
        if not arrays:
            return output
        # without probes too, a module that gives its input as it is gives another array, so that both runs have as many
        probes = self.probes.get(site) or [0 if is_floating(array) else None for array in arrays]
        self.found[site] = [array if probe is None else array + probe for array, probe in zip(arrays, probes, strict=True)]
        return replaced(output, arrays, self.found[site])


def zeros(leaf: Any) -> Any:
    """Zeros like an array of floats; None for other arrays, which have no gradient."""
    return jax.device_put(np.zeros(leaf.shape, leaf.dtype)) if is_floating(leaf) else None


def is_floating(array: Any) -> bool:
    """True for an array of floats."""
    return jnp.issubdtype(array.dtype, jnp.floating)
