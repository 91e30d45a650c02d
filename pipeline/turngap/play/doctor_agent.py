"""Does the agent that the repository's file names listen where it says?"""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from turngap.caller.endpoint import Endpoint
from turngap.caller.opening import check_url, goes_through_proxy, is_loopback
from turngap.core.errors import InputError
from turngap.core.secrets import text_without_secrets
from turngap.defaults.file import Defaults, read_defaults
from turngap.play.command import address_of
from turngap.play.doctor import Check
from turngap.play.listeners import Listener, how_to_free, listeners_at, shown_address
from turngap.play.words_of import argv_of, require_script

# For the name of a host, and for the connection: a doctor's visit, and no download.
LOOK_UP_S = 3.0
CONNECT_S = 2.0

_IS_IT_OPEN = "see whether the agent runs, and whether a firewall or a VPN lies between"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a try to connect found.

    Attributes:
        peer: the address that took the connection; None if none did.
        why: why there is none, as a sentence without its end.
        remedy: what may help against that, where it is known.
    """

    peer: tuple[str, int] | None
    why: str = ""
    remedy: str = ""


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
    at = shown_address(host, port)
    if goes_through_proxy(check_url(url, shown)):
        words = f"{at} ({where}): not looked at, as it is reached through a proxy"
        return Check("agent", True, words, needed=False)
    seen = _look(host, port)
    peer = seen.peer
    if start is not None:
        command = text_without_secrets(start)
        try:
            require_script(argv_of(start))
        except InputError as e:
            where = defaults.where("replay", "start")
            return Check("agent", False, f"{e.message} ({where})", e.hint, needed=False)
        words = f"`{command}` is started for each run ({defaults.where('replay', 'start')})"
        if peer is None:
            words += f", so nothing has to listen at {at} now"
            return Check("agent", True, words, needed=False)
        return Check(
            "agent",
            False,
            f"{words}, but {at} is in use already{_by_whom(peer)}",
            f"{how_to_free(_known_at(peer))}, or take `start` out of {defaults.name} to measure it",
            needed=False,
        )
    if peer is not None:
        words = f"{at} is served{_by_whom(peer)} ({where})"
        return Check("agent", True, words, needed=False)
    remedy = f'start your bot; or add start = "COMMAND" to {defaults.name}, and turngap starts it'
    if others := [each for each in elsewhere() if each != port] if is_loopback(host) else []:
        found = ", ".join(f"{each}, served{_by_whom(('127.0.0.1', each))}" for each in others)
        remedy += f". Something else listens at port {found}. Is that your bot?"
    return Check("agent", False, f"{seen.why} ({where})", seen.remedy or remedy, needed=False)


def _look(host: str, port: int) -> _Seen:
    """Connect, and say what came of it, in time."""
    at = shown_address(host, port)
    in_time = f"{at} did not answer within {LOOK_UP_S + CONNECT_S:g} s"
    found = [_Seen(None, in_time, _IS_IT_OPEN)]

    def connect() -> None:
        try:
            with socket.create_connection((host, port), CONNECT_S) as line:
                found.append(_Seen(line.getpeername()[:2]))
        except (OSError, UnicodeError, OverflowError) as e:
            found.append(_why_not(host, at, e))

    # Beside this thread, since nothing bounds how long a name is looked up.
    trying = threading.Thread(target=connect, daemon=True)
    trying.start()
    trying.join(LOOK_UP_S + CONNECT_S)
    return found[-1]


def _why_not(host: str, at: str, error: Exception) -> _Seen:
    if isinstance(error, ConnectionRefusedError):
        return _Seen(None, f"nothing listens at {at}")
    if isinstance(error, TimeoutError):
        return _Seen(None, f"{at} did not answer within {CONNECT_S:g} s", _IS_IT_OPEN)
    if isinstance(error, socket.gaierror | UnicodeError):
        remedy = "correct the host in the URL; or see whether this machine's network is up"
        return _Seen(None, f"no address is known for the host {host}", remedy)
    why = getattr(error, "strerror", None) or str(error)
    return _Seen(None, f"{at} cannot be reached: {why}", _IS_IT_OPEN)


def _by_whom(peer: tuple[str, int]) -> str:
    """By which process of this machine; empty where the system does not say."""
    known = _known_at(peer)
    return f" by {known.named}" if known else ""


def _known_at(peer: tuple[str, int]) -> Listener | None:
    return next((each for each in listeners_at(*peer) if each.pid), None)
