"""Extras that `./run` installs for the agent that a command names."""

import pytest

from turngap.backends import Need, specs
from turngap.cli.extras import main


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only turngap's base is installed."""
    brought = {"faster_whisper", "piper", "anthropic", "libcublas.so.12"}
    monkeypatch.setattr(Need, "met", lambda need: need.name not in brought)


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        ("talk --agent local", ["whisper", "piper"]),
        ("replay smart-home --agent=local --json", ["whisper", "piper"]),
        ("replay --agent local --set tts=espeak", ["whisper"]),
        ("replay --agent local --set seed=1 --set marks=false", ["whisper", "piper"]),
        ("serve --agent gpu", ["whisper", "cuda", "piper"]),
        ("serve --agent gpu --set stt.device=cpu", ["whisper", "piper"]),
        ("replay --llm anthropic", ["anthropic"]),
        ("compare --llm small --llm b=anthropic,speed=fast", ["anthropic"]),
        ("replay --agent embedded", []),
        ("replay --agent", []),
        ("backends", []),
    ],
)
def test_an_agent_brings_what_its_engines_lack(
    command: str, needs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(command.split())
    lines = capsys.readouterr().out.splitlines()
    assert lines[:1] == ([",".join(needs)] if needs else [])
    assert all(line.startswith("about ") and line.endswith(" MB") for line in lines[1:])


@pytest.mark.parametrize("agent", ["nobody", "ws://127.0.0.1:1/ws", "missing.toml"])
def test_what_is_no_agent_of_ours_is_left_to_the_command(
    agent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["replay", "--agent", agent])
    assert capsys.readouterr().out == ""


def test_every_extra_that_a_backend_names_has_a_size() -> None:
    for spec in specs():
        for need in (*spec.requires, *spec.on_a_card, *spec.speaks_with):
            assert (need.extra_mb > 0) == bool(need.extra) == ("turngap[" in need.remedy)
