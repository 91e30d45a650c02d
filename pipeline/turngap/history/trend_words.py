"""What a trend says, and how it is drawn."""

from collections.abc import Callable, Sequence

from turngap.core.run_levels import LEAST_TURNS
from turngap.core.untrusted import printable
from turngap.history.commits import Commits
from turngap.history.figures import Outcomes, outcomes_of
from turngap.history.listing import ms
from turngap.history.trend import Move, Point, Trend
from turngap.report import words
from turngap.report.charts import Chart, Dot, Mark, Path, Rule, polyline, round_step

HEIGHT_PX = 220
# Nothing below fills a drawing: on a quiet machine it is noise.
_LEAST_MS = 20.0


def signed_ms(value: float) -> str:
    """A difference in ms, its sign always shown."""
    return f"+{words.ms(value)}" if value >= 0.05 else words.ms(value)


def subject_words(trend: Trend) -> str:
    """The agent and what it was played, as far as the entries know."""
    return f"{printable(trend.agent) or 'agent'} · played {trend.played[:7]}"


def series_name(trend: Trend) -> str:
    """The same with the number of runs, and how to have these alone."""
    n = len(trend.points)
    runs = "1 run" if n == 1 else f"{n} runs"
    which = f"--where played={trend.played[:7]}"
    return f"{printable(trend.agent) or 'agent'}, {runs} of the same recordings ({which})"


def sure_words(p_value: float) -> str:
    """How often a series without a change looks like that."""
    return "p ≤ 0.001" if p_value <= 0.001 else f"p = {p_value:.3f}"


def signed_points(value: float) -> str:
    """A difference of shares in per cent of the turns, its sign always shown."""
    return f"{100 * value:+.1f}"


def rate_words(share: float) -> str:
    """A hit rate in a trend, where a tenth of a per cent may be a change."""
    return f"{100 * share:.1f} %"


def interval_words(move: Move, signed: Callable[[float], str]) -> str:
    """The 95 % interval of the size, as `signed` has it."""
    low, high = move.change.low, move.change.high
    return "none" if low is None or high is None else f"{signed(low)} to {signed(high)}"


def _sure_words(move: Move, signed: Callable[[float], str], unit: str) -> str:
    """How sure the size is, and that there is a change at all."""
    why = move.change.why_no_interval
    interval = f"95 % interval {interval_words(move, signed)}{unit}"
    return f"{f'no 95 % interval: {why}' if why else interval}; {sure_words(move.change.p_value)}"


def where_words(move: Move) -> str:
    """Between which runs the change lies."""
    first, last = move.change.first + 1, move.change.last + 1
    return f"run {first}" if first == last else f"runs {first} to {last}"


def commits_words(move: Move) -> str:
    """The commits that may have brought it: for `git log` where both ends are known."""
    commits = move.commits
    if commits.same:
        return "none: all runs there are of one commit"
    came = ", ".join(_commit_words(c) for c in commits.came)
    told = [_range_words(commits) or came or "none that is known"]
    if commits.unknown:
        told.append("some unknown")
    if commits.dirty:
        told.append("files differed")
    return "; ".join(told)


def _commit_words(commit: str) -> str:
    return commit if commit == "unknown" else words.commit(commit)


def _range_words(commits: Commits) -> str | None:
    if commits.range is None:
        return None
    return "..".join(map(words.commit, commits.range.split("..")))


def blame_words(move: Move) -> str:
    """Who may be to blame. The machine is only where it is known that nothing else changed."""
    commits = move.commits
    if commits.same:
        return (
            "Your checkout was at one commit there: look at the machine, the network and the "
            "backends."
        )
    told = [f"The change lies at {where_words(move)} with 95 % confidence"]
    if (ends := _range_words(commits)) is not None:
        told[0] += f", among your checkout's commits in `git log {ends}`."
    elif known := [words.commit(c) for c in commits.came if c != "unknown"]:
        told[0] += f", where your checkout came to {', '.join(known)}."
    else:
        told[0] += "."
    if commits.dirty:
        told.append("The checkout had changes that no commit names.")
    if commits.unknown:
        told.append("Not every run there says its commit, so none can be ruled out.")
    return " ".join(told)


