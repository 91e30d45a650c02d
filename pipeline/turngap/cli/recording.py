"""`turngap record`: a person reads a scenario's lines at the microphone."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turngap.cli import options
from turngap.cli.next_steps import say_next
from turngap.cli.shared import print_json, print_text, say
from turngap.core.errors import InputError

if TYPE_CHECKING:
    from turngap.live.microphone import Microphone
    from turngap.live.reading import Line, Read, Reading

# Asks for a line of the keyboard; None at its end.
Ask = Callable[[str], str | None]

# The meter's range, dBFS: from a quiet room to clipping.
METER_DBFS = (-60.0, 0.0)
METER_CELLS = 30


def record(
    scenario: Annotated[
        str | None,
        typer.Argument(
            help="The scenario to read: its name, or its file.",
            autocompletion=options.scenario_names,
            show_default=False,
        ),
    ] = None,
    device: options.Device = None,
    list_devices: Annotated[
        bool,
        typer.Option(
            "--list-devices",
            rich_help_panel=options.SOUND,
            help="List the sound devices and exit.",
        ),
    ] = False,
    again: Annotated[
        list[int] | None,
        options.for_play(
            "--again", metavar="N", min=1, help="Read this line again, by its number. Repeatable."
        ),
    ] = None,
    library: options.Library = None,
    out: Annotated[
        Path, options.for_output("--out", help="The folder for the scenario and its recordings.")
    ] = Path("mine"),
    json_: options.Json = False,
) -> None:
    r"""Read a scenario's lines aloud, and so make it one of yours.

    Each line is labelled and stored when you accept it. Give the same command again to go on where
    you stopped. It needs turngap\[audio].

    Exit: 0 when you end it, 2 bad input, 4 no sound device.
    """
    from turngap.live.microphone import Microphone
    from turngap.live.reading import Reading
    from turngap.live.sound import PortAudioDevice, devices
    from turngap.scenario.library import library_for, scenario_paths

    if list_devices:
        _show_devices(devices(), json_=json_)
        return
    if scenario is None:
        raise InputError(
            "record.no_scenario",
            "which scenario do you want to read?",
            hint="turngap record quick-questions; `turngap scenarios` lists them",
        )
    folder = library_for([scenario], library)
    (source,) = scenario_paths(folder, [scenario])
    reading = Reading(source, out, tuple(again or ()))
    if not reading.lines():
        raise InputError(
            "record.complete",
            f"every line of {reading.path} was read",
            hint=f"to read line 2 again: turngap record {scenario} --out {out} --again 2",
        )
    with Microphone(PortAudioDevice(device)) as microphone:
        read_lines(reading, microphone, _keyboard)
    _say_end(reading)
    if json_:
        print_json(kept_json(reading))


def _show_devices(listed: str, *, json_: bool) -> None:
    if json_:
        print_json({"devices": [line.strip() for line in listed.splitlines()]})
    else:
        print_text(listed)


def kept_json(reading: "Reading") -> dict[str, Any]:
    """What `--json` prints: the scenario's file, if a line was kept, and how many are missing."""
    from turngap.store.documents import is_file

    written = str(reading.path) if is_file(reading.path) else None
    return {"scenario": written, "missing": reading.missing}


def read_lines(reading: "Reading", microphone: "Microphone", ask: Ask) -> None:
    """Have every line read that is missing, until the person stops.

    Raises:
        TurngapError: the device or the folder failed. The lines before it are kept.
    """
    say("For each line: press Enter, read it aloud, then be silent for a second.")
    for line in reading.lines():
        read = _read_line(reading, line, microphone, ask)
        if read is None:
            return
        reading.keep(line, read)


def _read_line(
    reading: "Reading", line: "Line", microphone: "Microphone", ask: Ask
) -> "Read | None":
    """Have one line read until the person accepts it. Return None if they stop."""
    from turngap.live.reading import read_of

    extra = "" if line.backchannel is None else " (a word while the agent speaks)"
    say(f"\n{line.turn} of {len(reading.scenario.turns)}{extra}:  {line.recorded.say}")
    if _stops(ask("Enter: record · q: stop ")):
        return None
    while True:
        read = read_of(microphone.take(_meter if sys.stderr.isatty() else _no_meter))
        if isinstance(read, str):
            say(read)
            if _stops(ask("Enter: record again · q: stop ")):
                return None
            continue
        _say_read(read)
        answer = _accepted(read, microphone, ask)
        if answer != "r":
            return None if _stops(answer) else read


def _accepted(read: "Read", microphone: "Microphone", ask: Ask) -> str | None:
    """Ask what to do with a line, and play it as often as the person wants."""
    asked = "Enter: keep it · r: read it again · p: play it · q: stop without it "
    while (answer := ask(asked)) is not None:
        answer = answer.strip().lower()
        if answer == "p":
            microphone.play(read.pcm)
        elif answer in ("", "r", "q"):
            return answer
    return None


def _stops(answer: str | None) -> bool:
    return answer is None or answer.strip().lower() == "q"


def _say_read(read: "Read") -> None:
    speech = read.speech
    seconds = speech.ms / 1000
    count = len(read.pauses)
    pauses = f", {count} pause{'s' if count > 1 else ''}" if count else ""
    say(f"{bar(read.dbfs)} {seconds:.1f} s of speech{pauses}")
    for warning in read.warnings:
        say(f"  listen to it: {warning}")


def bar(dbfs: float) -> str:
    """Draw a level."""
    low, high = METER_DBFS
    cells = round(METER_CELLS * min(max((dbfs - low) / (high - low), 0.0), 1.0))
    return f"{'#' * cells}{'.' * (METER_CELLS - cells)} {max(dbfs, low):4.0f} dBFS"


def _meter(dbfs: float) -> None:
    sys.stderr.write(f"\r{bar(dbfs)}  \r")
    sys.stderr.flush()


def _no_meter(dbfs: float) -> None:
    """Draw nothing, as nobody would see it move."""


def _keyboard(prompt: str) -> str | None:
    sys.stderr.write(prompt)
    sys.stderr.flush()
    try:
        text = sys.stdin.readline()
    except KeyboardInterrupt:
        text = ""
    if not text:
        sys.stderr.write("\n")
    return text or None


def _say_end(reading: "Reading") -> None:
    from turngap.store.documents import is_file

    if not is_file(reading.path):
        say("nothing was kept")
        return
    left = reading.missing
    say(f"written: {reading.path}" + (f"; give the command again for {left} more" if left else ""))
    say_next(f"play it: turngap replay {reading.path}")
