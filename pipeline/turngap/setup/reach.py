"""Tries to reach an agent, started for it where that is asked, and finds out what it speaks."""

import re
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

from turngap.caller.endpoint import Endpoint
from turngap.caller.identify import identify
from turngap.core.clock import Clock
from turngap.core.errors import AgentError
from turngap.core.secrets import text_without_secrets
from turngap.play.command import served_by, started
from turngap.setup.look import USUAL_PATHS, servers

Told = Callable[[str], None]
Served = TypeVar("Served")

# Each time it is said that a bot has not opened its port yet is a line on the screen.
TELL_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of the agent before it is tried.

    Attributes:
        url: where it serves; empty: wherever the command listens.
        start: the command that starts it; None: it runs already.
        dialect: its protocol; empty: to be found out.
        headers: to open its URL with.
        paths: those to try where the URL has none.
    """

    url: str = ""
    start: str | None = None
    dialect: str = ""
    headers: tuple[str, ...] = ()
    paths: Sequence[str] = USUAL_PATHS


# The bot's packages are in an environment of its own, as the README recommends.
OTHER_PYTHON = (
    "activate the bot's environment first, or name its python: "
    "turngap init --start '/PATH/TO/ITS/.venv/bin/python bot.py'"
)


async def reached(asked: Asked, clock: Clock, told: Told) -> Endpoint:
    """Return where the agent answers, with its dialect named.

    Raises:
        InputError: the URL or the command cannot be used.
        AgentError: it does not start, is not there, or speaks nothing that can be told.
    """
    Endpoint(asked.url or "ws://127.0.0.1", asked.dialect, asked.headers).check()
    async with AsyncExitStack() as stack:
        urls = [asked.url]
        if asked.start is not None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="turngap-init-"))
            log = Path(folder) / "agent.log"
            if asked.url:
                serves = started(asked.start, asked.url, log, told, TELL_EVERY_S)
                await stack.enter_async_context(_without(log, serves))
            else:
                told(f"starting {text_without_secrets(asked.start)}")
                ports = await stack.enter_async_context(_without(log, served_by(asked.start, log)))
                urls = [f"ws://127.0.0.1:{port}" for port in ports]
        return await _first_that_answers(asked, urls, clock, told)


@asynccontextmanager
async def _without(
    log: Path, serving: AbstractAsyncContextManager[Served]
) -> AsyncIterator[Served]:
    """The same; its errors do not lead to a log that is gone when they are read.

    What an error has to say of the log is in its message.
    """
    try:
        async with serving as served:
            yield served
    except AgentError as e:
        if "No module named" in e.message:
            raise AgentError(e.kind, e.message, hint=OTHER_PYTHON) from e
        if str(log) not in e.hint:
            raise
        hint = "start it by hand, then call it: turngap init --agent ws://HOST:PORT/PATH"
        # A bot that finds its port taken says which that is.
        taken = [port for port in servers() if re.search(rf"\b{port}\b", e.message)]
        if taken:
            where = ", ".join(map(str, taken))
            hint = f"something serves at port {where}: end it if it is the bot; or {hint}"
        raise AgentError(e.kind, e.message, hint=hint) from e


async def _first_that_answers(
    asked: Asked, urls: Sequence[str], clock: Clock, told: Told
) -> Endpoint:
    errors: dict[str, AgentError] = {}
    for url in [each for one in urls for each in _with_paths(one, asked.paths)]:
        endpoint = Endpoint(url, asked.dialect, asked.headers)
        told(f"trying {url}")
        try:
            named = await identify(endpoint, clock)
            # A dialect that was given is tried too: nobody shall find out in CI that it is wrong.
            async with named.open(clock) as line:
                return replace(named, dialect=named.dialect or line.dialect)
        except AgentError as e:
            errors[url] = e
    raise _nowhere(errors)


def _with_paths(url: str, paths: Sequence[str]) -> list[str]:
    """The URL where it has a path, else with each of the usual ones."""
    parts = urlsplit(url)
    if parts.path not in ("", "/") or parts.query:
        return [url]
    return [urlunsplit(parts._replace(path=path)) for path in paths]


def _nowhere(errors: Mapping[str, AgentError]) -> AgentError:
    """The one error, or the first with all that were tried."""
    first = next(iter(errors.values()))
    if len(errors) == 1:
        return first
    tried = "\n".join(f"  {url}: {error.message}" for url, error in errors.items())
    return AgentError(
        "init.no_agent",
        f"no agent answered at any path that was tried:\n{tried}",
        hint=first.hint or "give its whole URL: turngap init --agent ws://HOST:PORT/PATH",
    )
