"""Hold the line's model of TCP against a kernel: the same messages over the same faults.

    python benchmarks/line_kernel.py [--case "loss 1 %"] [--seeds 8]

A sender and a receiver, in two network namespaces, are two ends of a real TCP connection. Each has
a TUN device, and between the devices a loop carries IP packets by the line's faults, data one way
and acknowledgements the other. Messages of 20 ms of audio are written in real time. The model
then gets the same messages at the same instants, with the same seeds: fades and outages fall at the
same instants, single losses soon do not. It takes some minutes, and needs Linux, root (or
unprivileged user namespaces) and /dev/net/tun; without them it exits with 3.
"""

import argparse
import contextlib
import ctypes
import fcntl
import gc
import heapq
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from itertools import chain
from math import log, sqrt
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from turngap.caller.line.spec import LineSpec, parse_line
from turngap.core.clock import NS_PER_MS, NS_PER_S

# Linux: unshare(2), if_tun.h, sockios.h.
CLONE_NEWUSER, CLONE_NEWNET = 0x1000_0000, 0x4000_0000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x4004_54CA, 0x0001, 0x1000
SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFFLAGS, IFF_UP = 0x8916, 0x891C, 0x8914, 0x0001
TUN = Path("/dev/net/tun")
SENDER, RECEIVER, PORT = "10.99.0.1", "10.99.0.2", 4000
PACKET_NS = 20 * NS_PER_MS
# A stall begins at so much more than the line's delay and jitter.
LATE_MS = 50.0
SHARES_MS = (50, 100, 200, 400)
MARKS = (50, 90, 95, 99, 100)


@dataclass(frozen=True, slots=True)
class Case:
    """A line, and what is sent over it: messages of so many bytes every 20 ms, one way or both."""

    line: str
    size: int = 640
    seconds: float = 100.0
    both: bool = False


CASES = {
    "plain": Case("delay=45"),
    "loss 1 %": Case("delay=45,loss=1%"),
    "loss 1 %, far": Case("delay=95,loss=1%", 960),
    "loss 5 %, bursts": Case("delay=45,loss=5%,burst=100ms"),
    "jitter": Case("delay=45,jitter=40"),
    "jitter, loss 2 %": Case("delay=45,jitter=40,loss=2%", 960),
    "narrow": Case("delay=50,rate=300kbit,queue=1s", 960, 60),
    "outage 400 ms": Case("delay=45,outage=400ms/12s"),
    "outage 3 s": Case("delay=45,outage=3s/30s", 640, 120),
    "lte-moving": Case("lte-moving"),
    "loss 3 %, 8 kHz": Case("delay=20,loss=3%", 320),
    "3g-bad": Case("3g-bad"),
    "starlink": Case("starlink", 960),
    "g1050-g": Case("g1050-g"),
    # These were first measured when the model was finished.
    "lte-bad": Case("lte-bad"),
    "jitter, fades": Case("delay=120,jitter=60,loss=2%,burst=40ms"),
    "short queue": Case("delay=30,loss=1%,rate=350kbit,queue=200ms"),
    "g1050-f": Case("g1050-f", 960),
}


@dataclass(slots=True)
class Outcome:
    """Messages that were sent and when each had arrived whole, ns from the first."""

    sent: list[int] = field(default_factory=list[int])
    arrived: list[int] = field(default_factory=list[int])
    late_us: list[float] = field(default_factory=list[float])  # the loop's own lateness
    congestion: str = ""


# The kernel's side.


class MissingError(Exception):
    """A part of this machine that is missing."""


def _new_namespace(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        raise MissingError(f"no network namespace: {os.strerror(ctypes.get_errno())}; run as root")


def _open_end(address: str) -> tuple[int, socket.socket]:
    """Make a namespace with a TUN device of this address; return the device and a socket in it."""
    _new_namespace(CLONE_NEWNET)
    try:
        tun = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"line", IFF_TUN | IFF_NO_PI))
    except OSError as e:
        raise MissingError(f"no TUN device: {e}") from None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, "255.255.255.0")):
            in_addr = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(control, request, struct.pack("16s16s8x", b"line", in_addr))
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", b"line", IFF_UP))
    return tun, socket.socket()


def over_kernel(case: Case, seed: int, congestion: str) -> Outcome:
    """Send the messages over a real connection; the faults begin with the first message."""
    if os.getuid():
        _new_namespace(CLONE_NEWUSER | CLONE_NEWNET)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        print("no real-time priority: the loop may be late", file=sys.stderr)
    near, sender = _open_end(SENDER)
    far, listener = _open_end(RECEIVER)
    for end in (sender, listener):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        except OSError:
            print(f"no congestion control {congestion!r}: the default is used", file=sys.stderr)
    gc.collect()
    gc.disable()
    with sender, listener:
        try:
            return _Kernel(case, _line(case, seed), near, far).run(sender, listener)
        finally:
            gc.enable()
            os.close(near)
            os.close(far)


