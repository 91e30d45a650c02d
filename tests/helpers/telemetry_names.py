"""The names that docs/telemetry.md lists, as a test finds them there."""

import re
from pathlib import Path

_PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| (`[a-z_.]+`(?:, `[a-z_.]+`)*) \| ", re.MULTILINE)


def _names(heading: str) -> frozenset[str]:
    section = _PAGE.split(f"\n### {heading}", 1)[1].split("\n### ", 1)[0]
    return frozenset(name.strip("`") for row in _ROW.findall(section) for name in row.split(", "))


CONVERSATION, TURN, STAGE, METRICS = map(
    _names, ("The conversation", "A turn", "A stage", "Metrics")
)
