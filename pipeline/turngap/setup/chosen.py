"""What `turngap init` found or was told, of which its files are made."""

from collections.abc import Sequence
from dataclasses import dataclass

from turngap.core.errors import InputError
from turngap.core.secrets import REMOVED, header_without_secret, text_without_secrets

# 12 rounds of the three turns of `quick-questions` are 36: at 35 without a miss, Wilson's lower
# bound reaches 90 %.
SCENARIO = "quick-questions"
ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the files are made of.

    Attributes:
        agent: its URL, or the name of a stack.
        start: the command that starts it; empty: it runs already, or turngap starts it.
        dialect: of its URL; empty: not known.
        headers: of its URL.
        scenarios: what is played; empty: all of the library.
        gap_ms: the budget.
        target: the share of turns that must keep it.
        takes_port: whether `--port` can be added to the command.
    """

    agent: str
    start: str = ""
    dialect: str = ""
    headers: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = (SCENARIO,)
    gap_ms: float = 800.0
    target: float = 0.9
    takes_port: bool = False


def require_no_secrets(
    agent: str, start: str = "", dialect: str = "", headers: Sequence[str] = ()
) -> None:
    """Refuse to write a key or a password into files that are meant to be committed.

    Raises:
        InputError: one of these has a secret in it.
    """
    of_the_url = "write ${NAME} in its place, and set the environment variable NAME"
    of_the_bot = "let the bot read it from an environment variable, which it inherits"
    said = {"--agent": agent, "--start": start, "--dialect": dialect}
    cleaned = [
        (name, text, text_without_secrets(text), of_the_bot if name == "--start" else of_the_url)
        for name, text in said.items()
    ]
    cleaned += [
        ("--header", text, text_without_secrets(header_without_secret(text)), of_the_url)
        for text in headers
    ]
    for name, text, clean, hint in cleaned:
        if clean.count(REMOVED) > text.count(REMOVED):
            raise InputError(
                "init.secret",
                f"{name} {clean!r}: what was removed here looks like a secret, and the file is "
                "meant to be committed",
                hint=hint,
            )
