"""The page's turns and stages: against the core where it has the same, else by example."""

import random
from typing import Any

import pytest
from page_browser import Call, needs_chromium

from turngap.core.stages import AGENT_MARKS, stages_of

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

STAGES = """(m, turns) => turns.map(({ marks, ...turn }) =>
  m.stagesOf({ ...turn, agentTurns: [{ marks }] }).map(({ name, ns }) => [name, ns]))"""

# Plays events into a tracker: [method, ...arguments], instants in ms. Returns its turns.
PLAY = """(m, events) => {
  const HEARD = ["userStart", "userEnd", "agentEnd", "flushed"];
  const over = [], tracker = new m.Tracker(() => {}, (turn) => over.push(m.measured(turn)));
  const ns = (x) => (typeof x === "number" ? x * 1e6 : x);
  const speech = ({ ns: at, receivedNs, userLastNs }) => ({
    ns: at * 1e6, receivedNs: (receivedNs ?? at) * 1e6,
    leadNs: 0, userLastNs: (userLastNs ?? 0) * 1e6,
  });
  tracker.begin();
  for (const [method, ...values] of events) {
    if (method === "agentStart") tracker.agentStart(speech(values[0]));
    else if (method === "tick") tracker.tick(values[0] * 1e6, values[1] ?? 0);
    else if (method === "done") tracker.doneNs = values[0] * 1e6;
    else if (method === "switched") tracker.switched(values[0], values[1], values[2] * 1e6);
    else if (method === "start") tracker.start(values[0], values[1] * 1e6, values[2]);
    else if (method === "marks") {
      const placed = Object.entries(values[0].marks).map(([name, at]) => [name, at * 1e6]);
      tracker.marks({ ...values[0], marks: Object.fromEntries(placed) });
    } else if (method === "replyText") tracker.replyText({ text: values[0] });
    else if (HEARD.includes(method)) tracker[method]({ ns: values[0] * 1e6 });
    else tracker[method](...values.map(ns));
  }
  return [tracker.turns.map((turn) => {
    const { gapMs, outcome, leftOut, whyNoGap, agentMs } = turn;
    const stages = Object.fromEntries(turn.stages.map(({ name, ns: each }) => [name, each / 1e6]));
    return { ...turn, gapMs, outcome, leftOut, whyNoGap, agentMs, stages };
  }), over];
}"""

SAID = [["userStart", 1000], ["userEnd", 2000]]
ANSWERED = [*SAID, ["agentStart", {"ns": 2400, "userLastNs": 2000}], ["agentEnd", 3400]]


async def played(call: Call, *events: list[Any]) -> list[dict[str, Any]]:
    turns, _ = await call("turns", PLAY, events)
    return turns


def ending(turns: list[dict[str, Any]]) -> list[tuple[str | None, str | None, float | None]]:
    return [(t["outcome"], t["ended"], t["gapMs"]) for t in turns]


async def test_stages_are_cut_as_the_core_cuts_them(call: Call) -> None:
    chance = random.Random(0)
    turns: list[dict[str, Any]] = []
    wanted: list[list[list[Any]]] = []
    for _ in range(500):
        end, onset = chance.randrange(10**9), chance.randrange(2 * 10**9)
        received = min(onset, onset - chance.randrange(10**7))
        names = chance.sample(AGENT_MARKS, chance.randrange(len(AGENT_MARKS) + 1))
        marks = {name: chance.randrange(-(10**8), 3 * 10**9) for name in names}
        turns.append({"endNs": end, "onsetNs": onset, "receivedNs": received, "marks": marks})
        # Marks count only where the audio was sent before it arrived, give or take.
        heard = marks if marks.get("sent", 10**18) <= received + 50_000_000 else {}
        all_marks = {"user_end": end, "received": received, "agent_onset": onset, **heard}
        wanted.append([[stage.name, stage.ns] for stage in stages_of(all_marks)])
    cut = await call("stages", STAGES, turns)
    assert cut == wanted
    gaps = [turn["onsetNs"] - turn["endNs"] for turn in turns]
    assert [sum(ns for _, ns in stages) for stages in cut] == gaps


