"""Servers that break one rule each, and what the checks say of them. In virtual time."""

import asyncio
import json
import pkgutil
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, get_args
from xml.etree import ElementTree

import pytest

from turngap.caller.conversation import Conversation, Patience
from turngap.caller.dialects.pipecat import audio_frame
from turngap.caller.dialects.registry import find_dialect
from turngap.caller.dialects.rtvi import rtvi
from turngap.caller.said import Message
from turngap.conformance import tap
from turngap.conformance.checks import judged
from turngap.conformance.evidence import Check, Evidence
from turngap.conformance.messages import KNOWN
from turngap.conformance.play import play_over
from turngap.conformance.report import Verdict
from turngap.conformance.tap import Tap
from turngap.core.clock import Clock
from turngap.core.frames import message_frame
from turngap.play.calibrate import utterance
from turngap.scenario.model import When
from turngap.testing.agent import Reply, Script, converse
from turngap.testing.dialects import HALVES
from turngap.testing.dialects.half import AgentHalf
from turngap.testing.dialects.openai_realtime import OpenAIRealtimeHalf
from turngap.testing.dialects.pipecat import PipecatHalf
from turngap.testing.dialects.telephony import PhoneHalf
from turngap.testing.memory import End, line_to
from turngap.testing.virtual import LoopClock, in_virtual_time

# The person begins to speak 0.5 s into the first reply, and the agent yields meanwhile.
ANSWER = Reply(delay_ms=700, speech_ms=1000)
SCRIPT = Script(replies=(ANSWER,), hold_ms=100, yield_ms=50)
PATIENCE = Patience(no_reply_ms=1500, quiet_ms=300, quiet_after_done_ms=50)
LOUD = (8000).to_bytes(2, "little", signed=True) * 480


def observed(script: Script = SCRIPT, half: AgentHalf | None = None) -> Evidence:
    def agent(end: End, clock: Clock) -> Coroutine[Any, Any, None]:
        return converse(script, end, clock, half=half)

    async def course() -> Evidence:
        clock = LoopClock()
        tapped = Tap(find_dialect(script.dialect).session(), clock)
        async with asyncio.timeout(120), line_to(agent, tapped, clock) as line:
            cue = utterance(line.rate)
            cues = [cue, replace(cue, when=When(barge_in_ms=500)), cue]
            offset = await line.clock_offset()
            played = Conversation(line, cues, clock, offset=offset, patience=PATIENCE, watch=clock)
            return await play_over(line, tapped, played)

    return in_virtual_time(course())


def checked(script: Script = SCRIPT, half: AgentHalf | None = None) -> list[Check]:
    return judged(observed(script, half), script.dialect)


def failed(checks: Sequence[Check]) -> dict[str, str]:
    return {check.name: check.seen for check in checks if check.status == "fail"}


def of(checks: Sequence[Check], name: str) -> Check:
    (found,) = [check for check in checks if check.name.startswith(name)]
    return found


# --- servers that keep to their protocol -------------------------------------------------------


@pytest.mark.parametrize("dialect", sorted(HALVES))
def test_a_server_that_keeps_the_rules_fails_nothing(dialect: str) -> None:
    checks = checked(replace(SCRIPT, dialect=dialect))
    assert failed(checks) == {}
    for name in ("keeps to one rate", "answers each", "falls silent"):
        assert of(checks, name).status == "pass", name
    # In the Live API nothing is ever dropped: the model falls silent by itself.
    flushes = "not seen" if dialect == "gpt-live" else "pass"
    assert of(checks, "has the audio dropped").status == flushes


def test_what_was_seen_is_said() -> None:
    checks = checked()
    assert of(checks, "keeps to one rate").seen == "24,000 Hz"
    assert of(checks, "answers each").seen == "3 of 3; gaps 700 ms, 700 ms, 700 ms"
    assert of(checks, "has the audio dropped").seen == "flushed 50 ms after the person's onset"
    assert of(checks, "sends audio ahead").seen == "in real time, up to 20 ms ahead"
    assert "20 ms in the median" in of(checks, "sends whole samples").seen


