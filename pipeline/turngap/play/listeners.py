"""Who listens at an address of this machine, as far as the system tells it."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

import psutil

from turngap.core.untrusted import printable

# What listens for a container, or at this end of a tunnel, in place of the command behind it.
_GO_BETWEENS = {
    "com.docker.backend", "conmon", "docker-proxy", "gvproxy", "limactl", "pasta", "pasta.avx2",
    "rootlesskit", "rootlessport", "slirp4netns", "ssh",
}  # fmt: skip
# What a process in a container descends from. The kernel keeps 15 characters of a name.
_OF_CONTAINERS = ("containerd-shim", "conmon")

MOST_SHOWN = 80  # characters of a process's name

_Ip = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that takes connections; `pid` is None where the system does not say whose it is."""

    host: str
    port: int
    pid: int | None

    @property
    def at(self) -> str:
        return shown_address(self.host, self.port)

    @property
    def name(self) -> str:
        """What its process is called; empty where that is not known."""
        with suppress(psutil.Error):
            return (
                "" if self.pid is None else printable(psutil.Process(self.pid).name(), MOST_SHOWN)
            )
        return ""

    @property
    def named(self) -> str:
        """Its process in a message."""
        if self.pid is None:
            return "a process that the system does not name"
        return f"{self.name or 'a process'} (process {self.pid})"

    @property
    def of_turngap(self) -> bool:
        """Whether a turngap that runs has started it, by `--start`."""
        with suppress(psutil.Error):
            above = [] if self.pid is None else psutil.Process(self.pid).parents()
            return any("turngap.children" in process.cmdline() for process in above)
        return False

    @property
    def stands_for_another(self) -> bool:
        """Whether it belongs to a container or a tunnel, which nobody's descendant has to be."""
        if self.name in _GO_BETWEENS:
            return True
        with suppress(psutil.Error):
            above = [] if self.pid is None else psutil.Process(self.pid).parents()
            ours = psutil.Process()  # it may be in a container too, with everything around it
            around = [ours, *ours.parents()]
            return any(
                process.name().startswith(_OF_CONTAINERS)
                for process in above
                if process not in around
            )
        return False


def shown_address(host: str, port: int) -> str:
    """An IP address and a port, as a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listeners_at(host: str, port: int) -> tuple[Listener, ...]:
    """Return those that a connection to an IP address reaches, the most specific ones.

    There are none where the system does not tell: of another machine's address, of a port that is
    forwarded by the kernel, and where only an administrator may ask, as on macOS.
    """
    address = _ip(host)
    if not _of_this_machine(address):
        return ()
    found: list[Listener] = []
    with suppress(psutil.Error, OSError, RuntimeError):
        found = [
            Listener(each.laddr.ip, port, each.pid)
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
        ]
    ranked = [(_distance(_ip(listener.host), address), listener) for listener in found]
    nearest = min((distance for distance, _ in ranked if distance is not None), default=None)
    return tuple(
        listener for distance, listener in ranked if nearest is not None and distance == nearest
    )


def addresses_of(host: str) -> set[_Ip]:
    """The addresses that a name or an address leads to; none where it is not known."""
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return {_reached(_ip(str(each[4][0]))) for each in found}
    return set()


def _reached(address: _Ip) -> _Ip:
    """Where a connection to an address arrives: "every address" leads to this machine's own."""
    if not address.is_unspecified:
        return address
    return ip_address("127.0.0.1" if address.version == 4 else "::1")


def _ip(host: str) -> _Ip:
    """An address without its zone, and as IPv4 where it stands for one."""
    address = ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _of_this_machine(address: _Ip) -> bool:
    if address.is_loopback or address.is_unspecified:  # the latter leads to the former
        return True
    families = {"AF_INET", "AF_INET6"}
    return any(
        _ip(each.address) == address
        for interface in psutil.net_if_addrs().values()
        for each in interface
        if each.family.name in families
    )


def _distance(bound: _Ip, asked: _Ip) -> int | None:
    """How far a socket's address is from the one that is asked for; None if it is not reached."""
    if bound == asked:
        return 0
    if not bound.is_unspecified:
        return None
    if bound.version == asked.version:
        return 1
    return 2 if bound.version == 6 else None  # one for both versions


def how_to_free(found: Listener | None) -> str:
    """What to do about a port that is in use: a check that runs will give it back."""
    if found is not None and found.of_turngap:
        return "a turngap that runs has started it: wait until that ends, or use another port"
    return "end what serves there"


def strangers_at(host: str, port: int, root: int) -> tuple[Listener, ...]:
    """Return the listeners there that are neither `root` nor started by it.

    A process that has ended in the meantime is left out.
    """
    found = listeners_at(host, port)  # first: who listens then may have to be its child by now
    known = _family(root)
    return tuple(
        each
        for each in found
        if each.pid is None or (each.pid not in known and _outside(each.pid, root))
    )


def _family(root: int) -> set[int]:
    with suppress(psutil.Error):
        return {root, *(child.pid for child in psutil.Process(root).children(recursive=True))}
    return {root}


def _outside(pid: int, root: int) -> bool:
    """Whether a process is there, and in another session than the one that `root` leads."""
    with suppress(OSError):
        return os.getsid(pid) != root
    return False


def listeners_of(pid: int) -> list[Listener]:
    """Return where a process and its children listen, by port."""
    found: set[Listener] = set()
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            found.update(_listening(process))
    return sorted(found, key=lambda each: (each.port, each.host))


def _listening(process: psutil.Process) -> Iterator[Listener]:
    with suppress(psutil.Error):
        for found in process.net_connections("tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr:
                yield Listener(found.laddr.ip, found.laddr.port, process.pid)
