"""Agents as processes of their own: started, awaited, ended with their children."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

from turngap.caller.line import LINE_LOST, NOT_READY
from turngap.caller.runner import NO_TRANSPORT
from turngap.children import PARENT_HOLDS_STDIN
from turngap.core.errors import AgentError, ExitCode, InputError, TurngapError
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import MOST_SENTENCE, printable
from turngap.store.documents import writing
from turngap.store.files import open_regular

# Loading the engines takes about 3 s warm; a vLLM that the agent starts, minutes. Engines that may
# wait for something have timeouts of their own, with a better error than this one.
READY_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 5.0
# How long the end of a process may come after that of its line: what it leaves behind ends first.
ENDING_S = 4.0
# A longer log than this is of a run of days at debug level: cleaning it would take minutes.
MOST_LOG_BYTES, MOST_END_BYTES = 2**24, 2**16
# Of a traceback the error itself, and where it happened.
LAST_LINES = 5

# Errors that the end of an agent's process may be behind, and those that its log may explain.
_LINE_ENDS = {LINE_LOST, "agent.unreachable"}
_LOGGED = {LINE_LOST, NOT_READY, NO_TRANSPORT}
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)\b: .+", re.MULTILINE)


@asynccontextmanager
async def running(
    argv: Sequence[str],
    log: Path,
    *,
    python: str = sys.executable,
    cwd: Path | None = None,
    told: Callable[[Mapping[str, Any]], None] | None = None,
    document: Mapping[str, Any] | None = None,
) -> AsyncIterator[str]:
    """Start `python -m argv…`, wait for its ready line, yield its URL, and end it afterwards.

    The process prints one JSON line, `{"ready": true, "url": "ws://…"}`, when it serves, or its
    error document instead; `told` gets the whole of that line. Its stderr goes to `log`. It finds
    `document` in the first line of its stdin, as JSON.

    Raises:
        TurngapError: the process's own error, where it said one.
        AgentError: it ended, or said nothing in time; or it ended later, and the line to it was
            lost by that.
    """
    async with child(argv, log, python=python, cwd=cwd, answers=True) as process:
        if document is not None and process.stdin is not None:
            process.stdin.write(json.dumps(document).encode() + b"\n")
        ready = await _ready(process, log)
        if told is not None:
            told(ready)
        yield str(ready["url"])


@asynccontextmanager
async def child(
    argv: Sequence[str],
    log: Path,
    *,
    python: str = sys.executable,
    cwd: Path | None = None,
    answers: bool = False,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `python -m argv…` for as long as this lasts; what it prints goes to `log`.

    Where it `answers`, its stdout is for its parent to read. It ends when its stdin does, so that
    it does not outlive a parent that is killed.

    Raises:
        AgentError: it ended, and the line to it was lost by that.
    """
    with ExitStack() as stack:
        with writing(log):
            said = stack.enter_context(_opened(log, "ab", os.O_WRONLY | os.O_APPEND | os.O_CREAT))
        process = await asyncio.create_subprocess_exec(
            python,
            "-P",  # a stray soundfile.py where the user stands must not take a module's place
            "-m",
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if answers else said,
            stderr=said,
            cwd=cwd,
            env={**os.environ, PARENT_HOLDS_STDIN: "1"},
            start_new_session=True,  # a Ctrl-C in the terminal is ours to pass on, in order
        )
    try:
        yield process
    except AgentError as e:
        if e.kind in _LINE_ENDS and (code := await _exit_code(process)) is not None:
            raise ended(f"{e.message}: the agent ended in mid-conversation", code, log) from e
        if e.kind in _LOGGED and (error := last_error(log)):
            raise AgentError(e.kind, f"{e.message}. Its log has: {error}", hint=e.hint) from e
        raise
    finally:
        await _end(process)
        await asyncio.to_thread(_clean, log)


def _clean(log: Path) -> None:
    """Remove the secrets that an engine put into its log, from its arguments or its errors.

    Of a long log only its end is kept.
    """
    with suppress(OSError):
        text = _end_of(log, MOST_LOG_BYTES)
        with _opened(log, "wb", os.O_WRONLY | os.O_TRUNC) as kept:
            kept.write(text.encode())


def _opened(log: Path, mode: str = "rb", flags: int = os.O_RDONLY) -> IO[bytes]:
    return os.fdopen(open_regular(log, flags, below=log.parent), mode)


async def _ready(process: asyncio.subprocess.Process, log: Path) -> Mapping[str, Any]:
    if process.stdout is None:
        raise AssertionError("stdout is a pipe")
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            line = await process.stdout.readline()
            with suppress(ValueError, KeyError, TypeError):
                ready = json.loads(line)
                str(ready["url"])
                return ready
            said = line + await process.stdout.read()
            code = await process.wait()
    except TimeoutError as e:
        raise AgentError(
            "agent.slow_start",
            f"the agent was not ready within {READY_TIMEOUT_S:g} s",
            hint=f"its log: {log}",
        ) from e
    raise _own_error(said, code) or ended("the agent did not start", code, log)


async def _exit_code(process: asyncio.subprocess.Process) -> int | None:
    """Return the exit code of the process, which is known a little after its line is lost."""
    with suppress(TimeoutError):
        async with asyncio.timeout(ENDING_S):
            return await process.wait()
    return None


def ended(what: str, code: int, log: Path) -> AgentError:
    """Build the error for a process that exited early, with the last lines of its log."""
    if code == -signal.SIGKILL:
        return AgentError(
            "agent.killed",
            f"{what} (it was killed, as a system that is out of memory does)",
            hint=f"give it more memory, or smaller models (turngap backends); its log: {log}",
        )
    return AgentError(
        "agent.not_started" if what.endswith("start") else "agent.ended",
        f"{what} (exit code {code}): {last_lines(log) or 'it said nothing'}",
        hint=f"its log: {log}",
    )


def _own_error(said: bytes, code: int) -> TurngapError | None:
    """Parse the error that the process printed as JSON, with its own exit code."""
    try:
        error = json.loads(said)["error"]
        kind = InputError if code == ExitCode.BAD_INPUT else AgentError
        return kind(str(error["kind"]), str(error["message"]), hint=str(error["hint"]))
    except (ValueError, KeyError, TypeError):
        return None


def last_error(log: Path) -> str:
    """Return the last line of the log that ends a traceback, without secrets; empty: none."""
    return printable(next(reversed(_ERROR.findall(_end_of(log))), ""), MOST_SENTENCE)


def _end_of(log: Path, most: int = MOST_END_BYTES) -> str:
    with _opened(log) as said:
        left_out = os.fstat(said.fileno()).st_size - most
        if left_out > 0:
            said.seek(left_out)
            left_out += len(said.readline())
        text = text_without_secrets(said.read().decode(errors="replace"))
    return f"({left_out} bytes before this were left out)\n{text}" if left_out > 0 else text


def last_lines(log: Path) -> str:
    """Return the last lines of the log without secrets, indented if there are several."""
    text = _end_of(log)
    lines = [line.rstrip() for line in text.splitlines() if line.strip()][-LAST_LINES:]
    return lines[0].strip() if len(lines) == 1 else "".join(f"\n    {line}" for line in lines)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask the process's whole group to end; insist if it does not."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
                return
