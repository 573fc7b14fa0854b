"""jax.jit with the compile options of a class of programs: the kernel library that is fastest here, without known faults."""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from jaxformer.runtime.memory import give_back_freed_memory
from jaxformer.runtime.products import Library, Work, library, options, work_of

_work = threading.local()
"""`asked` is True in a thread that only asks for compiled programs, and runs none."""


class _AskedError(Exception):
    """Ends the work of `ahead`, which has asked for its program."""


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
        self._ahead: Future[Any] | None = None

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
        if not _is_outside():
            return self.plain(*given, **named)
        if getattr(_work, "asked", False):
            self._ahead = _compiler().submit(self.lower(*given, **named).compile)
            raise _AskedError
        if self._ahead is not None:
            wait([self._ahead])
            self._ahead = None
        if not self._compiled:
            self.lower(*given, **named).compile()  # the call below finds it
            give_back_freed_memory()  # which the compiler took, and which would add to what the program takes
        return self.compiled(given, named)(*given, **named)

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


def ahead(call: Callable[..., Any], *given: Any, **named: Any) -> None:
    """Compile the first `jit` that call(*given) runs, in a thread, and end the call there; a later call finds it compiled.

    What the call does before that is done, so it has to be without effects. Does nothing in a group of processes, which compile
    together.
    """
    import jax

    if jax.process_count() > 1:
        return
    _work.asked = True
    try:
        call(*given, **named)
    except _AskedError:
        pass
    finally:
        _work.asked = False


@functools.cache
def _compiler() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="compiler")


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
