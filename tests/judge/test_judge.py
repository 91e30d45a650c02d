"""Stored runs judged again: by what a recogniser makes of the agent's sound, and by a model."""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from fake_openai import FakeOpenAI, serving
from made_records import make_record, make_turn

from turngap import judge
from turngap.backends import ConfiguredBackend
from turngap.core.audio import Pcm
from turngap.core.errors import InputError
from turngap.core.events import ToolCall
from turngap.core.results import Turn
from turngap.core.stored import AnswerRecord, AudioRecord
from turngap.judge import (
    RATE,
    Transcript,
    expectations,
    judge_backend,
    judged,
    judged_with,
    recogniser_backend,
    reply_audio,
    transcribe,
    transcribed,
)
from turngap.report.run import summary_block
from turngap.scenario.library import load_scenario
from turngap.scenario.model import Scenario
from turngap.store.runs import Run, read_run
from turngap.store.writer import RunWriter
from turngap_services.stt.sentences import library_replies
from turngap_services.tts.espeak import EspeakVoice
from turngap_services.tts.espeak import engine as voice_engine

YAML = """\
name: talk
turns:
  - say: "which pizza would you like to have"
    audio: talk/1.wav
    speech: {start_ms: 100, end_ms: 900}
    reply: "Two large pizzas, coming up."
    expect:
      reply: {all_of: ["two large pizzas"], forbid: ["small"]}
  - say: "make it a small one"
    audio: talk/1.wav
    speech: {start_ms: 100, end_ms: 900}
    reply: "Sure, one small pizza with mushrooms."
    expect:
      reply: {all_of: ["small"]}
  - say: "bye"
    audio: talk/1.wav
    speech: {start_ms: 100, end_ms: 900}
    reply: "Thank you, goodbye."
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    folder = tmp_path / "scenarios"
    (folder / "talk").mkdir(parents=True)
    tone = (8000 * np.sin(np.arange(RATE) / 10)).astype(np.int16)
    soundfile.write(folder / "talk" / "1.wav", tone, RATE, subtype="PCM_16")
    (folder / "talk.yaml").write_text(YAML)
    return folder


async def speech(text: str) -> Pcm:
    pieces = [p async for p in voice_engine().speak(text, EspeakVoice("en-us+michel", 175, 50))]
    made = np.frombuffer(b"".join(pieces), np.int16).astype(np.float64)
    return soxr.resample(made, 22_050, RATE).astype(np.int16)


async def stored(folder: Path, library: Path, *replies: str, **changes: Any) -> Run:
    """A run of `talk` in which an agent that reports no text said these."""
    path = load_scenario(library / "talk.yaml")
    hashes = {"talk": path.content_hash()}
    record = make_record(scenario_hashes=hashes, planned_turns=len(replies))
    with RunWriter.create(folder, "x", record) as writer:
        for number, reply in enumerate(replies, 1):
            said = await speech(reply) if reply else np.zeros(RATE, np.int16)
            heard = np.concatenate((np.zeros(RATE, np.int16), said))
            file = writer.write_audio(f"{number:03d}", np.zeros(RATE // 2, np.int16), heard, RATE)
            where = AudioRecord(file=file, user_start_ms=0, user_end_ms=600, onset_ms=1000)
            about = {"scenario": "talk", "reply": "", "audio": where, **changes}
            why = AnswerRecord(verdict="not_judged", why="the agent did not report what it said")
            writer.append_turn(make_turn(turn=number, **{"answer": why, **about}))
        writer.finish(record)
    return read_run(writer.path)


def scenarios(library: Path) -> Mapping[str, Scenario]:
    return {"talk": load_scenario(library / "talk.yaml").scenario}


def nothing() -> None:
    pass


def heard(run: Run, library: Path) -> Run:
    """The run judged by pocketsphinx, as it is on the disk then."""
    made = transcribed(
        run, recogniser_backend("pocketsphinx", library), scenarios(library), nothing
    )
    again = read_run(run.path)
    assert (again.record, again.turns) == (made.record, made.turns)
    return again


def verdicts(run: Run) -> list[str]:
    return [turn.transcribed.verdict for turn in run.turns if turn.transcribed is not None]


async def run_in_thread(work: Any, *arguments: Any) -> Any:
    """Run in a thread what has an event loop of its own and cannot run inside the test's."""
    import asyncio

    return await asyncio.to_thread(work, *arguments)


