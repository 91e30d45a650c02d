"""Address of an agent: its URL, dialect and headers, with secrets from the environment."""

import asyncio
import json
import os
import re
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

from websockets.exceptions import ConnectionClosed

from turngap.backends import BackendChoice, install
from turngap.caller.connection import (
    FIRST_OWN_CODE,
    NOT_READY,
    UNREADY,
    Line,
    open_call,
    open_line,
)
from turngap.caller.dialects import webrtc
from turngap.caller.dialects.registry import (
    DialectSettings,
    DialectSpec,
    Key,
    Transport,
    dialect_of_host,
    find_dialect,
    transport_of,
)
from turngap.caller.dialects.session import Session
from turngap.caller.line.spec import LineSpec
from turngap.caller.opening import LINE_LOST, Request, check_url, knock
from turngap.caller.starting import (
    ask,
    body_of,
    is_start,
    place_of,
    require_json,
    start_call,
    takes_sdp,
)
from turngap.core.clock import Clock
from turngap.core.errors import AgentError, InputError
from turngap.core.secrets import (
    header_without_secret,
    remember,
    remember_arguments,
    text_without_secrets,
)
from turngap.core.untrusted import parse_json, printable

PIPECAT = "pipecat"

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SUBPROTOCOL = "sec-websocket-protocol"
# What the WebSocket itself says when it opens.
_TAKEN = {
    "connection",
    "upgrade",
    *("sec-websocket-extensions", "sec-websocket-key", "sec-websocket-version"),
}
# The characters of a header's name (RFC 9110).
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An agent's address, dialect and headers.

    Attributes:
        url: a `ws://` or `wss://` URL; an `http://` or `https://` URL, which takes calls over
            WebRTC; or `POST http://HOST/start JSON`, whose answer has a URL for each call.
            `${NAME}` stands for an environment variable, so that no secret is stored.
        dialect: as `--dialect` takes it, `NAME[,KEY=VALUE…]`; empty if it is not known yet.
        headers: further HTTP headers of the opening request, each `Name: value`, with `${NAME}` as
            in the URL. `Sec-WebSocket-Protocol` names subprotocols and replaces the dialect's own.
    """

    url: str
    dialect: str = ""
    headers: tuple[str, ...] = ()

    def spec(self) -> DialectSpec:
        """Return the dialect that is named, or else the one that the URL shows.

        Raises:
            InputError: there is no such dialect, or its settings are wrong.
        """
        if not self.dialect:
            return dialect_of_host(self.url) or find_dialect(_dialect_of(self.url))
        return find_dialect(BackendChoice.parse(self.dialect).backend)

    def settings(self) -> DialectSettings:
        """Return the dialect's settings.

        Raises:
            InputError: there is no such setting, its value is wrong, or a variable is not set.
        """
        given = BackendChoice.parse(self.dialect).values() if self.dialect else {}
        filled = {k: _filled(v) if isinstance(v, str) else v for k, v in given.items()}
        return self.spec().settings(filled)

    def check(self) -> None:
        """Check everything that can be checked before a connection is opened.

        Raises:
            InputError: the URL is no agent's, the dialect or a setting is unknown, a header is
                malformed, or a variable is not set.
            AgentError: the dialect needs what is not installed.
        """
        self.opening()
        self._session()

    def _session(self) -> Session:
        """Make a session.

        Raises:
            AgentError: the dialect needs what is not installed.
        """
        spec = self.spec()
        if missing := spec.missing():
            why = f"the dialect {spec.name} needs {', '.join(missing)}, not installed here"
            ours = spec.transport == "webrtc"
            remedy = install(["webrtc"]) if ours else f"pip install {' '.join(missing)}"
            raise AgentError("extra.missing", why, hint=remedy)
        return spec.create(self.settings())

    @property
    def flags(self) -> str:
        """Return the flags that reach the same agent; a secret in them becomes `(removed)`."""
        given = [("--agent", text_without_secrets(self.url))]
        given += [("--dialect", text_without_secrets(self.dialect))] if self.dialect else []
        given += [("--header", header_without_secret(each)) for each in self.headers]
        return " ".join(f"{flag} {shlex.quote(value)}" for flag, value in given)

    @property
    def host_and_port(self) -> tuple[str | None, int | None]:
        """Return the URL's host and port; None for each that is missing or hidden in a variable."""
        try:
            parts = urlsplit(place_of(self.url))
            return (None, None) if "$" in parts.netloc else (parts.hostname, parts.port)
        except ValueError:
            return None, None

    def with_headers(self, headers: Sequence[str]) -> "Endpoint":
        """Add further headers to the endpoint; the user's own headers win."""
        given = {header.partition(":")[0].strip().lower() for header in self.headers}
        new = [h for h in headers if h.partition(":")[0].strip().lower() not in given]
        return replace(self, headers=(*self.headers, *new)) if new else self

    def opening(self) -> tuple[str, dict[str, str], tuple[str, ...]]:
        """Return the URL, the headers and the subprotocols, with every variable filled in.

        Raises:
            InputError: the URL is no agent's or not for this dialect, a header is malformed, or a
                variable is not set.
        """
        # Before anything is filled in, so that no message can show it; 1 may be a host or a port.
        check_url(_VARIABLE.sub("1", self.url), self.url)
        if self.spec().transport != (carried := transport_of(self.url)):
            raise _other_transport(self.url, self.spec(), carried)
        body = body_of(self.url)
        url = _filled(self.url.removesuffix(body), _in_url)
        if body:
            url += require_json(_filled(body, _in_json))
        headers = dict(_header(text) for text in self.headers)
        self._remember()
        named = [name for name in headers if name.lower() == _SUBPROTOCOL]
        offered = ",".join(headers.pop(name) for name in named)
        subprotocols = tuple(each.strip() for each in offered.split(",") if each.strip())
        key = self._key()
        if key is not None and os.environ.get(key.env) and not subprotocols:
            url = _with_key(url, headers, key)
        return url, headers, subprotocols or self.spec().subprotocols

    def variables(self) -> dict[str, str]:
        """Return the environment variables that `opening` uses and that are set: secrets."""
        names = set(_VARIABLE.findall("\n".join((self.url, self.dialect, *self.headers))))
        if (key := self._key()) is not None:
            names.add(key.env)
        return {name: value for name in sorted(names) if (value := os.environ.get(name))}

    def _remember(self) -> None:
        """Remember the secrets that go to the agent, to remove them from texts that echo them."""
        host = urlsplit(place_of(self.url)).netloc.rpartition("@")[2]
        for name, value in self.variables().items():
            if f"${{{name}}}" not in host:
                remember(value)
        remember_arguments((self.url, self.dialect, *self.headers))

    def _key(self) -> Key | None:
        """Return how the public service at the URL takes its key; None for any other URL."""
        spec = self.spec()
        at_home = place_of(self.url).startswith("wss://") and dialect_of_host(self.url) is spec
        return spec.key if at_home else None

    async def knock(self) -> None:
        """Check that something listens at the address; the agent sees no call.

        Raises:
            InputError, AgentError: as `open`.
        """
        url, headers, subprotocols = self.opening()
        request = (place_of(url), headers, subprotocols, self.settings().open_s, self.url)
        await knock(Request(*request))

    @asynccontextmanager
    async def open(
        self,
        clock: Clock,
        *,
        timeout_s: float | None = None,
        line: LineSpec | None = None,
        call: str = "",
    ) -> AsyncIterator[Line]:
        """Connect and do the handshake, each within `timeout_s` or the time in the settings.

        With a `line`, the connection crosses it; the same `call` always gets the same faults.

        Raises:
            InputError: as `opening`, or the URL is not a WebSocket's.
            AgentError: as `turngap.caller.connection.open_line`.
        """
        settings, session, spec = self.settings(), self._session(), self.spec()
        url, headers, subprotocols = self.opening()
        key, timeout_s = self._key(), timeout_s or settings.open_s
        if is_start(url):
            url, headers = await start_call(url, spec.name, headers, settings.open_s)
        how: dict[str, Any] = {"shown": self.url, "key_env": key.env if key else ""}
        how |= {"timeout_s": timeout_s, "line": line, "call": call}
        if spec.transport == "webrtc":
            opening = open_call(Request(url, headers, (), **how), session, settings, clock)
        else:
            how |= {"subprotocols": subprotocols, "ping_s": settings.ping_s}
            opening = open_line(url, session, clock, headers=headers, **how)
        opened: Line | None = None
        try:
            async with opening as opened:
                opened.first_word = settings.first_word
                yield opened
        except AgentError as e:
            if opened is None and (said := await _runner_error(spec, url, e)):
                raise said from e
            if e.kind == UNREADY and (hint := spec.unready):
                raise AgentError(e.kind, e.message, hint=hint) from e
            raise


