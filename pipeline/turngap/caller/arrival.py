"""Arrival times of bytes by the kernel's clock, not by when this process read them."""

import asyncio
import errno
import socket
import struct
import time
from asyncio.staggered import staggered_race
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from turngap.core.clock import Clock

# Linux adds a timespec of CLOCK_REALTIME to what is read. Python has no name for the option.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@ll")
_ROOM = socket.CMSG_SPACE(_TIMESPEC.size)

# Each read has one stamp, that of its last bytes, so read in pieces of about a message.
_PIECE = 2048

# How long one address of a host is tried alone before the next (RFC 8305): a dead route swallows
# packets and says nothing.
HEAD_START_S = 0.25

# A peer that has not acknowledged what it was sent for this long is gone. No WebSocket ping shows
# this: phone companies send none, so there are agents that answer none.
_GONE_MS = 20_000

# If a stamp is older than this, the clock was set meanwhile.
_OLDEST_NS = 10_000_000_000


# More than a datagram of any call; asyncio asks for a quarter of a megabyte each time.
_MOST_DATAGRAM = 2**16


class _Stamped(socket.socket):
    """A socket that knows how long ago the bytes of its last read arrived."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._stamp_ns: int | None = None
        with suppress(OSError):  # unknown on this system, so bytes arrive when they are read
            self.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

    def age_ns(self) -> int:
        """Return how long ago the last bytes of the last read arrived; 0 if unknown."""
        if self._stamp_ns is None:
            return 0
        age_ns = time.clock_gettime_ns(time.CLOCK_REALTIME) - self._stamp_ns
        return age_ns if 0 <= age_ns <= _OLDEST_NS else 0

    def _note(self, ancillary: Iterable[tuple[int, int, bytes]]) -> None:
        self._stamp_ns = None
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                seconds, ns = _TIMESPEC.unpack_from(data)
                self._stamp_ns = seconds * 1_000_000_000 + ns


class StampedSocket(_Stamped):
    """A TCP socket that knows how long ago the bytes of its last read arrived.

    Over 300 messages on loopback, the kernel's stamp read 0.10/0.13/0.56 ms (p50/p95/max) after
    the sending, and the event loop's 0.29/2.1/5.5 ms. With the loop held up for 4 ms at a time,
    p50/p95 were 0.08/0.12 ms and 0.25/5.3 ms.

    The kernel may join unread bytes under the last of their stamps. An arrival therefore never
    reads too early, and it reads too late by no more than the hold-up.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        with suppress(OSError, AttributeError):
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GONE_MS)
        _stamped[self.fileno()] = self

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Receive as `socket.recv` does, but perhaps fewer bytes than are there."""
        data, ancillary, _, _ = self.recvmsg(min(bufsize, _PIECE), _ROOM, flags)
        self._note(ancillary)
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive as `socket.recv_into` does (for TLS), but perhaps fewer bytes than are there."""
        view = memoryview(buffer)[: min(nbytes or _PIECE, _PIECE)]
        count, ancillary, _, _ = self.recvmsg_into([view], _ROOM, flags)
        self._note(ancillary)
        return count

    def accept(self) -> "tuple[StampedSocket, Any]":
        plain, peer = super().accept()
        return StampedSocket(fileno=plain.detach()), peer


class StampedUdp(_Stamped):
    """A UDP socket whose datagrams carry their arrival; it takes the place of `plain`.

    Without the kernel's stamps they are plain bytes.

    Args:
        made: makes a datagram of its bytes and of its arrival on `clock`.
    """

    def __init__(
        self, plain: socket.socket, clock: Clock, made: Callable[[bytes, int], bytes]
    ) -> None:
        super().__init__(fileno=plain.detach())
        self.setblocking(False)
        self._clock, self._made = clock, made

    def recvfrom(self, bufsize: int, flags: int = 0, /) -> tuple[bytes, Any]:
        data, ancillary, _, address = self.recvmsg(min(bufsize, _MOST_DATAGRAM), _ROOM, flags)
        self._note(ancillary)
        if self._stamp_ns is None:
            return data, address
        ago_ns = self.age_ns()  # before the clock is read, as in `age_ns` below
        return self._made(data, self._clock.now_ns() - ago_ns), address


