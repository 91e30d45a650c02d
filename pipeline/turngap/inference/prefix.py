"""What a server keeps of conversations between their requests."""

from collections import OrderedDict
from collections.abc import Hashable


class PrefixCache:
    """Keeps keys and values of conversations whose reply is done, as long as there is room.

    Args:
        shared: how many tokens at the start of every prompt are the same. They are computed once
            for all, but each conversation still takes room for them.
    """

    def __init__(self, shared: int = 0) -> None:
        self._shared = shared
        self._kept: OrderedDict[Hashable, int] = OrderedDict()
        self._tokens = 0

    def take(self, session: Hashable, prompt: int, spare: int) -> int:
        """Return how many tokens of a prompt need not be computed; the last one always must be.

        Other conversations may take `spare` tokens from now on: those used least recently are
        dropped.
        """
        hit = self._kept.pop(session, 0)
        self._tokens -= hit
        while self._tokens > spare:
            self._tokens -= self._kept.popitem(False)[1]  # the least recent
        hit = hit or self._shared
        return hit if hit < prompt else prompt - 1

    def keep(self, session: Hashable, tokens: int) -> None:
        """Keep a conversation of that many tokens; one without a name (None) is not kept."""
        if session is None:
            return
        # If two requests of one conversation run at once, the one that ends later is kept.
        self._tokens += tokens - self._kept.pop(session, 0)
        self._kept[session] = tokens