def _dialect_of(url: str) -> str:
    """Return the likeliest dialect of an unknown server at a URL."""
    if transport_of(url) == "websocket":
        return PIPECAT
    return webrtc.OPENAI.name if takes_sdp(url) else webrtc.SPEC.name


def _other_transport(url: str, spec: DialectSpec, carried: Transport) -> InputError:
    shown = text_without_secrets(url)
    if carried == "webrtc":
        what, hint = "calls over WebRTC", f"did you mean {place_of(shown)}? Or leave out --dialect"
    else:
        what, hint = "a WebSocket", "give the URL that takes its calls, as http://HOST:7860"
    return InputError(
        "agent.url", f"{shown} is for {what}, and the dialect {spec.name} is not", hint=hint
    )


def _in_url(value: str) -> str:
    return quote(value, safe="")


def _in_json(value: str) -> str:
    return json.dumps(value)[1:-1]


def _filled(text: str, quoted: Callable[[str], str] = str) -> str:
    """Fill in `${NAME}`; `quoted` escapes each value for its place."""

    def value_of(match: re.Match[str]) -> str:
        value = os.environ.get(match[1])
        if not value:
            raise InputError(
                "endpoint.variable",
                f"the environment variable {match[1]} is not set",
                hint=f"set {match[1]} in the environment before you start turngap",
            )
        return quoted(value)

    return _VARIABLE.sub(value_of, text)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    value = _filled(value.strip())
    if not (colon and _HEADER.fullmatch(name.strip())) or not (value.isprintable()):
        raise InputError(
            "endpoint.header",
            f"{name.strip()!r} begins no HTTP header",
            hint="expected 'Name: value', as in --header 'Authorization: Bearer ${TOKEN}'",
        )
    if name.strip().lower() in _TAKEN:
        raise InputError(
            "endpoint.header",
            f"the WebSocket opens with a {name.strip()} of its own",
            hint=f"leave out --header '{name.strip()}: ...'",
        )
    return name.strip(), value


