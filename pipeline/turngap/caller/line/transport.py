"""A line inside a connection: its protocol sees only what the line lets through, and when."""

import asyncio
import select
import socket
import struct
from contextlib import suppress
from typing import Any

from turngap.caller.arrival import arrived_ns
from turngap.caller.line.running import LineEndedError, RunningLine
from turngap.caller.line.spec import LineSpec
from turngap.clocks import unhurried
from turngap.core.clock import NS_PER_S, Clock, ms_to_ns

# How long a half-open line keeps the real socket, to see when the agent leaves.
WATCH_S = 15.0
_LOOK_NS = ms_to_ns(50)
# What the kernel keeps of what the agent sends while the line takes no more: the agent's own kernel
# then holds the rest, as on a real line. Segments as on Ethernet: a loopback's would not fit.
RECEIVE_BUFFER, SEGMENT = 2**15, 1448
RESET = "the line was reset (--line reset)"
_LINGERS_NOT = struct.pack("ii", 1, 0)
_HIGH = 2**16
# Linux has it; elsewhere, a peer's leaving is seen once it is read again.
_HANGS_UP = getattr(select, "POLLRDHUP", 0)


def narrow(tcp: socket.socket) -> None:
    """Let a socket that is not connected yet keep little that has not been read.

    On a connected one, the windows that were promised before make the sender wait for a timer.
    """
    with suppress(OSError, AttributeError):
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)


def break_off(transport: asyncio.WriteTransport) -> None:
    """Reset a connection, whatever is still to be sent."""
    with suppress(OSError, AttributeError):
        tcp = transport.get_extra_info("socket")
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGERS_NOT)
    transport.abort()


