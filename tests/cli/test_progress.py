"""Progress of long work: how far it is, and how much time is left."""

from pathlib import Path

import pytest
from commandline import turngap_here
from fake_agents import NEW, FakeAgents, stand_in
from made_records import make_record, make_turn

from turngap.cli.shared import LINE_EVERY_S, Display
from turngap.core.clock import NS_PER_S
from turngap.core.run_record import PlanRecord
from turngap.core.wording import seconds_left
from turngap.store.writer import RunWriter

Capsys = pytest.CaptureFixture[str]


class Watch:
    """A clock that is set by hand."""

    at_ns = 0

    def now_ns(self) -> int:
        return self.at_ns

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        self.at_ns = deadline_ns


@pytest.mark.parametrize(
    ("share", "elapsed_s", "planned_s", "left_s"),
    [
        (0.0, 5.0, None, None),
        (0.0, 5.0, 600.0, 600.0),  # nothing is known but the plan
        (0.5, 100.0, None, 100.0),
        (0.5, 100.0, 200.0, 100.0),  # as planned
        (0.5, 200.0, 200.0, 150.0),  # twice as slow: halfway between the plan and the pace
        (0.9, 360.0, 200.0, 38.0),
        (1.0, 300.0, 200.0, 0.0),
    ],
)
def test_the_time_left_goes_from_the_plan_to_the_pace(
    share: float, elapsed_s: float, planned_s: float | None, left_s: float | None
) -> None:
    assert seconds_left(share, elapsed_s, planned_s) == pytest.approx(left_s)


def test_without_a_terminal_a_line_is_written_now_and_then_on_stderr(capsys: Capsys) -> None:
    clock = Watch()
    with Display(40, "turns", minutes=20, clock=clock) as shown:
        shown.step("coffee-order")
        for _ in range(20):
            clock.at_ns += round(LINE_EVERY_S / 2 * NS_PER_S)
            shown.advance()
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 10
    # 20 turns in 5 minutes: at that pace 5 minutes more, by the plan 10.
    assert lines[-1] == "20 of 40 turns, about 8 minutes left"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("replay", "--repeat", "40"),
            "120 turns against 127.0.0.1:9, in real time: about 8 minutes",
        ),
        (
            ("check", "--against", "ws://127.0.0.1:9/old"),
            "60 turns in 5 rounds, half of them 127.0.0.1:9's, in real time: about 4 minutes",
        ),
    ],
)
def test_what_plays_says_beforehand_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capsys,
    tmp_path: object,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    stand_in(monkeypatch, FakeAgents(), lambda _: NEW)
    done = turngap_here(
        capsys, *arguments, "quick-questions", "--agent", NEW, "--calibration", "0",
        "--out", str(tmp_path),
    )  # fmt: skip
    assert done.err.splitlines()[0] == said


def test_an_interrupted_run_says_how_to_go_on_with_its_command(
    tmp_path: Path, capsys: Capsys
) -> None:
    record = make_record(
        agent={"url": "ws://127.0.0.1:1/", "start": "python bot.py"},
        planned_turns=9,
        plan=PlanRecord(agent="ws://127.0.0.1:1/", library="scenarios", files=(), rounds=1),
    )
    writer = RunWriter.create(tmp_path, "mine", record)
    writer.append_turn(make_turn())
    with pytest.raises(KeyboardInterrupt), Display(9, "turns") as shown:
        shown.playing().on_folder(writer.path)
        raise KeyboardInterrupt
    typed = "--agent ws://127.0.0.1:1/ --start 'python bot.py'"
    go_on = f"play what is missing: turngap replay --resume {writer.path} {typed}"
    assert go_on in capsys.readouterr().err.splitlines()
