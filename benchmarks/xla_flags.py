"""XLA_FLAGS for every jaxlib: a flag that it does not know ends the process, so a release decides which are given.

Compile options are asked for instead, in `jaxformer.runtime.xla_options`. Importing this module imports no jax.
"""

from jaxformer.runtime.xla_options import jaxlib_release

FIRST: dict[str, tuple[int, ...]] = {"xla_cpu_experimental_ynn_fusion_type": (0, 8, 1)}
"""The first release of jaxlib that knows a flag, where the oldest one allowed does not."""
REMOVED: dict[str, tuple[int, ...]] = {"xla_cpu_use_fusion_emitters": (0, 11, 1)}
"""The first release that does not know it any more."""


def xla_flags(flags: dict[str, str], release: tuple[int, ...] | None = None) -> str:
    """Those flags that this jaxlib knows, as XLA_FLAGS has them."""
    release = release or jaxlib_release()
    return " ".join(f"--{name}={value}" for name, value in flags.items() if _is_known(name, release))


def _is_known(flag: str, release: tuple[int, ...]) -> bool:
    return FIRST.get(flag, ()) <= release and (flag not in REMOVED or release < REMOVED[flag])
