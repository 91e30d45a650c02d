"""The one line with which a command ends: what is worth doing next, chosen from what was found."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from turngap.cli.shared import say

if TYPE_CHECKING:
    from turngap.check.record import CheckRecord
    from turngap.compare.record import ComparisonRecord
    from turngap.fleet.record import SimulationRecord
    from turngap.load.record import LoadRecord
    from turngap.store.runs import Run
    from turngap.turns.record import TurnsRecord

LATE = "turngap itself was late: `turngap doctor` shows what keeps this machine busy"
NO_REPLIES = (
    "no turn got a reply: does the agent hear, and is this its dialect? (docs/measuring.md)"
)
# What to try against the stage that takes the most of a gap.
_AGAINST = {
    "endpoint": "try less patience: turngap turns --vary turn.certainty=0.5,0.6,0.7 --tag pause",
    "llm_first_token": "compare LLMs: turngap compare --llm A --llm B (see turngap backends)",
    "tts_request": (
        "hand text to the TTS earlier: turngap turns --vary text.aggregation=sentence,clause"
    ),
    "tts_first_audio": "try another TTS: turngap replay --tts NAME (see turngap backends)",
    "tts_first_audible": "cut off its leading silence: turngap replay --set audio.cut_lead_in=true",
}


def say_next(step: str | None) -> None:
    """Print the line, on stderr, where there is one."""
    if step:
        say(f"next: {step}")


def say_next_of_a_list(step: str) -> None:
    """The same below a list, which is piped more often than it is read: on a terminal alone."""
    if sys.stdout.isatty():
        say_next(step)


def after_doctor(*, built_in: bool) -> str:
    """The agent that the repository's file names; else the built-in one, where it can run."""
    from turngap.core.secrets import text_without_secrets
    from turngap.defaults.file import read_defaults

    defaults = read_defaults()
    agent = None if defaults is None else defaults.of("replay").get("agent")
    if defaults is not None and agent is not None:
        return (
            f"measure {text_without_secrets(agent)}, the agent of {defaults.name}: turngap replay"
        )
    if built_in:
        return "measure the built-in agent: turngap replay"
    return "measure your bot: turngap replay --agent ws://HOST:PORT/PATH"


def after_run(run: "Run") -> str | None:
    """What is missing comes first; whoever lacks marks needs them; then the slowest stage."""
    from turngap.core.stages import unmarked

    if run.record.plan is not None and not run.complete:
        return f"play what is missing: {going_on_with(run)}"
    if run.record.failure is not None or run.record.finished_utc is None:
        return None
    mute = bool(run.turns) and all(turn.outcome == "no_reply" for turn in run.turns)
    if mute or not run.record.valid:
        return NO_REPLIES if mute else LATE
    if any(turn.error is not None for turn in run.turns):
        return None
    summary = run.summary
    slowest = summary.slowest_stage
    if slowest is None:
        return None
    ms = summary.stage_p50_ms[slowest]
    if unmarked(stage.name for stage in summary.stages):
        whose = "add MarksObserver to your bot: two lines, see README.md, “Measure my bot”"
        ours = "play without --no-marks"
        return f"these {ms:.0f} ms are unattributed: {whose if 'url' in run.record.agent else ours}"
    if "url" in run.record.agent or slowest not in _AGAINST:
        agent = "" if _of_the_file(run) else _start(run) + _reached(run)
        return f"keep it from getting slower: turngap check{agent} --save base.json"
    return f"{slowest} takes the most time, {ms:.0f} ms: {_AGAINST[slowest]}"


def going_on_with(run: "Run") -> str:
    """The command that plays what a run of `replay` lacks."""
    return f"turngap replay --resume {shlex.quote(str(run.path))}{_start(run)}"


def _start(run: "Run") -> str:
    """The flag that starts the run's agent; empty where nothing has to be started."""
    start = run.record.agent.get("start")
    return "" if start is None else f" --start {shlex.quote(str(start))}"


def _reached(run: "Run") -> str:
    """The flags that reach an agent at a URL; empty for a stack."""
    from turngap.caller.endpoint import Endpoint

    agent, plan = run.record.agent, run.record.plan
    if "url" not in agent:
        return ""
    headers, subprotocols = (plan.headers, plan.subprotocols) if plan else ((), ())
    dialect = plan.dialect if plan else str(agent.get("dialect", ""))
    return f" {Endpoint(str(agent['url']), dialect, headers, subprotocols).flags}"


