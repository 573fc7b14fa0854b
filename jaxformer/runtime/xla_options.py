"""Compile options of XLA: those that this jaxlib knows, and those that avoid its known faults.

`FAULTS` is the only table of known faults. The programs of a comparison compile with `exact`; training, decoding and evaluation
with `runtime.products`, which avoids the faults too. Importing this module imports no jax.
"""

import functools
import importlib.metadata
import math
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

Options = Mapping[str, str | bool | int]
NONE: Options = MappingProxyType({})

YNNPACK = "xla_cpu_experimental_ynn_fusion_type"
"""Option that lists the operations which XLA's CPU compiler hands to the kernel library YNNPACK."""
PRODUCTS_ALONE: Options = {YNNPACK: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
"""Options under which YNNPACK computes only plain products, where it is fast: no reductions and no fused products."""
NO_YNNPACK: Options = {YNNPACK: ""}
"""Options without YNNPACK: with it, the error of a float32 product over rows of 4,096 is three times as large."""
LASTING_BARRIERS: Options = {"xla_disable_hlo_passes": "cse_barrier_expander"}
"""Option under which a CPU's programs keep their optimization barriers to the end. Without it, the compiler of jaxlib 0.10
merges what `jax.checkpoint` computes again with the first value, which it then holds until the backward pass."""
NEWEST_TRIED = (0, 12, 0, 1)
"""Newest jaxlib on which every fault was tried."""
IN_FLAGS = "--xla_cpu_experimental_ynn_fusion_type=-reduce"
"""Form of `PRODUCTS_ALONE` for XLA_FLAGS, where it applies to all programs of a process."""


class Operation(NamedTuple):
    """One operation of a program, as JAX traces it."""

    name: str
    """Name of the primitive: 'reduce_sum'."""
    shapes: Sequence[tuple[int, ...]]
    """Shapes of the operands."""
    parameters: Mapping[str, Any]


SUSPECTED = ("reduce_", "dot_general")
"""Prefixes of the names of all operations that a fault below may affect."""


def sums_thin_rows(operation: Operation) -> bool:
    """True if many rows of few entries each are reduced."""
    shape, axes = operation.shapes[0], operation.parameters.get("axes", ())
    width = math.prod(shape[axis] for axis in axes)
    return 1 < width <= 32 and math.prod(shape) // width > 2**14


def has_rank_7(operation: Operation) -> bool:
    """True if an operand has seven axes or more."""
    return any(len(shape) >= 7 for shape in operation.shapes)


def has_holes(operation: Operation) -> bool:
    """True if a window of length 1 slides over a dilated axis, which has holes."""
    axes = (operation.parameters.get(name, ()) for name in ("window_dimensions", "window_strides", "base_dilation"))
    return any(length == stride == 1 < dilation for length, stride, dilation in zip(*axes, strict=False))


@dataclass(frozen=True)
class Fault:
    """Known fault of XLA: programs that some releases of jaxlib compute wrong, or that end the process."""

    name: str
    """Name of the fault's test program in `known_programs`."""
    says: str
    report: str
    """Public report, as project#number."""
    first: tuple[int, ...]
    """First affected release of jaxlib."""
    last: tuple[int, ...] | None
    """Last affected release; None if no later release without the fault is known."""
    suspects: Callable[[Operation], bool]
    """Function that is True for operations which may be computed wrong; most of them are computed right."""

    @property
    def url(self) -> str:
        """URL of the report."""
        project, number = self.report.split("#")
        return f"https://github.com/{'jax-ml/jax' if project == 'jax' else 'openxla/xla'}/issues/{number}"

    def is_in(self, release: tuple[int, ...]) -> bool:
        """True if a release of jaxlib has the fault."""
        return self.first <= release and (self.last is None or release <= self.last)


FAULTS = (
    Fault("rows", "sums after a product of many thin rows are wrong", "jax#39103", (0, 10, 2), (0, 10, 2), sums_thin_rows),
    Fault("rank7", "sums of products of rank 7 end the process", "jax#40412", (0, 10, 2), (0, 10, 2), has_rank_7),
    Fault("rank8", "sums of products of rank 8 end the process", "jax#39257", (0, 10, 2), (0, 11, 0), has_rank_7),
    Fault("dilated", "windows over a dilated array leave out its holes", "xla#48714", (0, 10, 2), None, has_holes),
)
"""Known faults, all of the CPU compiler on x86-64 and of the kernel library YNNPACK; `PRODUCTS_ALONE` avoids them."""


def jaxlib_release() -> tuple[int, ...]:
    """Return the installed release of jaxlib as numbers."""
    return tuple(map(int, re.findall(r"\d+", importlib.metadata.version("jaxlib"))[:4]))


def faults(release: tuple[int, ...] | None = None) -> tuple[Fault, ...]:
    """Return the faults of this jaxlib on this machine.

    There are none on other devices than a CPU, or if XLA_FLAGS already limit what YNNPACK may compute.
    """
    import jax

    if jax.default_backend() != "cpu" or platform.machine() not in ("x86_64", "AMD64"):
        return ()
    if YNNPACK in os.environ.get("XLA_FLAGS", ""):
        return ()
    release = release or jaxlib_release()
    return tuple(fault for fault in FAULTS if fault.is_in(release))


def cure() -> dict[str, Any]:
    """Return options that avoid the known faults of this jaxlib; empty if it has none."""
    return known(PRODUCTS_ALONE) if faults() else {}


def exact(options: Options = NONE) -> dict[str, Any]:
    """Return options for a comparison's own programs: the given ones that this jaxlib knows, and no YNNPACK."""
    import jax

    return known({**options, **(NO_YNNPACK if jax.default_backend() == "cpu" else {})})


def known(options: Options) -> dict[str, Any]:
    """Return the options that this jaxlib knows; the result is cached."""
    return {name: value for name, value in options.items() if name not in _unknown(tuple(sorted(options.items(), key=str)))}


@functools.cache
def _unknown(options: tuple[tuple[str, Any], ...]) -> frozenset[str]:
    """Return the names that this jaxlib does not know, by compiling a program without the refused names until it succeeds."""
    import jax

    left, refused = dict(options), set[str]()
    lowered = jax.jit(lambda: 0).lower()
    while left:
        try:
            lowered.compile(left)
        except Exception as error:
            named = [name for name in left if f"'{name}'" in str(error)]
            if "No such compile option" not in str(error) or not named:
                raise
            refused.update(named)
            for name in named:
                del left[name]
        else:
            break
    return frozenset(refused)
