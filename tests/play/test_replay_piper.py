"""piper as the agent's voice, from the command line."""

from pathlib import Path

import pytest
from commandline import turngap_here

Capsys = pytest.CaptureFixture[str]


def test_a_voice_that_is_not_there_is_one_line_and_exit_code_4(
    tmp_path: Path, capsys: Capsys
) -> None:
    nowhere = f"tts.voices={tmp_path / 'voices'}"
    done = turngap_here(capsys, "serve", "--tts", "piper", "--port", "0", "--set", nowhere)
    assert done.code == 4
    assert "no piper voice 'en_US-lessac-medium'" in done.err
    assert "python -m piper.download_voices" in done.err
    assert "Traceback" not in done.err
