"""The parameters of commands, made from the table of options.

The options of commands that play are those of `turngap.play.options`; `OWN` adds the options that
only the command line has.
"""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.play.options import (
    BOT,
    BOT_HELP,
    BUILT_IN,
    FLEET,
    LIMITS,
    LLM_HELP,
    LONGEST_MS,
    OPTIONS,
    OUTPUT,
    PLAYED,
    REFERENCE,
    REQUIRED,
    SERVER,
    Asked,
    Option,
    checked,
    options_of,
)

_SERVERS = ("serve", "talk")
PORT = 7860
# The commands that take all that the file has; others take where runs and scenarios are.
CALLERS = ("replay", "check", "turns", "compare", "load", *_SERVERS)
_WITH_JSON = (
    *(*CALLERS[:5], "simulate", "report", "judge", "scenarios", "label", "backends", "dialects"),
    *("score", "verify"),
    *("calibrate", "init", "doctor", "fetch", "line", "history", "history trend", "history diff"),
)
OWN: tuple[Option, ...] = (
    Option(
        "fleet", ("simulate",), "", "A fleet file (.toml or .yaml; see examples/fleet.toml). "
        "Without one: one H100 with Llama 3.1 8B at bf16, and what --set changes.", Path,
        argument=True,
    ),
    Option(
        "runs", ("report",), "", "Folders, names, or `latest`, the finished run that began last. "
        "Default: latest.", many=True, argument=True, complete="run",
    ),
    Option(
        "run", ("verify",), "", "A run's folder, its name, or `latest`, the finished run that "
        "began last.", default="latest", argument=True, complete="run",
    ),
    Option(
        "run", ("judge",), "", "A run or a comparison: its folder, its name, or `latest`, the "
        "finished run that began last.", default="latest", argument=True, complete="run",
    ),
    Option(
        "before", ("history diff",), "", "The older run: its folder, name or label.", unit="A",
        argument=True, complete="run",
    ),
    Option(
        "after", ("history diff",), "", "The newer run, or `latest`.", unit="B", argument=True,
        complete="run",
    ),
    Option(
        "folder", ("scenarios",), "", "The folder of scenarios. Default: ./scenarios, or else "
        "those of turngap.", Path, unit="FOLDER", argument=True,
    ),
    Option(
        "files", ("label",), "", "Scenario files (.yaml).", Path, REQUIRED, many=True,
        argument=True,
    ),
    Option(
        "backend", ("backends",), "", "Show the settings of this backend. Default: list all.",
        unit="NAME", argument=True, complete="backend",
    ),
    Option(
        "what", ("fetch",), "", "Stacks or stack files (.toml), or engines: BACKEND[,KEY=VALUE…].",
        default=REQUIRED, unit="STACK|ENGINE…", many=True, argument=True, complete="stack",
    ),
    Option(
        "line", ("line",), "", "A profile (lte), faults (delay=80,jitter=20,loss=1%) or both: "
        "docs/line.md. Default: list the profiles.", default="", unit="LINE", argument=True,
        complete="line",
    ),
    Option(
        "listen", ("line",), SERVER, "Where clients connect. Port 0: any free one.",
        default="127.0.0.1:0", unit="HOST:PORT",
    ),
    Option(
        "to", ("line",), SERVER, "The server that clients reach over the line.", default="",
        unit="HOST:PORT",
    ),
    Option(
        "agent", ("talk",), BOT, f"The agent to talk to: {BOT_HELP}", default="embedded",
        unit="URL|STACK", complete="stack",
    ),
    Option(
        "agent", ("serve",), BOT, "A stack's name or a stack file (.toml).", default="embedded",
        unit="STACK", complete="stack",
    ),
    Option(
        "agent", ("init",), BOT, "Your bot's ws:// or http:// URL, or a built-in agent's name.",
        unit="URL|STACK",
    ),
    Option(
        "dialect", ("calibrate",), BOT, "The protocol that the loopback agent speaks, with its "
        "settings, or `all`, one after the other.", default="pipecat", unit="NAME|all",
        complete="loopback",
    ),
    Option(
        "agents", ("calibrate",), BOT, "Play agents that misbehave as agents in production do "
        "(docs/agents.md), in virtual time instead, and compare what turngap reads with the "
        "truth.", bool, False,
    ),
    Option(
        "offers", _SERVERS, BUILT_IN, f"An LLM that the person may switch to: {LLM_HELP}. "
        "Repeatable. "
        "Default: every one that is installed here and needs no settings.", unit="LLM",
        flag="offer", many=True, complete="llm",
    ),
    Option(
        "transcribe", ("judge",), BUILT_IN, "Judge a transcript of the agent's audio, which this "
        "STT backend makes: STT[,KEY=VALUE…].", unit="STT", complete="stt",
    ),
    Option(
        "llm", ("judge",), BUILT_IN, "Let this LLM judge the answers, too: LLM[,KEY=VALUE…].",
        unit="LLM", complete="llm",
    ),
    Option("browser", ("talk",), SERVER, "Open the page in a browser.", bool, True, off=True),
    Option(
        "port", ("serve",), SERVER, "Port to listen on. 0: any free one.", int, PORT, "PORT",
        least=0, most=65535,
    ),
    Option(
        "port", ("talk",), SERVER, "Port to listen on. 0: any free one. Default: "
        f"{PORT}, or the next free one.", int, None, "PORT", least=0, most=65535,
    ),
    Option(
        "host", _SERVERS, SERVER, "Address to listen on. Beyond this machine, clients need a "
        "token.", default="127.0.0.1", unit="HOST",
    ),
    Option(
        "token", _SERVERS, SERVER, "The token that clients must send. If one is needed and you "
        "give none, turngap makes one and prints it.", unit="TOKEN", env="TURNGAP_TOKEN",
    ),
    Option(
        "origins", _SERVERS, SERVER, "Let pages of this origin connect, too, for example behind a "
        "proxy: https://bot.example. Repeatable.", unit="URL", flag="origin", many=True,
    ),
    Option(
        "max_sessions", _SERVERS, SERVER, "The most conversations at once.", int, 8, "N",
        least=1,
    ),
    Option(
        "drain", ("serve",), SERVER, "At SIGTERM, refuse new calls and let those that run "
        "continue for up to this many seconds. 0: end at once. Default: 300.", float,
        unit="SECONDS", least=0, most=3600, rare=True,
    ),
    Option(
        "log_level", ("serve",), SERVER, "DEBUG shows what happens to every frame.",
        default="WARNING", unit="LEVEL", rare=True,
    ),
    Option(
        "document", ("serve",), SERVER, "Take the agent from a JSON document: one line on stdin. "
        "turngap starts its own agents with it.", bool, False, rare=True,
    ),
    Option(
        "settings", ("simulate",), FLEET, "Change a key of the fleet file, e.g. pool.weights=fp8, "
        "pool.2.replicas=4, call.turns=5, turn.before_ms=300. Repeatable.", unit="KEY=VALUE",
        flag="set", many=True,
    ),
    Option(
        "from_", ("simulate",), PLAYED, "Draw the turns from this stored run, or `latest`, the "
        "finished one that began last. Repeatable. Default: the fleet file's `turn` says what a "
        "turn is like.", unit="RUN", flag="from", many=True, complete="run",
    ),
    Option(
        "calls", ("simulate",), PLAYED, "Calls at once. Default: search for the most that the "
        "fleet holds.", unit="N1,N2,…",
    ),
    Option(
        "minutes", ("simulate",), PLAYED, "Simulated minutes for each load. Default: as long as "
        "20,000 turns take.", float, None, "MINUTES", least=0.1, most=10000,
    ),
    Option(
        "workers", ("simulate",), PLAYED, "With --calls: simulate this many loads at once, each "
        "in a process of its own; the figures are the same. Default: one for each processor, or "
        "one if there is little to simulate.", int, None, "N", least=1, most=1000,
    ),
    Option(
        "on", ("simulate",), PLAYED, "With --calls: where these processes run, on this machine "
        "(local) or on Ray's nodes (ray).", default="local", unit="local|ray", rare=True,
    ),
    Option(
        "ray_address", ("simulate",), PLAYED, "With --on ray: the cluster's address, HOST:PORT. "
        "Default: a cluster on this machine alone.", unit="ADDRESS", rare=True,
    ),
    Option(
        "seed", ("simulate",), PLAYED, "The same seed gives the same calls and figures.", int, 1,
        "N", least=0,
    ),
    Option(
        "turns", ("calibrate",), PLAYED, "How many known gaps to measure.", int, 200, "N",
        least=1,
    ),
    Option(
        "seed", ("calibrate",), PLAYED, "Seed for the order in which the gaps are played.", int, 1,
        "N",
    ),
    Option(
        "line", ("calibrate",), PLAYED, "Loss and jitter of the packets that the loopback agent "
        "sends, for example loss=2%,jitter=20; only in webrtc.", default="", unit="LINE",
    ),
    Option(
        "library", ("judge", "doctor", *_SERVERS), PLAYED, "The folder whose scenarios the agent "
        "knows. Default: ./scenarios, or else those of turngap.", Path, unit="FOLDER",
        aliases=("scenarios",),
    ),
    Option(
        "budget_ms", ("simulate",), LIMITS, "A turn is on time if its gap is at most this.", float,
        DEFAULT_BUDGET_MS, "MS", least=1, most=LONGEST_MS,
    ),
    Option(
        "limit_p50_ms", ("history diff",), LIMITS,
        "Regressed if the newer run's p50 is this much slower, or more.", float, 30.0, "MS",
        least=1, most=LONGEST_MS,
    ),
    Option(
        "limit_p95_ms", ("history diff",), LIMITS,
        "Regressed if the newer run's p95 is this much slower, or more.", float, 100.0, "MS",
        least=1, most=LONGEST_MS,
    ),
    Option(
        "target", ("simulate",), LIMITS,
        "The fleet holds a load if this share of turns is on time.", float, 0.95, "SHARE",
        least=0.01, most=0.999,
    ),
    Option(
        "min_hit_rate", ("simulate",), LIMITS, "With --calls: exit 1 if fewer turns are on time, "
        "3 if that is uncertain.", float, None, "SHARE", least=0, most=1,
    ),
    Option(
        "yes", ("init",), OUTPUT, "Do not ask: start the first bot that is here.", bool, False,
        flag="yes",
    ),
    Option("force", ("init",), OUTPUT, "Replace turngap.toml. Other files stay.", bool, False),
    Option("only_missing", ("label",), OUTPUT, "Keep the labels that are there.", bool, False),
    Option(
        "show", ("label",), OUTPUT, "Draw each recording with its labels into this folder, as SVG.",
        Path, unit="DIR",
    ),
    Option(
        "record", _SERVERS, OUTPUT, "Save every conversation as a scenario in this folder.", Path,
        unit="DIR",
    ),
    Option(
        "keep", _SERVERS, OUTPUT, "Keep conversations as runs on disk, audio included.", bool, True,
        off=True,
    ),
    Option("html", ("report",), OUTPUT, "Write the HTML page again, too.", bool, False),
    Option(
        "svg", ("report",), OUTPUT, "Write what is printed to this SVG file.", Path,
        unit="FILE",
    ),
    Option(
        "csv", ("report",), OUTPUT, "Write all turns to this CSV file, a row each.", Path,
        unit="FILE",
    ),
    Option(
        "parquet", ("report",), OUTPUT, "Write all turns to this Parquet file (with the extra "
        "`parquet`).", Path, unit="FILE",
    ),
    Option(
        "junit", ("report",), OUTPUT, "Write JUnit XML: each turn of a run is a test, or each "
        "metric of a check.", Path, unit="FILE",
    ),
    Option(
        "publish", ("report",), OUTPUT, "Write the run to this new folder for others: its page, "
        "audio, figures and digests (docs/verify.md).", Path, unit="DIR",
    ),
    Option(
        "verbose", ("replay", "score", "report"), OUTPUT, "Draw every turn with its stages, not "
        "only bad ones.", bool, False, short="-v",
    ),
    Option(
        "quiet", ("replay", "score"), OUTPUT, "Show the figures alone, not the turns.", bool, False,
        short="-q",
    ),
    Option(
        "show_judge_prompt", ("judge",), OUTPUT, "Print the judge's prompt, and exit.", bool,
        False, rare=True,
    ),
    Option(
        "root", ("simulate", "report", "verify", "judge", "history diff"), OUTPUT,
        "Look for stored runs in this folder. Default: ./runs.", Path, unit="DIR", flag="runs",
    ),
    Option(
        "roots", ("history", "history trend"), OUTPUT, "Look for stored runs in this folder. "
        "Repeatable. Default: ./runs.", Path, unit="DIR", flag="runs", many=True,
    ),
    Option(
        "since", ("history", "history trend"), OUTPUT, "Only results that began at this time or "
        "later: 2026-11-20, 2026-11-20T15:00 (UTC), or 7d.", unit="DAY|AGO",
    ),
    Option(
        "valid", ("history",), OUTPUT, "Only results with usable figures: finished, and "
        "measured well.", bool, False,
    ),
    Option(
        "last", ("history",), OUTPUT, "List only this many results, the newest.", int, None, "N",
        least=1,
    ),
    Option(
        "csv", ("history",), OUTPUT, "Also write the list to this file, as CSV.", Path,
        unit="FILE",
    ),
    Option("html", ("history",), OUTPUT, "Also write the list to this page.", Path, unit="FILE"),
    Option(
        "html", ("history diff",), OUTPUT, "Also write a page with the waterfalls of the worst "
        "pairs to this file.", Path, unit="FILE",
    ),
    Option(
        "self_test", ("check",), PLAYED, "Play no agent, but try the gate itself, in seconds: "
        "would these scenarios, rounds and limits catch faults, and pass an unchanged agent?",
        bool, False,
    ),
    Option(
        "json_", ("talk",), OUTPUT, "Print the page's URL as one JSON document, and open no "
        "browser.", bool, False, flag="json",
    ),
    Option(
        "json_", ("serve",), OUTPUT, "Print the URL as one JSON line.", bool, False,
        flag="json",
    ),
    Option(
        "json_", _WITH_JSON, OUTPUT,
        "Print one JSON document on stdout, and nothing else there.", bool, False, flag="json",
    ),
)  # fmt: skip
TABLE = (*OPTIONS, *OWN)
PANELS = ("", BOT, BUILT_IN, REFERENCE, SERVER, FLEET, PLAYED, LIMITS, OUTPUT)


