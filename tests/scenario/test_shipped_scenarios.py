"""The scenario library that ships: what it covers, and that its labels agree with the audio."""

import json
import re
import runpy
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from training.turns.verdicts import completeness, stretches
from turngap.agent.stack import TOOLS
from turngap.agent.tools import Tool, tools
from turngap.core.audio import AUDIBLE_DBFS, LINE_FLOOR_DBFS, Pcm, rms_dbfs
from turngap.scenario.answers import STOPPED, Findings, Hearing, find, judge
from turngap.scenario.library import LoadedScenario, load_scenarios
from turngap.scenario.model import (
    EXTRA,
    Backchannel,
    Recorded,
    Scenario,
    UserTurn,
    library_paths,
    scenario_paths,
)
from turngap.scenario.speech import find_speech, speech_bounds

LIBRARY = Path(__file__).parents[2] / "scenarios"
RATE = 16_000


@cache
def library() -> tuple[LoadedScenario, ...]:
    return tuple(load_scenarios(library_paths(LIBRARY)))


@cache
def make_recordings() -> dict[str, Any]:
    return runpy.run_path(str(LIBRARY / "make_recordings.py"))


def turns() -> Iterator[tuple[Scenario, UserTurn]]:
    for loaded in library():
        for turn in loaded.scenario.turns:
            yield loaded.scenario, turn


def recordings() -> Iterator[tuple[Scenario, Recorded, Pcm]]:
    for loaded in library():
        for turn in loaded.scenario.turns:
            for recorded in (turn, *turn.backchannels):
                yield loaded.scenario, recorded, loaded.clips[recorded.audio].pcm


def words(text: str) -> str:
    """Without case and punctuation, as replies are compared."""
    return " ".join(re.sub(r"[^\w\s]", "", text.lower()).split())


def window_levels(pcm: Pcm) -> list[float]:
    """RMS in dBFS of consecutive 10 ms: an independent, coarser look than the labeller's."""
    return [rms_dbfs(pcm[i : i + 160]) for i in range(0, len(pcm) - 159, 160)]


def test_it_is_large_enough():
    assert len(library()) >= 8
    assert len(list(turns())) >= 30


@pytest.mark.parametrize(
    "tag",
    [
        "smoke",
        "questions",
        "order",
        "booking",
        "names",
        "dates",
        "numbers",
        "smart-home",
        "pause",
        "noise",
        "barge-in",
        "backchannel",
        "correction",
        "slow",
        "tools",
    ],
)
def test_it_covers(tag: str):
    assert scenario_paths(LIBRARY, tag=tag)


def test_the_tags_of_special_events_tell_the_truth():
    for loaded in library():
        scenario = loaded.scenario
        barges = any(t.when.barge_in_ms is not None for t in scenario.turns)
        assert ("barge-in" in scenario.tags) == barges
        assert ("backchannel" in scenario.tags) == any(t.backchannels for t in scenario.turns)


def test_a_conversation_is_one_to_remember_in():
    assert sum(len(loaded.scenario.turns) >= 3 for loaded in library()) >= 8


def test_every_turn_has_a_reply_that_meets_its_own_expectation():
    for loaded in library():
        kit = {tool.name: tool for tool in tools()}
        for turn in loaded.scenario.turns:
            reply = spoken(turn, kit)
            assert reply, turn.say
            assert turn.expect.reply, turn.say
            assert turn.expect.reply.any_of or turn.expect.reply.all_of, turn.say
            answer = judge(turn.expect.reply, Hearing(reply, whole=True))
            assert answer.verdict == "right", answer


def spoken(turn: UserTurn, kit: Mapping[str, Tool]) -> str:
    """The reply as the simulated model says it once it has called what it is to call."""
    results: dict[str, str] = {}
    for call in turn.calls:
        result = kit[call.name].answer(call.arguments)
        assert "error" not in result, (turn.say, result)
        results |= result
    return (turn.reply or "").format(**results) if turn.calls else turn.reply or ""


