"""Decides from an agent's calls whether it greets, and how long to wait for that."""

# A greeting through LLM and TTS was seen to take one to two seconds, four to five where the agent
# is cold, and six in its first call.
GREETING_MS, FIRST_GREETING_MS = 5000.0, 8000.0
# After this many calls in a row without a greeting, none is waited for.
SILENT_CALLS = 2
# An agent that first speaks at the same time of each call greets, too, wherever the person ends.
APART_NS = 1_500_000_000


class Greetings:
    """Decides for each call of an agent how long to wait for a greeting.

    Attributes:
        greets: the agent has greeted.
    """

    def __init__(self, asked_ms: float | None) -> None:
        self._asked_ms = asked_ms
        self.greets = False
        self._firsts: list[tuple[int, int]] = []  # of each silent call: its onset, the user's end
        self._silent: list[bool] = []  # calls in a row without one: whether the agent then cut in

    @property
    def wait_ms(self) -> float:
        """Return how long to wait in the next call: as asked for, or as the calls before showed."""
        if self._asked_ms is not None:
            return self._asked_ms
        if self.greets:
            return GREETING_MS
        return 0.0 if self.decided else GREETING_MS if self._silent else FIRST_GREETING_MS

    @property
    def open(self) -> bool:
        """Return whether turngap itself has to find out how long to wait."""
        return self._asked_ms is None

    @property
    def decided(self) -> bool:
        """Return whether nothing more is to be learnt from a call."""
        return self._asked_ms is not None or self.greets or len(self._silent) >= SILENT_CALLS

    @property
    def steady(self) -> bool:
        """Return whether the agent first speaks at the same time of each call, as a greeting is."""
        if not self._firsts:
            return False
        onsets, ends = (max(each) - min(each) for each in zip(*self._firsts, strict=True))
        return ends > max(APART_NS, 2 * onsets)

    def take(self, *, greeted: bool, cut_in: bool, first_ns: tuple[int, int] | None = None) -> None:
        """Learn from a call. An agent that suddenly cuts into its first turn may have greeted.

        `first_ns`: how long after the opening the agent first spoke, and the person had ended.
        """
        self.greets |= greeted
        if first_ns is not None and not greeted:
            self._firsts.append(first_ns)
        sudden = cut_in and self.decided and not all(self._silent)
        self._silent = [] if sudden else self._silent[1 - SILENT_CALLS :]
        self._silent.append(cut_in)
