"""The stacks `local` and `gpu` from an empty home, with their downloads from a hub on loopback.

The hub serves models of the project's own under the published names and in their shapes, so the
commands, the stack files and the download code are those that a newcomer runs.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import quiet
from commandline import ROOT
from hub import Hub, serve_published

from turngap.backends.weights import state_of
from turngap_services.loading import pinned

# The Python of an environment with vLLM, or its executable; or `none`, and perhaps why.
VLLM = os.environ.get("TURNGAP_VLLM") or shutil.which("vllm") or "none"
WHISPER = "Systran/faster-whisper-tiny.en"

pytestmark = pytest.mark.realtime


class Newcomer:
    """A home in which nothing was fetched yet, and a hub that can go down."""

    def __init__(self, home: Path, voice: Path) -> None:
        self.hub, self.runs = Hub(), home / "runs"
        serve_published(self.hub, ROOT, voice)
        with self.hub:  # for its address
            pins = self.hub.write_pins(home / "pins.toml")
            self.environment = {
                **os.environ,
                **self.hub.environment(home / "hub", HOME=str(home), TURNGAP_PINS=str(pins)),
                "COLUMNS": "200",
            }

    def replay(self, *arguments: str, hub: Hub | None) -> tuple[list[dict[str, Any]], str]:
        """The turns of one short call and what was said on stderr; `hub` None: it is down."""
        command = (sys.executable, "-m", "turngap", "replay", "phone-number", "--json")
        # Neither starvation nor the budget is what is tested here.
        measure = ("--calibration", "0", "--starved-ms", "1000", "--out", str(self.runs))
        endpoint = {} if hub is None else {"HF_ENDPOINT": hub.endpoint}
        done = subprocess.run(
            [*command, *arguments, *measure],
            capture_output=True,
            text=True,
            timeout=900,
            env={**self.environment, **endpoint},
            check=False,
        )
        quiet.exited(done.returncode, done.stderr, *quiet.PLAYED)
        return json.loads(done.stdout)["turns"], done.stderr


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory, speaking_voice: Path) -> Newcomer:
    return Newcomer(tmp_path_factory.mktemp("home"), speaking_voice)


def answered(turns: list[dict[str, Any]]) -> None:
    """Nothing failed, and somebody was heard and answered: on a busy machine not in every turn."""
    assert [turn["error"] for turn in turns] == [None] * len(turns)
    assert any(turn["reply"] and turn["transcript"] for turn in turns)


@pytest.mark.unhurried
def test_local_fetches_what_it_needs_and_runs_without_the_hub_from_then_on(
    newcomer: Newcomer,
) -> None:
    # No server of this machine's may answer in place of the project's own model.
    local = ("--agent", "local", "--set", "llm.ports=[]")
    with newcomer.hub as hub:
        turns, said = newcomer.replay(*local, hub=hub)
    answered(turns)
    assert f"{WHISPER} at " in said
    assert "licence: MIT" in said
    asked = len(hub.asked)
    assert asked
    turns, said = newcomer.replay(*local, hub=None)
    answered(turns)
    assert "fetch" not in said
    assert len(hub.asked) == asked
    _talks(newcomer, *local)


def _talks(newcomer: Newcomer, *arguments: str) -> None:
    """`talk` serves its page, with the hub down."""
    command = (sys.executable, "-m", "turngap", "talk", "--no-browser", "--port", "0")
    process = subprocess.Popen(
        [*command, *arguments, "--out", str(newcomer.runs)],
        stderr=subprocess.PIPE,
        text=True,
        env=newcomer.environment,
    )
    try:
        assert process.stderr is not None
        lines: Iterator[str] = iter(process.stderr.readline, "")
        line = next(line for line in lines if line.startswith("talk to local at http://"))
        page = next(word for word in line.split() if word.startswith("http://"))
        with urlopen(f"{page}/api/about", timeout=60) as answer:
            assert json.load(answer)["agent"] == "local"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(VLLM.startswith("none"), reason="no vLLM")
def test_gpu_runs_on_a_cpu_and_needs_no_hub_from_then_on(
    newcomer: Newcomer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = {
        "stt.device": "cpu",
        "llm.nice": "0",  # it has the machine to itself
        "llm.command": VLLM,
        "llm.serve_args": json.dumps(["--max-model-len", "512", "--enforce-eager"]),
        "llm.serve_env": '{VLLM_CPU_KVCACHE_SPACE = "1"}',
        "llm.log": str(tmp_path / "vllm.log"),
    }
    given = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    with newcomer.hub as hub:
        turns, said = newcomer.replay("--agent", "gpu", *given, hub=hub)
    answered(turns)
    assert "Qwen/Qwen3-0.6B at " in said
    assert "Systran/faster-whisper-small.en at " in said
    # A second vLLM would take a minute: what it would load is there, and its digests are right.
    monkeypatch.setenv("TURNGAP_PINS", newcomer.environment["TURNGAP_PINS"])
    monkeypatch.setenv("HF_HUB_CACHE", newcomer.environment["HF_HUB_CACHE"])
    for kind, name in (("llm", "Qwen/Qwen3-0.6B"), ("whisper", "small.en")):
        wanted = pinned(kind, name)
        assert wanted is not None
        assert state_of(wanted).complete
