"""A JAX model as the reference of a comparison: all that it computes, recorded as it is of a torch model."""

from collections.abc import Container, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import InputError, ParityError
from jaxformer.parity.numerics.float64 import inputs_float64, jax_float64, to_float64
from jaxformer.parity.numerics.float_masks import is_mask
from jaxformer.parity.numerics.metrics import as_float64, error, over
from jaxformer.parity.pairing.buffers import path_of, typed_constants
from jaxformer.parity.pairing.modules import numbered_stacks
from jaxformer.parity.report.summarize import say_parameters
from jaxformer.parity.report.two_jax import REFERENCE
from jaxformer.parity.runs.end_to_end import observed, zeros
from jaxformer.parity.runs.jax_coverage import unread_inputs
from jaxformer.parity.runs.load_weights import joined, parted, ready
from jaxformer.parity.trace.call_records import Record, arrays_in, replaced
from jaxformer.parity.trace.call_sites import CALL, Site, ancestors, below
from jaxformer.parity.trace.coverage import whole_slices
from jaxformer.parity.trace.outputs import Call, several, side_by_side
from jaxformer.parity.trace.programs import run_once
from jaxformer.parity.trace.reference import LOW_PRECISION, Reference, Tier, saying
from jaxformer.pytree import named_weights
from jaxformer.runtime.xla_options import exact

NO_TIER_C = "tier C judges bfloat16 by the rounding error of torch; where both sides are JAX, give tier A or B"
NO_FLOATS = "no gradient comes from what call_torch gives: it holds no floats; leave out the checks of gradients"
COMPLEX = (
    "the output of call_torch is complex, and gradients are taken of real numbers; leave out the checks of gradients, or give "
    "call_torch and call_jax with the real and imaginary parts"
)
WHERE = "the reference, in float64"


def record_jax(model: Any, inputs: tuple[np.ndarray, ...], call: Call, *, tier: Tier, gradients: bool) -> Reference:
    """Run a JAX model in float64, and in float32 for tier B; record every call, and gradients if requested.

    Weights of stacked layers are recorded layer by layer, under the paths of the layers' calls. The model's own rounding judges
    the other one in float32; there is no bfloat16. Raises ParityError if the model cannot run.
    """
    if tier == "C":
        raise InputError(NO_TIER_C)
    held = set(typed_constants(model))
    with saying("the reference, in float32"):
        low = {name: _in_float32(model, inputs, call) for name in LOW_PRECISION[tier]}
    with jax_float64(), saying(WHERE):
        run = _Run(ready(to_float64(model), training=False), call, inputs, held)
        calls, outputs = run.forward()
        random = np.random.default_rng(0)
        sent = tuple(random.standard_normal(output.shape) for output in outputs)
        by_weight, by_input, unread = {}, {}, list[str]()
        if gradients and (why := why_no_gradient(outputs)):
            raise ParityError(why)
        if gradients:
            calls, by_weight, by_input = run.backward(calls, sent)
            unread = unread_inputs(run.model, call, [*map(np.asarray, run.inputs)], calls.values(), by_input)
    stacks = layers_of(site.path for site in calls)
    by_weight = by_layer(by_weight, stacks, np.float64)
    named = named_weights(model)
    weights = {path_of(name, model): leaf for name, leaf in named.items() if name not in held}
    buffers = {path_of(name, model): leaf for name, leaf in named.items() if name in held}
    return Reference(
        inputs=inputs,
        weights=by_layer(weights, stacks, np.float32),
        output=side_by_side(outputs),
        cotangent=side_by_side(sent),
        gradients=by_weight | by_input,
        not_covered=(*unmoved(by_weight), *unread) if gradients else None,
        buffers=by_layer(buffers, stacks, np.float32),
        low_precision=low,
        calls={**calls, CALL: Record((), outputs, (), back_to(outputs, sent))},
        environment={REFERENCE: f"jax {jax.__version__}"},
    )


def why_no_gradient(outputs: tuple[np.ndarray, ...]) -> str:
    """Return why these outputs have no gradients, '' if they have."""
    if any(output.dtype.kind == "c" for output in outputs):
        return COMPLEX
    return "" if any(output.dtype.kind == "f" for output in outputs) else NO_FLOATS


