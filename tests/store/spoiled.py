"""Files and flags that are spoiled at random, and what reads each of them."""

import contextlib
import copy
import io
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from commandline import ROOT
from every_document import every_document
from made_checks import make_turns
from made_records import make_record

import turngap.cli
from turngap.agent.stack import load_stack, override, resolved, stack_files
from turngap.backends import KINDS, BackendChoice
from turngap.check import baseline
from turngap.compare import figures as compared
from turngap.core.errors import TurngapError
from turngap.fleet.files import build_fleet, read_fleet
from turngap.fleet.workload import measured_turns
from turngap.judge import reply_audio
from turngap.scenario.library import load_scenario
from turngap.store.runs import read_run

# Bytes and values that parsers stumble on.
TOKENS = (
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\r\n", b"\t", b"\x1b[31m", b"\x7f", b'"', b"'", b"\\",
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1e308", b"-1", b"0", b"-0.0", b"9" * 25,
    b"9" * 5000, b"0x" + b"f" * 40, b"[" * 300, b"{" * 300, b'{"a":' * 300, b"[]", b"{}", b"null",
    b"true", b'"\\ud800"', b"\xed\xa0\x80", "é\u202e\u0301".encode(), b"\xf0\x9f\x98\x80",
    b"&a ", b"*a", b"<<: ", b"!!int ", b"!!binary ", b"!!python/object:os.system ", b"? ", b"- ",
    b": ", b"|\n", b">\n", b"# ", b"%YAML 1.1\n", b"---\n", b"...\n", b"2026-99-99", b"~",
    b"= ", b"[[", b"]]", b"a.b.c = 1\n", b"1979-05-27T07:32:00Z", b"'''", b'"""', b",", b"\n",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**63 - 1, -(2**63), 0.0, -0.0, 1e-300, 1e15, 1e300,
    -1e300, 0.1, "", " ", "x", "x" * 5000, "\0", "\x1b[2J", "\u202e", "é", "../..", "/etc/passwd",
    "latest", [], {}, [[]], [None], {"": None}, {"a": {"b": {}}}, "1", "NaN",
)  # fmt: skip


def mutated(draw: random.Random, raw: bytes, others: Sequence[bytes]) -> bytes:
    """Spoil a document in one to four places."""
    data = bytearray(raw)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at, to = sorted(draw.randrange(len(data) + 1) for _ in range(2))
        to = min(to, at + draw.choice((1, 4, 40, 4000)))
        match draw.randrange(8):
            case 0 if data:
                data[at % len(data)] ^= 1 << draw.randrange(8)
            case 1:
                del data[at:to]
            case 2:
                data[at:at] = data[at:to] * draw.choice((1, 2, 50))
            case 3:
                data[at:to] = draw.choice(TOKENS)
            case 4:
                data[at:at] = draw.choice(TOKENS)
            case 5:
                other = draw.choice(others)
                first, last = sorted(draw.randrange(len(other) + 1) for _ in range(2))
                data[at:to] = other[first:last]
            case 6:
                del data[at:]
            case _:
                lines = bytes(data).split(b"\n")
                draw.shuffle(lines[: draw.randrange(len(lines) + 1)])
                i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
                lines[i], lines[j] = lines[j], lines[i]
                data = bytearray(b"\n".join(lines))
    return bytes(data)


def revalued(draw: random.Random, raw: bytes) -> bytes:
    """Put other values into a JSON document, or into one line of several."""
    lines = raw.rstrip(b"\n").split(b"\n") if raw.count(b"\n{") else [raw]
    number = draw.randrange(len(lines))
    document = json.loads(lines[number])
    for _ in range(draw.choice((1, 1, 2, 5))):
        places = list(_places(document))
        holder, key = draw.choice(places)
        now = holder[key]
        if draw.random() < 0.15:
            del holder[key]
        elif isinstance(now, int | float) and draw.random() < 0.5:
            holder[key] = draw.choice([-now, now * 1e6, now * 1000, now + 0.5, int(now) // 3])
        else:
            holder[key] = copy.deepcopy(draw.choice(VALUES))
        if not document:
            break
    lines[number] = json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return b"\n".join(lines) + b"\n"


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from _places(node[key])


@dataclass(frozen=True, slots=True)
class Target:
    """Something that is read: samples of it, and what is done with a spoiled one.

    `read` gets the bytes and a folder of its own, and raises nothing but a `TurngapError`.
    """

    samples: Sequence[bytes]
    read: Callable[[bytes, Path], object]
    is_json: bool = False

    def spoiled(self, draw: random.Random) -> bytes:
        """Spoil one of the samples."""
        raw = draw.choice(self.samples)
        if self.is_json and draw.random() < 0.7:
            return revalued(draw, raw)
        return mutated(draw, raw, self.samples)


def targets(work: Path) -> dict[str, Target]:
    """Return everything that is read from files and flags, by name; `work` holds the samples."""
    stored = every_document(work / "stored")
    sets = [
        *(b"llm.ttft_ms=80", b'tools.use=["clock", "weather"]', b"turn.certainty=0.5"),
        *(b"audio.out_chunk_ms=20", b"pipeline.system_prompt='be brief'", b"tts.rate=1.5"),
    ]
    choices = [b"slow=sim,ttft_ms=400", b"race,fast=small,full=sim:full", b'sim,a=["x"],b={c=1}']
    return {
        "scenario": Target(_files(ROOT / "scenarios", "*.yaml"), _scenario),
        "stack": Target([p.read_bytes() for p in stack_files().values()], _stack),
        "fleet": Target([(ROOT / "examples/fleet.toml").read_bytes(), FLEET], _fleet),
        "set": Target(sets, _set),
        "choice": Target(choices, _choice),
        "wav": Target(list(_sounds("WAV")), partial(_sound, "1.wav")),
        "flac": Target(list(_sounds("FLAC")), partial(_sound, "1.flac")),
        "base.json": Target([stored["baseline"].read_bytes()], _baseline, is_json=True),
        **{
            f"{kind}/{file}": Target(
                [(stored[kind] / file).read_bytes()],
                partial(_folder, stored[kind], file),
                is_json=True,
            )
            for kind, file in (
                ("run", "run.json"),
                ("run", "turns.jsonl"),
                ("check", "check.json"),
                ("compare", "compare.json"),
                ("turns", "turns.json"),
                ("simulate", "simulation.json"),
                ("load", "load.json"),
                ("load", "turns.jsonl"),
            )
        },
    }


FLEET = b"""\
routing: sticky
pool:
  - {hardware: h100, replicas: 2, model: llama-3.1-8b, policy: static, max_batch: 4}
turn: {before_ms: 200, after_ms: 40, speech_ms: 1500, reply_ms: 2000}
call: {turns: 4, think_ms: 500}
"""


def _files(folder: Path, pattern: str) -> list[bytes]:
    return [file.read_bytes() for file in sorted(folder.glob(pattern))]


def _sounds(form: str) -> Iterator[bytes]:
    tone = (8000 * np.sin(np.arange(400) / 10)).astype(np.int16)
    kinds = ("PCM_16", "PCM_24") if form == "FLAC" else ("PCM_16", "FLOAT", "ULAW", "IMA_ADPCM")
    for kind in kinds:
        out = io.BytesIO()
        soundfile.write(out, tone, 16_000, format=form, subtype=kind)
        yield out.getvalue()


# What is done with a spoiled one: it is read, and shown or used as its command would.


def _scenario(raw: bytes, folder: Path) -> None:
    named = re.search(rb"^name: ([a-z-]+)", raw, re.MULTILINE)
    name = named[1].decode() if named else "coffee-order"
    if (recordings := ROOT / "scenarios" / name).is_dir():
        shutil.copytree(recordings, folder / name)
    file = folder / f"{name}.yaml"
    file.write_bytes(raw)
    load_scenario(file)


def _stack(raw: bytes, folder: Path) -> None:
    file = folder / "mine.toml"
    file.write_bytes(raw)
    list(resolved(override(load_stack(str(file)), {}, ["llm.seed=1"]), None))


def _fleet(raw: bytes, folder: Path) -> None:
    file = folder / ("fleet.yaml" if b"routing:" in raw else "fleet.toml")
    file.write_bytes(raw)
    build_fleet(read_fleet(file, ["pool.replicas=2"]), context=1000)


def _set(raw: bytes, _: Path) -> None:
    said = raw.decode("utf-8", "surrogateescape")  # as Python gives an argument
    with contextlib.suppress(TurngapError):
        read_fleet(None, [f"pool.{said}"])
    list(resolved(override(load_stack("embedded"), {}, [said]), None))


def _choice(raw: bytes, _: Path) -> None:
    choice = BackendChoice.parse(raw.decode("utf-8", "surrogateescape"))
    for kind in KINDS:
        with contextlib.suppress(TurngapError):
            choice.configured(kind, {})
    choice.values()


def _sound(name: str, raw: bytes, folder: Path) -> None:
    (folder / name).write_bytes(raw)
    scenario = folder / "talk.yaml"
    scenario.write_text(f"name: talk\nturns:\n  - {{say: x, audio: {name}}}\n", encoding="utf-8")
    for clip in load_scenario(scenario, need_labels=False).clips.values():
        clip.at_rate(16_000)


def _baseline(raw: bytes, folder: Path) -> None:
    file = folder / "base.json"
    file.write_bytes(raw)
    record, now = baseline.load(file), make_record()
    baseline.why_not_comparable(record, now.machine, now.scenario_hashes)
    assert baseline.matched(record, make_turns(6)) is not None
    baseline.gaps(record)


def _folder(stored: Path, file: str, raw: bytes, folder: Path) -> None:
    here = folder / "given"
    shutil.copytree(stored, here)
    (here / file).write_bytes(raw)
    pictures = ["--html", "--svg", str(folder / "out.svg")]
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")):
        for arguments in (["--json"], pictures):
            turngap.cli.app(["report", str(here), *arguments], standalone_mode=False)
    if file == "turns.jsonl" and (here / "run.json").exists():
        run = read_run(here)
        measured_turns(run.turns)
        for turn in run.turns:
            compared.turn_ms(turn)
            reply_audio(run, turn)
        run.to_csv(folder / "turns.csv")
