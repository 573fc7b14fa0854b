"""XLA's compile options: which of them this jaxlib knows, and which ones switch off what it computes wrong.

`FAULTS` is the one table of known faults. Training, decoding and evaluation compile with `cure`, programs of a comparison with
`exact`. Importing this module imports no jax.
"""

import functools
import importlib.metadata
import math
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

Options = Mapping[str, str | bool | int]
NONE: Options = MappingProxyType({})

YNNPACK = "xla_cpu_experimental_ynn_fusion_type"
"""Which operations XLA's CPU compiler hands to the kernel library YNNPACK."""
PRODUCTS_ALONE: Options = {YNNPACK: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
"""No reductions, and no products joined with other operations. A plain product, where the library is fast, stays."""
NO_YNNPACK: Options = {YNNPACK: ""}
"""A product over rows of 4,096 in float32 is three times as far off with the library as without it."""
NEWEST_TRIED = (0, 12, 0, 1)
"""The newest jaxlib on which every fault was tried."""
IN_FLAGS = "--xla_cpu_experimental_ynn_fusion_type=-reduce"
"""`PRODUCTS_ALONE` as a user writes it in XLA_FLAGS, for all programs of a process."""


class Operation(NamedTuple):
    """One operation of a program, as JAX traces it."""

    name: str
    """Of its primitive: 'reduce_sum'."""
    shapes: Sequence[tuple[int, ...]]
    """Of its operands."""
    parameters: Mapping[str, Any]


SUSPECTED = ("reduce_", "dot_general")
"""How the names of all operations begin that a fault below may reach."""


def sums_thin_rows(operation: Operation) -> bool:
    """Whether many rows of few entries each are reduced."""
    shape, axes = operation.shapes[0], operation.parameters.get("axes", ())
    width = math.prod(shape[axis] for axis in axes)
    return 1 < width <= 32 and math.prod(shape) // width > 2**14


def has_rank_7(operation: Operation) -> bool:
    """Whether an array of seven axes or more is reduced or multiplied out."""
    return any(len(shape) >= 7 for shape in operation.shapes)


def has_holes(operation: Operation) -> bool:
    """Whether a window of length 1 passes over an axis with holes."""
    axes = (operation.parameters.get(name, ()) for name in ("window_dimensions", "window_strides", "base_dilation"))
    return any(length == stride == 1 < dilation for length, stride, dilation in zip(*axes, strict=False))


@dataclass(frozen=True)
class Fault:
    """Programs that some releases of jaxlib compute wrong, or that end the process."""

    name: str
    """Of its program in `known_programs`."""
    says: str
    report: str
    """The public report: project#number."""
    first: tuple[int, ...]
    """The first release of jaxlib that has it."""
    last: tuple[int, ...] | None
    """The last one; None where no release without it is known."""
    suspects: Callable[[Operation], bool]
    """Whether an operation may be computed wrong; most of these are computed right."""

    @property
    def url(self) -> str:
        """Where the report is read."""
        project, number = self.report.split("#")
        return f"https://github.com/{'jax-ml/jax' if project == 'jax' else 'openxla/xla'}/issues/{number}"

    def is_in(self, release: tuple[int, ...]) -> bool:
        """Whether this release of jaxlib has it."""
        return self.first <= release and (self.last is None or release <= self.last)


FAULTS = (
    Fault("rows", "sums behind a product of many thin rows are wrong", "jax#39103", (0, 10, 2), (0, 10, 2), sums_thin_rows),
    Fault("rank7", "sums of products of rank 7 end the process", "jax#40412", (0, 10, 2), (0, 10, 2), has_rank_7),
    Fault("rank8", "sums of products of rank 8 end the process", "jax#39257", (0, 10, 2), (0, 11, 0), has_rank_7),
    Fault("dilated", "windows over a dilated array leave out its holes", "xla#48714", (0, 10, 2), None, has_holes),
)
"""All of them are of the CPU compiler on x86-64, and of the kernel library YNNPACK: `PRODUCTS_ALONE` cures them."""


def jaxlib_release() -> tuple[int, ...]:
    """The release of jaxlib that is installed, as numbers."""
    return tuple(map(int, re.findall(r"\d+", importlib.metadata.version("jaxlib"))[:4]))


def faults(release: tuple[int, ...] | None = None) -> tuple[Fault, ...]:
    """Those of this jaxlib on this machine; none beside a CPU, or where XLA_FLAGS name what the library may compute."""
    import jax

    if jax.default_backend() != "cpu" or platform.machine() not in ("x86_64", "AMD64"):
        return ()
    if YNNPACK in os.environ.get("XLA_FLAGS", ""):
        return ()
    release = release or jaxlib_release()
    return tuple(fault for fault in FAULTS if fault.is_in(release))


def cure() -> dict[str, Any]:
    """Options that switch off what this jaxlib is known to compute wrong; empty where nothing is."""
    return known(PRODUCTS_ALONE) if faults() else {}


def exact(options: Options = NONE) -> dict[str, Any]:
    """Options of a comparison's own programs: these, those that this jaxlib knows, and no YNNPACK."""
    import jax

    return known({**options, **(NO_YNNPACK if jax.default_backend() == "cpu" else {})})


def known(options: Options) -> dict[str, Any]:
    """Those options that this jaxlib knows. It is asked once a process."""
    return {name: value for name, value in options.items() if name not in _unknown(tuple(sorted(options.items(), key=str)))}


@functools.cache
def _unknown(options: tuple[tuple[str, Any], ...]) -> frozenset[str]:
    """Names that this jaxlib does not know, by compiling a program with them until it does."""
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


class jit:  # noqa: N801  it stands where jax.jit would
    """jax.jit(f, **how), compiled with `cure`. Traced inside of another jit, it takes the options of that program."""

    def __init__(self, f: Callable[..., Any], **how: Any):
        functools.update_wrapper(self, f)
        self._f, self._how = f, how

    @functools.cached_property
    def plain(self) -> Any:
        """Without options."""
        import jax

        return jax.jit(self._f, **self._how)

    @functools.cached_property
    def cured(self) -> Any:
        """With them; the options are asked for at the first call, when jax has its devices."""
        import jax

        return jax.jit(self._f, compiler_options=options, **self._how) if (options := cure()) else self.plain

    def __call__(self, *given: Any, **named: Any) -> Any:
        return (self.cured if _is_outside() else self.plain)(*given, **named)

    def __getattr__(self, name: str) -> Any:
        """`lower`, `trace` and the rest of what jax.jit gives."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.cured, name)


def _is_outside() -> bool:
    """Whether nothing is traced."""
    from flax.core.tracers import current_trace

    return current_trace() == _outside()


@functools.cache
def _outside() -> Any:
    """JAX's trace where nothing is traced, as in a new thread."""
    from flax.core.tracers import current_trace

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(current_trace).result()
