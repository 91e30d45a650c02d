"""benchmarks/real_engines.py: what it plays, and what it refuses."""

import sys
from pathlib import Path

import pytest
import real_engines
from real_engines import NAMES, contenders, served

from turngap.backends import find
from turngap.core.errors import InputError

URLS = {"vllm": "http://127.0.0.1:1/v1", "low-batch": "http://127.0.0.1:2/v1"}


def test_every_backend_is_real_and_takes_its_settings() -> None:
    found = contenders(NAMES, URLS)
    assert [c.name for c in found] == list(NAMES)
    for contender in found:
        spec = find("llm", contender.backend)
        assert not spec.scripted(spec.settings(contender.values()))


def test_teacher_and_student_are_two_models_and_the_servers_two_servers() -> None:
    teacher, student, shared, low = contenders(NAMES[:4], URLS)
    assert teacher.values() != student.values()
    assert shared.values()["base_url"] != low.values()["base_url"]


@pytest.mark.parametrize(
    ("names", "why"), [(["sim"], "no backend 'sim'"), (["vllm"], "vllm needs a server")]
)
def test_others_are_refused(names: list[str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        contenders(names, {})


def test_without_vllm_no_server_is_started() -> None:
    with served(None, 4) as urls:
        assert urls == {}


def test_a_folder_that_is_no_such_library_is_refused_with_the_command_that_makes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["real_engines.py", str(tmp_path)])
    with pytest.raises(SystemExit) as e:
        real_engines.main()
    assert e.value.code == 2
    assert "benchmarks/held_out_talk.py" in capsys.readouterr().err
