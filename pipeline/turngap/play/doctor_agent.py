"""Does the agent that the repository's file names listen where it says?"""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address

from turngap.caller.endpoint import Endpoint
from turngap.core.errors import InputError
from turngap.core.secrets import text_without_secrets
from turngap.defaults.file import Defaults, read_defaults
from turngap.play.command import address_of
from turngap.play.doctor import Check
from turngap.play.listeners import listeners_at, shown_address

# For the name of a host, and for the connection: a doctor's visit, and no download.
LOOK_UP_S = 3.0
CONNECT_S = 2.0


def examine_agent(elsewhere: Callable[[], Sequence[int]]) -> Iterator[Check]:
    """Look at the agent's address, in at most some five seconds; the agent gets no call.

    There is nothing to look at without a file, and for an agent that is no URL.

    Args:
        elsewhere: the usual ports of this machine at which something serves.
    """
    try:
        defaults = read_defaults()
        said = {} if defaults is None else defaults.of("replay")
        url = said.get("agent", "")
        if defaults is None or "://" not in url:
            return
        yield _agent(defaults, url, said.get("start"), elsewhere)
    except InputError as e:
        yield Check("agent", False, e.message, e.hint, needed=False)


def _agent(
    defaults: Defaults, url: str, start: str | None, elsewhere: Callable[[], Sequence[int]]
) -> Check:
    where, shown = defaults.where("replay", "agent"), text_without_secrets(url)
    if Endpoint(url).host_and_port[0] is None and "$" in url:
        words = f"{shown} ({where}): not looked at, as a variable stands for its address"
        return Check("agent", True, words, needed=False)
    host, port = address_of(url)
    peer, at = _peer(host, port), shown_address(host, port)
    if start is not None:
        command = text_without_secrets(start)
        words = f"`{command}` is started for each run ({defaults.where('replay', 'start')})"
        if peer is None:
            words += f", so nothing has to listen at {at} now"
            return Check("agent", True, words, needed=False)
        return Check(
            "agent",
            False,
            f"{words}, but {at} is in use already{_by_whom(peer)}",
            f"end what serves there, or take `start` out of {defaults.name} to measure it",
            needed=False,
        )
    if peer is not None:
        words = f"{at} is served{_by_whom(peer)} ({where})"
        return Check("agent", True, words, needed=False)
    remedy = f'start your bot; or add start = "COMMAND" to {defaults.name}, and turngap starts it'
    if others := [each for each in elsewhere() if each != port] if _is_here(host) else []:
        found = ", ".join(f"{each}, served{_by_whom(('127.0.0.1', each))}" for each in others)
        remedy += f". Something else listens at port {found}. Is that your bot?"
    return Check("agent", False, f"nothing listens at {at} ({where})", remedy, needed=False)


def _peer(host: str, port: int) -> tuple[str, int] | None:
    """The address at which a connection is taken; None if there is none in time."""
    found: list[tuple[str, int]] = []

    def connect() -> None:
        try:
            with socket.create_connection((host, port), CONNECT_S) as line:
                found.append(line.getpeername()[:2])
        except (OSError, UnicodeError, OverflowError):
            return

    # Beside this thread, since nothing bounds how long a name is looked up.
    trying = threading.Thread(target=connect, daemon=True)
    trying.start()
    trying.join(LOOK_UP_S + CONNECT_S)
    return found[0] if found else None


def _by_whom(peer: tuple[str, int]) -> str:
    """By which process of this machine; empty where the system does not say."""
    known = next((each for each in listeners_at(*peer) if each.pid), None)
    return f" by {known.named}" if known else ""


def _is_here(host: str) -> bool:
    """Whether a host of a URL is this machine's own loopback."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