def test_every_turn_calls_what_is_expected_of_it():
    called: set[str] = set()
    for _, turn in turns():
        assert bool(turn.calls) == bool(turn.expect.tools and turn.expect.tools.all_of)
        if turn.expect.tools:
            assert find(turn.expect.tools, turn.calls) == Findings((), ())
        called |= {call.name for call in turn.calls}
    assert called == set(TOOLS)


def test_another_turns_reply_is_wrong():
    """Else an answer at random would be right: what the simulated model says when it is wrong."""
    known = [(t.expect.reply, t.reply) for _, t in turns() if t.expect.reply and t.reply]
    replies = {reply for _, reply in known}
    mistaken = [
        (expected, reply)
        for expected, own in known
        for reply in replies - {own}
        if judge(expected, Hearing(reply, whole=True)).verdict == "right"
    ]
    # "Which day suits you?" has a "when", "A large mushroom pizza" a number: few, and meant so.
    assert len(mistaken) <= len(known) * (len(replies) - 1) / 50, mistaken


def test_replies_are_as_long_as_what_falls_into_them_needs():
    for loaded in library():
        following = [*loaded.scenario.turns[1:], None]
        for turn, after in zip(loaded.scenario.turns, following, strict=True):
            spoken_over = turn.backchannels or (after and after.when.barge_in_ms is not None)
            count = len((turn.reply or "").split())
            assert (20 <= count <= 40) if spoken_over else (5 <= count <= 18), turn.reply


def test_the_same_words_never_ask_for_two_replies():
    replies: dict[str, str | None] = {}
    for _, turn in turns():
        assert replies.setdefault(words(turn.say), turn.reply) == turn.reply


def test_recordings_are_small_and_all_are_used():
    files = {p.relative_to(LIBRARY).as_posix() for p in LIBRARY.rglob("*.flac")}

    assert files == {recorded.audio for _, recorded, _ in recordings()}
    assert sum((LIBRARY / f).stat().st_size for f in files) < 3_500_000


def test_recordings_are_16_khz_mono_pcm16():
    for _, recorded, _ in recordings():
        info = soundfile.info(LIBRARY / recorded.audio)
        assert (info.samplerate, info.channels, info.subtype) == (RATE, 1, "PCM_16")


def test_what_is_played_by_default_takes_less_than_80_seconds_to_say():
    played = [loaded.scenario for loaded in library() if usual(loaded.scenario)]
    spoken_ms = sum(
        r.speech.end_ms - r.speech.start_ms for s, r, _ in recordings() if s in played and r.speech
    )

    assert spoken_ms < 80_000
    assert [s.name for s in played] == [
        load.scenario.name for load in load_scenarios(scenario_paths(LIBRARY))
    ]


def test_slow_speech_is_the_same_words_a_quarter_longer():
    slow = {s.scenario.name: s.scenario for s in library() if "slow" in s.scenario.tags}
    said = {s.scenario.name: s.scenario for s in library()}
    assert sum(len(s.turns) for s in slow.values()) >= 20
    for name, scenario in slow.items():
        assert EXTRA in scenario.tags
        as_fast = said[name.removeprefix("slow-")]
        assert len(scenario.turns) == len(as_fast.turns)
        for turn, fast in zip(scenario.turns, as_fast.turns, strict=True):
            assert (turn.say, turn.reply, turn.expect) == (fast.say, fast.reply, fast.expect)
            assert turn.speech and fast.speech
            longer = (turn.speech.end_ms - turn.speech.start_ms) / (
                fast.speech.end_ms - fast.speech.start_ms
            )
            assert 1.15 <= longer <= 1.35, turn.audio


def test_clean_labels_agree_with_the_audio_at_any_sensible_level():
    for scenario, recorded, pcm in recordings():
        if "noise" in scenario.tags:
            continue
        for dbfs in (-40, -45, -50):
            found = speech_bounds(pcm, RATE, dbfs)
            assert found and recorded.speech, recorded.audio
            assert abs(found.start_ms - recorded.speech.start_ms) <= 10, (recorded.audio, dbfs)
            assert abs(found.end_ms - recorded.speech.end_ms) <= 10, (recorded.audio, dbfs)


