"""`turngap turns`."""

from typing import TYPE_CHECKING, Annotated, Any

from turngap.cli import options
from turngap.cli.measuring import failed_turns
from turngap.cli.progress import Display, played
from turngap.cli.results import show, stored_turns
from turngap.cli.shared import leave
from turngap.core.budget import NO_REPLY_MS, QUIET_MS, STARVED_MS
from turngap.core.errors import ExitCode, InputError

if TYPE_CHECKING:
    from turngap.play.target import AgentChoice

Rounds = Annotated[
    int, options.for_play(min=1, help="How often to play everything, with each value.")
]


def turns(
    scenarios: options.Scenarios = None,
    agent: options.Agent = "embedded",
    start: options.Start = None,
    dialect: options.Dialect = "",
    header: options.Headers = None,
    llm: options.LLM = None,
    set_: options.Sets = None,
    vary: Annotated[
        str | None,
        options.for_agent(
            metavar="TABLE.KEY=V1,V2,…",
            help="Built-in agent: play it with each of these values of a setting, e.g. "
            "turn.certainty=0.5,0.7,0.9.",
        ),
    ] = None,
    tag: options.Tag = None,
    rounds: Rounds = 1,
    phases: options.Phases = 1,
    virtual: Annotated[
        bool,
        options.for_play(
            help="Built-in agent: play in memory and virtual time, which takes seconds where real "
            "time takes minutes. Gaps are then lower bounds."
        ),
    ] = False,
    no_reply_ms: options.NoReplyMs = NO_REPLY_MS,
    quiet_ms: options.QuietMs = QUIET_MS,
    starved_ms: options.StarvedMs = STARVED_MS,
    label: options.Label = "",
    out: options.Out = None,
    json_: options.Json = False,
) -> None:
    """Measure how quickly an agent answers against how often it cuts in, as one curve.

    Exit: 0 played, 2 bad input, 3 invalid because turngap itself was late too often, 4 an agent
    failed, even in a single turn.
    """
    from turngap.play.target import AgentChoice

    choice = AgentChoice.of(
        agent,
        set_,
        llm,
        start=start,
        dialect=dialect,
        headers=tuple(header or ()),
    )
    asked: dict[str, Any] = {"rounds": rounds, "phases": phases, "out": out}
    asked |= {"no_reply_ms": no_reply_ms, "quiet_ms": quiet_ms}
    asked |= {"starved_ms": starved_ms, "label": label}
    _measure(choice, scenarios, tag, vary, json_=json_, virtual=virtual, **asked)


def _measure(
    choice: "AgentChoice",
    names: list[str] | None,
    tag: str | None,
    vary: str | None,
    *,
    json_: bool,
    virtual: bool,
    **asked: Any,
) -> None:
    from turngap.scenario.library import chosen
    from turngap.turns.play import TurnsPlan, parse_vary, turns_in_virtual_time
    from turngap.turns.play import turns as play
    from turngap.turns.report import read_turns

    setting, values = (None, []) if vary is None else parse_vary(vary)
    folder, loaded = chosen(choice.agent, names or (), tag)
    plan = TurnsPlan(
        choice=choice, library=folder, setting=setting, values=values, scenarios=loaded, **asked
    )
    plan.targets()
    if virtual and choice.is_url:
        raise InputError(
            "turns.virtual",
            f"{choice.agent} is a running agent, and only a built-in one keeps virtual time",
            hint="drop --virtual, or name a stack",
        )
    what = f"against {choice.name}" if setting is None else f"with {plan.agents} values in turn"
    if virtual:
        with Display(plan.turns, "turns") as shown:
            _, path, failure = turns_in_virtual_time(plan, shown.playing())
    else:
        _, path, failure = played(plan, what, lambda progress: play(plan, progress), quiet=json_)
    record, runs = read_turns(path)
    show(stored_turns(path, record, runs), json_=json_)
    failure = failure or next(filter(None, map(failed_turns, runs)), None)
    valid = all(point.valid for point in record.points)
    leave(failure, ExitCode.PASS if valid else ExitCode.INCONCLUSIVE)
