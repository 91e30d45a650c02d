"""Compare turngap's ear for WebRTC with aiortc's own track, side by side on the same calls.

    python benchmarks/webrtc_ears.py --write docs/other-tools.md    # some 2.5 minutes

A loopback agent answers after known times, once over a line that loses nothing and once with 2 %
loss. Each RTP packet that arrives goes to turngap's ear and to aiortc's `RTCRtpReceiver`, whose
track is read as its users read it: a sample is heard when `recv` returns its frame, plus its place
in the frame. The truth is when the packet with the first loud sample was sent; turns without such a
packet are left out, and so are those before the first loss.
"""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from aiortc import RTCRtpCodecParameters, RTCRtpReceiver
from aiortc.rtcrtpparameters import RTCRtpReceiveParameters
from aiortc.rtcrtpreceiver import RemoteStreamTrack
from aiortc.rtp import RtpPacket
from endings import errors_told
from pages import write

from turngap.caller.conversation import Conversation, PlayedTurn
from turngap.caller.endpoint import Endpoint
from turngap.caller.rtc.audio import RtpHearing
from turngap.caller.rtc.rtp import RATE, Datagram
from turngap.caller.said import Incoming
from turngap.clocks import MonotonicClock, undisturbed
from turngap.core.audio import SpeechDetector, SpeechStart
from turngap.core.clock import Clock, ms_to_ns, ns_to_ms, samples_to_ns
from turngap.core.run_record import OffsetRecord
from turngap.core.stats import percentile
from turngap.play.calibrate import HOLD_MS, PATIENCE, loopback_script, plan, utterance
from turngap.play.process import running
from turngap.testing.agent import Truth, read_truths, script_to_json

DIALECT, BUFFER_MS, OPUS = "webrtc", 60.0, 111
BEGIN = "<!-- made by benchmarks/webrtc_ears.py -->"
LINES = {"no loss": 0.0, "2 % loss, from the first on": 0.02}
EARS = ("at arrival", f"behind {BUFFER_MS:g} ms", "aiortc's track")


class Track:
    """aiortc's receiver and its track.

    Attributes:
        onsets_ns: when a sound began to be heard there.
        lost_ns: the arrival of the packet after the first loss.
    """

    def __init__(self, clock: Clock) -> None:
        transport: Any = SimpleNamespace(
            state="new",
            _register_rtp_receiver=lambda *_: None,
            _unregister_rtp_receiver=lambda *_: None,
        )
        self._receiver = RTCRtpReceiver("audio", transport)
        self._track = self._receiver._track = RemoteStreamTrack("audio")
        self._clock = clock
        self._next: int | None = None
        self.onsets_ns: list[int] = []
        self.lost_ns: int | None = None

    def take(self, datagram: Datagram) -> None:
        packet = RtpPacket.parse(bytes(datagram))
        packet.payload_type = OPUS
        if self.lost_ns is None and packet.sequence_number != (
            self._next or packet.sequence_number
        ):
            self.lost_ns = datagram.arrived_ns
        self._next = packet.sequence_number + 1 & 0xFFFF
        arrival_ms = round(ns_to_ms(datagram.arrived_ns))
        course = self._receiver._handle_rtp_packet(packet, arrival_ms)
        try:
            course.send(None)  # it waits for nothing with audio
        except StopIteration:
            return
        raise AssertionError("aiortc's receiver waits")

    async def listen(self) -> None:
        codec = RTCRtpCodecParameters("audio/opus", RATE, channels=2, payloadType=OPUS)
        await self._receiver.receive(RTCRtpReceiveParameters(codecs=[codec]))
        detector = SpeechDetector(RATE, gap_ms=HOLD_MS)
        came: list[tuple[int, int]] = []  # the first sample of each frame, and its instant
        samples = 0
        try:
            while True:
                frame: Any = await self._track.recv()
                came.append((samples, self._clock.now_ns()))
                pcm = frame.to_ndarray().reshape(-1, 2)[:, 0].copy()
                samples += len(pcm)
                for event in detector.feed(pcm):
                    if isinstance(event, SpeechStart):
                        first, at_ns = next(c for c in reversed(came) if c[0] <= event.sample)
                        self.onsets_ns.append(at_ns + samples_to_ns(event.sample - first, RATE))
        finally:
            await self._receiver.stop()