def test_audio_that_comes_faster_than_it_is_played_is_right_too() -> None:
    checks = checked(replace(SCRIPT, replies=(replace(ANSWER, paced=False),)))
    assert failed(checks) == {}
    assert of(checks, "sends audio ahead").seen == "faster than it is played, up to 980 ms ahead"


def test_what_did_not_occur_is_not_seen() -> None:
    """The reply is over before the person would speak into it, and no words are told."""

    class Mute(PipecatHalf):
        def turn_over(self, transcript: str) -> list[Message]:
            return []

        def reply_text(self, text: str) -> list[Message]:
            return []

        def reply_done(self) -> list[Message]:
            return []

    checks = checked(replace(SCRIPT, replies=(replace(ANSWER, speech_ms=100),)), Mute())
    assert failed(checks) == {}
    unseen = {check.name for check in checks if check.status == "not seen"}
    assert unseen >= {
        "tells what it heard",
        "tells what it says",
        "says when a reply is complete, after its audio",
        "falls silent when the person speaks into its reply",
        "has the audio dropped that was not played",
        "sends no more of a reply that it has flushed",
        "sends no audio after the goodbye",
    }


def test_an_agent_that_stops_by_itself_needs_no_flush() -> None:
    class NoFlush(PipecatHalf):
        def flush(self) -> list[Message]:
            return []

    flush = of(checked(half=NoFlush()), "has the audio dropped")
    assert (flush.status, flush.seen) == ("not seen", "it sent no flush, and stopped by itself")


def test_a_flush_that_the_agent_has_no_word_for_is_guessed() -> None:
    class NoWord(PipecatHalf):
        """As with RTVI 1, which says only that the bot has stopped, while the person speaks."""

        def ready(self) -> list[Message]:
            return [message_frame(rtvi("bot-ready", {"version": "1.2.0"}))]

        def flush(self) -> list[Message]:
            starts, stops = (
                message_frame(rtvi(kind, {}))
                for kind in ("user-started-speaking", "bot-stopped-speaking")
            )
            return [starts, stops]

    flush = of(checked(half=NoWord()), "has the audio dropped")
    assert flush.status == "not seen"
    assert flush.seen.startswith("guessed 50 ms after the person's onset")


def test_how_far_ahead_the_audio_is_passes_nothing() -> None:
    assert of(checked(), "sends audio ahead").status == "seen"


def test_marks_are_counted_as_they_went_back() -> None:
    marks = of(checked(replace(SCRIPT, dialect="twilio")), "puts its marks")
    assert (marks.status, marks.seen) == ("pass", "3 marks, of which 3 went back, in their order")


def test_what_is_too_much_to_keep_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap, "MOST_KEPT_BYTES", 10_000)
    evidence = observed()
    assert 0 < evidence.log.kept < 10_000 + 110 * len(evidence.log.came)
    assert (
        "were too much to keep" in of(judged(evidence, "pipecat"), "sends messages that can").seen
    )


# --- servers that break one rule ----------------------------------------------------------------


class ReadyTwice(PipecatHalf):
    def ready(self) -> list[Message]:
        return super().ready() * 2


class SpeaksBeforeReady(PipecatHalf):
    def opens(self) -> list[Message]:
        return self.audio(LOUD)


class TwoRates(PipecatHalf):
    def audio(self, pcm: bytes) -> list[Message]:
        self.out_rate = 40_000 - self.out_rate  # 24,000 and 16,000 Hz in turn
        return super().audio(pcm)


class HalfSamples(PipecatHalf):
    def audio(self, pcm: bytes) -> list[Message]:
        return [*super().audio(pcm[:-1]), *super().audio(pcm[-1:])]


class Holes(PipecatHalf):
    """Loses 60 ms in each second, of which the chunk that is sent ahead makes up for 20."""

    chunks = 0

    def audio(self, pcm: bytes) -> list[Message]:
        self.chunks += 1
        return [] if self.chunks % 50 >= 47 else super().audio(pcm)


