"""Choose XLA_FLAGS by the release of jaxlib: a flag that it does not know ends the process.

Compile options are probed instead, in `jaxformer.runtime.xla_options`. Importing this module imports no jax.
"""

from jaxformer.runtime.xla_options import jaxlib_release

FIRST: dict[str, tuple[int, ...]] = {"xla_cpu_experimental_ynn_fusion_type": (0, 8, 1)}
"""First release of jaxlib that knows a flag, if the oldest allowed release does not."""
REMOVED: dict[str, tuple[int, ...]] = {"xla_cpu_use_fusion_emitters": (0, 11, 1)}
"""First release of jaxlib that has removed a flag."""


def xla_flags(flags: dict[str, str], release: tuple[int, ...] | None = None) -> str:
    """Format the flags that a release of jaxlib knows as a value of XLA_FLAGS; None: the installed release."""
    release = release or jaxlib_release()
    return " ".join(f"--{name}={value}" for name, value in flags.items() if _is_known(name, release))


def _is_known(flag: str, release: tuple[int, ...]) -> bool:
    return FIRST.get(flag, ()) <= release and (flag not in REMOVED or release < REMOVED[flag])