def _scenarios() -> list[str]:
    from turngap.scenario.model import library_dir, library_paths

    return [path.stem for path in library_paths(library_dir())]


def _stacks() -> list[str]:
    from turngap.agent.stack import stack_files

    return list(stack_files())


def _dialects() -> list[str]:
    from turngap.caller.dialects.registry import dialects

    return list(dialects())


def _loopbacks() -> list[str]:
    from turngap.play.calibrate import loopback_dialects

    return ["all", *loopback_dialects()]


def _backends(*kinds: str) -> Callable[[], list[str]]:
    def names() -> list[str]:
        from turngap.backends import specs

        return [spec.name for spec in specs() if not kinds or spec.kind in kinds]

    return names


def _runs(ctx: Any, incomplete: str) -> list[str]:
    """List the folders in `--runs`, newest first."""
    folder = Path(ctx.params.get("root") or "runs")
    names = sorted((p.name for p in folder.glob("*/")), reverse=True) if folder.is_dir() else []
    return [name for name in ("latest", *names) if name.startswith(incomplete)]


def _lines() -> list[str]:
    from turngap.caller.line.spec import profiles

    return list(profiles())


# What a shell completes.
_NAMES: dict[str, Callable[[], list[str]]] = {
    "scenario": _scenarios,
    "stack": _stacks,
    "dialect": _dialects,
    "loopback": _loopbacks,
    "backend": _backends(),
    "llm": _backends("llm"),
    "stt": _backends("stt"),
    "line": _lines,
}


