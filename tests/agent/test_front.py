"""Several processes behind one port: who gets which call, what they share, and how it ends."""

import asyncio
import errno
import json
import signal
import socket
from contextlib import AsyncExitStack

import pytest
from fronted import Fronted, fronted
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from helpers.descriptors import open_descriptors
from turngap.agent import crew
from turngap.agent.access import Access
from turngap.agent.limits import Limits
from turngap.agent.seats import DRAINS
from turngap.caller.dialects.pipecat import PipecatSession
from turngap.caller.line import Line, open_line
from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns
from turngap.core.errors import AgentError, InputError

CLOCK = MonotonicClock()
PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a call that lives answer its pings on a busy machine, too."""
    monkeypatch.setattr("turngap.caller.line.PING_WAIT_S", PATIENCE_S)


async def calls(agent: Fronted, stack: AsyncExitStack, number: int) -> list[Line]:
    """Open so many calls, each of which has its seat."""
    opened = [
        await stack.enter_async_context(open_line(agent.url, PipecatSession(), CLOCK))
        for _ in range(number)
    ]
    assert [(await line.clock_offset()).n for line in opened] == [12] * number
    return opened


async def refused(agent: Fronted, path: str = "/ws") -> tuple[int, str]:
    """With which code and words a call is closed."""
    async with connect(agent.url.removesuffix("/ws") + path) as client, asyncio.timeout(PATIENCE_S):
        return await closed(client)


async def closed(client: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as raised:
        while True:
            await client.recv()
    assert raised.value.rcvd is not None
    return raised.value.rcvd.code, raised.value.rcvd.reason


async def answered(agent: Fronted, request: bytes) -> tuple[int, str]:
    """The status and body of whatever comes for these bytes, until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            writer.write(request)
            answer = await reader.read()
    except ConnectionResetError:
        return 0, ""
    finally:
        writer.close()
        await asyncio.wait({asyncio.ensure_future(writer.wait_closed())})
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]) if head else 0, body.decode()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


# --- who gets which call ----------------------------------------------------------------------


async def test_calls_are_spread_evenly_and_a_new_one_goes_where_the_fewest_are() -> None:
    async with fronted() as agent, AsyncExitStack() as stack:
        lines = AsyncExitStack()
        async with lines:
            await calls(agent, lines, 4)
            assert agent.calls == [2, 2]
        await agent.calls_become(0, 0)
        first = AsyncExitStack()
        async with first:
            await calls(agent, first, 1)
            await calls(agent, stack, 1)
            assert agent.calls == [1, 1]
        await agent.calls_become(0, 1)
        await calls(agent, stack, 1)
        assert agent.calls == [1, 1]
        await calls(agent, stack, 2)
        assert agent.calls == [2, 2]


async def test_calls_of_every_protocol_are_spread() -> None:
    async with fronted() as agent, AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        base = agent.url.removesuffix("/ws")
        for path in ("/ws", "/twilio", "/twilio/x?y=1", "/v1/realtime?model=x"):
            await stack.enter_async_context(connect(base + path))
        await agent.sessions_become(4)
        assert agent.calls == [2, 2]


async def test_what_is_no_call_is_answered_by_one_worker_and_says_what_all_do() -> None:
    async with fronted() as agent, AsyncExitStack() as stack:
        await calls(agent, stack, 3)
        for _ in range(2):
            said = json.loads((await answered(agent, get("/healthz")))[1])
            assert said == {"agent": "fake", "sessions": 3}
        assert await answered(agent, get("/readyz")) == (
            200,
            '{"agent":"fake","ready":true,"sessions":3}',
        )
        assert (await answered(agent, get("/ws")))[0] == 404  # no WebSocket
        assert agent.calls == [2, 1]


# --- what they share --------------------------------------------------------------------------


async def test_the_seats_of_all_workers_are_those_of_one_server() -> None:
    async with fronted(max_sessions=3) as agent, AsyncExitStack() as stack:
        async with AsyncExitStack() as one:
            await calls(agent, one, 1)
            await calls(agent, stack, 2)
            code, words = await refused(agent)
            assert code == 1013
            assert words.startswith("full: 3 of 3 conversations; try again later, or serve")
            status, said = await answered(agent, get("/readyz"))
            assert status == 503
            assert json.loads(said)["reason"].startswith("full: 3 of 3 conversations")
        await agent.sessions_become(2)
        await calls(agent, stack, 1)


