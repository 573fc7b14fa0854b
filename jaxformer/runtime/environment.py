"""The environment that jax starts in: variables that keep it from working, and the order of collectives on a CPU.

Imports no jax."""

import os
import re
import warnings
from contextlib import suppress

from jaxformer.errors import InputError, first_line, message_of


def check_jax() -> None:
    """InputError where jax does not start, or cannot compute. For what would take that for a fault of something else."""
    try:
        compute()
    except Exception as error:
        raise InputError(jax_fault(error)) from None


def compute() -> None:
    """As little as there is."""
    import jax

    jax.block_until_ready(jax.numpy.arange(2) + 1)


def jax_fault(error: Exception) -> str:
    """What of the environment is behind an error: a variable that it names or that asks for it, or what keeps jax from
    computing; else ''."""
    given = {name: value for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_"))}
    asked = "NANS" if "(nan)" in message_of(error) else "INFS"
    if isinstance(error, FloatingPointError) and (value := given.get(f"JAX_DEBUG_{asked}")):
        said = f"JAX_DEBUG_{asked}={value} stops JAX at the first {asked[:-1].lower()}: {first_line(error)}"
        return f"{said}; unset it: a run skips such steps by itself, and says where they come from"
    named = [name for name in given if {name, name.lower()} & {*re.findall(r"\w+", message_of(error))}]
    if not named:
        with suppress(Exception):
            compute()
            return ""
        named = [name for name in given if "CACHE" not in name]
    shown = " ".join(f"{name}={given[name]}" for name in named)
    remedy = "change or unset it" if shown else "see that its packages are for this machine"
    return f"jax does not work{shown and ' with '}{shown}: {first_line(error)}; {remedy}"


def check_xla_flags() -> None:
    """InputError for XLA_FLAGS that XLA refuses, for it ends the process with a code that has another meaning here.

    A fork lets XLA read them: call it before jax has its devices.
    """
    if not (flags := os.environ.get("XLA_FLAGS")):
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # as jax sets it, which is not imported yet: XLA says less
    from jaxlib import xla_client

    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the other threads are not needed there
        child = os.fork()
    if child == 0:
        try:
            os.dup2(writing, 2)
            xla_client.CompileOptions()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8", errors="replace") as pipe:
        said = pipe.read()
    if os.waitpid(child, 0)[1]:
        why = said.partition("] ")[2].partition("\n")[0]
        raise InputError(f"XLA_FLAGS={flags}: {why or 'XLA refuses them'}; change or unset it")


SCHEDULER = "xla_cpu_enable_concurrency_optimized_scheduler"
"""XLA's CPU compiler has it on, and then orders collectives so that devices may wait for each other for ever."""


def in_order() -> None:
    """Every device runs its collectives in one order. Call it before jax has its devices, for then XLA reads its flags."""
    flags = os.environ.get("XLA_FLAGS", "")
    if SCHEDULER not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{SCHEDULER}=false".strip()
