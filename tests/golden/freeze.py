"""The frozen figures: what is played in virtual time, and each JSON document, against the goldens.

`python tests/golden/freeze.py` compares this checkout with the goldens, as the tests do;
`--all` plays every scenario in every dialect and compares the digests of `matrix.json` too.
`--freeze` replaces the goldens by what this checkout gives. Do that only in a commit that means to
change a figure, or that adds or removes a key of a document, and name both in its message.
`--show SCENARIO DIALECT` prints each turn of a scenario: run it in two checkouts to see what a
digest hides. Whatever depends on the machine, the time or the place is left out (`normal`).
"""

import argparse
import asyncio
import contextlib
import hashlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "helpers"))

from every_document import every_document  # noqa: E402

import turngap.cli  # noqa: E402
from turngap.caller.conversation import Conversation, Patience  # noqa: E402
from turngap.core.cue import When  # noqa: E402
from turngap.core.results import Turn  # noqa: E402
from turngap.play.calibrate import loopback_script, measured, plan  # noqa: E402
from turngap.play.turns import cues_of, turn_record  # noqa: E402
from turngap.scenario.library import LoadedScenario, load_scenario  # noqa: E402
from turngap.scenario.model import library_dir  # noqa: E402
from turngap.testing.agent import Account, Reply, Script, Truth  # noqa: E402
from turngap.testing.dialects import HALVES, WEBRTC  # noqa: E402
from turngap.testing.memory import line_to  # noqa: E402
from turngap.testing.virtual import LoopClock, in_virtual_time  # noqa: E402

# Another version of Opus may code otherwise.
DIALECTS = sorted(HALVES.keys() - {WEBRTC})
SCENARIOS = sorted(file.stem for file in library_dir().glob("*.yaml"))
# The agents. The first hears every turn out; the second answers in pauses, greets, and yields to a
# person who barges in; the third fails in each way that an agent can.
AGENTS = {
    "patient": Script(
        replies=(
            Reply(delay_ms=700),
            Reply(delay_ms=900, speech_ms=900, paced=False),
            Reply(action="silence"),
            Reply(delay_ms=650, pad_ms=150, chunk_ms=40),
        ),
        hold_ms=600,
        clock_shift_ms=5000,
    ),
    "hasty": Script(
        replies=(Reply(delay_ms=120, speech_ms=1500), Reply(delay_ms=90, pad_ms=50, pad_dbfs=-55)),
        hold_ms=60,
        welcome_ms=600,
    ),
    "failing": Script(
        replies=(
            Reply(delay_ms=700),
            Reply(delay_ms=700, action="garbage"),
            Reply(delay_ms=700, action="break_off"),
            Reply(delay_ms=700, action="die_midway"),
        ),
        hold_ms=600,
    ),
}
FIELDS = (
    *("gap_ms", "yield_ms", "lead_ms", "endpoints_ms", "counts", "endpoint_why", "calls"),
    *("backchannels", "answer"),
)
# Words for people, which may change where no figure does.
PROSE = {"event", "why", "text", "say", "source", "heard", "failed"}
# The keys of documents whose values are another machine's, another day's or another place's.
ELSEWHERE = {
    *("machine", "turngap_version", "commit", "started_utc", "finished_utc", "fingerprint"),
    *("available", "missing", "missing_by_default", "remedy", "about", "notes"),
    *("saved_utc", "wall_s"),
}


def cross_section(dialect: str) -> list[tuple[str, str]]:
    """Return what the tests play in a dialect: all scenarios in pipecat, two in others."""
    chosen = SCENARIOS if dialect == "pipecat" else ["coffee-order", "soup-recipe"]
    return [*((s, a) for s in chosen for a in ("patient", "hasty")), ("coffee-order", "failing")]


def played(dialect: str) -> dict[str, list[str]]:
    return {" ".join(pair): play(*pair, dialect) for pair in cross_section(dialect)}


def every_play() -> list[tuple[str, str]]:
    return [(scenario, agent) for scenario in SCENARIOS for agent in AGENTS]


@cache
def _scenario(name: str) -> LoadedScenario:
    return load_scenario(library_dir() / f"{name}.yaml")


