"""What the lanes of a language model are worth, from the requests of an open loop. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lane_load import Heard

from turngap.core.stats import Percentile, Proportion, percentile, proportion_of

# The LLM's share of the budget of 800 ms: from its request to something that can be spoken.
WINDOWS_MS = (400.0, 500.0)
# To hold: so large a share of the turns.
TARGET = 0.95
# A client that turns to a request so late has loaded the lane with another schedule than it made.
MOST_LATE_MS = 20.0


@dataclass
class Cell:
    """One lane at one rate: the counted requests of all rounds.

    Attributes:
        per_s: turns a second of this lane.
    """

    lane: str
    per_s: float
    rounds: list[list[Heard]] = field(default_factory=list[list[Heard]])

    @property
    def heard(self) -> list[Heard]:
        return [heard for round_ in self.rounds for heard in round_]

    @property
    def n(self) -> int:
        return len(self.heard)

    def fits(self, window_ms: float, opening: int) -> Proportion:
        """The share of turns whose opening had come in time; the others are late or failed.

        Turns of the same second share a queue, so they count as linked.
        """
        hits: list[bool] = []
        takes: list[tuple[str, int, int]] = []
        for number, round_ in enumerate(self.rounds):
            for index, heard in enumerate(round_):
                opened_ms = heard.when(opening)
                hits.append(opened_ms is not None and opened_ms <= window_ms)
                takes.append((f"{number}/{int(heard.due.at_s)}", index, 0))
        return proportion_of(hits, takes)

    def tokens(self, window_ms: float, q: float) -> Percentile:
        """How many tokens had come in the window."""
        return percentile([float(heard.by(window_ms)) for heard in self.heard], q)

    def first_ms(self, q: float) -> Percentile:
        """The time to the first token; those without one count as slower."""
        found = [heard.first_ms for heard in self.heard]
        came = [ms for ms in found if ms is not None]
        return percentile(came, q, censored=len(found) - len(came))

    @property
    def late(self) -> tuple[float, str]:
        """How late the client itself was, ms, and as what: the highest quantile that so many tell.

        Of fewer than 20 requests it is the maximum, since even p95 would say nothing.
        """
        late_ms = [heard.late_ms for heard in self.heard]
        for q, name in ((0.99, "p99"), (0.95, "p95")):
            if (found := percentile(late_ms, q).value) is not None:
                return found, name
        return max(late_ms, default=0.0), "at most"

    @property
    def void(self) -> str | None:
        """Why this says nothing of the lane."""
        late_ms, name = self.late
        if late_ms <= MOST_LATE_MS:
            return None
        return f"the client itself was {late_ms:.0f} ms late ({name} of {self.n})"

    @property
    def failed(self) -> dict[str, int]:
        """Requests that failed, by reason."""
        why = [heard.failed for heard in self.heard if heard.failed]
        return {reason: why.count(reason) for reason in dict.fromkeys(why)}

    def holds(self, window_ms: float, opening: int) -> bool | None:
        """Whether enough turns fit the window; None: these do not tell."""
        return None if self.void else self.fits(window_ms, opening).reaches(TARGET)


@dataclass(frozen=True)
class Held:
    """The most that a lane was seen to hold.

    Attributes:
        most: the highest rate of those that held, below all that did not; None: none is sure.
        not_held: the lowest rate above it that did not, or of which that is not sure; None where
            the lane held all that was tried.
        sure: whether it is sure that `not_held` does not hold.
    """

    most: Cell | None
    not_held: Cell | None
    sure: bool = False


def held(cells: Sequence[Cell], window_ms: float, opening: int) -> Held:
    """Find it among the rates of one lane."""
    most: Cell | None = None
    for cell in sorted(cells, key=lambda cell: cell.per_s):
        if (holds := cell.holds(window_ms, opening)) is not True:
            return Held(most, cell, sure=holds is False)
        most = cell
    return Held(most, None)


def price(
    calls: float | None, call_s: float, hour_price: float | None
) -> tuple[float | None, str | None]:
    """What one call costs, and why it is not known.

    Args:
        calls: that the machine carries at once.
        call_s: how long a call lasts.
        hour_price: of the whole machine.
    """
    if hour_price is None:
        return None, "no price an hour is given (--hour-price)"
    if not calls:
        return None, "no rate that was tried is sure to hold"
    return hour_price * call_s / 3600 / calls, None


def rates_table(cells: Sequence[Cell], opening: int) -> str:
    """Every lane at every rate, in Markdown."""
    head = (
        "turns/s", "lane", "n", *(f"fit {ms:.0f} ms" for ms in WINDOWS_MS),
        f"tokens in {WINDOWS_MS[-1]:.0f} ms, p50 (p5)", "TTFT p50", "p95",
    )  # fmt: skip
    lines = [head, ("---",) * len(head)]
    for cell in cells:
        fits = [_share(cell.fits(ms, opening)) for ms in WINDOWS_MS]
        tokens = [_whole(cell.tokens(WINDOWS_MS[-1], q)) for q in (0.5, 0.05)]
        first = [_whole(cell.first_ms(q)) for q in (0.5, 0.95)]
        lane = f"{cell.lane} ({cell.void})" if cell.void else cell.lane
        lines.append(
            (f"{cell.per_s:g}", lane, f"{cell.n}", *fits, f"{tokens[0]} ({tokens[1]})", *first)
        )
    return _markdown(lines)


def worth_table(
    lanes: Mapping[str, Sequence[Cell]],
    opening: int,
    *,
    turn_s: float,
    call_s: float,
    hour_price: float | None,
    right: Mapping[str, str],
) -> str:
    """What each lane holds, gives and costs, in Markdown.

    Args:
        lanes: the cells of each lane that was measured by itself.
        opening: tokens that have to have come for the TTS to begin.
        turn_s: from a turn of a call to the next, in the mean.
        call_s: how long a call lasts, in the mean.
        hour_price: of the whole machine; None: not known.
        right: the stored share of right answers of each lane's model, in words.
    """
    head = (
        "lane", *(f"turns/s within {ms:.0f} ms" for ms in WINDOWS_MS), "calls at once",
        f"tokens in {WINDOWS_MS[-1]:.0f} ms there", "1000 calls", "right when it was made",
    )  # fmt: skip
    lines, why_none = [head, ("---",) * len(head)], set[str]()
    for lane, cells in lanes.items():
        found = [held(cells, ms, opening) for ms in WINDOWS_MS]
        most = found[-1].most
        calls = most and most.per_s * turn_s
        cost, why = price(calls, call_s, hour_price)
        if why:
            why_none.add(why)
        lines.append(
            (
                lane,
                *map(_held, found),
                "–" if calls is None else f"{calls:.0f}",
                "–" if most is None else _whole(most.tokens(WINDOWS_MS[-1], 0.5)),
                "–" if cost is None else f"{1000 * cost:.3g}",
                right.get(lane, "–"),
            )
        )
    table = _markdown(lines)
    return f"{table}\n\nNo price of a call: {'; '.join(sorted(why_none))}." if why_none else table


def _held(found: Held) -> str:
    """`8 (not 16)`, `8 (not sure of 16)`, `64 and more`, `fewer than 2`, `not sure of 2`."""
    if found.not_held is None:
        return "–" if found.most is None else f"{found.most.per_s:g} and more"
    beyond = found.not_held.per_s
    if found.most is None:
        return f"fewer than {beyond:g}" if found.sure else f"not sure of {beyond:g}"
    return f"{found.most.per_s:g} (not {'' if found.sure else 'sure of '}{beyond:g})"


def _share(share: Proportion) -> str:
    if share.value is None or share.low is None or share.high is None:
        return "–"
    return f"{share.value:.1%} ({100 * share.low:.0f} to {100 * share.high:.0f})"


def _whole(found: Percentile) -> str:
    return "–" if found.value is None else f"{found.value:.0f}"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
