"""This process becomes one of a group: it meets the others, is watched, and jax.distributed begins.

Who it is comes from flags, or, without any, from the cluster as jax finds it: Slurm, Open MPI, Kubernetes, a TPU pod.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jaxformer.collectives import in_order
from jaxformer.errors import InputError, first_line
from jaxformer.processes.group import Group
from jaxformer.processes.link import LOOPBACK, Seat
from jaxformer.processes.relay import relayed
from jaxformer.processes.together import together
from jaxformer.processes.watch import Limits
from jaxformer.releases import releases

HEARTBEAT, SHUTDOWN = 100, 30
"""Seconds after which jax takes a process for dead: without a heartbeat, or while all of them end. It aborts all then, which
says little; `watch` is to be quicker, and does not count time in which a machine stood still."""
SETTINGS = ("XLA_FLAGS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_THREEFRY_PARTITIONABLE")
"""Environment variables that change numbers."""


@dataclass(frozen=True)
class Found:
    """Who this process is, and which of the machine's devices are its own: None for all of them."""

    seat: Seat
    local_devices: Sequence[int] | None = None


def seat_of(coordinator: str, number: int, count: int) -> Seat:
    """From flags; InputError for what is no address, or no such number."""
    host, colon, port = coordinator.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(
            f"coordinator = {coordinator!r} is not an address; give the host and a port of process 0, as host:1234"
        )
    if not 0 <= number < count:
        raise InputError(f"process = {number} is out of range; give 0 to {count - 1}")
    return Seat(number, count, host.strip("[]"), int(port))


def seat_in_cluster(wait: float) -> Found:
    """As jax finds it; InputError outside of a cluster, and where its environment variables are not whole."""
    from jax._src.clusters import ClusterEnv

    unset = None, None, None, None, None
    try:
        address, count, number, devices = ClusterEnv.auto_detect_unset_distributed_params(*unset, int(wait))
    except Exception as error:  # jax parses what the cluster has set, and checks nothing
        why = f"{type(error).__name__}: {first_line(error)}"
        hint = "start by srun or mpirun, or give --coordinator, --processes and --process"
        raise InputError(f"the cluster's environment does not say who this process is ({why}); {hint}") from None
    if address is None or count is None or number is None:
        raise InputError(
            "no cluster was found (Slurm, Open MPI, Kubernetes, Cloud TPU); give --processes to start all on this machine, "
            "or --coordinator, --processes and --process"
        )
    return Found(seat_of(address, number, count), devices)


@contextmanager
def joined(found: Found, facts: dict[str, Any], *, devices: int | None, wait: float, limits: Limits) -> Iterator[Group]:
    """`together`, and inside jax has the devices of all processes."""
    with together(found.seat, facts | releases() | settings(), wait=wait, limits=limits) as group:
        begin_jax(found, group.met.service, devices, wait)
        yield group
    import jax

    jax.distributed.shutdown()


def begin_jax(found: Found, service: str, devices: int | None, wait: float) -> None:
    """jax.distributed, and its collectives on a CPU."""
    import jax

    in_order()
    if devices is not None:
        jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, which is read in `signals`
    print_on_first(found.seat)
    jax.distributed.initialize(
        relayed(service) if found.seat.number else service,
        found.seat.count,
        found.seat.number,
        found.local_devices,
        cluster_detection_method="deactivate",
        initialization_timeout=int(wait),
        heartbeat_timeout_seconds=HEARTBEAT,
        shutdown_timeout_seconds=SHUTDOWN,
        coordinator_bind_address=service if found.seat.host in LOOPBACK else None,
    )


def settings() -> dict[str, str]:
    """Environment variables that change numbers."""
    return {name: os.environ.get(name, "") for name in SETTINGS}


def print_on_first(seat: Seat) -> None:
    """Process 0 alone prints; and what libraries write to the descriptor of standard output, as gloo does, nobody reads."""
    nowhere, out = os.open(os.devnull, os.O_WRONLY), sys.stdout
    if out is None:
        return
    out.flush()
    try:
        own = os.dup(out.fileno()) if seat.number == 0 else nowhere
        os.dup2(nowhere, out.fileno())
    except OSError:
        return
    sys.stdout = os.fdopen(own, "w", encoding=out.encoding, errors="backslashreplace", closefd=False)
