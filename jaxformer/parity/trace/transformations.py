"""JAX's transformations: those that are written out while code is traced, so that calls inside are seen, and those that a
comparison does not look into.

Layers in a loop are `jax.lax.scan` over stacked parameters, each iteration of which is a layer, and `jax.vmap` over them. If
scans are `written_out`, the body of a scan runs once per layer, on slices of the model's arrays. The paths of all calls in the
body get the layer's number, after the outermost module whose arrays are all sliced: `layers.dense` becomes `layers.2.dense`. A
vmap over such arrays runs as such a loop; a vmap over anything else stays."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from flax.core.tracers import current_trace
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.extend.core.primitives import reduce_sum_p

from jaxformer.parity.trace.call_sites import Visits, ancestors, below
from jaxformer.parity.trace.source_lines import line_here
from jaxformer.pytree import named_leaves
from jaxformer.runtime.xla_options import exact


@contextmanager
def bound_operations(note: Callable[[str, Mapping[str, Any]], None]) -> Iterator[None]:
    """Context manager: `note` is called with the name and the parameters of each operation before it runs."""
    bind_as_it_is, level = Primitive.bind, current_trace()

    def bind(operation: Primitive, *args: Any, **how: Any) -> Any:
        if current_trace() == level:
            note(operation.name, how)
        return bind_as_it_is(operation, *args, **how)

    with mock.patch.object(Primitive, "bind", bind):
        yield


UNOPENED = {
    "cond": "cond",
    "while": "while_loop",
    "shard_map": "shard_map",
    "pallas_call": "pallas_call",
    "ffi_call": "ffi_call",
    "pure_callback": "pure_callback",
    "io_callback": "io_callback",
    "custom_vjp_call": "custom_vjp",
}
"""JAX's primitives that run a program of their own -> what users call them.

Loops over layers and rematerialised functions are written out; jax.nn's own functions are made of `custom_jvp`.
"""


@contextmanager
def unopened() -> Iterator[list[str]]:
    """Record 'while_loop (port.py:12)' for each such operation used inside, in call order."""
    found: dict[str, None] = {}

    def note(operation: str, _: Mapping[str, Any]) -> None:
        if name := UNOPENED.get(operation):
            found[f"{name} ({line_here()})"] = None

    listed: list[str] = []
    with bound_operations(note):
        yield listed
    listed += found


class HiddenCallsError(Exception):
    """Raised if calls inside a cond or a while_loop cannot be seen because jit traces the model."""


@contextmanager
def none_hidden(visits: Visits) -> Iterator[None]:
    """Raise HiddenCallsError at a cond or a while_loop with calls of modules inside, if jit traces the model."""

    def note(operation: str, _: Mapping[str, Any]) -> None:
        if visits.hidden and operation in ("cond", "while"):
            raise HiddenCallsError(f"jit hides calls inside of {UNOPENED[operation]}")
        if operation in UNOPENED:
            visits.hidden = 0

    if is_traced():
        with bound_operations(note):
            yield
    else:
        yield


def is_traced() -> bool:
    """True if jit traces the running code, for its gradients too."""
    return isinstance(jnp.zeros(()), Tracer)


REMAT3 = "remat3"
"""Function that `jax.checkpoint` calls in jax 0.12 if `jax_remat3` is set."""


class _AsItIs:
    """Replaces the trace of a rematerialised function, its primitive, and the tree of its output, so that the function runs as
    it is."""

    @staticmethod
    def trace(f: Callable[..., Any], inputs: Any, *_: Any) -> tuple[Callable[..., Any], tuple[()], "_AsItIs"]:
        """Return the function of flat arguments, no constants, and the tree of its output."""

        def flat(arrays: tuple[Any, ...]) -> Any:
            args, kwargs = inputs.unflatten(arrays)
            return f(*args, **kwargs)

        return flat, (), _AsItIs()

    @staticmethod
    def bind(*arrays: Any, jaxpr: Callable[..., Any], **_: Any) -> Any:
        """Run the function."""
        return jaxpr(arrays)

    @staticmethod
    def unflatten(output: Any) -> Any:
        """Return the output unchanged: it was never flattened."""
        return output


@contextmanager
def nothing_rematerialised() -> Iterator[None]:
    """Context manager: rematerialised functions run as they are, also those wrapped before, such as methods under `nnx.remat`.

    JAX looks up what it traces and binds in its own module when they are called, so that it can be patched there. If a version
    of JAX does otherwise, nothing changes.
    """
    module = inspect.unwrap(jax.checkpoint).__globals__
    instead: dict[str, Any] = {"_trace_to_jaxpr": _AsItIs.trace, "remat_p": _AsItIs}
    if not instead.keys() <= module.keys():
        instead = {}
    if REMAT3 in module:
        instead[REMAT3] = lambda f, **_: f
    with mock.patch.dict(module, instead):
        yield


PLATFORMS = {"gpu": ("cuda", "rocm")}
"""Backend -> the platform names that code chooses by, if they differ from the backend's."""


@contextmanager
def written_out() -> Iterator[None]:
    """Run JAX without nested jits, scans and rematerialisation; code that chooses by platform runs only the branch of this
    machine."""
    bind_as_it_is, backend = Primitive.bind, jax.default_backend()
    here = set(PLATFORMS.get(backend, (backend,)))

    def bind(operation: Primitive, *args: Any, **how: Any) -> Any:
        if operation.name == "platform_index":
            return next(i for i, platforms in enumerate(how["platforms"]) if platforms is None or here & set(platforms))
        return bind_as_it_is(operation, *args, **how)

    with jax.disable_jit(), nothing_rematerialised(), exact_operations(), mock.patch.object(Primitive, "bind", bind):
        yield


