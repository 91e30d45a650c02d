"""Reading a scenario's lines into a folder, with takes that a test makes."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from commandline import turngap_here
from made_speech import louder, room, spoken

from turngap.cli import recording
from turngap.cli.recording import bar, read_lines
from turngap.core.audio import Pcm
from turngap.core.errors import AgentError, InputError
from turngap.live import sound
from turngap.live.microphone import Take
from turngap.live.reading import ROOM_MS, Read, Reading, read_of
from turngap.scenario.label import label_file
from turngap.scenario.library import load_scenario
from turngap.scenario.parsing import read_scenario

LIBRARY = Path(__file__).parents[2] / "scenarios"
QUICK = LIBRARY / "quick-questions.yaml"
VOICE = spoken(before_ms=900, after_ms=1100)


class PlayedTakes:
    """A microphone that hears these takes, one after the other."""

    def __init__(self, *takes: Take) -> None:
        self.takes = list(takes)
        self.played: list[Pcm] = []

    def take(self, meter: object) -> Take:
        return self.takes.pop(0)

    def play(self, pcm: Pcm) -> None:
        self.played.append(pcm)


class Keys:
    """Lines of a keyboard that ends after them, and what was asked."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.asked: list[str] = []

    def __call__(self, prompt: str) -> str | None:
        self.asked.append(prompt)
        return self.lines.pop(0) + "\n" if self.lines else None


def take(pcm: Pcm = VOICE.pcm, *, lost: bool = False, spoken: bool = True) -> Take:
    return Take(pcm, lost, spoken)


def read(reading: Reading, keys: Keys, *takes: Take) -> PlayedTakes:
    microphone = PlayedTakes(*takes)
    read_lines(reading, microphone, keys)  # type: ignore
    return microphone


def test_a_take_is_cut_to_its_speech_and_some_of_the_room_and_labelled() -> None:
    cut = read_of(take())
    assert isinstance(cut, Read)
    assert cut.speech.start_ms == pytest.approx(ROOM_MS, abs=40)
    assert len(cut.pcm) / 16 - cut.speech.end_ms == pytest.approx(ROOM_MS, abs=40)
    assert cut.speech.ms == pytest.approx(VOICE.end_ms - VOICE.start_ms, abs=60)
    assert cut.warnings == ()


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (take(louder(VOICE.pcm, -30)), "very soft"),
        (take(louder(VOICE.pcm, 30)), "clipp"),
        (take(VOICE.pcm + room(len(VOICE.pcm) / 16, -32)[: len(VOICE.pcm)]), "noise"),
        (take(lost=True), "lost"),
    ],
)
def test_a_take_that_was_recorded_badly_says_why(bad: Take, why: str) -> None:
    cut = read_of(bad)
    assert isinstance(cut, Read)
    assert any(why in warning for warning in cut.warnings), cut.warnings


def test_a_take_without_speech_is_no_reading() -> None:
    assert read_of(take(room(3000), spoken=False)) != read_of(take(room(3000)))
    assert isinstance(read_of(take(room(3000))), str)


def test_a_scenario_that_was_read_is_the_same_one_in_another_voice(tmp_path: Path) -> None:
    reading = Reading(QUICK, tmp_path)
    read(reading, Keys(*[""] * 6), take(), take(), take())
    assert reading.missing == 0
    mine, theirs = load_scenario(reading.path).scenario, read_scenario(QUICK)
    text = reading.path.read_text(encoding="utf-8")
    assert mine.voices == "recorded"
    for turn, other in zip(mine.turns, theirs.turns, strict=True):
        assert (turn.say, turn.reply, turn.expect) == (other.say, other.reply, other.expect)
        assert f'say: "{turn.say}"' in text
        assert turn.speech is not None
        assert turn.pauses == ()
    info = soundfile.info(tmp_path / "quick-questions/3.flac")
    assert (info.samplerate, info.channels) == (16_000, 1)
    # The labels are those that `turngap label` finds.
    assert not any(label.changed for label in label_file(reading.path))


def test_who_stops_keeps_what_was_read_and_goes_on_there(tmp_path: Path) -> None:
    reading = Reading(QUICK, tmp_path)
    read(reading, Keys("", "", "q"), take())
    assert [turn.say for turn in read_scenario(reading.path).turns] == ["what time is it"]
    assert reading.missing == 2
    later, keys = Reading(QUICK, tmp_path), Keys("", "", "", "")
    assert [line.turn for line in later.lines()] == [2, 3]
    read(later, keys, take(), take())
    assert len(load_scenario(reading.path).scenario.turns) == 3


def test_nothing_is_written_before_a_line_is_accepted(tmp_path: Path) -> None:
    read(Reading(QUICK, tmp_path), Keys("", "q"), take())
    read(Reading(QUICK, tmp_path), Keys(), take())
    assert list(tmp_path.iterdir()) == []


def test_a_line_is_read_again_and_played_as_often_as_one_wants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reading = Reading(QUICK, tmp_path)
    soft, nothing = take(louder(VOICE.pcm, -30)), take(room(3000), spoken=False)
    microphone = read(reading, Keys("", "", "what", "p", "p", "r", "", "q"), nothing, soft, take())
    assert len(microphone.played) == 2
    said = capsys.readouterr().err
    assert "nothing was heard" in said
    assert "very soft" in said
    assert "1 of 3:  what time is it" in said
    (clip,) = load_scenario(reading.path).clips.values()
    assert np.max(np.abs(clip.pcm.astype(int))) > 2000  # the last one


