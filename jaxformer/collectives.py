"""The order of collectives on a CPU. No jax is imported here."""

import os

SCHEDULER = "xla_cpu_enable_concurrency_optimized_scheduler"
"""XLA's CPU compiler has it on, and then orders collectives so that devices may wait for each other for ever."""


def in_order() -> None:
    """Every device runs its collectives in one order. Call it before jax has its devices, for then XLA reads its flags."""
    flags = os.environ.get("XLA_FLAGS", "")
    if SCHEDULER not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{SCHEDULER}=false".strip()
