"""A request to an engine, and what happened to it."""

from collections.abc import Hashable
from dataclasses import dataclass

from turngap.core.errors import InputError

# Later than anything.
FOREVER_PS = 1 << 80


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did: `sequences` decoded, and `prefill` prompt tokens were computed."""

    start_ps: int
    end_ps: int
    sequences: int
    prefill: int


class Request:
    """One prompt and its reply. The engine writes the instants.

    It has no slots on purpose: attributes that keep their default then cost nothing to make, and a
    simulation makes a hundred thousand requests a second.

    Attributes:
        prompt: tokens of the whole prompt, 1 or more.
        output: tokens of the reply, 1 or more.
        opening: the reply's token that the caller waits for, 1 to `output`; 1 is the first.
        tokens: tokens of the whole conversation, this reply included.
        session: the conversation, for the prefix cache; None if it belongs to none.
        tag: for the engine's caller; with speculative decoding it seeds the reply's draws.
        arrived_ps, admitted_ps, first_ps, opening_ps, done_ps: when it arrived, when the engine
            admitted it, when its first token, its opening and its last token were out; -1 until
            then.
        hit: prompt tokens that the prefix cache spared.
        stopped: whether it was cancelled.
    """

    arrived_ps: int = -1
    admitted_ps: int = -1
    first_ps: int = -1
    opening_ps: int = -1
    done_ps: int = -1
    hit: int = 0
    stopped: bool = False
    # For the engine: the steps of the first and last token; how much of the prompt is left and
    # where it continues; with speculative decoding, the tokens of each step to come, last first;
    # and the tokens that are out, if the step does not tell.
    first_step: int = -1
    last_step: int = -1
    left: int = 0
    offset: int = 0
    yields: list[int]
    emitted: int = 0

    def __init__(
        self, prompt: int, output: int, opening: int = 1, session: Hashable = None, tag: int = 0
    ) -> None:
        self.prompt = prompt
        self.output = output
        self.tokens = prompt + output
        self.opening = opening
        self.session = session
        self.tag = tag

    def check(self, room: int) -> None:
        """Check that it can be submitted to an engine with room for that many tokens.

        Raises:
            InputError: the conversation would never fit.
            ValueError: it has no tokens, an opening outside the reply, or was submitted before.
        """
        if self.arrived_ps >= 0:
            raise ValueError("a request can be submitted only once")
        if self.prompt < 1 or not 1 <= self.opening <= self.output:
            raise ValueError(f"{self.prompt=}, {self.opening=}, {self.output=}")
        if self.tokens > room:
            raise InputError(
                "inference.too_long",
                f"a conversation of {self.tokens} tokens does not fit: the server has room for "
                f"{room}",
                hint="use more accelerators, fewer bits, or shorter prompts",
            )