class LinedTransport(asyncio.Transport, asyncio.Protocol):
    """A connection's transport with a line before the real one, whose protocol it is.

    What the agent sent, and the end of it, reach `near` when the line gives them up; what `near`
    writes reaches the real transport likewise. Backlog works as at a full socket: `near` is paused
    while the line takes no more, and the agent is not read.

    From when the line is half-open, nothing is passed on, and the real socket stays open until
    `WATCH_S` later or until `near` is gone, whichever is later.

    Attributes:
        arrived_ns: when the bytes that `near` received last came out of the line.
    """

    def __init__(
        self,
        real: asyncio.Transport,
        near: asyncio.Protocol,
        spec: LineSpec,
        call: str,
        clock: Clock,
        *,
        keep: int = 2**20,
    ) -> None:
        super().__init__()
        self._real, self._near, self._clock = real, near, clock
        self._loop = asyncio.get_running_loop()
        self.arrived_ns = self._entered_ns = 0
        self._ended: BaseException | None = None  # why the real connection was lost
        self._real_lost = self._lost = self._closing = self._paused = False
        self._down_ended = self._up_ended = self._given_up = False
        self._wrote_all = self._resets = self._was_reset = False
        self._near_reads = self._reads = True
        self._limits = (_HIGH // 4, _HIGH)
        self._watching: asyncio.Task[None] | None = None
        self.line = RunningLine(
            spec,
            call,
            clock,
            self._on_up,
            self._on_down,
            on_change=self._flow,
            on_half_open=self._on_half_open,
            on_reset=self._on_reset,
            most=keep,
        )
        real.set_protocol(self)
        real.set_write_buffer_limits(high=0)  # an agent that does not read holds `near` up

    # The near side: a transport.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._real.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def pause_reading(self) -> None:
        self._near_reads = False
        self._flow()

    def resume_reading(self) -> None:
        self._near_reads = True
        self._flow()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        high = _HIGH if high is None else high
        self._limits = (high // 4 if low is None else low, high)
        self._flow()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that wait because the line, or the agent, takes no more."""
        return self.line.unsent + self._real.get_write_buffer_size()

    def write(self, data: Any) -> None:
        if not self._closing:
            self.line.send_up(self._clock.now_ns(), bytes(data))
            self._flow()

    def can_write_eof(self) -> bool:
        return self._real.can_write_eof()

    def write_eof(self) -> None:
        self._wrote_all = True
        self.line.finish_up(self._clock.now_ns())
        if self.line.is_half_open:
            self.abort()

    def close(self) -> None:
        """Close the connection once the agent has what was written; read nothing more."""
        if self._closing:
            return
        if self.line.is_half_open:
            self.abort()
            return
        self._closing = True
        if self._up_ended:
            self._hang_up()
        else:
            self.line.finish_up(self._clock.now_ns())

    def _hang_up(self) -> None:
        break_off(self._real) if self._resets else self._real.close()

    def abort(self) -> None:
        """Close the connection at once, or leave a half-open one to be watched."""
        self._closing = True
        self.line.close()
        if self._real_lost or self.line.is_half_open:
            self._loop.call_soon(self._lose, None)
        else:
            self._real.abort()

    def reset(self) -> None:
        """Reset the connection once the agent has what was written."""
        self._resets = True
        self.close()

    async def ended(self) -> None:
        """Wait until nothing of a half-open connection is left; cancelled, end it at once."""
        if self._watching is not None:
            try:
                await asyncio.wait([self._watching])
            finally:
                self.kill()

    @property
    def broken(self) -> str:
        """Return why the line itself ended the connection; empty if it did not."""
        if self.line.is_half_open:
            return "the line is half-open (--line half-open)"
        return RESET if self._was_reset else ""

    def kill(self) -> None:
        """End both sides at once, and look for nothing any more."""
        if self._watching is not None:
            self._watching.cancel()
        self.abort()
        self._real.abort()

    # The real side: a protocol.

    def data_received(self, data: bytes) -> None:
        if self._lost:
            return
        self._entered_ns = arrived_ns(self._real, self._clock, self._entered_ns)
        self.line.send_down(self._entered_ns, data)
        self._flow()

    def eof_received(self) -> bool:
        if self.line.is_half_open:
            self._on_left()
            return False
        self.line.finish_down(self._clock.now_ns())
        return self._real.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Exception | None) -> None:
        self._real_lost = True
        if self.line.is_half_open:
            self._on_left()
        elif self._closing or self._down_ended:
            self._lose(exc)
        else:
            self._ended = exc
            self.line.finish_down(self._clock.now_ns())

    def pause_writing(self) -> None:
        self._flow()

    def resume_writing(self) -> None:
        self._flow()

    # The line.

    def _on_up(self, _: int, data: bytes) -> None:
        if self._real_lost:
            return
        if data:
            self._real.write(data)
            return
        self._up_ended = True
        if self._closing or not self._real.can_write_eof():
            self._hang_up()
        else:
            self._real.write_eof()

    def _on_down(self, at_ns: int, data: bytes) -> None:
        if self._closing:
            return
        self.arrived_ns = at_ns
        try:
            if data:
                self._near.data_received(data)
                return
            self._down_ended = True
            stays = self._ended is not None or self._near.eof_received()
        except Exception as e:  # as asyncio's own transports do
            about = {"message": "a protocol failed", "exception": e, "protocol": self._near}
            self._loop.call_exception_handler(about)
            self.abort()
            return
        if self._real_lost:
            self._lose(self._ended)
        elif not stays:
            self.close()

    def _on_reset(self) -> None:
        break_off(self._real)
        self._was_reset = True
        self._lose(LineEndedError(RESET))

    def _on_half_open(self) -> None:
        self._flow()
        if self._real_lost:
            return
        self._watching = self._loop.create_task(self._watch(), name="turngap-half-open-line")
        if self._closing or self._wrote_all:  # nothing would end it any more
            self.abort()

    def _on_left(self) -> None:
        crossings = self.line.crossings
        if crossings.agent_left_ns is None and not self._given_up:
            crossings.agent_left_ns = self._clock.now_ns()

    async def _watch(self) -> None:
        """See when the agent leaves; then, or when there is no more time, end the connection."""
        crossings, clock = self.line.crossings, unhurried(self._clock)
        last_ns = (crossings.half_open_ns or 0) + round(WATCH_S * NS_PER_S)
        looks = select.poll()
        looks.register(self._real.get_extra_info("socket").fileno(), _HANGS_UP)
        try:
            while crossings.agent_left_ns is None:
                if self._lost and clock.now_ns() >= last_ns:
                    break
                await clock.sleep_until_ns(clock.now_ns() + _LOOK_NS)
                if not self._real_lost and looks.poll(0):
                    self._on_left()
        finally:
            self._given_up = True
            self._real.abort()

    def _flow(self) -> None:
        """Read the agent, and let `near` write, as far as the line takes and gives."""
        # When `near` is gone, what the agent has sent may hide the end of it.
        reads = self._lost or (self._near_reads and self.line.down.room > 0)
        if reads is not self._reads and not self._real.is_closing():
            self._reads = reads
            (self._real.resume_reading if reads else self._real.pause_reading)()
        low, high = self._limits
        size = 0 if self._lost else self.get_write_buffer_size()
        if size > high and not self._paused:
            self._paused = True
            self._near.pause_writing()
        elif size <= low and self._paused and not self._lost:
            self._paused = False
            self._near.resume_writing()

    def _lose(self, exc: BaseException | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self.line.close()
        self._flow()
        self._near.connection_lost(exc if isinstance(exc, Exception) else None)