COMPILED = "xla_primitive_callable"
"""Name of JAX's function that compiles an operation that runs by itself."""


@contextmanager
def exact_operations() -> Iterator[None]:
    """Context manager: operations that run by themselves, and bodies of loops, get the compiler options of a comparison's
    programs.

    If a version of JAX does otherwise, nothing changes.
    """
    module = getattr(getattr(reduce_sum_p.impl, "func", None), "__globals__", {})
    with mock.patch.dict(module, {COMPILED: _exactly} if COMPILED in module else {}):
        yield


@functools.cache
def _exactly(operation: Primitive, **how: Any) -> Callable[..., Any]:
    return jax.jit(lambda *args: operation.bind(*args, **how), compiler_options=exact())


MOST_LAYERS = 128
"""Maximum number of layers: a vmap over more maps over the rows of a table."""


@contextmanager
def watch_layers(model: Any, visits: Visits) -> Iterator[None]:
    """Record in `visits` which layer of which of the model's stacks is running."""
    names = {id(leaf): name.removeprefix("params.") for name, leaf in named_leaves(model).items()}

    def stacks(leaves: Iterable[Any]) -> frozenset[str]:
        """Return the stacks that these arrays belong to."""
        cut = {names[id(leaf)] for leaf in leaves if id(leaf) in names}
        return frozenset(stacks_of(cut, names.values(), visits.open[-1][1] if visits.open else ""))

    with (
        mock.patch.object(jax.lax, "scan", _scan(jax.lax.scan, stacks, visits)),
        mock.patch.object(jax, "vmap", _vmap(jax.vmap, stacks, visits)),
    ):
        yield


def stacks_of(cut: set[str], names: Iterable[str], around: str) -> Iterator[str]:
    """Yield the outermost modules inside the module `around` whose arrays are all sliced; a sliced array outside of them is its
    own stack."""
    others = set(names) - cut
    for name in cut:
        inside = [path for path in (name, *ancestors(name)) if path != around and below(path, around)]
        alone = [path for path in inside if not any(path == other or below(other, path) for other in others)]
        yield from alone[-1:]


def _scan(as_it_is: Callable[..., Any], stacks: Callable[..., frozenset[str]], visits: Visits) -> Callable[..., Any]:
    """Wrap `jax.lax.scan`, recording the layer of each iteration."""

    def scan(
        f: Callable[..., Any], init: Any, xs: Any = None, length: Any = None, reverse: bool = False, *more: Any, **how: Any
    ):
        if not (found := stacks(leaves := jax.tree.leaves(xs))):
            return as_it_is(f, init, xs, length, reverse, *more, **how)
        layers = iter(sorted(range(leaves[0].shape[0]), reverse=reverse))

        def turn(carry: Any, x: Any) -> Any:
            with visits.turn(found, next(layers, 0)):
                return f(carry, x)

        return as_it_is(turn, init, xs, length, reverse, *more, **how)

    return scan


def _vmap(as_it_is: Callable[..., Any], stacks: Callable[..., frozenset[str]], visits: Visits) -> Callable[..., Any]:
    """Wrap `jax.vmap`: it becomes a loop if it maps over layers without a named axis."""

    def vmap(
        fun: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, axis_name: Any = None, *more: Any, **how: Any
    ) -> Any:
        @wraps(fun)
        def mapped(*args: Any, **kwargs: Any) -> Any:
            given, outputs = (args, kwargs), []
            leaves, tree = jax.tree.flatten(given)
            axes = _axes((tuple(in_axes) if isinstance(in_axes, list) else in_axes, 0), given) if stacks(leaves) else []
            cut = [(leaf, axis) for leaf, axis in zip(leaves, axes, strict=False) if axis is not None]
            found = stacks(leaf for leaf, axis in cut if axis == 0)
            n = cut[0][0].shape[cut[0][1]] if found else 0
            if not 0 < n <= MOST_LAYERS or axis_name is not None:
                return as_it_is(visits.in_vmap(fun), in_axes, out_axes, axis_name, *more, **how)(*args, **kwargs)
            for layer in range(n):
                own, named = jax.tree.unflatten(tree, [_slice(*each, layer) for each in zip(leaves, axes, strict=True)])
                with visits.turn(found, layer):
                    outputs.append(fun(*own, **named))
            return _stacked(outputs, out_axes)

        return mapped

    return vmap


def _slice(leaf: Any, axis: int | None, number: int) -> Any:
    return leaf if axis is None else jax.lax.index_in_dim(leaf, number, axis, keepdims=False)


def _stacked(outputs: list[Any], out_axes: Any) -> Any:
    """Stack the outputs of all layers; an output without an axis for them is taken from the first layer."""
    leaves = zip(*map(jax.tree.leaves, outputs), strict=True)
    axes = _axes(out_axes, outputs[0])
    one = [parts[0] if axis is None else jnp.stack(parts, axis) for parts, axis in zip(leaves, axes, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(outputs[0]), one)


def _axes(prefix: Any, tree: Any) -> list[int | None]:
    """Return the mapped axis of each leaf, None for leaves that are not mapped."""
    axes: list[int | None] = []
    jax.tree.map(
        lambda axis, part: axes.extend([axis] * len(jax.tree.leaves(part))), prefix, tree, is_leaf=lambda axis: axis is None
    )
    return axes
