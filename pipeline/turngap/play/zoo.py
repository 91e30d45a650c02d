"""Play the agents of `turngap.testing.zoo`, and compare turngap's figures with the truth."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import product, starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from turngap.caller.dialects.registry import find_dialect
from turngap.caller.endpoint import Endpoint
from turngap.core.clock import Clock
from turngap.core.cue import When
from turngap.core.errors import AgentError
from turngap.core.results import Turn
from turngap.play.plan import PlayPlan
from turngap.play.run import RunInProgress
from turngap.play.target import AgentChoice, Target
from turngap.scenario.library import LoadedScenario, load_scenario
from turngap.scenario.model import shipped_library
from turngap.store.runs import Run
from turngap.testing.dialects import make_half
from turngap.testing.memory import End, line_to
from turngap.testing.virtual import LoopClock, in_virtual_time
from turngap.testing.zoo import ZOO, Agent, Truth, converse

# One with RTVI's words, and one with nothing but sound, coded as µ-law.
DIALECTS = ("pipecat", "twilio")
TOLERANCE_MS = 10.0

Verdict = Literal["right", "refused", "wrong"]


@dataclass(frozen=True, slots=True)
class Reading:
    """turngap's figures of an agent in a dialect.

    Attributes:
        turns: all that were stored, by call.
        off: the differences from the truth, a sentence each.
    """

    agent: Agent
    dialect: str
    turns: Sequence[Turn | None]
    valid: bool
    verdict: Verdict
    off: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        return {
            "agent": self.agent.name,
            "does": self.agent.does,
            "dialect": self.dialect,
            "right": _distinct(map(_words, self.agent.right)),
            "reads": [_words(_read_of(turn)) for turn in self.turns],
            "valid": self.valid,
            "verdict": self.verdict,
            "off": list(self.off),
        }


def play_zoo(
    agents: Sequence[Agent] = ZOO,
    dialects: Sequence[str] = DIALECTS,
    on_agent: Callable[[], None] = lambda: None,
) -> Iterator[Reading]:
    """Play agents in memory and virtual time, each in each dialect."""
    for agent in agents:
        for dialect in dialects:
            yield _read(agent, dialect)
            on_agent()


@cache
def scenario_of(barge_ms: float | None) -> LoadedScenario:
    """Return what the person says to an agent, with the second turn spoken into the first reply."""
    loaded = load_scenario(shipped_library() / "quick-questions.yaml")
    if barge_ms is None:
        return loaded
    first, second, *others = loaded.scenario.turns
    second = second.model_copy(update={"when": When(barge_in_ms=barge_ms)})
    turns = (first, second, *others)
    return replace(loaded, scenario=loaded.scenario.model_copy(update={"turns": turns}))


def lengths_of(scenario: LoadedScenario) -> list[float]:
    """Return how long the person speaks in each turn, in ms."""
    return [turn.speech.ms for turn in scenario.scenario.turns if turn.speech]


def begin(agent: Agent, dialect: str, out: Path) -> RunInProgress:
    """Begin the run of an agent's calls."""
    choice = AgentChoice(f"ws://zoo/{agent.name.replace(' ', '-')}", dialect=dialect)
    plan = PlayPlan(scenarios=[scenario_of(agent.barge_ms)], rounds=agent.calls, out=out)
    return RunInProgress(plan, Target(choice, shipped_library(), None), "zoo")


def reading(agent: Agent, dialect: str, stored: Run) -> Reading:
    """Compare the run of an agent's calls with the truth."""
    played = {(turn.repeat, turn.turn): turn for turn in stored.turns}
    numbers = range(1, len(scenario_of(agent.barge_ms).scenario.turns) + 1)
    turns = [played.get(key) for key in product(range(1, agent.calls + 1), numbers)]
    verdict, off = judge(agent, turns)
    return Reading(agent, dialect, turns, stored.record.valid, verdict, off)


def _read(agent: Agent, dialect: str) -> Reading:
    scenario = scenario_of(agent.barge_ms)
    name = dialect.partition(",")[0]
    settings = Endpoint("ws://zoo", dialect).settings()

    async def call(run: RunInProgress, number: int) -> None:
        async def be(end: End, clock: Clock) -> None:
            half, lengths_ms = make_half(name), lengths_of(scenario)
            await converse(agent, half, end, clock, call=number, lengths_ms=lengths_ms)

        clock = LoopClock()
        async with line_to(be, find_dialect(name).session(), clock) as line:
            line.first_word = settings.first_word
            await run.play_over(line, clock, scenario, repeat=number, watch=clock)

    with TemporaryDirectory(prefix="turngap-zoo-") as folder:
        run = begin(agent, dialect, Path(folder))
        for number in range(1, agent.calls + 1):
            with suppress(AgentError):  # a lost call is in the run, which continues
                in_virtual_time(call(run, number))
        return reading(agent, dialect, run.finish())