def _of_the_file(run: "Run") -> bool:
    """Whether `turngap check` without flags reaches the run's agent, by the repository's file."""
    from turngap.core.errors import InputError
    from turngap.core.secrets import text_without_secrets
    from turngap.defaults.file import read_defaults

    try:
        defaults = read_defaults()
    except InputError:  # which the next command says
        return False
    said = {} if defaults is None else defaults.of("check")
    agent, plan = run.record.agent, run.record.plan
    pairs = [("agent", agent.get("url")), ("start", agent.get("start"))]
    pairs += [("dialect", plan.dialect or None)] if plan else []
    return all(
        (None if said.get(name) is None else text_without_secrets(said[name])) == value
        for name, value in pairs
    )


def _has_workflow() -> bool:
    """Whether the repository has the workflow that `turngap init` writes."""
    from turngap.defaults.file import repository_of
    from turngap.setup.files import WORKFLOW

    here = Path.cwd()
    return ((repository_of(here) or here) / WORKFLOW).exists()


def after_check(record: "CheckRecord") -> str | None:
    """What decides it, or where to look."""
    if record.saved is not None and record.saved.done:
        return f"compare a later version with it: turngap check --baseline {record.saved.file}"
    if record.verdict == "undecided":
        return "to decide it, give the same command --until-decided, or more --rounds"
    if record.verdict == "regressed":
        stage = record.moved_stage
        where = "" if stage is None else f"; `{stage}` is the stage that moved"
        return f"listen to the turns that got worse, on the page{where}"
    if record.verdict == "cannot_compare":
        starvation = record.starvation
        return LATE if starvation is not None and starvation.why_not_judged else None
    if _has_workflow():
        return "see what this repository measured so far: turngap history"
    return (
        "let CI check each pull request: turngap init writes the workflow (docs/ci.md of turngap)"
    )


def after_comparison(record: "ComparisonRecord", folder: object) -> str | None:
    """Invalid runs first; a model's verdict; then a conversation with the quickest."""
    if record.failure is not None:
        return None
    if record.inconclusive or not all(backend.valid for backend in record.backends):
        return LATE
    if record.judged_with is None:
        return f"have a model judge the answers, too: turngap judge {folder} --llm NAME"
    return "switch between them in mid-conversation: turngap talk --offer A --offer B"


def after_turns(record: "TurnsRecord") -> str | None:
    """Labels first: without them nothing is known of pauses. Then other values, or the best one."""
    if record.failure is not None:
        return None
    if not all(point.valid for point in record.points):
        return LATE
    if not record.labelled:
        return "label the pauses of your recordings, and play them again: turngap label FILE"
    if record.setting is not None:
        return f"use the value you like best: turngap replay --set {record.setting}=VALUE"
    if "://" in record.agent:
        return None
    return f"see other points of it: turngap turns --agent {record.agent} --vary turn.KEY=V1,V2"


def after_simulation(record: "SimulationRecord") -> str:
    """Turns that were made up, or no price, are worth more than another load."""
    if not record.workload.runs:
        return "draw the turns from a measured run: turngap replay, then simulate --from latest"
    if any(pool.part_hour_usd is None for pool in record.pools):
        return "see what a turn costs: --set pool.part_hour_usd=3"
    return "try other hardware: --set pool.hardware=h200"


def after_load(record: "LoadRecord") -> str | None:
    """A late caller first; then what would make the answer sure, or keep it."""
    if record.failure is not None or record.finished_utc is None or not record.steps:
        return None
    if any(step.void is not None for step in record.steps):
        return "call from more processes (--callers), or from another machine: docs/load.md"
    found = record.capacity
    if found is not None and found.sessions is not None:
        most = f"--min-sessions {found.sessions} --max-sessions {found.sessions}"
        command = record.settings.get("command", "turngap load")
        return f"keep it: let CI run {command} {most} (docs/load.md)"
    if any(step.outcomes.get("refused") for step in record.steps):
        return "calls were refused: how many does the agent accept? (serve --max-sessions)"
    if all(step.holds is None for step in record.steps):
        return "to be sure, measure for longer: --duration SECONDS"
    if record.mode != "search":
        return "find out how many it holds: turngap load without --sessions and --rate"
    return "see where the time goes with one caller: turngap replay"
