"""The live page's server: what it serves, whom, what it keeps, and what ends a conversation."""

import asyncio
import dataclasses
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from fake_engines import fake_assembly
from live_server import CLOCK, PATIENCE_S, RATE, Page, Serving, serving, silence, tone

from helpers.descriptors import open_descriptors
from helpers.made_speech import spoken
from turngap.agent.access import Access, Limits
from turngap.agent.switching import Offers
from turngap.backends import ConfiguredBackend
from turngap.caller.dialects.pipecat import audio_frame
from turngap.core.counts import OUTSIDE
from turngap.scenario.library import Domain
from turngap.store.folders import find_run
from turngap.store.runs import read_run

TOKEN = "0123456789abcdef-token"


def report(turn: int, start_ns: int, end_ns: int, **more: Any) -> dict[str, Any]:
    """A turn as the page reports it; the reply sets in 300 ms after the user's end."""
    onset_ns = end_ns + 300_000_000
    stretch = {"onset_ns": onset_ns, "received_ns": onset_ns - 1, "lead_ns": 0}
    return {
        "turn": turn,
        "input": "voice",
        "start_ns": start_ns,
        "end_ns": end_ns,
        "over_reply": False,
        "agent": [{**stretch, "end_ns": onset_ns + 500_000_000}],
        "flushed_ns": [],
        "ended_ns": onset_ns + 700_000_000,
        "ended": "reply_done",
        "stall_ms": 0.0,
        "view": {"page_ms": 300.0},
        "offset": {"offset_ns": 0, "bound_ns": 1000, "n": 12},
        **more,
    }


async def one_turn(page: Page, turn: int = 1, **more: Any) -> dict[str, Any]:
    """Speak, hear the reply out, report it; what was kept of it."""
    spoke_ns = CLOCK.now_ns()
    begun_ns, ended_ns = await page.speak(silence(100), tone(300), silence(400))
    await page.heard_all()
    start_ns, end_ns = begun_ns + 100_000_000, ended_ns - 400_000_000
    # The page's clock is placed so that its turn ended when it began to speak. The agent's facts
    # came at some time since then, and by so much the clock may be wrong.
    offset_ns, bound_ns = spoke_ns - end_ns, CLOCK.now_ns() - spoke_ns + 600_000_000
    offset = {"offset": {"offset_ns": offset_ns, "bound_ns": bound_ns, "n": 12}}
    await page.say("turngap.turn", report(turn, start_ns, end_ns, **offset) | more)
    return await page.next("kept", turn)


# --- what is served ---------------------------------------------------------------------------


