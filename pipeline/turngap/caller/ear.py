"""The caller's ear: a playout buffer for arriving chunks, and a speech detector."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np

from turngap.caller.said import Packet
from turngap.caller.words import Bed, Found, Sound, Word, WordFinder
from turngap.core.audio import (
    AUDIBLE_DBFS,
    Pcm,
    SpeechDetector,
    SpeechEnd,
    SpeechStart,
    dbfs_to_amplitude,
    is_loud,
    window_samples,
)
from turngap.core.clock import ms_to_ns, ns_to_samples, samples_to_ns
from turngap.core.events import AgentBed, AgentSilence, AgentSound, AgentSpeech

# Between words of a sentence, speech pauses for up to about 250 ms. A longer silence ends it.
SPEECH_GAP_MS = 300.0

# A hole of less than one packet in what is played is jitter of the line, not a pause in the audio.
JITTER_MS = 20.0
_JITTER_NS = ms_to_ns(JITTER_MS)

# A real-time stream is silent only if no packet comes for this long: the next may be late.
PACKETS_NS = ms_to_ns(100)
# Decoded silence is not above this; a real-time stream that sends it sends no audio.
SILENT = 2
# The agent of a real-time stream may pause it this long without a hole in what it says.
LONGEST_PAUSE_NS = ms_to_ns(2000)
# A word that may be 20 ms off may also have begun in audio that was lost so much before.
NEAR_LOST_MS = 60.0

Speech = AgentSpeech | AgentSilence | AgentSound | AgentBed


class AnySound:
    """A detector that takes every audible sound for speech, for agents that answer in beeps."""

    def __init__(self, rate: int, *, gap_ms: float) -> None:
        self.rate = rate
        self.audible_dbfs = AUDIBLE_DBFS
        self.behind = self.unsure = False
        self.longest_silence = round(rate * gap_ms / 1000) + 2 * window_samples(rate)
        self._fed = 0
        self._sounds = SpeechDetector(rate, gap_ms=gap_ms)

    @property
    def speaking(self) -> bool:
        return self._sounds.speaking

    @property
    def settled(self) -> int:
        return self._fed - self.longest_silence

    def feed(self, pcm: Pcm) -> list[Found]:
        self._fed += len(pcm)
        return _as_words(self._sounds.feed(pcm))

    def cut(self) -> list[Found]:
        return _as_words(self._sounds.cut())


def _as_words(events: list[SpeechStart | SpeechEnd]) -> list[Found]:
    return [Word(e.sample) if isinstance(e, SpeechStart) else e for e in events]


@dataclass(frozen=True, slots=True)
class Heard:
    """Samples that were played from `start_ns` on, kept for the recording."""

    start_ns: int
    pcm: Pcm
    rate: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + samples_to_ns(len(self.pcm), self.rate)


@dataclass(slots=True)
class _Queued:
    """A chunk in the playout buffer; its first `played` samples have sounded."""

    start_ns: int
    received_ns: int
    pcm: Pcm
    rate: int
    packet: Packet | None = None
    sent_on: bool = False
    played: int = 0
    _loud_to: int = -1  # once requested: the last sample at this level, or -1
    _dbfs: float | None = None

    def is_loud_ahead(self, dbfs: float) -> bool:
        """Return whether a sample that has not sounded yet reaches this level."""
        if self._dbfs != dbfs:
            self._dbfs, self._loud_to = dbfs, _last_loud(self.pcm, dbfs)
        return self._loud_to >= self.played

    @property
    def at_ns(self) -> int:
        """Return when the first sample that has not sounded yet is due."""
        return self.start_ns + samples_to_ns(self.played, self.rate)

    @property
    def goes_on(self) -> bool:
        """Return whether it follows the chunk before it in one stream, whatever its arrival."""
        if self.packet is None:
            return self.sent_on
        return self.packet.goes_on or self.played > 0


@dataclass(slots=True)
class _Run:
    """Chunks that play without a hole, timed from their common start to avoid rounding errors."""

    start_ns: int
    rate: int
    samples: int = 0

    @property
    def end_ns(self) -> int:
        return self.start_ns + samples_to_ns(self.samples, self.rate)


@dataclass(slots=True)
class _Anchor:
    """The place of a played piece in the detector's stream, and when it sounded."""

    sample: int
    start_ns: int
    received_ns: int
    unbroken_since_ns: int
    packet: Packet | None
    is_loud: bool


