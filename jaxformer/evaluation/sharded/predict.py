"""Predict the memory that training takes on each device before anything is allocated, from shapes and the compiled step.

A device holds the train state (parameters and AdamW's moments), gradients, and temporary values of the step. The first two
follow from shapes and the sharding rules alone; the last come from XLA's own account of the buffers of the compiled step.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, PyTree

from jaxformer.checkpoints.describe import as_bytes, describe_folder
from jaxformer.checkpoints.opened import local_folder, saved_config
from jaxformer.config.dual import AnyModelConfig
from jaxformer.config.mesh import MeshConfig, check_batch, check_model
from jaxformer.config.models import ModelConfig
from jaxformer.config.presets import PRESETS
from jaxformer.data.batches import Windows
from jaxformer.data.tasks import Pairs
from jaxformer.errors import InputError, first_line
from jaxformer.evaluation.sharded.recorded_step import OPTIMIZER, default_loss
from jaxformer.models import EncoderDecoder, abstract
from jaxformer.parallel.mesh import on_mesh
from jaxformer.parallel.placement import is_spec, shardings, specs_of
from jaxformer.pytree import count_parameters, named_leaves
from jaxformer.runtime.xla_options import exact
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.step import TrainState, train_state, train_step
from jaxformer.validation.fields import parsed, read_small

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
BITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Share:
    """Bytes that the train state and gradients take on one device."""

    parameters: int
    moments: int
    gradients: int
    largest: str
    """Name and bytes of the leaf of which a device holds most."""

    @property
    def total(self) -> int:
        """Sum of parameters, moments and gradients."""
        return self.parameters + self.moments + self.gradients


def share_of(config: ModelConfig, mesh: MeshConfig) -> Share:
    """Compute one device's share from shapes and rules alone; ConfigError if the mesh does not divide the model."""
    check_model(config, mesh)
    state = abstract_state(config)
    held = {name: held_bytes(leaf, spec, mesh) for name, leaf, spec in leaves_of(state, mesh)}
    parameters = sum(n for name, n in held.items() if name.startswith("model."))
    largest = max(held, key=lambda name: held[name])
    return Share(parameters, sum(held.values()) - parameters, parameters, f"{largest}, {as_bytes(held[largest])}")


def abstract_state(config: ModelConfig) -> TrainState:
    """Return the abstract train state."""
    optimizer = make_optimizer(*OPTIMIZER)
    return jax.eval_shape(lambda model: train_state(model, optimizer), abstract(config))


def leaves_of(state: PyTree, mesh: MeshConfig) -> Iterator[tuple[str, Any, PartitionSpec]]:
    """Yield name, shape and PartitionSpec of each leaf."""
    specs = jax.tree.leaves(specs_of(state, mesh.sizes), is_leaf=is_spec)
    return ((name, leaf, spec) for (name, leaf), spec in zip(named_leaves(state).items(), specs, strict=True))


def held_bytes(leaf: Any, spec: PartitionSpec, mesh: MeshConfig) -> int:
    """Bytes of a leaf that one device holds."""
    axes = [axis for part in spec if part is not None for axis in (part if isinstance(part, tuple) else (part,))]
    return leaf.size * leaf.dtype.itemsize // math.prod(mesh.sizes[axis] for axis in axes)


def abstract_batch(model: Any, rows: int, length: int) -> Any:
    """Return an abstract batch."""
    ids, more = (cast(Array, jax.ShapeDtypeStruct((rows, n), np.int32)) for n in (length, length + 1))
    return Pairs(ids, more) if isinstance(model, EncoderDecoder) else Windows(ids, ids)


@dataclass(frozen=True)
class Program:
    """XLA's account of a compiled train step on one device."""

    arguments: int
    """Bytes of the batch and of the state, whose buffers the step reuses."""
    temporary: int
    """Bytes of temporary values, gradients included."""
    collectives: Mapping[str, int]
    """Number of collectives of each kind per step; those in a loop count once for each iteration."""
    moved: int
    """Bytes that collectives deliver to a device per step."""

    @property
    def peak(self) -> int:
        """Peak memory in bytes."""
        return self.arguments + self.temporary


def compiled_step(config: ModelConfig, mesh: MeshConfig, rows: int, length: int, parts: int = 1) -> Program:
    """Compile the step for the mesh's devices, which may be simulated, without allocating anything.

    With `parts`, the gradients of that many parts of a batch are accumulated.
    """
    check_batch(rows, mesh)
    check_model(config, mesh)
    model, optimizer, state = abstract(config), make_optimizer(*OPTIMIZER), abstract_state(config)
    with on_mesh(mesh) as devices:
        assert devices is not None
        where = shardings(state)
        placed = jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), state, where)
        step = partial(train_step, loss=default_loss(model), optimizer=optimizer, parts=parts)
        run = jax.jit(step, donate_argnums=0, out_shardings=(where, None))
        lowered = run.lower(placed, abstract_batch(model, rows, length), jax.random.key(0))
        # without YNNPACK: XLA does not count its memory, and other platforms do not have it
        compiled = lowered.compile(compiler_options=exact())
    memory, text, counts, moved = compiled.memory_analysis(), compiled.as_text(), Counter[str](), 0
    assert memory is not None
    for kind, n_bytes, turns in collectives_in(text or ""):
        counts[kind] += turns
        moved += turns * n_bytes
    return Program(memory.argument_size_in_bytes, memory.temp_size_in_bytes, dict(counts), moved)