async def test_a_turn_is_answered_and_over_when_the_agent_says_that_it_is_done(call: Call) -> None:
    (turn,) = await played(call, *ANSWERED, ["tick", 3500], ["done", 3450], ["tick", 3601])
    assert (turn["outcome"], turn["ended"], turn["gapMs"]) == ("answered", "reply_done", 400)
    (turn,) = await played(call, *ANSWERED, ["tick", 4899])
    assert (turn["outcome"], turn["ended"]) == ("answered", None)
    (turn,) = await played(call, *ANSWERED, ["tick", 4901])
    assert turn["ended"] == "reply_done"


async def test_over_the_budget_is_late(call: Call) -> None:
    (turn,) = await played(call, *SAID, ["agentStart", {"ns": 2801}])
    assert (turn["outcome"], turn["gapMs"]) == ("late", 801)


async def test_no_reply_after_six_seconds(call: Call) -> None:
    assert ending(await played(call, *SAID, ["tick", 7999])) == [(None, None, None)]
    (turn,) = await played(call, *SAID, ["tick", 8001])
    assert (turn["outcome"], turn["ended"]) == ("no_reply", "timeout")
    assert turn["whyNoGap"] == "no audible reply within 6 s"


async def test_a_pause_is_within_the_turn_and_a_long_one_gives_up_on_it(call: Call) -> None:
    (turn,) = await played(
        call, *SAID, ["userStart", 2900], ["userEnd", 3500], ["agentStart", {"ns": 4000}]
    )
    assert turn["gapMs"] == 500
    turns = await played(call, *SAID, ["userStart", 3100], ["userEnd", 3900])
    assert ending(turns) == [("abandoned", "interrupted", None), (None, None, None)]


async def test_the_onset_is_shown_before_the_persons_end_is_told(call: Call) -> None:
    early = [["userStart", 1000], ["agentStart", {"ns": 2200, "userLastNs": 2000}]]
    (turn,) = await played(call, *early)
    assert turn["gapMs"] == 200
    (turn,) = await played(call, *early, ["userEnd", 2000])
    assert (turn["outcome"], turn["gapMs"]) == ("answered", 200)


async def test_an_agent_that_begins_before_the_person_has_ended_cut_in(call: Call) -> None:
    over = [
        ["userStart", 1000],
        ["agentStart", {"ns": 2000, "userLastNs": 1999}],
        ["userEnd", 3000],
    ]
    (turn,) = await played(call, *over)
    assert (turn["outcome"], turn["gapMs"]) == ("cut_in", -1000)
    assert turn["stages"] == {"unattributed": -1000}
    # It fell silent before the person had ended: it owes an answer to the rest.
    silent = [*over[:2], ["agentEnd", 2500], ["userEnd", 3000]]
    assert ending(await played(call, *silent, ["tick", 8900]))[0][1] is None
    assert ending(await played(call, *silent, ["tick", 9001]))[0][1] == "reply_done"


async def test_who_goes_on_sooner_than_anybody_reacts_had_not_finished(call: Call) -> None:
    onset = [*SAID, ["agentStart", {"ns": 2700, "userLastNs": 2000}]]
    (turn,) = await played(call, *onset, ["userStart", 2850], ["userEnd", 3500])
    assert (turn["outcome"], turn["gapMs"]) == ("cut_in", -800)
    turns = await played(call, *onset, ["userStart", 2950], ["userEnd", 3500])
    assert ending(turns) == [("answered", "interrupted", 700), (None, None, None)]


async def test_a_barge_in_is_a_turn_of_its_own_and_its_yield_is_measured(call: Call) -> None:
    turns = await played(
        call,
        *SAID,
        ["agentStart", {"ns": 2400, "userLastNs": 2000}],
        ["userStart", 3000],
        ["agentEnd", 3250],  # a pause between sentences
        ["agentStart", {"ns": 3260, "receivedNs": 3250}],  # and the rest of the old reply
        ["agentEnd", 3400],
        ["flushed", 3405],
        ["userEnd", 4000],
        ["agentStart", {"ns": 4450, "userLastNs": 4000}],
    )
    assert ending(turns) == [("answered", "interrupted", 400), ("answered", None, 450)]
    assert turns[1]["overReply"] is True
    assert turns[1]["yieldNs"] == 400_000_000


