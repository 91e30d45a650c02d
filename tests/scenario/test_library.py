"""Every scenario that cannot be played is refused before it is, with file, line and reason."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

import turngap.scenario.library as clips_module
from turngap.core.errors import ExitCode, InputError
from turngap.scenario.library import LoadedScenario, load_scenario, load_scenarios
from turngap.scenario.model import library_dir, library_paths, scenario_paths
from turngap.store.sound import read_sound

RATE = 16_000
GOOD = """\
name: talk
turns:
  - say: "hello"
    audio: talk/1.wav
    speech: {start_ms: 100, end_ms: 900}
  - say: "and more"
    audio: talk/2.wav
    speech: {start_ms: 100, end_ms: 900}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A library of one good scenario, `talk`, with two recordings of a second each."""
    (tmp_path / "talk").mkdir()
    tone = (8000 * np.sin(np.arange(RATE) / 10)).astype(np.int16)
    for name in ("1.wav", "2.wav"):
        soundfile.write(tmp_path / "talk" / name, tone, RATE, subtype="PCM_16")
    (tmp_path / "talk.yaml").write_text(GOOD, encoding="utf-8")
    return tmp_path


def refusal(folder: Path, text: str | None = None) -> InputError:
    path = folder / "talk.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as excinfo:
        load_scenario(path)
    assert excinfo.value.exit_code == ExitCode.BAD_INPUT
    return excinfo.value


def test_a_good_one_loads(folder: Path):
    loaded = load_scenario(folder / "talk.yaml")

    assert [t.say for t in loaded.scenario.turns] == ["hello", "and more"]
    assert loaded.clips["talk/1.wav"].duration_ms == 1000
    assert loaded.clips["talk/2.wav"].speech == loaded.scenario.turns[1].speech


def edited(old: str, new: str) -> str:
    assert GOOD.count(old) >= 1, f"nothing to replace: {old!r}"
    head, _, tail = GOOD.rpartition(old)
    return head + new + tail


# What is wrong, the file, then of the refusal: its kind, its line, and words it must hold.
FILES = [
    (
        "wrong key in a turn",
        edited('say: "and more"', 'say: "and more"\n    speach: {start_ms: 1, end_ms: 2}'),
        "scenario.unknown_key",
        7,
        [
            "turns[1].speach",
            "unknown key",
            "allowed here: say, audio, speech, pauses, calls, reply, expect, when, backchannels",
        ],
    ),
    (
        "wrong key at the top",
        "title: Talk\n" + GOOD,
        "scenario.unknown_key",
        1,
        ["title", "allowed here: name, about, topic, tags, voices, voice, turns"],
    ),
    (
        "wrong key deep inside",
        GOOD + "    expect:\n      reply:\n        anyof: [more]\n",
        "scenario.unknown_key",
        11,
        ["turns[1].expect.reply.anyof", "allowed here: any_of, all_of, forbid, regex"],
    ),
    (
        "wrong key in a backchannel",
        GOOD + "    backchannels:\n      - {say: mm, audio: talk/1.wav, reply_ms: 1, at: 2}\n",
        "scenario.unknown_key",
        10,
        ["turns[1].backchannels[0].at", "allowed here: say, audio, speech, pauses, reply_ms"],
    ),
    (
        "missing key",
        edited('  - say: "and more"\n    audio', "  - audio"),
        "scenario.invalid",
        6,
        ["turns[1].say: missing", "say, audio, speech"],
    ),
    (
        "labels of no recording",
        edited("    audio: talk/2.wav\n", ""),
        "scenario.invalid",
        6,
        ["turns[1]", "without audio a voice speaks the text", "leave out speech"],
    ),
    (
        "a sound without a recording",
        "name: talk\nturns:\n  - {say: '[cough]'}\n",
        "scenario.invalid",
        3,
        ["turns[0]", "no voice can speak '[cough]'", "audio"],
    ),
    (
        "nothing to speak",
        "name: talk\nturns:\n  - {say: '...'}\n",
        "scenario.invalid",
        3,
        ["turns[0]", "no voice can speak '...'"],
    ),
    (
        "more than a voice speaks",
        f"name: talk\nturns:\n  - {{say: {'so ' * 400}}}\n",
        "scenario.invalid",
        3,
        ["turns[0]", "at most 1000 characters a turn, found 1199"],
    ),
    (
        "more turns than a conversation has",
        "name: talk\nturns:\n" + "  - {say: hello}\n" * 1001,
        "scenario.invalid",
        2,
        ["turns", "at most 1000 items"],
    ),
    (
        "an unknown voice",
        "name: talk\nvoice: espeek\nturns:\n  - {say: hello}\n",
        "scenario.voice",
        2,
        ["there is no voice 'espeek'"],
    ),
    (
        "a wrong setting of a voice",
        "name: talk\nvoice: espeak,sped=1\nturns:\n  - {say: hello}\n",
        "backend.settings",
        2,
        ["espeak", "sped"],
    ),
    ("zero turns", "name: talk\nturns: []\n", "scenario.invalid", 2, ["turns", "at least 1 item"]),
    (
        "no turns",
        "name: talk\n",
        "scenario.invalid",
        1,
        ["turns: missing", "name, about, topic, tags"],
    ),
    ("turns no list", "name: talk\nturns: 3\n", "scenario.invalid", 2, ["turns: expected a list"]),
    (
        "turn no mapping",
        "name: talk\nturns:\n  - hello\n",
        "scenario.invalid",
        3,
        ["turns[0]: expected a mapping with the keys say, audio"],
    ),
    (
        "number for words",
        edited('say: "and more"', "say: 5"),
        "scenario.invalid",
        6,
        ["turns[1].say: expected a valid string, found 5"],
    ),
    (
        "words for a number",
        edited("start_ms: 100", "start_ms: early"),
        "scenario.invalid",
        8,
        ["turns[1].speech.start_ms: expected a valid number", "found 'early'"],
    ),
    (
        "word for a list",
        GOOD + "    expect:\n      reply: {any_of: more}\n",
        "scenario.invalid",
        10,
        ["turns[1].expect.reply.any_of: expected a list"],
    ),
    (
        "expectation of nothing",
        GOOD + "    expect:\n      reply: {}\n",
        "scenario.invalid",
        10,
        ["turns[1].expect.reply: expects nothing: give any_of, all_of, forbid or regex"],
    ),
    (
        "phrase without a word",
        GOOD + '    expect:\n      reply:\n        any_of:\n          - more\n          - "!"\n',
        "scenario.invalid",
        13,
        ["turns[1].expect.reply.any_of[1]: '!' holds no word"],
    ),
    (
        "wanted and forbidden",
        GOOD + "    expect:\n      reply:\n        all_of: [a lot more]\n        forbid: [more]\n",
        "scenario.invalid",
        12,
        ["turns[1].expect.reply.forbid[0]: 'more' is forbidden, and part of 'a lot more'"],
    ),
    (
        "no regular expression",
        GOOD + "    expect:\n      reply: {regex: (}\n",
        "scenario.invalid",
        10,
        ["turns[1].expect.reply.regex: not a regular expression"],
    ),
    (
        "a regular expression that goes back",
        GOOD + "    expect:\n      reply: {regex: '(a)\\1'}\n",
        "scenario.invalid",
        10,
        ["reply.regex: not a regular expression: backreferences are not supported"],
    ),
    (
        "a regular expression that is too long",
        GOOD + f"    expect:\n      reply: {{regex: '{'a' * 1001}'}}\n",
        "scenario.invalid",
        10,
        ["reply.regex: 1001 characters, expected at most 1000, found 'aaa"],
    ),
    (
        "more phrases than anybody writes",
        GOOD + f"    expect:\n      reply: {{any_of: [{'a, ' * 101}]}}\n",
        "scenario.invalid",
        10,
        ["reply.any_of", "at most 100 items"],
    ),
    (
        "a time beyond all time",
        GOOD + "    when: {at_ms: 1e308}\n",
        "scenario.invalid",
        9,
        ["turns[1].when.at_ms: expected less than or equal to 3600000, found 1e+308"],
    ),
    (
        "speech beyond all time",
        edited("end_ms: 900", "end_ms: 1e300"),
        "scenario.invalid",
        8,
        ["turns[1].speech.end_ms: expected less than or equal to 3600000"],
    ),
    (
        "a number that is not finite",
        GOOD + "    calls:\n      - {name: a, arguments: {x: .inf}}\n    reply: x\n",
        "scenario.not_yaml",
        10,
        ["'.inf' is not a finite number of 64 bits"],
    ),
    (
        "more problems than anybody mends",
        GOOD + "".join(f"x{i}: 1\n" for i in range(500)),
        "scenario.unknown_key",
        9,
        ["x19: unknown key"],
    ),
    (
        "tools without anything expected",
        GOOD + "    expect:\n      tools: {}\n",
        "scenario.invalid",
        10,
        ["turns[1].expect.tools: expects nothing: give all_of, forbid or none: true"],
    ),
    (
        "wrong key in a call",
        GOOD + "    expect:\n      tools:\n        all_of:\n          - {name: a, args: {}}\n",
        "scenario.unknown_key",
        12,
        ["turns[1].expect.tools.all_of[0].args", "allowed here: name, arguments"],
    ),
    (
        "a call of nothing",
        GOOD + "    expect:\n      tools: {all_of: [{arguments: {day: today}}]}\n",
        "scenario.invalid",
        10,
        ["turns[1].expect.tools.all_of[0].name: missing; keys here: name, arguments"],
    ),
    (
        "a tool with no name that one can have",
        GOOD + '    expect:\n      tools: {forbid: [{name: "the weather"}]}\n',
        "scenario.invalid",
        10,
        ["turns[1].expect.tools.forbid[0].name", "found 'the weather'"],
    ),
    (
        "an argument that JSON cannot hold",
        GOOD + "    calls:\n      - {name: a, arguments: {on: 2026-01-01}}\n    reply: x\n",
        "scenario.invalid",
        10,
        ["turns[1].calls[0].arguments.on: input was not a valid JSON value"],
    ),
    (
        "no tool and a tool",
        GOOD + "    expect:\n      tools: {none: true, all_of: [{name: a}]}\n",
        "scenario.invalid",
        10,
        ["turns[1].expect.tools: none: true stands alone"],
    ),
    (
        "an order of one",
        GOOD + "    expect:\n      tools: {in_order: true, all_of: [{name: a}]}\n",
        "scenario.invalid",
        10,
        ["turns[1].expect.tools: in_order needs two calls or more in all_of"],
    ),
    (
        "a call that is wanted and forbidden",
        GOOD
        + "    expect:\n      tools:\n        all_of: [{name: a, arguments: {x: 1}}]\n"
        + "        forbid: [{name: b}, {name: a}]\n",
        "scenario.invalid",
        12,
        ["turns[1].expect.tools.forbid[1]: a call of a is both wanted and forbidden"],
    ),
    (
        "a call that nothing is said of",
        GOOD + "    calls: [{name: a}]\n",
        "scenario.invalid",
        6,
        ["turns[1]: calls need a reply"],
    ),
    (
        "bounds in the wrong order",
        edited("{start_ms: 100, end_ms: 900}", "{start_ms: 900, end_ms: 100}"),
        "scenario.invalid",
        8,
        ["turns[1].speech", "end_ms (100) must lie after start_ms (900)"],
    ),
    (
        "label outside the recording",
        edited("end_ms: 900", "end_ms: 1000.5"),
        "scenario.label_outside",
        8,
        ["end_ms 1000.5 lies outside talk/2.wav, which lasts 1000 ms"],
    ),
    (
        "unlabelled",
        edited("    speech: {start_ms: 100, end_ms: 900}\n", ""),
        "scenario.unlabelled",
        6,
        ["talk/2.wav has no speech bounds"],
    ),
    (
        "two whens",
        GOOD + "    when: {barge_in_ms: 5, at_ms: 3}\n",
        "scenario.invalid",
        9,
        ["turns[1].when", "exactly one of after_reply_ms, barge_in_ms, at_ms"],
    ),
    (
        "barge-in on the first turn",
        GOOD.replace("    audio: talk/1.wav", "    audio: talk/1.wav\n    when: {barge_in_ms: 5}"),
        "scenario.invalid",
        5,
        ["turns[0].when.barge_in_ms", "no reply to barge into", "allowed: after_reply_ms, at_ms"],
    ),
    (
        "path that climbs out",
        edited("talk/2.wav", "../2.wav"),
        "scenario.invalid",
        7,
        ["turns[1].audio", "inside the scenario's folder", "found '../2.wav'"],
    ),
    (
        "absolute path",
        edited("talk/2.wav", "/talk/2.wav"),
        "scenario.invalid",
        7,
        ["turns[1].audio", "inside the scenario's folder"],
    ),
    (
        "missing recording",
        edited("talk/2.wav", "talk/3.wav"),
        "scenario.audio_missing",
        7,
        ["no such recording", "talk/3.wav"],
    ),
    (
        "folder for a recording",
        edited("talk/2.wav", "talk"),
        "scenario.invalid",
        7,
        ["must name a .wav or .flac file"],
    ),
    (
        "raw samples for a recording",
        edited("talk/2.wav", "talk/2.raw"),
        "scenario.invalid",
        7,
        ["must name a .wav or .flac file"],
    ),
    (
        "a name that no file can have",
        edited("talk/2.wav", '"talk/a\\0b.wav"'),
        "scenario.invalid",
        7,
        ["must name a .wav or .flac file"],
    ),
    (
        "a name longer than any file's",
        edited("talk/2.wav", "talk/" + "a" * 252 + ".wav"),
        "scenario.invalid",
        7,
        ["255"],
    ),
    (
        "a name that is too long for a file, not for a path",
        edited("talk/2.wav", "t/" + "a" * 249 + ".wav"),
        "scenario.audio_missing",
        7,
        ["no such recording"],
    ),
    ("nested without end", "[" * 1000, "scenario.not_yaml", 1, ["not YAML"]),
    (
        "name of another",
        GOOD.replace("name: talk", "name: walk"),
        "scenario.name",
        1,
        ["'walk' must equal the file's name 'talk'"],
    ),
    (
        "name not plain",
        GOOD.replace("name: talk", "name: Talk 1"),
        "scenario.invalid",
        1,
        ["name", "^[a-z0-9][a-z0-9-]*$", "found 'Talk 1'"],
    ),
    (
        "not YAML",
        GOOD + "    reply: a: b\n",
        "scenario.not_yaml",
        9,
        ["not YAML", "mapping values"],
    ),
    ("a tab", GOOD + "\treply: a\n", "scenario.not_yaml", 9, ["not YAML"]),
    ("same key twice", GOOD + "name: talk\n", "scenario.not_yaml", 9, ["duplicate key"]),
    ("two documents", GOOD + "---\nname: b\n", "scenario.not_yaml", 9, ["another document"]),
    (
        "empty",
        "",
        "scenario.not_a_mapping",
        1,
        ["expected a mapping", "name, about, topic, tags, voices, voice, turns"],
    ),
    ("a list", "- a\n", "scenario.not_a_mapping", 1, ["expected a mapping"]),
]


@pytest.mark.parametrize(
    ("text", "kind", "line", "words"), [case[1:] for case in FILES], ids=[c[0] for c in FILES]
)
def test_a_bad_file_is_refused_by_line(
    folder: Path, text: str, kind: str, line: int, words: list[str]
):
    error = refusal(folder, text)

    assert error.kind == kind
    assert str(error).startswith(f"{folder / 'talk.yaml'}:{line}: ")
    for word in words:
        assert word in str(error)


def test_every_mistake_is_named_at_once(folder: Path):
    text = GOOD.replace("audio: talk/1.wav", "audio: ../1.wav") + "    reply_to: nobody\n"

    lines = str(refusal(folder, text)).splitlines()

    at = f"{folder / 'talk.yaml'}:"
    assert [line.removeprefix(at).split(":")[0] for line in lines] == ["4", "9"]


def test_one_bad_turn_is_not_called_no_turns(folder: Path):
    error = refusal(folder, "name: talk\nturns:\n  - say: a\n    audio: /a.wav\n")

    assert len(str(error).splitlines()) == 1


def test_refusals_say_what_to_do_next(folder: Path):
    path = folder / "talk.yaml"
    unlabelled = refusal(folder, edited("    speech: {start_ms: 100, end_ms: 900}\n", ""))
    outside = refusal(folder, edited("end_ms: 900", "end_ms: 5000"))

    assert unlabelled.hint == outside.hint == f"turngap label {path}"


def test_what_label_is_to_mend_can_be_loaded_for_it(folder: Path):
    path = folder / "talk.yaml"
    for text in (edited("end_ms: 900", "end_ms: 5000"), GOOD.replace("    speech:", "    #")):
        path.write_text(text, encoding="utf-8")
        assert load_scenario(path, need_labels=False).clips["talk/2.wav"].duration_ms == 1000


def test_a_file_that_is_not_text_or_not_there(folder: Path):
    (folder / "talk.yaml").write_bytes(b"name: \xff\xfe")
    assert refusal(folder).kind == "scenario.unreadable"

    (folder / "talk.yaml").unlink()
    assert refusal(folder).kind == "scenario.unreadable"


@pytest.mark.parametrize("content", [b"", b"not audio at all", b"RIFF\x04\x00\x00\x00WAVE"])
def test_a_file_that_is_not_audio(folder: Path, content: bytes):
    (folder / "talk" / "2.wav").write_bytes(content)

    error = refusal(folder)

    assert error.kind == "scenario.not_audio"
    assert str(error).startswith(f"{folder / 'talk.yaml'}:7: ")
    assert "allowed: WAV or FLAC, one channel" in error.hint


def test_a_stereo_recording(folder: Path):
    stereo = np.zeros((RATE, 2), dtype=np.int16)
    soundfile.write(folder / "talk" / "2.wav", stereo, RATE)

    error = refusal(folder)

    assert error.kind == "scenario.not_mono"
    assert str(error).startswith(f"{folder / 'talk.yaml'}:7: ")
    assert "has 2 channels, expected 1" in str(error)
    assert "remix" in error.hint


def test_a_link_that_leads_out_of_the_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "2.wav"
    (folder / "talk" / "2.wav").rename(elsewhere)
    (folder / "talk" / "2.wav").symlink_to(elsewhere)

    error = refusal(folder)

    assert error.kind == "scenario.outside"
    assert str(error).startswith(f"{folder / 'talk.yaml'}:7: ")
    assert "outside the scenario's folder" in str(error)


def test_a_link_within_the_folder_is_fine(folder: Path):
    (folder / "talk" / "2.wav").unlink()
    (folder / "talk" / "2.wav").symlink_to("1.wav")

    assert load_scenario(folder / "talk.yaml").clips["talk/2.wav"].duration_ms == 1000


def test_one_bad_file_of_several_is_refused_before_any_is_played(folder: Path):
    (folder / "walk.yaml").write_text("name: walk\nturns: []\n", encoding="utf-8")

    with pytest.raises(InputError, match=r"walk\.yaml:2"):
        load_scenarios(scenario_paths(folder))


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
def test_every_sample_format_is_read_at_its_own_level(folder: Path, subtype: str):
    written = np.round(np.sin(np.arange(RATE) / 10) * 16384) / 32768
    soundfile.write(folder / "talk" / "2.wav", written, RATE, subtype=subtype)

    pcm = load_scenario(folder / "talk.yaml").clips["talk/2.wav"].pcm

    assert pcm.dtype == np.int16
    assert pcm.tolist() == (written * 32768).astype(int).tolist()


def test_a_recording_at_another_rate_keeps_its_length(folder: Path):
    tone = (8000 * np.sin(np.arange(44_100) / 30)).astype(np.int16)
    soundfile.write(folder / "talk" / "2.wav", tone, 44_100)

    clip = load_scenario(folder / "talk.yaml").clips["talk/2.wav"]

    assert clip.duration_ms == 1000
    assert len(clip.at_rate(RATE)) == RATE
    assert clip.at_rate(44_100) is clip.pcm


def test_scenarios_are_found_by_name_by_path_and_by_tag(folder: Path):
    tagged = GOOD.replace("name: talk", "name: walk\ntags: [smoke]")
    (folder / "walk.yaml").write_text(tagged, encoding="utf-8")
    talk, walk = folder / "talk.yaml", folder / "walk.yaml"

    assert scenario_paths(folder) == [talk, walk]
    assert scenario_paths(folder, ["walk"]) == [walk]
    assert scenario_paths(folder, [str(talk), "walk"]) == [talk, walk]
    assert scenario_paths(folder, tag="smoke") == [walk]


def test_extras_are_played_by_name_or_tag_alone(folder: Path):
    tagged = GOOD.replace("name: talk", "name: walk\ntags: [slow, extra]")
    (folder / "walk.yaml").write_text(tagged, encoding="utf-8")
    talk, walk = folder / "talk.yaml", folder / "walk.yaml"

    assert scenario_paths(folder) == [talk]
    assert scenario_paths(folder, ["walk"]) == [walk]
    assert scenario_paths(folder, tag="slow") == [walk]
    assert library_paths(folder) == [talk, walk]


def test_an_unknown_name_is_answered_with_the_known_ones(folder: Path):
    with pytest.raises(InputError, match="no scenario 'tlak'") as excinfo:
        scenario_paths(folder, ["tlak"])
    assert excinfo.value.kind == "library.unknown"
    assert "known: talk" in excinfo.value.hint


def test_nothing_to_play_is_said(folder: Path):
    with pytest.raises(InputError, match="with tag 'none'") as excinfo:
        scenario_paths(folder, tag="none")
    assert excinfo.value.kind == "library.empty"


def test_a_library_that_is_not_there(tmp_path: Path):
    with pytest.raises(InputError, match="is not a folder") as excinfo:
        library_dir(tmp_path / "none")
    assert excinfo.value.kind == "library.missing"


def test_a_backchannel_is_checked_like_a_turn(folder: Path):
    extra = "    backchannels:\n      - say: mm\n        audio: talk/3.wav\n        reply_ms: 10\n"

    error = refusal(folder, GOOD + extra)

    assert error.kind == "scenario.audio_missing"
    assert str(error).startswith(f"{folder / 'talk.yaml'}:11: ")


def test_loaded_scenarios_keep_the_order_asked_for(folder: Path):
    (folder / "walk.yaml").write_text(GOOD.replace("name: talk", "name: walk"), encoding="utf-8")

    loaded: list[LoadedScenario] = load_scenarios(scenario_paths(folder, ["walk", "talk"]))

    assert [s.scenario.name for s in loaded] == ["walk", "talk"]


def test_a_recording_that_is_named_twice_is_decoded_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    reads: list[Path] = []

    def counting(file: Path, *arguments: object, **more: object) -> object:
        reads.append(file)
        return read_sound(file, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(clips_module, "read_sound", counting)
    (folder / "talk.yaml").write_text(GOOD.replace("talk/2.wav", "talk/1.wav"), encoding="utf-8")
    assert set(load_scenario(folder / "talk.yaml").clips) == {"talk/1.wav"}
    assert len(reads) == 1


def test_recordings_that_together_take_too_much_memory_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    path = folder / "talk.yaml"
    monkeypatch.setattr(clips_module, "MAX_SAMPLES", 2 * RATE)
    assert len(load_scenarios([path])) == 1
    with pytest.raises(InputError, match="64000 samples of recordings would be loaded at once"):
        load_scenarios([path, path])
    monkeypatch.setattr(clips_module, "MAX_SAMPLES", 2 * RATE - 1)
    error = refusal(folder)
    assert error.kind == "scenario.too_long"
    assert str(error).startswith(f"{path}:7: ")


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda file: file.symlink_to(file)])
def test_a_recording_that_is_no_file_is_refused(folder: Path, make: Callable[[Path], object]):
    (folder / "talk" / "2.wav").unlink()
    make(folder / "talk" / "2.wav")
    assert refusal(folder).kind in ("scenario.not_audio", "scenario.audio_missing")
