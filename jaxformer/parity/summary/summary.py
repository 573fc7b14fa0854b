"""Statistics of a reference: of its weights, and of what goes into each call and comes out, in memory and in a folder.

summary.json         the statistics, the environment and the sha256 of the other file
inputs.safetensors   inputs, and buffers, which are as they are
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from jaxformer.errors import InputError
from jaxformer.parity.numerics.cast_on_use import cast_on_use
from jaxformer.parity.numerics.float32_tables import Tables
from jaxformer.parity.numerics.float64 import inputs_float64, jax_float64, to_float64
from jaxformer.parity.numerics.statistics import Statistics, statistics_of
from jaxformer.parity.pairing.buffers import typed_constants
from jaxformer.parity.report.two_jax import REFERENCE
from jaxformer.parity.runs.end_to_end import observed
from jaxformer.parity.runs.jax_reference import by_layer, layers_of
from jaxformer.parity.runs.load_weights import ready
from jaxformer.parity.summary.events import Event, Summarizing
from jaxformer.parity.trace import archive
from jaxformer.parity.trace.call_sites import CALL, Site
from jaxformer.parity.trace.outputs import Call
from jaxformer.parity.trace.pytree_modules import open_modules
from jaxformer.parity.trace.reference import REFUSALS, run_float64, saying, torch_environment
from jaxformer.parity.trace.rounding_error import perturbation
from jaxformer.parity.trace.selection import Selection
from jaxformer.parity.trace.torch_hooks import torch_state
from jaxformer.parity.trace.transformations import written_out
from jaxformer.parity.validate import Mode, check_inference, evaluating, is_jax
from jaxformer.pytree import named_weights
from jaxformer.validation.fields import check_file, read_small

MANIFEST, ARRAYS = "summary.json", "inputs.safetensors"
FORMAT = 2


@dataclass(frozen=True)
class Summary:
    """Statistics of a reference."""

    inputs: tuple[np.ndarray, ...]
    buffers: Mapping[str, np.ndarray]
    weights: Mapping[str, Statistics]
    """Statistics of each weight in float32, by the first of its names."""
    events: Sequence[Event]
    """Calls in float64, in the order of the run."""
    rounding: Mapping[tuple[Site, str, int], float]
    """relL2 by which rounding alone moves an array of an event."""
    environment: Mapping[str, str]
    left_out: str = ""
    """Modules that the selection leaves out, in words."""
    outputs: tuple[str, ...] = ("",)
    """Names of the output's arrays, as in `Outputs`."""

    @property
    def calls(self) -> tuple[Site, ...]:
        """Recorded calls, that of the whole model included."""
        return tuple(event.site for event in self.events if event.part == "output")

    @property
    def output(self) -> Mapping[str, Statistics]:
        """Statistics of the output's arrays, by their names."""
        whole = next(event for event in self.events if event.site == CALL)
        return dict(zip(self.outputs, whole.arrays, strict=True))


def summarize(model: Any, inputs: tuple[np.ndarray, ...], call: Call, selection: Selection, mode: Mode = "eval") -> Summary:
    """Run a torch or a JAX model in float64 and keep statistics alone. Raises ParityError if it cannot run."""
    check_inference(mode, None, None)
    if not is_jax(model):
        return summarize_torch(model, inputs, call, selection)
    opened = open_modules(model)
    with saying("the reference, in float64"):
        return summarize_jax(opened.tree, inputs, opened.given(call), selection)


def summarize_torch(model: Any, inputs: tuple[np.ndarray, ...], call: Call, selection: Selection) -> Summary:
    """Run a torch model in float64 and keep statistics alone. Raises ParityError if it cannot run."""

    def run() -> Summarizing:
        observer = Summarizing(selection)
        outputs, _, _ = run_float64(model, inputs, call, observer, gradients=False)
        observer.end(outputs)
        return observer

    with evaluating(model), saying("torch in float64"):
        seen = run()
        left_out = selection.among(seen.paths)
        moved: Sequence[Event] = seen.events
        with suppress(*REFUSALS), perturbation(0):
            moved = run().events
    state = torch_state(model)
    weights = {name: statistics_of(array) for name, array in state.weights.items()}
    return Summary(inputs, state.buffers, weights, seen.events, noise(seen.events, moved), torch_environment(), left_out)


