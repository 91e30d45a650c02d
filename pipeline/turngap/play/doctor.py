"""Check whether this machine is fit to measure, and which agents it can run.

Nothing is downloaded or loaded. The agent in the repository's file is looked for, but not called.
"""

import asyncio
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from turngap.agent.stack import load_stack, override, resolved, stack_files
from turngap.backends import (
    AGENT,
    BackendChoice,
    BackendSettings,
    BackendSpec,
    Weights,
    install,
    specs,
)
from turngap.backends.weights import hub_cache, state_of
from turngap.caller.endpoint import Endpoint
from turngap.caller.opening import check_url, goes_through_proxy
from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.errors import InputError, TurngapError, known_names
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import is_loopback
from turngap.core.wording import bytes_words
from turngap.play.defaults import Defaults, read_defaults
from turngap.play.process import address_of, argv_of, shown_address
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import library_dir, library_paths
from turngap.store.documents import this_machine

# A packet's worth of time between wake-ups, as the sender's.
_TICKS = 100
_TICK_MS = 10.0
# Wake-ups later than this would show in the figures.
_LATE_MS = 5.0
# For the name of the agent's host, and for the connection: a doctor's visit, and no download.
LOOK_UP_S = 3.0
CONNECT_S = 2.0

_IS_IT_OPEN = "check whether the agent runs, and whether a firewall or a VPN blocks the way"
# A driver that is stuck answers nothing.
_DRIVER_S = 10.0
# In a container the driver's library may be there without its tools.
_BY_DRIVER = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, device, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(100)
if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
    for number in range(count.value):
        cuda.cuDeviceGet(ctypes.byref(device), number)
        cuda.cuDeviceGetName(name, len(name), device)
        print(name.value.decode())
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `remedy` is empty if there is nothing to do.

    Attributes:
        needed: whether measuring, or the agent `embedded`, depends on this.
        downloads: the published weights that the agent loads.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = True
    downloads: tuple["Download", ...] = ()


@dataclass(frozen=True, slots=True)
class Download:
    """Published weights that an agent loads.

    Attributes:
        bytes: their size; None if only the hub knows it.
        here: whether they are on this machine, intact.
        pinned: whether each file's digest is pinned; if not, files are checked against the hub.
        pins: the file that replaces turngap's own pins, if any.
    """

    name: str
    repository: str
    revision: str
    licence: str
    bytes: int | None
    here: bool
    pinned: bool
    pins: str = ""


def examine(library: Path | None = None) -> Iterator[Check]:
    """Yield every check in order, as soon as it is done."""
    machine = this_machine()
    yield Check(
        "python", True, f"{machine.python} ({sys.executable.split('/')[-1]}) on {machine.system}"
    )
    yield Check(
        "machine",
        machine.cores >= 2,
        f"{machine.cores} cores, {machine.memory_gib:.0f} GiB, {machine.cpu}",
        "" if machine.cores >= 2 else "caller and agent share one core: gaps will read too long",
    )
    yield asyncio.run(_timers())
    yield _scenarios(library)
    yield _disk()
    yield Check("card", bool(cards()), "; ".join(cards()) or "no CUDA card was found", needed=False)
    for name in stack_files():
        yield _stack(name)


async def _timers() -> Check:
    clock = MonotonicClock(precise=True)
    late_ms: list[float] = []
    due_ns = clock.now_ns()
    for _ in range(_TICKS):
        due_ns += ms_to_ns(_TICK_MS)
        await clock.sleep_until_ns(due_ns)
        late_ms.append(ns_to_ms(clock.now_ns() - due_ns))
    worst, ok = max(late_ms), max(late_ms) < _LATE_MS
    return Check(
        "timers",
        ok,
        f"woken at most {worst:.2f} ms late in {_TICKS} wake-ups",
        "" if ok else "something else keeps this machine busy; close it before measuring",
        needed=False,  # it may be over in a moment, and says nothing of what is installed
    )