def test_one_line_can_be_read_again_later(tmp_path: Path) -> None:
    read(Reading(QUICK, tmp_path), Keys(*[""] * 6), take(), take(), take())
    before = (tmp_path / "quick-questions/2.flac").read_bytes()
    again = Reading(QUICK, tmp_path, again=(2,))
    assert [line.turn for line in again.lines()] == [2]
    read(again, Keys("", ""), take(louder(VOICE.pcm, -6)))
    assert (tmp_path / "quick-questions/2.flac").read_bytes() != before
    assert len(load_scenario(again.path).scenario.turns) == 3


def test_words_over_a_reply_are_read_too_and_a_cough_is_taken_over(tmp_path: Path) -> None:
    museum = Reading(LIBRARY / "museum-visit.yaml", tmp_path)
    assert [line.file for line in museum.lines()][:2] == ["1.flac", "1-1.flac"]
    cough = Reading(LIBRARY / "cough.yaml", tmp_path)
    read(cough, Keys(*[""] * 20), *[take()] * 10)
    (extra,) = [b for turn in load_scenario(cough.path).scenario.turns for b in turn.backchannels]
    assert extra.is_sound
    assert (tmp_path / extra.audio).is_file()


@pytest.mark.parametrize("kind", ["other words", "other voices", "itself", "no line", "unread"])
def test_what_is_there_is_never_overwritten(tmp_path: Path, kind: str) -> None:
    text = QUICK.read_text(encoding="utf-8")
    source, there, again = QUICK, tmp_path / "quick-questions.yaml", ()
    if kind == "other words":
        read(Reading(QUICK, tmp_path), Keys("", "", "q"), take())
        text = there.read_text(encoding="utf-8").replace("what time", "which time")
        there.write_text(text, encoding="utf-8")
    elif kind == "other voices":
        (tmp_path / "quick-questions").mkdir()
        for file in (LIBRARY / "quick-questions").iterdir():
            (tmp_path / "quick-questions" / file.name).write_bytes(file.read_bytes())
        there.write_text(text, encoding="utf-8")
    elif kind == "itself":
        there.write_text(text, encoding="utf-8")
        source = there
    elif kind == "no line":
        again = (4,)
    else:
        again = (1,)
    before = there.read_bytes() if there.exists() else None
    with pytest.raises(InputError) as error:
        Reading(source, tmp_path, again=again)
    assert error.value.hint
    assert (there.read_bytes() if there.exists() else None) == before


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("a file", encoding="utf-8")
    with pytest.raises(InputError) as error:
        read(Reading(QUICK, tmp_path / "mine"), Keys("", ""), take())
    assert error.value.kind == "record.unwritable"


# --- the command ---


class NoDevice:
    """Stands for PortAudio, which finds no device here."""

    def __init__(self, name: str | None) -> None:
        raise AgentError("audio.no_device", "no usable microphone", hint="plug one in")


def test_the_command_records_and_says_what_to_do_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Played(PlayedTakes):
        def __init__(self, device: object) -> None:
            super().__init__(take(), take(), take())

        def __enter__(self) -> "Played":
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(sound, "PortAudioDevice", lambda name: name)
    monkeypatch.setattr("turngap.live.microphone.Microphone", Played)
    monkeypatch.setattr(recording, "_keyboard", Keys("", "", "", "", "q"))
    done = turngap_here(capsys, "record", "quick-questions", "--out", tmp_path / "mine")
    path = tmp_path / "mine" / "quick-questions.yaml"
    assert done.code == 0
    assert f"written: {path}; give the command again for 1 more" in done.err
    assert done.err.splitlines()[-1] == f"next: play it: turngap replay {path}"
    monkeypatch.setattr(recording, "_keyboard", Keys("", ""))
    done = turngap_here(capsys, "record", QUICK, "--out", tmp_path / "mine", "--json")
    assert (done.code, done.document()) == (0, {"scenario": str(path), "missing": 0})
    assert len(read_scenario(path).turns) == 3
    done = turngap_here(capsys, "record", "quick-questions", "--out", tmp_path / "mine")
    assert done.code == 2
    assert "--again 2" in done.err


def test_bad_input_and_a_missing_device_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sound, "PortAudioDevice", NoDevice)
    assert turngap_here(capsys, "record").code == 2
    assert turngap_here(capsys, "record", "no-such", "--out", tmp_path).code == 2
    done = turngap_here(capsys, "record", "quick-questions", "--out", tmp_path)
    assert done.code == 4
    assert "plug one in" in done.err
    assert list(tmp_path.iterdir()) == []


def test_devices_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class SoundDevice:
        @staticmethod
        def query_devices() -> str:
            return "  0 A microphone, ALSA (1 in, 0 out)"

    monkeypatch.setattr(sound, "_sounddevice", SoundDevice)
    done = turngap_here(capsys, "record", "--list-devices")
    assert done.code == 0
    assert "A microphone" in done.out
    document = turngap_here(capsys, "record", "--list-devices", "--json").document()
    assert document == {"devices": ["0 A microphone, ALSA (1 in, 0 out)"]}


def test_the_meter_reaches_from_a_quiet_room_to_clipping() -> None:
    assert bar(float("-inf")).startswith("......")
    assert "." not in bar(0.0)
    assert bar(-30.0).count("#") == 15
