"""A line under a call over WebRTC: each datagram, whatever is in it, crosses it or is lost."""

import asyncio
from collections.abc import Callable
from typing import Any

from turngap.caller.line.running import RunningLine
from turngap.caller.line.spec import LineSpec
from turngap.caller.line.transport import WATCH_S
from turngap.caller.rtc.rtp import Datagram
from turngap.clocks import unhurried
from turngap.core.clock import NS_PER_MS, NS_PER_S, Clock

# An agent that sends nothing for so long, neither sound nor reports, has left.
_QUIET_S = 6.0
_LOOK_NS = 50 * NS_PER_MS


class _Packet(bytes):
    """A datagram in the line; `passed` takes it where it comes out, with the instant."""

    passed: Callable[[int], None]


class _Transport:
    """A transport whose datagrams are sent by way of `sendto`."""

    def __init__(self, plain: Any, sendto: Callable[[bytes, Any], None]) -> None:
        self._plain, self.sendto = plain, sendto

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


class LinedUdp:
    """The line of a call, between the protocols of its sockets and their transports.

    UDP has no reset: where the line has one, `on_reset` is called, and the agent gets nothing more.
    """

    def __init__(
        self, spec: LineSpec, call: str, clock: Clock, on_reset: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._heard_ns = clock.now_ns()  # the agent's last datagram at the socket
        self._line = RunningLine(
            spec, call, clock, _pass_on, _pass_on, on_reset=on_reset, packets=True
        )
        self.crossings = self._line.crossings

    def lead(self, protocol: Any) -> None:
        """Have all that a protocol sends and receives cross the line."""
        transport, received, loop = (
            protocol.transport,
            protocol.datagram_received,
            asyncio.get_running_loop(),
        )

        def sendto(data: bytes, address: Any) -> None:
            packet = _Packet(data)
            packet.passed = lambda _: transport.sendto(data, address)
            self._line.send_up(self._clock.now_ns(), packet)

        def datagram_received(data: bytes, address: Any) -> None:
            is_stamped = isinstance(data, Datagram)
            self._heard_ns = data.arrived_ns if is_stamped else self._clock.now_ns()

            def passed(at_ns: int) -> None:
                came = Datagram.at(data, at_ns)
                came.is_stamped = is_stamped
                loop.call_soon(received, came, address)  # whatever it raises is the loop's

            packet = _Packet(data)
            packet.passed = passed
            self._line.send_down(self._heard_ns, packet)

        protocol.transport = _Transport(transport, sendto)
        protocol.datagram_received = datagram_received

    async def watch(self) -> None:
        """Wait until the agent has left a half-open line, `WATCH_S` at most."""
        if (half_open_ns := self.crossings.half_open_ns) is None:
            return
        clock = unhurried(self._clock)
        while (now_ns := clock.now_ns()) < half_open_ns + WATCH_S * NS_PER_S:
            if now_ns - self._heard_ns > _QUIET_S * NS_PER_S:
                self.crossings.agent_left_ns = max(self._heard_ns, half_open_ns)
                return
            await clock.sleep_until_ns(now_ns + _LOOK_NS)

    async def stop(self) -> None:
        """Close the line once all that was sent has come out."""
        try:
            while not (self._line.closed or self._line.is_half_open):
                if (next_ns := self._line.up.next_ns) is None:
                    return
                await self._clock.sleep_until_ns(max(next_ns, self._clock.now_ns() + NS_PER_MS))
        finally:
            self._line.close()


def _pass_on(at_ns: int, packet: bytes) -> None:
    if isinstance(packet, _Packet):
        packet.passed(at_ns)
