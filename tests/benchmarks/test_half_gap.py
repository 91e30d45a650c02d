"""The arithmetic of benchmarks/half_the_gap.py, on turns that are made up."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from half_gap import contenders, figures, table
from half_gap.callers import Level
from half_gap.playing import AS
from made_records import MARKS_MS, make_record, make_turn

from turngap.agent.stack import load_stack
from turngap.core.results import Turn
from turngap.core.stats import percentile, proportion
from turngap.scenario.library import library_dir
from turngap.scenario.parsing import read_scenario
from turngap.store.writer import RunWriter


def as_played(
    name: str, turns: Sequence[Turn], part: str = "ratio", piece: str = "1"
) -> figures.Played:
    keys = [figures.Key(t.scenario, t.turn, part, piece, t.repeat, t.phase_ms) for t in turns]
    return figures.Played(name, dict(zip(keys, turns, strict=True)))


def held(turn: Turn, hold_ms: float) -> Turn:
    return turn.model_copy(update={"counts": {"hold_ms": hold_ms}})


def test_full_is_the_embedded_agent_and_stock_is_the_stock_one() -> None:
    about = {"name", "description", "llm"}
    assert contenders.full().stack.llm.backend == "sim"  # its times can be set
    ours = contenders.full().stack.model_dump(exclude=about)
    shipped = load_stack("embedded").model_dump(exclude=about)
    # What full says and embedded leaves to the backend is the backend's default.
    defaults = {
        "certainty": 0.7,
        "hold_ms": 200,
        "speculate": True,
        "barge_in": "attentive",
        "conclude_ms": 20,
    }
    assert ours["turn"].pop("settings") == defaults
    assert shipped["turn"].pop("settings") == {}
    assert ours == shipped
    stock = contenders.stock(()).stack.model_dump(exclude=about)
    assert stock == load_stack("stock").model_dump(exclude=about)


def test_every_contender_has_a_name_and_a_stack_file_of_its_own(tmp_path: Path) -> None:
    everybody = [
        contenders.stock(),
        contenders.stock_vad(),
        *contenders.cumulative(),
        *contenders.each_off(),
    ]
    choices = [c.choice(tmp_path) for c in everybody]
    assert len({c.name for c in everybody}) == len({c.agent for c in choices}) == len(everybody)
    for contender, choice in zip(everybody, choices, strict=True):
        again = load_stack(choice.agent)
        assert again.model_dump(exclude={"description"}) == contender.stack.model_dump(
            exclude={"description"}
        )


def test_a_step_switched_off_leaves_that_part_as_stock_has_it() -> None:
    stock = contenders.stock().stack
    off = {c.name: c.stack for c in contenders.each_off()}
    output = next(s for name, s in off.items() if "10 ms chunks" in name)
    assert output.audio == stock.audio
    text = next(s for name, s in off.items() if "few words" in name)
    assert (text.text, text.warm.voice) == (stock.text, stock.warm.voice)


@pytest.mark.parametrize(
    ("asked_ms", "hold_ms", "needed"),
    [
        (233.1, 250.0, 383.1),  # asked for within the hold: it has to be made all the same
        (60.0, 250.0, 250.0),  # made before the hold was over
        (233.1, 200.0, 350.0),  # asked for after it: one after the other
    ],
)
def test_what_cannot_be_avoided_is_the_hold_and_the_engines(
    asked_ms: float, hold_ms: float, needed: float
) -> None:
    turn = held(make_turn(marks_ms={**MARKS_MS, "llm_request": asked_ms}), hold_ms)
    assert figures.needed_ms(turn, None) == pytest.approx(needed)


def test_an_agent_that_says_no_hold_has_the_one_that_is_known_or_no_figure() -> None:
    assert figures.needed_ms(make_turn(), 200.0) == pytest.approx(350.0)
    assert figures.needed_ms(make_turn(), None) is None


def test_overhead_counts_a_turn_without_a_reply_as_slower_than_any() -> None:
    turns = [held(make_turn(turn=n), 200.0) for n in range(1, 6)]
    silent = make_turn(turn=6, marks_ms=None, ended="timeout")
    played = as_played("full", [*turns, silent])
    found = figures.overhead(played, None)
    assert found.n == 6
    assert found.p50.value == pytest.approx(398.25 - 350)
    assert found.p95.value is None


def test_an_answer_that_was_begun_late_is_our_own_lateness_in_the_other_p95() -> None:
    # Asked for at 120 of 250 ms, where the first sign of silence was at 60.
    marks = {**MARKS_MS, "llm_request": 120.0, "agent_onset": 290.0}
    turn = held(make_turn(marks_ms=marks), 250.0)
    played = as_played("full", [turn.model_copy(update={"turn": n}) for n in range(1, 31)])
    found = figures.overhead(played, None)
    assert found.p95.value == pytest.approx(20)
    assert found.late_p95.value == pytest.approx(40)


def test_the_library_has_its_gaps_from_one_part_and_its_manners_from_all() -> None:
    scenarios = {
        name: read_scenario(library_dir() / f"{name}.yaml")
        for name in ("quick-questions", "second-thoughts")
    }
    asked = [make_turn(scenario="quick-questions", turn=n) for n in (1, 2, 3)]
    paused = [make_turn(scenario="second-thoughts", turn=n) for n in (1, 2, 3)]
    patience = as_played("full", [*asked, *paused], part="patience")
    played = figures.Played("full", {**patience.turns, **as_played("full", asked).turns})
    row = figures.row(figures.usual(played, scenarios), [])
    manners = figures.manners(played, scenarios)
    assert (row.n, manners.pauses.n, manners.starved.n) == (3, 3, 9)
    assert row.ratio_p50 is None  # there is no stock beside it


def test_pairs_are_of_the_same_part_and_piece() -> None:
    turns = [make_turn(scenario="quick-questions", turn=n) for n in (1, 2, 3)]
    stock = as_played(contenders.STOCK, turns)
    assert len(figures.paired(stock, as_played("full", turns))) == 3
    assert figures.paired(stock, as_played("full", turns, piece="2")) == []
    assert figures.paired(stock, as_played("full", turns, part="patience")) == []


def test_rounds_of_a_recording_are_no_further_evidence() -> None:
    def ratio(rounds: int) -> float:
        turns = [
            make_turn(scenario=f"s{n}", repeat=r, marks_ms=later(20.0 * n))
            for n in range(12)
            for r in range(1, rounds + 1)
        ]
        quick = [t.model_copy(update={"gap_ms": (t.gap_ms or 0) / 2}) for t in turns]
        found = figures.row(as_played("full", quick), [as_played(contenders.STOCK, turns)])
        assert found.ratio_p50 is not None
        assert found.ratio_p50.low is not None
        assert found.ratio_p50.high is not None
        return found.ratio_p50.high - found.ratio_p50.low

    assert ratio(8) == pytest.approx(ratio(1), abs=1e-9)


def test_a_p95_without_smart_turns_waits_stands_beside_the_one_with_them() -> None:
    turns = [make_turn(turn=n) for n in range(1, 31)]
    waited = [make_turn(turn=n, marks_ms=later(3000.0)) for n in range(31, 41)]
    row = figures.row(as_played(contenders.STOCK, [*turns, *waited]), [])
    assert row.gap_p95.value == pytest.approx(3398.25)
    assert row.unwaited_p95.value == pytest.approx(398.25)


def test_both_halves_stand_in_one_line() -> None:
    cut_in = make_turn(turn=1, outcome="cut_in", gap_ms=-300.0)
    early = make_turn(turn=2).model_copy(update={"endpoints_ms": (200.0, 1200.0)})
    early = early.model_copy(update={"speech_ms": 1000.0})
    turns = [cut_in, early, make_turn(turn=3).model_copy(update={"transcript": " "})]
    row = figures.row(as_played("full", turns), [])
    assert (row.early.heard.hits, row.wordless.hits) == (1, 1)
    assert row.early.decided is not None
    assert row.early.decided.hits == 1
    head, _, line = table.halves_table([row]).splitlines()
    assert head.count("|") == line.count("|")
    assert "heard cut-ins" in head
    assert "1/3" in line


def later(ms: float) -> dict[str, float]:
    """Marks of a turn whose endpoint comes so much later."""
    return {name: at if name == "user_end" else at + ms for name, at in MARKS_MS.items()}


def test_tracing_is_the_median_of_paired_turns() -> None:
    def played(name: str, late_ms: float) -> figures.Played:
        marks = [{**MARKS_MS, "agent_onset": MARKS_MS["agent_onset"] + late_ms + n} for n in (0, 9)]
        return as_played(name, [make_turn(turn=n, marks_ms=m) for n, m in enumerate(marks, 1)])

    both = [played(contenders.FULL, 1.5), played(contenders.UNTRACED, 0)]
    assert figures.tracing_cost(both) == (2, pytest.approx(1.5))
    assert figures.tracing_cost(both[:1]) is None


def test_a_target_without_its_figure_is_neither_reached_nor_missed() -> None:
    few = percentile([1.0], 0.5)
    none = percentile([1.0], 0.95)
    over = figures.Overhead(contenders.FULL, 1, few, none, none)
    shown = table.targets([], [over], None, [])
    assert "needs" in shown
    assert "yes" not in shown
    assert "**no**" not in shown


def test_callers_are_held_while_nearly_all_turns_are_hit() -> None:
    def level(callers: int, hits: int) -> Level:
        return Level(callers, proportion(hits, 20), percentile([300.0] * 20, 0.5), 0.5, 0)

    levels = [level(1, 20), level(4, 19), level(6, 18)]
    assert [v.held for v in levels] == [True, True, False]
    assert "| callers at 95 % within 800 ms | 4 |" in table.targets([], [], None, levels)


@pytest.mark.parametrize(("virtual", "counted"), [(True, 1), (False, 2)])
def test_a_turn_played_again_in_virtual_time_replaces_the_earlier_one(
    tmp_path: Path, virtual: bool, counted: int
) -> None:
    told = {AS: "full", "part": "people", "condition": "original", "virtual": virtual}
    for piece, reply in (("1-people", "before"), ("2-people", "after")):
        with RunWriter.create(tmp_path / piece, "00", make_record(settings=told)) as writer:
            writer.append_turn(make_turn().model_copy(update={"reply": reply}))
    ((group, (played,)),) = figures.collect(tmp_path).items()
    assert group == figures.Group("people", "original", virtual)
    replies = [t.reply for t in played.turns.values()]
    assert (len(replies), replies[-1]) == (counted, "after")
