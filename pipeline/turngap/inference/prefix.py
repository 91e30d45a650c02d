"""What a server keeps of conversations between their requests."""

from collections import OrderedDict
from collections.abc import Hashable


class PrefixCache:
    """Keys and values of conversations whose reply is done, for as long as there is room.

    Args:
        shared: tokens at the start of every prompt that are the same: computed once for all. Each
            conversation keeps room for them all the same.
    """

    def __init__(self, shared: int = 0) -> None:
        self._shared = shared
        self._kept: OrderedDict[Hashable, int] = OrderedDict()
        self._tokens = 0

    def take(self, session: Hashable, prompt: int, spare: int) -> int:
        """The tokens of a prompt that need not be computed; its last one always has to be.

        What is kept of others may take `spare` tokens from now on: the conversations used least
        recently are forgotten.
        """
        hit = self._kept.pop(session, 0)
        self._tokens -= hit
        while self._tokens > spare:
            self._tokens -= self._kept.popitem(False)[1]  # the least recent
        hit = hit or self._shared
        return hit if hit < prompt else prompt - 1

    def keep(self, session: Hashable, tokens: int) -> None:
        """Keep a conversation of so many tokens; nobody's (None) is not kept."""
        if session is None:
            return
        # Of two requests of one conversation at once the later end is what is kept.
        self._tokens += tokens - self._kept.pop(session, 0)
        self._kept[session] = tokens