class DoneTooSoon(PipecatHalf):
    def reply_text(self, text: str) -> list[Message]:
        return [*super().reply_text(text), *self.reply_done()]


class SpeaksAfterFlush(PipecatHalf):
    def flush(self) -> list[Message]:
        return [*super().flush(), *[audio_frame(LOUD, 24_000)] * 10]


class Errors(PipecatHalf):
    def reply_done(self) -> list[Message]:
        error = message_frame(rtvi("error", {"error": "no voice", "fatal": False}))
        return [*super().reply_done(), error]


class BareMark(PhoneHalf):
    def turn_over(self, transcript: str) -> list[Message]:
        return self.reply_done()


class OneName(PhoneHalf):
    def reply_done(self) -> list[Message]:
        self._replies = 0
        return super().reply_done()


class NoStream(PhoneHalf):
    def flush(self) -> list[Message]:
        return [json.dumps({"event": "clear"})]


class Strange(PhoneHalf):
    def turn_over(self, transcript: str) -> list[Message]:
        return self._say("transcript", text=transcript)


class NoResponse(OpenAIRealtimeHalf):
    def reply_done(self) -> list[Message]:
        return [*super().reply_done(), self._event("response.output_audio.delta", delta="AAAA")]


class ForgetsTruncation(OpenAIRealtimeHalf):
    def receive_data(self, message: Message) -> Any:
        said, answers = super().receive_data(message)
        return said, [a for a in answers if "item.truncated" not in str(a)]


class Late(OpenAIRealtimeHalf):
    def flush(self) -> list[Message]:
        delta = self._audio.encode(LOUD)
        late = self._event("response.output_audio.delta", **self._part(), delta=delta)
        started, *rest = super().flush()
        return [started, late, *rest]


class Chatty(OpenAIRealtimeHalf):
    def opens(self) -> list[Message]:
        return [self._event("server.hello"), *super().opens()]


BREAKS: list[tuple[type[AgentHalf], str, str]] = [
    (ReadyTwice, "says once that it is ready", "2 times; first 0 ms after"),
    (SpeaksBeforeReady, "sends audio only once it is ready", "chunks before it: 1"),
    (TwoRates, "keeps to one rate", "16,000 Hz, 24,000 Hz"),
    (HalfSamples, "sends whole samples in every chunk", "of an odd number of bytes"),
    (Holes, "keeps up with its playing", ", up to 40 ms"),
    (DoneTooSoon, "says when a reply is complete, after its audio", "before it had sent any"),
    (SpeaksAfterFlush, "sends no more of a reply", "200 ms of sound came while the person spoke"),
    (Errors, "reports no errors", "3: no voice"),
    (BareMark, "puts its marks after audio", "3 of 6 marks without audio before"),
    (OneName, "puts its marks after audio", "0 of 3 marks without audio before; more than once"),
    (NoStream, "names the stream", "1 of "),
    (Strange, "sends only messages that its protocol has", "transcript (3)"),
    (NoResponse, "sends audio only between", "3 of "),
    (ForgetsTruncation, "takes conversation.item.truncate", "1 of 1 were not confirmed"),
    (Late, "sends no audio of a response after", "1 chunks of 1 interrupted"),
    (Chatty, "begins with session.created", "server.hello"),
]


@pytest.mark.parametrize(("half", "name", "seen"), BREAKS, ids=lambda v: getattr(v, "__name__", ""))
def test_a_server_that_breaks_a_rule_fails_its_check(
    half: type[AgentHalf], name: str, seen: str
) -> None:
    made = half()
    dialect = (
        "twilio"
        if isinstance(made, PhoneHalf)
        else "pipecat"
        if isinstance(made, PipecatHalf)
        else "openai-realtime"
    )
    found = of(checked(replace(SCRIPT, dialect=dialect), made), name)
    assert found.status == "fail"
    assert seen in found.seen


def test_an_agent_that_talks_on_neither_falls_silent_nor_flushes() -> None:
    long = replace(ANSWER, speech_ms=4000)
    checks = checked(replace(SCRIPT, replies=(long, ANSWER), yield_ms=None))
    assert set(failed(checks)) >= {
        "falls silent when the person speaks into its reply",
        "has the audio dropped that was not played",
    }


