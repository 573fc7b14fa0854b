"""float64 throughout a model: a cast to float32 inside it, as in RMS norms and stock attention, stays float64.

So rounding is not taken for a bug. Casts to lower precision belong to the model and are kept.

JAX's default integers become int64 then: where JAX refuses to mix an int32 counter with an int64 one, the counter is cast to
int64.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer, eval_context
from jax.extend.core import ClosedJaxpr, Jaxpr, Primitive, primitives
from jaxtyping import PyTree

from jaxformer.parity.numerics.cast_on_use import casts_on_use, refuse_weight, same_dtype
from jaxformer.parity.numerics.float32_tables import NO_TABLES, Tables
from jaxformer.parity.numerics.jax_operations import EMPTY, WIDER, filled, grouped_product, is_grouped_product, on_host
from jaxformer.pytree import is_weight

Operate = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]
"""operate(operation, args, kwargs): returns the operation's result."""


def torch_operations(operate: Operate) -> AbstractContextManager[Any]:
    """Context manager: `operate` replaces each of torch's operations, forward and backward; inside `operate` they are
    unchanged."""
    return _mode()(operate)


@cache
def _mode() -> Any:
    """Return the class of these context managers."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operating(TorchDispatchMode):
        def __init__(self, operate: Operate):
            super().__init__()
            self.operate = operate

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """Return False, so that torch does not wrap this mode with its compiler, whose import takes a second."""
            return False

        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self.operate(operation, args, kwargs or {})

    return Operating


TYPED = (primitives.convert_element_type_p, primitives.iota_p, primitives.dot_general_p, primitives.conv_general_dilated_p)
"""JAX's primitives that have a parameter for the dtype of their result."""
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
INTEGERS = np.dtype(np.int32), np.dtype(np.int64)
SLICED = {primitives.dynamic_slice_p: 1, primitives.dynamic_update_slice_p: 2}
"""Number of array operands before the indices of a slice primitive; indices may have a dtype of their own."""


GATHERS = {"gather", "embedding", "index", "index_select"}
"""Operations of JAX and of torch that pick rows of a table: their result is cast, which is smaller."""
MOVES = {"slice", "dynamic_slice", "transpose", "reshape", "squeeze", "broadcast_in_dim", "copy"}
MOVES |= {"convert_element_type"}
"""JAX's operations whose operands are not cast: they move numbers, or are casts themselves."""


@contextmanager
def jax_float64(tables: Tables = NO_TABLES) -> Iterator[None]:
    """Trace JAX in float64: x64 is on, matrix products are exact to it, requests for float32 give float64, and so does a
    float32 constant beside a float64 array. Arrays computed from constants alone are replaced by one of torch's `tables` if
    they match; during `jax.eval_shape`, as in Linen's initialisers, nothing is computed."""
    bind_as_it_is, eval_shape, computes = Primitive.bind, jax.eval_shape, bool(tables.held)

    def bind(operation: Primitive, *args: Any, **how: Any) -> Any:
        try:
            return bind_as_it_is(operation, *args, **how)
        except TypeError:
            integers = one_integer(args[(first := SLICED.get(operation, 0)) :])
            if integers is None or has_jaxpr(how):
                raise
        return bind_as_it_is(operation, *args[:first], *integers, **how)

    def bind_float64(operation: Primitive, *args: Any, **how: Any) -> Any:
        if operation.name == EMPTY and (array := filled(how)) is not None:
            return array
        how = wider(how) if operation in TYPED else how
        if casts_on_use() and operation.name in GATHERS:
            return widest(bind(operation, *args, **how))
        if not has_jaxpr(how):
            args = tables_instead(operands(operation, args), tables)
        if not computes or not (args or operation is primitives.iota_p) or not all(map(is_constant, args)):
            return bind(operation, *args, **how)
        with eval_context(), mock.patch.object(Primitive, "bind", bind_as_it_is):
            known = on_host(operation, args, how)
            return jax.tree.map(tables.instead, bind(operation, *args, **how) if known is None else known)

    def shapes_of(*given: Any, **named: Any) -> Any:
        nonlocal computes
        before, computes = computes, False
        try:
            return eval_shape(*given, **named)
        finally:
            computes = before

    operations, shapes = mock.patch.object(Primitive, "bind", bind_float64), mock.patch.object(jax, "eval_shape", shapes_of)
    with jax.enable_x64(True), jax.default_matmul_precision("highest"), operations, shapes:
        yield


def has_jaxpr(how: dict[str, Any]) -> bool:
    """True if an operation runs a program of its own, as `jit`, `scan` and `cond` do."""
    values = (each for value in how.values() for each in (value if isinstance(value, tuple) else (value,)))
    return any(isinstance(each, Jaxpr | ClosedJaxpr) for each in values)