def test_labels_agree_with_the_windows_that_are_loud():
    for scenario, recorded, pcm in recordings():
        if "noise" in scenario.tags:
            continue
        assert recorded.speech
        # Six dB lower: a window that begins anywhere holds only a part of a short last consonant.
        loud = [i for i, level in enumerate(window_levels(pcm)) if level >= AUDIBLE_DBFS - 6]
        assert abs(loud[0] * 10 - recorded.speech.start_ms) <= 20, recorded.audio
        assert abs((loud[-1] + 1) * 10 - recorded.speech.end_ms) <= 20, recorded.audio


def test_labels_are_found_again_within_the_error_that_is_claimed():
    """They were taken on clean takes, so they are exact also where noise lies over them."""
    for scenario, recorded, pcm in recordings():
        if isinstance(recorded, Backchannel) and recorded.is_sound:
            continue  # a cough is no speech
        found, exact = find_speech(pcm, RATE), recorded.speech
        assert found and exact, recorded.audio
        bounds = found.bounds
        assert bounds.start_error_ms is not None and bounds.end_error_ms is not None
        # In the noisy ones weak consonants drown.
        most_ms = 50 if "noise" in scenario.tags else 30
        start_off, end_off = bounds.start_ms - exact.start_ms, bounds.end_ms - exact.end_ms
        assert abs(start_off) <= min(most_ms, bounds.start_error_ms), recorded.audio
        assert abs(end_off) <= min(most_ms, bounds.end_error_ms), recorded.audio


def test_what_lies_outside_the_speech_is_inaudible_line_noise():
    for scenario, recorded, pcm in recordings():
        assert recorded.speech
        # 50 ms after its last audible sample even a decaying vowel is below the floor.
        after = pcm[int((recorded.speech.end_ms + 50) * RATE / 1000) :]
        before = pcm[: int((recorded.speech.start_ms - 20) * RATE / 1000)]
        for outside in (before, after):
            if "noise" in scenario.tags:
                assert -50 < rms_dbfs(outside) < -42, recorded.audio
            else:
                assert abs(rms_dbfs(outside) - LINE_FLOOR_DBFS) < 1, recorded.audio


def test_peaks_leave_headroom_and_reach_the_vad():
    for _, recorded, pcm in recordings():
        peak_dbfs = 20 * np.log10(np.abs(pcm.astype(np.int32)).max() / 32768)
        assert -8 < peak_dbfs < -6, recorded.audio


def test_a_cough_that_stops_the_reply_makes_it_wrong():
    coughs = [(turn, cough) for _, turn in turns() for cough in turn.backchannels if cough.is_sound]
    assert [cough.say for _, cough in coughs] == ["[cough]"]
    for turn, _ in coughs:
        assert turn.reply and turn.expect.reply
        again = Hearing(f"The science {turn.reply}", whole=True)
        assert judge(turn.expect.reply, again, stopped=True).failed == (STOPPED,)


def test_a_cough_is_noise_and_comes_twice():
    (pcm,) = (pcm for _, r, pcm in recordings() if r.say == "[cough]")
    loud = [level >= -20 for level in window_levels(pcm)]
    begins = [i for i in range(1, len(loud)) if loud[i] and not any(loud[max(0, i - 6) : i])]
    assert len(begins) >= 2
    burst = pcm[begins[0] * 160 :][:640].astype(np.float64)
    power = np.abs(np.fft.rfft(burst * np.hanning(len(burst)))) ** 2 + 1e-9
    # Of noise about 0.56, of a voiced sound below 0.1: geometric over arithmetic mean.
    assert np.exp(np.mean(np.log(power))) / np.mean(power) > 0.2


def test_noise_lies_20_db_below_the_voice():
    noisy = [(r, pcm) for s, r, pcm in recordings() if "noise" in s.tags]
    assert len(noisy) >= 2
    for recorded, pcm in noisy:
        assert recorded.speech
        noise_dbfs = rms_dbfs(pcm[: int((recorded.speech.start_ms - 20) * RATE / 1000)])
        voiced = [level for level in window_levels(pcm) if level >= AUDIBLE_DBFS]
        voice_dbfs = 10 * np.log10(np.mean(10 ** (np.array(voiced) / 10)))
        assert abs(voice_dbfs - noise_dbfs - 20) < 1.5, recorded.audio


