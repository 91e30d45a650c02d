"""piper as the agent's voice, from the command line."""

from pathlib import Path

import pytest
from commandline import turngap_here

Capsys = pytest.CaptureFixture[str]


def test_a_voice_that_cannot_be_fetched_is_one_line_and_exit_code_4(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)  # between tries
    nowhere = f"tts.voices={tmp_path / 'voices'}"
    done = turngap_here(capsys, "serve", "--set", "tts=piper", "--port", "0", "--set", nowhere)
    assert done.code == 4
    assert "piper en_US-ljspeech-medium, 64 MB" in done.err
    assert "127.0.0.1:9 cannot be reached" in done.err
    assert "HF_HUB_CACHE=weights turngap fetch" in done.err
    assert "Traceback" not in done.err
