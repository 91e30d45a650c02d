"""Measure the instrument: inject known gaps and compare the gaps that the caller measures.

It also plays the agents of `turngap.testing.zoo`, whose every word is known.
"""

import itertools
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import product, starmap
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from turngap.caller.connection import Line
from turngap.caller.conversation import Conversation, Patience, PlayedTurn
from turngap.caller.dialects.registry import dialects, find_dialect
from turngap.caller.endpoint import PIPECAT, Endpoint
from turngap.caller.line.spec import LineSpec, Way, parse_line
from turngap.caller.stream import RATE
from turngap.clocks import MonotonicClock
from turngap.core.clock import Clock, ns_to_ms
from turngap.core.cue import Cue, SpeechBounds, When
from turngap.core.errors import AgentError, InconclusiveError, InputError
from turngap.core.results import Turn
from turngap.core.run_record import CalibrationRecord, OffsetRecord, Quantiles
from turngap.core.stats import percentile
from turngap.play.plan import PlayPlan
from turngap.play.process import running
from turngap.play.run import RunInProgress
from turngap.play.target import AgentChoice, Target
from turngap.scenario.library import LoadedScenario, load_scenario
from turngap.scenario.model import shipped_library
from turngap.store.runs import Run
from turngap.testing.agent import Reply, Script, Truth, read_truths, script_to_json, tone
from turngap.testing.dialects import HALVES, WEBRTC, make_half, require_half
from turngap.testing.memory import End, line_to
from turngap.testing.virtual import LoopClock, in_virtual_time
from turngap.testing.zoo import ZOO, Agent, converse
from turngap.testing.zoo import Truth as Figures

# The utterance: a tone with sharp edges in 60 ms of room, so that its label is exact.
ROOM_MS = 60
HOLD_MS = 60.0

DELAYS_MS = (120.0, 240.0, 360.0, 480.0)
# No pad, digital silence, and noise below what is audible: none of it is speech.
PADS: tuple[tuple[float, float | None], ...] = ((0, None), (50, None), (150, None), (100, -55.0))
CHUNKS_MS = (10.0, 20.0, 40.0, 60.0)
# In a stream of packets a reply begins anywhere in a packet, and loss must leave enough of it.
STREAM_DELAYS_MS = (240.0, 480.0)
STREAM_SPEECH_MS = 200.0

# A reply is one tone, so this much silence ends it where the agent does not say that it is done.
PATIENCE = Patience(quiet_ms=100, quiet_after_done_ms=20, hold_ms=0, speech_gap_ms=60)


@dataclass(frozen=True, slots=True)
class Sample:
    """One calibration turn: the injected gap, the measured gap, and how the reply was sent.

    Attributes:
        playout_error_ms: the error behind a playout buffer, less the buffer, against the schedule
            without jitter; None on a line without packets, and behind an adaptive buffer.
        spread_ms: how far off the onset may be, says the caller.
        lost: what was lost of the first word; if its onset, `truth_ms` is of the schedule.
    """

    reply: Reply
    truth_ms: float
    measured_ms: float
    late_ms: float
    playout_error_ms: float | None = None
    spread_ms: float | None = None
    lost: str = ""

    @property
    def error_ms(self) -> float:
        """Measured gap minus injected gap; positive when the caller heard the agent late."""
        return self.measured_ms - self.truth_ms