# Names that services give to tokens in a URL's query, besides their key's own.
_TOKENS = {"access_token", "conversation_signature", "token"}


def _with_key(url: str, headers: dict[str, str], key: Key) -> str:
    """Add a public service's key unless the user gave other credentials; return the URL.

    A long-lived key must not go out together with a short-lived token.
    """
    parts = urlsplit(url)
    given = {name for name, _ in parse_qsl(parts.query)} & {key.name, *_TOKENS}
    if given or {name.lower() for name in headers} & {key.name.lower(), "authorization"}:
        return url
    if key.where == "header":
        headers[key.name] = f"{key.prefix}{_filled(f'${{{key.env}}}')}"
        return url
    query = f"{key.name}={_filled(f'${{{key.env}}}', _in_url)}"
    return urlunsplit(parts._replace(query=f"{parts.query}&{query}".lstrip("&")))


# The pipecat development runner. It serves WebRTC to browsers, telephony at `/ws`, and protobuf at
# `/ws-client` to bots that have a `websocket` entry. A bot that lacks this entry, or its
# serializer, does not report that.

RUNNER_PATH = "/ws-client"
NO_TRANSPORT = "agent.no_transport"
STATUS_TIMEOUT_S = 2.0
# An HTTP status in place of a WebSocket: 403 and 404.
REFUSED = ("agent.key", "agent.path")

PASTE = """put this into the bot's file, the second part into its `transport_params`:

    from pipecat.serializers.protobuf import ProtobufFrameSerializer
    from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams

    "websocket": lambda: FastAPIWebsocketParams(
        audio_in_enabled=True, audio_out_enabled=True, serializer=ProtobufFrameSerializer()
    ),
"""


async def _runner_error(spec: DialectSpec, url: str, error: AgentError) -> AgentError | None:
    """Return why a line to `url` could not be opened, if a runner is there; else None.

    Only a server that answers HTTP is asked for its status.
    """
    if spec is webrtc.SPEC:
        return await _no_call(url, error)
    return await _no_websocket(url, error) if spec.name == PIPECAT else None


