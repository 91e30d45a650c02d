"""`turngap load` on the command line: flags, what it says beforehand, exit codes. Nothing plays."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from commandline import Finished, turngap_here
from made_loads import hard_cases, make_load, make_step, store_load

from turngap.cli.shared import LINE_EVERY_S, Display
from turngap.core.clock import NS_PER_S
from turngap.core.errors import AgentError
from turngap.load import play
from turngap.load.keeping import LoadProgress
from turngap.load.plan import LoadPlan
from turngap.load.play import Loaded
from turngap.store.loads import Certificate, LoadRecord

Capsys = pytest.CaptureFixture[str]
NOBODY = "ws://127.0.0.1:9/ws"
CASES = hard_cases()


@dataclass
class FakePlayer:
    """Stores what it is given in place of a load test, and remembers what was asked for."""

    folder: Path
    record: LoadRecord = field(default_factory=make_load)
    failure: AgentError | None = None
    before: Callable[[LoadProgress], None] = lambda _: None
    plans: list[LoadPlan] = field(default_factory=list)

    async def load(self, plan: LoadPlan, progress: LoadProgress, *_: Any) -> Loaded:
        self.plans.append(plan)
        progress.on_folder(store_load(self.folder, self.record))
        self.before(progress)
        return Loaded(self.record, self.folder, self.failure)


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakePlayer:
    fake = FakePlayer(tmp_path / "runs" / "x-load")
    monkeypatch.setattr(play, "load", fake.load)
    return fake


def run(capsys: Capsys, *arguments: str | Path) -> Finished:
    return turngap_here(capsys, "load", "quick-questions", "--agent", NOBODY, *arguments)


def holding(sessions: int | None, *steps: Any) -> LoadRecord:
    found = Certificate(sessions, 0.99, 180, 0.953, 0.95, None, 1.0)
    return make_load(list(steps), capacity=found)


def test_a_search_says_how_long_it_takes_and_ends_with_its_page(
    player: FakePlayer, capsys: Capsys
) -> None:
    done = run(capsys)
    assert done.code == 0
    assert "searching for the capacity, up to 32 sessions, in real time: about " in done.err
    assert " minutes; more if turns are late\n" in done.err
    assert "of each step, and its end, are left out of the figures" in done.err
    assert "8 SESSIONS CERTIFIED" in done.out
    assert f"page: {player.folder / 'report.html'}" in done.err
    assert {p.name for p in player.folder.iterdir()} == {
        *("load.json", "turns.jsonl", "report.html", "steps.csv", "turns.csv")
    }


def test_json_is_one_document_and_nothing_else(player: FakePlayer, capsys: Capsys) -> None:
    done = run(capsys, "--json")
    found = done.document()
    assert found["capacity"]["sessions"] == 8
    assert found["path"] == str(player.folder)
    assert done.err == ""


def test_flags_reach_the_plan(player: FakePlayer, capsys: Capsys) -> None:
    done = run(
        capsys, "--sessions", "1..8", "--duration", "45", "--warm-up", "7", "--budget-ms", "700",
        "--target", "0.9", "--confidence", "0.8", "--callers", "3",
        "--starved-ms", "25", "--calibration", "0", "--set", "seed=7",
    )  # fmt: skip
    (plan,) = player.plans
    assert (plan.mode, plan.levels[0], plan.levels[-1]) == ("ramp", 1, 8)
    assert (plan.duration_s, plan.warm_up_s, plan.pass_ms) == (45, 7, 700)
    assert (plan.target, plan.confidence, plan.min_sessions) == (0.9, 0.8, None)
    assert (plan.callers, plan.starved_ms, plan.calibration_turns) == (3, 25, 0)
    assert plan.schedule_seed == 7
    assert "levels one after the other, up to 8 sessions" in done.err
    run(capsys, "--min-sessions", "4", "--max-sessions", "6")
    assert (player.plans[-1].min_sessions, player.plans[-1].levels) == (4, (1, 6))


@pytest.mark.parametrize(
    ("record", "asked", "code"),
    [
        (holding(8, make_step(8)), 8, 0),
        (holding(8, make_step(8)), 9, 3),  # nothing is known of nine
        (holding(4, make_step(4), make_step(6, 60, 30)), 8, 1),  # six certainly do not hold
        (holding(4, make_step(4), make_step(9, 60, 30)), 8, 3),  # nine do not, eight may
        (holding(4, make_step(4), make_step(6, 24, 12, seconds=20.0)), 8, 3),  # one slow spell
        (holding(4, make_step(4, 60, 30), make_step(4)), 8, 3),  # four are certified
        (holding(None, make_step(1, 60, 30)), 1, 1),
        (holding(None, make_step(8, 60, 30, void="late")), 8, 3),  # not the agent's fault
        (CASES["rate"], 8, 3),
        (CASES["search"], None, 0),
        (holding(8, make_step(9, void="late"), make_step(8)), None, 0),
        (CASES["nothing"], None, 0),  # it was measured that not one holds
        (CASES["not-sure"], None, 3),
        (CASES["void"], None, 3),
        (CASES["one-step"], None, 0),
        (CASES["all-missed"], None, 0),
        (CASES["lost"], None, 3),
    ],
)
def test_exit_codes(
    player: FakePlayer, capsys: Capsys, record: LoadRecord, asked: int | None, code: int
) -> None:
    player.record = record
    done = run(capsys, *(() if asked is None else ("--min-sessions", str(asked))))
    assert done.code == code
    said = {0: "certified", 1: "certainly not", 3: "not sure"}[code]
    assert (f"sessions or more: {said}" in done.err) == (asked not in (None, 1))


def test_an_agent_that_fails_ends_it_with_4_and_what_was_played(
    player: FakePlayer, capsys: Capsys
) -> None:
    player.record = CASES["interrupted"]
    player.failure = AgentError("agent.gone", "the agent hung up", hint="start it")
    done = run(capsys, "--min-sessions", "8")
    assert done.code == 4
    assert "error: the agent hung up\n  start it" in done.err
    assert "BROKEN OFF" in done.out


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("interrupted", "the 3 steps that were over are kept: turngap report "),
        ("nothing-played", "before the first step was over"),
    ],
)
def test_an_interruption_says_what_is_kept(
    player: FakePlayer, capsys: Capsys, case: str, says: str
) -> None:
    def interrupt(_: LoadProgress) -> None:
        raise KeyboardInterrupt

    player.record, player.before = CASES[case], interrupt
    done = run(capsys)
    assert done.code == 130
    assert says in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--sessions", "8..4"], "the lower one first"),
        (["--sessions", "4", "--rate", "1/s"], "give one of them"),
        (["--rate", "nan/s"], "--rate 2/s"),
        (["--target", "95"], "a share: 0.95"),
        (["--on", "moon"], "known: local, ray"),
        (["--max-sessions", "8", "--sessions", "4"], "drop --max-sessions"),
        (["--min-sessions", "8", "--sessions", "8"], "--min-sessions 8 --max-sessions 8"),
        (["no-such-scenario"], "no-such-scenario"),
    ],
)
def test_bad_flags(player: FakePlayer, capsys: Capsys, arguments: list[str], says: str) -> None:
    done = run(capsys, *arguments)
    assert done.code == 2
    assert says in done.err
    assert player.plans == []


def test_a_stored_load_test_is_shown_again(
    player: FakePlayer, capsys: Capsys, tmp_path: Path
) -> None:
    run(capsys)
    again = turngap_here(capsys, "report", "x-load", "--runs", tmp_path / "runs", "--html")
    assert again.code == 0
    assert "8 SESSIONS CERTIFIED" in again.out
    document = turngap_here(capsys, "report", player.folder, "--json").document()
    assert document["capacity"]["sessions"] == 8


# --- progress ---------------------------------------------------------------------------------


def test_a_log_gets_a_line_now_and_then_with_the_time_left(capsys: Capsys) -> None:
    class Watch:
        at_ns = 0

        def now_ns(self) -> int:
            return self.at_ns

        async def sleep_until_ns(self, deadline_ns: int) -> None:
            self.at_ns = deadline_ns

    clock = Watch()
    with Display(300, "s", 5, clock=clock) as shown:
        for second in range(100):
            clock.at_ns = second * NS_PER_S
            shown.tell("step 1: measured", second, 300.0 - second)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 99 // LINE_EVERY_S
    assert said[0] == "step 1: measured, about 4 minutes left"