async def test_who_begins_too_many_is_refused_whichever_worker_it_gets() -> None:
    limits = Limits(begins_per_s=0.001)
    async with fronted(max_sessions=1, limits=limits) as agent:
        for _ in range(2):
            async with AsyncExitStack() as stack:
                await calls(agent, stack, 1)
            await agent.sessions_become(0)
        said = [await refused(agent) for _ in range(2)]
    assert said == [(1013, "too many conversations begin: try again in a second")] * 2


async def test_connections_are_counted_together() -> None:
    async with fronted(max_sessions=1, limits=Limits(connections=2)) as agent:
        async with AsyncExitStack() as stack:
            await calls(agent, stack, 1)
            _, writer = await asyncio.open_connection("127.0.0.1", agent.port)
            status, said = await answered(agent, get("/healthz"))
            writer.close()
            await writer.wait_closed()
        await agent.calls_become(0, 0)
    assert (status, said) == (503, "more than 2 connections are open from one address\n")


async def test_the_token_is_asked_for_by_every_worker() -> None:
    access = Access.for_host("0.0.0.0", "t0ken-t0ken-t0ken")
    async with fronted(access=access) as agent:
        codes = [(await refused(agent, path))[0] for path in ("/ws", "/ws", "/v1/realtime")]
        async with connect(f"{agent.url}?token=t0ken-t0ken-t0ken"):
            await agent.sessions_become(1)
    assert codes == [4401] * 3


# --- what clients may do to the front -----------------------------------------------------------


async def test_a_request_that_does_not_come_is_answered_in_time() -> None:
    async with fronted(limits=Limits(request_s=0.2)) as agent:
        for begun in (b"", b"GE", b"GET /ws HTTP/1.1\r\nHost: localhost\r\n"):
            status, said = await answered(agent, begun)
            assert (status, said) == (408, "no complete request came within 0.2 s\n")


async def test_the_time_that_the_front_waited_counts_for_the_whole_request() -> None:
    async with fronted(limits=Limits(request_s=1.5)) as agent, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        writer.write(b"GET /healthz HT")
        while not agent.front._connections:
            await CLOCK.sleep_until_ns(CLOCK.now_ns() + 1_000_000)
        await CLOCK.sleep_until_ns(CLOCK.now_ns() + ms_to_ns(400))
        # Handed to a worker, which now waits no longer for the rest than for a request that
        # begins after it: both wait in one event loop, so that no load can change their order.
        writer.write(b"TP/1.1\r\n")
        while all(opened.hand is None for opened in agent.front._connections.values()):
            await CLOCK.sleep_until_ns(CLOCK.now_ns() + 1_000_000)
        later = asyncio.create_task(answered(agent, b"GET /healthz HT"))
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        assert not later.done()
        assert (await later)[0] == 408
        writer.close()