async def test_the_page_and_its_files_are_served_under_a_strict_policy(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        for path, kind in (("/", "text/html"), ("/page/main.js", "text/javascript")):
            status, headers, body = await server.get(path)
            assert status == 200
            assert headers["content-type"].startswith(kind)
            assert len(body) > 100
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self';" in policy
            assert f"ws://127.0.0.1:{server.port}" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert "microphone=(self)" in headers["permissions-policy"]


async def test_nothing_beside_the_page_is_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        for path in ("/page/../app.py", "/page/%2e%2e/app.py", "/page/", "/docs", "/openapi.json"):
            status, headers, _ = await server.get(path)
            assert status == 404
            assert "default-src 'none'" in headers["content-security-policy"]


async def test_it_says_what_it_is(tmp_path: Path) -> None:
    async with serving(tmp_path, max_sessions=3) as server:
        status, _, body = await server.get("/api/about")
        about = json.loads(body)
        assert status == 200
        assert about["agent"] == "fake"
        assert (about["sessions"], about["max_sessions"]) == (0, 3)
        assert (about["in_sample_rate"], about["out_sample_rate"]) == (16_000, 24_000)


# --- a conversation ---------------------------------------------------------------------------


async def test_a_reported_turn_is_kept_as_a_run_that_can_be_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        async with server.page() as page:
            session = await page.ready()
            assert session["id"]
            told = {field.name for field in dataclasses.fields(Limits)} | {"max_sessions"}
            assert set(session["limits"]) == told
            assert session["limits"]["max_sessions"] == 8
            llm = await page.next("llm")
            assert llm["current"] == "fake"
            assert llm["switched"] is None
            kept = await one_turn(page)
            assert kept["gap_ms"] == 300.0
            assert kept["outcome"] == "answered"
            assert kept["llm"] == "fake"
            assert kept["record"]["marks"]
            assert kept["figures"]["llms"] == {"fake": kept["figures"]["all"]}
            assert (kept["figures"]["all"]["hits"], kept["figures"]["all"]["n"]) == (1, 1)
        await server.becomes(0)
    # Whatever the server is writing when it is stopped is there once it has stopped.
    run = read_run(find_run("latest", tmp_path / "runs"))
    turn = run.turns[0]
    assert (turn.say, turn.transcript, turn.llm) == ("hello", "hello", "fake")
    assert turn.reply == "Well hello, you there."
    assert sum(stage.ns for stage in turn.stages) == turn.gap_ns == 300_000_000
    assert {m.name for m in turn.marks} >= {"user_end", "llm_request", "sent", "agent_onset"}
    assert turn.audio is not None
    assert (run.path / turn.audio.file).is_file()
    assert run.record.agent["stack"] == "fake"
    assert run.record.settings["ended"] == "the page ended it"
    assert run.record.finished_utc is not None
    assert run.problems == ()


async def test_the_marks_come_when_the_reply_is_heard_and_again_when_it_is_over(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server, server.page() as page:
        await page.ready()
        await page.speak(tone(300), silence(400))
        first = await page.next("marks")
        assert "sent" in first["marks"]
        assert (first["llm"], first["typed"]) == ("fake", False)
        await page.heard_all()
        assert page.rtvi.index("marks") < page.rtvi.index("bot-stopped-speaking")
        last = await page.next("marks", 2)
        assert last["turn"] == first["turn"]
        assert first["marks"].items() <= last["marks"].items()


async def test_a_typed_turn_is_answered_and_kept_out_of_the_figures(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.page() as page:
        await page.ready()
        await page.say("turngap.say", {"turn": 1, "text": "good <b>evening</b>"})
        assert (await page.next("said"))["turn"] == 1
        assert (await page.next("marks"))["typed"] is True
        await page.heard_all()
        offset_ns = CLOCK.now_ns() - 1_500_000_000
        typed = report(
            1, 0, 0, input="typed", offset={"offset_ns": offset_ns, "bound_ns": 1, "n": 1}
        )
        await page.say("turngap.turn", typed)
        kept = await page.next("kept")
        assert (kept["gap_ms"], kept["left_out"], kept["outcome"]) == (None, "typed", "answered")
        assert "no one spoke" in kept["why_no_gap"]
        assert kept["record"]["say"] == "good <b>evening</b>"


def turns_told(page: Page) -> set[int]:
    return {marks["turn"] for marks in page.of("marks")}


@pytest.mark.parametrize("closed", [True, False])
async def test_typed_text_that_the_model_cannot_know_gets_what_can_be_asked_for(
    closed: bool, tmp_path: Path
) -> None:
    domain = Domain({"taxis": "call a taxi"}, ("call a taxi",), ("call a taxi",))
    assembly = fake_assembly()
    first = assembly.offers.first
    narrow = dataclasses.replace(first.spec, narrow=lambda settings: True)
    offers = Offers([ConfiguredBackend("fake", narrow, first.settings)])
    assembly = dataclasses.replace(assembly, domain=domain, offers=offers, closed=closed)
    async with serving(tmp_path, assembly) as server, server.page() as page:
        await page.ready()
        outside: list[int] = []
        for turn, text in enumerate(("what is the capital of France?", "call me a taxi"), 1):
            await page.say("turngap.say", {"turn": turn, "text": text})
            await page.until(lambda turn=turn: len(turns_told(page)) == turn)
            await page.heard_all()
            outside.append(page.of("marks")[-1]["counts"].get(OUTSIDE, 0))
        about = json.loads((await server.get("/api/about"))[2])
    assert outside == [1, 0]
    assert "knows only some sentences about taxis" in about["say"]
    assert ("The project's own language model" in about["say"]) is not closed
    assert about["examples"] == ["call a taxi"]


@pytest.mark.parametrize("text", ["", "  ", "x" * 2001])
async def test_text_that_is_too_short_or_too_long_is_refused(text: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.page() as page:
        await page.ready()
        await page.say("turngap.say", {"turn": 1, "text": text})
        refused = await page.next("refused")
        assert (refused["re"], refused["kind"]) == ("turngap.say", "say.length")


async def test_a_typed_turn_whose_number_is_none_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.page() as page:
        await page.ready()
        await page.say("turngap.say", {"turn": "one", "text": "good evening"})
        refused = await page.next("refused")
        assert (refused["re"], refused["kind"]) == ("turngap.say", "say.turn")


WRONG_REPORTS: dict[str, Any] = {
    "nothing": None,
    "no offset": report(1, 0, 10) | {"offset": None},
    "ends before it begins": report(1, 20, 10),
    "lasts for hours": report(1, 0, 10, ended_ns=10**13),
    "beyond any clock": report(1, 0, 10, ended_ns=2**60),
    "an unknown end": report(1, 0, 10, ended="bored"),
    "turn nought": report(0, 0, 10),
}


@pytest.mark.parametrize("name", WRONG_REPORTS)
async def test_a_wrong_report_is_refused_and_the_conversation_goes_on(
    name: str, tmp_path: Path
) -> None:
    async with serving(tmp_path) as server, server.page() as page:
        await page.ready()
        await page.say("turngap.turn", WRONG_REPORTS[name])
        refused = await page.next("refused")
        assert refused["re"] == "turngap.turn"
        assert refused["message"]
        await page.ping()


# --- taking it away ---------------------------------------------------------------------------


def unzipped(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


async def test_the_run_and_the_scenario_can_be_taken_away_meanwhile_and_after(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        async with server.page() as page:
            id_ = (await page.ready())["id"]
            assert (await server.get(f"/api/runs/{id_}.zip"))[0] == 409
            await one_turn(page)
            status, headers, body = await server.get(f"/api/runs/{id_}.zip")
            assert status == 200
            assert headers["content-type"] == "application/zip"
            names = {Path(name).name for name in unzipped(body)}
            assert names >= {"run.json", "turns.jsonl", "001.wav"}
        await server.becomes(0)
        status, saved = await server.post(f"/api/runs/{id_}/scenario", {"name": "my-talk"})
        assert status == 200
        assert (saved["turns"], saved["left_out"], saved["folder"]) == (1, [], None)
        status, _, body = await server.get(saved["zip"])
        assert status == 200
        assert set(unzipped(body)) == {"my-talk.yaml", "my-talk/1.flac"}


BAD_NAMES = [
    {"name": "../evil"},
    {"name": ""},
    {"name": "Ä"},
    {},
    {"name": "a", "b": 1},
    b"{",
    b"x" * 9000,
]


@pytest.mark.parametrize("body", BAD_NAMES)
async def test_a_bad_name_saves_nothing(body: Any, tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.page() as page:
        id_ = (await page.ready())["id"]
        status, answer = await server.post(f"/api/runs/{id_}/scenario", body)
        assert status in (413, 422)
        assert answer["error"]["message"]


async def test_whoever_does_not_know_the_id_gets_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.page() as page:
        await page.ready()
        status, _, body = await server.get("/api/runs/0123456789abcdef.zip")
        assert status == 404
        assert json.loads(body)["error"]["kind"] == "live.unknown"


# --- who may ----------------------------------------------------------------------------------


async def refused_with(server: Serving, code: int, query: str = "", **more: Any) -> str:
    async with server.page(query, **more) as page:
        await page.until(lambda: page.closed)
        assert page.closed is not None
        assert page.closed[0] == code
        return page.closed[1]


async def test_without_the_token_nobody_gets_in(tmp_path: Path) -> None:
    access = Access(loopback=False, token=TOKEN)
    async with serving(tmp_path, access=access) as server:
        guarded = (
            "/",
            "/page/main.js",
            "/api/about",
            "/?token=wrong",
            "/api/runs/x.zip",
        )
        for path in (*guarded, "/?token=wrong"):
            status, headers, body = await server.get(path)
            assert status == 401
            assert b"token" in body
            assert "default-src 'none'" in headers["content-security-policy"]
        assert (await server.get("/healthz"))[0] == 200
        assert "token" in await refused_with(server, 4401)
        assert "token" in await refused_with(server, 4401, "?token=wrong")
        assert TOKEN not in repr(access)


async def test_the_token_becomes_a_cookie_and_leaves_the_address(tmp_path: Path) -> None:
    async with serving(tmp_path, access=Access(loopback=False, token=TOKEN)) as server:
        status, headers, _ = await server.get(f"/?token={TOKEN}")
        assert (status, headers["location"]) == (303, "/")
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        pair = cookie.partition(";")[0]
        assert (await server.get("/", Cookie=pair))[0] == 200
        assert (await server.get("/api/about", Authorization=f"Bearer {TOKEN}"))[0] == 200
        async with server.page(additional_headers={"Cookie": pair}) as page:
            assert (await page.ready())["id"]


async def test_a_page_from_elsewhere_may_not_talk_to_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        reason = await refused_with(server, 4403, origin="https://evil.example")
        assert "evil.example" in reason
        assert (await server.get("/api/about", Origin="https://evil.example"))[0] == 403
        assert (await server.get("/", Host="evil.example"))[0] == 403
        async with server.page(origin=f"http://127.0.0.1:{server.port}") as page:
            await page.ready()


async def test_a_proxys_origin_can_be_allowed(tmp_path: Path) -> None:
    access = Access.for_host("127.0.0.1", None, ("https://talk.example.org",))
    async with serving(tmp_path, access=access) as server:
        assert (await server.get("/", Host="talk.example.org"))[0] == 200
        async with server.page(origin="https://talk.example.org") as page:
            await page.ready()


# --- bounds -----------------------------------------------------------------------------------


async def test_a_full_server_says_so_and_takes_the_next_when_there_is_room(tmp_path: Path) -> None:
    async with serving(tmp_path, max_sessions=1) as server:
        async with server.page() as page:
            await page.ready()
            reason = await refused_with(server, 1013)
            assert "1 of 1 conversations" in reason
            assert reason.endswith("--max-sessions")
        await server.becomes(0)
        async with server.page() as page:
            await page.ready()


BAD_MESSAGES: dict[str, tuple[Any, int]] = {
    "text": ("hello", 1003),
    "no protobuf": (b"\xff\xfe\xfd", 1007),
    "an empty frame": (b"", 1007),
    "another rate": (audio_frame(b"\0" * 640, 48_000), 1007),
    "half a sample": (audio_frame(b"\0" * 3, RATE), 1007),
    "too big": (audio_frame(b"\0" * 70_000, RATE), 1009),
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
async def test_what_nobody_should_send_ends_the_conversation_with_a_reason(
    name: str, tmp_path: Path
) -> None:
    message, code = BAD_MESSAGES[name]
    async with serving(tmp_path) as server:
        async with server.page() as page:
            await page.ready()
            await page.socket.send(message)
            await page.until(lambda: page.closed)
            assert page.closed is not None
            assert page.closed[0] == code
            assert page.closed[1]
        await server.becomes(0)


async def test_too_many_messages_are_cut_off(tmp_path: Path) -> None:
    # So slowly that a busy machine, too, sends and reads faster.
    limits = Limits(messages_per_s=2, burst_s=1)
    async with serving(tmp_path, limits=limits) as server, server.page() as page:
        await page.ready()
        for _ in range(40):
            await page.say("turngap.ping", {"ping": 1})
        await page.until(lambda: page.closed)
        assert page.closed is not None
        assert page.closed[0] == 4429


async def test_turns_longer_than_there_was_time_for_fill_no_disk(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.page() as page:
        await page.ready()
        for turn in (1, 2):
            await page.say("turngap.turn", report(turn, 0, 10, ended_ns=599 * 10**9))
        refused = await page.next("refused")
        assert refused["kind"] == "live.turn_length"
        assert (await page.next("kept"))["turn"] == 1


async def test_turns_of_no_length_fill_no_disk_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turngap.live.app.TURNS_RATE", 0.005)
    async with serving(tmp_path) as server, server.page() as page:
        await page.ready()
        for turn in range(1, 6):  # ten minutes' worth at that rate are 3 s
            await page.say("turngap.turn", report(turn, 0, 0, agent=[], ended_ns=0))
        refused = await page.next("refused")
        assert refused["kind"] == "live.turn_length"


async def test_a_page_that_vanishes_is_closed_and_its_run_kept(tmp_path: Path) -> None:
    limits = Limits(vanished_s=1.0)
    async with serving(tmp_path, limits=limits) as server:
        async with server.page() as page:
            await page.ready()
            await one_turn(page)
            await page.until(lambda: page.closed)
            assert page.closed == (4408, "no message came for 1 seconds")
        await server.becomes(0)
    run = read_run(find_run("latest", tmp_path / "runs"))
    assert len(run.turns) == 1
    assert run.record.settings["ended"] == "no message came for 1 seconds"


async def warm_up(tmp_path: Path) -> None:
    """Hold a conversation: the first agent of a process takes a second or more to begin."""
    async with serving(tmp_path) as server, server.page() as page:
        await page.ready()


async def test_a_quiet_conversation_is_warned_and_closed(tmp_path: Path) -> None:
    await warm_up(tmp_path)
    limits = Limits(idle_s=3.0, warn_s=2.7)
    async with serving(tmp_path, limits=limits) as server, server.page() as page:
        await page.ready()
        notice = await page.next("notice")
        assert notice["kind"] == "idle_soon"
        assert re.fullmatch(r"The server hangs up in \d+ s unless you speak", notice["message"])
        await page.until(lambda: page.closed)
        assert page.closed is not None
        assert page.closed[0] == 4408
        assert "no one spoke" in page.closed[1]


# --- a lost line ------------------------------------------------------------------------------


async def test_a_turn_in_flight_when_the_line_is_lost_becomes_an_error(
    tmp_path: Path,
) -> None:
    said = spoken(before_ms=20, after_ms=50)
    async with serving(tmp_path) as server:
        async with server.page() as page:
            id_ = (await page.ready())["id"]
            await page.speak(silence(100), said.pcm, silence(400))
            # Not for audio alone: a session also begins with some, which is silent.
            await page.until(lambda: page.audio and "user-transcription" in page.rtvi)
            held = server.live.conversations.get(id_)
            # It takes what was said faster than it was, and answers what lies before a pause.
            async with asyncio.timeout(PATIENCE_S):
                while held.conversation.connection.mic.total < page.sent_samples:
                    await CLOCK.sleep_until_ns(CLOCK.now_ns() + 20_000_000)
            page.socket.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            while not held.turns:
                await CLOCK.sleep_until_ns(CLOCK.now_ns() + 20_000_000)
    run = read_run(find_run("latest", tmp_path / "runs"))
    turn = run.turns[0]
    assert (turn.outcome, turn.ended, turn.gap_ms) == ("error", "line_lost", None)
    assert "the page had measured" in (turn.why_no_gap or "")
    # The stand-in for a recogniser hears it at each silence of 100 ms.
    assert set(turn.transcript.split()) == {"hello"}
    assert turn.audio is not None
    assert abs(turn.audio.user_end_ms - (100 + 20 + said.end_ms - said.start_ms)) < 20


async def test_a_server_that_stops_meanwhile_keeps_the_reason_why_the_page_left(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        async with server.page() as page:
            await page.ready()
            await one_turn(page)
            page.socket.transport.abort()
        await server.becomes(0)
    run = read_run(find_run("latest", tmp_path / "runs"))
    assert run.record.settings["ended"] == "the line was lost"


async def test_pages_that_come_and_go_without_a_word_leave_nothing_open(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        conversations = server.live.conversations
        await CLOCK.sleep_until_ns(CLOCK.now_ns() + 1_000_000)  # its timer stays open
        before = open_descriptors()
        for _ in range(8):
            async with server.page() as page:
                await page.ready()
            await server.becomes(0)
        # Its seat is free before a conversation has ended, and a socket is closed by the event loop
        # some rounds later still.
        async with asyncio.timeout(PATIENCE_S):
            while conversations.count or open_descriptors() > before:
                await CLOCK.sleep_until_ns(CLOCK.now_ns() + 20_000_000)


async def test_a_conversation_without_a_turn_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        async with server.page() as page:
            await page.ready()
        await server.becomes(0)
    assert not (tmp_path / "runs").exists()


async def test_an_agent_that_fails_says_so_to_the_page(tmp_path: Path) -> None:
    async with serving(tmp_path, fake_assembly(broken=True)) as server:
        reason = await refused_with(server, 1011)
        assert "no voice" in reason
        await server.becomes(0)


async def test_when_the_server_ends_every_run_is_whole(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.page() as page:
        await page.ready()
        await one_turn(page)
        await server.live.close()
        run = read_run(find_run("latest", tmp_path / "runs"))
        assert run.record.finished_utc is not None


async def test_plain_callers_share_the_seats_and_are_not_recorded(tmp_path: Path) -> None:
    async with serving(tmp_path, max_sessions=1) as server, server.page() as page:
        await page.ready()
        status, _, body = await server.get("/healthz")
        assert (status, json.loads(body)["sessions"]) == (200, 1)
