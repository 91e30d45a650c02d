"""The action's inputs, as environment variables, and what is wrong with them."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Exit codes of turngap (docs/ci.md).
BAD_INPUT, INCONCLUSIVE, AGENT_FAILED = 2, 3, 4
# Holds the place of the port, in the URL as in the command.
PORT = "$PORT"


class GateError(Exception):
    """Reason why nothing was measured, in a sentence, and what to do next.

    `exit_code` is turngap's: 2 for bad input, 4 where a version cannot be installed or started.
    """

    def __init__(self, why: str, hint: str = "", exit_code: int = BAD_INPUT) -> None:
        super().__init__(f"{why}. {hint[:1].upper()}{hint[1:]}." if hint else f"{why}.")
        self.exit_code = exit_code


@dataclass(frozen=True)
class Inputs:
    """Inputs of the workflow; see action.yml.

    Attributes:
        folder: the version to measure, where the bot is started.
        scenarios: what is played; empty: not said here.
        base: a branch, a tag or a commit; empty for the pull request's base, `none` for budgets.
        turngap: the version to install from the registry; empty for the action's own checkout.
        baseline: a file of a runner of your own that holds what earlier versions were like.
    """

    start: str
    url: str
    scenarios: tuple[str, ...]
    install: str
    folder: Path
    base: str
    dialect: str
    budgets: tuple[str, ...]
    rounds: int
    max_minutes: float
    baseline: Path | None
    turngap: str
    name: str
    options: tuple[str, ...]

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Inputs":
        """Read the variables `GATE_*`.

        Raises:
            GateError: one of them cannot be what it says.
        """

        def given(name: str, default: str = "") -> str:
            return environment.get(f"GATE_{name}", "").strip() or default

        workspace = Path(environment.get("GITHUB_WORKSPACE") or Path.cwd())
        folder = (workspace / given("FOLDER", ".")).resolve()
        baseline = given("BASELINE")
        inputs = cls(
            start=given("START"),
            url=given("URL", f"ws://127.0.0.1:{PORT}/ws").replace("${PORT}", PORT),
            scenarios=_words("scenarios", given("SCENARIOS")),
            install=given("INSTALL"),
            folder=folder,
            base=given("BASE"),
            dialect=given("DIALECT"),
            budgets=_words("budgets", given("BUDGETS")),
            rounds=_rounds(given("ROUNDS", "21")),
            max_minutes=_minutes(given("MAX_MINUTES", "30")),
            baseline=(workspace / baseline).resolve() if baseline else None,
            turngap=given("TURNGAP"),
            name=given("NAME", "turngap"),
            options=_words("options", given("OPTIONS")),
        )
        inputs._refuse()
        Telling.of(environment)
        return inputs

    def _refuse(self) -> None:
        if not self.start:
            raise GateError("start is empty", "give the command that starts your bot")
        if PORT not in self.url and self.base != "none":
            raise GateError(
                f"the url {self.url!r} leaves no room for a port",
                f"write {PORT} where the port stands, as in ws://127.0.0.1:{PORT}/ws: both "
                "versions run side by side",
            )
        if not self.folder.is_dir():
            raise GateError(f"there is no folder {self.folder}", "check your repository out first")
        if self.base.startswith("-"):
            raise GateError(f"base {self.base!r} is no branch, tag or commit")
        if not re.fullmatch(r"[\w][\w.-]{0,59}", self.name, re.ASCII):
            raise GateError(f"name {self.name!r}: letters, digits, '.', '_' and '-', at most 60")
        if self.turngap and not re.fullmatch(r"[\w.+!-]{1,60}", self.turngap, re.ASCII):
            raise GateError(f"turngap {self.turngap!r} is no version", "for example 0.1.0")


@dataclass(frozen=True)
class Telling:
    """Settings for the outcome.

    Attributes:
        comments: whether the pull request gets a comment.
        lenient: whether a job without a verdict passes, with a warning.
    """

    comments: bool = True
    lenient: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Telling":
        """Read `GATE_COMMENT` and `GATE_INCONCLUSIVE`.

        Raises:
            GateError: one of them is another word.
        """
        comment = _one_of("comment", environment.get("GATE_COMMENT", ""), ("true", "false"))
        unsure = _one_of("inconclusive", environment.get("GATE_INCONCLUSIVE", ""), ("fail", "warn"))
        return cls(comment == "true", unsure == "warn")


def _one_of(name: str, text: str, words: tuple[str, ...]) -> str:
    """Return the given word; the first of `words` if there is none."""
    word = text.strip().lower() or words[0]
    if word not in words:
        raise GateError(f"{name} {text!r} is neither {' nor '.join(words)}")
    return word


def _words(name: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as e:
        raise GateError(f"{name} {text!r} cannot be split into words: {e}") from e


def _rounds(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10_000:
        raise GateError(f"rounds {text!r}: expected a whole number of 1 to 10000")
    return int(text)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0.1 <= minutes <= 1_440:
        raise GateError(f"max-minutes {text!r}: expected a number of 0.1 to 1440")
    return minutes
