"""What can be said to an agent, for somebody who is about to say the first word."""

from turngap.scenario.domain import Domain

# As many as fit a phone's first view.
MOST_TOPICS, MOST_EXAMPLES = 6, 5


def introduction(domain: Domain | None, *, closed: bool = True) -> str:
    """Return in a sentence or two what the agent understands, and what it does not.

    `domain` is None where anything can be said, and `closed` is whether the recogniser knows
    nothing else; if not, it is the language model.
    """
    if domain is None:
        return (
            "Say anything, in English. A language model makes the answers, and some will be wrong."
        )
    named = ", ".join([*list(domain.topics)[:MOST_TOPICS], "and more"])
    topics = f" about {named}" if domain.topics else ""
    if closed:
        return f"This agent knows only some sentences{topics}. Read one aloud, for example:"
    return (
        "The project's own language model makes the answers, and it "
        f"knows only some sentences{topics}. Read one aloud, for example:"
    )


def of_foreign() -> str:
    """Return what there is to say to an agent of which nothing is known."""
    return "Say what this agent understands. It is not turngap’s own, so no examples are known."


def examples(domain: Domain | None) -> list[str]:
    """Return sentences to read aloud; none where anything can be said."""
    return [] if domain is None else list(domain.examples[:MOST_EXAMPLES])
