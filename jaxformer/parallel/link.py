"""Connections between processes: a star around process 0, over TCP, with a JSON object per line. Does not import jax.

jax.distributed has a service of its own, which aborts a process that cannot reach it, without a useful message. So processes
first meet here, and compare their facts before they begin.
"""

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from jaxformer.errors import InputError

MOST_BYTES = 2**26
"""Maximum size of a message."""
SHOWN = 60
"""Maximum number of characters shown of a fact that differs."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
GREETING = 10.0
"""Seconds that a connecting process has to identify itself."""


class Link:
    """Connection to one process. Any thread may send; only one receives."""

    def __init__(self, connected: socket.socket):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._lock = connected, threading.Lock()
        self._lines = connected.makefile("rb")

    def send(self, **message: Any) -> None:
        """Send a message; OSError if the other side is gone."""
        with self._lock:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float | None = None) -> dict[str, Any] | None:
        """Return the next message; None if the other side is gone, or is silent for `seconds`."""
        try:
            self._socket.settimeout(seconds)
            line = self._lines.readline(MOST_BYTES)
            self._socket.settimeout(None)
            message = json.loads(line) if line.endswith(b"\n") else None
            return message if isinstance(message, dict) else None
        except (OSError, ValueError):
            return None

    def refuse(self, said: str) -> None:
        """Send a reason to the other side, if it still listens, and close the connection."""
        with suppress(OSError):
            self.send(refused=said)
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._socket.close()


@dataclass(frozen=True)
class Seat:
    """Number of this process, count of all processes, and the address where they meet."""

    number: int
    count: int
    host: str
    port: int

    @property
    def place(self) -> str:
        """Address where the processes meet."""
        return f"{self.host}:{self.port}"

    @property
    def bound(self) -> str:
        """Address that process 0 listens on: loopback if the host is this machine, else any."""
        return self.host if self.host in LOOPBACK else ""

    def __str__(self) -> str:
        return f"process {self.number} of {self.count}"


@dataclass(frozen=True)
class Met:
    """Links of a process that has met the others: process 0 is linked to all others, these only to process 0."""

    links: dict[int, Link]
    whose: list[str]
    """Process id and machine of each process."""
    service: str
    """Address of jax.distributed's own service."""


def here() -> str:
    """Describe this process for people."""
    return f"pid {os.getpid()} on {socket.gethostname()}"


def meet(seat: Seat, facts: Mapping[str, Any], wait: float) -> Met:
    """Meet all other processes; InputError, in every process, if one does not arrive or differs in a fact."""
    return gather(seat, facts, wait) if seat.number == 0 else reach(seat, facts, wait)


def gather(seat: Seat, facts: Mapping[str, Any], wait: float) -> Met:
    """Gather all other processes (process 0 only)."""
    links, hellos = dict[int, Link](), {0: {"facts": dict(facts), "whose": here()}}
    try:
        with socket.create_server((seat.bound, seat.port), backlog=seat.count) as server:
            for number, link, hello in _come(seat, server, wait):
                links[number], hellos[number] = link, hello
    except OSError as error:
        raise InputError(f"cannot listen at {seat.place}: {error.strerror or error}; give another --coordinator") from None
    missing = ", ".join(str(number) for number in range(seat.count) if number not in hellos)
    said = f"process 0 waited {wait:.0f} s at {seat.place} for process {missing}; start all of them" if missing else ""
    if said := said or difference({number: hello["facts"] for number, hello in sorted(hellos.items())}):
        for link in links.values():
            link.refuse(said)
        raise InputError(said)
    service, whose = f"{seat.host}:{free_port(seat.bound)}", [hello["whose"] for _, hello in sorted(hellos.items())]
    for link in links.values():
        link.send(service=service, whose=whose)
    return Met(links, whose, service)


def _come(seat: Seat, server: socket.socket, wait: float) -> Iterator[tuple[int, Link, dict[str, Any]]]:
    """Yield the other processes as they arrive, until all are there or the time is over."""
    end, come = time.monotonic() + wait, set[int]()
    while len(come) < seat.count - 1:
        server.settimeout(max(0.01, end - time.monotonic()))
        try:
            link = Link(server.accept()[0])
        except TimeoutError:
            return
        hello = link.receive(GREETING) or {}
        number: Any = hello.get("number")
        if not isinstance(number, int) or number in come or not 0 < number < seat.count or "facts" not in hello:
            link.refuse(f"process 0 at {seat.place} does not wait for a process {number}; give each a number of its own")
            continue
        come.add(number)
        yield number, link, hello


def reach(seat: Seat, facts: Mapping[str, Any], wait: float) -> Met:
    """Connect to process 0, and wait until all have met (other processes only)."""
    end = time.monotonic() + wait
    while True:
        try:
            link = Link(connected(seat, max(0.1, end - time.monotonic())))
            link.send(number=seat.number, facts=dict(facts), whose=here())
            break
        except OSError as error:
            if time.monotonic() > end:
                why = f"tried for {wait:.0f} s: {error.strerror or error}"
                hint = "start process 0 there, or give its address with --coordinator"
                raise InputError(f"cannot reach the coordinator at {seat.place} ({why}); {hint}") from None
            time.sleep(0.1)
    said = link.receive(max(wait, GREETING) + GREETING) or {}
    if "service" not in said:
        link.close()
        ended = f"process 0 at {seat.place} ended before all had come; see what it says"
        raise InputError(said.get("refused", ended))
    return Met({0: link}, said["whose"], said["service"])


def connected(seat: Seat, seconds: float) -> socket.socket:
    """Connect to process 0; refuse a connection with itself, which TCP may make to a local port where nobody listens yet."""
    found = socket.create_connection((seat.host, seat.port), timeout=seconds)
    if found.getsockname() == found.getpeername():
        found.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    return found


def difference(facts: Mapping[int, Mapping[str, Any]]) -> str:
    """Describe the first fact in which a process differs from process 0; '' if there is none."""
    first = facts[0]
    for number, found in facts.items():
        for name in sorted({*first, *found}):
            if (mine := found.get(name)) != (wanted := first.get(name)):
                mine, wanted = where_apart(repr(mine), repr(wanted))
                return (
                    f"process {number} has {name} = {mine}, and process 0 has {wanted}; "
                    "start all with the same command, on the same versions"
                )
    return ""


def where_apart(*texts: str) -> Iterator[str]:
    """Yield the texts; long ones are cut to a part that begins shortly before they differ."""
    alike = sum(1 for _ in takewhile(lambda each: len({*each}) == 1, zip(*texts, strict=False)))
    start = max(0, alike - SHOWN // 3)
    for text in texts:
        part = text[start:] if max(map(len, texts)) > SHOWN else text
        yield f"{'...' * (part != text)}{part[:SHOWN]}{'...' * (len(part) > SHOWN)}"


def free_port(bound: str = LOOPBACK[1]) -> int:
    """Return a port that is free now."""
    with socket.create_server((bound, 0)) as server:
        return server.getsockname()[1]