def _scenarios(library: Path | None) -> Check:
    try:
        folder = library_dir(library)
        loaded = load_scenarios(library_paths(folder))
    except TurngapError as e:
        return Check("scenarios", False, e.message, e.hint)
    turns = sum(len(s.scenario.turns) for s in loaded)
    return Check("scenarios", True, f"{len(loaded)} with {turns} turns in {folder}")


def _disk() -> Check:
    """Check the disk space for weights."""
    folder = cache = hub_cache()
    while not folder.exists():
        folder = folder.parent
    free = bytes_words(shutil.disk_usage(folder).free)
    ways = "`turngap fetch` takes them from the hub, tools/published-weights from Python packages"
    return Check("disk", True, f"{free} free for weights in {cache}; {ways}")


def _stack(name: str) -> Check:
    needed = name == "embedded" and AGENT.met()  # else only others' agents are measured here
    try:
        engines = resolved(load_stack(name), None, required=False)
        downloads = tuple(
            _download(weights) for spec, of in engines for weights in spec.downloads(of)
        )
    except TurngapError as e:
        return Check(f"agent {name}", False, e.message, e.hint, needed)
    if lacking := [each for spec, settings in engines for each in _lacking(spec, settings)]:
        why = "; ".join(dict.fromkeys(each.why for each in lacking))
        return Check(f"agent {name}", False, why, _remedy(name, lacking), needed, downloads)
    said = [f"{s.kind} {s.name}" + (f" ({s.finds(of)})" if s.finds else "") for s, of in engines]
    return Check(f"agent {name}", True, ", ".join(said), "", needed, downloads)


@dataclass(frozen=True, slots=True)
class _Lack:
    """One thing that keeps an engine from running here, and its remedy.

    Attributes:
        extra: the extra of turngap that provides what is missing; empty if none does.
    """

    why: str
    remedy: str
    extra: str = ""


def _lacking(spec: BackendSpec, settings: BackendSettings) -> Iterator[_Lack]:
    """List everything that keeps an engine with these settings from running here."""
    engine, device = f"{spec.kind} {spec.name}", getattr(settings, "device", None)
    needs = spec.missing(device)
    # Settings that name a server, or another command, do without the command.
    if getattr(settings, "base_url", None) is None:
        by_default = spec.missing_by_default()
        needs += [n for n in by_default if getattr(settings, n.kind, n.name) == n.name]
    for need in needs:
        who = "it" if need == AGENT else engine
        what = f"{who} needs the {need.kind} {need.name}, not found here"
        yield _Lack(what, need.remedy, need.extra)
    if device == "cuda" and not cards():
        remedy = f"--set {spec.kind}.device=cpu runs it without a card"
        yield _Lack(f"{engine} is set to a CUDA card, and none was found", remedy)


def _remedy(name: str, lacking: Sequence[_Lack]) -> str:
    """Say what to do about everything that is missing; one command installs all extras."""
    extras = dict.fromkeys(each.extra for each in lacking if each.extra)
    command = (
        f"{install(extras)} (in a checkout, `./run talk --agent {name}` installs what is missing)"
    )
    rest = dict.fromkeys(each.remedy for each in lacking if not each.extra)
    return "; ".join([command, *rest] if extras else rest)


def _download(weights: Weights) -> Download:
    state = state_of(weights)
    sizes = [file.size for file in state.files if file.size is not None]
    return Download(
        weights.name,
        weights.repository,
        weights.revision,
        weights.licence,
        sum(sizes) if sizes else None,
        state.complete,
        bool(weights.files) and all(file.sha256 is not None for file in weights.files),
        weights.pins,
    )


@cache
def cards() -> tuple[str, ...]:
    """List the driver's CUDA cards, one a line; empty if the driver does not answer."""
    asked = "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"
    by_tool = [["nvidia-smi", *asked]] if shutil.which("nvidia-smi") else []
    for command in (*by_tool, [sys.executable, "-c", _BY_DRIVER]):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_DRIVER_S, check=False
            )
        except (OSError, subprocess.SubprocessError):
            continue
        if done.returncode == 0 and (found := done.stdout.split("\n")[:-1]):
            return tuple(found)
    return ()


