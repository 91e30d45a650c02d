"""Measure the instrument: inject known gaps and compare the gaps that the caller measures."""

import itertools
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from turngap.caller.conversation import Conversation, Patience, PlayedTurn
from turngap.caller.dialects.registry import dialects
from turngap.caller.endpoint import PIPECAT, Endpoint
from turngap.caller.line import Line
from turngap.caller.stream import RATE
from turngap.clocks import MonotonicClock
from turngap.core.audio import dbfs_to_amplitude
from turngap.core.clock import Clock, ns_to_ms
from turngap.core.cue import Cue, SpeechBounds, When
from turngap.core.errors import InconclusiveError
from turngap.core.run_record import CalibrationRecord, OffsetRecord, Quantiles
from turngap.core.stats import percentile
from turngap.play.process import running
from turngap.testing.agent import Reply, Script, Truth, read_truths, script_to_json
from turngap.testing.dialects import HALVES, require_half

# The utterance: a tone with sharp edges in 60 ms of room, so that its label is exact.
TONE_MS = 100
ROOM_MS = 60
HOLD_MS = 60.0

DELAYS_MS = (120.0, 240.0, 360.0, 480.0)
# No pad, digital silence, and noise below what is audible: none of it is speech.
PADS: tuple[tuple[float, float | None], ...] = ((0, None), (50, None), (150, None), (100, -55.0))
CHUNKS_MS = (10.0, 20.0, 40.0, 60.0)

# A reply is one tone, so this much silence ends it where the agent does not say that it is done.
PATIENCE = Patience(quiet_ms=100, quiet_after_done_ms=20, hold_ms=0, speech_gap_ms=60)


@dataclass(frozen=True, slots=True)
class Sample:
    """One calibration turn: the injected gap, the measured gap, and how the reply was sent."""

    reply: Reply
    truth_ms: float
    measured_ms: float
    late_ms: float

    @property
    def error_ms(self) -> float:
        """Measured minus injected; positive when the caller heard the agent late."""
        return self.measured_ms - self.truth_ms


@dataclass(frozen=True, slots=True)
class Calibration:
    """All calibration turns in one dialect; `missed` turns had no onset at all.

    Attributes:
        rate: sample rate of the person's audio on the wire, Hz.
        agent_rate: sample rate of the agent's audio; None if none was heard.
    """

    dialect: str
    rate: int
    agent_rate: int | None
    samples: tuple[Sample, ...]
    missed: int

    def record(self) -> CalibrationRecord:
        errors = [s.error_ms for s in self.samples]
        return CalibrationRecord(
            error_ms=absolute_quantiles(errors, missed=self.missed),
            signed_p50_ms=median(errors) if errors else None,
            note="loopback agent in another process on this machine",
            dialect=self.dialect,
            rate=self.rate,
            agent_rate=self.agent_rate,
        )

    def as_json(self) -> dict[str, Any]:
        record = self.record()
        return {
            "dialect": self.dialect,
            "rate": self.rate,
            "agent_rate": self.agent_rate,
            "error_ms": record.error_ms.model_dump(),
            "signed_p50_ms": record.signed_p50_ms,
            "missed": self.missed,
            "by": {
                "pad": self._by(_pad_name),
                "chunk_ms": self._by(lambda r: f"{r.chunk_ms:g}"),
                "sending": self._by(lambda r: "real time" if r.paced else "at once"),
            },
            "samples": [
                {
                    "pad_ms": s.reply.pad_ms,
                    "pad_dbfs": s.reply.pad_dbfs,
                    "chunk_ms": s.reply.chunk_ms,
                    "paced": s.reply.paced,
                    "truth_ms": s.truth_ms,
                    "measured_ms": s.measured_ms,
                    "error_ms": s.error_ms,
                    "caller_late_ms": s.late_ms,
                }
                for s in self.samples
            ],
        }

    def _by(self, name: Callable[[Reply], str]) -> dict[str, dict[str, Any]]:
        groups: dict[str, list[float]] = {}
        for sample in self.samples:
            groups.setdefault(name(sample.reply), []).append(sample.error_ms)
        return {k: absolute_quantiles(v).model_dump() for k, v in sorted(groups.items())}


def _pad_name(reply: Reply) -> str:
    if not reply.pad_ms:
        return "none"
    kind = "silence" if reply.pad_dbfs is None else f"noise at {reply.pad_dbfs:g} dBFS"
    return f"{reply.pad_ms:g} ms {kind}"


def absolute_quantiles(errors: Sequence[float], *, missed: int = 0) -> Quantiles:
    """Quantiles of the errors' absolute values; missed turns count as worse than any."""
    absolute = [abs(e) for e in errors]
    p50, p95, p99 = (percentile(absolute, q, censored=missed).value for q in (0.5, 0.95, 0.99))
    return Quantiles(
        n=len(absolute) + missed,
        p50=p50,
        p95=p95,
        p99=p99,
        max=max(absolute) if absolute and not missed else None,
    )


def loopback_dialects() -> list[str]:
    """List the installed dialects that a loopback agent can speak."""
    return [name for name, spec in dialects().items() if name in HALVES and not spec.missing()]


