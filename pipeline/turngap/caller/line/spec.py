"""Lines by name and by their faults: what `--line` takes, and the profiles that ship."""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.resources import files
from random import Random
from types import MappingProxyType
from typing import Any

from turngap.caller.line.faults import (
    Coalescing,
    Delay,
    Fault,
    HalfOpen,
    Jitter,
    Loss,
    Outage,
    Path,
    Rate,
)
from turngap.caller.line.leg import Leg, PacketLeg, TcpLeg
from turngap.core.clock import NS_PER_S, ms_to_ns
from turngap.core.errors import InputError, known_names

# A router's queue in front of a slow link, unless the line names it.
QUEUE_MS = 1000.0


@dataclass(frozen=True, slots=True)
class Way:
    """The faults of one direction.

    Attributes:
        delay_ms: the time that every byte takes.
        jitter_ms: up to this much more, for each packet.
        loss: the share of packets that is lost.
        burst_ms: the mean length of a time in which all packets are lost; 0: each by itself.
        kbit: the bandwidth, kbit/s; None: no limit.
        queue_ms: how long a packet may wait for the bandwidth before it is dropped.
        outage_ms, every_s: the link fails for this long, this often; 0: never.
        coalesce_ms: bytes are collected for this long and come out at once.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    burst_ms: float = 0.0
    kbit: float | None = None
    queue_ms: float = QUEUE_MS
    outage_ms: float = 0.0
    every_s: float = 0.0
    coalesce_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class LineSpec:
    """A line, both of its directions. The same seed and the same call give the same line.

    Attributes:
        text: the line as it was given.
        name: the profile's name; empty without one.
        faults: all faults typed out, those of the profile first; later ones win.
        about, source: of the profile: what it is, and where its numbers come from.
        rtt_ms: the round trip of the TCP connection that repairs losses; None: both delays. If it
            is less, the rest of the delays is behind it, as behind a relay.
        half_open_s: when the peer is gone without a word, from the start of the connection.
        reset_s: when the connection is reset.
    """

    text: str
    name: str = ""
    about: str = ""
    faults: str = field(default="", compare=False)
    source: str = ""
    up: Way = field(default_factory=Way)
    down: Way = field(default_factory=Way)
    rtt_ms: float | None = None
    half_open_s: float | None = None
    reset_s: float | None = None
    seed: int = 1

    @property
    def both_ms(self) -> float:
        """Return the delays of both directions together."""
        return self.up.delay_ms + self.down.delay_ms

    @property
    def breaks(self) -> bool:
        """Return whether the line ends calls itself."""
        return self.half_open_s is not None or self.reset_s is not None

    def numbers(self) -> dict[str, Any]:
        """Return the line's numbers, as they are stored."""
        numbers = asdict(self)
        return {name: numbers[name] for name in (*_WAYS, "rtt_ms", "half_open_s", "reset_s")}

    def legs(self, call: str, begins_ns: int) -> tuple[Leg, Leg]:
        """Make the legs of a call's TCP connection, up and down, that begins at an instant."""
        up, down = self._tcp_leg("up", call, begins_ns), self._tcp_leg("down", call, begins_ns)
        return up, down

    def packet_legs(self, call: str, begins_ns: int) -> tuple[Leg, Leg]:
        """Make the legs of a call's packets, up and down: what is lost stays lost."""
        up, down = (
            PacketLeg(self._path(way, call, begins_ns, getattr(self, way).delay_ms))
            for way in _WAYS
        )
        return up, down

    def _tcp_leg(self, name: str, call: str, begins_ns: int) -> TcpLeg:
        way: Way = getattr(self, name)
        rtt_ms = self.both_ms if self.rtt_ms is None else self.rtt_ms
        there_ms = way.delay_ms * rtt_ms / self.both_ms if self.both_ms else 0.0
        other = _WAYS[name == "up"]
        return TcpLeg(
            self._path(name, call, begins_ns, there_ms),
            back=self._path(other, call, begins_ns, rtt_ms - there_ms),
            rtt_ns=ms_to_ns(rtt_ms),
            later_ns=ms_to_ns(way.delay_ms - there_ms),
            coalescing=Coalescing(way.coalesce_ms) if way.coalesce_ms else None,
        )

    def _path(self, name: str, call: str, begins_ns: int, delay_ms: float) -> Path:
        way: Way = getattr(self, name)

        def chance(fault: str) -> Random:
            return Random(f"{self.seed}/{call}/{name}/{fault}")

        faults: list[Fault] = []
        if self.half_open_s is not None:
            faults.append(HalfOpen(begins_ns + round(self.half_open_s * NS_PER_S)))
        if way.kbit is not None:
            faults.append(Rate(way.kbit, way.queue_ms))
        if way.outage_ms:
            both = Random(f"{self.seed}/{call}/outage")  # a link fails both ways at once
            faults.append(Outage(way.outage_ms, way.every_s, both, begins_ns))
        if way.loss:
            faults.append(Loss(way.loss, way.burst_ms, chance("loss"), begins_ns))
        faults.append(Delay(delay_ms))
        if way.jitter_ms:
            faults.append(Jitter(way.jitter_ms, chance("jitter")))
        return Path(faults)


_WAYS = ("up", "down")
EXAMPLE = "for example --line lte-moving, or --line delay=80,jitter=20,loss=1%,down=300kbit"
_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"


