"""vLLM itself with turngap's own models, where it is installed: docs/engines.md says how."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import quiet
from shortened import first_turns

# The Python of an environment with vLLM, or its executable; or `none`, and perhaps why.
VLLM = (
    os.environ.get("TURNGAP_VLLM")
    or shutil.which("vllm")
    or "none: set TURNGAP_VLLM to the Python of an environment with it (tools/vllm-env makes one)"
)
MODELS = Path(__file__).parents[2] / "models"

PR_SET_CHILD_SUBREAPER = 36

pytestmark = [
    pytest.mark.realtime,
    pytest.mark.skipif(
        VLLM.startswith("none"), reason=f"no vLLM: {VLLM.removeprefix('none').lstrip(': ') or VLLM}"
    ),
]


def replay(model: str, out: Path) -> dict[str, Any]:
    """The document of a scenario that the models were made for."""
    serve = ["--dtype", "bfloat16", "--max-model-len", "512", "--enforce-eager"]
    settings = {
        "command": VLLM,
        "model": str(MODELS / model),
        "log": str(out / "vllm.log"),
        "serve_args": json.dumps(serve),
        "serve_env": '{VLLM_CPU_KVCACHE_SPACE = "1"}',
    }
    sets = [part for key, value in settings.items() for part in ("--set", f"llm.{key}={value}")]
    library = first_turns(out / "library", {"smart-home": 2})
    command = (sys.executable, "-m", "turngap", "replay", "--json", "--llm", "vllm")
    # Neither starvation nor the budget is what is tested here, nor how fast the agent speaks.
    measure = ("--calibration", "0", "--starved-ms", "1000", "--out", str(out / "runs"))
    measure += ("--set", "tts.speed_wpm=400", str(library))
    done = subprocess.run(
        [*command, *sets, *measure], capture_output=True, text=True, timeout=900, check=False
    )
    quiet.exited(done.returncode, done.stderr, *quiet.PLAYED)
    return json.loads(done.stdout)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No process of a server outlives its test: an orphan becomes a child of this process."""
    adopt = ctypes.CDLL(None).prctl
    adopt(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    here = psutil.Process()
    before = set(here.children(recursive=True))
    yield
    left = set(here.children(recursive=True)) - before
    adopt(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    _, alive = psutil.wait_procs(left, timeout=60)
    assert alive == []


@pytest.mark.parametrize("model", ["teacher"])
@pytest.mark.usefixtures("nothing_left")
def test_a_server_of_turngaps_own_answers_recorded_people(model: str, tmp_path: Path) -> None:
    document = replay(model, tmp_path)
    turns = document["turns"]
    assert [turn["error"] for turn in turns] == [None] * len(turns)
    replies = [turn["reply"] for turn in turns]
    with quiet.measured():
        assert {turn["outcome"] for turn in turns} <= {"answered", "late"}
        assert "the kitchen lights are off." in replies[0]
        assert "twelve minutes" in replies[1]
    for turn in turns:
        assert {"llm_request", "llm_first_token"} <= {s["name"] for s in turn["stages"]}
    # What the server says of its own time lies within what the agent waited for it.
    alone = [c for c in (turn["counts"] for turn in turns) if c.get("llm_others") == 0]
    assert alone
    for counts in alone:
        assert counts["llm_queue_ms"] >= 0
        assert counts["llm_prefill_ms"] > 0
        assert counts["llm_queue_ms"] + counts["llm_prefill_ms"] < counts["llm_ttft_ms"]
        assert counts["llm_decode_ms"] > 0
