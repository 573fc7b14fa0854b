"""Kernel library of matrix products on a CPU, chosen by a measurement that is kept in the user's cache.

XLA hands a product to oneDNN, to YNNPACK, or to its own kernels (Eigen). Which is fastest depends on the processor, on jaxlib
and on the shapes: training has large and batched products, decoding has thin ones. No choice here lets YNNPACK do more than
plain products, which it computes right. XLA cannot keep a program with oneDNN in the compilation cache: it compiles at
every start, so only the training of large models, which is long, is measured with oneDNN. Importing this module imports no jax.
"""

import functools
import json
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

import numpy as np

from jaxformer.errors import JaxformerError
from jaxformer.runtime.cores import cores
from jaxformer.runtime.environment import processor
from jaxformer.runtime.xla_options import LASTING_BARRIERS, NO_YNNPACK, PRODUCTS_ALONE, Options, cure, jaxlib_release, known
from jaxformer.validation.fields import check_choice, parsed, read_small

Library = Literal["onednn+ynnpack", "onednn", "ynnpack", "eigen"]
"""Kernel library of XLA's CPU compiler. Of two, oneDNN takes the products that it can."""
Work = Literal["small", "large", "write"]
"""Class of a program: training and evaluation of a small or a large model, or decoding, token after token."""
SMALL = 128
"""Largest width of a small model, in units."""
VARIABLE = "JAXFORMER_PRODUCTS"
"""Environment variable that names the library for all programs."""
ONEDNN: Options = {
    "xla_cpu_use_onednn": True,
    "xla_cpu_experimental_onednn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
}
LIBRARIES: Mapping[Library, Options] = MappingProxyType(
    {
        "onednn+ynnpack": {**ONEDNN, **PRODUCTS_ALONE},
        "onednn": {**ONEDNN, **NO_YNNPACK},
        "ynnpack": PRODUCTS_ALONE,
        "eigen": NO_YNNPACK,
    }
)
"""Libraries -> their compile options; of two that are about as fast, the first is taken."""
NOISE = 1.05
"""Ratio of two times up to which they are about the same."""
UNKEPT = "Error writing persistent compilation cache entry for .*: ToProto is not implemented for thunk kind: onednn"
"""Warning of jax about a program with oneDNN's kernels, which is not shown: nobody can do anything about it."""
ROUNDS = 8
"""Number of times that each library is timed, in turns; the shortest time counts."""

_fixed: dict[Work, Library] = {}


def work_of(arrays: Any) -> Work:
    """Return the class of a training program by its arrays: the shorter axis of the largest matrix is the model's width."""
    import jax

    leaves = [leaf for leaf in jax.tree.leaves(arrays) if np.ndim(leaf) >= 2 and leaf.dtype.kind not in "iub"]
    return work_of_width(max((min(leaf.shape[-2:]) for leaf in leaves), default=0))


def work_of_width(width: int) -> Work:
    """Return the class of training a model of this width."""
    return "small" if width <= SMALL else "large"


def options(work: Work) -> dict[str, Any]:
    """Return compile options for programs of this class; where no library is chosen, those that avoid the known faults."""
    import jax

    found = options_of(name) if (name := library(work)) else cure()
    is_training = work != "write" and jax.default_backend() == "cpu"
    return {**found, **LASTING_BARRIERS} if is_training else found


def options_of(name: Library) -> dict[str, Any]:
    """Return the compile options of a library that this jaxlib knows."""
    if "onednn" in name:
        warnings.filterwarnings("ignore", UNKEPT, UserWarning)
    return known(LIBRARIES[name])


def fix(name: Library) -> None:
    """Train with this library in this process, whatever is faster; decoding keeps its own."""
    _fixed.update({"small": name, "large": name})


def named_in_flags() -> bool:
    """True if XLA_FLAGS choose the kernel library of all programs."""
    return any(name in os.environ.get("XLA_FLAGS", "") for name in (*ONEDNN, *NO_YNNPACK))


def library(work: Work) -> Library | None:
    """Return the library for programs of this class: the fixed one, that of the environment variable, or the fastest one.

    None on accelerators, and if XLA_FLAGS name a library.
    """
    import jax

    if jax.default_backend() != "cpu" or named_in_flags():
        return None
    if work in _fixed:
        return _fixed[work]
    if name := os.environ.get(VARIABLE):
        check_choice(VARIABLE, name, LIBRARIES)
        return cast(Library, name)
    seconds = measured(work)
    most = NOISE * min(seconds.values())
    return next(name for name in LIBRARIES if seconds.get(name, math.inf) <= most)


def measure_again() -> None:
    """Forget what was measured on this machine, so that it is measured at the next use."""
    with suppress(OSError):
        _path().unlink()
    measured.cache_clear()