async def test_a_black_box_is_judged_by_its_sound(tmp_path: Path, library: Path) -> None:
    said = ("Two large pizzas, coming up.", "Two large pizzas, coming up.", "Thank you, goodbye.")
    run = await stored(tmp_path, library, *said)
    again = await run_in_thread(heard, run, library)
    assert verdicts(again) == ["right", "wrong", "not_judged"]
    first, second, third = (turn.transcribed for turn in again.turns)
    assert (first.source, first.heard) == ("transcribed", "two large pizzas coming up")
    assert second.failed == ('not said: "small"',)
    assert third.why == "the agent did not report what it said"
    # The verdict on the agent's own words stays what it was, and is not mixed with this one.
    assert {turn.answer.verdict for turn in again.turns} == {"not_judged"}
    assert {turn.answer.source for turn in again.turns} == {"agent text"}
    with_ = again.record.transcribed_with
    assert with_ is not None
    assert (with_.backend, with_.closed_domain) == ("pocketsphinx", True)
    assert with_.settings["listens_to"] == "agent"
    text = " ".join(summary_block(again, 100).plain.split())
    assert "by sound 50 % 1 of 2 turns" in text


async def test_silence_is_not_judged_and_a_turn_without_a_reply_is_as_wrong_as_before(
    tmp_path: Path, library: Path
) -> None:
    run = await stored(tmp_path, library, "", "Sure, one small pizza with mushrooms.")
    wrong = AnswerRecord(verdict="wrong", failed=("no reply was heard",))
    unheard = make_turn(turn=2, scenario="talk", marks_ms=None, ended="timeout", answer=wrong)
    run = Run(run.record, (run.turns[0], unheard), run.path)
    again = await run_in_thread(heard, run, library)
    silent, none = (turn.transcribed for turn in again.turns)
    assert (silent.verdict, silent.why) == ("not_judged", "no speech was heard in it")
    assert (none.verdict, none.failed) == ("wrong", wrong.failed)


async def test_a_beep_is_not_thank_you(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def whisper(*_: object) -> Transcript:
        return Transcript("Two large pizzas. Thank you.")

    async def beep(_: str) -> Pcm:
        return (8000 * np.sin(np.arange(RATE) * 2 * np.pi * 440 / RATE)).astype(np.int16)

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "speech", beep)
        run = await stored(tmp_path, library, "beep")
    monkeypatch.setattr(judge, "transcribe", whisper)
    again = await run_in_thread(heard, run, library)
    assert verdicts(again) == ["not_judged"]


async def test_tools_count_however_the_reply_is_judged(tmp_path: Path, library: Path) -> None:
    text = YAML.replace(
        '{all_of: ["small"]}', '{all_of: ["small"]}\n      tools: {all_of: [{name: shop}]}'
    )
    (library / "talk.yaml").write_text(text)
    said = ("Two large pizzas, coming up.", "Sure, one small pizza with mushrooms.")
    calls = (ToolCall(name="shop"),)
    run = await stored(tmp_path, library, *said, calls=calls)
    assert verdicts(await run_in_thread(heard, run, library)) == ["right", "right"]
    run = await stored(tmp_path, library, *said, calls=())
    assert verdicts(await run_in_thread(heard, run, library)) == ["right", "wrong"]


