"""A language model's server that fails while a conversation runs, from the command line."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_openai import FakeOpenAI, serving

pytestmark = [pytest.mark.realtime, pytest.mark.unhurried]

REPLY = ("It is ten past two, ", "and the sun is shining ", "over the whole ", "of the town.")


def replay(fake: FakeOpenAI, out: Path) -> tuple[int, dict[str, Any], str]:
    """Exit code, document and stderr of three turns."""
    command = (*(sys.executable, "-m", "turngap", "replay", "quick-questions", "--json"),)
    model = ("--llm", "vllm", "--set", f"llm.base_url={fake.base_url}")
    # Starvation is not what is tested here, nor how fast the agent speaks.
    measure = ("--calibration", "0", "--starved-ms", "1000", "--out", str(out))
    # A pause that a busy machine makes ends no turn, or its replies would be counted otherwise.
    measure += ("--set", "tts.speed_wpm=400", "--set", "turn.hold_ms=1000")
    done = subprocess.run(
        [*command, *model, *measure], capture_output=True, text=True, timeout=600, check=False
    )
    return done.returncode, json.loads(done.stdout), done.stderr


# How the server dies in the middle of the second reply and refuses the third, and what is said.
FATES: dict[str, tuple[dict[str, Any], str, int, str]] = {
    "breaks off": (
        {},
        "Connection error. peer closed connection",
        500,
        "the server's log says why",
    ),
    "ends in order": (
        {"dies_in_order": True},
        "the server ended its reply in the middle",
        401,
        "put the right key in its environment variable",
    ),
}


def test_a_server_dies_in_mid_reply_and_refuses_the_next(tmp_path: Path) -> None:
    def play(fate: str) -> tuple[int, dict[str, Any], str]:
        dying, _, status, _ = FATES[fate]
        fates = {2: {"dies_after": 2, **dying}, 3: {"status": status}}
        with serving(FakeOpenAI(words=REPLY, in_turn=fates)) as fake:
            return replay(fake, tmp_path / fate)

    with ThreadPoolExecutor() as pool:
        for fate, played in zip(FATES, pool.map(play, FATES), strict=True):
            the_turns_say_so(fate, *played, tmp_path / fate)


def the_turns_say_so(fate: str, code: int, document: dict[str, Any], said: str, out: Path) -> None:
    _, reason, status, remedy = FATES[fate]
    assert code == 4, said
    first, second, third = document["turns"]
    assert first["outcome"] != "error"
    assert first["error"] is None
    # What there is of the reply was heard, so that there is a gap; it is no answer all the same.
    assert (second["outcome"], second["reply"]) == ("error", "".join(REPLY[:2]).strip())
    assert second["gap_ms"] is not None
    assert reason in second["error"]
    assert "see that its server runs" in second["error"]
    # Nothing of this one was heard.
    assert (third["outcome"], third["gap_ms"]) == ("error", None)
    assert str(status) in third["error"]
    assert remedy in third["error"]
    assert "as the test wants it" in third["why_no_gap"]
    (line,) = [line for line in said.splitlines() if line.startswith("error:")]
    assert "the agent failed in 2 of 3 turns, first in quick-questions, turn 2" in line
    assert reason in line
    assert "Traceback" not in said
    (run,) = out.iterdir()
    assert len((run / "turns.jsonl").read_text(encoding="utf-8").splitlines()) == 3
