"""Plan of a measurement: scenarios, agents, repetitions, and the estimated time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest
from pathlib import Path
from typing import Any, Self

from turngap.caller.conversation import Patience
from turngap.caller.line.spec import LineSpec, parse_line
from turngap.caller.stream import RATE
from turngap.core.budget import NO_REPLY_MS, QUIET_MS, STARVED_MS
from turngap.core.cue import AFTER_REPLY_MS, When
from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.core.run_record import PlanRecord
from turngap.play.options import Asked, require_ranges
from turngap.play.target import AgentChoice, Target, resolve
from turngap.scenario.library import LoadedScenario, chosen
from turngap.store.runs import Run
from turngap.telemetry import OFF, Telemetry

# Samples of a voice-activity window at 16 kHz: the grid that phases are positions on.
VAD_WINDOW = 512

# What `PlayPlan.minutes` assumes: an agent with its models loaded, the gap of an ordinary agent, a
# voice at 175 words a minute, and a reply of seven words where the scenario names none.
START_S = 4.0
CALIBRATION_TURN_S = 1.0
GAP_MS = 500.0
MS_PER_CHARACTER = 55.0
REPLY_CHARACTERS = 40
# From the end of a reply until the caller knows that it has ended.
DONE_MS = Patience().quiet_after_done_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayPlan:
    """The plan that all commands that play have in common.

    Attributes:
        rounds: how often each agent plays every scenario.
        phases: the number of positions on the agent's 32 ms grid; the rounds take them in turn.
        budget_ms: replaces the budgets in the scenarios.
        starved_ms: how late the caller may be before a turn counts as starved.
        calibration_turns: loopback turns that measure the instrument first; with 0 there are none,
            and the run says so.
        greeting_ms: time for an agent to speak first; None to learn it from the first line.
        no_reply_ms: time to wait for a reply, from the end of the person's turn.
        quiet_ms: the silence that ends a reply.
        stop_on_error: end with the first call that the agent loses, or ends early.
        line: the line to the agent, the same for all agents of a plan; None for a plain one.
        label: the user's name for what is played.
        out: the folder in which runs are stored, `./runs` by default.
        settings: the user's options, stored with each run.
        telemetry: the receiver of reports on conversations; its creator closes it.
    """

    scenarios: Sequence[LoadedScenario]
    rounds: int = 1
    phases: int = 1
    budget_ms: float | None = None
    starved_ms: float = STARVED_MS
    calibration_turns: int = 0
    greeting_ms: float | None = None
    no_reply_ms: float = NO_REPLY_MS
    quiet_ms: float = QUIET_MS
    stop_on_error: bool = False
    line: LineSpec | None = None
    label: str = ""
    out: Path | None = None
    settings: dict[str, Any] | None = None
    telemetry: Telemetry = OFF

    def __post_init__(self) -> None:
        """Refuse waits that make no sense.

        Raises:
            InputError: a budget is longer than the wait for a reply, or a wait is out of range.
        """
        require_ranges("replay", no_reply_ms=self.no_reply_ms, quiet_ms=self.quiet_ms)
        named = [t.expect.budget_ms for s in self.scenarios for t in s.scenario.turns]
        budget_ms = self.budget_ms or max(named, default=0.0)
        if budget_ms > self.no_reply_ms:
            raise InputError(
                "play.wait",
                f"a budget of {budget_ms:g} ms is longer than the {self.no_reply_ms:g} ms that "
                "turngap waits for a reply",
                hint=f"wait longer: --no-reply-ms {budget_ms:g} or more (in Python no_reply_ms)",
            )

    def patience(self, greeting_ms: float) -> Patience:
        """Return the times that the caller waits."""
        waits = {"no_reply_ms": self.no_reply_ms, "quiet_ms": self.quiet_ms}
        return Patience(greeting_ms=greeting_ms, **waits)

    @property
    def agents(self) -> int:
        return 1

    @property
    def is_paired(self) -> bool:
        """Return whether each conversation over the line is played without it, too."""
        return False

    @property
    def breaks(self) -> bool:
        """Return whether the line ends calls itself."""
        return self.line is not None and self.line.breaks

    @property
    def line_setting(self) -> dict[str, str]:
        """Return the line as it is stored among the settings of all kinds of records."""
        return {} if self.line is None else {"line": self.line.text}

    def record(self) -> PlanRecord | None:
        """Build the stored plan with which a run can be continued; None if it cannot be."""
        return None

    @property
    def plays(self) -> int:
        """Return the number of conversations in a round, over all agents."""
        return self.agents

    @property
    def turns(self) -> int:
        """Return how many turns are played, over all rounds and agents."""
        return self.rounds * self.plays * sum(len(s.scenario.turns) for s in self.scenarios)

    @property
    def minutes(self) -> float:
        """Estimate the time that the plan takes.

        A turn takes its speech, the gap, the reply and the waits around it (`expected_ms`). The
        calibration's turns and the start of each process add to that, and the line's delays to each
        turn over it.
        """
        before_s = self.agents * START_S + calibration_s(self.calibration_turns)
        once_ms = sum(expected_ms(s) for s in self.scenarios) * (1 + self.is_paired)
        if self.line is not None:
            once_ms += self.line.both_ms * sum(len(s.scenario.turns) for s in self.scenarios)
        return (before_s + self.rounds * self.plays * once_ms / 1000) / 60

    def phase_of(self, number: int) -> int:
        """Return the position of round `number`, counted from 0, in samples."""
        return (number % self.phases) * VAD_WINDOW // self.phases

    def phase_ms_of(self, number: int) -> float:
        return self.phase_of(number) * 1000 / RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan(PlayPlan):
    """A plan that plays one agent.

    Attributes:
        phase: by how many samples every turn is shifted on the agent's 32 ms grid.
        continues: a stored run; only its missing conversations are played.
        unpaired: play conversations over the line only.
    """

    target: Target
    phase: int = 0
    continues: Run | None = None
    unpaired: bool = False

    @property
    def is_paired(self) -> bool:
        return self.line is not None and not self.unpaired

    @classmethod
    def of(
        cls,
        choice: AgentChoice,
        names: Sequence[str],
        tag: str | None,
        library: Path | None,
        settings: Mapping[str, Any],
        **asked: Any,
    ) -> Self:
        """Plan to play these scenarios against an agent.

        `settings` is also stored with the run; `asked` has the plan's other attributes.

        Raises:
            InputError: there is no such scenario or agent.
            AgentError: this machine lacks something that an engine needs.
        """
        folder, loaded = chosen(choice.agent, names, tag, library)
        recorded = {"tag": tag, "seed": choice.seed, "marks": choice.traced, **settings}
        target = resolve(choice, folder)
        return cls(scenarios=loaded, target=target, settings=recorded, **asked)

    @classmethod
    def asked(cls, asked: Asked, **settings: Any) -> Self:
        """Plan according to the options of `replay`; `settings` are also stored with the run.

        Raises:
            InputError, AgentError: as `of`.
        """
        settings = {"repeat": asked.repeat, "phase_ms": asked.phase_ms, **settings}
        return cls.of(
            AgentChoice.asked(asked),
            asked.scenarios,
            asked.tag,
            asked.library,
            settings,
            rounds=asked.repeat,
            phase=round(asked.phase_ms * RATE / 1000),
            unpaired=asked.unpaired,
            **played_as(asked),
        )

    def phase_of(self, number: int) -> int:
        return self.phase

    def conversations(self) -> Iterator[tuple[LoadedScenario, int, int]]:
        """List each scenario with its round, counted from 1, and its phase, in order of play."""
        for number, scenario in product(range(self.rounds), self.scenarios):
            yield scenario, number + 1, self.phase_of(number)

    def record(self) -> PlanRecord:
        choice = self.target.choice
        return PlanRecord(
            agent=choice.agent,
            backends={kind: name for kind, name in choice.backends.items() if name is not None},
            sets=choice.sets,
            seed=choice.seed,
            marks=choice.traced,
            dialect=choice.dialect,
            headers=choice.headers,
            library=str(self.target.library),
            files=tuple(str(scenario.path) for scenario in self.scenarios),
            rounds=self.rounds,
            phase=self.phase,
            budget_ms=self.budget_ms,
            greeting_ms=self.greeting_ms,
            no_reply_ms=self.no_reply_ms,
            quiet_ms=self.quiet_ms,
            calibration_turns=self.calibration_turns,
            line="" if self.line is None else self.line.text,
            unpaired=self.unpaired,
        )


# Options that are attributes of every plan.
_PLAYED = {
    *("budget_ms", "starved_ms", "greeting_ms", "no_reply_ms", "quiet_ms", "stop_on_error"),
    *("phases", "label", "out"),
}


def played_as(asked: Asked) -> dict[str, Any]:
    """Return the plan's attributes that a command's options set.

    Raises:
        InputError: the line cannot be read.
    """
    played = {name: value for name, value in asked.items() if name in _PLAYED}
    played["line"] = parse_line(asked.line) if asked.line else None
    return played | ({"calibration_turns": asked.calibration} if "calibration" in asked else {})


def calibration_s(turns: int) -> float:
    """Estimate how long the calibration takes, with the start of its loopback agent."""
    return turns and START_S + turns * CALIBRATION_TURN_S


def expected_ms(scenario: LoadedScenario) -> float:
    """Estimate how long one conversation takes, from its recordings and its expected replies."""
    return sum(end_ms + wait_ms for end_ms, wait_ms in expected_turns_ms(scenario))


def expected_turns_ms(scenario: LoadedScenario) -> list[tuple[float, float]]:
    """Estimate how long each turn takes, in two parts.

    The first part lasts from the beginning of its recording until the person has ended, which is
    known. The second lasts until the next recording begins, or the call is over.
    """
    turns = scenario.scenario.turns
    last = When(after_reply_ms=AFTER_REPLY_MS)
    return [
        (
            turn.speech.end_ms if turn.speech else scenario.clips[turn.audio].duration_ms,
            _wait_ms(turn.reply, last if following is None else following.when),
        )
        for turn, following in zip_longest(turns, turns[1:])
        if turn is not None
    ]


def _wait_ms(reply: str | None, when: When) -> float:
    """Estimate the time from the end of the person's speech until the next recording begins."""
    if when.at_ms is not None:
        return when.at_ms
    if when.barge_in_ms is not None:
        return GAP_MS + when.barge_in_ms
    reply_ms = MS_PER_CHARACTER * (REPLY_CHARACTERS if reply is None else len(reply))
    return GAP_MS + reply_ms + DONE_MS + (when.after_reply_ms or 0.0)


@dataclass(frozen=True, slots=True)
class Progress:
    """Receiver of the progress of the work.

    Attributes:
        on_folder: receives the folder that will store the work, before anything is played.
        on_step: receives a description of the present step.
        on_turn: receives each turn as it is stored.
    """

    on_step: Callable[[str], None] = lambda _: None
    on_turn: Callable[[Turn], None] = lambda _: None
    on_folder: Callable[[Path], None] = lambda _: None


SILENT = Progress()