async def test_a_recogniser_that_fails_says_so_and_judges_nothing(library: Path) -> None:
    from pipecat.processors.frame_processor import FrameProcessor

    class Broken(FrameProcessor):
        async def process_frame(self, frame: Any, direction: Any) -> None:
            await super().process_frame(frame, direction)
            if type(frame).__name__ == "VADUserStoppedSpeakingFrame":
                await self.push_error("out of\n order")
            await self.push_frame(frame, direction)

    asked = recogniser_backend("pocketsphinx", library)
    spec = dataclasses.replace(asked.spec, create=lambda settings, clock: Broken())
    made = await transcribe(spec, asked.settings, np.zeros(RATE, np.int16))
    assert (made.text, made.why_none) == ("", "out of order")


def test_only_a_recording_within_the_run_is_read(tmp_path: Path) -> None:
    run = Run(make_record(), (), tmp_path)
    soundfile.write(tmp_path.parent / "x.wav", np.zeros((RATE, 2)), RATE)
    for file in ("../x.wav", str(tmp_path.parent / "x.wav"), "missing.wav"):
        where = AudioRecord(file=file, user_start_ms=0, user_end_ms=1, onset_ms=2)
        assert reply_audio(run, make_turn(audio=where)) is None
    assert reply_audio(run, make_turn(audio=None)) is None


def test_of_a_file_of_several_turns_each_has_its_own_stretch(tmp_path: Path) -> None:
    samples = np.zeros((5 * RATE, 2))
    samples[2 * RATE : 3 * RATE, 1] = 0.5
    soundfile.write(tmp_path / "x.wav", samples, RATE, subtype="FLOAT")
    first = AudioRecord(file="x.wav", user_start_ms=0, user_end_ms=1000, onset_ms=2000)
    second = AudioRecord(file="x.wav", user_start_ms=3500, user_end_ms=4000, onset_ms=4500)
    turns: tuple[Turn, ...] = (make_turn(audio=first), make_turn(turn=2, audio=second))
    pcm = reply_audio(Run(make_record(), turns, tmp_path), turns[0])
    assert pcm is not None
    assert len(pcm) == 1.6 * RATE
    assert np.flatnonzero(pcm)[0] == 0.1 * RATE


def test_the_recogniser_knows_what_agents_say_right_and_wrong(library: Path) -> None:
    texts = {saying.text for saying in library_replies(library)}
    assert {"Two large pizzas, coming up.", "small", "two large pizzas"} <= texts
    assert not any("make it" in text for text in texts)


# --- a judge model, over the wire -------------------------------------------------------------


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the key")


def judge_of(server: FakeOpenAI) -> ConfiguredBackend:
    return judge_backend(f"openai,base_url={server.base_url},model=m", None)


def told(tmp_path: Path, library: Path, *verdict: str) -> Run:
    """A run of an agent that reports its text, with the rule's verdicts."""
    record = make_record(
        scenario_hashes={"talk": load_scenario(library / "talk.yaml").content_hash()}
    )
    with RunWriter.create(tmp_path, "y", record) as writer:
        for number, each in enumerate(verdict, 1):
            about = {"verdict": each, "heard": "Two large pizzas."} if each else {}
            failed = {"failed": ["x"]} if each == "wrong" else {}
            answer = {"verdict": "not_judged", "why": "nobody spoke", **about, **failed}
            made = AnswerRecord.model_validate(answer)
            writer.append_turn(make_turn(turn=number, scenario="talk", answer=made))
        writer.finish(record)
    return read_run(writer.path)


