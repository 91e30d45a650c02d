"""Several callers of one step in virtual time: all of them call until its last turn that counts."""

from made_calls import ANSWERS, BUDGET_MS, opening, played, scenario_of, step_of

from turngap.load.calls import Lateness, LinePlayer, Played, play_calls
from turngap.load.schedule import LAST_REPLY_S, Call, Shape, Step, Window, shares
from turngap.testing.memory import line_to
from turngap.testing.virtual import LoopClock, in_virtual_time

TWO_TURNS = scenario_of(2)


def played_by(step: Step, share: tuple[Call, ...]) -> Played:
    """What one caller of a step tells."""

    async def main() -> Played:
        clock, told = LoopClock(), Played()
        player = LinePlayer(
            [TWO_TURNS],
            lambda _: line_to(ANSWERS, clock=clock),
            clock,
            budget_ms=BUDGET_MS,
            watch=clock,
        )
        await play_calls(1, share, player, clock, told.take, until_s=step.until_s)
        return told

    return in_virtual_time(main())


def test_every_caller_calls_until_the_last_turn_that_counts() -> None:
    # A window so short that one of two lines has a turn that counts, and the other none.
    step = next(
        step
        for ms in range(0, 4000, 100)
        if (step := step_of(TWO_TURNS, 2, Window(4.0 + ms / 1000, 0.5, 10.0))).turns
        and not all(any(any(c.counted) for c in share) for share in shares(step, 2))
    )
    ends = [max(mark.at_s for mark in played_by(step, s).marks) for s in shares(step, 2)]
    last_s = max(due for c in step.calls for due, n in zip(c.due_s, c.counted, strict=True) if n)
    assert step.until_s == last_s + LAST_REPLY_S
    assert min(ends) >= step.until_s
    assert max(ends) < step.until_s + 1


def test_a_step_that_counts_nothing_ends_at_once() -> None:
    shape = Shape("made", (2.0,), 3.0)
    assert Step(1, 1, Window(0, 1, 0), (Call(1, 0.0, 0, shape, (False,)),)).until_s == 0


def test_a_call_runs_from_the_instant_at_which_its_line_is_open() -> None:
    step = step_of(TWO_TURNS, 2, Window(4.0, 6.0, 4.0))
    told, asked = played(step, TWO_TURNS, opening(lambda _: ANSWERS))
    begun = {mark.call: mark.at_s for mark in told.marks if mark.running}
    assert all(begun[call] >= at_s for call, at_s in asked.items())
    assert len(told.marks) == 2 * len(begun)


def test_lateness_takes_no_more_room_however_many_packets_there_are() -> None:
    late = Lateness()
    for _ in range(1000):
        late.packets.update(Lateness.of((1_040_000, 2_000_000)).packets)
    assert late.p99_ms == 2.0
    late.packets.update({10: 200_000})
    assert late.p99_ms == 1.0
    assert Lateness().p99_ms is None


def test_the_callers_lateness_is_that_of_turns_that_count() -> None:
    step = step_of(TWO_TURNS, 2, Window(4.0, 6.0, 4.0))
    told, _ = played(step, TWO_TURNS, opening(lambda _: ANSWERS))
    assert told.late.p99_ms is not None
    assert 0 <= told.late.p99_ms < 1
