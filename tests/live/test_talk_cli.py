"""`turngap talk` and `turngap serve` on the command line."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from commandline import turngap_here

from turngap.caller.connection import Line, open_line
from turngap.caller.dialects.pipecat import PipecatSession
from turngap.cli import main
from turngap.cli.serving import Where, listen, remarks
from turngap.clocks import MonotonicClock
from turngap.core.errors import AgentError

# Nothing listens there.
URL = "ws://127.0.0.1:1/ws"
# Nothing here depends on how long this takes; it only ends a test that hangs.
PATIENCE_S = 60.0


def ended_with(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command that does not get as far as serving."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as left:
        patch.setattr(sys, "argv", ["turngap", *arguments])
        patch.setattr("turngap.agent.server.serve", lambda *_: pytest.fail("it is served"))
        patch.setenv("COLUMNS", "200")
        main()
    return int(left.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--no-keep", "--out", "x"), "--no-keep stores nothing"),
        (("--token", "short"), "the token has 5 characters"),
        (("--origin", "talk.example.org"), "is not an origin"),
        (("--offer", "nonesuch"), "no llm backend named 'nonesuch'"),
        (("--offer", "small"), "have the same name"),
        (("--agent", "nonesuch"), "no agent named 'nonesuch'"),
    ],
)
@pytest.mark.parametrize("command", ["talk", "serve"])
def test_what_cannot_be_served_is_one_clear_line(
    command: str, arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = ended_with(capsys, command, "--port", "0", *arguments)
    assert code == 2
    assert says in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--drain", "-1"), "--drain -1.0: expected a number from 0 to 3600"),
        (("--drain", "nan"), "--drain nan: expected a number from 0 to 3600"),
    ],
)
def test_a_drain_that_cannot_be_had_is_one_clear_line(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = ended_with(capsys, "serve", "--port", "0", *arguments)
    assert code == 2
    assert says in said


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("serve", "--agent", URL), 2, f"turngap talk --agent {URL}"),
        (("talk", "--agent", URL), 4, f"nothing can be reached at {URL}"),
        (("talk", "--agent", URL, "--llm", "sim"), 2, "its engines and marks cannot be set"),
        (("talk", "--agent", URL, "--dialect", "klingon"), 2, "no dialect 'klingon'"),
        (("talk", "--agent", URL, "--header", "X: ${TURNGAP_NONE}"), 2, "TURNGAP_NONE"),
        (("talk", "--dialect", "pipecat"), 2, "embedded is not a URL"),
    ],
)
def test_an_agent_that_cannot_be_talked_to_is_one_clear_line(
    arguments: tuple[str, ...], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, said = ended_with(capsys, *arguments, "--port", "0")
    assert ended == code
    assert says in said


def test_the_token_is_in_the_address_that_is_printed_and_so_are_its_limits() -> None:
    here = Where("127.0.0.1", 7860, None)
    assert here.page == "http://127.0.0.1:7860"
    assert here.socket("/ws") == "ws://127.0.0.1:7860/ws"
    assert remarks(here, 3) == [
        "up to 3 conversations at once; others get an answer that it is full"
    ]
    assert remarks(here, 1) == [
        "up to 1 conversation at once; others get an answer that it is full"
    ]
    open_ = Where("0.0.0.0", 7860, "t0ken-t0ken-t0ken")
    assert open_.page == "http://127.0.0.1:7860/?token=t0ken-t0ken-t0ken"
    assert open_.socket("/ws").endswith("/ws?token=t0ken-t0ken-t0ken")
    assert "https" in " ".join(remarks(open_, 3))
    # What listens at one address does not at localhost; the page there asks for the token again.
    there = " ".join(remarks(Where("192.168.1.5", 7860, "t0ken-t0ken-t0ken"), 3))
    assert "ssh -L 7860:192.168.1.5:7860 THIS-MACHINE" in there
    assert "http://localhost:7860/?token=" in there


def test_serve_takes_no_running_agent_and_its_help_offers_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(sys, "argv", ["turngap", "serve", "--help"])
        main()
    assert "ws://" not in capsys.readouterr().out


def test_ctrl_c_is_the_ordinary_end_of_a_server(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "turngap", "talk", "--no-browser", "--port", "0"]
    process = subprocess.Popen(
        [*arguments, "--out", str(tmp_path / "runs")],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("talk to embedded at http://127.0.0.1:")
        page = next(word for word in line.split() if word.startswith("http://"))
        with urlopen(f"{page}/api/about", timeout=PATIENCE_S) as answer:
            assert json.load(answer)["agent"] == "embedded"
        with urlopen(page, timeout=PATIENCE_S) as answer:
            assert b"<html" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()
    assert not (tmp_path / "runs").exists()


def test_talk_and_serve_print_where_their_pages_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)

    def host(*arguments: Any) -> Path:
        arguments[-1](Where("127.0.0.1", 7860, None), None)
        return Path("my runs/20261127T000005Z-live")

    monkeypatch.setattr("turngap.cli.serving.host_agent", host)
    done = turngap_here(capsys, "talk", "--json")
    assert done.document() == {"ready": True, "page": "http://127.0.0.1:7860"}
    assert (done.code, opened) == (0, [])
    assert "turngap report 'my runs/20261127T000005Z-live'" in done.err
    first, second, *_ = turngap_here(capsys, "serve").err.splitlines()
    assert first == "embedded serves its page at http://127.0.0.1:7860"
    assert second == "and callers at ws://127.0.0.1:7860/ws (Ctrl-C ends it)"


def test_talk_takes_the_next_free_port_unless_one_is_named() -> None:
    with listen("127.0.0.1", None) as first, listen("127.0.0.1", None) as second:
        ports = [each.getsockname()[1] for each in (first, second)]
        assert ports[0] < ports[1]
        with pytest.raises(AgentError, match="cannot listen on"):
            listen("127.0.0.1", ports[0])


async def test_sigterm_lets_the_calls_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngap.caller.connection.PING_WAIT_S", PATIENCE_S)

    def called(url: str) -> AbstractAsyncContextManager[Line]:
        return open_line(url, PipecatSession(), clock, timeout_s=PATIENCE_S)

    arguments = ["serve", "--port", "0", "--json", "--drain", "60"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "turngap", *arguments, "--out", str(tmp_path / "runs")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(await process.stdout.readline())
        clock = MonotonicClock()
        async with AsyncExitStack() as stack:
            lines = [await stack.enter_async_context(called(ready["url"])) for _ in range(2)]
            os.kill(process.pid, signal.SIGTERM)
            assert process.stderr is not None
            while b"waiting up to 60 s for the calls" not in await process.stderr.readline():
                assert not process.stderr.at_eof()
            with pytest.raises(AgentError, match=r"code 1012 \(this agent is shutting down"):
                async with called(ready["url"]) as line:
                    await line.clock_offset()
            assert [(await line.clock_offset()).n for line in lines] == [12] * 2
            assert process.returncode is None
        said, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    assert (process.returncode, said) == (0, b"")
