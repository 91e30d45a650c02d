"""Destinations of telemetry, and messages where there is none."""

import pytest

from turngap import telemetry
from turngap.core.errors import InputError
from turngap.core.secrets import REMOVED, text_without_secrets
from turngap.telemetry import OFF, Destination, destination_of, telemetry_to


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "PROTOCOL", "TRACES_ENDPOINT", "METRICS_ENDPOINT"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)


@pytest.mark.parametrize(
    ("url", "traces"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("https://host/otlp/", "https://host/otlp/v1/traces"),
        ("http://host:4318/v1/traces", "http://host:4318/v1/traces"),
        ("http://host:4318/v1/metrics", "http://host:4318/v1/traces"),
        ("http://[::1]:4318?team=a", "http://[::1]:4318/v1/traces?team=a"),
    ],
)
def test_the_path_of_a_signal_is_added_to_the_flags_url(url: str, traces: str) -> None:
    where = destination_of(url)
    assert where is not None
    assert where.of("traces") == traces
    assert where.of("metrics") == traces.replace("traces", "metrics")


@pytest.mark.parametrize(
    "url", ["localhost:4318", "grpc://host:4317", "http://", "http://host:port", "http://h:99999"]
)
def test_what_is_no_url_of_http_is_refused(url: str) -> None:
    with pytest.raises(InputError) as refused:
        telemetry_to(url)
    assert refused.value.kind == "otlp.url"


def test_a_password_in_the_url_is_shown_nowhere() -> None:
    where = destination_of("https://me:a1b2c3d4e5@host:4318")
    assert where is not None
    assert "a1b2c3d4e5" not in where.shown
    assert text_without_secrets("a1b2c3d4e5") == REMOVED
    assert where.of("traces") == "https://me:a1b2c3d4e5@host:4318/v1/traces"


def test_the_environment_says_which_signals_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://a/own")
    assert destination_of() == Destination("http://a/own", ("traces",))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://b")
    assert destination_of() == Destination("http://b", ("traces", "metrics"))
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert destination_of() == Destination("http://b", ("traces",))


def test_no_variable_no_telemetry() -> None:
    assert telemetry_to(None) is OFF


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_SDK_DISABLED", "true", "OTEL_SDK_DISABLED is set"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "turngap speaks http/protobuf"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "is no URL of a collector"),
    ],
)
def test_an_environment_that_cannot_be_followed_is_spoken_of_and_fails_nothing(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    off = telemetry_to(None)
    assert not off.on
    words = off.close()
    assert words is not None
    assert words.startswith("telemetry is not sent: ")
    assert said in words


def test_without_the_extra_the_flag_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = telemetry.OTLP.__class__("module", "no_such_module", telemetry.OTLP.remedy)
    monkeypatch.setattr(telemetry, "OTLP", lacking)
    with pytest.raises(InputError, match="not installed") as raised:
        telemetry_to("http://127.0.0.1:9")
    assert "pip install 'turngap[otlp]'" in raised.value.hint
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert "pip install" in str(telemetry_to(None).close())
