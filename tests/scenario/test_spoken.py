"""Turns without a recording are spoken by an installed voice, labelled, and called synthetic."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import soundfile
from commandline import SCENARIOS, only_run, turngap_here
from virtual_agents import VirtualAgents

from turngap.backends import BackendSettings, BackendSpec, Need, Weights
from turngap.backends.weights import hub_cache
from turngap.core.audio import AUDIBLE_DBFS, Pcm, audible_onset, rms_dbfs
from turngap.core.errors import AgentError, ExitCode, InputError
from turngap.scenario import spoken
from turngap.scenario.label import label_file
from turngap.scenario.library import LoadedScenario, load_scenario
from turngap.store.runs import read_run
from turngap.testing.agent import Reply, Script

RATE = 22_050
WORD_MS, PAUSE_MS, LEAD_MS = 300, 250, 70


class Settings(BackendSettings):
    louder: float = 1.0


@dataclass
class FakeVoice:
    """Says a tone for each word, with a pause at each comma, and counts what it was asked for."""

    asked: list[str] = field(default_factory=list[str])

    def speak(self, settings: Settings, text: str) -> tuple[Pcm, int]:
        self.asked.append(text)
        pieces = [np.zeros(LEAD_MS * RATE // 1000)]
        for word in text.split():
            tone = np.sin(np.arange(WORD_MS * RATE // 1000) / 10)
            pieces.append(3000 * settings.louder * tone * (word != "(hush)"))
            pieces.append(np.zeros(PAUSE_MS * RATE // 1000 if word.endswith(",") else 0))
        return np.concatenate(pieces).astype(np.int16), RATE

    def spec(self, name: str, *requires: Need, weights: Weights | None = None) -> BackendSpec:
        return BackendSpec(
            name=name,
            kind="tts",
            settings_type=Settings,
            create=lambda *_: None,
            speaks_with=requires,
            weights=lambda _: weights,
            speak=self.speak,
        )


Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    def install(*found: BackendSpec) -> None:
        monkeypatch.setattr(spoken, "specs", lambda: found)

    return install


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "turngap" / "spoken"


@pytest.fixture
def voice(install: Install) -> FakeVoice:
    voice = FakeVoice()
    install(voice.spec("tones"))
    return voice


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def written(text: str) -> Path:
        file = tmp_path / "mine.yaml"
        file.write_text(f"name: mine\n{text}", encoding="utf-8")
        return file

    return written


Written = Callable[[str], Path]
TWO = "turns:\n  - say: hello, you\n  - say: and again\n"


def test_text_is_spoken_and_labelled_to_the_sample(voice: FakeVoice, written: Written):
    loaded = load_scenario(written(TWO))
    assert loaded.voice == "tones"
    first, second = loaded.scenario.turns
    clip = loaded.clips[first.audio]
    assert first.speech is not None
    assert first.speech == clip.speech
    assert first.speech.start_ms == 120
    assert first.speech.end_ms == pytest.approx(120 + 2 * WORD_MS + PAUSE_MS, abs=1)
    assert first.speech.end_error_ms == pytest.approx(0, abs=1)
    assert first.pauses is not None
    (pause,) = first.pauses
    assert pause.ms == pytest.approx(PAUSE_MS, abs=1)
    assert second.pauses == ()
    assert clip.duration_ms == pytest.approx(first.speech.end_ms + 200, abs=1)


def test_it_has_the_level_and_the_floor_of_the_shipped_recordings(
    voice: FakeVoice, written: Written
):
    loaded = load_scenario(written(TWO))
    clip = loaded.clips["1"]
    assert 20 * np.log10(np.abs(clip.pcm.astype(float)).max() / 32768) == pytest.approx(-7, abs=0.1)
    lead = clip.pcm[: 110 * RATE // 1000]
    assert rms_dbfs(lead) == pytest.approx(-58, abs=1)
    assert audible_onset(lead, RATE, AUDIBLE_DBFS) is None


def test_a_text_is_spoken_once(voice: FakeVoice, written: Written):
    once = load_scenario(written(TWO))
    again = load_scenario(written(TWO))
    assert voice.asked == ["hello, you", "and again"]
    assert again.content_hash() == once.content_hash()
    assert np.array_equal(again.clips["1"].pcm, once.clips["1"].pcm)


@pytest.mark.parametrize("home", [None, "/dev/null"])
def test_without_a_home_texts_are_spoken_and_nothing_is_said_to_be_kept(
    voice: FakeVoice,
    written: Written,
    home: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    told: list[str] = []
    monkeypatch.setattr(spoken, "say_wait", told.append)
    load_scenario(written(TWO))
    assert told == ["tones speaks the texts without a recording", f"it is kept in {spoken.cache()}"]

    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    if home is not None:
        monkeypatch.setenv("HOME", home)
    elif os.getuid() == 0:  # who can make that folder
        monkeypatch.setattr("turngap.backends.weights._NO_HOME", Path("/dev/null"))
    monkeypatch.chdir(tmp_path)
    told.clear()
    load_scenario(written(TWO))
    assert told[1] == f"it is not kept: {spoken.cache()} cannot be written to"
    assert len(voice.asked) == 4
    assert hub_cache().is_absolute()
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("~")]


def test_an_edited_text_is_spoken_anew_and_is_another_scenario(voice: FakeVoice, written: Written):
    before = load_scenario(written(TWO)).content_hash()
    after = load_scenario(written(TWO.replace("and again", "and once more")))
    assert voice.asked[2:] == ["and once more"]
    assert after.content_hash() != before


def test_another_way_of_speaking_is_another_scenario(voice: FakeVoice, written: Written):
    file = written(f"voice: tones\n{TWO}")
    before = load_scenario(file)
    for take in spoken.cache().iterdir():  # as another version of the engine would speak
        pcm, rate = soundfile.read(take, dtype="int16")
        soundfile.write(take, pcm[: -rate // 20], rate)
    assert load_scenario(file).content_hash() != before.content_hash()


def test_a_scenario_names_its_voice_and_how_it_speaks(voice: FakeVoice, written: Written):
    loaded = load_scenario(written(f"voice: tones,louder=2\n{TWO}"))
    assert loaded.voice == "tones,louder=2"
    load_scenario(written(TWO))
    assert len(voice.asked) == 4  # the way it speaks is part of what is kept


def test_what_is_damaged_in_the_cache_is_spoken_again(
    voice: FakeVoice, written: Written, cached: Path
):
    load_scenario(written(TWO))
    for file in cached.iterdir():
        file.write_bytes(b"spoiled")
    load_scenario(written(TWO))
    assert len(voice.asked) == 4
    load_scenario(written(TWO))
    assert len(voice.asked) == 4


def test_without_a_cache_it_is_spoken_each_time(voice: FakeVoice, written: Written, cached: Path):
    cached.parent.parent.write_text("a file where a folder should be")
    for n in (2, 4):
        assert set(load_scenario(written(TWO)).clips) == {"1", "2"}
        assert len(voice.asked) == n


@pytest.fixture
def mixed(written: Written, tmp_path: Path) -> Path:
    shutil.copytree(SCENARIOS / "quick-questions", tmp_path / "quick-questions")
    return written(
        "voices: recorded\n"
        "turns:\n"
        "  - say: what time is it\n"
        "    audio: quick-questions/1.flac\n"
        "    speech: {start_ms: 120, end_ms: 900}\n"
        "  - say: and again\n"
        "    when: {barge_in_ms: 300}\n"
        "    backchannels:\n"
        "      - {say: oh yes, reply_ms: 500}\n"
    )


def test_recorded_and_spoken_turns_stand_in_one_scenario(voice: FakeVoice, mixed: Path):
    loaded = load_scenario(mixed)
    assert set(loaded.clips) == {"quick-questions/1.flac", "2", "2-1"}
    first, second = loaded.scenario.turns
    assert first.speech is not None
    assert (first.speech.end_ms, first.pauses) == (900, None)
    assert second.when.barge_in_ms == 300
    assert second.backchannels[0].speech is not None
    assert loaded.scenario.voices == "synthetic"


def test_labelling_leaves_spoken_turns_alone(voice: FakeVoice, mixed: Path):
    labelled = label_file(mixed, only_missing=True)
    assert labelled == []
    assert voice.asked == []


def test_a_scenario_of_recordings_alone_needs_no_voice(install: Install):
    install()
    loaded = load_scenario(SCENARIOS / "quick-questions.yaml")
    assert isinstance(loaded, LoadedScenario)
    assert loaded.voice is None


def test_the_first_voice_that_is_here_speaks(install: Install, written: Written):
    missing = Need("module", "no_such_module", "pip install it")
    unfetched = Weights("a voice", "somebody/voices", "main")
    fetching, lacking, here = FakeVoice(), FakeVoice(), FakeVoice()
    install(
        fetching.spec("fetching", weights=unfetched), lacking.spec("lacking", missing),
        here.spec("here"), FakeVoice().spec("later"),
    )  # fmt: skip
    assert load_scenario(written(TWO)).voice == "here"
    assert len(here.asked) == 2


@pytest.mark.parametrize(("named", "line"), [("", 1), ("voice: lacking\n", 2)])
def test_without_a_voice_it_is_said_what_installs_one(
    install: Install, written: Written, named: str, line: int
):
    install(
        FakeVoice().spec("lacking", Need("module", "no_such_module", "pip install 'it[voice]'"))
    )
    with pytest.raises(InputError) as e:
        load_scenario(written(named + TWO))
    assert e.value.kind == "scenario.no_voice"
    assert e.value.exit_code == ExitCode.BAD_INPUT
    assert f"mine.yaml:{line}: " in e.value.message
    assert "pip install 'it[voice]'" in e.value.hint


def test_a_text_for_which_nothing_is_heard_is_refused(voice: FakeVoice, written: Written):
    with pytest.raises(InputError, match=r"mine\.yaml:3: the voice tones says nothing for .*hush"):
        load_scenario(written("turns:\n  - say: (hush)\n"))


def test_a_voice_that_fails_names_the_line(install: Install, written: Written):
    def fail(*_: object) -> tuple[Pcm, int]:
        raise AgentError("tts.broken", "it broke", hint="mend it")

    voice = FakeVoice()
    voice.speak = fail  # type: ignore[method-assign]
    install(voice.spec("tones"))
    with pytest.raises(AgentError, match=r"mine\.yaml:3: it broke"):
        load_scenario(written(TWO))


@pytest.mark.parametrize("named", ["espeak,speed_wpm=200", "piper,voice={speaking_voice}"])
def test_the_engines_that_ship_speak(named: str, written: Written, speaking_voice: Path):
    pytest.importorskip("piper" if "piper" in named else "espeakng_loader")
    text = "voice: " + named.format(speaking_voice=speaking_voice) + "\n"
    loaded = load_scenario(written(f"{text}turns:\n  - say: a large latte please\n"))
    (turn,) = loaded.scenario.turns
    assert turn.speech is not None
    assert 500 < turn.speech.ms < 4000


def test_a_conversation_of_text_alone_is_played_and_called_synthetic(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    written: Written,
    voice: FakeVoice,
    virtual_agents: VirtualAgents,
):
    url = virtual_agents.url_of(Script(replies=(Reply(delay_ms=400),), hold_ms=300))
    done = turngap_here(
        capsys, "replay", written(TWO), "--agent", url, "--calibration", "0",
        "--out", tmp_path / "runs",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "synthetic voices" in done.out
    assert done.err.count("tones speaks the texts without a recording") == 1
    run = read_run(only_run(tmp_path / "runs"))
    assert [turn.outcome for turn in run.turns] == ["answered", "answered"]
    assert run.turns[0].gap_ms == pytest.approx(400, abs=5)
    assert len(run.turns[0].pauses or ()) == 1
    assert run.record.voices == {"mine": "tones"}
    assert "synthetic voices" in run.record.stand_ins
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "spoke turns without a recording" in page


def test_a_replay_without_a_voice_exits_with_2_and_stores_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: Written, install: Install
):
    install()
    done = turngap_here(
        capsys, "replay", written(TWO), "--agent", "ws://127.0.0.1:9/", "--out", tmp_path / "runs"
    )
    assert done.code == 2
    assert "spoken by a voice" in done.err
    assert not (tmp_path / "runs").exists()