def test_an_utterance_without_a_reply_is_named() -> None:
    quiet = replace(ANSWER, action="silence")
    checks = checked(replace(SCRIPT, replies=(ANSWER, ANSWER, quiet)))
    assert failed(checks) == {"answers each utterance": "no reply to 3 (no_reply) of 3"}


def test_a_server_that_says_nothing_is_not_praised_for_its_silence() -> None:
    mute = replace(ANSWER, action="silence")
    checks = checked(replace(SCRIPT, dialect="twilio", replies=(mute, mute, mute)))
    assert of(checks, "sends no audio after the goodbye").status == "not seen"
    yields = of(checks, "falls silent when the person speaks into its reply")
    assert yields.seen == "no reply came that the person could have spoken into"


def test_a_message_of_another_protocol_is_quoted() -> None:
    checks = checked(replace(SCRIPT, replies=(ANSWER, ANSWER, replace(ANSWER, action="garbage"))))
    assert "this is no message" in of(checks, "sends messages that can be read").seen
    assert "sends messages that can be read" in failed(checks)


def test_a_twilio_bot_that_goes_on_after_the_stop_is_caught() -> None:
    checks = checked(replace(SCRIPT, dialect="twilio", idle_dbfs=-60.0))
    assert "sends no audio after the goodbye" in failed(checks)


def test_an_agent_that_dies_fails_and_what_was_seen_before_is_kept() -> None:
    evidence = observed(replace(SCRIPT, replies=(ANSWER, replace(ANSWER, action="die_midway"))))
    checks = judged(evidence, "pipecat")
    assert evidence.failure is not None
    assert "holds the line to the end" in failed(checks)
    assert of(checks, "keeps to one rate").status == "pass"


@pytest.mark.parametrize(
    ("dialect", "union"),
    [
        ("openai-realtime", "openai.types.realtime.realtime_server_event:RealtimeServerEvent"),
        ("gpt-live", "openai.types.live.server_event:ServerEvent"),
    ],
)
def test_every_event_of_the_openai_library_is_known(dialect: str, union: str) -> None:
    events = types_in(pkgutil.resolve_name(union))
    assert len(events) > 20
    assert events <= KNOWN[dialect][1]


def types_in(annotation: Any) -> set[str]:
    """Every value of `type` in a union of models."""
    if fields := getattr(annotation, "model_fields", None):
        return set(get_args(fields["type"].annotation)) if "type" in fields else set()
    return {name for part in get_args(annotation) for name in types_in(part)}


# --- what is shown ------------------------------------------------------------------------------

CHECKS = [
    Check("keeps to one rate", "pass", "8,000 Hz"),
    Check("reports no errors", "fail", "2: \x1b[2Jno \ud83dvoice <b>"),
    Check("tells what it heard", "not seen", "no message of it"),
]


def test_a_failure_and_what_was_not_seen_in_junit() -> None:
    verdict = Verdict("ws://host/ws", "twilio", CHECKS)
    suite = ElementTree.fromstring(verdict.as_junit()).find("testsuite")
    assert suite is not None
    counts = {key: suite.get(key) for key in ("tests", "failures", "skipped", "errors")}
    assert counts == {"tests": "3", "failures": "1", "skipped": "1", "errors": "0"}
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [check.name for check in CHECKS]
    assert [[child.tag for child in case] for case in cases] == [[], ["failure"], ["skipped"]]


def test_the_table_and_the_document_say_the_same() -> None:
    verdict = Verdict("ws://host/ws", "twilio", CHECKS)
    shown = verdict.block(100).plain
    assert "1 pass, 1 fail, 0 seen, 1 not seen" in shown
    assert "\x1b" not in shown
    document = verdict.as_json()
    assert (document["conforms"], document["dialect"]) == (False, "twilio")
    assert [c["status"] for c in document["checks"]] == ["pass", "fail", "not seen"]
