"""Environment in which jax starts: the processor, variables that keep jax from working, and the order of collectives on a
CPU. Imports no jax.
"""

import os
import platform
import re
import warnings
from contextlib import suppress
from pathlib import Path

from jaxformer.errors import InputError, first_line, message_of


def processor() -> str:
    """Name of the processor: the width of its vectors decides the order of sums."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def check_jax() -> None:
    """Raise InputError if jax does not start or cannot compute, before that is mistaken for another fault."""
    try:
        compute()
    except Exception as error:
        raise InputError(jax_fault(error)) from None


def compute() -> None:
    """Run a minimal jax computation."""
    import jax

    jax.block_until_ready(jax.numpy.arange(2) + 1)


def jax_fault(error: Exception) -> str:
    """Return what in the environment causes an error, as a message; "" if nothing does.

    Causes are a JAX_ or XLA_ variable that the error names, JAX_DEBUG_NANS or JAX_DEBUG_INFS that raised it, or a jax that
    cannot compute at all.
    """
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
    """Raise InputError for XLA_FLAGS that XLA refuses: XLA would end the process, with an exit code that has another meaning
    here.

    XLA reads the flags in a forked process: call this before jax has its devices.
    """
    if not (flags := os.environ.get("XLA_FLAGS")):
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # jax sets this too, but is not imported yet: XLA logs less
    from jaxlib import xla_client

    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fork warns about other threads, which the child does not need
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
"""XLA flag of a CPU scheduler, on by default, which orders collectives so that devices may wait for each other forever."""


def in_order() -> None:
    """Make every device run its collectives in the same order. Call it before jax has its devices: XLA reads its flags then."""
    flags = os.environ.get("XLA_FLAGS", "")
    if SCHEDULER not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{SCHEDULER}=false".strip()
