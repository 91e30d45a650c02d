"""docs/telemetry.md names all that is sent, in the words of the code."""

import re
from itertools import chain

from commandline import ROOT

from turngap.core.stages import STAGES
from turngap.telemetry.names import CONVERSATION, METRICS, STAGE, TURN

PAGE = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(.+?)` \| (.+) \|$", re.MULTILINE)


def section(heading: str) -> str:
    return PAGE.split(f"\n### {heading}")[1].split("\n### ")[0]


def test_each_span_lists_its_attributes_with_what_they_say() -> None:
    for heading, listed in (("The conv", CONVERSATION), ("A turn", TURN), ("A stage", STAGE)):
        assert dict(ROW.findall(section(heading))) == listed


def test_the_metrics_are_listed_with_their_units() -> None:
    rows = [(name, *rest.split(" | ")) for name, rest in ROW.findall(section("Metrics"))]
    told = [(name, f"`{unit}`", kind, words) for name, (unit, kind, words) in METRICS.items()]
    assert rows == told


def test_every_stage_is_named() -> None:
    assert all(f"`turngap.{stage}`" in section("A stage") for stage in STAGES)


def test_nothing_of_ours_is_named_that_is_not_sent() -> None:
    named = set(re.findall(r"`(turngap\.[a-z_.]+)`", PAGE))
    sent = {*chain(CONVERSATION, TURN, STAGE, METRICS), *(f"turngap.{s}" for s in STAGES)}
    assert named <= sent | {"turngap.turn"}
