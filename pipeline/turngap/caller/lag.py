"""How late the caller's own event loop runs: what arrives while it is held up reads late."""

from turngap.core.clock import Clock, ms_to_ns

# Wake-ups are this far apart; of a hold-up, all but this much is seen at the least.
BEAT_MS = 5.0


class LagProbe:
    """Wakes at absolute deadlines and keeps how late each wake-up was."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._beats: list[tuple[int, int]] = []  # (due, late), ns

    async def run(self) -> None:
        """Beat until cancelled."""
        due_ns = self._clock.now_ns()
        while True:
            due_ns += ms_to_ns(BEAT_MS)
            await self._clock.sleep_until_ns(due_ns)
            now_ns = self._clock.now_ns()
            self._beats.append((due_ns, now_ns - due_ns))
            if now_ns - due_ns > ms_to_ns(BEAT_MS):
                due_ns = now_ns  # beats that a hold-up swallowed are not made up for

    def worst_ns(self, from_ns: int, to_ns: int) -> int | None:
        """The longest hold-up in a stretch of time; None if no beat fell due in it."""
        late = [late for due, late in self._beats if due + late >= from_ns and due <= to_ns]
        return max(late, default=None)