class _Kernel:
    """A router between two devices, and the two ends' program."""

    def __init__(self, case: Case, line: LineSpec, near: int, far: int) -> None:
        self.case, self.line = case, line
        self.near, self.far = near, far
        self.way: list[tuple[int, int, int, bytes]] = []
        self.count = 0
        self.outcome = Outcome()
        self.carry: dict[int, Callable[[int, int], int | None]] = {
            near: lambda at_ns, size: at_ns + round(line.up.delay_ms * NS_PER_MS),
            far: lambda at_ns, size: at_ns + round(line.down.delay_ms * NS_PER_MS),
        }

    def run(self, sender: socket.socket, listener: socket.socket) -> Outcome:
        listener.bind((RECEIVER, PORT))
        listener.listen()
        for end in (sender, listener):
            end.setblocking(False)
        sender.connect_ex((RECEIVER, PORT))
        self._turn([listener], [], time.monotonic_ns() + 5 * NS_PER_S)
        while listener not in self.ready:
            self._turn([listener], [], time.monotonic_ns() + NS_PER_S)
        receiver, _ = listener.accept()
        receiver.setblocking(False)
        with receiver:
            self._settle(time.monotonic_ns() + 300 * NS_PER_MS)
            self._talk(sender, receiver)
        self.outcome.congestion = (
            sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
        )
        return self.outcome

    def _settle(self, until_ns: int) -> None:
        while time.monotonic_ns() < until_ns:
            self._turn([], [], until_ns)

    def _talk(self, sender: socket.socket, receiver: socket.socket) -> None:
        case, outcome = self.case, self.outcome
        begins_ns = time.monotonic_ns() + PACKET_NS
        up, down = paths(self.line, begins_ns)
        self.carry = {self.near: up, self.far: down}
        messages = round(case.seconds * NS_PER_S / PACKET_NS)
        ends_ns = begins_ns + messages * PACKET_NS + 60 * NS_PER_S
        waiting, back, got, message = bytearray(), bytearray(), 0, bytes(case.size)
        while len(outcome.arrived) < messages and time.monotonic_ns() < ends_ns:
            next_ns = ends_ns
            if len(outcome.sent) < messages:
                next_ns = begins_ns + len(outcome.sent) * PACKET_NS
                if (now_ns := time.monotonic_ns()) >= next_ns:
                    outcome.sent.append(now_ns - begins_ns)
                    waiting += message
                    back += message if case.both else b""
                    next_ns = now_ns if len(outcome.sent) < messages else ends_ns
            for end, unsent in ((sender, waiting), (receiver, back)):
                with contextlib.suppress(BlockingIOError):
                    del unsent[: end.send(unsent)]
            full = [end for end, unsent in ((sender, waiting), (receiver, back)) if unsent]
            self._turn([receiver, sender], full, next_ns)
            if sender in self.ready:
                sender.recv(1 << 20)
            if receiver in self.ready:
                got += len(receiver.recv(1 << 20))
                at_ns = time.monotonic_ns() - begins_ns
                while len(outcome.arrived) < got // case.size:
                    outcome.arrived.append(at_ns)

    ready: Sequence[object] = ()

    def _turn(self, readers: list[socket.socket], writers: list[socket.socket], to_ns: int) -> None:
        """Carry what is due, then wait for anything new until an instant."""
        now_ns = time.monotonic_ns()
        while self.way and self.way[0][0] <= now_ns:
            due_ns, _, device, packet = heapq.heappop(self.way)
            os.write(device, packet)
            now_ns = time.monotonic_ns()
            self.outcome.late_us.append((now_ns - due_ns) / 1000)
        if self.way:
            to_ns = min(to_ns, self.way[0][0])
        wait_s = max(0, to_ns - now_ns) / NS_PER_S
        self.ready, *_ = select.select([self.near, self.far, *readers], writers, [], wait_s)
        for device in (self.near, self.far):
            if device in self.ready:
                self._take(device)

    def _take(self, device: int) -> None:
        """Read the packets that a device sends, and find when each arrives at the other."""
        while True:
            try:
                packet = os.read(device, 1 << 16)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:
                continue  # IPv6's announcements
            due_ns = self.carry[device](time.monotonic_ns(), len(packet))
            if due_ns is not None:
                self.count += 1
                other = self.far if device == self.near else self.near
                heapq.heappush(self.way, (due_ns, self.count, other, packet))


# The model's side.


