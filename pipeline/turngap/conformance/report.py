"""How the checks of a server are shown: on a terminal, as JSON and as JUnit."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from turngap.conformance.evidence import Check
from turngap.core.untrusted import printable
from turngap.report import junit, terminal
from turngap.report.looks import Style
from turngap.report.sections import Line, Lines, Report, Section

SUITE = "turngap dialects"
# In the order in which they are shown: what to mend comes first.
_STYLES: dict[str, Style] = {"fail": "bad", "not seen": "dim", "seen": "", "pass": "good"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The checks of one server.

    Attributes:
        url: without its secrets.
        failure: what ended the conversation early, if anything did.
    """

    url: str
    dialect: str
    checks: Sequence[Check]
    failure: str | None = None

    @property
    def conforms(self) -> bool:
        """Whether all that was seen does."""
        return not any(check.status == "fail" for check in self.checks)

    @property
    def counts(self) -> str:
        found = Counter(check.status for check in self.checks)
        return (
            f"{found['pass']} pass, {found['fail']} fail, {found['seen']} seen, "
            f"{found['not seen']} not seen"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "dialect": self.dialect,
            "conforms": self.conforms,
            "failure": self.failure,
            "checks": [asdict(check) for check in self.checks],
        }

    def as_junit(self) -> bytes:
        """Write a test case for each check; others are skipped, with what was seen."""
        return junit.document(
            SUITE,
            [_case(check) for check in self.checks],
            properties={"url": printable(self.url), "dialect": self.dialect},
            output=self.block(100).plain,
        )

    def block(self, width: int) -> Text:
        found = [Line("", self.counts)]
        for status, style in _STYLES.items():
            found += [
                Line(status, f"{check.name}: {printable(check.seen)}", style)
                for check in self.checks
                if check.status == status
            ]
        subject = f"{self.dialect} · {printable(self.url)}"
        section = Section("Against its protocol", [Lines(found)])
        return terminal.block(Report("dialects check", subject, "", [section]), width)


def _case(check: Check) -> junit.Case:
    if check.status == "pass":
        return junit.Case(check.name, "passed")
    status = "failed" if check.status == "fail" else "skipped"
    return junit.Case(check.name, status, check.seen)
