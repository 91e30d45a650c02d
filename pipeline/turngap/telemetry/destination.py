"""Where telemetry goes: the `--otlp` flag, or OpenTelemetry's own environment variables."""

import os
from dataclasses import dataclass
from typing import Self
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from turngap.backends import Need
from turngap.core.errors import InputError
from turngap.core.secrets import remember_secrets, text_without_secrets

OTLP = Need("module", "opentelemetry.exporter.otlp.proto.http", "pip install 'turngap[otlp]'")
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_SIGNALS = ("traces", "metrics")


@dataclass(frozen=True, slots=True)
class Destination:
    """The collector that gets traces and metrics, by OTLP over HTTP.

    Attributes:
        shown: its URL as messages name it.
        traces, metrics: the URL of each signal; None: it is not sent.
    """

    shown: str
    traces: str | None
    metrics: str | None

    @classmethod
    def of(cls, url: str) -> Self:
        """Read `--otlp URL`, to which `/v1/traces` and `/v1/metrics` are added.

        Raises:
            InputError: it is no URL of HTTP.
        """
        parts = _read(url.strip())
        if parts is None:
            raise InputError(
                "otlp.url",
                f"{text_without_secrets(url)!r} is no URL of a collector",
                hint="expected http://HOST:PORT; collectors take OTLP over HTTP at port 4318",
            )
        if (user := parts.netloc.rpartition("@")[0]) and ":" in user:
            remember_secrets({"password": unquote(user.partition(":")[2])})
        path = parts.path.rstrip("/")
        for signal in _SIGNALS:
            path = path.removesuffix(f"/v1/{signal}")
        traces, metrics = (
            urlunsplit(parts._replace(path=f"{path}/v1/{signal}", fragment=""))
            for signal in _SIGNALS
        )
        shown = text_without_secrets(url.strip())
        return cls(shown, _if_wanted("traces", traces), _if_wanted("metrics", metrics))

    @classmethod
    def of_environment(cls) -> Self | None:
        """Read OTEL_EXPORTER_OTLP_ENDPOINT and its kin; None: none of them is set.

        Raises:
            InputError: they name what is no URL of HTTP.
        """
        base = os.environ.get(ENDPOINT, "").strip()
        given = {s: os.environ.get(_of(s, "ENDPOINT"), "").strip() for s in _SIGNALS}
        if not base and not any(given.values()):
            return None
        whole = cls.of(base) if base else None
        urls: dict[str, str | None] = {}
        for signal, url in given.items():
            if url:
                cls.of(url)  # only to check it: the URL of a signal is used as it is
            urls[signal] = url or (getattr(whole, signal) if whole else None)
            urls[signal] = _if_wanted(signal, urls[signal])
        shown = base or next(filter(None, given.values()))
        return cls(text_without_secrets(shown), **urls)


def _read(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is none
        return None
    return parts if known else None


def why_unsendable(where: Destination) -> str | None:
    """Return why nothing can be sent there, judging by packages and settings; None if it can."""
    try:
        installed = OTLP.met()
    except ModuleNotFoundError:  # not even the package that it lies in
        installed = False
    if not installed:
        return f"it needs OpenTelemetry's exporter: {OTLP.remedy}"
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return "OTEL_SDK_DISABLED is set"
    protocols = {os.environ.get(_of(s, "PROTOCOL"), "").strip() for s in _SIGNALS}
    protocols |= {os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip()}
    if others := sorted(protocols - {"", "http/protobuf"}):
        return (
            f"the environment asks for OTLP by {others[0]}, and turngap speaks http/protobuf: set "
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, and the port to the one for HTTP (4318)"
        )
    if where.traces is None and where.metrics is None:
        return "OTEL_TRACES_EXPORTER and OTEL_METRICS_EXPORTER are both none"
    return None


def remember_headers() -> None:
    """Learn the values of OTEL_EXPORTER_OTLP_HEADERS, which hold keys: no text shows them."""
    for name in ("OTEL_EXPORTER_OTLP_HEADERS", *(_of(s, "HEADERS") for s in _SIGNALS)):
        for pair in os.environ.get(name, "").split(","):
            if value := unquote(pair.partition("=")[2].strip()):
                remember_secrets({"secret": value})


def _of(signal: str, what: str) -> str:
    return f"OTEL_EXPORTER_OTLP_{signal.upper()}_{what}"


def _if_wanted(signal: str, url: str | None) -> str | None:
    """Nothing, where the environment turns a signal off."""
    chosen = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip().lower()
    return None if chosen == "none" else url