def plan(turns: int, seed: int) -> list[Reply]:
    """Plan replies with every combination of delay, pad, chunk and sending, in a seeded order."""
    combinations = [
        Reply(delay_ms=d, pad_ms=p, pad_dbfs=n, chunk_ms=c, paced=paced, speech_ms=80)
        for d, (p, n), c, paced in itertools.product(DELAYS_MS, PADS, CHUNKS_MS, (True, False))
    ]
    order = np.random.default_rng(seed).permutation(len(combinations)).tolist()
    return [combinations[i] for i in itertools.islice(itertools.cycle(order), turns)]


async def calibrate(
    turns: int,
    *,
    dialect: str = PIPECAT,
    seed: int = 1,
    log: Path,
    on_turn: Callable[[int], None] = lambda _: None,
) -> Calibration:
    """Measure known gaps of a loopback agent in another process, in a dialect as `--dialect` takes.

    Raises:
        InputError: there is no such dialect, or no loopback agent speaks it.
        InconclusiveError: the gaps that the agent reports as injected do not match the turns.
    """
    replies = plan(turns, seed)
    with tempfile.TemporaryDirectory(prefix="turngap-") as folder:
        truths = Path(folder) / "truths.jsonl"
        async with _loopback(replies, dialect, log, truths) as endpoint:
            clock = MonotonicClock(precise=True)
            async with endpoint.open(clock) as line:
                told = _from_file(truths, log)
                return await measured(line, clock, replies, told, on_turn=on_turn)


# Returns the truth of every utterance so far, by its number; is given how many there were.
Truths = Callable[[int], Mapping[int, Truth]]


async def measured(
    line: Line,
    clock: Clock,
    replies: Sequence[Reply],
    truths: Truths,
    *,
    on_turn: Callable[[int], None] = lambda _: None,
    watch: Clock | None = None,
) -> Calibration:
    """Measure known gaps over a line to an agent that gives these replies.

    Raises:
        InconclusiveError: the gaps that the agent reports as injected do not match the turns.
        AgentError: the line was lost.
    """
    # No marks, so no clock to compare.
    offset = OffsetRecord(offset_ns=None, bound_ns=None, n=0)
    cues = [utterance(line.rate)] * len(replies)
    conversation = Conversation(line, cues, clock, offset=offset, patience=PATIENCE, watch=watch)
    played: list[PlayedTurn] = []
    agent_rate = None
    async with aclosing(conversation.play()) as turns:
        async for turn in turns:
            played.append(turn)
            on_turn(len(played))
            agent_rate = agent_rate or next((h.rate for h in conversation.heard), None)
            if turn.turn.gap_ns is None:
                truths(len(played))
    if conversation.failure is not None:
        raise conversation.failure
    told = truths(len(played))
    samples = [
        Sample(
            reply,
            truth_ms=ns_to_ms(told[turn.turn.turn].gap_ns),
            measured_ms=ns_to_ms(turn.turn.gap_ns),
            late_ms=ns_to_ms(max(turn.late_ns, default=0)),
        )
        for reply, turn in zip(replies, played, strict=True)
        if turn.turn.gap_ns is not None
    ]
    missed = len(played) - len(samples)
    return Calibration(line.dialect, line.rate, agent_rate, tuple(samples), missed)


def _from_file(file: Path, log: Path) -> Truths:
    def read(done: int) -> Mapping[int, Truth]:
        told = read_truths(file)
        if len(told) != done:
            raise InconclusiveError(
                "calibrate.no_truth",
                f"the loopback agent answered {len(told)} of {done} turns: it did not "
                "hear the rest, or the line is broken",
                hint=f"its log: {log}",
            )
        return told

    return read


@asynccontextmanager
async def _loopback(
    replies: Sequence[Reply], dialect: str, log: Path, truths: Path
) -> AsyncIterator[Endpoint]:
    name = Endpoint("", dialect).spec().name
    require_half(name)
    script = loopback_script(replies, name)
    async with running(["turngap.testing.agent", script_to_json(script, truths)], log) as url:
        yield Endpoint(url, dialect)


def loopback_script(replies: Sequence[Reply], dialect: str) -> Script:
    """Script an agent that gives these replies and is not interrupted."""
    return Script(
        replies=tuple(replies), dialect=dialect, hold_ms=HOLD_MS, yield_ms=None, marks=False
    )


def utterance(rate: int = RATE) -> Cue:
    """Build a tone with sharp edges, labelled to the sample of a line's rate."""
    room = np.zeros(ROOM_MS * rate // 1000, dtype=np.int16)
    t = np.arange(TONE_MS * rate // 1000) / rate
    tone = np.cos(2 * np.pi * 250 * t) * dbfs_to_amplitude(-12)
    tone[-1] = dbfs_to_amplitude(-12)  # the last sample is a loud one: the label is exact
    pcm = np.concatenate((room, np.rint(tone).astype(np.int16), room))
    end_ms = ROOM_MS + TONE_MS - 1000 / rate
    speech = SpeechBounds(start_ms=ROOM_MS, end_ms=end_ms)
    return Cue(pcm, speech, When(after_reply_ms=0), budget_ms=800)
