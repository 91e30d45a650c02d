"""An agent that crashes while it is called ends the test; one that is only busy does not."""

import asyncio
from collections.abc import Callable

import pytest
from made_calls import turn_of

from turngap.core.clock import NS_PER_S
from turngap.core.errors import AgentError
from turngap.load.calls import Answered, CallMark, News, Played, load_turn
from turngap.load.presence import GONE_S, AgentGoneError, Presence
from turngap.load.schedule import Call, Shape, Step, Window, held
from turngap.testing.virtual import LoopClock, in_virtual_time

WINDOW = Window(0.0, 40.0, 0.0)
STEP = Step(1, 2, WINDOW, held([Shape("made", (2.0, 4.0), 6.0)], 2, WINDOW, seed=1))


def refused_tcp() -> None:
    raise AgentError("agent.unreachable", "nothing can be reached") from ConnectionRefusedError()


def times_out() -> None:
    raise AgentError("agent.unreachable", "nothing can be reached") from TimeoutError()


def fine() -> None:
    pass


def played(
    knock: Callable[[], None], *, dies_s: float = 20.0, back_s: float = 1e9
) -> tuple[Presence, AgentGoneError | None, float]:
    """What becomes of a step in which calls fail from one instant on, and when that is, s."""

    async def step() -> tuple[Presence, AgentGoneError | None, float]:
        clock = LoopClock()

        async def knocks() -> None:
            if dies_s * NS_PER_S <= clock.now_ns() < back_s * NS_PER_S:
                knock()

        presence = Presence("ws://bot/ws", knocks, clock)

        async def calls() -> Played:
            for call in STEP.calls:
                await clock.sleep_until_ns(round(call.at_s * NS_PER_S))
                for said in told(call, gone=dies_s <= call.at_s < back_s):
                    presence.take(said)
            return presence.played

        try:
            await presence.during(STEP, calls())
        except AgentGoneError as e:
            return presence, e, clock.now_ns() / NS_PER_S
        return presence, None, clock.now_ns() / NS_PER_S

    return in_virtual_time(step())


def told(call: Call, *, gone: bool) -> list[News]:
    if gone:
        return [load_turn(1, call, n, None, missed="refused", why="nobody") for n in (1, 2)]
    turns = [load_turn(1, call, n, Answered(turn_of(n))) for n in (1, 2)]
    return [CallMark(call.number, call.at_s, running=True), *turns]


def test_an_agent_that_is_gone_ends_the_step_and_says_since_when() -> None:
    presence, gone, at_s = played(refused_tcp)
    assert gone is not None
    first_s = min(call.at_s for call in STEP.calls if call.at_s >= 20)
    assert first_s + GONE_S <= at_s <= first_s + GONE_S + 2
    assert gone.message.startswith(
        f"the agent is gone: nothing has listened at ws://bot/ws since {first_s:.0f} s into step 1"
    )
    assert gone.exit_code == 4
    assert "bot's log" in gone.hint
    over = sum(turn.counted and turn.played is not None for turn in presence.played.turns)
    assert over > 0
    assert f"({over} of {sum(sum(c.counted) for c in STEP.calls)} turns were over)" in gone.message


@pytest.mark.parametrize("knock", [times_out, fine])
def test_an_agent_that_is_busy_or_refuses_calls_is_not_gone(knock: Callable[[], None]) -> None:
    _, gone, at_s = played(knock)
    assert gone is None
    assert at_s == pytest.approx(max(call.at_s for call in STEP.calls))


def test_a_bot_that_is_back_in_time_is_measured_further() -> None:
    assert played(refused_tcp, back_s=28.0)[1] is None


def test_a_caller_that_fails_ends_the_step_as_before() -> None:
    async def fails() -> Played:
        raise AgentError("load.caller", "lost")

    async def knocks() -> None:
        raise AssertionError("nobody asks")

    async def main() -> None:
        await Presence("ws://bot/ws", knocks, LoopClock()).during(STEP, fails())

    with pytest.raises(AgentError, match="lost"):
        in_virtual_time(main())


def test_a_step_ends_once_what_it_says_is_decided() -> None:
    async def step() -> tuple[Played, float]:
        clock = LoopClock()

        async def fine() -> None: ...

        presence = Presence("ws://bot/ws", fine, clock)

        async def calls() -> Played:
            for call in STEP.calls:
                await clock.sleep_until_ns(round(call.at_s * NS_PER_S))
                for said in told(call, gone=False):
                    presence.take(said)
            raise AssertionError("nobody plays it to its end")

        played = await presence.during(STEP, calls(), lambda so_far: len(so_far.turns) >= 6)
        return played, clock.now_ns() / NS_PER_S

    played, at_s = in_virtual_time(step())
    third_s = sorted(call.at_s for call in STEP.calls)[2]
    assert third_s <= at_s <= third_s + 2
    assert 6 <= len(played.turns) < 2 * len(STEP.calls)


def test_who_is_cancelled_leaves_nothing_behind() -> None:
    async def never() -> Played:
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> set[str]:
        async def knocks() -> None: ...

        playing = Presence("ws://bot/ws", knocks, LoopClock()).during(STEP, never())
        task = asyncio.create_task(playing)
        await asyncio.wait([task], timeout=5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return {each.get_name() for each in asyncio.all_tasks()} - {
            getattr(asyncio.current_task(), "get_name", str)()
        }

    assert in_virtual_time(main()) == set()
