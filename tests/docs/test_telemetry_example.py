"""docs/telemetry.md's function for a bot: it continues the trace and sends the last spans."""

from typing import Any

import pytest
from markdown_pages import ROOT, blocks
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_current_span
from pipecat.pipeline.pipeline import Pipeline

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Socket:
    def __init__(self) -> None:
        self.headers = {"traceparent": PARENT}


class Runner:
    """Ends at once, perhaps with an error, and notes the trace that it ran in."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error
        self.traces: list[str] = []

    async def add_workers(self, worker: object) -> None:
        assert worker is not None

    async def run(self) -> None:
        self.traces.append(f"{get_current_span().get_span_context().trace_id:032x}")
        if self._error is not None:
            raise self._error


def shown(runner: Runner) -> Any:
    """The page's function, with this runner in place of pipecat's."""
    (text,) = [
        block.text
        for block in blocks(ROOT / "docs" / "telemetry.md")
        if block.language == "python" and "async def converse" in block.text
    ]
    names: dict[str, Any] = {}
    exec(compile(text, "docs/telemetry.md", "exec"), names)  # the page's own text
    names["WorkerRunner"] = lambda: runner
    return names["converse"]


@pytest.mark.parametrize("error", [None, ConnectionError("the caller has gone")], ids=repr)
@pytest.mark.parametrize("traced", [True, False])
async def test_the_last_spans_are_sent_however_a_conversation_ends(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, traced: bool
) -> None:
    flushed: list[bool] = []
    provider = TracerProvider() if traced else None
    if provider is not None:
        monkeypatch.setattr(provider, "force_flush", lambda: flushed.append(True))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)  # None: tracing is off
    runner, before = Runner(error), context.attach(context.get_current())
    try:
        if error is None:
            await shown(runner)(Socket(), Pipeline([]))
        else:
            with pytest.raises(ConnectionError, match="the caller has gone"):
                await shown(runner)(Socket(), Pipeline([]))
    finally:
        context.detach(before)
    assert runner.traces == [PARENT.split("-")[1]]
    assert flushed == [True] * traced