def wider(how: Mapping[str, Any]) -> dict[str, Any]:
    """Replace float32 by float64 among the parameters of an operation."""
    return {name: WIDER.get(value, value) if isinstance(value, np.dtype) else value for name, value in how.items()}


def operands(operation: Primitive, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cast float32 arguments to float64: those beside float64 ones, or all that the operation computes with."""
    if not casts_on_use():
        return one_float(args)
    return args if operation.name in MOVES else widest(args)


def one_float(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cast float32 arguments to float64 if the arguments mix both."""
    types = [getattr(arg, "dtype", None) for arg in args]
    if not {FLOAT32, FLOAT64} <= {*types}:
        return args
    return tuple(jnp.asarray(arg, FLOAT64) if dtype == FLOAT32 else arg for arg, dtype in zip(args, types, strict=True))


def widest(value: Any) -> Any:
    """Cast float32 arrays in a value to float64."""
    return jax.tree.map(lambda each: jnp.asarray(each, FLOAT64) if getattr(each, "dtype", None) == FLOAT32 else each, value)


def tables_instead(args: tuple[Any, ...], tables: Tables) -> tuple[Any, ...]:
    """Replace constants among the arguments by torch's tables where they match."""
    return tuple(tables.instead(arg) if is_constant(arg) and np.ndim(arg) else arg for arg in args) if tables.held else args


def one_integer(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Cast int32 arguments to int64 if the arguments mix both; None if they do not."""
    int32, int64 = INTEGERS
    types = [getattr(arg, "dtype", None) for arg in args]
    if not {int32, int64} <= set(types):
        return None
    return tuple(jnp.asarray(arg, int64) if kind == int32 else arg for arg, kind in zip(args, types, strict=True))


def is_constant(argument: Any) -> bool:
    """True if an argument has concrete values while JAX traces; before JAX 0.10, concrete arguments may have a type of their
    own."""
    return isinstance(argument, int | float) or (hasattr(argument, "dtype") and not isinstance(argument, Tracer))


WEIGHT_NORM = "_weight_norm_interface"


def check_weight_norm(weight: Any, gain: Any, axis: int = 0) -> None:
    """Raise ValueError if a weight norm's gain does not fit the axis: torch does not check it, and reads other memory."""
    if gain.numel() != weight.shape[axis]:
        raise ValueError(f"the gain {[*gain.shape]} does not fit axis {axis} of {[*weight.shape]}")


@contextmanager
def torch_float64() -> Iterator[None]:
    """Run torch with float64 as the default dtype, and with float64 wherever an operation requests float32."""
    import torch
    from torch.utils._pytree import tree_map_only

    wider = {torch.float32: torch.float64, torch.complex64: torch.complex128}

    def widest(value: Any) -> Any:
        return tree_map_only(torch.Tensor, lambda each: each.double() if each.dtype == torch.float32 else each, value)

    def in_float64(operation: Any, args: tuple[Any, ...], how: Mapping[str, Any]) -> Any:
        if isinstance(dtype := how.get("dtype"), torch.dtype):
            how = {**how, "dtype": wider.get(dtype, dtype)}
        if operation.overloadpacket.__name__ == WEIGHT_NORM:
            check_weight_norm(*args)
        if casts_on_use() and operation._schema.is_mutable:
            refuse_weight(args[0])
        elif casts_on_use() and not operation.is_view:
            if operation.overloadpacket.__name__ in GATHERS:
                return widest(operation(*args, **how))
            args, how = widest(args), widest(how)
        return grouped_product(*args) if is_grouped_product(operation, args) else operation(*args, **how)

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch_operations(in_float64), same_dtype() if casts_on_use() else nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)


def to_float64(model: PyTree) -> PyTree:
    """Cast every float leaf to float64 (under `jax.enable_x64(True)`).

    If operations cast what they use, only the state of an NNX model is cast, which it writes into; the copy shares its weights.
    """
    if not casts_on_use():
        return cast(model, jnp.float64)
    return jax.tree.map(
        lambda part: cast(part, jnp.float64) if is_state(part) else jax.tree.map(lambda leaf: leaf, part),
        model,
        is_leaf=lambda part: isinstance(part, nnx.Variable),
    )


def is_state(part: Any) -> bool:
    """True for a variable of NNX that is no parameter."""
    return isinstance(part, nnx.Variable) and not isinstance(part, nnx.Param)


def cast(tree: PyTree, dtype: Any) -> PyTree:
    """Cast every float leaf to another dtype, on the host, so that nothing is compiled."""
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf).astype(dtype)) if is_weight(leaf) else leaf, tree)


def inputs_float64(inputs: tuple[np.ndarray, ...]) -> tuple[jax.Array, ...]:
    """Return a model's inputs as jax arrays, floats as float64."""
    return tuple(cast([*map(jax.device_put, inputs)], jnp.float64))