def examine_agent(elsewhere: Callable[[], Sequence[int]]) -> Iterator[Check]:
    """Check the agent's address, in about five seconds at most; the agent gets no call.

    There is nothing to check if there is no file or the agent is not a URL.

    Args:
        elsewhere: the usual ports of this machine at which something listens.
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
    problem = _look(host, port)
    if start is not None:
        try:
            argv_of(start)
        except InputError as e:
            where = defaults.where("replay", "start")
            return Check("agent", False, f"{e.message} ({where})", e.hint, needed=False)
        words = f"`{text_without_secrets(start)}` is started for each run "
        words += f"({defaults.where('replay', 'start')})"
        if problem is not None:
            words += f", so nothing has to listen at {at} now"
            return Check("agent", True, words, needed=False)
        words += f", but {at} is in use already"
        remedy = f"stop the server there, or remove `start` from {defaults.name} to measure it"
        return Check("agent", False, words, remedy, needed=False)
    if problem is None:
        return Check("agent", True, f"{at} is served ({where})", needed=False)
    why, remedy = problem
    if not remedy:
        remedy = f'start your bot; or add start = "COMMAND" to {defaults.name}, and turngap starts'
        remedy += " it"
        others = [each for each in elsewhere() if each != port] if is_loopback(host) else []
        if others:
            found = ", ".join(map(str, others))
            remedy += f". Something else listens at port {found}. Is that your bot?"
    return Check("agent", False, f"{why} ({where})", remedy, needed=False)


def _look(host: str, port: int) -> tuple[str, str] | None:
    """Connect; return None if that worked, else the reason and, if known, what may help."""
    at = shown_address(host, port)
    in_time = f"{at} did not answer within {LOOK_UP_S + CONNECT_S:g} s"
    found: list[tuple[str, str] | None] = [(in_time, _IS_IT_OPEN)]

    def connect() -> None:
        try:
            socket.create_connection((host, port), CONNECT_S).close()
            found.append(None)
        except (OSError, UnicodeError, OverflowError) as e:
            found.append(_why_not(host, at, e))

    # In another thread, since nothing bounds how long a name is looked up.
    trying = threading.Thread(target=connect, daemon=True)
    trying.start()
    trying.join(LOOK_UP_S + CONNECT_S)
    return found[-1]


def _why_not(host: str, at: str, error: Exception) -> tuple[str, str]:
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens at {at}", ""
    if isinstance(error, TimeoutError):
        return f"{at} did not answer within {CONNECT_S:g} s", _IS_IT_OPEN
    if isinstance(error, socket.gaierror | UnicodeError):
        remedy = "correct the host in the URL, or check this machine's network"
        return f"no address is known for the host {host}", remedy
    why = getattr(error, "strerror", None) or str(error)
    return f"{at} cannot be reached: {why}", _IS_IT_OPEN


def wanted_by(name: str, sets: Sequence[str] = ()) -> list[Weights]:
    """List the weights of a stack, a stack file or an engine, `BACKEND[,KEY=VALUE…]`.

    The engine need not run here: weights can be downloaded for another machine.

    Raises:
        InputError: there is no such stack, engine or setting.
    """
    if name in stack_files() or Path(name).suffix == ".toml":
        stack = override(load_stack(name), {}, sets)
        engines = resolved(stack, None, required=False)
        return [each for spec, settings in engines for each in spec.downloads(settings)]
    choice = BackendChoice.parse(name)
    for spec in specs():
        if spec.name == choice.backend:
            return spec.downloads(spec.settings(choice.values()))
    known = [*stack_files(), *(spec.name for spec in specs() if spec.weights)]
    raise InputError(
        "fetch.unknown",
        f"{name!r} is neither a stack nor an engine",
        hint=known_names(name, known),
    )
