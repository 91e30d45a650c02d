"""`turngap doctor`: what this machine can run, and what that would fetch."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commandline import ROOT, turngap_here
from hub import VOICE, Hub

from turngap.backends import Need
from turngap.core.clock import ms_to_ns
from turngap.play import doctor
from turngap.testing import ManualClock

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as hub:
        hub.use(monkeypatch, tmp_path / "hub")
        hub.add_folder("Systran/faster-whisper-small.en", ROOT / "models/whisper")
        hub.add("rhasspy/piper-voices", {VOICE: b"voice", f"{VOICE}.json": b"{}"})
        monkeypatch.setenv("TURNGAP_PINS", str(hub.write_pins(tmp_path / "pins.toml")))
        yield hub


def found(capsys: Capsys) -> dict[str, Any]:
    """The checks by name. The timers' depends on how busy the machine is."""
    checks = turngap_here(capsys, "doctor", "--json").document()
    return {check["name"]: check for check in checks}


def test_each_agent_says_what_it_would_fetch_and_nothing_is_asked(
    hub: Hub, tmp_path: Path, capsys: Capsys
) -> None:
    checks = found(capsys)
    assert checks["agent embedded"]["downloads"] == []
    downloads = {each["name"]: each for each in checks["agent gpu"]["downloads"]}
    whisper = downloads["whisper small.en"]
    assert not whisper["here"]
    assert whisper["pinned"]
    assert whisper["licence"] == "MIT"
    assert whisper["bytes"] == sum(f.stat().st_size for f in (ROOT / "models/whisper").iterdir())
    assert whisper["pins"] == str(tmp_path / "pins.toml")
    assert hub.asked == []
    assert str(tmp_path / "hub") in checks["disk"]["detail"]


def test_what_was_fetched_is_here(hub: Hub, capsys: Capsys) -> None:
    done = turngap_here(capsys, "fetch", "piper")
    assert done.code == 0
    (piper,) = [d for d in found(capsys)["agent gpu"]["downloads"] if d["name"].startswith("piper")]
    assert piper["here"]
    shown = turngap_here(capsys, "doctor").out
    assert "here: piper en_US-ljspeech-medium, 1 kB" in shown
    assert "to fetch: whisper small.en, 3 MB (MIT)" in shown


@pytest.mark.parametrize("card", [(), ("NVIDIA A, 8 GiB, 570",)])
def test_an_agent_that_wants_a_card_is_lacking_without_one(
    card: tuple[str, ...], hub: Hub, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "cards", lambda: card)
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = found(capsys)
    lacking = checks["agent gpu"]
    assert not lacking["ok"]
    assert not lacking["needed"], "turngap's own agent runs without it"
    if card:
        assert card[0] in checks["card"]["detail"]
        assert "needs the command vllm" in lacking["detail"]
    else:
        assert "CUDA card" in lacking["detail"]
        assert "stt.device=cpu" in lacking["remedy"]


def test_all_that_an_agent_lacks_is_named_at_once(
    hub: Hub, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = {"faster_whisper", "libcublas.so.12", "piper", "vllm"}
    monkeypatch.setattr(Need, "met", lambda need: need.name not in lacking)
    monkeypatch.setattr(doctor, "cards", lambda: ())
    check = found(capsys)["agent gpu"]
    for name in (*lacking, "CUDA card"):
        assert name in check["detail"]
    assert check["remedy"].startswith(
        "pip install 'turngap[whisper,cuda,piper]' (in a checkout, `./run talk --agent gpu` "
    )
    assert "llm.base_url" in check["remedy"]
    assert "stt.device=cpu" in check["remedy"]


@pytest.mark.parametrize("late_ms", [0, 50])
def test_a_busy_machine_is_told_and_no_failure(
    late_ms: float, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(ManualClock):
        at_ns = 0

        def now_ns(self) -> int:
            return self.at_ns

        async def sleep_until_ns(self, deadline_ns: int) -> None:
            self.at_ns = deadline_ns + ms_to_ns(late_ms)

    monkeypatch.setattr(doctor, "MonotonicClock", lambda **_: Late())
    monkeypatch.setattr(doctor, "stack_files", dict)
    done = turngap_here(capsys, "doctor", "--json")
    (timers,) = [check for check in done.document() if check["name"] == "timers"]
    assert done.code == 0
    assert timers["ok"] == (not late_ms)
    assert ("busy" in timers["remedy"]) == bool(late_ms)


def test_weights_that_are_not_pinned_are_called_so(
    hub: Hub, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stack = tmp_path / "mine.toml"
    text = (ROOT / "services/turngap_services/stacks/gpu.toml").read_text(encoding="utf-8")
    stack.write_text(text.replace('"small.en"', '"somebody/whisper"'), encoding="utf-8")
    monkeypatch.setattr(doctor, "stack_files", lambda: {str(stack): stack})
    shown = turngap_here(capsys, "doctor").out
    assert (
        "to fetch: whisper somebody/whisper, size not known (licence not known here); "
        "digest not pinned" in shown
    )


def test_a_driver_that_does_not_answer_is_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("nvidia-smi", timeout)

    doctor.cards.cache_clear()
    monkeypatch.setattr(subprocess, "run", stuck)
    try:
        assert doctor.cards() == ()
    finally:
        doctor.cards.cache_clear()