def test_a_model_judges_beside_the_rule_and_its_prompt_is_stored(
    tmp_path: Path, library: Path, spoken: None
) -> None:
    run = told(tmp_path, library, "right", "right", "wrong")
    with serving(FakeOpenAI(key="the key", whole="WRONG\nIt is not small.")) as server:
        again = judged(run, judge_of(server), scenarios(library), nothing)
    first, second, third = (turn.judged for turn in again.turns)
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.right, second.right, second.why) == (False, False, "It is not small.")
    assert (third.right, third.why) == (None, "nothing is expected of this reply")
    assert [turn.answer.verdict for turn in again.turns] == ["right", "right", "wrong"]
    assert read_run(run.path).turns == again.turns
    with_ = read_run(run.path).record.judged_with
    assert with_ is not None
    asked = [seen.body for seen in server.seen if seen.body]
    assert len(asked) == 2
    assert asked[0]["messages"][0] == {"role": "system", "content": with_.prompt}
    assert asked[0]["model"] == "m"
    assert "<heard>Two large pizzas.</heard>" in asked[1]["messages"][1]["content"]
    # What came before in the call is told; nothing of what comes after it.
    assert "Person: which" not in asked[0]["messages"][1]["content"]
    assert "The call so far:" in asked[1]["messages"][1]["content"]
    assert "the key" not in (run.path / "run.json").read_text()
    text = " ".join(summary_block(again, 100).plain.split())
    assert "judge 0 % 0 of 2 turns" in text
    assert "as by the agent's text in 0 of 2" in text


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({"whole": "maybe"}, "no verdict in the judge's answer: maybe"),
        ({"whole": ""}, "the judge said nothing"),
        ({"whole_status": 500}, "the judge failed: InternalServerError"),
    ],
)
def test_a_judge_that_fails_at_a_turn_is_none_with_a_reason_and_never_right(
    tmp_path: Path, library: Path, spoken: None, server: dict[str, Any], why: str
) -> None:
    run = told(tmp_path, library, "right")
    with serving(FakeOpenAI(key="the key", **server)) as fake:
        again = judged(run, judge_of(fake), scenarios(library), nothing)
    verdict = again.turns[0].judged
    assert verdict is not None
    assert verdict.right is None
    assert verdict.why.startswith(why)


def test_a_reply_that_nobody_knows_is_not_asked_about(
    tmp_path: Path, library: Path, spoken: None
) -> None:
    run = told(tmp_path, library, "")
    with serving(FakeOpenAI(key="the key")) as server:
        again = judged(run, judge_of(server), scenarios(library), nothing)
    assert again.turns[0].judged is not None
    assert again.turns[0].judged.why == "no words of a reply are known"
    assert [seen.path for seen in server.seen] == ["/v1/models"]


# --- what is wrong before anything is done ----------------------------------------------------


def test_other_scenarios_than_were_played_are_refused(tmp_path: Path, library: Path) -> None:
    run = told(tmp_path, library, "right")
    assert list(expectations(run, library)) == ["talk"]
    (library / "talk.yaml").write_text(YAML.replace("small one", "tiny one"))
    with pytest.raises(InputError, match="has changed since"):
        expectations(run, library)
    (library / "talk.yaml").rename(library / "other.yaml")
    with pytest.raises(InputError, match="'talk', which is not in") as e:
        expectations(run, library)
    assert "--library DIR" in e.value.hint


@pytest.mark.parametrize(
    ("kind", "text", "told_"),
    [
        ("stt", "whisperer", "no stt backend named 'whisperer'"),
        ("stt", "pocketsphinx,loud", "'loud' is no KEY=VALUE"),
        ("stt", "pocketsphinx,louder=1", "louder"),
        ("llm", "pocketsphinx", "no llm backend named"),
    ],
)
def test_an_engine_that_is_none_is_refused(library: Path, kind: Any, text: str, told_: str) -> None:
    with pytest.raises(InputError, match=told_) as e:
        (recogniser_backend if kind == "stt" else judge_backend)(text, library)
    assert e.value.exit_code == 2


def test_secrets_of_a_judge_are_not_stored(library: Path, spoken: None) -> None:
    asked = judge_backend(
        'openai,base_url=http://x/v1,model=m,extra_body={api_key="sk-12345"}', None
    )
    assert "sk-12345" not in judged_with(asked, "p").model_dump_json()
