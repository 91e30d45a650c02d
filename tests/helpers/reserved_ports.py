"""Ports at which nobody listens yet, and which no other process is given meanwhile."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 for a server that a test starts later, or for one that never comes.

    It stays bound without listening. The kernel then gives it to nobody who asks for any port, as
    each connection does, and lets a server have it that sets SO_REUSEADDR, as servers do.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