def _barging_in(loaded: LoadedScenario) -> LoadedScenario:
    """Return the scenario with every second turn spoken into the reply before it."""
    turns = tuple(
        turn.model_copy(update={"when": When(barge_in_ms=400)}) if n % 2 else turn
        for n, turn in enumerate(loaded.scenario.turns)
    )
    return replace(loaded, scenario=loaded.scenario.model_copy(update={"turns": turns}))


def play(scenario: str, agent: str, dialect: str) -> list[str]:
    """Play one conversation in memory and virtual time; return a line for each turn."""
    loaded, script = _scenario(scenario), replace(AGENTS[agent], dialect=dialect)
    texts = [turn.reply or "indeed" for turn in loaded.scenario.turns]
    replies = [replace(r, text=texts[n % len(texts)]) for n, r in enumerate(script.replies * 3)]
    script = replace(script, replies=tuple(replies))
    hasty = agent == "hasty"
    if hasty:
        loaded = _barging_in(loaded)

    async def course() -> list[str]:
        clock = LoopClock()
        async with asyncio.timeout(3600), line_to(script) as line:
            conversation = Conversation(
                line,
                cues_of(loaded, rate=line.rate),
                clock,
                offset=await line.clock_offset(),
                patience=Patience(greeting_ms=1500 if hasty else 0),
                phase_ms=8 if hasty else 0,
                watch=clock,
            )
            lines: list[str] = []
            async for played in conversation.play():
                faults = tuple(conversation.faults)
                conversation.faults.clear()
                turn = turn_record(
                    loaded.scenario,
                    played,
                    repeat=1,
                    phase_ms=0,
                    file="",
                    faults=faults,
                    budget_ms=None,
                )
                lines.append(line_of(turn))
            return [*lines, "the line was lost"] if conversation.failure else lines

    return in_virtual_time(course())


def line_of(turn: Turn) -> str:
    """Return the turn's figures, then its stages, marks and events, all in ms."""
    stored = turn.model_dump(mode="json")
    figures = [f"{name}={_plain(stored[name])}" for name in FIELDS if _plain(stored[name])]
    counts = (len(turn.faults), len(turn.notes), turn.pacing.packets, turn.pacing.starved)
    stages = [f"{stage.name}={_ms(stage.ns)}" for stage in turn.stages]
    marks = [f"{mark.name}={_ms(mark.at_ns)}" for mark in turn.marks]
    shifts = {_ms(mark.raw_ns - mark.at_ns) for mark in turn.marks if mark.raw_ns is not None}
    for event in stored["events"]:
        if event["event"] in ("AgentSpeech", "AgentSilence"):
            event.pop("dbfs", None)  # an aside of what was heard
    events = [f"{event['event']}{_plain(event)}" for event in stored["events"]]
    parts = (figures, counts, stages, marks, sorted(shifts), events)
    return f"{turn.turn} {turn.outcome} {turn.ended} | " + " | ".join(
        " ".join(map(str, part)) for part in parts
    )


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.12g}"


def _plain(value: Any) -> str:
    """Return a document's value in a few characters, without what is empty."""
    if isinstance(value, dict):
        pairs = {
            key.removesuffix("_ns"): _ms(inner)
            if key.endswith("_ns") and isinstance(inner, int)
            else str(len(inner))
            if key == "text"
            else _plain(inner)
            for key, inner in value.items()
            if key == "text" or key not in PROSE
        }
        return "{" + " ".join(f"{k}={v}" for k, v in pairs.items() if v) + "}" if pairs else ""
    if isinstance(value, list):
        return "[" + " ".join(map(_plain, value)) + "]" if value else ""
    return "" if value is None else str(round(value, 6) if isinstance(value, float) else value)


def digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def stored_documents(root: Path) -> dict[str, Any]:
    """Return one stored document of each kind, by its kind and file; two lines of its turns."""
    found: dict[str, Any] = {}
    for kind, place in every_document(root).items():
        for file in [place] if place.is_file() else sorted(place.glob("*.json*")):
            text = file.read_text(encoding="utf-8")
            many = file.suffix == ".jsonl"
            read = map(json.loads, text.splitlines()[:2]) if many else json.loads(text)
            found[f"{kind}/{file.name}"] = list(read) if many else read
    return normal(found, root)