def unmoved(gradients: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """Describe the weights, and the rows and columns of weights, without a gradient: the run says nothing about them."""
    zeros = {name: whole_slices(gradient == 0) for name, gradient in gradients.items()}
    return tuple(say_parameters({name: entries for name, entries in zeros.items() if entries.any()}, [*gradients]))


def back_to(outputs: tuple[np.ndarray, ...], sent: tuple[np.ndarray, ...]) -> tuple[np.ndarray | None, ...]:
    """Return the cotangents of the outputs that hold floats, None for the others."""
    return tuple(each if array.dtype.kind == "f" else None for each, array in zip(sent, outputs, strict=True))


def layers_of(paths: Iterable[str]) -> dict[str, int]:
    """Return the number of layers of each stack whose layers are called one by one, by the stack's path."""
    paths = [*paths]
    numbers = {
        at: {path[len(at) + 1 :].partition(".")[0] for path in paths if below(path, at)} for at in numbered_stacks(paths)
    }
    return {at: sum(map(str.isdigit, found)) for at, found in numbers.items()}


def by_layer(leaves: Mapping[str, Any], stacks: Mapping[str, int], dtype: Any) -> dict[str, np.ndarray]:
    """Return arrays by the names of their modules; of a stack whose layers are called one by one, an array for each layer, as
    'blocks.0.kernel'."""
    found = {}
    for name, leaf in ((name.removeprefix("params."), leaf) for name, leaf in leaves.items()):
        array, stack = np.asarray(leaf, dtype), next((at for at in ancestors(name) if at in stacks), None)
        rest = "" if stack is None else name[len(stack) + 1 :]
        if stack is None or rest.partition(".")[0].isdigit() or array.shape[:1] != (stacks[stack],):
            found[name] = array
        else:
            found |= {f"{stack}.{i}.{rest}": each for i, each in enumerate(array)}
    return found


def _in_float32(model: Any, inputs: tuple[np.ndarray, ...], call: Call) -> np.ndarray:
    model = ready(jax.tree.map(lambda leaf: leaf, model), training=False)  # a copy
    with jax.default_matmul_precision("highest"):
        run = jax.jit(lambda *given: side_by_side(several(call(*given), "call_torch", call)), compiler_options=exact())
        return as_float64(np.asarray(run(model, *inputs)))


class _Run:
    """Run of a model in float64."""

    def __init__(self, model: Any, call: Call, inputs: tuple[np.ndarray, ...], held: Container[str]):
        self.call, self.inputs = call, inputs_float64(inputs)
        self.floats = {i: self.inputs[i] for i, array in enumerate(inputs) if array.dtype.kind == "f" and not is_mask(array)}
        self.model = model
        self.weights, self.rest = parted(model, held)
        self.sites: list[Site] = []
        self.outputs: tuple[np.ndarray, ...] = ()

    def __call__(self, probes: Any, weights: Any, floats: Mapping[int, Any], sent: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return the sum of output * cotangent, the arrays that enter and leave each call, and the outputs."""
        recording = _Recording(probes)
        arrays = [floats.get(i, array) for i, array in enumerate(self.inputs)]
        outputs, _ = observed(joined(weights, self.rest), self.call, arrays, recording, name="call_torch")
        self.sites[:] = recording.leaving
        total = sum(((o * c).sum() for o, c in zip(outputs, sent, strict=bool(sent))), jnp.zeros(()))
        return total, ([(recording.entering[site], recording.leaving[site]) for site in self.sites], list(outputs))

    def forward(self) -> tuple[dict[Site, Record], tuple[np.ndarray, ...]]:
        """Return the records of all calls, without gradients, and the outputs."""
        (_, (found, outputs)), _ = run_once(self, {}, self.weights, self.floats, ())
        self.outputs = _arrays(outputs)
        return {site: Record(*map(_arrays, both)) for site, both in zip(self.sites, found, strict=True)}, self.outputs

    def backward(
        self, calls: Mapping[Site, Record], sent: tuple[np.ndarray, ...]
    ) -> tuple[dict[Site, Record], dict[str, Any], dict[str, np.ndarray]]:
        """Return the records of all calls, and the gradients of weights and of inputs by name."""
        probes = {site: ([*map(zeros, record.inputs)], [*map(zeros, record.output)]) for site, record in calls.items()}
        differentiated = jax.value_and_grad(self, (0, 1, 2), has_aux=True)
        ((_, (_, again)), (back, weights, floats)), _ = run_once(differentiated, probes, self.weights, self.floats, sent)
        if any(over(error(now, before), "activation") for now, before in zip(_arrays(again), self.outputs, strict=True)):
            raise ParityError("the reference gives another output each time: it draws random numbers; take them out")
        records = {site: Record(record.inputs, record.output, *map(_gradients, back[site])) for site, record in calls.items()}
        by_weight = {path_of(name, weights): each for name, each in named_weights(weights).items()}
        return records, by_weight, {f"input {i}": np.asarray(each) for i, each in floats.items()}


def _arrays(leaves: list[Any]) -> tuple[np.ndarray, ...]:
    return tuple(map(np.asarray, leaves))


def _gradients(leaves: list[Any]) -> tuple[np.ndarray | None, ...]:
    return tuple(None if leaf is None else np.asarray(leaf) for leaf in leaves)


class _Recording:
    """Observer that notes the arrays of calls and adds zeros to them: the gradient of such a zero is that of the array."""

    def __init__(self, probes: Mapping[Site, tuple[list[Any], list[Any]]]):
        self.probes = probes
        self.entering: dict[Site, list[Any]] = {}
        self.leaving: dict[Site, list[Any]] = {}
        self.running = [""]

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        self.running.append(site.path)
        return self._noted(site, 0, arguments, self.entering)

    def leave(self, site: Site, output: Any) -> Any:
        self.running.pop()
        return self._noted(site, 1, output, self.leaving)

    def _noted(self, site: Site, part: int, value: Any, found: dict[Site, list[Any]]) -> Any:
        arrays = arrays_in(value)
        probes = self.probes[site][part] if site in self.probes else [None] * len(arrays)
        found[site] = [array if probe is None else array + probe for array, probe in zip(arrays, probes, strict=True)]
        return replaced(value, arrays, found[site])