def outcomes_words(move: Move) -> str:
    """What became of the turns before and after it: the level does not count what was lost."""
    return f"{_between('Before', move.before, 'after', move.after)}."


def _between(when: str, before: Outcomes, then: str, after: Outcomes) -> str:
    """The shares of the turns that were in time, and of those cut into, of two sets of runs."""
    (hits, cut_ins), (hits_then, cut_ins_then) = (
        (_share(of.hits, of.turns), _share(of.cut_ins, of.turns)) for of in (before, after)
    )
    return (
        f"{when}, {hits} of the turns were in time and {cut_ins} cut into; {then}, {hits_then} and "
        f"{cut_ins_then}"
    )


def series_words(trend: Trend) -> str:
    """The same of the older and the newer half of a series."""
    used = [point.entry for point in trend.points]
    half = len(used) // 2
    older, newer = outcomes_of(used[:half]), outcomes_of(used[half:])
    return _between("in the older half of the runs", older, "in the newer half", newer)


def _share(count: int | None, of: int) -> str:
    return "–" if count is None or not of else rate_words(count / of)


def uneven_words(trend: Trend) -> str | None:
    """How many runs, and which, were not looked at, and why; None where there are none."""
    numbers = trend.uneven
    if not numbers:
        return None
    n = len(trend.points)
    are, its = ("is", "its") if len(numbers) == 1 else ("are", "their")
    return (
        f"{len(numbers)} of {n} runs {are} uneven ({', '.join(map(str, numbers))}): {its} turns "
        "are off the runs around by amounts that differ a lot, as on a busy machine."
        + ("" if trend.why_none else f" The trend stands on the other {n - len(numbers)}.")
    )


def without_level_words(trend: Trend) -> str | None:
    """Which runs tell no level, and why; None where there are none."""
    numbers = trend.without_level
    if not numbers:
        return None
    few = len(numbers) == len(trend.points)
    why = "play more turns in each run, as with --repeat" if few else "as where the agent cut in"
    return (
        f"{len(numbers)} of {len(trend.points)} runs ({', '.join(map(str, numbers))}): fewer than "
        f"{LEAST_TURNS} turns in common with half of the runs{': ' if few else ', '}{why}"
        + ("" if trend.why_none or trend.why_no_hits else "; counted for the hit rate only")
    )


def move_sentence(move: Move) -> str:
    """The change in a sentence: where, by how much, how sure, and who may be to blame."""
    slower = "slower" if move.change.difference > 0 else "quicker"
    of = f" (commit {words.commit(move.entry.commit)})" if move.entry.commit else ""
    size = f"{words.ms(abs(move.change.difference))} ms {slower} from run {move.number}{of} on"
    sure = _sure_words(move, signed_ms, " ms")
    return f"{size}; {sure}. {blame_words(move)} {outcomes_words(move)}"


def hit_sentence(move: Move) -> str:
    """The same of a change of the hit rate."""
    change = move.change
    lower = "lower" if change.difference < 0 else "higher"
    of = f" (commit {words.commit(move.entry.commit)})" if move.entry.commit else ""
    size = f"{100 * abs(change.difference):.1f} points {lower} from run {move.number}{of} on"
    levels = f"{rate_words(change.before)} before and {rate_words(change.after)} after"
    sure = _sure_words(move, signed_points, " points")
    cut_ins = [_share(o.cut_ins, o.turns) for o in (move.before, move.after)]
    cut = f"Before, {cut_ins[0]} of the turns were cut into; after, {cut_ins[1]}."
    return f"{size}, {levels}; {sure}. {blame_words(move)} {cut}"


def unmoved_words(trend: Trend) -> str:
    """That nothing was found, and what could not be looked for."""
    n = len(trend.points)
    if trend.why_none is not None:
        return f"not known: {trend.why_none}"
    level = f"no change of level in {n - len(trend.without_level)} runs"
    if trend.why_no_hits is not None:
        return f"{level}; of the hit rate not known: {trend.why_no_hits}"
    if trend.why_no_level is not None:
        return f"no change of hit rate in {n} runs; of the level not known: {trend.why_no_level}"
    if trend.without_level:
        return f"{level}, nor of hit rate in {n}"
    return f"no change of level or hit rate in {n} runs"