def _in_unit(
    units: Mapping[str, float], least: float, most: float, such_as: str
) -> Callable[[str], float]:
    """Build a reader of a number with one of these units, in a range of the first unit."""
    form = re.compile(_NUMBER + "(" + "|".join(map(re.escape, units)) + ")", re.ASCII)
    unit = next(iter(units))

    def read(text: str) -> float:
        found = form.fullmatch(text)
        value = float(found[1]) * units[found[2]] if found else -1.0
        if not least <= value <= most:
            raise ValueError(f"expected {least:g} to {most:g} {unit}".rstrip() + f", as {such_as}")
        return value

    return read


_MS = {"ms": 1.0, "": 1.0, "s": 1000.0}
_LONG_MS = _in_unit(_MS, 0, 30_000, "80ms")
_AFTER_S = _in_unit({"s": 1.0, "": 1.0}, 0, 86_400, "20s")
_SHARE = _in_unit({"%": 1.0, "": 100.0}, 0, 50, "1% or 0.01")
_KBIT = _in_unit({"kbit": 1.0, "": 1.0, "Mbit": 1000.0}, 8, 10_000_000, "300kbit or 1.2Mbit")


def _read_outage(text: str) -> dict[str, float]:
    lasts, slash, every = text.partition("/")
    outage = {"outage_ms": _LONG_MS(lasts), "every_s": _AFTER_S(every) if slash else 0.0}
    if outage["every_s"] * 1000 <= outage["outage_ms"]:
        raise ValueError("expected how long and how often, as 400ms/60s")
    return outage


def _read_seed(text: str) -> int:
    if re.fullmatch(r"\d{1,9}", text, re.ASCII) is None:
        raise ValueError("expected a whole number of up to 9 digits, as 2")
    return int(text)


# What a key sets in a way.
_IN_WAY: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "delay": lambda text: {"delay_ms": _LONG_MS(text)},
    "jitter": lambda text: {"jitter_ms": _LONG_MS(text)},
    "loss": lambda text: {"loss": _SHARE(text) / 100},
    "burst": lambda text: {"burst_ms": _in_unit(_MS, 1, 30_000, "60ms")(text)},
    "rate": lambda text: {"kbit": _KBIT(text)},
    "queue": lambda text: {"queue_ms": _in_unit(_MS, 1, 60_000, "500ms")(text)},
    "outage": _read_outage,
    "coalesce": lambda text: {"coalesce_ms": _LONG_MS(text)},
}
# What a key sets in the line.
_IN_LINE: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "rtt": lambda text: {"rtt_ms": _LONG_MS(text)},
    "half-open": lambda text: {"half_open_s": _AFTER_S(text)},
    "reset": lambda text: {"reset_s": _AFTER_S(text)},
    "seed": lambda text: {"seed": _read_seed(text)},
}
KEYS = (*_IN_WAY, *_WAYS, *_IN_LINE)


def parse_line(text: str) -> LineSpec:
    """Read a line: a profile's name, faults, or both: `lte-moving,loss=2%,down.delay=80`.

    A fault is in both directions, or with `up.` or `down.` before it in one. `up=` and `down=` are
    one direction's bandwidth.

    Raises:
        InputError: there is no such profile or fault, or a value is malformed or out of range.
    """
    first, *others = [part.strip() for part in text.split(",")]
    if first and "=" not in first:
        if (known := profiles().get(first.lower())) is None:
            hint = f"{known_names(first, profiles())}\n  {EXAMPLE}"
            raise InputError("line.unknown", f"unknown line {first!r}", hint=hint)
        line = replace(known, text=text, faults=",".join((known.faults, *others)))
    else:
        line, others = LineSpec(text, faults=text), [first, *others]
    for part in others:
        line = _with(line, part)
    if line.rtt_ms is not None and not line.both_ms:
        half = {"delay_ms": line.rtt_ms / 2}
        line = replace(line, up=replace(line.up, **half), down=replace(line.down, **half))
    if line.rtt_ms is not None and line.rtt_ms > line.both_ms:
        raise InputError(
            "line.value",
            f"--line {text!r}: a round trip of {line.rtt_ms:g} ms is longer than both delays "
            f"together ({line.both_ms:g} ms)",
            hint="give the delay of one direction, or rtt alone",
        )
    return line


def _with(line: LineSpec, part: str) -> LineSpec:
    key, _, value = part.partition("=")
    way, dot, fault = key.rpartition(".")
    key = "rate" if (alone := key in _WAYS) else fault
    ways = (part.partition("=")[0],) if alone else (way,) if dot else _WAYS
    try:
        if key in _IN_LINE and not dot:
            return replace(line, **_IN_LINE[key](value))
        if key in _IN_WAY and all(each in _WAYS for each in ways):
            numbers = _IN_WAY[key](value)
            return replace(line, **{w: replace(getattr(line, w), **numbers) for w in ways})
    except ValueError as e:
        raise InputError("line.value", f"--line: {part!r}: {e}", hint=EXAMPLE) from None
    if part.lower() in profiles():
        raise InputError(
            "line.unknown", f"--line: {part!r} is a second profile; name one", hint=EXAMPLE
        )
    known = known_names(part.partition("=")[0], KEYS)
    raise InputError("line.unknown", f"--line: no fault {part!r}", hint=f"{known}\n  {EXAMPLE}")


@cache
def profiles() -> Mapping[str, LineSpec]:
    """Return the lines that ship, by name, from `profiles.toml`."""
    text = files("turngap.caller.line").joinpath("profiles.toml").read_text(encoding="utf-8")
    found = {
        name: replace(parse_line(each.pop("line")), text=name, name=name, **each)
        for name, each in tomllib.loads(text).items()
    }
    return MappingProxyType(found)