def printed_documents(root: Path) -> dict[str, Any]:
    """Return what `--json` prints for stored documents and for the lists, by its command."""
    places = every_document(root)
    del places["baseline"]
    found = {kind: _printed("report", str(folder)) for kind, folder in places.items()}
    for name in ("backends", "dialects", "scenarios"):
        rows = _printed(name)
        found[name] = {" ".join((row.get("kind", ""), row["name"])).strip(): row for row in rows}
    found["history"] = _printed("history", "--runs", str(root))
    found["history"]["runs"].sort(key=lambda run: run["path"])
    found["calibrate"] = _calibrated()
    return normal(found, root)


def _printed(*arguments: str) -> Any:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        turngap.cli.app([*arguments, "--json"], standalone_mode=False)
    return json.loads(out.getvalue())


def _calibrated() -> dict[str, Any]:
    async def course() -> dict[str, Any]:
        account, replies, clock = Account(), plan(16, seed=1), LoopClock()

        def truths(_: int) -> dict[int, Truth]:
            return {truth.turn: truth for truth in account.truths}

        async with line_to(loopback_script(replies, "pipecat"), account=account) as line:
            return (await measured(line, clock, replies, truths, watch=clock)).as_json()

    return in_virtual_time(course())


def normal(value: Any, root: Path) -> Any:
    """Return a document without what is another one's elsewhere, its floats to nine digits."""
    if isinstance(value, dict):
        return {k: None if k in ELSEWHERE else normal(v, root) for k, v in value.items()}
    if isinstance(value, list):
        return [normal(inner, root) for inner in value]
    if isinstance(value, str):
        return re.sub(r"\d{8}T\d{6}Z", "UTC", value.replace(str(root), "ROOT"))
    return float(f"{value:.9g}") if isinstance(value, float) else value


def golden(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def differences(expected: Any, now: Any, at: str = "") -> Iterator[str]:
    """Yield where two documents differ, a line for each place."""
    if isinstance(expected, dict) and isinstance(now, dict):
        for key in sorted(expected.keys() ^ now.keys()):
            yield f"{at}/{key} is only in the {'golden' if key in expected else 'new'} one"
        for key in sorted(expected.keys() & now.keys()):
            yield from differences(expected[key], now[key], f"{at}/{key}")
    elif isinstance(expected, list) and isinstance(now, list) and len(expected) == len(now):
        for number, (a, b) in enumerate(zip(expected, now, strict=True)):
            yield from differences(a, b, f"{at}/{number}")
    elif expected != now:
        yield f"{at}\n  golden {expected}\n  now    {now}"


def current(name: str) -> Any:
    """Return what this checkout gives for a golden file."""
    if name == "played":
        return {dialect: played(dialect) for dialect in DIALECTS}
    if name == "matrix":
        return {d: {" ".join(p): digest(play(*p, d)) for p in every_play()} for d in DIALECTS}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "root"
        return stored_documents(root) if name == "stored" else printed_documents(root)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every scenario in every dialect")
    parser.add_argument("--freeze", action="store_true", help="write the goldens anew")
    parser.add_argument("--show", nargs=2, metavar=("SCENARIO", "DIALECT"))
    asked = parser.parse_args()
    if asked.show:
        for agent in AGENTS:
            sys.stdout.write("\n".join((agent, *play(asked.show[0], agent, asked.show[1]), "")))
        return 0
    found: list[str] = []
    for name in ("played", "stored", "printed", *(["matrix"] if asked.all else [])):
        now = current(name)
        if asked.freeze:
            text = json.dumps(now, indent=1, sort_keys=True, ensure_ascii=False)
            (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        else:
            found += differences(golden(name), json.loads(json.dumps(now)), name)
    found = found or ["frozen" if asked.freeze else "equal"]
    sys.stdout.write("\n".join((*found, "")))
    return 0 if found in (["frozen"], ["equal"]) else 1


if __name__ == "__main__":
    sys.exit(main())
