"""Names that caller and agent agree on: turngap's own messages inside RTVI.

They are types of client messages; what the agent answers is a server message whose key `turngap`
names it.
"""

from typing import Any

from turngap.core.errors import TurngapError

# Asks for the agent's clock; answered by `pong`.
PING = "turngap.ping"
# Picks another LLM, `{"use": NAME}`; answered by `llm` or `refused`.
LLM = "turngap.llm"
# Says something in writing, `{"turn": n, "text": …}`; answered by `said` or `refused`.
SAY = "turngap.say"


def refusal(about: str, error: TurngapError) -> dict[str, Any]:
    """Return the server message that says why a client message is refused."""
    return {
        "turngap": "refused",
        "re": about,
        "kind": error.kind,
        "message": error.message,
        "hint": error.hint,
    }
