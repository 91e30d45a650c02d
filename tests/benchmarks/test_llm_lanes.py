"""benchmarks/llm_lanes.py: an open loop of requests, in virtual time, and what is made of it."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import llm_lanes
import pytest
from aiohttp import web
from fake_vllm import FakeVllm
from lane_figures import Cell, held, price, rates_table, worth_table
from lane_load import (
    ARRANGEMENTS,
    BOTH,
    WARM_S,
    Came,
    Due,
    Heard,
    Lane,
    ServerPath,
    SmallPath,
    arranged,
    played,
    requests,
)
from llm_lanes import BEGIN
from pages import END
from vllm_load import Running

from turngap.clocks import others_first
from turngap.core.clock import ms_to_ns
from turngap.core.errors import ExitCode
from turngap.testing import LoopClock, in_virtual_time

ROOT = Path(__file__).parents[2]
TOKENS, TEXTS = 10, ("one", "two", "three")


class Batch:
    """A server whose steps take 10 ms for each reply that it makes at the time."""

    def __init__(self) -> None:
        self.going = self.most = 0

    async def reply(self, text: str, came: Came) -> None:
        self.going += 1
        self.most = max(self.most, self.going)
        try:
            for number in range(1, TOKENS + 1):
                clock = LoopClock()
                await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(10 * self.going))
                came(number)
        finally:
            self.going -= 1


class Deaf:
    """A server that never answers."""

    async def reply(self, text: str, came: Came) -> None:
        await asyncio.Event().wait()


class Refusing:
    """A server that breaks off."""

    async def reply(self, text: str, came: Came) -> None:
        came(1)
        raise ConnectionError("gone")


def all_of(schedule: Callable[[], Sequence[tuple[Due, Lane]]]) -> list[Heard]:
    async def of_it() -> list[Heard]:
        return await played(schedule(), LoopClock())

    return in_virtual_time(of_it())


def dues(*at_s: float, uncounted: int = 0) -> list[Due]:
    return [Due(at, "x", counted=number >= uncounted) for number, at in enumerate(at_s)]


def test_what_a_request_waits_for_its_place_is_part_of_its_time() -> None:
    one, two = all_of(lambda: [(due, lane) for lane in [Lane(Batch(), 1)] for due in dues(0, 0.05)])
    assert one.sent_ms == 0
    assert one.first_ms == pytest.approx(10)
    assert one.ended_ms == pytest.approx(100)
    assert two.sent_ms == pytest.approx(50)
    assert two.first_ms == pytest.approx(60)
    assert (two.by(59), two.by(100), two.by(1000)) == (0, 5, 10)
    assert two.when(11) is None


def test_a_lane_with_places_makes_no_more_at_a_time_and_each_is_quicker() -> None:
    shared, few = Batch(), Batch()
    in_all = all_of(lambda: [(due, lane) for lane in [Lane(shared)] for due in dues(*[0.0] * 6)])
    in_turn = all_of(lambda: [(due, lane) for lane in [Lane(few, 2)] for due in dues(*[0.0] * 6)])
    assert (shared.most, few.most) == (6, 2)
    assert in_all[-1].first_ms == pytest.approx(60)
    assert in_turn[1].first_ms == pytest.approx(20)
    assert max(h.first_ms or 0 for h in in_turn) > max(h.first_ms or 0 for h in in_all)


def test_a_lane_that_answers_nothing_slows_no_request_and_leaves_none_out() -> None:
    heard = all_of(lambda: [(due, Lane(Deaf(), 1)) for due in dues(0, 0.1, 0.2, 0.3, uncounted=1)])
    assert [h.due.at_s for h in heard] == [0.1, 0.2, 0.3]
    assert [h.late_ms for h in heard] == [0, 0, 0]
    assert all(h.first_ms is None and h.ended_ms is None and h.by(500) == 0 for h in heard)


def test_a_reply_that_breaks_off_is_no_whole_one_and_says_why() -> None:
    (heard,) = all_of(lambda: [(due, Lane(Refusing())) for due in dues(0)])
    assert (heard.by(500), heard.ended_ms) == (1, None)
    assert heard.failed == "ConnectionError: gone"


def test_a_fault_of_the_script_is_not_taken_for_the_lanes() -> None:
    class Broken:
        async def reply(self, text: str, came: Came) -> None:
            raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        all_of(lambda: [(due, Lane(Broken())) for due in dues(0)])


def test_every_arrangement_gets_the_same_requests() -> None:
    drawn = requests(20, 5, TEXTS, seed=3)
    assert drawn == requests(20, 5, TEXTS, seed=3) != requests(20, 5, TEXTS, seed=4)
    assert {due.counted for due in drawn if due.at_s < WARM_S} == {False}
    assert {due.counted for due in drawn if due.at_s >= WARM_S} == {True}
    assert 60 < sum(due.counted for due in drawn) < 140
    lanes = {name: Lane(Batch()) for name in ("shared", "low-batch", "student")}
    for arrangement in ARRANGEMENTS:
        ways = arranged(arrangement, drawn, lanes)
        assert [due for due, _, _ in ways] == drawn
        cells = [cell for _, _, cell in ways]
        wanted = list(BOTH) if arrangement == "both" else [arrangement] * 2
        assert cells[:2] == wanted
        assert len(cells[0::2]) - len(cells[1::2]) in (0, 1)


def heard_at(at_s: float, *came: tuple[float, int], late_ms: float = 0.0) -> Heard:
    return Heard(Due(at_s, "x", counted=True), late_ms=late_ms, sent_ms=0, came=list(came))


def cell(lane: str, per_s: float, hits: int, misses: int) -> Cell:
    quick, slow = [(30.0, 1), (200.0, 8), (480.0, 40)], [(300.0, 1), (900.0, 8)]
    found = [heard_at(n * 0.5, *(quick if n < hits else slow)) for n in range(hits + misses)]
    return Cell(lane, per_s, [found])


def test_turns_that_never_opened_are_in_the_denominator() -> None:
    one = Cell("x", 4, [[heard_at(0, (10, 1), (90, 8)), heard_at(1, (10, 1)), heard_at(2)]])
    assert (one.fits(500, 8).hits, one.fits(500, 8).n) == (1, 3)
    five = Cell("x", 4, [[*one.rounds[0], heard_at(3), heard_at(4)]])
    assert five.first_ms(0.5).value is None  # three of five have no first token
    assert five.tokens(500, 0.5).value == 0


@pytest.mark.parametrize(
    ("requests", "late", "says"),
    [
        (99, 10, "the client itself was 25 ms late (p95 of 99)"),
        (99, 1, None),
        (10, 1, "the client itself was 25 ms late (at most of 10)"),
        (10, 0, None),
        (0, 0, None),
    ],
)
def test_a_client_of_few_requests_is_judged_too(requests: int, late: int, says: str | None) -> None:
    heard = [heard_at(n, (30, 8), late_ms=25 * (n < late)) for n in range(requests)]
    assert Cell("x", 4, [heard]).void == says


def test_a_client_that_was_late_says_nothing_of_the_lane() -> None:
    late = Cell("x", 4, [[heard_at(n, (30, 8), late_ms=25 * (n > 90)) for n in range(120)]])
    assert late.void == "the client itself was 25 ms late (p99 of 120)"
    assert late.holds(500, 8) is None
    assert late.fits(500, 8).value == 1


def test_a_lane_holds_what_is_sure_below_all_that_is_not() -> None:
    cells = [
        cell("x", 16, 10, 90),
        cell("x", 4, 200, 0),
        cell("x", 32, 200, 0),
        cell("x", 8, 200, 1),
    ]
    found = held(cells, 500, 8)
    assert found.most is not None
    assert found.not_held is not None
    assert (found.most.per_s, found.not_held.per_s) == (8, 16)
    few = held([cell("x", 4, 20, 0)], 500, 8)  # 20 of 20 are no 95 % with confidence
    assert few.most is None
    assert few.not_held is not None
    assert held([cell("x", 4, 200, 0)], 500, 8).not_held is None
    assert held([cell("x", 4, 200, 0)], 100, 8).most is None


def test_a_call_costs_its_share_of_the_machine_or_nothing_is_said() -> None:
    assert price(40, 90, 0.8) == (pytest.approx(0.8 * 90 / 3600 / 40), None)
    assert price(40, 90, None) == (None, "no price an hour is given (--hour-price)")
    assert price(None, 90, 0.8) == (None, "no rate that was tried is sure to hold")


def test_the_tables_say_what_is_held_and_what_is_not_known() -> None:
    lanes = {
        "shared": [cell("shared", 4, 200, 0), cell("shared", 8, 20, 180)],
        "low-batch": [cell("low-batch", 4, 20, 180)],
        "student": [cell("student", 4, 190, 10)],
    }
    worth = worth_table(
        lanes, 8, turn_s=5, call_s=60, hour_price=3.6, right={"shared": "88 % (n = 9)"}
    ).splitlines()
    assert worth[2] == "| shared | 4 (not 8) | 4 (not 8) | 20 | 40 | 3 | 88 % (n = 9) |"
    assert worth[3] == "| low-batch | fewer than 4 | fewer than 4 | – | – | – | – |"
    assert worth[4] == "| student | not sure of 4 | not sure of 4 | – | – | – | – |"
    assert worth[-1] == "No price of a call: no rate that was tried is sure to hold."
    rows = rates_table([*lanes["shared"], *lanes["low-batch"]], 8).splitlines()
    assert rows[2].startswith(
        "| 4 | shared | 200 | 100.0% (98 to 100) | 100.0% (98 to 100) | 40 (40)"
    )
    assert "| 8 | shared | 200 | 10.0% " in rows[3]


async def test_tokens_are_counted_as_vllm_says() -> None:
    fake, app, came = FakeVllm(), web.Application(), list[int]()
    app.router.add_post("/v1/chat/completions", fake.chat)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server = Running(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "m")
        async with aiohttp.ClientSession() as client:
            await ServerPath(client, server, 5, -1).reply("x", came.append)
    finally:
        await runner.cleanup()
    assert came == [1, 2, 3, 4, 5]
    assert fake.priorities == {-1: 1}


async def test_the_model_in_this_process_makes_one_reply_at_a_time() -> None:
    class Small:
        def __init__(self) -> None:
            self.going = self.most = 0

        def prompt(self, messages: list[dict[str, str]]) -> list[str]:
            return [message["content"] for message in messages]

        def say(
            self,
            prompt: list[str],
            hear: Callable[[str], None],
            stop: threading.Event,
            *,
            least_tokens: int,
        ) -> None:
            assert threading.current_thread() is not threading.main_thread()
            self.going += 1
            self.most = max(self.most, self.going)
            for _ in range(least_tokens - 1):  # one has no text of its own
                hear("x")
            self.going -= 1

    model: Any = Small()
    told: list[list[int]] = [[], []]
    with ThreadPoolExecutor(2) as threads:
        path = SmallPath(model, 4, threads)
        await asyncio.gather(*(path.reply("x", each.append) for each in told))
        await others_first()
    assert [sorted(each) for each in told] == [[1, 2, 3, 4]] * 2
    assert model.most == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--rates", "0"), "--rates: more than 0"),
        (("--rates", "nan"), "--rates: more than 0"),
        (("--rounds", "0"), "1 or more"),
        (("--seconds", "inf"), "--seconds: more than 0, at most 600"),
        (("--opening", "65"), "--opening: 1 or more, at most --tokens"),
        (("--low-batch-seqs", "0"), "--low-batch-seqs: 1 or more"),
        (("--hour-price", "-1"), "--hour-price: 0 or more"),
    ],
)
def test_bad_input_is_said_before_a_server_is_started(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, str],
    said: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["llm_lanes.py", "--command", "/nowhere/vllm", *flags])
    with pytest.raises(SystemExit) as ended:
        llm_lanes.main()
    assert ended.value.code == ExitCode.BAD_INPUT
    assert said in capsys.readouterr().err


def test_the_page_has_a_place_for_the_tables() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert END in text.partition(BEGIN)[2]
