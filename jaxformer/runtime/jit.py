"""jax.jit with the compile options of a class of programs: the kernel library that is fastest here, without known faults."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jaxformer.runtime.products import Library, Work, library, options, work_of


class jit:  # noqa: N801  a substitute for jax.jit
    """jax.jit(f, **how) with the options of its class of programs. Within another jit, it uses those of the outer program.

    The class is `work`; left out, it is that of training, small or large by the arrays of the first call: to look at all leaves
    of a model takes a millisecond, which each step would pay.
    """

    def __init__(self, f: Callable[..., Any], *, work: Work | None = None, **how: Any):
        functools.update_wrapper(self, f, updated=())
        self._f, self._how = f, how
        self._work: Work | None = work
        self._compiled: dict[Library | None, Any] = {}

    @functools.cached_property
    def plain(self) -> Any:
        """jax.jit(f, **how) without options."""
        import jax

        return jax.jit(self._f, **self._how)

    def compiled(self, *given: Any) -> Any:
        """jax.jit(f, **how) with the options of its class, which are read at a call, when jax has its devices."""
        import jax

        self._work = self._work or work_of(given)
        if (name := library(self._work)) not in self._compiled:
            found = options(self._work)
            self._compiled[name] = jax.jit(self._f, compiler_options=found, **self._how) if found else self.plain
        return self._compiled[name]

    def __call__(self, *given: Any, **named: Any) -> Any:
        return (self.compiled(given, named) if _is_outside() else self.plain)(*given, **named)

    def lower(self, *given: Any, **named: Any) -> Any:
        """Lower as jax.jit(f).lower does."""
        return self.compiled(given, named).lower(*given, **named)

    def trace(self, *given: Any, **named: Any) -> Any:
        """Trace as jax.jit(f).trace does."""
        return self.compiled(given, named).trace(*given, **named)

    def clear_cache(self) -> None:
        """Forget the compiled programs."""
        for each in self._compiled.values():
            each.clear_cache()

    def _cache_size(self) -> int:
        return sum(each._cache_size() for each in self._compiled.values())


def _is_outside() -> bool:
    """True if no program is being traced."""
    from flax.core.tracers import current_trace

    return current_trace() == _outside()


@functools.cache
def _outside() -> Any:
    """Return JAX's trace outside of any tracing, as in a new thread."""
    from flax.core.tracers import current_trace

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(current_trace).result()