class _Detected:
    """Maps what was played at one rate to the detector's stream and back to time."""

    def __init__(self, rate: int, gap_ms: float, last_audible_ns: int, words: bool) -> None:
        self.rate = rate
        self.last_audible_ns = last_audible_ns
        make = WordFinder if words else AnySound
        self.detector = make(rate, gap_ms=gap_ms)
        self._fed = 0
        self._anchors: deque[_Anchor] = deque()

    def feed(
        self,
        pcm: Pcm,
        start_ns: int,
        received_ns: int,
        unbroken_ns: int,
        packet: Packet | None = None,
    ) -> list[Speech]:
        loud = packet is not None and is_loud(pcm, dbfs_to_amplitude(AUDIBLE_DBFS))
        self._anchors.append(_Anchor(self._fed, start_ns, received_ns, unbroken_ns, packet, loud))
        self._fed += len(pcm)
        found = self.detector.feed(pcm)
        events = [self._in_time(e) for e in found] if found else []
        settled = self.detector.settled
        while len(self._anchors) > 1 and self._anchors[1].sample <= settled:
            self._anchors.popleft()
        return events

    def go_on(self) -> list[Speech]:
        return [self._in_time(e) for e in self.detector.feed(np.empty(0, dtype=np.int16))]

    def cut(self) -> list[Speech]:
        return [self._in_time(e) for e in self.detector.cut()]

    def _in_time(self, event: Found) -> Speech:
        anchor = self._anchor(event.sample)
        at_ns = self._at(event.sample)
        match event:
            case SpeechEnd(_, dbfs):
                self.last_audible_ns = at_ns
                return AgentSilence(at_ns, dbfs)
            case Sound(_, dbfs):
                return AgentSound(at_ns, dbfs)
            case Bed(_, dbfs):
                return AgentBed(at_ns, dbfs)
            case Word(_, spread, instead_of, dbfs):
                lead_ns = at_ns - max(anchor.unbroken_since_ns, self.last_audible_ns)
                before_ns = None if instead_of is None else self._at(instead_of)
                spread_ns = None if spread is None else samples_to_ns(spread, self.rate)
                if hidden := self._hidden(event.sample, spread or 0):
                    spread_ns = samples_to_ns(hidden, self.rate)
                playout_ns = anchor.packet.behind_ns if anchor.packet else None
                about = (lead_ns, spread_ns, before_ns, dbfs, playout_ns)
                return AgentSpeech(at_ns, anchor.received_ns, *about)

    def _hidden(self, sample: int, spread: int) -> int:
        """Return how long before its place a word may have begun if audio was lost there; or 0.

        It may have begun in the lost audio, or in sound directly before that.
        """
        unsure = samples_to_ns(spread, self.rate) >= _JITTER_NS
        near = round(self.rate * (NEAR_LOST_MS if unsure else JITTER_MS) / 1000)
        first, pieces = sample - spread, [*self._anchors]
        for index in reversed(range(len(pieces) - 1)):
            lost, after = pieces[index : index + 2]
            if lost.packet and lost.packet.lost and first - near <= after.sample < sample + near:
                before = pieces[index - 1] if index else lost
                first = min(first, before.sample if before.is_loud else lost.sample)
        return sample - first if first < sample - spread else 0

    def _anchor(self, sample: int) -> _Anchor:
        return next(a for a in reversed(self._anchors) if a.sample <= sample)

    def _at(self, sample: int) -> int:
        anchor = self._anchor(sample)
        return anchor.start_ns + samples_to_ns(sample - anchor.sample, self.rate)