def trend_chart(trend: Trend) -> Chart | None:
    """A dot for each run, a line for each level, an upright rule at each change."""
    points = trend.points
    values = _even_levels(trend)
    if not values:
        return None
    leveled = trend.why_none is None and trend.why_no_level is None
    middle, half = (min(values) + max(values)) / 2, (max(values) - min(values)) * 0.6
    half = max(half, _LEAST_MS / 2)
    low, high = middle - half, middle + half

    def x(number: float) -> float:
        return round(100 * (number - 0.5) / len(points), 3)

    def y(value: float) -> float:
        return round(HEIGHT_PX * (high - min(max(value, low), high)) / (high - low), 2)

    step = round_step(high - low, 6)
    ticks = [n * step for n in range(int(low // step) + 1, int(high // step) + 1)]
    every = max(1, round_step(len(points), 6)) if len(points) > 6 else 1
    numbers = range(1, len(points) + 1)
    set_aside = any(point.uneven for point in points)
    bounds = [0, *(move.change.at for move in trend.moves), len(points)]
    return Chart(
        spoken=f"Level of {len(points) - len(trend.without_level)} runs. "
        + (_moves_words(trend) or f"{unmoved_words(trend).capitalize()}."),
        height=HEIGHT_PX,
        name="trend",
        note="One dot a run, the oldest to the left: the gap of a typical turn, in ms, from the "
        "turns that the runs share."
        + (
            " Lines are the levels between changes; an upright rule stands at the first run of a "
            "new one, and a solid one where the hit rate changed."
            if leveled
            else ""
        )
        + (" Hollow dots were set aside; those at the edge lie beyond it." if set_aside else ""),
        x_ticks=[Mark(x(n), str(n)) for n in numbers if n % every == 0 or (n == 1 and every <= 2)],
        y_ticks=[Mark(y(value), words.ms(value), grid=True) for value in ticks],
        paths=[
            Path(polyline([(x(a + 0.5), y(level)), (x(b + 0.5), y(level))]), "b")
            for a, b, level in zip(bounds, bounds[1:], _levels(trend), strict=False)
            if leveled
        ],
        rules=[
            Rule(
                x(move.change.at + 0.5),
                f"run {move.number}, {words.commit(move.entry.commit)}: "
                f"{signed_ms(move.change.difference)} ms",
                "target",
            )
            for move in trend.moves
        ]
        + [
            Rule(
                x(move.change.at + 0.5),
                f"run {move.number}: hit rate {signed_points(move.change.difference)} points",
            )
            for move in trend.hit_moves
        ],
        dots=[
            Dot(x(n), y(point.ms), hollow=point.uneven, title=_dot_words(n, point), r=3.5)
            for n, point in zip(numbers, points, strict=True)
            if point.ms is not None
        ],
    )


def _moves_words(trend: Trend) -> str:
    told = [*map(move_sentence, trend.moves)]
    return " ".join([*told, *(f"Hit rate {hit_sentence(move)}" for move in trend.hit_moves)])


def _levels(trend: Trend) -> Sequence[float]:
    if not trend.moves:
        return [sorted(levels := _even_levels(trend))[len(levels) // 2]]
    return [trend.moves[0].change.before, *(move.change.after for move in trend.moves)]


def _even_levels(trend: Trend) -> list[float]:
    return [p.ms for p in trend.points if p.ms is not None and not p.uneven]


def _dot_words(number: int, point: Point) -> str:
    entry = point.entry
    when = words.instant(entry.started_utc) if entry.started_utc else ""
    label = f", {printable(entry.label)}" if entry.label else ""
    uneven = ", set aside" if point.uneven else ""
    return (
        f"run {number}: {ms(point.ms)} ms{uneven}, p50 {ms(entry.gap_ms['p50'])}, commit "
        f"{words.commit(entry.commit)}{label}, {when}"
    )