def longest_silence_ms(recorded: Recorded, pcm: Pcm) -> int:
    """Between the speech bounds, in steps of 10 ms."""
    assert recorded.speech
    inside = pcm[
        int(recorded.speech.start_ms * RATE / 1000) : int(recorded.speech.end_ms * RATE / 1000)
    ]
    longest = quiet = 0
    for level in window_levels(inside):
        quiet = quiet + 10 if level < AUDIBLE_DBFS else 0
        longest = max(longest, quiet)
    return longest


def test_one_turn_of_those_played_by_default_holds_a_pause_long_enough_to_end_a_turn():
    longest_ms = {r.audio: longest_silence_ms(r, p) for s, r, p in recordings() if usual(s)}
    pauses = {audio: ms for audio, ms in longest_ms.items() if ms > 200}
    assert list(pauses) == ["table-booking/1.flac"]
    assert 400 <= pauses["table-booking/1.flac"] <= 900


def test_the_pauses_to_think_are_as_long_as_they_were_made():
    made = make_recordings()
    for _, recorded, pcm in recordings():
        pause = made["PAUSES"].get(recorded.audio)
        if pause is not None:
            # Weak sounds on either side of it are silent too.
            longest = longest_silence_ms(recorded, pcm)
            assert pause.ms - 20 <= longest <= pause.ms + 150, recorded.audio
    assert sum(p.ms >= 350 for p in made["PAUSES"].values()) >= 6


def test_every_pause_that_was_made_is_labelled_and_no_other():
    made = make_recordings()
    for scenario, recorded, pcm in recordings():
        pause = made["pause_in"](scenario.name, recorded.audio)
        assert recorded.pauses is not None, recorded.audio
        assert [p.ms for p in recorded.pauses] == pytest.approx([pause.ms] if pause else [])
        for labelled in recorded.pauses:
            inside = pcm[int(labelled.start_ms * 16) + 1 : int(labelled.end_ms * 16)]
            assert rms_dbfs(inside) < LINE_FLOOR_DBFS + 1, recorded.audio


def test_stock_pipecat_finds_nine_turns_in_ten_complete_as_the_table_says():
    table = json.loads((LIBRARY / "recordings.json").read_text(encoding="utf-8"))
    assert set(table) == {recorded.audio for _, recorded, _ in recordings()}
    turns = [(r, pcm) for _, r, pcm in recordings() if isinstance(r, UserTurn)]
    complete = [table[recorded.audio]["complete"] > 0.5 for recorded, _ in turns]
    assert sum(complete) / len(complete) >= 0.9
    for recorded, pcm in turns:
        assert recorded.speech
        p = completeness(pcm, recorded.speech.start_ms, recorded.speech.end_ms)
        assert abs(p - table[recorded.audio]["complete"]) < 0.1, recorded.audio


def test_silero_hears_each_turn_in_one_piece_but_for_its_long_pause():
    table = json.loads((LIBRARY / "recordings.json").read_text(encoding="utf-8"))
    for _, recorded, pcm in recordings():
        heard = stretches(pcm)
        assert heard == table[recorded.audio]["silero_stretches"], recorded.audio
        longest = max((p.ms for p in recorded.pauses or ()), default=0.0)
        if longest == 0 and not recorded.say.startswith("["):
            assert heard == 1, recorded.audio
        elif longest >= 300:
            assert heard == 2, recorded.audio


def usual(scenario: Scenario) -> bool:
    """Return whether it is played without names and without a tag."""
    return EXTRA not in scenario.tags


def test_every_conversation_has_a_voice_to_make_it_again():
    made = make_recordings()

    slow = {f"slow-{name}" for name in made["SLOWED"]}
    assert set(made["VOICES"]) | slow == {loaded.scenario.name for loaded in library()}
    assert set(made["PAUSES"]) <= {recorded.audio for _, recorded, _ in recordings()}


def test_missing_speech_engines_are_named_with_the_command_that_installs_them(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="not found: espeak-ng, flite; install them: apt-get ins"):
        make_recordings()["main"]([])
