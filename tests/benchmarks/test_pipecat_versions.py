"""What the table of pipecat's versions says of the turns that were played."""

from typing import Any

from pipecat_versions import Row, row_of, table

from turngap.core.stages import UNATTRIBUTED, USUAL_MARKS

STAGES = list(USUAL_MARKS[1:])


def turn(*stages: str) -> dict[str, Any]:
    return {"stages": [{"name": name} for name in stages]}


def test_turns_with_all_stages_are_counted_apart_from_those_with_a_hole() -> None:
    row = row_of("1.8.1", [turn(*STAGES), turn(UNATTRIBUTED, "agent_onset"), turn()])
    assert (row.staged, row.turns) == (1, 3)
    assert row.cells() == ("1.8.1", "1 of 3", f"all {len(STAGES)}")


def test_stages_that_never_came_are_named() -> None:
    row = row_of("1.8.1", [turn(*(name for name in STAGES if name != "sent"))])
    assert row.cells()[2] == "all but sent"


def test_a_version_that_cannot_be_measured_says_why() -> None:
    shown = table([Row("1.7", error="No module named 'pipecat.x'")])
    assert shown.splitlines()[-1] == "| 1.7 | No module named 'pipecat.x' |  |"
