"""Whatever stands where a file is named: a line and exit code 2, and nothing that hangs."""

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from commandline import turngap_here

Capsys = pytest.CaptureFixture[str]

# Where a command takes a file, with FILE for its name; and the name that such a file has.
COMMANDS = {
    "report": (["report", "FILE"], "run"),
    "report of a run": (["report", "FILE"], "run/run.json"),
    "report of turns": (["report", "FILE"], "run/turns.jsonl"),
    "report of a check": (["report", "FILE"], "check/check.json"),
    "report of a comparison": (["report", "FILE"], "compare/compare.json"),
    "report of a curve": (["report", "FILE"], "turns/turns.json"),
    "report of a simulation": (["report", "FILE"], "simulate/simulation.json"),
    "judge": (["judge", "FILE", "--transcribe", "pocketsphinx"], "run/run.json"),
    "label": (["label", "FILE"], "talk.yaml"),
    "replay": (["replay", "FILE"], "talk.yaml"),
    "replay with a stack": (["replay", "--agent", "FILE"], "mine.toml"),
    "check with a baseline": (["check", "quick-questions", "--baseline", "FILE"], "base.json"),
    "check against a stack": (["check", "quick-questions", "--against", "FILE"], "mine.toml"),
    "simulate a fleet": (["simulate", "FILE", "--from", "latest"], "fleet.toml"),
    "simulate a YAML fleet": (["simulate", "FILE", "--from", "latest"], "fleet.yaml"),
    "simulate from a run": (["simulate", "--from", "FILE"], "run/run.json"),
    "compare": (["compare", "--agent", "FILE", "--llm", "sim", "--llm", "small"], "mine.toml"),
    "turns": (["turns", "FILE"], "talk.yaml"),
    "serve": (["serve", "--port", "0", "--agent", "FILE"], "mine.toml"),
    "talk": (["talk", "--agent", "FILE"], "mine.toml"),
    "scenarios": (["scenarios", "FILE"], "talk.yaml"),
}
# One for each of the readers that they share.
READERS = (
    *("report of a run", "label", "replay with a stack", "check with a baseline"),
    *("simulate a fleet", "simulate a YAML fleet"),
)

DEEP = b"[" * 100_000
BYTES = {
    "empty": b"",
    "binary": bytes(range(256)) * 40,
    "a NUL": b"\0",
    "UTF-16": "name: talk\n".encode("utf-16"),
    "a BOM and nothing": b"\xef\xbb\xbf",
    "deep lists": DEEP,
    "deep JSON": b'{"schema_version": 1, "settings": ' + b'{"a": ' * 100_000,
    "deep whole JSON": b'{"schema_version": 1, "settings": ' + DEEP + b"]" * 100_000 + b"}",
    "deep TOML": b"name = " + DEEP,
    "a huge number in JSON": b'{"schema_version": ' + b"1" * 5000 + b"}",
    "a huge number in YAML or TOML": b"name: " + b"1" * 5000 + b"\n",
    "a huge number in TOML": b"name = " + b"1" * 5000 + b"\n",
    "NaN": b'{"schema_version": NaN}',
    "a null": b"null",
    "a list": b"[]",
    "a text": b'"x"',
    "carriage returns": b"\r\n\r\n",
    "keys twice": b"name: talk\nname: talk\n",
    "an escape sequence": b"\x1b]0;owned\x07: 1\n",
}


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_loop(path: Path) -> None:
    path.symlink_to(path.name)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_folder(path: Path) -> None:
    path.mkdir()


def sparse(path: Path) -> None:
    with path.open("wb") as opened:
        opened.truncate(2**40)


THINGS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a pipe": a_pipe,
    "a loop": a_loop,
    "a device": a_device,
    "a folder": a_folder,
    "a TiB of nothing": sparse,
}


def writes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def refused(
    command: str, things: Mapping[str, Callable[[Path], object]], folder: Path, capsys: Capsys
) -> None:
    """Check that each is bad input, told in a few lines that name the file."""
    arguments, name = COMMANDS[command]
    wrong: list[str] = []
    for number, (thing, make) in enumerate(things.items()):
        file = folder / str(number) / name
        file.parent.mkdir(parents=True)
        make(file)
        done = turngap_here(capsys, *(str(file) if a == "FILE" else a for a in arguments))
        said = done.err
        # An empty TOML file is a fleet of defaults; what is missing then is the run.
        named = str(folder) in said or said.startswith("error: no run in runs")
        told = named and "Traceback" not in said and "itself failed" not in said
        if done.code != 2 or done.out or not told or "\x1b" in said or len(said) > 3000:
            wrong.append(f"{thing}: exit {done.code}\n{done.out[-300:]}{said[-700:]}")
    assert not wrong, "\n".join(wrong)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_file_is_bad_input(command: str, tmp_path: Path, capsys: Capsys) -> None:
    refused(command, THINGS, tmp_path, capsys)


@pytest.mark.parametrize("command", READERS)
def test_what_is_no_such_document_is_bad_input(
    command: str, tmp_path: Path, capsys: Capsys
) -> None:
    refused(command, {n: writes(content) for n, content in BYTES.items()}, tmp_path, capsys)


@pytest.mark.parametrize("command", ["report", "label", "replay with a stack"])
@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "half \udcff", "\x1b]0;owned\x07"])
def test_a_name_that_no_file_has_is_bad_input(command: str, name: str, capsys: Capsys) -> None:
    arguments, usual = COMMANDS[command]
    given = name + Path(usual).suffix
    done = turngap_here(capsys, *(given if a == "FILE" else a for a in arguments))
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert "\x1b" not in done.err


@pytest.mark.parametrize("command", ["report of a run", "label", "replay with a stack"])
def test_a_file_that_may_not_be_read_is_bad_input(
    command: str, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def forbidden(path: Path, *arguments: int) -> int:
        if str(path).startswith(str(tmp_path)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, *arguments)

    monkeypatch.setattr("turngap.store.files.os.open", forbidden)
    refused(command, {"forbidden": writes(b"")}, tmp_path, capsys)
