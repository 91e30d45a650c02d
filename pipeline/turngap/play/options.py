"""The one table of options.

The command line, the Python functions, `turngap.toml`, pytest's flags, the stored plan and "type
this again" read names, types, defaults, ranges and texts from here. Nothing heavy is imported:
pytest loads this module in every environment that has turngap.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

from turngap.core.budget import (
    CALIBRATION_TURNS,
    DEFAULT_BUDGET_MS,
    MAX_STARVED_MS,
    MOST_PLAYED,
    NO_REPLY_MS,
    QUIET_MS,
    STARVED_MS,
)
from turngap.core.errors import InputError
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import checked_label

# Panels of a help, in this order.
BOT, BUILT_IN, REFERENCE = "Your bot", "Built-in agent", "Reference"
SERVER, FLEET, PLAYED, LIMITS, OUTPUT = "Server", "Fleet", "Scenarios", "Limits", "Output"

LONGEST_MS = 60_000.0
MAX_PHASES = 32
MOST_SESSIONS = 10_000
MOST_CALLERS = 1000
LONGEST_S = 86_400.0
LONGEST_WARM_UP_S = 3600.0
# A load test that has certified a level starts no further step after this time.
LOAD_MINUTES = 15.0
REQUIRED: Any = ...


@dataclass(frozen=True, slots=True)
class Option:
    """One option of one or several commands.

    Attributes:
        name: its name in Python.
        commands: the commands that have it.
        group: its panel in the help.
        help: its description, in a sentence or two; empty for options of Python alone.
        kind: `str`, `int`, `float`, `bool`, `Path`, or `dict` for names with numbers.
        default: None or an empty text: no value.
        unit: the placeholder for the value in the help.
        flag: its flag without dashes, and its key in `turngap.toml`; by default its name.
        least, most: the range of a number.
        many: whether it may be given several times.
        argument: whether it has no flag.
        shared: whether it is a key at the top of `turngap.toml`, for all commands.
        in_file: whether its command's table in `turngap.toml` may have it.
        rare: whether only `--help-all` shows it.
        complete: its shell completion; see `turngap.cli.options`.
        env: the environment variable that may hold it.
        aliases: older flags, which no help shows.
        off: whether a switch has a `--no-` flag too.
        short: its flag of one letter.
    """

    name: str
    commands: tuple[str, ...]
    group: str = ""
    help: str = ""
    kind: type = str
    default: Any = None
    unit: str = ""
    flag: str = ""
    least: float = -inf
    most: float = inf
    many: bool = False
    argument: bool = False
    shared: bool = False
    in_file: bool = False
    rare: bool = False
    complete: str = ""
    env: str = ""
    aliases: tuple[str, ...] = ()
    off: bool = False
    short: str = ""

    @property
    def key(self) -> str:
        """Return the option's name on the command line and in `turngap.toml`, with hyphens."""
        return self.flag or self.name.replace("_", "-")

    @property
    def initial(self) -> Any:
        """Return the value of an option that was not given."""
        if self.default is None and self.many:
            return {} if self.kind is dict else ()
        return self.default

    def expected(self) -> str:
        """Describe the numbers that the option takes: `a whole number from 1 to 32`."""
        what = "a whole number" if self.kind is int else "a number"
        least = "" if self.least == -inf else f" from {self.least:g}"
        return f"{what}{least} {'on' if self.most == inf else f'to {self.most:.9g}'}"

    def is_refused(self, value: Any) -> bool:
        """Return whether a value is not a number of the option's type and range."""
        types = int if self.kind is int else int | float
        number = isinstance(value, types) and not isinstance(value, bool) and isfinite(value)
        return not number or not self.least <= value <= self.most

    def checked(self, value: Any, shown: str) -> Any:
        """Return a value as plans take it; keep None and empty values.

        Raises:
            InputError: the value is out of range; `shown` is how the option was given.
        """
        if value is None or value == "" or value is REQUIRED:
            return self.initial if value is None else value
        if self.kind in (int, float):
            if self.is_refused(value):
                per_cent = self.unit == "SHARE" and isinstance(value, int | float) and value > 1
                raise InputError(
                    "argument.range",
                    f"{shown}{value!r}: expected {self.expected()}",
                    hint=f"a share: {value / 100:g}" if per_cent and value < 100 else "",
                )
            return value
        if self.name == "label":
            return checked_label(value)
        if self.kind is dict:
            return dict(value) if isinstance(value, Mapping) else dict(map(_named_number, value))
        one = self.kind if self.kind in (str, Path) else (lambda each: each)
        if not self.many:
            return one(value)
        return tuple(map(one, [value] if isinstance(value, str | Path) else value))