@dataclass(frozen=True, slots=True)
class Calibration:
    """All calibration turns in one dialect; `missed` turns had no onset at all.

    Attributes:
        rate: sample rate of the person's audio on the wire, Hz.
        agent_rate: sample rate of the agent's audio; None if none was heard.
        line: the loss and jitter of the line's packets; None if it has none.
        buffer_ms: the playout buffer, if its length is known.
        lost: turns whose first word was lost in part; `lost_silent` more of them have no gap.
    """

    dialect: str
    rate: int
    agent_rate: int | None
    samples: tuple[Sample, ...]
    missed: int
    line: str | None = None
    buffer_ms: int | None = None
    lost: tuple[Sample, ...] = ()
    lost_silent: int = 0

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
            "samples": [self._as_json(s) for s in self.samples],
            **({} if self.line is None else self._of_packets(self.line)),
        }

    def _of_packets(self, line: str) -> dict[str, Any]:
        """Return what is known only of a line with packets."""
        behind = [e for s in self.samples if (e := s.playout_error_ms) is not None]
        return {
            "line": line,
            "buffer_ms": self.buffer_ms,
            "playout_error_ms": absolute_quantiles(behind).model_dump(),
            "playout_signed_p50_ms": median(behind) if behind else None,
            "lost": [self._as_json(s) for s in self.lost],
            "lost_without_gap": self.lost_silent,
        }

    def _as_json(self, s: Sample) -> dict[str, Any]:
        names = () if self.line is None else ("playout_error_ms", "spread_ms", "lost")
        return {
            **{key: getattr(s.reply, key) for key in ("pad_ms", "pad_dbfs", "chunk_ms", "paced")},
            **{key: getattr(s, key) for key in ("truth_ms", "measured_ms", "error_ms")},
            "caller_late_ms": s.late_ms,
            **{key: getattr(s, key) for key in names},
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
    """Compute quantiles of the errors' absolute values; missed turns count as worse than any."""
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


def plan(turns: int, seed: int, dialect: str = PIPECAT) -> list[Reply]:
    """Plan replies with every combination of delay, pad, chunk and sending, in a seeded order.

    In a stream of packets, with every pad, at any place in a packet.
    """
    if dialect == WEBRTC:
        delays_ms = np.random.default_rng(seed).uniform(*STREAM_DELAYS_MS, turns).tolist()
        return [
            Reply(d, *pad, STREAM_SPEECH_MS) for d, pad in zip(delays_ms, itertools.cycle(PADS))
        ]
    combinations = [
        Reply(delay_ms=d, pad_ms=p, pad_dbfs=n, chunk_ms=c, paced=paced, speech_ms=80)
        for d, (p, n), c, paced in itertools.product(DELAYS_MS, PADS, CHUNKS_MS, (True, False))
    ]
    order = np.random.default_rng(seed).permutation(len(combinations)).tolist()
    return [combinations[i] for i in itertools.islice(itertools.cycle(order), turns)]


def packet_faults(line: str, dialect: str) -> Way:
    """Return the faults that the loopback agent gives its packets, from the text of `--line`.

    Raises:
        InputError: it is malformed, the dialect has no packets, or the agent has no such fault.
    """
    spec = parse_line(line) if line else LineSpec("")
    way = Way(loss=spec.down.loss, jitter_ms=spec.down.jitter_ms)
    if line and dialect != WEBRTC:
        wrong = f"--line {line!r} loses and delays packets, which {dialect} does not have"
    elif replace(LineSpec(line), up=spec.up, down=way, seed=spec.seed) == spec:
        return way
    else:
        wrong = f"--line {line!r}: the loopback agent has loss and jitter only"
    hint = "for example: --dialect webrtc --line loss=2%,jitter=20; `turngap replay --line` takes "
    hint += "any line in any dialect"
    raise InputError("calibrate.line", wrong, hint=hint)


async def calibrate(
    turns: int,
    *,
    dialect: str = PIPECAT,
    line: str = "",
    seed: int = 1,
    log: Path,
    on_turn: Callable[[int], None] = lambda _: None,
) -> Calibration:
    """Measure known gaps of a loopback agent in another process, in a dialect as `--dialect` takes.

    `line` is the loss and jitter of the agent's packets.

    Raises:
        InputError: there is no such dialect, no loopback agent speaks it, or it has no such line.
        InconclusiveError: the gaps that the agent reports as injected do not match the turns.
    """
    asked = Endpoint("", dialect)
    name, buffer = asked.spec().name, getattr(asked.settings(), "buffer", None)
    way = packet_faults(line, name)
    replies = plan(turns, seed, name)
    faults = {"loss": way.loss, "jitter_ms": way.jitter_ms, "seed": seed}
    buffer_ms = buffer if isinstance(buffer, int) else None
    with tempfile.TemporaryDirectory(prefix="turngap-") as folder:
        truths = Path(folder) / "truths.jsonl"
        async with _loopback(replies, dialect, log, truths, faults) as endpoint:
            clock = MonotonicClock(precise=True)
            async with endpoint.open(clock) as opened:
                read = _from_file(truths, log)
                found = await measured(
                    opened, clock, replies, read, on_turn=on_turn, buffer_ms=buffer_ms
                )
    return replace(found, line=line) if name == WEBRTC else found


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
    buffer_ms: int | None = None,
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
    known = truths(len(played))
    every = [
        _sample(reply, turn, known[turn.turn.turn], buffer_ms)
        for reply, turn in zip(replies, played, strict=True)
        if turn.turn.gap_ns is not None
    ]
    silent = [bool(known[p.turn.turn].lost) for p in played if p.turn.gap_ns is None]
    samples, lost = (tuple(s for s in every if bool(s.lost) == which) for which in (False, True))
    about = (line.dialect, line.rate, agent_rate, samples, silent.count(False))
    return Calibration(*about, buffer_ms=buffer_ms, lost=lost, lost_silent=silent.count(True))


def _sample(reply: Reply, played: PlayedTurn, truth: Truth, buffer_ms: int | None) -> Sample:
    turn, due_ns = played.turn, truth.due_gap_ns
    truth_ns = due_ns if truth.gap_ns is None else truth.gap_ns
    assert truth_ns is not None and turn.gap_ns is not None
    behind_ms = None
    if due_ns is not None and turn.playout_ns is not None and buffer_ms is not None:
        behind_ms = ns_to_ms(turn.gap_ns + turn.playout_ns - due_ns) - buffer_ms
    return Sample(
        reply,
        truth_ms=ns_to_ms(truth_ns),
        measured_ms=ns_to_ms(turn.gap_ns),
        late_ms=ns_to_ms(max(played.late_ns, default=0)),
        playout_error_ms=behind_ms,
        spread_ms=None if turn.onset_spread_ns is None else ns_to_ms(turn.onset_spread_ns),
        lost=truth.lost,
    )


def _from_file(file: Path, log: Path) -> Truths:
    def read(done: int) -> Mapping[int, Truth]:
        found = read_truths(file)
        if len(found) != done:
            raise InconclusiveError(
                "calibrate.no_truth",
                f"the loopback agent answered {len(found)} of {done} turns: it did not "
                "hear the rest, or the line is broken",
                hint=f"its log: {log}",
            )
        return found

    return read


@asynccontextmanager
async def _loopback(
    replies: Sequence[Reply], dialect: str, log: Path, truths: Path, faults: Mapping[str, Any]
) -> AsyncIterator[Endpoint]:
    name = Endpoint("", dialect).spec().name
    require_half(name)
    script = replace(loopback_script(replies, name), **faults)
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
    spoken = tone(rate)
    pcm = np.concatenate((room, spoken, room))
    end_ms = ROOM_MS + len(spoken) * 1000 / rate - 1000 / rate
    speech = SpeechBounds(start_ms=ROOM_MS, end_ms=end_ms)
    return Cue(pcm, speech, When(after_reply_ms=0), budget_ms=800)


# --- the zoo --------------------------------------------------------------------------------------

# One with RTVI's words, and one with nothing but sound, coded as µ-law.
DIALECTS = ("pipecat", "twilio")
TOLERANCE_MS = 10.0

Verdict = Literal["right", "refused", "wrong"]


@dataclass(frozen=True, slots=True)
class Reading:
    """turngap's figures of an agent in a dialect.

    Attributes:
        turns: all that were stored, by call.
        off: the differences from the truth, a sentence each.
    """

    agent: Agent
    dialect: str
    turns: Sequence[Turn | None]
    valid: bool
    verdict: Verdict
    off: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        return {
            "agent": self.agent.name,
            "does": self.agent.does,
            "dialect": self.dialect,
            "right": _distinct(map(_words, self.agent.right)),
            "reads": [_words(_read_of(turn)) for turn in self.turns],
            "valid": self.valid,
            "verdict": self.verdict,
            "off": list(self.off),
        }


def play_zoo(
    agents: Sequence[Agent] = ZOO,
    dialects: Sequence[str] = DIALECTS,
    on_agent: Callable[[], None] = lambda: None,
) -> Iterator[Reading]:
    """Play agents in memory and virtual time, each in each dialect."""
    for agent in agents:
        for dialect in dialects:
            yield _read(agent, dialect)
            on_agent()


@cache
def scenario_of(barge_ms: float | None) -> LoadedScenario:
    """Return what the person says to an agent, with the second turn spoken into the first reply."""
    loaded = load_scenario(shipped_library() / "quick-questions.yaml")
    if barge_ms is None:
        return loaded
    first, second, *others = loaded.scenario.turns
    second = second.model_copy(update={"when": When(barge_in_ms=barge_ms)})
    turns = (first, second, *others)
    return replace(loaded, scenario=loaded.scenario.model_copy(update={"turns": turns}))


def lengths_of(scenario: LoadedScenario) -> list[float]:
    """Return how long the person speaks in each turn, in ms."""
    return [turn.speech.ms for turn in scenario.scenario.turns if turn.speech]


def begin(agent: Agent, dialect: str, out: Path) -> RunInProgress:
    """Begin the run of an agent's calls."""
    choice = AgentChoice(f"ws://zoo/{agent.name.replace(' ', '-')}", dialect=dialect)
    plan = PlayPlan(scenarios=[scenario_of(agent.barge_ms)], rounds=agent.calls, out=out)
    return RunInProgress(plan, Target(choice, shipped_library(), None), "zoo")


def reading(agent: Agent, dialect: str, stored: Run) -> Reading:
    """Compare the run of an agent's calls with the truth."""
    played = {(turn.repeat, turn.turn): turn for turn in stored.turns}
    numbers = range(1, len(scenario_of(agent.barge_ms).scenario.turns) + 1)
    turns = [played.get(key) for key in product(range(1, agent.calls + 1), numbers)]
    verdict, off = judge(agent, turns)
    return Reading(agent, dialect, turns, stored.record.valid, verdict, off)


def _read(agent: Agent, dialect: str) -> Reading:
    scenario = scenario_of(agent.barge_ms)
    name = dialect.partition(",")[0]
    settings = Endpoint("ws://zoo", dialect).settings()

    async def call(run: RunInProgress, number: int) -> None:
        async def be(end: End, clock: Clock) -> None:
            half, lengths_ms = make_half(name), lengths_of(scenario)
            await converse(agent, half, end, clock, call=number, lengths_ms=lengths_ms)

        clock = LoopClock()
        async with line_to(be, find_dialect(name).session(), clock) as line:
            line.first_word = settings.first_word
            await run.play_over(line, clock, scenario, repeat=number, watch=clock)

    with TemporaryDirectory(prefix="turngap-zoo-") as folder:
        run = begin(agent, dialect, Path(folder))
        for number in range(1, agent.calls + 1):
            with suppress(AgentError):  # a lost call is in the run, which continues
                in_virtual_time(call(run, number))
        return reading(agent, dialect, run.finish())


def judge(agent: Agent, turns: Sequence[Turn | None]) -> tuple[Verdict, Sequence[str]]:
    """Compare the turns of all calls with the truth; return the worst verdict and differences."""
    judged = [_judge_turn(right, turn) for right, turn in _with_truths(agent, turns)]
    off = [f"turn {number}: {why}" for number, (_, why) in enumerate(judged, start=1) if why]
    order: tuple[Verdict, ...] = ("wrong", "refused", "right")
    return next(v for v in order if any(v == verdict for verdict, _ in judged)), off


def _with_truths(
    agent: Agent, turns: Sequence[Turn | None]
) -> Iterator[tuple[Figures, Turn | None]]:
    rights = [*agent.right, *[agent.right[-1]] * len(turns)]
    return zip(rights[: len(turns)], turns, strict=True)


def _judge_turn(right: Figures, turn: Turn | None) -> tuple[Verdict, str]:
    """Judge a turn: right in all its figures, refused in the truth's own words, or wrong."""
    read = _read_of(turn)
    if all(_near(read.get(name), wanted) for name, wanted in right.items() if name != "refuses"):
        return "right", ""
    reasons = _reasons(turn)
    why = ": ".join([f"{_words(read)}, not {_words(right)}", *reasons])
    declared = right.get("refuses")
    refused = declared is not None and any(declared in reason for reason in reasons)
    return ("refused" if refused else "wrong"), why


def _reasons(turn: Turn | None) -> list[str]:
    return [*turn.notes, *filter(None, (turn.left_out, turn.why_no_gap))] if turn else []


def _shown(right: Figures, turn: Turn | None) -> str:
    """Name the figure: in the truth's words if it is right, else with the reason."""
    if _judge_turn(right, turn)[0] == "right":
        return _words(right)
    return ": ".join([_words(_read_of(turn)), *_reasons(turn)])


def _near(found: Any, wanted: Any) -> bool:
    if isinstance(found, float) and isinstance(wanted, int | float):
        return abs(found - wanted) <= TOLERANCE_MS
    return wanted in (found, "any")


def _read_of(turn: Turn | None) -> Figures:
    if turn is None:
        return {"outcome": "not stored"}
    return {
        "outcome": "left out" if turn.left_out else turn.outcome,
        "gap": turn.gap_ms,
        "sound": turn.first_sound_ms,
        "answer": turn.first_answer_ms,
        "yield": turn.yield_ms,
        "holes": len(turn.holes),
        "false_starts": turn.false_starts,
        "backchannels": turn.backchannels_heard,
    }


def _words(figures: Figures) -> str:
    """Name the figures; leave out the sound and the answer where they equal the gap."""
    gap = figures.get("gap")
    shown = [
        f"{name.replace('_', ' ')} {value:,.0f}"
        for name, value in figures.items()
        if value and name != "gap" and not isinstance(value, str)
        if not (name in ("sound", "answer") and _near(float(value), gap))
    ]
    return ", ".join([f"{figures['outcome']}{'' if gap is None else f' {gap:,.0f}'}", *shown])


def _distinct(words: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(words))


def rows_of(readings: Iterable[Reading]) -> list[dict[str, str]]:
    """Build rows for people; dialects share a row if an agent's figures are the same in them."""
    found: dict[tuple[str, ...], list[str]] = {}
    for each in readings:
        reads = _distinct(starmap(_shown, _with_truths(each.agent, each.turns)))
        row = (each.agent.does, _distinct(map(_words, each.agent.right)), reads, each.verdict)
        found.setdefault((each.agent.name, *row), []).append(each.dialect)
    several = Counter(name for name, *_ in found)
    return [
        {
            "agent": f"{name} ({', '.join(dialects)})" if several[name] > 1 else name,
            **dict(zip(("does", "right", "reads", "verdict"), row, strict=True)),
        }
        for (name, *row), dialects in found.items()
    ]
