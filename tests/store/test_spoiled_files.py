"""Every parser of files and flags against spoiled ones: a value, or an error for people.

`FUZZ=20000 pytest tests/store/test_spoiled_files.py` tries that many of each kind.
"""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spoiled
from every_document import every_document

from turngap.cli.results import _stored
from turngap.core.errors import InputError, TurngapError
from turngap.scenario.model import parse_scenario
from turngap.store.yaml import load_yaml

EXAMPLES = int(os.environ.get("FUZZ", "10"))

NAMES = (
    *("scenario", "stack", "fleet", "set", "choice", "wav", "flac", "base.json"),
    *("run/run.json", "run/turns.jsonl", "check/check.json", "compare/compare.json"),
    *("turns/turns.json", "simulate/simulation.json", "load/load.json", "load/turns.jsonl"),
)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, spoiled.Target]:
    return spoiled.targets(tmp_path_factory.mktemp("samples"))


@pytest.mark.parametrize("name", NAMES)
def test_a_spoiled_file_is_a_value_or_refused(
    name: str, targets: dict[str, spoiled.Target], tmp_path: Path
) -> None:
    for seed in range(EXAMPLES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            targets[name].read(targets[name].spoiled(random.Random(seed)), folder)
        except TurngapError as e:
            assert e.message
            assert e.exit_code == 2 or e.kind.startswith(("backend.missing", "simulate."))


def test_every_target_is_tried(targets: dict[str, spoiled.Target]) -> None:
    assert set(targets) == set(NAMES)


def test_each_sample_is_good_before_it_is_spoiled(
    targets: dict[str, spoiled.Target], tmp_path: Path
) -> None:
    for number, (name, target) in enumerate(targets.items()):
        if name in ("set", "choice"):  # some are right for one engine alone
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        target.read(target.samples[0], folder)


# What was found


def lines(raw: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    first, _, rest = raw.partition(b"\n")
    whole = json.loads(first if first.endswith(b"}") else raw)
    change(whole)
    return json.dumps(whole).encode() + b"\n" + (rest if first.endswith(b"}") else b"")


FINDS: tuple[tuple[str, str, Callable[[dict[str, Any]], object], str], ...] = (
    ("compare", "compare.json", lambda d: d["backends"][0]["gap_ms"].pop("p95"), "lacks p95"),
    ("simulate", "simulation.json", lambda d: d["loads"][0]["gap_ms"].pop("p99"), "lacks p99"),
    ("simulate", "simulation.json", lambda d: d["loads"][1]["llm_ms"].pop("p50"), "lacks p50"),
    ("simulate", "simulation.json", lambda d: d["loads"][0].update(calls=-5), "greater than 0"),
    (
        *("simulate", "simulation.json"),
        *(lambda d: d["loads"][0].update(part_hours_per_1000=-1), "greater than or equal to 0"),
    ),
    ("simulate", "simulation.json", lambda d: d["workload"]["mean"].clear(), "lacks before_ms"),
    ("turns", "turns.json", lambda d: d["points"][0]["pauses"].pop(), "of different lengths"),
    ("compare", "compare.json", lambda d: d["backends"].pop(), "no backend is called 'two'"),
    ("simulate", "simulation.json", lambda d: d["loads"].clear(), "at least 1 item"),
    ("run", "run.json", lambda d: d.update(budget_ms=1e300), "less than or equal to 3600000"),
    ("run", "turns.jsonl", lambda d: d.update(budget_ms=-800), "greater than 0"),
)


@pytest.mark.parametrize(("kind", "file", "change", "says"), FINDS)
def test_a_document_that_contradicts_itself_is_damaged(
    kind: str, file: str, change: Callable[[dict[str, Any]], Any], says: str, tmp_path: Path
) -> None:
    folder = every_document(tmp_path)[kind]
    spoiled = lines((folder / file).read_bytes(), change)
    (folder / file).write_bytes(spoiled)
    with pytest.raises(InputError, match=says) as excinfo:
        _stored(str(folder), None, all_labelled=False)
    assert excinfo.value.kind == "document.damaged"
    assert file in str(excinfo.value)


def test_a_turn_with_a_stage_below_nothing_is_drawn(tmp_path: Path) -> None:
    folder = every_document(tmp_path)["run"]
    file = folder / "turns.jsonl"

    def change(turn: dict[str, Any]) -> None:
        turn["stages"][1]["ns"] = -(10**12)

    file.write_bytes(lines(file.read_bytes(), change))
    (stored,) = _stored(str(folder), None, all_labelled=False)
    assert stored.blocks(80)


@pytest.mark.parametrize("event", [{}, {"at_ns": "soon"}, {"at_ns": None, "text": 5}])
def test_events_that_lack_what_they_should_hold_are_left_out(
    event: dict[str, Any], targets: dict[str, spoiled.Target], tmp_path: Path
) -> None:
    target = targets["run/turns.jsonl"]

    def change(turn: dict[str, Any]) -> None:
        turn["events"] = [{"event": name, **event} for name in ("AgentText", "AgentSilence")]

    target.read(lines(target.samples[0], change), tmp_path)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "../1.wav", "."])
def test_a_recording_that_no_file_is_named_like_is_left_out(
    name: str, targets: dict[str, spoiled.Target], tmp_path: Path
) -> None:
    target = targets["run/turns.jsonl"]
    target.read(lines(target.samples[0], lambda turn: turn["audio"].update(file=name)), tmp_path)


def test_a_comparison_of_nobody_is_shown(
    targets: dict[str, spoiled.Target], tmp_path: Path
) -> None:
    target = targets["compare/compare.json"]
    empty = {"backends": [], "pairs": [], "chain": [], "crossings": []}
    target.read(lines(target.samples[0], lambda record: record.update(empty)), tmp_path)


def test_a_load_that_took_no_hours_is_left_out_of_the_drawing(
    targets: dict[str, spoiled.Target], tmp_path: Path
) -> None:
    target = targets["simulate/simulation.json"]

    def change(record: dict[str, Any]) -> None:
        record["loads"][0]["part_hours_per_1000"] = 0.0

    target.read(lines(target.samples[0], change), tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "name: &a talk\nturns: &b [*b]\n",
        "name: talk\nabout: 2026-02-31\n",
        "? {a: b}\n: c\n",
        "!!set {a, b}",
        "%YAML 9.9\n---\nname: talk\n",
        "name: !!int x\n",
        "name: !!binary '*'\n",
        '"\\ud800": 1\n',
    ],
)
def test_yaml_that_ruamel_stumbles_on_is_refused(text: str) -> None:
    with pytest.raises(InputError) as excinfo:
        parse_scenario(Path("talk.yaml"), text)
    assert str(excinfo.value).startswith("talk.yaml:")
    str(excinfo.value).encode()


def test_a_file_of_windows_is_read() -> None:
    assert load_yaml("\ufeffname: talk\r\nabout: x\r\n", Path("talk.yaml"), "mine") == {
        "name": "talk",
        "about": "x",
    }