async def test_a_knock_is_no_turn_unless_the_agent_takes_it_for_one(call: Call) -> None:
    knock = [["userStart", 1000], ["userEnd", 1100]]
    assert await played(call, *knock, ["tick", 7200]) == []
    (turn,) = await played(call, *knock, ["transcript", "yes", True], ["tick", 7200])
    assert (turn["outcome"], turn["transcript"]) == ("no_reply", "yes")
    (turn,) = await played(call, *knock, ["agentStart", {"ns": 1500}])
    assert turn["outcome"] == "answered"
    # The next turn takes its number.
    turns = await played(call, *knock, ["userStart", 5000], ["userEnd", 6000])
    assert [turn["number"] for turn in turns] == [1]


async def test_a_backchannel_that_stops_nothing_is_no_turn(call: Call) -> None:
    before = [*SAID, ["agentStart", {"ns": 2400}], ["userStart", 3000], ["userEnd", 3400]]
    turns = await played(call, *before, ["agentEnd", 2999], ["tick", 9500])
    assert len(turns) == 1
    turns = await played(call, *before, ["agentEnd", 3300], ["tick", 9500])
    assert [turn["outcome"] for turn in turns] == ["answered", "no_reply"]


async def test_a_reply_that_had_ended_when_the_person_began_yielded_nothing(call: Call) -> None:
    turns, over = await call(
        "turns",
        PLAY,
        [
            *ANSWERED[:3],
            ["userStart", 3000],
            ["agentEnd", 2950],  # silence is told when it has lasted
            ["userEnd", 4000],
            ["agentStart", {"ns": 4300, "userLastNs": 4000}],
            ["close", 5000, "reply_done"],
        ],
    )
    assert turns[1]["yieldNs"] is None
    # Told with the first turn, it had no end yet.
    ends = [[stretch["end_ns"] for stretch in told["agent"]] for told in over]
    assert ends == [[None], [2_950_000_000, None]]


async def test_what_ended_during_a_backchannel_is_told_with_the_next_turn(call: Call) -> None:
    before = [*ANSWERED[:3], ["userStart", 3000], ["userEnd", 3400], ["agentEnd", 2999]]
    after = [["userStart", 10_000], ["userEnd", 11_000], ["agentStart", {"ns": 11_300}]]
    _, over = await call("turns", PLAY, [*before, ["tick", 9500], *after, ["close", 12_000, "x"]])
    assert [stretch["end_ns"] for stretch in over[-1]["agent"]] == [2_999_000_000, None]


async def test_who_hangs_up_ends_the_turn(call: Call) -> None:
    now = ["tick", 3000, 0]
    heard = [*SAID, ["agentStart", {"ns": 2400}], now, ["finish"]]
    assert ending(await played(call, *heard)) == [("answered", "interrupted", 400)]
    assert ending(await played(call, *ANSWERED, now, ["finish"])) == [
        ("answered", "reply_done", 400)
    ]
    assert ending(await played(call, *SAID, now, ["finish"])) == [
        ("abandoned", "interrupted", None)
    ]
    (turn,) = await played(call, *SAID, now, ["finish"])
    assert turn["endedNs"] == 3_000_000_000
    # In mid-sentence nothing has been said that an agent could have answered.
    _, over = await call("turns", PLAY, [["userStart", 1000], now, ["finish"]])
    assert over == []


async def test_a_lost_line_makes_the_turn_an_error(call: Call) -> None:
    (turn,) = await played(call, ["userStart", 1000], ["close", 1500, "line_lost"])
    assert (turn["outcome"], turn["endNs"]) == ("error", 1_500_000_000)
    (turn,) = await played(call, *ANSWERED, ["close", 3400, "line_lost"])
    assert (turn["outcome"], turn["gapMs"]) == ("error", 400)


async def test_a_typed_turn_is_timed_from_its_sending_and_left_out(call: Call) -> None:
    marks = {"turn": 1, "llm": "sim", "marks": {"llm_request": 1010, "sent": 1400}}
    (turn,) = await played(
        call, ["start", "typed", 1000, "hello"], ["marks", marks], ["agentStart", {"ns": 1500}]
    )
    assert (turn["gapMs"], turn["leftOut"], turn["agentMs"]) == (500, "typed", None)
    assert (turn["transcript"], turn["llm"]) == ("hello", "sim")
    # No budget is set for it: the server has no gap of it either.
    (turn,) = await played(call, ["start", "typed", 1000, "hello"], ["agentStart", {"ns": 1900}])
    assert turn["outcome"] == "answered"


