"""What `/metrics` says of conversations in memory and virtual time, read as Prometheus reads it."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_engines import fake_assembly
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from test_serving_twilio import CONNECTED, START, media, ulaw_tone

from helpers.guarded_line import guarded
from turngap.agent.metrics import (
    FOLDER_VARIABLE,
    OUTCOMES,
    REASONS,
    Metrics,
    engine_waits,
    process_gone,
    shared_folder,
)
from turngap.agent.protocols.pipecat_protobuf import PipecatProtobuf
from turngap.agent.protocols.twilio import TwilioStream
from turngap.caller.dialects.pipecat import audio_frame
from turngap.marks.turn import AgentTurn
from turngap.testing import LoopClock, ManualClock, in_virtual_time
from turngap.testing.virtual import virtual_clocks

MS = 1_000_000
QUIET_16K = bytes(640)
LOUD_16K = (b"\x00\x40" * 4 + b"\x00\xc0" * 4) * 40

Figures = dict[tuple[str, str], float]


def figures(page: bytes) -> Figures:
    """The page's samples by name and by their labels' values."""
    families = text_string_to_metric_families(page.decode())
    return {(s.name, "/".join(s.labels.values())): s.value for f in families for s in f.samples}


def test_an_agent_that_was_never_called_shows_every_series_at_nothing() -> None:
    page = figures(Metrics(ManualClock()).page())
    for outcome in OUTCOMES:
        assert page["turngap_turns_total", outcome] == 0
    for reason in REASONS:
        assert page["turngap_sessions_refused_total", reason] == 0
    assert page["turngap_sessions", ""] == page["turngap_agent_gap_seconds_count", ""] == 0
    assert page["process_cpu_seconds_total", ""] > 0
    assert page["process_resident_memory_bytes", ""] > 1e6


def test_names_and_units_follow_the_conventions() -> None:
    families = list(text_string_to_metric_families(Metrics(ManualClock()).page().decode()))
    ours = [family for family in families if family.name.startswith("turngap_")]
    assert ours
    for family in ours:
        assert family.documentation
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total")


def played(metrics: Metrics, protocol: str, *, interrupts: bool) -> list[float]:
    """Speak to the fake agent for 0.8 s, and into its reply if wanted; ms of what it then sent."""

    async def play() -> list[float]:
        assembly = dataclasses.replace(fake_assembly(), metrics=metrics)
        spoken = TwilioStream() if protocol == "twilio" else None
        clock = LoopClock()
        await clock.sleep_until_ns(1000 * MS)
        spoken = spoken or PipecatProtobuf(clock, 16_000, traced=True)
        async with guarded(assembly, spoken) as client:
            for opening in (CONNECTED, START) if protocol == "twilio" else ():
                client.send(json.dumps(opening))
            await client.wait(200)
            for k in range(170):
                loud = k < 40 or (interrupts and 75 < k < 110)
                if protocol == "twilio":
                    client.send(json.dumps(media(ulaw_tone(160) if loud else b"\xff" * 160)))
                else:
                    client.send(audio_frame(LOUD_16K if loud else QUIET_16K, 16_000))
                await client.wait(20)
        return [ns / MS - 1000 for ns, _ in client.got]

    with virtual_clocks():
        return in_virtual_time(play())


@pytest.mark.parametrize("protocol", ["pipecat", "twilio"])
def test_a_turn_is_counted_with_its_gap_and_what_it_waited_for(protocol: str) -> None:
    metrics = Metrics(LoopClock())
    played(metrics, protocol, interrupts=False)
    page = figures(metrics.page())
    assert page["turngap_turns_total", "answered"] == 1
    assert page["turngap_agent_gap_seconds_count", ""] == 1
    # 100 ms of silence for the VAD, 40 for the first clause, and 80 until the third chunk, as the
    # first 150 ms of the voice are silent and two chunks are sent at once. Without marks to tell,
    # a chunk counts as written when it is pushed on.
    assert page["turngap_agent_gap_seconds_sum", ""] == pytest.approx(0.22, abs=0.041)
    if protocol == "pipecat":
        assert page["turngap_agent_gap_seconds_sum", ""] == pytest.approx(0.22, abs=1e-6)
    assert page["turngap_engine_wait_seconds_sum", "llm"] == pytest.approx(0.03, abs=0.001)
    for engine in ("stt", "llm", "tts"):
        assert page["turngap_engine_wait_seconds_count", engine] == 1
    assert page["turngap_interruptions_total", ""] == 0


@pytest.mark.parametrize("protocol", ["pipecat", "twilio"])
def test_an_interruption_is_counted_once_and_a_person_who_waits_interrupts_nobody(
    protocol: str,
) -> None:
    metrics = Metrics(LoopClock())
    played(metrics, protocol, interrupts=True)
    page = figures(metrics.page())
    assert page["turngap_interruptions_total", ""] == 1
    assert sum(page["turngap_turns_total", outcome] for outcome in OUTCOMES) == 2


def test_without_marks_no_turn_is_followed() -> None:
    metrics = Metrics(LoopClock())

    async def play() -> None:
        assembly = dataclasses.replace(fake_assembly(traced=False), metrics=metrics)
        async with guarded(assembly, PipecatProtobuf(LoopClock(), 16_000, traced=False)) as client:
            for k in range(120):
                client.send(audio_frame(LOUD_16K if k < 40 else QUIET_16K, 16_000))
                await client.wait(20)

    with virtual_clocks():
        in_virtual_time(play())
    assert figures(metrics.page())["turngap_turns_total", "answered"] == 0


def test_a_failed_turn_and_a_typed_one_have_no_gap() -> None:
    metrics = Metrics(ManualClock())
    metrics.turn_over(AgentTurn(1, {"llm_request": 0}, error="llm: it is gone"))
    metrics.turn_over(AgentTurn(2, {"llm_request": 0, "llm_first_token": MS, "sent": 2 * MS}))
    metrics.turn_over(AgentTurn(3, {"llm_request": 0}))
    metrics.engine_failed("llm")
    page = figures(metrics.page())
    assert [page["turngap_turns_total", outcome] for outcome in OUTCOMES] == [1, 1, 1]
    assert page["turngap_agent_gap_seconds_count", ""] == 0
    assert page["turngap_engine_errors_total", "llm"] == 1


def test_an_agent_that_speaks_before_the_person_is_silent_has_a_gap_of_nothing() -> None:
    metrics = Metrics(ManualClock())
    metrics.turn_over(AgentTurn(1, {"sent": MS}, silent_ns=100 * MS))
    page = figures(metrics.page())
    assert page["turngap_agent_gap_seconds_count", ""] == 1
    assert page["turngap_agent_gap_seconds_sum", ""] == 0


def test_without_prometheus_the_end_of_a_process_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "prometheus_client.multiprocess", None)
    process_gone(str(tmp_path), 1)


def test_the_llm_s_wait_after_a_tool_counts_from_its_result() -> None:
    marks = {"llm_request": 0, "tool_call": 5, "tool_result": 100, "llm_first_token": 130}
    assert engine_waits(marks) == [("llm", 30)]


def test_a_transcript_that_was_there_in_time_was_not_waited_for() -> None:
    metrics = Metrics(ManualClock())
    metrics.turn_over(AgentTurn(1, {"transcript": 10 * MS, "endpoint": 50 * MS}))
    page = figures(metrics.page())
    assert page["turngap_engine_wait_seconds_sum", "stt"] == 0


@given(reasons=st.lists(st.text(max_size=20), max_size=40))
def test_whatever_is_refused_the_page_gets_no_longer(reasons: list[str]) -> None:
    metrics = Metrics(ManualClock())
    series = set(figures(metrics.page()))
    for reason in reasons:
        metrics.refused(reason)
    page = figures(metrics.page())
    assert set(page) == series
    counted = sum(page["turngap_sessions_refused_total", reason] for reason in REASONS)
    assert counted == len(reasons)


def test_the_loop_s_lag_is_measured_as_long_as_somebody_talks() -> None:
    async def talk() -> tuple[Figures, Figures]:
        clock = LoopClock()
        metrics = Metrics(clock)
        with metrics.session() as leave:
            await clock.sleep_until_ns(1050 * MS)
            during = figures(metrics.page())
            leave()
            leave()
            await clock.sleep_until_ns(5000 * MS)
        return during, figures(metrics.page())

    during, after = in_virtual_time(talk())
    assert during["turngap_sessions", ""] == 1
    assert (after["turngap_sessions", ""], after["turngap_sessions_begun_total", ""]) == (0, 1)
    assert after["turngap_event_loop_lag_seconds_count", ""] == 10
    assert after["turngap_event_loop_lag_seconds_sum", ""] == pytest.approx(0, abs=1e-6)


WORKER = """
import asyncio, sys
from turngap.agent.metrics import Metrics
from turngap.marks.recorder import AgentTurn
from turngap.testing import LoopClock, in_virtual_time

