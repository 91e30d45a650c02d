"""Stacks: what ships loads, what is wrong is refused with its place and what is allowed."""

from pathlib import Path

import pytest

from turngap.agent.stack import Stack, load_stack, override, resolved, stack_files
from turngap.backends import KINDS
from turngap.core.errors import InputError

MINIMAL = """
name = "mine"
[turn]
backend = "vad"
[stt]
backend = "pocketsphinx"
[llm]
backend = "sim"
[tts]
backend = "espeak"
"""


def written(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def refusal(path: str) -> InputError:
    with pytest.raises(InputError) as raised:
        load_stack(path)
    return raised.value


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return load_stack(written(tmp_path, MINIMAL))


# --- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(stack_files()))
def test_every_stack_that_ships_loads_and_its_settings_are_right(name: str) -> None:
    stack = load_stack(name)
    assert stack.name == name
    assert stack.description
    assert [spec.kind for spec, _ in resolved(stack, None)] == list(KINDS)


def test_the_stacks_that_ship() -> None:
    assert {"embedded", "stock"} <= set(stack_files())


def test_a_stack_of_ones_own(stack: Stack) -> None:
    assert [stack.engine(kind).backend for kind in KINDS] == [
        "vad",
        "pocketsphinx",
        "sim",
        "espeak",
    ]
    assert stack.audio.in_sample_rate == 16_000
    assert stack.text.aggregation == "sentence"


def test_an_unknown_name_lists_the_known_ones() -> None:
    error = refusal("embeded")
    assert error.kind == "stack.unknown"
    assert "'embeded'" in error.message
    assert "embedded" in error.hint
    assert "stock" in error.hint


def test_a_file_that_is_not_there_and_one_that_is_a_folder(tmp_path: Path) -> None:
    assert refusal(str(tmp_path / "none.toml")).kind == "stack.unreadable"
    (tmp_path / "folder.toml").mkdir()
    assert refusal(str(tmp_path / "folder.toml")).kind == "stack.unreadable"


@pytest.mark.parametrize("text", ["name = ", "[turn", "a = 1\na = 2", "\x00"])
def test_a_file_that_is_not_toml(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    error = refusal(path)
    assert error.kind == "stack.not_toml"
    assert path in error.message


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"name = '\xff\xfe'")
    assert refusal(str(tmp_path / "mine.toml")).kind == "stack.not_toml"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (MINIMAL.replace("[llm]", "[lm]"), "llm: missing"),
        (MINIMAL.replace("[llm]", "[lm]"), "lm: unknown key"),
        (MINIMAL.replace('name = "mine"', ""), "name: missing"),
        (MINIMAL.replace('backend = "sim"', "ttft_ms = 5"), "llm.backend: missing"),
        (MINIMAL.replace('backend = "sim"', "backend = 5"), "llm.backend: expected"),
        (MINIMAL + "[audio]\nout_chunk_ms = 15", "audio.out_chunk_ms: expected a multiple"),
        (MINIMAL + "[audio]\nout_chunk_ms = 0", "audio.out_chunk_ms: expected greater"),
        (MINIMAL + "[audio]\nin_sample_rate = 44100", "audio.in_sample_rate: expected 8000"),
        (MINIMAL + "[audio]\nrate = 1", "audio.rate: unknown key"),
        (MINIMAL + '[text]\naggregation = "word"', "text.aggregation: expected 'adaptive'"),
        ('llm = "sim"\n' + MINIMAL.replace('[llm]\nbackend = "sim"', ""), "llm: expected"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_place(
    tmp_path: Path, text: str, place: str
) -> None:
    path = written(tmp_path, text)
    error = refusal(path)
    assert error.kind == "stack.invalid"
    assert f"{path}: {place}" in error.message
    assert "tables: audio, text, warm, pipeline, tools, turn, stt, llm, tts" in error.hint


# --- overrides --------------------------------------------------------------------------------


def test_without_overrides_nothing_changes(stack: Stack) -> None:
    assert override(stack, {}, []) == stack
    assert override(stack, {"llm": None, "stt": None}, []) == stack


def test_another_backend_starts_from_its_own_defaults(stack: Stack) -> None:
    tuned = override(stack, {}, ["llm.ttft_ms=80", "tts.voice=klatt"])
    other = override(tuned, {"llm": "echo"}, [])
    assert (other.llm.backend, other.llm.settings) == ("echo", {})
    assert other.tts == tuned.tts


def test_the_same_backend_named_again_keeps_its_settings(stack: Stack) -> None:
    tuned = override(stack, {}, ["llm.ttft_ms=80"])
    assert override(tuned, {"llm": "sim"}, []) == tuned


def test_settings_of_a_replaced_backend_are_set_after_it_was(stack: Stack) -> None:
    other = override(stack, {"llm": "echo"}, ["llm.delay_ms=5"])
    assert other.llm.settings == {"delay_ms": 5}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80", 80),
        ("-1.5", -1.5),
        ("true", True),
        ('"80"', "80"),
        ("[1, 2]", [1, 2]),
        ("word", "word"),
        ("two words", "two words"),
        ("a=b", "a=b"),
        ("en-us+edward", "en-us+edward"),
        ("", ""),
    ],
)
def test_a_value_is_toml_or_else_a_word(stack: Stack, text: str, value: object) -> None:
    assert override(stack, {}, [f"llm.key={text}"]).llm.settings == {"key": value}