async def test_a_switch_ends_the_turn_that_it_cancelled(call: Call) -> None:
    (turn,) = await played(call, *SAID, ["switched", "new", True, 2100])
    assert (turn["outcome"], turn["leftOut"]) == ("abandoned", "LLM switched")
    turns = await played(call, *ANSWERED[:3], ["switched", "new", True, 2500], *SAID[:1])
    assert (turns[0]["outcome"], turns[0]["leftOut"]) == ("answered", None)
    assert [turn["llm"] for turn in turns] == [None, "new"]
    (turn,) = await played(call, *SAID, ["switched", "new", False, 2100])
    assert turn["ended"] is None


@pytest.mark.parametrize(("shift", "left_out"), [(7.9, None), (8.1, "device stall")])
async def test_a_device_that_stood_still_spoils_the_turn(
    call: Call, shift: float, left_out: str | None
) -> None:
    readings = [["tick", at, 5 + (shift if at > 2200 else 0)] for at in range(900, 2600, 40)]
    heard = [["agentStart", {"ns": 2400}], ["tick", 2600, 5 + shift]]
    (turn,) = await played(call, *SAID, *readings, *heard, ["close", 3000, "reply_done"])
    assert turn["stallMs"] == pytest.approx(shift)
    assert (turn["leftOut"], turn["outcome"]) == (left_out, "answered")


async def test_a_shift_outside_the_turn_spoils_nothing(call: Call) -> None:
    readings = [["tick", at, 50 if at < 500 or at > 3000 else 0] for at in range(0, 3400, 40)]
    events = [*readings[:30], *ANSWERED, *readings[30:], ["close", 3500, "reply_done"]]
    (turn,) = await played(call, *events)
    assert turn["stallMs"] == 0


async def test_marks_come_in_pieces_and_after_the_turn(call: Call) -> None:
    first = {
        "turn": 1,
        "llm": "sim",
        "marks": {"endpoint": 2200, "llm_request": 2210, "sent": 2390},
    }
    rest = {"turn": 1, "llm": "sim", "marks": {"transcript": 2205}}
    (turn,) = await played(
        call, *SAID, ["marks", first], *ANSWERED[2:], ["tick", 5000], ["marks", rest]
    )
    assert turn["stages"]["endpoint"] == 200
    assert turn["stages"]["transcript"] == 5
    assert sum(turn["stages"].values()) == turn["gapMs"] == 400
    assert (turn["agentMs"], turn["llm"]) == (190, "sim")


async def test_of_two_agent_turns_the_one_that_was_heard_explains_the_gap(call: Call) -> None:
    false_end = {"turn": 1, "marks": {"endpoint": 1600, "llm_request": 1610}}
    heard = {"turn": 2, "marks": {"endpoint": 2250, "sent": 2395}}
    (turn,) = await played(call, *SAID, ["marks", false_end], ["marks", heard], *ANSWERED[2:])
    assert turn["stages"]["endpoint"] == 250


async def test_an_answer_that_was_dropped_is_not_the_reply(call: Call) -> None:
    (turn,) = await played(
        call,
        ["userStart", 1000],
        ["replyBegins"],
        ["replyText", "never heard"],
        ["userEnd", 2000],
        ["replyBegins"],
        ["replyText", "Sure"],
        ["replyText", "."],
        ["agentStart", {"ns": 2400}],
    )
    assert turn["reply"] == "Sure."


async def test_what_is_told_of_a_turn_is_what_was_heard(call: Call) -> None:
    _, over = await call("turns", PLAY, [*ANSWERED, ["tick", 5000, 0]])
    (told,) = over
    assert told["turn"] == 1
    assert told["start_ns"] <= told["end_ns"] <= told["ended_ns"]
    assert told["agent"] == [
        {
            "onset_ns": 2_400_000_000,
            "received_ns": 2_400_000_000,
            "lead_ns": 0,
            "end_ns": 3_400_000_000,
        }
    ]
    assert (told["input"], told["ended"]) == ("voice", "reply_done")
