"""What this process says to jax's own service in process 0 goes through a port of its own, which stays open.

Where process 0 is gone, the system closes its connections. jax's client aborts its process then, with a page of C++, before
any line of Python runs. `watch` sees the same on a connection of ours, and ends the process with a word.
"""

import socket
import threading
from contextlib import suppress

_kept: list[socket.socket] = []
"""Connections with jax's client: while they are here nobody closes them."""


def relayed(place: str) -> str:
    """An address of this process that hands everything on to `place`, host:port, and back."""
    host, _, port = place.rpartition(":")
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve, args=(server, (host.strip("[]"), int(port))), daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}"


def _serve(server: socket.socket, place: tuple[str, int]) -> None:
    while True:
        near = server.accept()[0]
        try:
            far = socket.create_connection(place)
        except OSError:  # the service has yet to begin: jax's client tries again
            near.close()
            continue
        _kept.append(near)
        for source, sink in ((near, far), (far, near)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_hand_on, args=(source, sink, far), daemon=True).start()


def _hand_on(source: socket.socket, sink: socket.socket, far: socket.socket) -> None:
    """Whoever ends, the connection with the service ends, too."""
    with suppress(OSError):
        while data := source.recv(2**16):
            sink.sendall(data)
    with suppress(OSError):
        far.shutdown(socket.SHUT_RDWR)
    if source is far:
        far.close()
