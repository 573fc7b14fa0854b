"""Join a group of processes: meet the others, watch them, and start jax.distributed through a relay port of this process.

Whatever ends one process ends all.
"""

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from jaxformer.errors import InputError, first_line
from jaxformer.parallel.group import Group, enter
from jaxformer.parallel.launch import Limits, Watch
from jaxformer.parallel.link import LOOPBACK, Seat, meet
from jaxformer.runtime.environment import in_order
from jaxformer.runtime.packages import releases
from jaxformer.runtime.refusals import is_verbose, refusal
from jaxformer.runtime.shutdown import cleaned_up

GRACE = 2.0
"""Seconds that a process with an error waits before it reports: if another one is gone, its lost connection tells first."""


@contextmanager
def together(seat: Seat, facts: Mapping[str, Any], *, wait: float, limits: Limits) -> Iterator[Group]:
    """Meet the other processes, and wait for all of them at the end.

    InputError, in every process, if one does not arrive within `wait` seconds or differs in a fact. An error inside is reported
    to the others and exits the process at once: in a normal exit, libraries would wait for the others.
    """
    group = Group(seat, meet(seat, facts, wait))
    enter(group)
    Watch(group, limits).start()
    with cleaned_up(group.ended_by_signal):
        try:
            yield group
        except BaseException as error:
            fail(group, error)
        group.finish()


def fail(group: Group, error: BaseException) -> NoReturn:
    """Exit this process because of an error, and all others with it."""
    if isinstance(error, SystemExit):
        if not error.code:
            group.end("it ended in the middle with exit code 0", 1)
        group.end(f"it exited with {error.code}", error.code if isinstance(error.code, int) else 1)
    refused = refusal(error) if isinstance(error, Exception) else None
    if refused is None:
        time.sleep(GRACE)
    if refused is None or is_verbose():
        traceback.print_exception(error)
    group.end(*refused or (f"{type(error).__name__}: {first_line(error)}" if isinstance(error, Exception) else repr(error), 1))


_kept: list[socket.socket] = []
"""Open sockets of jax's client: kept here so that they are not closed by garbage collection."""


def relayed(place: str) -> str:
    """Return the address of a local relay to `place` (host:port), in both directions."""
    host, _, port = place.rpartition(":")
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve, args=(server, (host.strip("[]"), int(port))), daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}"


def _serve(server: socket.socket, place: tuple[str, int]) -> None:
    while True:
        near = server.accept()[0]
        try:
            far = socket.create_connection(place)
        except OSError:  # the service has not started yet: jax's client tries again
            near.close()
            continue
        _kept.append(near)
        for source, sink in ((near, far), (far, near)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_hand_on, args=(source, sink, far), daemon=True).start()


def _hand_on(source: socket.socket, sink: socket.socket, far: socket.socket) -> None:
    """Copy data from source to sink; the end of either closes the connection to the service."""
    with suppress(OSError):
        while data := source.recv(2**16):
            sink.sendall(data)
    with suppress(OSError):
        far.shutdown(socket.SHUT_RDWR)
    if source is far:
        far.close()


HEARTBEAT, SHUTDOWN = 100, 30
"""Seconds after which jax considers a process dead: without a heartbeat, or while all processes exit.

jax then aborts all processes with a poor message. `watch` is quicker, and does not count time in which a machine stood still.
"""
SETTINGS = ("XLA_FLAGS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_THREEFRY_PARTITIONABLE")
"""Environment variables that change numerical results."""


@dataclass(frozen=True)
class Found:
    """Seat of this process, and the local devices that it owns; None: all of them."""

    seat: Seat
    local_devices: Sequence[int] | None = None


def seat_of(coordinator: str, number: int, count: int) -> Seat:
    """Build a seat from flags; InputError if the address or the process number is invalid."""
    host, colon, port = coordinator.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(
            f"coordinator = {coordinator!r} is not an address; give the host and a port of process 0, as host:1234"
        )
    if not 0 <= number < count:
        raise InputError(f"process = {number} is out of range; give 0 to {count - 1}")
    return Seat(number, count, host.strip("[]"), int(port))


def seat_in_cluster(wait: float) -> Found:
    """Find this process's seat as jax does; InputError outside of a cluster, or if its environment variables are incomplete."""
    from jax._src.clusters import ClusterEnv

    unset = None, None, None, None, None
    try:
        address, count, number, devices = ClusterEnv.auto_detect_unset_distributed_params(*unset, int(wait))
    except Exception as error:  # jax parses the cluster's variables without checks
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
    """Run as `together` does, with jax.distributed: jax sees the devices of all processes."""
    with together(found.seat, facts | releases() | settings(), wait=wait, limits=limits) as group:
        begin_jax(found, group.met.service, devices, wait)
        yield group
    import jax

    jax.distributed.shutdown()


def begin_jax(found: Found, service: str, devices: int | None, wait: float) -> None:
    """Start jax.distributed, with gloo for collectives on CPU."""
    import jax

    in_order()
    if devices is not None:
        jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, which `shutdown` handles
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
    jax.devices()  # opened here, by all: a process that opens its devices waits until every other one does


def settings() -> dict[str, str]:
    """Return the environment variables that change numerical results."""
    return {name: os.environ.get(name, "") for name in SETTINGS}


def print_on_first(seat: Seat) -> None:
    """Let only process 0 print; discard what libraries write directly to the file descriptor of stdout, as gloo does."""
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