def judge(agent: Agent, turns: Sequence[Turn | None]) -> tuple[Verdict, Sequence[str]]:
    """Compare the turns of all calls with the truth; return the worst verdict and differences."""
    judged = [_judge_turn(right, turn) for right, turn in _with_truths(agent, turns)]
    off = [f"turn {number}: {why}" for number, (_, why) in enumerate(judged, start=1) if why]
    order: tuple[Verdict, ...] = ("wrong", "refused", "right")
    return next(v for v in order if any(v == verdict for verdict, _ in judged)), off


def _with_truths(agent: Agent, turns: Sequence[Turn | None]) -> Iterator[tuple[Truth, Turn | None]]:
    rights = [*agent.right, *[agent.right[-1]] * len(turns)]
    return zip(rights[: len(turns)], turns, strict=True)


def _judge_turn(right: Truth, turn: Turn | None) -> tuple[Verdict, str]:
    """Judge a turn: right in all its figures, refused in the truth's own words, or wrong."""
    read = _read_of(turn)
    if all(_near(read.get(name), wanted) for name, wanted in right.items() if name != "refuses"):
        return "right", ""
    reasons = _reasons(turn)
    why = ": ".join([f"{_words(read)}, not {_words(right)}", *reasons])
    declared = right.get("refuses")
    refused = declared is not None and any(declared in reason for reason in reasons)
    return ("refused" if refused else "wrong"), why


def _reasons(turn: Turn | None) -> list[str]:
    return [*turn.notes, *filter(None, (turn.left_out, turn.why_no_gap))] if turn else []


def _shown(right: Truth, turn: Turn | None) -> str:
    """Name the figure: in the truth's words if it is right, else with the reason."""
    if _judge_turn(right, turn)[0] == "right":
        return _words(right)
    return ": ".join([_words(_read_of(turn)), *_reasons(turn)])


def _near(found: Any, wanted: Any) -> bool:
    if isinstance(found, float) and isinstance(wanted, int | float):
        return abs(found - wanted) <= TOLERANCE_MS
    return wanted in (found, "any")


def _read_of(turn: Turn | None) -> Truth:
    if turn is None:
        return {"outcome": "not stored"}
    return {
        "outcome": "left out" if turn.left_out else turn.outcome,
        "gap": turn.gap_ms,
        "sound": turn.first_sound_ms,
        "answer": turn.first_answer_ms,
        "yield": turn.yield_ms,
        "holes": len(turn.holes),
        "false_starts": turn.false_starts,
        "backchannels": turn.backchannels_heard,
    }


def _words(figures: Truth) -> str:
    """Name the figures; leave out the sound and the answer where they equal the gap."""
    gap = figures.get("gap")
    shown = [
        f"{name.replace('_', ' ')} {value:,.0f}"
        for name, value in figures.items()
        if value and name != "gap" and not isinstance(value, str)
        if not (name in ("sound", "answer") and _near(float(value), gap))
    ]
    return ", ".join([f"{figures['outcome']}{'' if gap is None else f' {gap:,.0f}'}", *shown])


def _distinct(words: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(words))


def rows_of(readings: Iterable[Reading]) -> list[dict[str, str]]:
    """Build rows for people; dialects share a row if an agent's figures are the same in them."""
    found: dict[tuple[str, ...], list[str]] = {}
    for each in readings:
        reads = _distinct(starmap(_shown, _with_truths(each.agent, each.turns)))
        row = (each.agent.does, _distinct(map(_words, each.agent.right)), reads, each.verdict)
        found.setdefault((each.agent.name, *row), []).append(each.dialect)
    several = Counter(name for name, *_ in found)
    return [
        {
            "agent": f"{name} ({', '.join(dialects)})" if several[name] > 1 else name,
            **dict(zip(("does", "right", "reads", "verdict"), row, strict=True)),
        }
        for (name, *row), dialects in found.items()
    ]