def test_tables_that_are_no_engine_are_set_too_and_checked(stack: Stack) -> None:
    changed = override(stack, {}, ["audio.out_chunk_ms=10", "text.aggregation=clause"])
    assert (changed.audio.out_chunk_ms, changed.text.aggregation) == (10, "clause")
    with pytest.raises(InputError, match=r"--set audio\.out_chunk_ms: expected a multiple"):
        override(stack, {}, ["audio.out_chunk_ms=15"])
    with pytest.raises(InputError, match=r"--set audio\.chunk: unknown key"):
        override(stack, {}, ["audio.chunk=10"])


@pytest.mark.parametrize(
    "assignment", ["", "llm", "llm.ttft_ms", "=5", ".x=5", "llm.=5", "name.x=5", "lm.x=5"]
)
def test_an_assignment_that_is_none_is_refused(stack: Stack, assignment: str) -> None:
    with pytest.raises(InputError) as raised:
        override(stack, {}, [assignment])
    assert raised.value.kind == "stack.set"
    assert repr(assignment) in raised.value.message
    assert "llm" in raised.value.hint


# --- resolved against this installation -------------------------------------------------------


def test_an_unknown_backend_lists_the_known_ones(stack: Stack) -> None:
    with pytest.raises(InputError) as raised:
        list(resolved(override(stack, {"tts": "parrot"}, []), None))
    assert raised.value.kind == "backend.unknown"
    assert "no tts backend named 'parrot'" in raised.value.message
    assert "espeak" in raised.value.hint


@pytest.mark.parametrize("assignment", ["llm.ttft=80", "llm.ttft_ms=fast", "llm.backend=sim"])
def test_a_wrong_setting_names_its_backend_and_what_it_allows(
    stack: Stack, assignment: str
) -> None:
    with pytest.raises(InputError) as raised:
        list(resolved(override(stack, {}, [assignment]), None))
    assert raised.value.kind == "backend.settings"
    assert "llm backend 'sim'" in raised.value.message
    assert "ttft_ms" in raised.value.hint


def test_engines_get_the_library_unless_they_name_their_own(stack: Stack, tmp_path: Path) -> None:
    own = tmp_path / "own"
    tuned = override(stack, {}, [f'llm.library="{own}"'])
    libraries = [settings.library for _, settings in resolved(tuned, tmp_path)]
    assert libraries == [tmp_path, tmp_path, own, tmp_path]