async def test_a_flood_of_whatever_stops_no_call() -> None:
    hostile = [
        b"",
        b"\x00" * 3000,
        b"GET " + b"/" * 9000,
        b"GET /ws HTTP/1.1\r\n" + b"X: y\r\n" * 4000,
        b"\r\n\r\nGET /ws HTTP/1.1\r\n\r\n",
        b"GET /ws HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]
    limits = Limits(request_s=0.3, connections=8)
    async with fronted(limits=limits) as agent, AsyncExitStack() as stack:
        (line, *_) = await calls(agent, stack, 2)
        for _ in range(5):
            await asyncio.gather(*(answered(agent, bytes_) for bytes_ in hostile))
            assert (await line.clock_offset()).n == 12
        await agent.calls_become(1, 1)
        await calls(agent, stack, 1)


async def test_a_request_longer_than_one_message_is_handed_over_whole() -> None:
    head = get("/healthz").removesuffix(b"\r\n") + b"X: " + b"y" * 7000 + b"\r\n\r\n"
    async with fronted() as agent:
        assert json.loads((await answered(agent, head))[1])["agent"] == "fake"
        long = {"X-Long": "y" * 7000}
        async with connect(agent.url, additional_headers=long):
            await agent.sessions_become(1)


# --- workers that come and go -------------------------------------------------------------------


async def test_a_worker_that_dies_loses_its_calls_only_and_is_replaced() -> None:
    async with fronted(max_sessions=4) as agent, AsyncExitStack() as stack:
        first, second, third, _ = await calls(agent, stack, 4)
        agent.workers.started[1].kill()
        await agent.calls_become(2, 0)
        await agent.sessions_become(2)
        assert (await first.clock_offset()).n == 12
        assert (await third.clock_offset()).n == 12
        # A worker of the test's own process closes its calls a moment after its line to the front.
        with pytest.raises(AgentError, match="line was lost"):
            async with asyncio.timeout(PATIENCE_S):
                async for _ in second.messages():
                    pass
        await agent.all_are_ready()
        assert len(agent.workers.started) == 3
        await calls(agent, stack, 2)
        assert agent.calls == [2, 2]


async def test_calls_go_on_while_the_page_s_worker_starts_again() -> None:
    async with fronted() as agent, AsyncExitStack() as stack:
        (_, line) = await calls(agent, stack, 2)
        agent.workers.fails.append(AgentError("engine.none", "not this time"))
        agent.workers.started[0].kill()
        await agent.calls_become(0, 1)
        assert (await line.clock_offset()).n == 12
        assert await answered(agent, get("/readyz")) == (
            200,
            '{"agent": "fake", "ready": true, "sessions": 1}\n',
        )
        assert await answered(agent, get("/healthz")) == (200, '{"agent": "fake", "sessions": 1}\n')
        status, said = await answered(agent, get("/"))
        assert (status, said[:32]) == (503, "one of the agent's processes is ")
        await calls(agent, stack, 1)
        assert agent.refused == []
        await agent.all_are_ready()
        assert (await answered(agent, get("/healthz")))[0] == 200


async def test_a_worker_that_cannot_be_started_again_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "FIRST_PAUSE_MS", 0.0)
    async with fronted() as agent, AsyncExitStack() as stack:
        (line, _) = await calls(agent, stack, 2)
        before = open_descriptors()
        agent.workers.fails += [OSError(errno.EAGAIN, "try again"), OSError(errno.EMFILE, "many")]
        agent.workers.started[1].kill()
        await agent.calls_become(1, 0)
        await agent.all_are_ready()
        assert len(agent.workers.started) == 3
        assert (await line.clock_offset()).n == 12
        assert open_descriptors() <= before


async def test_a_worker_whose_line_is_closed_gets_no_call_while_it_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fronted() as agent, AsyncExitStack() as stack:
        worker, ends = agent.workers.started[1], asyncio.Event()
        monkeypatch.setattr(worker, "wait", lambda: _after(ends, -9))
        monkeypatch.setattr(worker, "kill", ends.set)
        worker.end.shutdown(socket.SHUT_RDWR)
        async with asyncio.timeout(PATIENCE_S):
            while agent.front.hands[1].ready:
                await CLOCK.sleep_until_ns(CLOCK.now_ns() + 1_000_000)
        await calls(agent, stack, 2)
        assert agent.calls == [2, 0]
        assert not ends.is_set()
        ends.set()
        await agent.all_are_ready()


async def test_a_worker_that_does_not_end_with_its_line_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "STOP_S", 0.05)
    monkeypatch.setattr(crew, "FIRST_PAUSE_MS", 0.0)
    async with fronted() as agent:
        worker, ends = agent.workers.started[1], asyncio.Event()
        monkeypatch.setattr(worker, "wait", lambda: _after(ends, -9))
        monkeypatch.setattr(worker, "kill", ends.set)
        worker.end.shutdown(socket.SHUT_RDWR)
        async with asyncio.timeout(PATIENCE_S):
            while len(agent.workers.started) < 3:
                await CLOCK.sleep_until_ns(CLOCK.now_ns() + 1_000_000)
        assert ends.is_set()


async def _after(event: asyncio.Event, code: int) -> int:
    await event.wait()
    return code


async def test_a_call_for_which_there_is_no_worker_is_counted() -> None:
    async with fronted() as agent:
        agent.front.open = False
        with pytest.raises(InvalidStatus):
            await connect(agent.url)
        await answered(agent, get("/"))
        assert agent.refused == ["other"]


