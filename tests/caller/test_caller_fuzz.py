"""Any messages in any order, from whole conversations down to one message of the dialect."""

import asyncio
import math
import random
from pathlib import Path

import fuzz_caller
import pytest
import virtual_calls
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from virtual_calls import says

from turngap.caller.conversation import PlayedTurn
from turngap.caller.dialects.pipecat import audio_frame, interruption_frame
from turngap.caller.dialects.rtvi import rtvi
from turngap.caller.hearing import Listener
from turngap.caller.said import Marks, Message, Pong, ReplyText
from turngap.core.budget import OUTCOMES
from turngap.core.clock import Clock, ms_to_ns
from turngap.core.errors import AgentError
from turngap.core.events import AgentSpeech, ToolCall, TurnEnded, UserSpeech
from turngap.core.results import Turn
from turngap.core.run_record import OffsetRecord
from turngap.core.wire import message_frame
from turngap.play.turns import turn_record
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import scenario_paths
from turngap.store.documents import encode, parse_document
from turngap.testing import ManualClock
from turngap.testing.agent import Reply, Script, converse
from turngap.testing.dialects.pipecat import wav_file
from turngap.testing.memory import End

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)
EDGES = [s * (2**bits + n) for s in (1, -1) for bits in (60, 61, 62, 63) for n in (-1, 0)]
INSTANTS = st.integers(-(10**10), 10**10) | st.sampled_from(EDGES)
MARKS = st.fixed_dictionaries(
    {
        "turngap": st.just("marks"),
        "turn": st.integers(-1, 3) | ANYTHING,
        "marks": st.dictionaries(
            st.sampled_from(["endpoint", "llm_request", "sent", "tts_first_audio", "x"]),
            INSTANTS | ANYTHING,
        ),
    },
    optional={
        "counts": st.dictionaries(st.text(max_size=5), st.floats() | ANYTHING),
        "calls": st.lists(
            st.fixed_dictionaries({"name": ANYTHING}, optional={"ms": st.floats()}), max_size=3
        ),
        "why": ANYTHING,
        "error": ANYTHING,
    },
)
ANSWER = Reply(delay_ms=200, speech_ms=200)
KINDS = st.sampled_from(
    [*("bot-ready", "bot-llm-text", "user-transcription", "bot-stopped-speaking"), "error"]
)
TONE = fuzz_caller.TONE
AUDIO = st.builds(
    lambda size, rate, wav: audio_frame(
        wav_file(TONE[: size // 2 * 2], rate or 16_000) if wav else TONE[:size], rate
    ),
    st.sampled_from([0, 2, 3, 640, 6400]),
    st.sampled_from([0, 8_000, 16_000, 48_000]),
    st.booleans(),
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    AUDIO,
    MARKS.map(lambda data: message_frame(rtvi("server-message", data))),
    st.builds(lambda kind, data: message_frame(rtvi(kind, data)), KINDS, ANYTHING),
    st.builds(
        lambda kind, text: message_frame(rtvi(kind, {"text": text, "final": True, "error": text})),
        KINDS,
        ANYTHING,
    ),
    st.just(interruption_frame()),
    st.binary(max_size=60),
    st.text(max_size=20),
)
EDGE_MARKS = st.builds(
    Marks,
    st.sampled_from(EDGES[::2]),
    st.dictionaries(st.sampled_from(["endpoint", "sent", "tts_first_audio", "x" * 100]), INSTANTS),
    st.dictionaries(st.text(max_size=9), st.sampled_from(EDGES) | st.floats(), max_size=3),
    calls=st.lists(st.builds(ToolCall, st.text(), st.dictionaries(st.text(), ANYTHING))),
)
QUESTIONS = load_scenarios(scenario_paths(fuzz_caller.SCENARIOS, ["quick-questions"]))[0]


def play(beside: list[tuple[float, Message]]) -> tuple[list[PlayedTurn], AgentError | None]:
    """Hold a conversation of two turns in which the agent also sends these, after so many ms."""

    async def babble(end: End, clock: Clock) -> None:
        begun_ns = clock.now_ns() + ms_to_ns(300)
        for at_ms, message in sorted(beside, key=lambda pair: pair[0]):
            await clock.sleep_until_ns(begun_ns + ms_to_ns(at_ms))
            await end.send(message)

    async def course(end: End, clock: Clock) -> None:
        talking = asyncio.create_task(babble(end, clock))
        try:
            await converse(Script(replies=(ANSWER,)), end, clock)
        finally:
            talking.cancel()

    played = virtual_calls.play(course, lambda rate: [says(rate)] * 2)
    return played.turns, played.conversation.failure


# Without shrinking, which takes minutes where each example is a conversation.
@settings(max_examples=40, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(st.tuples(st.floats(0, 3_000), MESSAGES), max_size=20))
def test_whatever_an_agent_sends_each_turn_has_an_outcome_and_can_be_stored(
    beside: list[tuple[float, Message]],
) -> None:
    turns, failure = play(beside)
    assert failure is None
    assert len(turns) == 2
    for played in turns:
        assert played.turn.outcome in OUTCOMES
        assert not any("turngap itself" in note for note in played.notes)
        record = turn_record(
            QUESTIONS.scenario, played, repeat=1, phase_ms=0, file="", faults=(), budget_ms=None
        )
        assert (record.error or "").find("turngap itself") == -1
        again = parse_document(encode(record), Turn, "memory")
        assert again.outcome == record.outcome
        assert sum(stage.ns for stage in again.stages) == (again.gap_ns or 0)
        assert all(math.isfinite(stage.ms) for stage in again.stages)


@example(2**61 - 1, [Marks(1, {"sent": 1 - 2**61, "endpoint": 2**61 - 1})])
@example(2**63 - 1, [Marks(1, {"sent": 1 - 2**63})])
@given(st.sampled_from(EDGES), st.lists(EDGE_MARKS | st.builds(ReplyText, st.text()), max_size=6))
def test_whatever_is_accepted_is_stored_and_read_back(
    agent_ns: int, messages: list[Marks | ReplyText]
) -> None:
    try:
        offset_ns = Pong(1, agent_ns).agent_ns - 7
    except ValueError:
        return
    offset = OffsetRecord(offset_ns=offset_ns, bound_ns=0, n=1)
    listener = Listener(ManualClock(), offset=offset, speech_gap_ms=300)
    listener.feed(UserSpeech(1, 0, 10**9))
    for message in messages:
        listener.on_message(2 * 10**9, message)
    listener.feed(AgentSpeech(2 * 10**9, 2 * 10**9))
    (turn,) = listener.tracker.feed(TurnEnded(1, 4 * 10**9, "reply_done"))
    events, notes = tuple(listener.events), listener.take_notes()
    played = PlayedTurn(turn, (0, 5 * 10**9), (), None, (), events, notes)
    record = turn_record(
        QUESTIONS.scenario, played, repeat=1, phase_ms=0, file="", faults=(), budget_ms=None
    )
    assert not record.error
    again = parse_document(encode(record), Turn, "memory")
    assert again.model_dump(mode="json") == record.model_dump(mode="json")


@given(st.integers(0, 2**32))
def test_any_mutation_of_a_real_message_is_read_or_refused(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(10):
        message = fuzz_caller.mutated(draw)
        if isinstance(message, bytes):
            fuzz_caller.fuzz_one(message)


def test_the_fuzzer_of_benchmarks_finds_nothing_in_two_conversations() -> None:
    found = fuzz_caller.fuzz(400, seed=7, each=200)
    assert (found.crashes, found.without_outcome, found.failed_on) == ([], 0, {})
    assert found.messages >= 400
    assert sum(found.outcomes.values()) == 3 * found.conversations


def test_a_record_that_cannot_be_made_is_an_error_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault of turngap's")

    (first, _), _ = play([])
    asked = {"repeat": 1, "phase_ms": 0.0, "file": "audio/001.wav", "faults": ()}
    fine = turn_record(QUESTIONS.scenario, first, budget_ms=None, **asked)
    assert fine.outcome == "answered"
    monkeypatch.setattr("turngap.play.turns.plain_event", fails)
    record = turn_record(QUESTIONS.scenario, first, budget_ms=None, **asked)
    assert record.outcome == "error"
    assert "turngap itself failed to make the turn's record" in (record.error or "")
    assert any("ZeroDivisionError" in note for note in record.notes)
