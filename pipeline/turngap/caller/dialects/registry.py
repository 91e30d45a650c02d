"""The installed dialects, turngap's and others', from the entry points `turngap.dialects`.

Each entry point names an iterable of `DialectSpec`.
"""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turngap.caller.dialects.session import Session
from turngap.caller.starting import place_of
from turngap.core.errors import InputError, known_names
from turngap.core.untrusted import in_a_line

GROUP = "turngap.dialects"


class DialectSettings(BaseModel):
    """Base of every dialect's settings, as in `--dialect openai-realtime,model=NAME`.

    The string below a field describes it.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    open_s: float = Field(default=10.0, gt=0, le=600)
    """How long the agent may take to connect, to open the WebSocket and to be ready, each."""
    ping_s: float = Field(default=0.0, ge=0, le=600)
    """Time between two WebSocket pings, and for the answer to each; 0: no pings."""
    first_word: Literal["speech", "sound"] = "speech"
    """Start of a reply: speech, or any sound, for example of a test agent that beeps."""


Transport = Literal["websocket", "webrtc"]


@dataclass(frozen=True, slots=True)
class Key:
    """The way in which a public service wants its API key.

    Attributes:
        env: the environment variable that holds it.
        where: its place, a header or the URL's query.
        name: the name of the header or of the query's key.
        prefix: the text before the key in a header, for example `Bearer `.
    """

    env: str
    where: Literal["header", "query"]
    name: str
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class DialectSpec:
    """A dialect, by its name.

    Attributes:
        name: the name for `--dialect`.
        about: its owner and its transport, in a sentence without a full stop.
        create: makes a session from its settings, one for each line.
        settings_type: the class of its settings.
        hosts: public services that speak it, with a path where the host speaks others too. A URL of
            one of these, or of a host below it, needs no `--dialect`, and its key is sent to no one
            else.
        key: the way in which those hosts want their key.
        transport: what carries it: a WebSocket, or a WebRTC call, whose URL is `http(s)://`.
        subprotocols: the WebSocket's subprotocols.
        needs: modules that it needs beyond turngap's own dependencies.
        tried: its place in the order of dialects to try with an unknown server, lowest first; None:
            it is not tried, because its hosts are known, or it is hard to distinguish from another.
        unready: the likely reason why a server never reports that it is ready, and the remedy.
    """

    name: str
    about: str
    create: Callable[..., Session]
    settings_type: type[DialectSettings] = DialectSettings
    hosts: tuple[str, ...] = ()
    key: Key | None = None
    transport: Transport = "websocket"
    subprotocols: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    tried: int | None = None
    unready: str = ""

    def missing(self) -> list[str]:
        """Return the needed modules that this environment lacks."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def settings(self, values: Mapping[str, Any]) -> DialectSettings:
        """Check settings given by name.

        Raises:
            InputError: there is no such setting, or its value is wrong.
        """
        try:
            return self.settings_type.model_validate(dict(values))
        except ValidationError as e:
            raise InputError(
                "dialect.settings",
                f"dialect {self.name!r}: {in_a_line(e)}",
                hint=f"allowed: {', '.join(self.settings_type.model_fields) or 'none'}",
            ) from e

    def session(self, values: Mapping[str, Any] | None = None) -> Session:
        """Make a session.

        Raises:
            InputError: a setting is wrong.
        """
        return self.create(self.settings(values or {}))


@cache
def dialects() -> Mapping[str, DialectSpec]:
    """Return every installed dialect by its name, in the order of the names."""
    found = [spec for entry in entry_points(group=GROUP) for spec in entry.load()]
    return {spec.name: spec for spec in sorted(found, key=lambda spec: spec.name)}


def find_dialect(name: str) -> DialectSpec:
    """Return a dialect by its name.

    Raises:
        InputError: no dialect has this name.
    """
    if name not in dialects():
        raise InputError(
            "dialect.unknown", f"no dialect {name!r}", hint=known_names(name, dialects())
        )
    return dialects()[name]


def transport_of(url: str) -> Transport:
    """Return what carries a call to an agent: `http(s)://` is WebRTC's."""
    return "webrtc" if url.partition("://")[0].lower() in ("http", "https") else "websocket"


def dialect_of_host(url: str) -> DialectSpec | None:
    """Return the dialect of a public service by its URL; None for an unknown service."""
    specs = [spec for spec in dialects().values() if spec.transport == transport_of(url)]
    found = [(known, spec) for spec in specs for known in spec.hosts]
    for known, spec in sorted(found, key=lambda pair: len(pair[0]), reverse=True):
        if _is_at(url, known):
            return spec
    return None


def _is_at(url: str, known: str) -> bool:
    """Return whether a URL is at a known host or below it, and at its path if it has one."""
    parts = urlsplit(place_of(url))
    host, (known_host, _, path) = parts.hostname or "", known.partition("/")
    below = host == known_host or host.endswith(f".{known_host}")
    return below and f"{parts.path}/".startswith(f"/{path}/" if path else "/")