async def test_an_agent_that_cannot_begin_ends_with_its_own_error() -> None:
    error = InputError("weights.none", "there are no weights", hint="fetch them")
    async with fronted(fails=(error,), ready=False) as agent:
        with pytest.raises(InputError) as raised:
            await agent.serving
    assert (raised.value.kind, raised.value.message) == ("weights.none", "there are no weights")
    assert raised.value.hint == "fetch them"


async def test_when_one_cannot_begin_those_that_load_are_ended_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "STOP_S", 3600.0)
    fails = ("serves", "loads", AgentError("engine.none", "there is none"))
    async with fronted(count=3, fails=fails, ready=False) as agent:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(AgentError, match="there is none"):
                await agent.serving
        assert [worker.killed for worker in agent.workers.started] == [False, True, False]


async def test_until_all_are_loaded_everybody_is_told_so() -> None:
    async with fronted() as agent:
        agent.front.open = False
        assert (await answered(agent, get("/healthz")))[0] == 200
        status, said = await answered(agent, get("/readyz"))
        assert status == 503
        assert json.loads(said)["reason"].startswith("not ready: the agent's models are still")
        with pytest.raises(InvalidStatus):
            await connect(agent.url)


# --- the end ------------------------------------------------------------------------------------


async def test_sigterm_during_eight_calls_cuts_none_off_and_tells_new_ones_why() -> None:
    async with fronted(max_sessions=16, drain_s=60) as agent:
        async with AsyncExitStack() as stack:
            lines = await calls(agent, stack, 8)
            agent.crew.end(signal.SIGTERM)
            code, words = await refused(agent)
            assert (code, words) == (1012, DRAINS)
            status, said = await answered(agent, get("/readyz"))
            assert (status, json.loads(said)["reason"]) == (503, words)
            assert (await answered(agent, get("/healthz")))[0] == 200
            assert [(await line.clock_offset()).n for line in lines] == [12] * 8
            assert agent.calls == [4, 4]
            assert not agent.serving.done()
        async with asyncio.timeout(PATIENCE_S):
            await agent.serving


async def test_a_second_sigterm_ends_at_once() -> None:
    async with fronted(drain_s=60) as agent, AsyncExitStack() as stack:
        (line,) = await calls(agent, stack, 1)
        agent.crew.end(signal.SIGTERM)
        assert (await line.clock_offset()).n == 12
        agent.crew.end(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            await agent.serving


async def test_a_worker_that_dies_while_the_server_drains_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "FIRST_PAUSE_MS", 0.0)
    async with fronted(drain_s=60) as agent, AsyncExitStack() as stack:
        (line, _) = await calls(agent, stack, 2)
        agent.crew.end(signal.SIGTERM)
        (keeps,) = (task for task in asyncio.all_tasks() if task.get_name() == "keeps worker 1")
        agent.workers.started[1].kill()
        async with asyncio.timeout(PATIENCE_S):
            await keeps
        assert agent.calls == [1, 0]
        assert (await line.clock_offset()).n == 12
        assert len(agent.workers.started) == 2


async def test_a_call_that_does_not_end_is_cut_off_when_the_time_to_drain_is_up() -> None:
    async with fronted(drain_s=0.3) as agent, AsyncExitStack() as stack:
        (line,) = await calls(agent, stack, 1)
        agent.crew.end(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            await agent.serving
            with pytest.raises(AgentError, match=r"line was lost|closed"):
                await line.clock_offset()


async def test_workers_that_do_not_stop_are_killed_and_nobody_waits_at_the_door(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "STOP_S", 0.2)
    async with fronted(count=3, fails=("hangs",) * 3) as agent:
        agent.workers.started[1].kill()  # has ended by itself: to kill it again is an error
        agent.crew.end(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(OSError, match=r"Connect call failed|reset"):
                while True:
                    await answered(agent, b"")
            await agent.serving
        assert all(worker.killed for worker in agent.workers.started)


async def test_a_further_signal_kills_workers_that_do_not_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "STOP_S", 3600.0)
    async with fronted(fails=("hangs",) * 2, drain_s=60) as agent:
        agent.crew.end(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            while not agent.crew._stops:
                await CLOCK.sleep_until_ns(CLOCK.now_ns() + 1_000_000)
        agent.crew.end(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            await agent.serving