class Ear:
    """A playout buffer without delay of its own, followed by a speech detector.

    A chunk plays when it arrives, or when the chunk before it ends if that is later. Samples reach
    the detector only when they are due, so audio that is flushed before it is played is never
    heard. Every onset is exact to a sample, however late `advance` is called. With `words`, only
    speech counts, not other sound. While `is_late` says that more audio may be on its way, running
    dry is no silence yet: a word that a line tears is one word.
    """

    def __init__(
        self,
        speech_gap_ms: float = SPEECH_GAP_MS,
        *,
        words: bool = True,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_late = is_late
        self._gap_ms = speech_gap_ms
        self._words = words
        self._queue: deque[_Queued] = deque()
        self._queue_end_ns = 0
        self._waiting_bytes = 0
        self._run = _Run(0, 1)
        self._track: _Detected | None = None
        self._audio_to_ns = 0  # the end of the audio that was played
        self._fed_to_ns = 0  # the same, with the silence after it that the detector got
        self._silence_left = 0  # samples
        self._unbroken_since_ns = 0
        self._patience_ns = 0
        self.heard: list[Heard] = []
        # How many samples have sounded or been dropped, and how many of these will never sound.
        self.played = self.dropped = 0
        self._lost = 0  # samples that arrived and were not queued

    @property
    def speech_ahead(self) -> bool:
        """Return whether speech may follow, in audio not yet played or in sound not yet judged.

        An agent may send silence or noise without end, so audio alone does not count.
        """
        track = self._track
        dbfs = track.detector.audible_dbfs if track else AUDIBLE_DBFS
        unsure = track is not None and track.detector.unsure
        return unsure or any(chunk.is_loud_ahead(dbfs) for chunk in self._queue)

    @property
    def ends_ns(self) -> int:
        """Return when the last audio that has arrived will have been played."""
        return self._queue_end_ns

    @property
    def waiting_bytes(self) -> int:
        """Return how much audio waits to be played, or is being played."""
        return self._waiting_bytes

    @property
    def speaking(self) -> bool:
        return self._track is not None and self._track.detector.speaking

    def receive(
        self,
        received_ns: int,
        pcm: Pcm,
        rate: int,
        packet: Packet | None = None,
        *,
        goes_on: bool = False,
    ) -> list[Speech]:
        """Queue a chunk that arrived at `received_ns`, and return what was heard up to then.

        A chunk with a `packet` plays at the packet's own arrival. One that `goes_on` follows the
        chunk before it without a silence, however late it came.
        """
        events = self.advance(received_ns, goes_on=goes_on)
        if len(pcm):
            if packet is not None:
                received_ns = packet.arrived_ns
                self._run = _Run(received_ns, rate)
            elif received_ns > self._queue_end_ns or rate != self._run.rate:
                self._run = _Run(max(received_ns, self._queue_end_ns), rate)
            self._queue.append(_Queued(self._run.end_ns, received_ns, pcm, rate, packet, goes_on))
            self._waiting_bytes += pcm.nbytes
            self._run.samples += len(pcm)
            self._queue_end_ns = self._run.end_ns
        return events

    def advance(self, now_ns: int, *, goes_on: bool = False) -> list[Speech]:
        """Play up to `now_ns`, and return what was heard meanwhile; `goes_on` as in `receive`."""
        events: list[Speech] = []
        while self._queue and self._queue[0].start_ns <= now_ns:
            chunk = self._queue[0]
            due = min(len(chunk.pcm), ns_to_samples(now_ns - chunk.start_ns, chunk.rate))
            # A message may have arrived before the latest tick: nothing is played twice for that.
            if due > chunk.played:
                self.played += due - chunk.played
                events += self._play(chunk, due)
                chunk.played = due
            if chunk.played < len(chunk.pcm):
                break
            self._queue.popleft()
            self._waiting_bytes -= chunk.pcm.nbytes
        if not self._queue:
            self._drop(0)
            if self._silence_left and not (goes_on or self._is_late()):
                events += self._silence_until(now_ns - self._patience_ns)
            elif self._track is not None and self._track.detector.behind:
                events += self._track.go_on()
        return events

    def lose(self, samples: int) -> None:
        """Count samples that arrived but will not be played; drop them once the queue is empty."""
        self._lost += samples
        if not self._queue:
            self._drop(0)

    def _drop(self, queued: int) -> None:
        dropped, self._lost = queued + self._lost, 0
        self.played, self.dropped = self.played + dropped, self.dropped + dropped

    @property
    def hears_packets(self) -> bool:
        """Return whether the agent's audio is a real-time stream, which nothing can flush."""
        return self._patience_ns > 0

    def flush(self, now_ns: int) -> list[Speech]:
        events = self.advance(now_ns)
        self._drop(sum(len(chunk.pcm) - chunk.played for chunk in self._queue))
        self._queue.clear()
        self._waiting_bytes = 0
        if self._queue_end_ns > now_ns:
            self._queue_end_ns = now_ns
            self._run = _Run(now_ns, 1)
        return events + self._cut()

    def forget_until(self, ns: int) -> None:
        """Drop pieces of `heard` that ended before `ns`, because their recording is stored."""
        self.heard = [h for h in self.heard if h.end_ns > ns]

    def _play(self, chunk: _Queued, upto: int) -> list[Speech]:
        at_ns, pcm, packet = chunk.at_ns, chunk.pcm[chunk.played : upto], chunk.packet
        events = [] if chunk.goes_on else self._silence_until(at_ns)
        if self._track is None or self._track.rate != chunk.rate:
            events += self._cut()
            last_audible_ns = self._track.last_audible_ns if self._track else 0
            self._track = _Detected(chunk.rate, self._gap_ms, last_audible_ns, self._words)
        if at_ns - self._audio_to_ns > _JITTER_NS and not chunk.goes_on:
            self._unbroken_since_ns = at_ns
        if packet is None:
            self.heard.append(Heard(at_ns, pcm, chunk.rate))
        else:
            self._hear_packet(at_ns, pcm, chunk.rate, packet)
        self._audio_to_ns = self._fed_to_ns = at_ns + samples_to_ns(len(pcm), chunk.rate)
        self._silence_left = self._track.detector.longest_silence
        about = (at_ns, chunk.received_ns, self._unbroken_since_ns, packet)
        return events + self._track.feed(pcm, *about)

    def _hear_packet(self, at_ns: int, pcm: Pcm, rate: int, packet: Packet) -> None:
        """Keep a packet of a real-time stream; what was lost is a hole, and a pause is none."""
        self._patience_ns = PACKETS_NS
        if not pcm.any() or max(abs(int(pcm.min())), int(pcm.max())) <= SILENT:
            self._unbroken_since_ns = at_ns + samples_to_ns(len(pcm), rate)
        start_ns = at_ns - packet.early_ns
        if self.heard and not packet.lost and not packet.goes_on:
            end_ns = self.heard[-1].end_ns
            if 0 < (pause_ns := start_ns - end_ns) < LONGEST_PAUSE_NS:
                silence = np.zeros(ns_to_samples(pause_ns, rate), dtype=np.int16)
                self.heard.append(Heard(end_ns, silence, rate))
        if not packet.lost:
            self.heard.append(Heard(start_ns, pcm, rate))

    def _silence_until(self, until_ns: int) -> list[Speech]:
        """Feed the detector a stretch without audio, in which speech can end.

        This is needed even if nothing was audible yet: the last samples before a hole are judged
        together with the silence.
        """
        if self._track is None or until_ns <= self._fed_to_ns:
            return []
        rate, at_ns = self._track.rate, self._fed_to_ns
        samples = min(ns_to_samples(until_ns - at_ns, rate), self._silence_left)
        if samples == 0:
            return []
        self._silence_left -= samples
        self._fed_to_ns += samples_to_ns(samples, rate)
        silence = np.zeros(samples, dtype=np.int16)
        return self._track.feed(silence, at_ns, at_ns, self._unbroken_since_ns)

    def _cut(self) -> list[Speech]:
        self._silence_left = 0
        return self._track.cut() if self._track else []


def _last_loud(pcm: Pcm, dbfs: float) -> int:
    """Return the last sample that reaches a level; -1 if none does."""
    level = ceil(dbfs_to_amplitude(dbfs))
    loud = ((pcm >= level) | (pcm <= -level))[::-1]
    from_the_end = int(loud.argmax())  # it stops at the first one
    return len(pcm) - 1 - from_the_end if loud[from_the_end] else -1
