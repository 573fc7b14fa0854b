"""Programs that run once: compiled where that is possible."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import jax

from jaxformer.parity.trace.source_lines import line_of
from jaxformer.parity.trace.transformations import HiddenCallsError, written_out
from jaxformer.runtime.crashes import CRASHED, note
from jaxformer.runtime.memory import give_back_freed_memory
from jaxformer.runtime.xla_options import Options, exact

RUN_ONCE: Options = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""Compiler options for a program that runs once: compilation takes half the time."""

UNTRACEABLE = (
    HiddenCallsError,
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""Errors of code that needs concrete values while it is traced, or whose calls are seen only with concrete values."""


_one_by_one: list[bool] = []
"""Non-empty if operations run one by one in the running comparison."""


@contextmanager
def one_by_one() -> Iterator[None]:
    """Context manager: operations run one by one, and no program is compiled."""
    _one_by_one.append(True)
    try:
        yield
    finally:
        _one_by_one.pop()


def compiles() -> bool:
    """True if programs are compiled."""
    return not (_one_by_one or os.environ.get(CRASHED))


def run_once(f: Callable[..., Any], *given: Any, options: Options = RUN_ONCE) -> tuple[Any, str]:
    """Return f(*given), compiled, and ''; if f cannot be traced, f(*given) uncompiled, and the reason with the line of user
    code."""
    program = compiled_once(f, *given, options=options)
    return program.run(*given), program.why_not


class Program(NamedTuple):
    """Function that is compiled, if that is possible."""

    run: Callable[..., Any]
    is_compiled: bool
    why_not: str = ""
    """Description of what jit cannot trace, with the line of user code; empty otherwise."""


def compiled_once(f: Callable[..., Any], *like: Any, options: Options = RUN_ONCE) -> Program:
    """Compile f for arguments like these, unless jit is turned off."""
    if jax.config.values["jax_disable_jit"]:
        return Program(f, is_compiled=False)
    if not compiles():
        return Program(written_out()(f), is_compiled=False)
    try:
        traced = (jitted := jax.jit(noted(f))).trace(*like)
        if len(traced.jaxpr.jaxpr.invars) > len(jax.tree.leaves(like)):
            jitted(*like)  # raises JAX's error for an array of another trace, which the compiler takes for an argument
        program = traced.lower().compile(exact(options))
    except (*UNTRACEABLE, ValueError) as error:
        return Program(written_out()(f), is_compiled=False, why_not=_why_not_jit(error))
    give_back_freed_memory()  # which the compiler took, and which would add to what the program takes
    return Program(program, is_compiled=True)


def noted(f: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap f for jit: once it is traced, note that the compiled program runs, in case of a crash."""

    @wraps(f)
    def traced(*given: Any) -> Any:
        output = f(*given)
        note("the compiled program")
        return output

    return traced


def _why_not_jit(error: Exception) -> str:
    """Describe what jit cannot do, and where; another error is raised again."""
    if isinstance(error, ValueError) and NO_GRADIENT not in str(error):
        raise error
    place = line_of(error) or "a line of a library's"
    return f"jit {'hides calls in' if isinstance(error, HiddenCallsError) else 'cannot trace'} {place}"


NO_GRADIENT = "Reverse-mode differentiation does not work for lax.while_loop"
"""jit's message for a loop that has gradients only without jit, where it is a Python loop."""
