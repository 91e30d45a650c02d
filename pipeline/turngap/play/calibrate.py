"""The instrument measured by itself: injected, known gaps against what the caller makes of them."""

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from turngap.caller.conversation import Conversation, Patience, TurnCue
from turngap.caller.line import open_line
from turngap.caller.pipecat import PipecatDialect
from turngap.caller.stream import RATE
from turngap.clocks import MonotonicClock
from turngap.core.audio import dbfs_to_amplitude
from turngap.core.clock import ns_to_ms
from turngap.core.errors import InconclusiveError
from turngap.core.results import CalibrationRecord, OffsetRecord, Quantiles
from turngap.core.stats import percentile
from turngap.play.process import running
from turngap.scenario.model import SpeechBounds, When
from turngap.testing.agent import Reply, Script, script_to_json

# The utterance: a tone with sharp edges in 60 ms of room, so that its label is exact.
TONE_MS = 100
ROOM_MS = 60
HOLD_MS = 60.0

DELAYS_MS = (120.0, 240.0, 360.0, 480.0)
# No pad, digital silence, and noise below what is audible: none of it is speech.
PADS: tuple[tuple[float, float | None], ...] = ((0, None), (50, None), (150, None), (100, -55.0))
CHUNKS_MS = (10.0, 20.0, 40.0, 60.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """One calibration turn: what was injected, what was measured, and how it was injected."""

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
    """All calibration turns; `missed` had no onset at all."""

    samples: tuple[Sample, ...]
    missed: int

    def record(self) -> CalibrationRecord:
        errors = [s.error_ms for s in self.samples]
        return CalibrationRecord(
            error_ms=absolute_quantiles(errors, missed=self.missed),
            signed_p50_ms=median(errors) if errors else None,
            note="loopback agent in another process on this machine",
        )

    def as_json(self) -> dict[str, Any]:
        record = self.record()
        return {
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


def plan(turns: int, seed: int) -> list[Reply]:
    """Replies over every combination of delay, pad, chunk and sending, in a seeded order."""
    combinations = [
        Reply(delay_ms=d, pad_ms=p, pad_dbfs=n, chunk_ms=c, paced=paced, speech_ms=80)
        for d, (p, n), c, paced in itertools.product(DELAYS_MS, PADS, CHUNKS_MS, (True, False))
    ]
    order = np.random.default_rng(seed).permutation(len(combinations)).tolist()
    return [combinations[i] for i in itertools.islice(itertools.cycle(order), turns)]


async def calibrate(
    turns: int,
    *,
    seed: int = 1,
    log: Path,
    on_turn: Callable[[int], None] = lambda _: None,
) -> Calibration:
    """Measure known gaps of a loopback agent in another process.

    Raises:
        InconclusiveError: the agent's account of what it injected does not match the turns.
    """
    replies = plan(turns, seed)
    samples: list[Sample] = []
    missed = 0
    async with _loopback(replies, log) as url, _conversation(url, turns) as conversation:
        truths = conversation.truths
        done = 0
        async with aclosing(conversation.play()) as turns_played:
            async for played in turns_played:
                done += 1
                on_turn(done)
                if len(truths) < done:
                    raise InconclusiveError(
                        "calibrate.no_truth",
                        f"the loopback agent answered {len(truths)} of {done} turns: it did not "
                        "hear the rest, or the line is broken",
                        hint=f"its log: {log}",
                    )
                if played.turn.gap_ns is None:
                    missed += 1
                    continue
                truth_ms = ns_to_ms(truths[done - 1].gap_ns)
                late_ms = ns_to_ms(max(played.late_ns, default=0))
                measured_ms = ns_to_ms(played.turn.gap_ns)
                samples.append(Sample(replies[done - 1], truth_ms, measured_ms, late_ms))
        if conversation.failure is not None:
            raise conversation.failure
    return Calibration(tuple(samples), missed)


@asynccontextmanager
async def _loopback(replies: Sequence[Reply], log: Path) -> AsyncIterator[str]:
    script = Script(replies=tuple(replies), hold_ms=HOLD_MS, yield_ms=None, marks=False)
    async with running(["turngap.testing.agent", script_to_json(script)], log) as url:
        yield url


@asynccontextmanager
async def _conversation(url: str, turns: int) -> AsyncIterator[Conversation]:
    clock = MonotonicClock(precise=True)
    async with open_line(url, PipecatDialect(), clock) as line:
        # The caller alone is measured: no marks, so no clock to compare.
        offset = OffsetRecord(offset_ns=None, bound_ns=None, n=0)
        patience = Patience(quiet_after_done_ms=20, speech_gap_ms=60)
        yield Conversation(line, [utterance()] * turns, clock, offset=offset, patience=patience)


def utterance() -> TurnCue:
    """A tone with sharp edges, labelled to the sample."""
    room = np.zeros(ROOM_MS * RATE // 1000, dtype=np.int16)
    t = np.arange(TONE_MS * RATE // 1000) / RATE
    tone = np.cos(2 * np.pi * 250 * t) * dbfs_to_amplitude(-12)
    tone[-1] = dbfs_to_amplitude(-12)  # the last sample is a loud one: the label is exact
    pcm = np.concatenate((room, np.rint(tone).astype(np.int16), room))
    end_ms = ROOM_MS + TONE_MS - 1000 / RATE
    speech = SpeechBounds(start_ms=ROOM_MS, end_ms=end_ms)
    return TurnCue(pcm, speech, When(after_reply_ms=0), budget_ms=800)
