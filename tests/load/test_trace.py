"""Recorded instants: what a file may hold, and what is said of one that may not."""

from pathlib import Path

import pytest

from turngap.core.errors import InputError
from turngap.load import trace
from turngap.load.trace import read_trace


def written(folder: Path, text: str | bytes) -> Path:
    file = folder / "calls.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@pytest.mark.parametrize(
    ("text", "instants"),
    [
        ("0\n1.5\n1.5\n20\n", (0.0, 1.5, 1.5, 20.0)),
        ("at_s,caller\n0.25,anna\n3,ben\n", (0.25, 3.0)),
        ("# from Tuesday\n\n 7 \r\n8\r\n", (7.0, 8.0)),
        ("\ufeff0\n2", (0.0, 2.0)),
        ('"seconds"\n"1"\n', (1.0,)),
    ],
)
def test_a_number_of_seconds_in_each_line(
    tmp_path: Path, text: str, instants: tuple[float, ...]
) -> None:
    assert read_trace(written(tmp_path, text)) == instants


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0\nsoon\n", "calls.csv:2: 'soon' is no number of seconds"),
        ("when\n0\n", "calls.csv:1: 'when' is no number of seconds"),
        ("0\n,5\n", "calls.csv:2: '' is no number of seconds"),
        ("0\nnan\n", "calls.csv:2: 'nan' is no number of seconds"),
        ("0\ninf\n", "calls.csv:2: 'inf' is no number of seconds"),
        ("-1\n", "calls.csv:1: -1 s: expected 0 to 86400 s"),
        ("0\n1700000000\n", "calls.csv:2: 1.7e+09 s: expected 0 to 86400 s"),
        ("5\n4\n", "calls.csv:2: 4 s comes after 5 s: the instants must be in order"),
        ("", "calls.csv: there is no call in it"),
        ("# nothing\n", "calls.csv: there is no call in it"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_trace(written(tmp_path, text))
    assert refused.value.kind == "load.trace"
    assert refused.value.message.endswith(said)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a text file"):
        read_trace(written(tmp_path, b"\xff\xfe0\n"))
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")


def test_a_trace_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_CALLS", 3)
    assert len(read_trace(written(tmp_path, "1\n" * 3))) == 3
    with pytest.raises(InputError, match=r"calls\.csv:4: more than 3 calls"):
        read_trace(written(tmp_path, "1\n" * 4))
    monkeypatch.setattr(trace, "MOST_BYTES", 3)
    with pytest.raises(InputError, match="larger than"):
        read_trace(written(tmp_path, "1\n1\n"))