def _line(case: Case, seed: int) -> LineSpec:
    return parse_line(f"{case.line},seed={seed}")


def paths(line: LineSpec, begins_ns: int) -> list[Callable[[int, int], int | None]]:
    """Return the ways of single packets, up and down, as the model takes them."""
    return [
        line._path(way, "kernel", begins_ns, delay_ms).carry
        for way, delay_ms in (("up", line.up.delay_ms), ("down", line.down.delay_ms))
    ]


def over_model(case: Case, seed: int, sent: Sequence[int]) -> Outcome:
    """Send messages at these instants through the model."""
    leg, _ = _line(case, seed).legs("kernel", 0)
    outcome, got = Outcome(list(sent)), 0
    sends, message = [*sent], bytes(case.size)
    sends.reverse()
    while len(outcome.arrived) < len(sent):
        next_ns = leg.next_ns
        if sends and (next_ns is None or sends[-1] <= next_ns):
            leg.send(sends.pop(), message)
            continue
        if next_ns is None:
            break
        for at_ns, data in leg.receive(next_ns):
            got += len(data)
            while len(outcome.arrived) < got // case.size:
                outcome.arrived.append(at_ns)
    return outcome


# The comparison.


HEAD = (
    "delay p50 | p90 | p95 | p99 | max | late > 50 ms, % | > 100 | > 200 | > 400 | stalls a minute "
    "| lasting p50 | max"
)


def lateness(outcome: Outcome, line: LineSpec) -> np.ndarray:
    """Return how much longer than the line's delay and jitter each message took, in ms."""
    sent = np.array(outcome.sent[: len(outcome.arrived)])
    due_ms = line.up.delay_ms + line.up.jitter_ms
    return (np.array(outcome.arrived) - sent) / NS_PER_MS - due_ms


def row(outcomes: Sequence[Outcome], line: LineSpec) -> str:
    """Summarise a case's connections: delays, late messages, and stalls.

    Late is what takes longer than the line's delay and jitter. A stall is a run of messages more
    than 50 ms late; it lasts from when its first message was due until that arrived.
    """
    due_ms = line.up.delay_ms + line.up.jitter_ms
    late = [lateness(outcome, line) for outcome in outcomes]
    stalls: list[float] = []
    for each in late:
        is_late = np.concatenate([[False], each > LATE_MS, [False]]).astype(int)
        begins, ends = np.flatnonzero(np.diff(is_late) > 0), np.flatnonzero(np.diff(is_late) < 0)
        stalls += [each[b:e].max() for b, e in zip(begins, ends, strict=True)]
    minutes = sum(len(o.sent) for o in outcomes) * PACKET_NS / NS_PER_S / 60
    shares = np.array([[100 * np.mean(each > ms) for ms in SHARES_MS] for each in late])
    error = np.std(shares[:, 0], ddof=1) / sqrt(len(late)) if len(late) > 1 else 0.0
    cells = [f"{ms + due_ms:.0f}" for ms in np.percentile(np.concatenate(late), MARKS)]
    cells += [f"{share:.1f}" for share in shares.mean(axis=0)]
    cells[len(MARKS)] += f" ± {error:.1f}"
    cells += [f"{len(stalls) / minutes:.1f}"]
    cells += [f"{ms:.0f}" for ms in (np.median(stalls), max(stalls))] if stalls else ["–", "–"]
    return " | ".join(cells)


# A panel of the drawing, px, and what its axes show: how late, ms, and the share that is later.
PANEL, GAP = (210, 120), (40, 46)
LATEST_MS, LEAST = (1.0, 30_000.0), 1e-4