def _named_number(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise InputError(
            "check.budget",
            f"--budget {text!r}: expected NAME=MS",
            hint="for example --budget gap=800",
        ) from None


class Asked(dict[str, Any]):
    """Checked options of one command, by their names in Python; also as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


_PLAYERS = ("replay", "check", "compare", "turns", "load")
_CALLERS = ("replay", "check", "turns", "load")
_SERVERS = ("serve", "talk")
BOT_HELP = (
    "the ws:// URL of your bot ('POST http://HOST/start' gets one for each call), its http:// URL "
    "for calls over WebRTC, or a built-in agent: the name of a stack (embedded, stock, local, gpu) "
    "or a stack file (.toml)."
)
LLM_HELP = "[LABEL=]BACKEND[,KEY=VALUE…]"
_O = Option

# Commands that play, and what others have in common with them. Their order is that of a help.
OPTIONS: tuple[Option, ...] = (
    _O(
        "scenarios", _PLAYERS, "", "Names of scenarios, their files, or folders of them. Default: "
        "all of ./scenarios, or else of turngap, but those tagged extra.", many=True, argument=True,
        shared=True, complete="scenario",
    ),
    _O(
        "calls", ("score",), "", "Stereo recordings (WAV, FLAC, Ogg, MP3), or folders of them. The "
        "JSON of Vapi, Retell, Twilio or LiveKit next to a recording is read, too.", Path, REQUIRED,
        "CALLS", many=True, argument=True,
    ),
    _O(
        "agent", _PLAYERS, BOT, f"The agent to measure: {BOT_HELP}", default="embedded",
        unit="URL|STACK", shared=True, complete="stack", env="TURNGAP_AGENT",
    ),
    _O(
        "start", (*_CALLERS, "init"), BOT, "Start your bot with this command, wait until the port "
        'of its URL is open, and end it afterwards: --start "python bot.py" --agent '
        "ws://127.0.0.1:8765/ws.", unit="COMMAND", shared=True,
    ),
    _O(
        "dialect", (*_CALLERS, "talk", "init"), BOT, "The protocol of a URL, with its settings: "
        "NAME[,KEY=VALUE…]; `turngap dialects` lists them. Default: detected.", default="",
        unit="NAME", shared=True, complete="dialect",
    ),
    _O(
        "headers", (*_CALLERS, "talk", "init"), BOT, "An HTTP header to open a URL with: 'NAME: "
        "VALUE'. Repeatable. ${NAME} in it, or in the URL, stands for an environment variable, so "
        "that no secret is stored: 'Authorization: Bearer ${API_KEY}'.", unit="HEADER",
        flag="header", many=True, shared=True,
    ),
    _O(
        "llm", (*_CALLERS, *_SERVERS), BUILT_IN, "Use this LLM backend; `turngap backends` lists "
        "them. Default: the stack's.", unit="NAME", shared=True, complete="llm",
    ),
    _O(
        "llms", ("compare",), BUILT_IN, f"An LLM to compare: {LLM_HELP}. Give it twice or more.",
        unit="LLM", flag="llm", many=True, in_file=True, complete="llm",
    ),
    _O(
        "sets", (*_PLAYERS, *_SERVERS, "fetch"), BUILT_IN, "Change a setting, e.g. "
        "tts.speed_wpm=180; stt=NAME, tts=NAME or turn=NAME takes another engine, seed=N seeds "
        "what is random, and marks=false reports no marks. Repeatable.", unit="KEY=VALUE",
        flag="set", many=True, shared=True,
    ),
    _O(
        "vary", ("turns",), BUILT_IN, "Play the agent with each of these values of a setting, "
        "e.g. turn.certainty=0.5,0.7,0.9.", unit="KEY=V1,V2",
    ),
    _O(
        "prices", ("compare",), BUILT_IN, "Price of an LLM, in US dollars for a million tokens: "
        "NAME=IN,OUT. Default: the backend's, if it has one. Repeatable.", unit="PRICE",
        flag="price", many=True, in_file=True,
    ),
    _O(
        "judge", ("compare",), BUILT_IN, "An LLM that judges the answers afterwards, in a column "
        "of its own: LLM[,KEY=VALUE…].", unit="LLM", complete="llm",
    ),
    _O(
        "transcribe", ("score",), BUILT_IN, "Write down what the agent says, with this STT "
        "backend: STT[,KEY=VALUE…].", unit="STT", complete="stt",
    ),
    _O("stt", _PLAYERS),
    _O("tts", _PLAYERS),
    _O("seed", _PLAYERS, kind=int),
    _O("marks", ("replay",), kind=bool, default=True),
    _O(
        "against", ("check",), REFERENCE, "The reference, which is measured alternately with the "
        "agent: a stack's name, a stack file, a URL (ws://, http://), or the folder of another "
        "checkout of turngap. --against '' means none, even if the repository's file names one.",
        unit="AGENT", in_file=True, complete="stack",
    ),
    _O(
        "start_against", ("check",), REFERENCE, "Start the reference with this command, as "
        "--start does the agent.", unit="COMMAND", in_file=True,
    ),
    _O(
        "baseline", ("check",), REFERENCE, "A stored reference, which --save made on this machine.",
        Path, unit="FILE", in_file=True,
    ),
    _O(
        "against_dialect", ("check",), REFERENCE,
        "The protocol of the reference's URL. Default: the agent's.", default="", unit="NAME",
        in_file=True, rare=True, complete="dialect",
    ),
    _O(
        "against_headers", ("check",), REFERENCE, "An HTTP header to open the reference's URL "
        "with. Default: the agent's, where the scheme and the host of both URLs are the same, and "
        "none elsewhere, since they may hold keys.", unit="HEADER", flag="against-header",
        many=True, in_file=True, rare=True,
    ),
    _O(
        "against_sets", ("check",), REFERENCE, "Change a setting of the reference; the agent's "
        "--set does not apply to it. Repeatable.", unit="KEY=VALUE", flag="against-set", many=True,
        in_file=True, rare=True,
    ),
    _O(
        "line", _PLAYERS, PLAYED, "Play over a line that delays and loses as networks do: a "
        "profile (lte), faults (delay=80,jitter=20,loss=1%,down=300kbit) or both "
        "(lte,loss=2%). `turngap line` lists all. Over TCP, loss is delay.", default="",
        unit="LINE", shared=True,
    ),
    _O(
        "unpaired", ("replay",), PLAYED, "With --line: play each conversation over the line only. "
        "Default: without the line, too, in alternating order, to show what the line adds.", bool,
        False, in_file=True,
    ),
    _O("tag", _PLAYERS, PLAYED, "Only play scenarios with this tag.", unit="TAG", shared=True),
    _O(
        "repeat", ("replay",), PLAYED, "How often to play everything.", int, 1, "N", least=1,
        most=MOST_PLAYED, in_file=True, aliases=("rounds",),
    ),
    _O(
        "rounds", ("check",), PLAYED, "How many rounds. Each plays every turn twice against each "
        "agent. Default: 2, or more where few scenarios would leave a clear shift undecided.", int,
        None, "N", least=1, most=MOST_PLAYED, in_file=True, aliases=("repeat",),
    ),
    _O(
        "rounds", ("compare",), PLAYED, "How often each LLM plays everything.", int, 1, "N",
        least=1, most=MOST_PLAYED, in_file=True, aliases=("repeat",),
    ),
    _O(
        "rounds", ("turns",), PLAYED, "How often to play everything, with each value.", int, 1, "N",
        least=1, most=MOST_PLAYED, in_file=True, aliases=("repeat",),
    ),
    _O(
        "until_decided", ("check",), PLAYED,
        "Play further rounds for as long as the verdict is undecided.", bool, False, in_file=True,
        off=True,
    ),
    _O(
        "max_minutes", ("check",), PLAYED, "With --until-decided: start no further round after "
        "this time.", float, 10.0, "MINUTES", least=0.1, most=LONGEST_S / 60, in_file=True,
    ),
    _O(
        "resume", ("replay",), PLAYED, "Finish an interrupted run: play its missing turns with "
        "the same settings, into the same folder. `latest` is the latest that lacks turns. The "
        "run may be another person's: settings that run something or name a secret, such as "
        "--start, have to be given again, and an error shows the whole command.", unit="RUN",
        complete="run",
    ),
    _O(
        "stop_on_error", ("replay",), PLAYED, "End with the first call that the agent loses or "
        "ends early. Default: continue with the next.", bool, False, in_file=True,
    ),
    _O(
        "virtual", ("turns",), PLAYED, "Built-in agent: play in memory and virtual time, which "
        "takes seconds where real time takes minutes. Gaps are then lower bounds.", bool, False,
        off=True,
    ),
    _O(
        "sessions", ("load",), PLAYED, "Hold this level, as 16, or one level after the other, as "
        "1..64. Default: search for the most sessions that the agent holds.", unit="N|N1..N2",
        in_file=True,
    ),
    _O(
        "max_sessions", ("load",), PLAYED, "The search goes no higher than this. Default: 32.", int,
        None, "N", least=1, most=MOST_SESSIONS, in_file=True,
    ),
    _O(
        "rate", ("load",), PLAYED, "Let calls arrive at this rate, as 2/s, whether or not earlier "
        "ones have ended.", unit="N/s|N/min", in_file=True,
    ),
    _O(
        "arrivals", ("load",), PLAYED, "How calls arrive at --rate: poisson or constant. Default: "
        "poisson.", unit="HOW", in_file=True, rare=True,
    ),
    _O(
        "duration_s", ("load",), PLAYED, "Measure each step for this long. Default: as long as it "
        "takes to decide, which a search finds out itself.", float, None, "SECONDS", "duration", 1,
        LONGEST_S, in_file=True,
    ),
    _O(
        "warm_up_s", ("load",), PLAYED, "Leave this much out at the beginning of each step. "
        "Default: as long as two turns take; at a rate, as the longest call.", float, None,
        "SECONDS", "warm-up", 0, LONGEST_WARM_UP_S, in_file=True, rare=True,
    ),
    _O(
        "callers", ("load",), PLAYED,
        "Call from this many processes. Default: as many as it takes.", int, None, "N", least=1,
        most=MOST_CALLERS, in_file=True, rare=True,
    ),
    _O(
        "on", ("load",), PLAYED, "Where the callers run: on this machine (local), or on Ray's "
        "nodes (ray).", default="local", unit="local|ray", rare=True,
    ),
    _O(
        "ray_address", ("load",), PLAYED, "With --on ray: the cluster's address, HOST:PORT or "
        "auto. Default: a cluster on this machine alone.", unit="ADDRESS", rare=True,
    ),
    _O(
        "max_minutes", ("load",), PLAYED, "Once a search has certified a level, it starts no "
        "further step after this time.", float, LOAD_MINUTES, "MINUTES", least=0.1,
        most=LONGEST_S / 60, in_file=True,
    ),
    _O(
        "phases", ("check", "compare", "turns"), PLAYED, "Begin the audio at this many different "
        "places within a 32 ms VAD frame, over the rounds, so that the result does not depend on "
        "one alignment.", int, 1, "N", least=1, most=MAX_PHASES, shared=True, rare=True,
    ),
    _O("phase_ms", ("replay",), kind=float, default=0.0, least=0, most=LONGEST_MS),
    _O(
        "greeting_ms", ("replay",), PLAYED, "How long to wait for a greeting before the first "
        "turn. Default: learned from the first call.", float, None, "MS", least=0, most=LONGEST_MS,
        in_file=True, rare=True,
    ),
    _O("greeting_ms", ("load",), kind=float, least=0, most=LONGEST_MS),
    _O(
        "calibration", ("replay", "check", "load"), PLAYED, "How many known gaps to measure first, "
        "to know turngap's own error. 0: none.", int, CALIBRATION_TURNS, "N", least=0,
        most=MOST_PLAYED, shared=True, rare=True,
    ),
    _O("library", _PLAYERS, kind=Path),
    _O(
        "person", ("score",), PLAYED, "The channel that holds the person: left, right, or auto, "
        "which decides for each call and says why.", default="auto", unit="SIDE",
    ),
    _O(
        "offset_ms", ("score",), PLAYED, "How much later than the person's channel the agent's was "
        "recorded; negative: earlier. Default: estimated where there is echo, else 0.", float, None,
        "MS", least=-LONGEST_MS, most=LONGEST_MS, rare=True,
    ),
    _O(
        "workers", ("score",), PLAYED, "Hear this many calls at once, each in a process of its "
        "own. Default: one for each processor.", int, None, "N", least=1, most=1000,
    ),
    _O(
        "budget_ms", ("replay", "compare"), LIMITS,
        "Use this budget instead of those that the scenarios name.", float, None, "MS", least=1,
        most=LONGEST_MS, in_file=True,
    ),
    _O(
        "budget_ms", ("score",), LIMITS, "A turn is on time if its gap is at most this.", float,
        DEFAULT_BUDGET_MS, "MS", least=1, most=LONGEST_MS,
    ),
    _O(
        "budget_ms", ("load",), LIMITS, "A turn is on time if its gap is at most this, counted "
        "from when the person was scheduled to end.", float, DEFAULT_BUDGET_MS, "MS", least=1,
        most=LONGEST_MS, in_file=True,
    ),
    _O(
        "min_hit_rate", ("replay", "score"), LIMITS,
        "Exit 1 if a smaller share of turns is within the budget.", float, None, "SHARE", least=0,
        most=1, in_file=True,
    ),
    _O(
        "limit_p50_ms", ("check",), LIMITS,
        "Fail if the gap's p50 is longer by this much, or more.", float, 30.0, "MS", least=1,
        most=LONGEST_MS, in_file=True,
    ),
    _O(
        "limit_p95_ms", ("check",), LIMITS,
        "Fail if the gap's p95 is longer by this much, or more.", float, 100.0, "MS", least=1,
        most=LONGEST_MS, in_file=True,
    ),
    _O(
        "budgets", ("check",), LIMITS, "A fixed limit in ms: gap=800, or one for a stage, as "
        "llm_first_token=450. It needs no reference. Repeatable.", dict, None, "NAME=MS", "budget",
        many=True, in_file=True,
    ),
    _O(
        "target", ("check",), LIMITS, "The share of turns that must be within each --budget.",
        float, 0.95, "SHARE", in_file=True,
    ),
    _O(
        "target", ("load",), LIMITS, "The agent holds a level if this share of turns is on time.",
        float, 0.95, "SHARE", least=0.5, most=0.999, in_file=True,
    ),
    _O(
        "confidence", ("load",), LIMITS, "Confidence of the certificate, over the whole search.",
        float, 0.95, "SHARE", least=0.5, most=0.999, in_file=True, rare=True,
    ),
    _O(
        "min_sessions", ("load",), LIMITS, "For CI: exit 0 if this many sessions are certified, 1 "
        "if they certainly do not hold, 3 if that is uncertain.", int, None, "N", least=1,
        most=MOST_SESSIONS, in_file=True,
    ),
    _O(
        "no_reply_ms", _PLAYERS, LIMITS, "Wait this long for a reply, from the person's end. No "
        "budget may be longer.", float, NO_REPLY_MS, "MS", least=500, most=LONGEST_MS, shared=True,
        rare=True,
    ),
    _O(
        "no_reply_ms", ("score",), LIMITS, "A turn has no reply if none came within this time, "
        "from the person's end.", float, NO_REPLY_MS, "MS", least=500, most=LONGEST_MS, rare=True,
    ),
    _O(
        "quiet_ms", _PLAYERS, LIMITS, "Take a reply to be over after this much silence, unless "
        "the agent says when it is.", float, QUIET_MS, "MS", least=100, most=LONGEST_MS,
        shared=True, rare=True,
    ),
    _O(
        "starved_ms", ("replay", "check", "compare", "turns"), LIMITS,
        "Mark a turn as starved if turngap itself was this late in sending or reading. Raise it "
        "on a busy machine; gaps may then be wrong by up to this much.", float, STARVED_MS, "MS",
        least=1, most=MAX_STARVED_MS, shared=True, rare=True,
    ),
    _O(
        "starved_ms", ("load",), LIMITS, "A step is void if the caller itself was later than this "
        "(p99). A ramp then ends; a search continues with fewer sessions, or ends if it "
        "was confirming a level.", float, STARVED_MS, "MS", least=1, most=MAX_STARVED_MS,
        shared=True, rare=True,
    ),
    _O(
        "save", ("check",), OUTPUT, "Store this run as a baseline. With a reference or budgets: "
        "only if it passes.", Path, unit="FILE",
    ),
    _O(
        "audio", ("score",), OUTPUT, "Keep the audio of each turn in the run, so that its report "
        "plays it.", bool, True, off=True,
    ),
    _O(
        "label", (*_PLAYERS, "score"), OUTPUT, "A name for this in `turngap history`, on one line: "
        "--label 'before the change'.", default="", unit="TEXT",
    ),
    _O(
        "out", (*_PLAYERS, *_SERVERS, "simulate", "score"), OUTPUT,
        "Store the result in this folder. Default: ./runs.", Path, unit="DIR", shared=True,
    ),
    _O(
        "otlp", ("replay", "check", "compare", "load", "score"), OUTPUT,
        "Send a trace of each conversation, and histograms, to an OpenTelemetry collector at this "
        "URL (http://HOST:4318). The agent gets a `traceparent` header, so that its own spans are "
        "children of ours. Default: where OTEL_EXPORTER_OTLP_ENDPOINT says.", unit="URL", rare=True,
    ),
)  # fmt: skip


Table = tuple[Option, ...]


def options_of(command: str, table: Table = OPTIONS, *, typed: bool = True) -> dict[str, Option]:
    """Return the options of a command by name; `typed` leaves out those of Python alone."""
    found = (each for each in table if command in each.commands)
    return {each.name: each for each in found if each.help or not typed}


def checked(
    command: str, given: Mapping[str, Any], table: Table = OPTIONS, *, flags: bool = False
) -> Asked:
    """Return all options of a command, checked; an option that was not given has its default.

    Errors name options as flags if `flags` is set, else as Python's keyword arguments.

    Raises:
        InputError: a value is out of its range.
    """
    asked = Asked()
    for name, option in options_of(command, table, typed=False).items():
        shown = f"--{option.key} " if flags else f"{name}="
        asked[name] = option.checked(given.get(name, option.default), shown)
    return asked


def require_ranges(command: str, **numbers: float | None) -> None:
    """Check numbers against a command's options; skip None.

    Raises:
        InputError: a number is out of its range.
    """
    options = options_of(command, typed=False)
    for name, value in numbers.items():
        options[name].checked(value, f"{name}=")


Flag = tuple[str, Any]


def flags_again(command: str, values: Mapping[str, Any]) -> list[Flag]:
    """List the flags that ask for these values again, without those at their default."""
    flags: list[Flag] = []
    for name, option in options_of(command).items():
        value = values.get(name)
        if value is None or value is False or option.argument or value == option.initial:
            continue
        if option.kind is dict:
            value = [f"{key}={number:g}" for key, number in value.items()]
        flags += [(f"--{option.key}", each) for each in (value if option.many else [value])]
    return flags


def quoted(value: Any) -> str:
    """Quote a value for a shell; keep `${NAME}` in it, and show a secret as `(removed)`."""
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return shlex.quote(text_without_secrets(shown))


def typed(flags: Iterable[Flag]) -> list[str]:
    """Return the flags as typed: a switch by its name alone, and no flag for None."""
    return [
        flag if value is True else f"{flag} {quoted(value)}"
        for flag, value in flags
        if value is not None
    ]
