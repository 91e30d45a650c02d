"""Somebody else's pipecat bot, without turngap inside and with its marks in two lines."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from commandline import ROOT, turngap

from turngap.core.stages import UNATTRIBUTED, USUAL_MARKS

pytestmark = pytest.mark.realtime


@contextmanager
def bot(*flags: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(ROOT / "examples" / "pipecat_bot.py"), "--port", str(port)]
    process = subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL)
    try:
        _wait_until_it_listens(port)
        yield f"ws://127.0.0.1:{port}/ws"
    finally:
        process.terminate()
        process.wait(10)


def _wait_until_it_listens(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the bot does not listen")


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, list[dict[str, Any]]]:
    """The turns of a bot without marks and of one with them, played at the same time."""

    def replay(marks: bool) -> list[dict[str, Any]]:
        out = tmp_path_factory.mktemp("runs")
        with bot(*(["--marks"] if marks else [])) as url:
            done = turngap(
                "replay", "quick-questions", "--agent", url, "--calibration", "0",
                "--out", out, "--json",
            )  # fmt: skip
        assert done.code in (0, 3), done.err
        return done.document()["turns"]

    with ThreadPoolExecutor() as pool:
        return dict(zip((False, True), pool.map(replay, (False, True)), strict=True))


@pytest.mark.parametrize("marks", [False, True])
def test_a_bot_is_measured_as_it_is_and_explained_with_marks(
    marks: bool, replayed: dict[bool, list[dict[str, Any]]]
) -> None:
    turns = replayed[marks]
    assert len(turns) == 3
    for turn in turns:
        assert turn["outcome"] in ("answered", "late")
        assert turn["gap_ms"] > 300  # 200 of VAD and 100 of hold lie in it
        assert sum(s["ns"] for s in turn["stages"]) == turn["gap_ns"]
        names = [stage["name"] for stage in turn["stages"]]
        if marks:
            assert names == list(USUAL_MARKS[1:])
            assert turn["stages"][0]["ms"] > 150
        else:
            assert names == [UNATTRIBUTED, "agent_onset"]
            assert turn["stages"][0]["ms"] > 300