@dataclass(frozen=True)
class Turn:
    """One turn: how far off each ear was, in ms; None where it heard nothing."""

    errors_ms: tuple[float | None, ...]
    end_ns: int  # of the person
    is_lost: bool  # the packet of the onset


@contextmanager
def tapped(track: Track) -> Iterator[None]:
    """Pass each packet that turngap's ear gets to a track too."""
    read = RtpHearing.read

    def both(ear: RtpHearing, datagram: Datagram) -> list[Incoming]:
        track.take(datagram)
        return read(ear, datagram)

    with patch.object(RtpHearing, "read", both):
        yield


async def measured(turns: int, loss: float, folder: Path) -> list[Turn]:
    """Play known gaps over a line with this loss; leave out lost first words, and what precedes."""
    replies = plan(turns, seed=1, dialect=DIALECT)
    script = replace(loopback_script(replies, DIALECT), loss=loss)
    truths, log = folder / f"{loss}.jsonl", folder / "agent.log"
    clock = MonotonicClock(precise=True)
    track = Track(clock)
    async with running(["turngap.testing.agent", script_to_json(script, truths)], log) as url:
        agent = Endpoint(url, f"{DIALECT},buffer={BUFFER_MS:g}")
        async with agent.open(clock) as line:
            listening = asyncio.create_task(track.listen())
            no_offset = OffsetRecord(offset_ns=None, bound_ns=None, n=0)
            cues = [utterance(line.rate)] * turns
            talk = Conversation(line, cues, clock, offset=no_offset, patience=PATIENCE)
            with tapped(track):
                async with aclosing(talk.play()) as course:
                    played = [turn async for turn in course]
                await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(500))
            listening.cancel()
            await asyncio.wait([listening])
    known = read_truths(truths)
    heard = [_turn(turn, known[turn.turn.turn], track.onsets_ns) for turn in played]
    since_ns = (track.lost_ns or clock.now_ns()) if loss else 0
    return [turn for turn in heard if turn.end_ns > since_ns and not turn.is_lost]


def _turn(played: PlayedTurn, truth: Truth, onsets_ns: Sequence[int]) -> Turn:
    turn = played.turn
    end_ns, due_ns = turn.user_end_ns, truth.due_gap_ns or 0
    # The track may be late, but not by so much that the next reply comes first.
    ns = next((o - end_ns for o in onsets_ns if o > end_ns), None)
    sent_ns = due_ns if truth.gap_ns is None else truth.gap_ns
    behind_ns = None
    if turn.gap_ns is not None and turn.playout_ns is not None:
        behind_ns = turn.gap_ns + turn.playout_ns
    gaps = ((turn.gap_ns, sent_ns), (behind_ns, due_ns), (ns, sent_ns))
    errors = (None if gap is None else ns_to_ms(gap - true_ns) for gap, true_ns in gaps)
    return Turn(tuple(errors), end_ns, truth.gap_ns is None)


def rows(line: str, turns: Sequence[Turn]) -> list[str]:
    """Return a row for each ear."""
    lines: list[str] = []
    for number, ear in enumerate(EARS):
        errors = [e for turn in turns if (e := turn.errors_ms[number]) is not None]
        figures = [percentile(errors, q).value for q in (0.5, 0.95)]
        shown = ["n too small" if f is None else f"{f:+.1f}" for f in figures]
        ends = f"{min(errors):+.1f} … {max(errors):+.1f}" if errors else "none"
        lines.append(f"| {' | '.join((line, ear, str(len(errors)), *shown, ends))} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--turns", type=int, default=60, metavar="N", help="known gaps (%(default)s)"
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    given = parser.parse_args()
    head = ("line", "heard", "n", "p50, ms", "p95", "least … most")
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    with errors_told(), TemporaryDirectory(prefix="turngap-ears-") as folder, undisturbed():
        for line, loss in LINES.items():
            lines += rows(line, asyncio.run(measured(given.turns, loss, Path(folder))))
            print("\n".join(lines[-len(EARS) :]), flush=True)
    text = "\n".join(lines)
    if given.write is not None:
        write(given.write, BEGIN, text)


if __name__ == "__main__":
    main()