def _completion(what: str) -> Callable[..., list[str]] | None:
    def names(incomplete: str) -> list[str]:
        return [name for name in _NAMES[what]() if name.startswith(incomplete)]

    return _runs if what == "run" else names if what else None


def _parameter(option: Option) -> Parameter:
    """Build typer's description of an option."""
    kind = str if option.kind is dict else option.kind
    kind = list[kind] if option.many else kind
    default = Parameter.empty if option.default is REQUIRED else option.default
    common: dict[str, Any] = {
        "help": _help(option),
        "metavar": option.unit or None,
        "autocompletion": _completion(option.complete),
        "show_default": not option.argument and default not in (None, "", False),
    }
    if option.argument:
        about = typer.Argument(**common)
    else:
        flag = f"--{option.key}" + (f"/--no-{option.key}" if option.off else "")
        flags = [flag, *([option.short] if option.short else ())]
        about = typer.Option(
            *flags,
            rich_help_panel=option.group,
            envvar=option.env or None,
            is_eager=option.name == "root",
            **common,
        )
    if default is None:
        kind = kind | None
    annotation = Annotated[kind, about]
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _help(option: Option) -> str:
    """Return the text of an option, with the range of its numbers if both ends are known."""
    known = option.kind in (int, float) and abs(option.least) + option.most < 1e5
    return option.help + (f" {option.least:g} to {option.most:g}." if known else "")


def with_options(name: str, command: Callable[[Any, Asked], None]) -> Callable[..., None]:
    """Return a command as typer takes it, with a parameter for each of its options."""
    options = sorted(options_of(name, TABLE).values(), key=lambda each: PANELS.index(each.group))

    @wraps(command)
    def run(ctx: typer.Context, **given: Any) -> None:
        command(ctx, checked(name, given, TABLE, flags=True))

    context = Parameter("ctx", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *map(_parameter, options)]
    signature: Any = Signature(parameters)
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    del run.__wrapped__  # type: ignore[attr-defined]
    return run
