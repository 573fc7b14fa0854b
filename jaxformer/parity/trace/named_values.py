"""Values that a JAX function computes on its way, by name: outputs of modules' calls, and taps, inside of gradients too."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, NamedTuple
from unittest import mock

import jax
from flax import linen, nnx
from jax.ad_checkpoint import checkpoint_name
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from jaxformer.parity.trace.call_sites import Site, public_methods
from jaxformer.parity.trace.jax_hooks import is_flax, recorded_taps, watch_jax, watch_linen
from jaxformer.parity.trace.transformations import written_out
from jaxformer.pytree import is_weight, path_name

PREFIX = "jaxformer"
"""First part of the names that values get in a traced program; users' own names of `jax.checkpoint` are left alone."""
APART = "\t"
"""Character between the parts of a name."""


class Named(NamedTuple):
    """Array that a function computed on its way."""

    path: str
    """Path of the module that returned it, or the name of the tap."""
    part: str
    """Name of the array in that result: 'layers.0.kernel', '1'; '' for a result that is one array."""
    array: Any


def with_named_values(f: Callable[..., Any]) -> Callable[..., tuple[Any, list[Named]]]:
    """Return a function that gives f's result and the named values, in the order in which they are computed.

    `f` is traced anew, without nested jits, scans and rematerialisation; values inside of a cond, a while_loop, or anything
    else that has a program of its own, are not seen.
    """

    @wraps(f)
    def run(*args: Any) -> tuple[Any, list[Named]]:
        leaves, tree = jax.tree.flatten(args)
        places = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "shape")]
        structures: list[Any] = []

        def flat(*arrays: Any) -> list[Any]:
            given = jax.tree.unflatten(tree, _with(leaves, places, arrays))
            with written_out(), named_calls(given):
                found, structure = jax.tree.flatten(f(*given))
            structures.append(structure)
            return found

        arrays = [leaves[i] for i in places]
        program = jax.make_jaxpr(flat)(*arrays)
        ours = [equation for equation in program.eqns if _is_ours(equation)]
        n_outputs = len(program.jaxpr.outvars)
        jaxpr = program.jaxpr.replace(
            outvars=[*program.jaxpr.outvars, *(equation.outvars[0] for equation in ours)],
            debug_info=program.jaxpr.debug_info.with_unknown_names(),
        )
        values = jaxpr_as_fun(ClosedJaxpr(jaxpr, program.consts))(*arrays)
        names = [equation.params["name"].split(APART) for equation in ours]
        found = [Named(path, part, value) for (_, path, part), value in zip(names, values[n_outputs:], strict=True)]
        return jax.tree.unflatten(structures[-1], values[:n_outputs]), found

    return run


def _with(values: list[Any], places: list[int], others: tuple[Any, ...]) -> list[Any]:
    """Return the values with others at some places."""
    changed = dict(zip(places, others, strict=True))
    return [changed.get(i, value) for i, value in enumerate(values)]


def _is_ours(equation: Any) -> bool:
    return equation.primitive.name == "name" and equation.params["name"].startswith(PREFIX + APART)


def named(path: str, value: Any) -> Any:
    """Return the value, with names on its float arrays."""

    def name(keys: tuple[Any, ...], leaf: Any) -> Any:
        seen = isinstance(leaf, Tracer) and is_weight(leaf)
        return checkpoint_name(leaf, APART.join((PREFIX, path, path_name(keys)))) if seen else leaf

    return jax.tree_util.tree_map_with_path(name, value)


class _Naming:
    """Observer that names the output of each call."""

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments as they are."""
        return arguments

    def leave(self, site: Site, output: Any) -> Any:
        """Return the output of the call, named."""
        return named(site.path, output)


@contextmanager
def named_calls(given: Any) -> Iterator[None]:
    """Context manager: outputs of the calls of NNX and Linen modules, and taps, are named, at whatever depth of transformations
    the outermost call of a model is. NNX modules are those in `given`, the function's arguments."""
    is_open: list[bool] = []

    def opened(model: Any, call: Callable[[], Any]) -> Any:
        """Run a call; every call inside of it is watched if it is the outermost one."""
        if is_open:
            return call()
        is_open.append(True)
        try:
            with watch_jax(model, _Naming()):
                return call()
        finally:
            is_open.pop()

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def run(module: Any, *args: Any, **kwargs: Any) -> Any:
            return opened(module, lambda: method(module, *args, **kwargs))

        return run

    def of_linen(module: Any, path: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return opened({}, lambda: method(*args, **kwargs))

    with ExitStack() as stack:
        for (owner, name), method in _methods_of_models(given).items():
            stack.enter_context(mock.patch.object(owner, name, watched(method)))
        stack.enter_context(linen.intercept_methods(watch_linen(of_linen)))
        stack.enter_context(recorded_taps(named))
        yield


def _methods_of_models(given: Any) -> dict[tuple[type, str], Callable[..., Any]]:
    """Return (class, name) -> function: the public methods of the outermost NNX modules in a value."""
    found = jax.tree.leaves(given, is_leaf=lambda value: isinstance(value, nnx.Module))
    kinds = {type(module) for module in found if isinstance(module, nnx.Module)}
    methods = {(kind, owner, name): method for kind in kinds for owner, name, method in public_methods(kind, nnx.Module)}
    return {
        (owner, name): method for (kind, owner, name), method in methods.items() if not is_flax(owner) or name == "__call__"
    }