@functools.cache
def measured(work: Work) -> Mapping[Library, float]:
    """Return the seconds of each available library, from the user's cache or measured now and kept there."""
    path = _path()
    kept = _read(path)
    if work not in kept:
        with ThreadPoolExecutor(1) as thread:  # in which no mesh, type or tracing of the caller is in force
            kept[work] = thread.submit(measure, work).result()
        _write(path, {**_read(path), work: kept[work]})
    return kept[work]


def available(work: Work) -> list[Library]:
    """Return the libraries that may serve this class, and whose options this jaxlib knows."""
    those: dict[Library, Options] = {name: at for name, at in LIBRARIES.items() if work == "large" or "onednn" not in name}
    return [name for name, at in those.items() if name == "eigen" or len(known(at)) == len(at)]


def measure(work: Work) -> dict[Library, float]:
    """Time each available library on the products of a class of programs; seconds, by library."""
    import jax

    program, arrays = PROGRAMS[work]()
    those: dict[Library, Any] = {name: jax.jit(program, compiler_options=options_of(name)) for name in available(work)}
    runs: dict[Library, Any] = {name: function.lower(*arrays).compile() for name, function in those.items()}
    seconds = dict.fromkeys(runs, math.inf)
    for turn in range(ROUNDS + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run(*arrays))
            if turn:  # the first one fills caches
                seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def products_of_training(rows: int, width: int, heads: int, length: int, repeats: int) -> tuple[Callable[..., Any], list[Any]]:
    """Products of a layer and of its gradient, several times: a feed-forward layer, and heads of an attention."""
    import jax
    import jax.numpy as jnp

    def layer(_: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x, w, y, q, p = given
        scores, values, gradient = jnp.einsum("btd,bsd->bts", q, q), p @ q, jnp.einsum("bts,btd->bsd", p, q)
        return y @ w.T, jnp.einsum("ri,ro->io", x, y), x @ w, values + gradient, scores

    def program(*given: Any) -> tuple[Any, ...]:
        return jax.lax.fori_loop(0, repeats, layer, given)

    of_head = width // 4
    return program, _drawn(
        (rows, width), (width, 4 * width), (rows, 4 * width), (heads, length, of_head), (heads, length, length)
    )


def products_of_decoding() -> tuple[Callable[..., Any], list[Any]]:
    """Products of one row, and of 16, with weights that no cache holds."""

    def program(row: Any, rows: Any, *weights: Any) -> Any:
        for w in weights:
            row, rows = row @ w, rows @ w
        return row, rows

    return program, _drawn((1, 1024), (16, 1024), *[(1024, 1024)] * 4)


PROGRAMS: Mapping[Work, Callable[[], tuple[Callable[..., Any], list[Any]]]] = {
    "small": functools.partial(products_of_training, rows=512, width=64, heads=64, length=32, repeats=8),
    "large": functools.partial(products_of_training, rows=1024, width=256, heads=32, length=128, repeats=1),
    "write": products_of_decoding,
}


def _drawn(*shapes: tuple[int, ...]) -> list[Any]:
    import jax

    rng = np.random.default_rng(0)
    return [jax.device_put(rng.standard_normal(shape, np.float32) / math.sqrt(shape[-1])) for shape in shapes]


def _path() -> Path:
    """Path of the file of measurements: one for each processor, number of cores, jaxlib and XLA_FLAGS."""
    from hashlib import sha256

    import platformdirs

    release = ".".join(map(str, jaxlib_release()))
    machine = f"{processor()} · {cores()} · {os.environ.get('XLA_FLAGS', '')}"
    return platformdirs.user_cache_path("jaxformer") / f"products-{release}-{sha256(machine.encode()).hexdigest()[:16]}.json"


def _read(path: Path) -> dict[Work, dict[Library, float]]:
    """Read measurements; those that are damaged, or are not of the available libraries, are left out."""
    with suppress(OSError, ValueError, TypeError, AttributeError, OverflowError, JaxformerError):
        held = parsed(read_small(path))
        found: dict[Work, dict[Library, float]] = {}
        for work in PROGRAMS:
            if work in held and {*held[work]} == {*available(work)}:
                found[work] = {name: float(value) for name, value in held[work].items()}
        return {work: seconds for work, seconds in found.items() if all(0 < value < math.inf for value in seconds.values())}
    return {}


def _write(path: Path, found: Mapping[Work, Mapping[Library, float]]) -> None:
    """Write measurements by an atomic write; where that fails, they are measured again the next time."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            unfinished = Path(folder) / path.name
            unfinished.write_text(json.dumps(found))
            os.replace(unfinished, path)
