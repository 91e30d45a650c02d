"""Where an agent can be reached, and in which dialect; secrets come from the environment."""

import os
import re
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

from turngap.backends import BackendChoice
from turngap.caller.dialects.registry import (
    DialectSpec,
    Key,
    dialect_of_host,
    find_dialect,
)
from turngap.caller.line import OPEN_TIMEOUT_S, UNREADY, Line, open_line
from turngap.caller.opening import Request, check_url, knock
from turngap.core.clock import Clock
from turngap.core.errors import AgentError, InputError
from turngap.core.secrets import (
    header_without_secret,
    remember,
    remember_arguments,
    text_without_secrets,
)

PIPECAT = "pipecat"

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SUBPROTOCOL = "sec-websocket-protocol"
# The characters of a header's name (RFC 9110).
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an agent listens, and how it is spoken to.

    Attributes:
        url: a `ws://` or `wss://` URL. `${NAME}` in it stands for an environment variable, so that
            a secret is never stored.
        dialect: as `--dialect` takes it, `NAME[,KEY=VALUE…]`; empty: not known yet.
        headers: further HTTP headers of the opening, each `Name: value`, with `${NAME}` as in the
            URL. `Sec-WebSocket-Protocol` names subprotocols, in place of the dialect's own.
    """

    url: str
    dialect: str = ""
    headers: tuple[str, ...] = ()

    def spec(self) -> DialectSpec:
        """Return the dialect: as named, or else the one of a public service.

        Raises:
            InputError: there is no such dialect, or its settings are wrong.
        """
        if not self.dialect:
            return dialect_of_host(self.url) or find_dialect(PIPECAT)
        return find_dialect(BackendChoice.parse(self.dialect).backend)

    def settings(self) -> dict[str, Any]:
        """Return the dialect's settings, by name, unchecked."""
        return BackendChoice.parse(self.dialect).values() if self.dialect else {}

    def check(self) -> None:
        """Check what can be checked before anything is opened.

        Raises:
            InputError: the URL is no WebSocket's, no such dialect or setting, a malformed header, a
                variable that is not set.
        """
        self.opening()
        self.spec().session(self.settings())

    @property
    def flags(self) -> str:
        """Return the flags that reach the same agent; a secret in them is `(removed)`."""
        given = [("--agent", text_without_secrets(self.url))]
        given += [("--dialect", text_without_secrets(self.dialect))] if self.dialect else []
        given += [("--header", header_without_secret(each)) for each in self.headers]
        return " ".join(f"{flag} {shlex.quote(value)}" for flag, value in given)

    @property
    def host_and_port(self) -> tuple[str | None, int | None]:
        """Return the URL's host and port; None for each that it lacks or that a variable hides."""
        try:
            parts = urlsplit(self.url)
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
            InputError: the URL is no WebSocket's, a header is malformed, or a variable is not set.
        """
        # Before anything is filled in, so that no message can show it; 1 may be a host or a port.
        check_url(_VARIABLE.sub("1", self.url), self.url)
        url = _filled(self.url, quoted=True)
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
        """Return the environment variables that `opening` uses, as far as they are set: secrets."""
        names = set(_VARIABLE.findall("\n".join((self.url, *self.headers))))
        if (key := self._key()) is not None:
            names.add(key.env)
        return {name: value for name in sorted(names) if (value := os.environ.get(name))}

    def _remember(self) -> None:
        """Keep what the user gives away to the agent out of every text, should it be echoed."""
        host = urlsplit(self.url).netloc.rpartition("@")[2]
        for name, value in self.variables().items():
            if f"${{{name}}}" not in host:
                remember(value)
        remember_arguments((self.url, self.dialect, *self.headers))

    def _key(self) -> Key | None:
        """Return how the public service that the URL names wants its key; None elsewhere."""
        spec = self.spec()
        at_home = self.url.startswith("wss://") and dialect_of_host(self.url) is spec
        return spec.key if at_home else None

    async def knock(self) -> None:
        """Check that something listens there; the agent sees no call.

        Raises:
            InputError, AgentError: as `open`.
        """
        url, headers, subprotocols = self.opening()
        await knock(Request(url, headers, subprotocols, OPEN_TIMEOUT_S, self.url))

    @asynccontextmanager
    async def open(self, clock: Clock, *, timeout_s: float = OPEN_TIMEOUT_S) -> AsyncIterator[Line]:
        """Connect and do the handshake, each within `timeout_s`.

        Raises:
            InputError: as `opening`, or the URL is no WebSocket's.
            AgentError: as `turngap.caller.line.open_line`.
        """
        session = self.spec().session(self.settings())
        url, headers, subprotocols = self.opening()
        key = self._key()
        try:
            async with open_line(
                url,
                session,
                clock,
                headers=headers,
                subprotocols=subprotocols,
                shown=self.url,
                key_env=key.env if key else "",
                timeout_s=timeout_s,
            ) as line:
                yield line
        except AgentError as e:
            if e.kind == UNREADY and (hint := self.spec().unready):
                raise AgentError(e.kind, e.message, hint=hint) from e
            raise


def _filled(text: str, *, quoted: bool = False) -> str:
    """Fill in `${NAME}`; in a URL the value is quoted."""

    def value_of(match: re.Match[str]) -> str:
        value = os.environ.get(match[1])
        if not value:
            raise InputError(
                "endpoint.variable",
                f"the environment variable {match[1]} is not set",
                hint=f"set {match[1]} in the environment before you start turngap",
            )
        return quote(value, safe="") if quoted else value

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
    return name.strip(), value


# Names that services give to tokens in a URL's query, besides their key's own.
_TOKENS = {"access_token", "conversation_signature", "token"}


def _with_key(url: str, headers: dict[str, str], key: Key) -> str:
    """Give a public service its key, unless something that lets in was given; return the URL.

    A long-lived key must not go out beside a short-lived token.
    """
    parts = urlsplit(url)
    given = {name for name, _ in parse_qsl(parts.query)} & {key.name, *_TOKENS}
    if given or {name.lower() for name in headers} & {key.name.lower(), "authorization"}:
        return url
    if key.where == "header":
        headers[key.name] = f"{key.prefix}{_filled(f'${{{key.env}}}')}"
        return url
    query = f"{key.name}={_filled(f'${{{key.env}}}', quoted=True)}"
    return urlunsplit(parts._replace(query=f"{parts.query}&{query}".lstrip("&")))
