"""Environment of a run: a resumed run gives the same bits only if all of this is the same.

Only jaxformer has runs: the PyTorch twin has no such module.
"""

import os
from collections.abc import Mapping
from typing import Any

import jax

from jaxformer.parallel.group import count
from jaxformer.runtime.environment import cores, processor
from jaxformer.runtime.packages import releases
from jaxformer.runtime.products import options

SETTINGS = (
    *("jax_default_matmul_precision", "jax_default_prng_impl", "jax_enable_x64", "jax_threefry_partitionable"),
    *("jax_random_seed_offset", "jax_high_dynamic_range_gumbel", "jax_softmax_custom_jvp", "jax_allow_f16_reductions"),
    *("jax_disable_jit", "jax_disable_most_optimizations", "jax_optimization_level", "jax_exec_time_optimization_effort"),
    *("jax_compiler_enable_remat_pass", "jax_memory_fitting_level", "jax_memory_fitting_effort", "jax_use_direct_linearize"),
)
"""Settings of jax that change numbers. Not every version has all of them."""


def environment() -> dict[str, str]:
    """Return versions, processor, devices and flags."""
    settings = {name: str(getattr(jax.config, name)) for name in SETTINGS if hasattr(jax.config, name)}
    return {
        **releases(),
        "processor": processor(),
        "cores": str(cores()),
        "device": jax.devices()[0].device_kind,
        "devices": str(jax.device_count()),
        "processes": str(count()),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "XLA options": " ".join(f"{name}={value}" for name, value in options("large").items()),
        **settings,
    }


def differences(before: Any, now: Mapping[str, str]) -> list[str]:
    """List what has changed, each as `jax 0.9.0 -> 0.9.1`; a `before` that is no mapping gives nothing."""
    before = before if isinstance(before, Mapping) else {}
    return [f"{name} {before[name]!r:.60} -> {value!r:.60}" for name, value in now.items() if before.get(name, value) != value]
