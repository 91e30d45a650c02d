"""`turngap compare`: LLM backends over the same recordings."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngap.cli import options
from turngap.cli.progress import played
from turngap.cli.results import show, stored_comparison
from turngap.cli.shared import leave, say, telemetry_of
from turngap.core.budget import NO_REPLY_MS, QUIET_MS, STARVED_MS
from turngap.core.errors import AgentError, ExitCode, TurngapError

if TYPE_CHECKING:
    from turngap.compare.record import ComparisonRecord


def compare(
    ctx: typer.Context,
    scenarios: options.Scenarios = None,
    agent: options.Agent = "embedded",
    llm: Annotated[
        list[str] | None,
        options.for_agent(
            "--llm",
            metavar="LLM",
            help="An LLM to compare: [LABEL=]BACKEND[,KEY=VALUE…]. Give it twice or more.",
            autocompletion=options.llm_names,
        ),
    ] = None,
    set_: options.Sets = None,
    price: Annotated[
        list[str] | None,
        options.for_agent(
            metavar="NAME=IN,OUT",
            help="Price of an LLM, in US dollars for a million tokens. Default: the backend's, if "
            "it has one. Repeatable.",
        ),
    ] = None,
    judge: Annotated[
        str | None,
        options.for_agent(
            metavar="LLM[,KEY=VALUE…]",
            help="An LLM that judges the answers afterwards, in a column of its own.",
            autocompletion=options.llm_names,
        ),
    ] = None,
    tag: options.Tag = None,
    rounds: Annotated[
        int, options.for_play(min=1, help="How often each LLM plays everything.")
    ] = 1,
    phases: options.Phases = 1,
    budget_ms: options.BudgetMs = None,
    no_reply_ms: options.NoReplyMs = NO_REPLY_MS,
    quiet_ms: options.QuietMs = QUIET_MS,
    starved_ms: options.StarvedMs = STARVED_MS,
    label: options.Label = "",
    out: options.Out = None,
    otlp: options.Otlp = None,
    json_: options.Json = False,
) -> None:
    """Compare LLMs on the same recordings: speed, cut-ins, right answers, price, long tasks.

    Exit: 0 compared, 2 bad input, 3 inconclusive because turngap itself was late too often,
    or mainly beside one LLM, 4 an agent failed, even in a single turn.
    """
    from turngap.cli.judging import judged_comparison
    from turngap.compare.play import ComparePlan, parse_price
    from turngap.compare.play import compare as play
    from turngap.play.target import AgentChoice

    plan = ComparePlan.of(
        AgentChoice.of(agent, set_),
        llm or (),
        scenarios or (),
        tag,
        None,
        prices=dict(parse_price(text) for text in price or ()),
        rounds=rounds,
        phases=phases,
        budget_ms=budget_ms,
        label=label,
        out=out,
        no_reply_ms=no_reply_ms,
        quiet_ms=quiet_ms,
        starved_ms=starved_ms,
        telemetry=telemetry_of(ctx, otlp),
    )
    plan.targets()
    from turngap.judge.play import judge_backend  # needs what the agent needs

    model = None if judge is None else judge_backend(judge, plan.library)
    what = f"against {plan.agents} backends in turn"
    record, path, failure = played(plan, what, lambda progress: play(plan, progress), quiet=json_)
    if model is not None and failure is None:
        try:
            record = judged_comparison(record, path, model, plan.library)
        except TurngapError as e:
            say(f"not judged; turngap judge {shlex.quote(str(path))} --llm LLM asks again")
            failure = e
    stored = stored_comparison(path, record)
    # Of agents that never answered the reason is all there is to tell.
    if not any(backend.turns for backend in record.backends):
        stored = replace(stored, blocks=lambda _: [])
    show(stored, json_=json_)
    conclusive = not record.inconclusive and all(backend.valid for backend in record.backends)
    leave(failure or _failed(record, path), ExitCode.PASS if conclusive else ExitCode.INCONCLUSIVE)


def _failed(record: "ComparisonRecord", path: Path) -> AgentError | None:
    """Build the error if a backend failed some turns; None if none did."""
    from turngap.compare.words import failed

    broken = [backend for backend in record.backends if backend.failed]
    if not broken:
        return None
    return AgentError(
        "agent.turn_failed",
        "; ".join(f"{backend.name}: {failed(backend)}" for backend in broken),
        hint=f"the runs are kept, with the agents' logs: {path}",
    )