async def work():
    metrics = Metrics(LoopClock())
    metrics.seats(8)
    with metrics.session():
        marks = {"sent": 500_000_000}
        for _ in range(int(sys.argv[1])):
            metrics.turn_over(AgentTurn(1, marks, silent_ns=0))
        print("ready", flush=True)
        sys.stdin.readline()
        sys.stdout.write(metrics.page().decode())

in_virtual_time(work())
"""


def test_the_page_of_any_worker_is_the_sum_of_all() -> None:
    with shared_folder() as variables:
        environment = {**os.environ, **variables}
        workers = [_worker(environment, turns) for turns in ("1", "3", "2")]
        try:
            for worker in workers:
                assert worker.stdout is not None
                assert worker.stdout.readline() == "ready\n"
            lost = workers.pop()
            lost.kill()
            lost.communicate()
            process_gone(variables[FOLDER_VARIABLE], lost.pid)
            text, _ = workers[0].communicate("\n", timeout=60)
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()
        page = figures(text.encode())
    # What the lost one has counted stays; what it says of now goes.
    assert page["turngap_turns_total", "answered"] == 6
    assert page["turngap_agent_gap_seconds_sum", ""] == pytest.approx(3)
    assert page["turngap_sessions", ""] == 2
    assert page["turngap_seats", ""] == 8
    assert page["process_resident_memory_bytes", ""] > 1e6
    assert not Path(variables[FOLDER_VARIABLE]).exists()


def _worker(environment: dict[str, str], turns: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, turns],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
