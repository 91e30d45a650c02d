"""`turngap talk --terminal`: the agent, the sound device and the screen brought together."""

import asyncio
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from turngap.cli.shared import print_block, say
from turngap.core.errors import TurngapError

if TYPE_CHECKING:
    from turngap.core.results import Turn
    from turngap.live.keeping import Keeping, LiveRun
    from turngap.live.sound import Device
    from turngap.live.terminal import Commands
    from turngap.play.target import AgentChoice, Target


def talk_in_terminal(
    choice: "AgentChoice", keeping: "Keeping", library: Path | None, device: "Device"
) -> None:
    """Talk until the person quits; each turn's waterfall is drawn when it is over.

    Raises:
        TurngapError: the agent, the line or the device failed. What was said is kept.
    """
    from turngap.live.keeping import LiveRun
    from turngap.play.target import resolve
    from turngap.scenario.library import library_dir

    target = resolve(choice, library_dir(library))
    run = LiveRun(
        keeping, f"{choice.name}-talk", target.describe(), target.stand_ins(()), target.held_out()
    )
    try:
        with suppress(KeyboardInterrupt):  # the ordinary way to hang up
            asyncio.run(_talk(target, run, device))
    finally:
        _show_end(run)
        run.forget()


async def _talk(target: "Target", run: "LiveRun", device: "Device") -> None:
    import tempfile

    from turngap.caller.line import open_line
    from turngap.clocks import MonotonicClock
    from turngap.live.terminal import HELP, Shown, TalkDialect, TerminalTalk
    from turngap.report.console import turn_block

    console = Console(highlight=False)

    def show(turn: "Turn") -> None:
        console.print(turn_block(turn, console.width))

    clock, dialect = MonotonicClock(), TalkDialect()
    with tempfile.TemporaryDirectory(prefix="turngap-talk-") as logs:
        say(f"starting {target.choice.name}")
        log = Path(logs) / "agent.log"
        async with (
            target.serving(log, run.on_chosen) as url,
            open_line(url, dialect, clock) as line,
        ):
            say("\n".join(_sayable(target, narrow=run.narrow)))
            say("speak; headphones keep the agent out of your microphone; Ctrl-C hangs up")
            say(HELP)
            talk = TerminalTalk(device, run, target.choice.name, clock, Shown(show, say))
            await talk.run(line, dialect, keyboard())


def _sayable(target: "Target", *, narrow: bool) -> list[str]:
    """What can be said to a stack; of somebody's own agent nothing is known."""
    from turngap.backends import find
    from turngap.live.sayable import examples, introduction
    from turngap.scenario.domain import domain_of

    if target.stack is None:
        return ["say what your agent understands"]
    closed = find("stt", target.stack.stt.backend).closed_domain
    domain = domain_of(target.library) if closed or narrow else None
    return [introduction(domain, closed=closed), *(f"  “{text}”" for text in examples(domain))]


def _show_end(run: "LiveRun") -> None:
    from turngap.report.run import summary_block
    from turngap.store.runs import read_run

    if run.turns and run.path is not None:
        with suppress(TurngapError):
            stored = read_run(run.path)
            print_block(lambda width: summary_block(stored, width))
    else:
        say("nothing was said")


def keyboard() -> "Commands":
    """The lines of stdin, without holding up the conversation or its end."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        with suppress(RuntimeError, ValueError):  # the loop, or stdin, is closed by now
            while line := sys.stdin.readline():
                loop.call_soon_threadsafe(lines.put_nowait, line)
            # Ctrl-D hangs up; a stdin that never was a keyboard has nothing to say about it.
            if sys.stdin.isatty():
                loop.call_soon_threadsafe(lines.put_nowait, None)

    # A thread of its own: the loop's would be waited for at the end, until somebody pressed Enter.
    threading.Thread(target=read, name="turngap-keyboard", daemon=True).start()
    return lines.get
