"""The command line. Each command checks its input, calls one part of the harness, and exits.

Commands import what they need when they run: pipecat and scipy take seconds to import, which
`--help` and a serving process that needs neither reports nor statistics should not wait for.
"""

import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from turngap.children import QUIET_LOGURU, treat_hangups_as_interrupts
from turngap.cli import (
    agents,
    checking,
    lines,
    loading,
    measuring,
    remembering,
    results,
    serving,
)
from turngap.cli.commands import Command, Group
from turngap.cli.options import with_options
from turngap.cli.shared import say, show_error, take_any_encoding
from turngap.core import __version__
from turngap.core.errors import ExitCode, TurngapError
from turngap.core.secrets import remember_arguments, remember_secrets, text_without_secrets
from turngap.core.wording import say_waits_by
from turngap.play.options import Asked

app = typer.Typer(
    cls=Group,
    name="turngap",
    help="Measure the turn gap of voice agents: the silence between a person's last word and the "
    "agent's first, at the caller's ear.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

# Pipecat logs to stderr by default, and greets with a line when it is imported. loguru
# reads this when it is imported, which would slow down the commands that never need it.
if "LOGURU_AUTOINIT" not in os.environ:
    os.environ.update({"LOGURU_AUTOINIT": "False", QUIET_LOGURU: "1"})
if "loguru" in sys.modules:
    sys.modules["loguru"].logger.remove()

MEASURE, TALK, STORED = "Measure and decide", "Talk to an agent", "Results and setup"
# Each command with the examples below its help, in the order in which `turngap --help` lists them.
_COMMANDS: tuple[tuple[str, Callable[[Any, Asked], None], tuple[str, ...]], ...] = (
    (MEASURE, measuring.replay, (
        "turngap replay",
        "turngap replay coffee-order --repeat 5",
        "turngap replay --agent http://127.0.0.1:7860",
        "turngap replay --agent ws://127.0.0.1:8765/ws",
        'turngap replay --start "python bot.py" --agent ws://127.0.0.1:8765/ws',
        "turngap replay mine.yaml --agent ws://127.0.0.1:8765/ws",
        "turngap replay --llm sim --set llm.ttft_ms=400",
        "turngap replay --resume latest",
    )),
    (MEASURE, measuring.score, (
        "turngap score calls",
        "turngap score calls --person right --label october",
        "turngap score calls --no-audio --min-hit-rate 0.9",
        "turngap score call.wav --transcribe whisper",
    )),
    (MEASURE, checking.check, (
        "turngap check --agent new.toml --against old.toml",
        "turngap check --against ../main",
        'turngap check --start "python bot.py" --agent ws://127.0.0.1:8765/ws --budget gap=800',
        "turngap check --save base.json; turngap check --baseline base.json",
        "turngap check --budget gap=800 --budget llm_first_token=450",
    )),
    (MEASURE, checking.compare, (
        "turngap compare --llm teacher=small --llm student=small,model=student",
        "turngap compare --llm sim:full --llm sim:distilled --rounds 3",
    )),
    (MEASURE, measuring.turns, (
        "turngap turns mine --agent ws://127.0.0.1:8765/ws",
        "turngap turns --tag pause --vary turn.certainty=0.5,0.7,0.9 --rounds 4 --phases 4",
    )),
    (MEASURE, loading.load, (
        "turngap load",
        "turngap load --agent ws://127.0.0.1:8765/ws --min-sessions 8",
        "turngap load --sessions 1..64 --duration 60",
        "turngap load --rate 2/s --duration 300",
        "turngap load --agent ws://HOST:PORT/ws --sessions 1..200 --on ray --ray-address auto",
    )),
    (MEASURE, loading.simulate, (
        "turngap simulate --from latest --set pool.weights=fp8",
        "turngap simulate examples/fleet.toml --from latest --calls 100,200,400",
        "turngap simulate --from latest --set pool.hardware=wafer --set pool.model=20b",
    )),
    (TALK, serving.talk, (
        "turngap talk",
        "turngap talk --offer student=small,model=student",
        "turngap talk --record mine; turngap replay mine/NAME.yaml",
        "turngap talk --agent ws://127.0.0.1:8765/ws",
    )),
    (TALK, serving.serve, (
        "turngap serve --port 0",
        "turngap serve --offer student=small,model=student",
        "turngap serve --host 0.0.0.0 --max-sessions 4",
    )),
    (TALK, lines.line, (
        "turngap line",
        "turngap line lte-moving --listen 127.0.0.1:9000 --to 127.0.0.1:8765",
        "turngap line delay=80,loss=1%,half-open=30s --to agent.example:443",
    )),
    (STORED, results.report, (
        "turngap report",
        "turngap report runs/NAME --html",
        "turngap report --svg waterfall.svg",
        "turngap report --csv turns.csv --junit turns.xml",
        "turngap report runs/NAME --publish site/NAME",
    )),
    (STORED, results.verify, ("turngap verify", "turngap verify runs/NAME --json")),
    (STORED, checking.judge, (
        "turngap judge --transcribe pocketsphinx",
        "turngap judge runs/NAME --llm openai,base_url=http://127.0.0.1:8000/v1,model=NAME",
    )),
    (STORED, agents.scenarios, ("turngap scenarios mine",)),
    (
        STORED,
        agents.label,
        (
            "turngap label mine/coffee-order.yaml",
            "turngap label mine/coffee-order.yaml --show pictures",
        ),
    ),
    (STORED, agents.backends, ("turngap backends", "turngap backends sim")),
    (STORED, agents.dialects, ("turngap dialects",)),
    (STORED, measuring.calibrate, (
        "turngap calibrate --turns 400",
        "turngap calibrate --dialect twilio",
        "turngap calibrate --dialect webrtc --line loss=2%,jitter=20",
        "turngap calibrate --dialect all",
    )),
    (STORED, agents.init, (
        "turngap init",
        "turngap init --yes",
        'turngap init --start "python bot.py" --agent ws://127.0.0.1:8765/ws',
    )),
    (STORED, agents.doctor, ("turngap doctor",)),
    (STORED, agents.fetch, (
        "turngap fetch local",
        "turngap fetch piper whisper,model=tiny.en",
        "HF_HUB_CACHE=weights turngap fetch local",
    )),
)  # fmt: skip


def _epilog(examples: tuple[str, ...]) -> str:
    return "\n  ".join(("Examples:" if len(examples) > 1 else "Example:", *examples))


for _panel, _command, _examples in _COMMANDS:
    _function = with_options(_command.__name__, _command)
    app.command(cls=Command, epilog=_epilog(_examples), rich_help_panel=_panel)(_function)
_HISTORY = (
    "turngap history",
    "turngap history --valid --since 30d",
    "turngap history --runs runs --runs RUN --csv history.csv",
)
_TREND = ("turngap history trend", "turngap history trend --since 60d")
_DIFF = ("turngap history diff runs/NAME latest", "turngap history diff A B --html diff.html")
for _command, _examples in ((remembering.trend, _TREND), (remembering.diff, _DIFF)):
    _function = with_options(f"history {_command.__name__}", _command)
    remembering.app.command(cls=Command, epilog=_epilog(_examples))(_function)
app.add_typer(remembering.app, name="history", epilog=_epilog(_HISTORY), rich_help_panel=STORED)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        sys.stdout.write(f"turngap {__version__}\n")
        raise typer.Exit


def main() -> NoReturn:
    """Run the command line; a `TurngapError` becomes a line and its exit code."""
    treat_hangups_as_interrupts()
    take_any_encoding()
    remember_secrets(os.environ)
    remember_arguments(sys.argv[1:])
    say_waits_by(say)
    try:
        app(prog_name="turngap")
    except TurngapError as e:
        show_error(e)
        sys.exit(e.exit_code)
    except Exception as e:
        from turngap.backends import not_installed

        if isinstance(e, ImportError) and (missing := not_installed(e)):
            show_error(missing)
            sys.exit(missing.exit_code)
        # Python would exit with 1, which says "over budget" here. The traceback is for a report.
        say(text_without_secrets(traceback.format_exc().rstrip()))
        show_error(TurngapError("internal", f"turngap itself failed: {type(e).__name__}: {e}"))
        sys.exit(ExitCode.AGENT_FAILED)
    sys.exit(ExitCode.PASS)
