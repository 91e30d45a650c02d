"""`turngap sweep`: one setting over several values."""

from typing import Annotated

import typer

from turngap.cli import options
from turngap.cli.next_steps import say_next
from turngap.cli.progress import played
from turngap.cli.shared import leave, print_block, print_json, say
from turngap.core.budget import STARVED_MS
from turngap.core.errors import ExitCode, InputError


def sweep(
    setting: Annotated[
        str, typer.Argument(help="The setting of the stack and its values: TABLE.KEY=V1,V2,…")
    ],
    scenarios: options.Scenarios = None,
    agent: options.Agent = "embedded",
    llm: options.LLM = None,
    stt: options.STT = None,
    tts: options.TTS = None,
    set_: options.Sets = None,
    seed: options.Seed = None,
    tag: options.Tag = None,
    library: options.Library = None,
    rounds: Annotated[
        int, options.for_play(min=1, help="How often each value plays everything.")
    ] = 1,
    phases: options.Phases = 1,
    starved_ms: options.StarvedMs = STARVED_MS,
    out: options.Out = None,
    json_: options.Json = False,
) -> None:
    """Run a built-in agent with several values of one setting: the gap against the cut-ins.

    Exit: 0 played, 2 bad input, 3 invalid because turngap itself was late too often, 4 an agent
    failed.
    """
    from turngap.play.sweep import SweepPlan
    from turngap.play.sweep import sweep as play
    from turngap.play.target import AgentChoice
    from turngap.report.sweep import sweep_block
    from turngap.scenario.library import chosen

    name, equals, values = setting.partition("=")
    if not equals or "." not in name:
        raise InputError(
            "sweep.setting",
            f"{setting!r}: expected TABLE.KEY=V1,V2,…",
            hint="for example: turngap sweep turn.hold_ms=0,100,200,400",
        )
    folder, loaded = chosen(agent, scenarios or (), tag, library)
    plan = SweepPlan(
        choice=AgentChoice(agent, {"llm": llm, "stt": stt, "tts": tts}, tuple(set_ or ()), seed),
        library=folder,
        setting=name,
        values=[value.strip() for value in values.split(",") if value.strip()],
        scenarios=loaded,
        rounds=rounds,
        phases=phases,
        out=out,
        starved_ms=starved_ms,
    )
    plan.targets()
    what = f"with {plan.agents} values in turn"
    swept, failure = played(plan, what, lambda progress: play(plan, progress), quiet=json_)
    if json_:
        print_json(swept.as_json())
    else:
        print_block(lambda width: sweep_block(swept.as_json(), width))
        say(f"stored in {swept.path}")
        say_next(f"use the value you like best: turngap replay --set {name}=VALUE")
    leave(failure, ExitCode.PASS if swept.valid else ExitCode.INCONCLUSIVE)