def collectives_in(program: str) -> Iterator[tuple[str, int, int]]:
    """Yield each collective of a compiled program: its kind, the bytes it delivers to a device, and how often it runs."""
    inside: dict[str, int] = {}
    outer: dict[str, str] = {}
    here = ""
    found: list[tuple[str, str, int]] = []
    for line in program.splitlines():
        if header := re.match(r"(?:ENTRY )?%?([\w.-]+) .*\{$", line):
            here = header[1]
        if loop := re.search(r" while\(.*body=%?([\w.-]+).*known_trip_count\D*(\d+)", line):
            inside[loop[1]], outer[loop[1]] = int(loop[2]), here
        if call := re.search(rf"= (.*?) ({'|'.join(COLLECTIVES)})(?:-start)?\(", line):
            found.append((here, call[2], sum(map(bytes_of, re.findall(r"[a-z]+\d+\[[\d,]*\]", call[1])))))

    def turns(computation: str) -> int:
        return inside[computation] * turns(outer[computation]) if computation in inside else 1

    return ((kind, n_bytes, turns(computation)) for computation, kind, n_bytes in found)


def bytes_of(shape: str) -> int:
    """Bytes of an array in XLA's notation, as f32[16,64]."""
    kind, _, sizes = shape.rstrip("]").partition("[")
    return math.prod(int(size) for size in sizes.split(",") if size) * int(BITS.findall(kind)[0]) // 8


def flops_of(config: ModelConfig, rows: int, length: int) -> int:
    """Count the floating-point operations of matrix products in a traced train step on all devices, with rematerialization."""
    model, optimizer = abstract(config), make_optimizer(*OPTIMIZER)
    step = partial(train_step, loss=default_loss(model), optimizer=optimizer)
    traced = jax.make_jaxpr(step)(abstract_state(config), abstract_batch(model, rows, length), jax.random.key(0))
    return products(traced.jaxpr)


def products(jaxpr: Any) -> int:
    """Count the floating-point operations of all matrix products; of a conditional, those of its last branch."""
    total = 0
    for step in jaxpr.eqns:
        if step.primitive.name == "dot_general":
            (contracted, _), _ = step.params["dimension_numbers"]
            inner = math.prod(step.invars[0].aval.shape[axis] for axis in contracted)
            total += 2 * step.outvars[0].aval.size * inner
            continue
        inside = [
            getattr(each, "jaxpr", each) for value in step.params.values() for each in _listed(value) if _is_program(each)
        ]
        times = step.params["length"] if step.primitive.name == "scan" else 1
        total += times * sum(map(products, inside[-1:] if step.primitive.name == "cond" else inside))
    return total


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _is_program(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def read_config(path: Path) -> ModelConfig:
    """Read the configuration of a preset by name, of a config.json that `save` wrote, or of a folder."""
    if str(path) in PRESETS:
        return PRESETS[str(path)]
    if path.is_file():
        try:
            return _of_texts(saved_config(parsed(read_small(path)))[0])
        except (OSError, ValueError, TypeError) as error:
            hint = "give a config.json as jaxformer.save writes it"
            raise InputError(f"{path} describes no model: {first_line(error)}; {hint}") from None
    return _of_texts(describe_folder(folder_at(path)).config)


def _of_texts(config: AnyModelConfig) -> ModelConfig:
    """Return the configuration of a model that reads texts; InputError for another, whose steps are not predicted."""
    if not isinstance(config, ModelConfig):
        raise InputError(f"{type(config).__name__} is of images, whose steps are not predicted; give a model of texts")
    return config


def folder_at(path: Path) -> Path:
    """Return a local folder, downloaded from the hub if need be; InputError, which names the presets, if there is none."""
    if str(path) in PRESETS and not path.exists():
        raise InputError(f"{path} is a preset; give --mesh too, as data=1 for one device")
    try:
        return local_folder(path)
    except InputError as error:
        raise InputError(f"{error}, or with --mesh a preset: {', '.join(PRESETS)}") from None


def lines_of(
    config: ModelConfig, mesh: MeshConfig, rows: int | None, parts: int, device_flops: float, link: float
) -> Iterator[tuple[str, str]]:
    """Yield the lines that `jaxformer info --mesh` prints: label and text."""
    share, n = share_of(config, mesh), count_parameters(abstract(config))
    yield "mesh", f"{mesh}: {mesh.devices} devices"
    yield "parameters", f"{n:,}"
    each = f"{as_bytes(share.parameters)} parameters, {as_bytes(share.moments)} moments, {as_bytes(share.gradients)} gradients"
    yield "a device", f"{as_bytes(share.total)} in float32: {each}; activations come on top"
    yield "largest leaf", f"{share.largest} a device"
    if rows is None:
        return
    flops = flops_of(config, rows, config.context)
    yield "a step", f"{flops:.3g} operations in matrix products, {flops / mesh.devices:.3g} a device"
    program = compiled_step(config, mesh, rows, config.context, parts)
    both = f"{as_bytes(program.arguments)} state and batch, {as_bytes(program.temporary)} on the way"
    yield "peak", f"{as_bytes(program.peak)} a device as XLA's CPU compiler lays it out: {both}"
    if config.remat or parts > 1:
        plain = compiled_step(replace(config, remat=False), mesh, rows, config.context)
        how = " and ".join([*["rematerialisation"] * config.remat, *[f"{parts} parts"] * (parts > 1)])
        saved = plain.temporary - program.temporary
        yield "saved", f"{as_bytes(saved)} by {how}: {as_bytes(plain.temporary)} on the way without"
    counts = ", ".join(f"{count} {kind}" for kind, count in program.collectives.items()) or "none"
    yield "collectives", f"{counts}; {as_bytes(program.moved)} a device"
    compute, linked = flops / mesh.devices / device_flops, program.moved / link
    bound = "compute" if compute >= linked else "the links"
    times = f"{1e3 * compute:.3g} ms at {device_flops:.0e} operations/s, {1e3 * linked:.3g} ms at {link:.0e} bytes/s"
    yield "on paper", f"{times}: bound by {bound}"
