"""piper as the agent's voice, from the command line."""

from pathlib import Path

import pytest
from commandline import only_run, turngap_here, turns_on_disk

Capsys = pytest.CaptureFixture[str]

# Starvation is not what is tested here.
REPLAY = ("replay", "--tts", "piper", "--calibration", "0", "--starved-ms", "1000")


@pytest.mark.realtime
def test_it_speaks_to_recorded_people_offline(
    tmp_path: Path, speaking_voice: Path, capsys: Capsys
) -> None:
    voice = f"tts.voice={speaking_voice}"
    done = turngap_here(
        capsys, *REPLAY, "quick-questions", "--set", voice, "--out", tmp_path, "--json"
    )
    assert done.code in (0, 1, 3), done.err  # 1: late, which a starved machine is
    turns = done.document()["turns"]
    assert {turn["outcome"] for turn in turns} <= {"answered", "late"}
    for turn in turns:
        assert {"tts_first_audio", "tts_first_audible"} <= {s["name"] for s in turn["stages"]}
    for turn in turns_on_disk(only_run(tmp_path)):
        # The voice begins each sentence with a pause of 90 ms and the edge of a sound.
        assert turn["counts"]["lead_cut_ms"] > 80


def test_a_voice_that_is_not_there_is_one_line_exit_code_4_and_a_run(
    tmp_path: Path, capsys: Capsys
) -> None:
    nowhere = f"tts.voices={tmp_path / 'voices'}"
    done = turngap_here(
        capsys, *REPLAY, "quick-questions", "--set", nowhere, "--out", tmp_path / "runs"
    )
    assert done.code == 4
    assert "no piper voice 'en_US-lessac-medium'" in done.err
    assert "python -m piper.download_voices" in done.err
    assert "Traceback" not in done.err
    assert (only_run(tmp_path / "runs") / "run.json").is_file()
