"""The options that several commands share: one type each, in four groups, always in this order."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from turngap.cli.commands import OUTPUT
from turngap.core.budget import MAX_STARVED_MS, MOST_PLAYED
from turngap.core.labels import checked_label

AGENT, PLAYED, LIMITS = "Agent", "Scenarios", "Limits"

for_agent = partial(typer.Option, rich_help_panel=AGENT)
for_play = partial(typer.Option, rich_help_panel=PLAYED)
for_limits = partial(typer.Option, rich_help_panel=LIMITS)
for_output = partial(typer.Option, rich_help_panel=OUTPUT)


def _starting_with(incomplete: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def scenario_names(incomplete: str) -> list[str]:
    """List the scenarios of the library in use, for shell completion."""
    from turngap.scenario.library import library_dir, library_paths

    return _starting_with(incomplete, [path.stem for path in library_paths(library_dir())])


def stack_names(incomplete: str) -> list[str]:
    """List the installed stacks."""
    from turngap.agent.stack import stack_files

    return _starting_with(incomplete, list(stack_files()))


def dialect_names(incomplete: str) -> list[str]:
    """List the installed dialects."""
    from turngap.caller.dialects.registry import dialects

    return _starting_with(incomplete, list(dialects()))


def _backends_of(*kinds: str) -> Callable[[str], list[str]]:
    def names(incomplete: str) -> list[str]:
        from turngap.backends import specs

        return _starting_with(incomplete, [spec.name for spec in specs() if spec.kind in kinds])

    return names


backend_names = _backends_of("turn", "stt", "llm", "tts")
llm_names, stt_names = _backends_of("llm"), _backends_of("stt")


def loopback_names(incomplete: str) -> list[str]:
    """List the dialects that a loopback agent speaks."""
    from turngap.play.calibrate import loopback_dialects

    return _starting_with(incomplete, ["all", *loopback_dialects()])


def run_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """List the folders in `--runs`, newest first."""
    folder = Path(ctx.params.get("root") or "runs")
    names = sorted((p.name for p in folder.glob("*/")), reverse=True) if folder.is_dir() else []
    return _starting_with(incomplete, ["latest", *names])


# From the environment too: other people of a machine can read a command line, and the token in it.
Agent = Annotated[
    str,
    for_agent(
        "--agent",
        envvar="TURNGAP_AGENT",
        help="The agent to measure: the ws:// URL of your bot ('POST http://HOST/start' gets one "
        "for each call), or a built-in agent: the name of a stack (embedded, stock, local, gpu) or "
        "a stack file (.toml).",
        autocompletion=stack_names,
    ),
]
Start = Annotated[
    str | None,
    for_agent(
        "--start",
        metavar="COMMAND",
        help="Start your bot with this command, wait until the port of its URL is open, and end it "
        'afterwards: --start "python bot.py" --agent ws://127.0.0.1:8765/ws.',
    ),
]
Dialect = Annotated[
    str,
    for_agent(
        "--dialect",
        metavar="NAME[,KEY=VALUE...]",
        help="The protocol of a URL, with its settings; `turngap dialects` lists them. Default: "
        "found out, by trying those that answer.",
        autocompletion=dialect_names,
    ),
]
Headers = Annotated[
    list[str] | None,
    for_agent(
        "--header",
        metavar="'NAME: VALUE'",
        help="An HTTP header to open a URL with. Repeat for several. ${NAME} in it, or in the URL, "
        "stands for an environment variable, so that no secret is stored: "
        "'Authorization: Bearer ${API_KEY}'.",
    ),
]
LLM = Annotated[
    str | None,
    for_agent(
        "--llm",
        metavar="NAME",
        help="Built-in agent: use this LLM backend; `turngap backends` lists them. Default: the "
        "stack's.",
        autocompletion=llm_names,
    ),
]
Sets = Annotated[
    list[str] | None,
    for_agent(
        "--set",
        metavar="KEY=VALUE",
        help="Built-in agent: change a setting, e.g. tts.speed_wpm=180; stt=NAME, tts=NAME or "
        "turn=NAME takes another engine, seed=N seeds what is random, and marks=false reports no "
        "marks. Repeatable.",
    ),
]
Verbose = Annotated[
    bool, for_output("--verbose", "-v", help="Draw every turn with its stages, not only bad ones.")
]
Quiet = Annotated[bool, for_output("--quiet", "-q", help="Show the figures alone, not the turns.")]
Scenarios = Annotated[
    list[str] | None,
    typer.Argument(
        help="Names of scenarios, their files, or folders of them. Default: all of ./scenarios, or "
        "else of turngap, but those tagged extra.",
        autocompletion=scenario_names,
        show_default=False,
    ),
]
Tag = Annotated[
    str | None,
    for_play("--tag", help="Only play scenarios with this tag."),
]
Library = Annotated[
    Path | None,
    for_play(
        "--scenarios",
        help="The folder whose scenarios the agent knows. Default: ./scenarios, or else those of "
        "turngap.",
    ),
]
Phases = Annotated[
    int,
    for_play(
        "--phases",
        min=1,
        max=32,
        help="Begin the audio at this many different places within a 32 ms VAD frame, over the "
        "rounds, so that the result does not depend on one alignment.",
    ),
]
CalibrationTurns = Annotated[
    int,
    for_play(
        "--calibration",
        min=0,
        max=MOST_PLAYED,
        help="How many known gaps to measure first, to know turngap's own error. 0: none.",
    ),
]
BudgetMs = Annotated[
    float | None,
    for_limits(
        "--budget-ms",
        min=1,
        max=60_000,
        help="Use this budget instead of those that the scenarios name.",
    ),
]
StarvedMs = Annotated[
    float,
    for_limits(
        "--starved-ms",
        min=1,
        max=MAX_STARVED_MS,
        help="Mark a turn as starved if turngap itself was this late in sending or reading. Raise "
        "it on a busy machine; gaps may then be wrong by up to this much.",
    ),
]
NoReplyMs = Annotated[
    float,
    for_limits(
        "--no-reply-ms",
        min=500,
        max=60_000,
        help="Wait this long for a reply, from the person's end. No budget may be longer.",
    ),
]
QuietMs = Annotated[
    float,
    for_limits(
        "--quiet-ms",
        min=100,
        max=60_000,
        help="Take a reply to be over after this much silence, unless the agent says when it is.",
    ),
]
Label = Annotated[
    str,
    for_output(
        "--label",
        metavar="TEXT",
        help="The name of this in `turngap history`, on one line: --label 'before the change'.",
        callback=checked_label,
        show_default=False,
    ),
]
Out = Annotated[
    Path | None, for_output("--out", help="Store the result in this folder. Default: ./runs.")
]
RunsFolder = Annotated[
    Path | None,
    for_output(
        "--runs", help="Look for stored runs in this folder. Default: ./runs.", is_eager=True
    ),
]
RunsFolders = Annotated[
    list[Path] | None,
    for_output(
        "--runs",
        metavar="DIR",
        help="Look for stored runs in this folder. Repeatable. Default: ./runs.",
    ),
]
Otlp = Annotated[
    str | None,
    for_output(
        "--otlp",
        metavar="URL",
        help="Send a trace of each conversation, and histograms, to an OpenTelemetry collector at "
        "this URL (http://HOST:4318). The agent gets a `traceparent` header, so that its own spans "
        "hang under ours. Default: where OTEL_EXPORTER_OTLP_ENDPOINT says.",
    ),
]
Json = Annotated[
    bool, for_output("--json", help="Print one JSON document on stdout, and nothing else there.")
]