def stamp_udp(
    transport: asyncio.BaseTransport, clock: Clock, made: Callable[[bytes, int], bytes]
) -> None:
    """Put a `StampedUdp` in the place of a transport's socket, unless the event loop hides it.

    asyncio makes the sockets of UDP itself, and takes none that is ready.
    """
    plain = getattr(transport, "_sock", None)
    if isinstance(plain, socket.socket):
        vars(transport)["_sock"] = StampedUdp(plain, clock, made)


# A transport hides its socket behind a wrapper with its descriptor but not its methods.
_stamped: WeakValueDictionary[int, StampedSocket] = WeakValueDictionary()


def age_ns(transport: asyncio.BaseTransport) -> int:
    """Return how long ago the bytes arrived that a transport has just read; 0 if unknown.

    Call this before you read the clock, so that a pause between both calls makes the arrival late
    and never early.
    """
    descriptor = transport.get_extra_info("socket").fileno()
    tcp = _stamped.get(descriptor)
    return tcp.age_ns() if tcp is not None and tcp.fileno() == descriptor else 0


def arrived_ns(transport: asyncio.BaseTransport, clock: Clock, last_ns: int) -> int:
    """Return when the bytes arrived that a transport has just read, on `clock`.

    The result is never before `last_ns`, the arrival of the bytes before them. `last_ns` may have
    been read late while this process was held up, and the order of messages must not change.
    """
    ago_ns = age_ns(transport)
    return max(last_ns, clock.now_ns() - ago_ns)


# Descriptors, ports, memory and routes that the one who calls has not.
_OF_THIS_MACHINE = {
    errno.EMFILE,
    errno.ENFILE,
    errno.EADDRNOTAVAIL,
    errno.EADDRINUSE,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.ENETDOWN,
    errno.ENETUNREACH,
}


def is_of_this_machine(error: BaseException | None) -> bool:
    """Return whether this machine made a connection fail: no resources, or no name found."""
    return isinstance(error, socket.gaierror) or (
        isinstance(error, OSError) and error.errno in _OF_THIS_MACHINE
    )


async def connect_stamped(
    host: str,
    port: int,
    timeout_s: float,
    prepare: Callable[[socket.socket], None] | None = None,
) -> StampedSocket:
    """Connect to a host's first address that answers; start each attempt a moment after the last.

    `prepare` sets each socket's options before it is connected.

    Raises:
        OSError: no address answers within `timeout_s`. The reason is the last address's; a reason
            on this machine is given only if there is no other.
    """
    loop = asyncio.get_running_loop()

    async def connected(family: int, kind: int, protocol: int, _: str, address: Any) -> Any:
        tcp = StampedSocket(family, kind, protocol)
        try:
            tcp.setblocking(False)
            if prepare is not None:
                prepare(tcp)
            await loop.sock_connect(tcp, address)
        except BaseException:
            tcp.close()
            raise
        opened.append(tcp)
        return tcp

    opened: list[StampedSocket] = []
    try:
        async with asyncio.timeout(timeout_s):
            addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            tries = [partial(connected, *address) for address in addresses]
            tcp, _, failed = await staggered_race(tries, HEAD_START_S)
    except TimeoutError as e:
        raise TimeoutError(f"no connection within {timeout_s:g} s") from e
    except asyncio.CancelledError:
        for each in opened:
            each.close()
        raise
    if tcp is not None:
        return tcp
    # An address of a family that this machine lacks says nothing of the other one.
    problems = sorted(filter(None, failed), key=lambda e: not is_of_this_machine(e))
    raise problems[-1] if problems else OSError(f"{host} has no address")
