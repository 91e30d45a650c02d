"""The scale of drawn gaps: all that are known fit on it."""

import math
from collections.abc import Sequence

from turngap.report.charts import round_step

# Gaps beyond so many budgets would flatten the others: then each doubling goes equally far.
MOST_BUDGETS = 2.5


class GapScale:
    """Gaps to pixels from the top: the largest that is known has room, whatever it is."""

    def __init__(self, known: Sequence[float], budget_ms: float, height_px: float) -> None:
        self._height_px = height_px
        self.top = max([*known, budget_ms * 1.1]) * 1.05
        self.log = self.top > budget_ms * MOST_BUDGETS
        self._bottom = max(1.0, min([*known, budget_ms]) / 1.2)

    def y(self, ms: float) -> float:
        """Pixels from the top; endless gaps are at the upper edge."""
        if self.log:
            at = math.log(min(max(ms, self._bottom), self.top) / self._bottom)
            return round(self._height_px * (1 - at / math.log(self.top / self._bottom)), 2)
        return round(self._height_px * (1 - min(max(ms, 0.0), self.top) / self.top), 2)

    def ticks(self) -> list[float]:
        """Round gaps to be named at the side."""
        if not self.log:
            step_ms = round_step(self.top)
            return [n * step_ms for n in range(int(self.top / step_ms) + 1)]
        tens = range(math.ceil(math.log10(self.top)) + 1)
        found = [part * 10.0**n for n in tens for part in (1, 2, 5)]
        return [ms for ms in found if self._bottom <= ms <= self.top]