def summarize_jax(model: Any, inputs: tuple[np.ndarray, ...], call: Call, selection: Selection) -> Summary:
    """Run a JAX model in float64, its operations one by one, and keep statistics alone.

    Statistics of stacked layers are those of each layer, under the paths of the layers' calls.
    """
    seen = run_jax(model, inputs, call, selection, Tables({}), "call_torch")
    held, stacks = set(typed_constants(model)), layers_of(seen.paths)
    leaves = by_layer(named_weights(model), stacks, np.float32)
    weights = {leaf: statistics_of(array) for leaf, array in leaves.items() if leaf not in held}
    environment = {REFERENCE: f"jax {jax.__version__}"}
    return Summary(inputs, {}, weights, seen.events, {}, environment, selection.among(seen.paths))


def run_jax(
    model: Any, inputs: tuple[np.ndarray, ...], call: Call, selection: Selection, tables: Tables, name: str
) -> Summarizing:
    """Run a JAX model in float64, its operations one by one; `name` is that of the argument `call`."""
    observer = Summarizing(selection)

    def run(model: Any, *arrays: Any) -> None:
        outputs, _ = observed(model, call, [*arrays], observer, name=name)
        observer.end(outputs)

    with cast_on_use(), jax_float64(tables):
        written_out()(run)(ready(to_float64(model), training=False), *inputs_float64(inputs))
    return observer


def noise(events: Sequence[Event], moved: Sequence[Event]) -> dict[tuple[Site, str, int], float]:
    """Return how far each array is from the same array of a run whose operations were perturbed by their last bit."""
    pairs = zip(events, moved, strict=True)
    return {
        (event.site, event.part, i): one.apart(other).relative
        for event, again in pairs
        for i, (one, other) in enumerate(zip(event.arrays, again.arrays, strict=True))
    }


def is_summary(folder: Path) -> bool:
    """True if a folder holds statistics."""
    return (folder / MANIFEST).exists()


def save(summary: Summary, folder: Path) -> None:
    """Write a summary by an atomic write: the folder appears whole or not at all. InputError if it exists already."""
    arrays = {f"input/{i}": array for i, array in enumerate(summary.inputs)}
    arrays |= {f"buffer/{name}": array for name, array in summary.buffers.items()}
    manifest = {
        "format": FORMAT,
        "inputs": len(summary.inputs),
        "weights": {name: asdict(each) for name, each in summary.weights.items()},
        "events": [_as_json(event, summary) for event in summary.events],
        "environment": dict(summary.environment),
        "left_out": summary.left_out,
        "outputs": summary.outputs,
    }
    archive.write(folder, (MANIFEST, ARRAYS), manifest, arrays)


def load(folder: Path) -> Summary:
    """Read what `save` wrote; InputError for anything else."""
    with archive.reading(folder):
        manifest = json.loads(read_small(folder / MANIFEST))
        if manifest["format"] != FORMAT:
            raise InputError(f"{folder} is of format {manifest['format']}, this reads {FORMAT}; dump it again")
        archive.check_sealed(folder, ARRAYS, manifest)
        return _from_json(manifest, safetensors.numpy.load_file(check_file(folder / ARRAYS)))


def _as_json(event: Event, summary: Summary) -> dict[str, Any]:
    arrays = [
        asdict(each) | {"rounding": summary.rounding.get((event.site, event.part, i), 0.0)}
        for i, each in enumerate(event.arrays)
    ]
    return {"site": event.site, "part": event.part, "maker": event.maker, "arrays": arrays}


def _from_json(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Summary:
    events, rounding = [], {}
    for event in manifest["events"]:
        site, part = Site(*event["site"]), event["part"]
        rounding |= {(site, part, i): float(each.pop("rounding")) for i, each in enumerate(event["arrays"])}
        events.append(Event(site, part, Site(*event["maker"]), tuple(map(_statistics, event["arrays"]))))
    return Summary(
        tuple(arrays[f"input/{i}"] for i in range(manifest["inputs"])),
        {name.removeprefix("buffer/"): array for name, array in arrays.items() if name.startswith("buffer/")},
        {name: _statistics(each) for name, each in manifest["weights"].items()},
        events,
        rounding,
        manifest["environment"],
        manifest["left_out"],
        tuple(manifest["outputs"]),
    )


def _statistics(values: dict[str, Any]) -> Statistics:
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return Statistics(**given)