async def _no_call(url: str, error: AgentError) -> AgentError | None:
    """Return why a runner's bot takes no call over WebRTC; None if no runner is there."""
    if error.kind not in ("agent.path", NOT_READY) or (has := await runner_at(url)) is None:
        return None
    runner = f"pipecat's development runner answers at {_netloc(url)}"
    if error.kind == NOT_READY:
        seen = "its bot took the call and says nothing. So does one that has no `webrtc` entry in "
        seen += "its `transport_params`; its log then says: Missing transport params for 'webrtc'"
        hint = f"add the entry; or, if it is there: {webrtc.SPEC.unready}"
        return AgentError(NO_TRANSPORT, f"{runner}, and {seen}", hint=hint)
    if webrtc.SPEC.name in has:
        hint = f"leave out the path: --agent {_page(url, '')}"
        return AgentError(NO_TRANSPORT, f"{runner}, and takes no calls at this path", hint=hint)
    seen = f"was started without WebRTC; it has {', '.join(has)}"
    hint = f"start it without -t; or --agent {place_of(_page(url, RUNNER_PATH))}"
    return AgentError(NO_TRANSPORT, f"{runner}, and {seen}", hint=hint)


async def _no_websocket(url: str, error: AgentError) -> AgentError | None:
    """Return why a runner's bot opens no WebSocket; None if no runner is there."""
    parts = urlsplit(url)
    there = urlunsplit(parts._replace(path=RUNNER_PATH, query=""))
    silent = parts.path.startswith(RUNNER_PATH) and error.kind in (LINE_LOST, NOT_READY)
    unsaid = error.kind in REFUSED or (silent and not _has_said_why(error))
    if not unsaid or (has := await runner_at(url)) is None:
        return None
    runner = f"pipecat's development runner answers at {_netloc(url)}"
    over_webrtc = f"call it over WebRTC: --agent {_page(url, '')}\n  or " if "webrtc" in has else ""
    if error.kind == LINE_LOST:
        seen = "its bot ended the call before it was ready. So does one that has no `websocket` "
        seen += "entry in its `transport_params`; its log then says: Missing transport params for "
        hint = f"{over_webrtc}{PASTE}"
        return AgentError(NO_TRANSPORT, f"{runner}, and {seen}'websocket'", hint=hint)
    if error.kind == NOT_READY:
        seen = "its bot took the call and says nothing. So does one whose `websocket` entry in its "
        seen += "`transport_params` has no serializer"
        rtvi = "\n  if it is there, and RTVI is off: --dialect pipecat,rtvi=false"
        return AgentError(NO_TRANSPORT, f"{runner}, and {seen}", hint=f"{PASTE}{rtvi}")
    if parts.path.startswith("/ws"):
        seen = "lets in only calls with a token of its own"
        hint = f"get one for each call: --agent 'POST {_page(url, '/start')}'"
    else:
        seen = f"serves no WebSocket at {parts.path or '/'}: protobuf is at {RUNNER_PATH}"
        hint = f"{over_webrtc}give that URL: --agent {there}\n  and if the bot has no `websocket` "
        hint += f"entry, {PASTE}"
    return AgentError(NO_TRANSPORT, f"{runner}, and {seen}", hint=hint)


def _has_said_why(error: AgentError) -> bool:
    """Return whether the server closed with a reason, or with a code of its own."""
    frame = error.__cause__.rcvd if isinstance(error.__cause__, ConnectionClosed) else None
    return frame is not None and bool(frame.reason or frame.code >= FIRST_OWN_CODE)


def _page(url: str, path: str) -> str:
    """Return the HTTP URL of a path of the server at an agent's URL."""
    parts = urlsplit(url)
    scheme = "https" if parts.scheme in ("wss", "https") else "http"
    return urlunsplit((scheme, parts.netloc, path, "", ""))


def _netloc(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


async def runner_at(url: str) -> list[str] | None:
    """Return the transports of a runner, from its status page; None if the server is none."""
    asked = ("GET", _page(url, "/status"), None, {}, STATUS_TIMEOUT_S)
    try:
        told = parse_json(await asyncio.to_thread(ask, *asked))
    except (OSError, HTTPException, ValueError):
        return None
    has = told.get("transports") if isinstance(told, dict) else None
    return [printable(str(each), 20) for each in has[:20]] if isinstance(has, list) else None