def draw(late: dict[str, tuple[Sequence[float], Sequence[float]]]) -> str:
    """Draw for each case which share of the messages was later than so much: kernel and model."""
    (width, height), across = PANEL, 3
    scale_x, scale_y = width / log(LATEST_MS[1] / LATEST_MS[0]), height / log(1 / LEAST)
    parts: list[str] = []
    for i, (name, both) in enumerate(late.items()):
        left, top = GAP[0] + i % across * (width + GAP[0]), 28 + i // across * (height + GAP[1])
        parts.append(f'<text x="{left}" y="{top - 8}" class="name">{escape(name)}</text>')
        for ms in (1, 10, 100, 1000, 10_000):
            x = left + scale_x * log(ms / LATEST_MS[0])
            parts.append(f'<path d="M{x:.1f} {top}v{height}" class="grid"/>')
            parts.append(f'<text x="{x:.1f}" y="{top + height + 13}">{ms}</text>')
        for share in (1, 0.1, 0.01, 0.001, 0.0001):
            y = top - scale_y * log(share)
            parts.append(f'<path d="M{left} {y:.1f}h{width}" class="grid"/>')
            parts.append(f'<text x="{left - 4}" y="{y + 3:.1f}" class="y">{100 * share:g} %</text>')
        for kind, values in zip(("kernel", "model"), both, strict=True):
            marks = np.geomspace(*LATEST_MS, 120)
            share = 1 - np.searchsorted(np.sort(values), marks, side="right") / len(values)
            points = " ".join(
                f"{left + scale_x * log(ms / LATEST_MS[0]):.1f},{top - scale_y * log(y):.1f}"
                for ms, y in zip(marks, share, strict=True)
                if y > LEAST
            )
            parts.append(f'<polyline points="{points}" class="{kind}"/>')
    rows = -(-len(late) // across)
    size = GAP[0] + across * (width + GAP[0]), 28 + rows * (height + GAP[1])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" role="img">'
        "<title>The share of messages later than so many ms: kernel (blue), model (orange)</title>"
        "<style>text{font:9px sans-serif;fill:#777;text-anchor:middle}.y{text-anchor:end}"
        ".name{font-size:12px;text-anchor:start}.grid{stroke:#8884;fill:none}"
        "polyline{fill:none;stroke-width:1.6}.kernel{stroke:#2b7de9}"
        ".model{stroke:#e8862a;stroke-dasharray:5 3}</style>" + "".join(parts) + "</svg>\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_RAW)
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    parser.add_argument("--seeds", type=int, default=4, help="connections a case")
    parser.add_argument("--congestion", default="cubic")
    parser.add_argument("--both", action="store_true", help="audio goes back, too")
    parser.add_argument("--seconds", type=float, help="of each connection")
    parser.add_argument("--at-once", type=int, default=18, help="connections at once")
    parser.add_argument("--keep", type=Path, help="write the messages as JSON, for --again")
    parser.add_argument("--again", type=Path, help="take the kernel's messages from this file")
    parser.add_argument("--svg", type=Path, help="write a drawing")
    args = parser.parse_args(argv)
    names = args.case or list(CASES)
    cases = {
        name: replace(CASES[name], seconds=args.seconds or CASES[name].seconds, both=args.both)
        for name in names
    }
    real: dict[tuple[str, int], Outcome] = {}
    if args.again:
        for name, seed, sent, arrived in json.loads(args.again.read_text(encoding="utf-8")):
            real[name, seed] = Outcome(sent, arrived)
    else:
        try:
            real = over_kernels(cases, args.seeds, args.congestion, args.at_once)
        except MissingError as e:
            print(f"line_kernel: {e}", file=sys.stderr)
            return 3
        late_us = np.array(list(chain.from_iterable(o.late_us for o in real.values())))
        print(
            f"Linux {os.uname().release}, {', '.join({o.congestion for o in real.values()})}; "
            f"the loop is late by {np.median(late_us):.0f} us (p99 {np.percentile(late_us, 99):.0f}"
            f", max {late_us.max():.0f})\n"
        )
    if args.keep:
        kept = [[name, seed, o.sent, o.arrived] for (name, seed), o in real.items()]
        args.keep.write_text(json.dumps(kept), encoding="utf-8")
    print(f"| line | | {HEAD} |\n|---|---|{'--:|' * (HEAD.count('|') + 1)}")
    late: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    for name in names:
        line = _line(cases[name], 1)
        kernel = {seed: o for (of, seed), o in sorted(real.items()) if of == name}
        model = [over_model(cases[name], seed, o.sent) for seed, o in kernel.items()]
        print(f"| {name} | kernel | {row(list(kernel.values()), line)} |")
        print(f"| | model | {row(model, line)} |")
        both = [
            np.concatenate([lateness(o, line) for o in outcomes]).tolist()
            for outcomes in (list(kernel.values()), model)
        ]
        if max(map(max, both)) > LATE_MS:
            late[name] = both[0], both[1]
    if args.svg:
        args.svg.write_text(draw(late), encoding="utf-8")
    return 0


def over_kernels(
    cases: dict[str, Case], seeds: int, congestion: str, at_once: int
) -> dict[tuple[str, int], Outcome]:
    """Run all connections, so many at once."""
    if not TUN.exists():
        raise MissingError(f"no {TUN}: this needs Linux with TUN devices")
    # One connection a process, because a process keeps the namespace that it entered.
    with ProcessPoolExecutor(at_once, max_tasks_per_child=1) as pool:
        jobs = {
            pool.submit(over_kernel, case, seed, congestion): (name, seed)
            for seed in range(1, seeds + 1)
            for name, case in cases.items()
        }
        return {jobs[job]: job.result() for job in as_completed(jobs)}


_RAW = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    raise SystemExit(main())
