import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from damaged_models import cut_short, spoil
from tokenizers import Tokenizer

from turngap.core.errors import AgentError, ExitCode
from turngap.thoughts import without_thoughts
from turngap_services.llm.small import SmallSettings
from turngap_services.llm.small.model import SmallModel, model_of

SYSTEM = {
    "role": "system",
    "content": "You are on a phone call. Answer in one or two short spoken sentences.",
}
LIGHTS = [SYSTEM, {"role": "user", "content": "turn off the kitchen lights"}]


@pytest.fixture(scope="module")
def student() -> SmallModel:
    return model_of(SmallSettings(model="student"))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The shipped model, to be spoilt."""
    return Path(shutil.copytree(SmallSettings(model="student").directory, tmp_path / "model"))


def said(model: SmallModel, messages: list[dict[str, str]]) -> list[str]:
    pieces: list[str] = []
    model.say(model.prompt(messages), pieces.append, threading.Event())
    return pieces


def test_the_student_answers_piece_by_piece(student: SmallModel) -> None:
    pieces = said(student, LIGHTS)
    assert len(pieces) > 3
    assert "".join(pieces) == "the kitchen lights are off."


def test_what_was_heard_is_written_as_a_recogniser_would(student: SmallModel) -> None:
    plain = student.prompt([{"role": "user", "content": "turn off the kitchen lights"}])
    written = student.prompt([{"role": "user", "content": "Turn off the kitchen lights, please!"}])
    assert written == [*plain[:-2], "▁please", *plain[-2:]]
    assert (plain[0], plain[-2:]) == ("<|user|>", ["<|end|>", "<|assistant|>"])


def test_the_same_conversation_gets_the_same_reply(student: SmallModel) -> None:
    assert said(student, LIGHTS) == said(student, LIGHTS)


def test_a_system_prompt_that_was_read_before_is_not_read_again_and_changes_no_reply() -> None:
    facts = [f"it is {hour} past nine. today: sunny, {hour} degrees." for hour in ("ten", "six")]
    facts += [f"prices: small tea {price} dollars." for price in ("two", "three", "four")]
    systems = [{"role": "system", "content": fact} for fact in facts]
    asked = {"role": "user", "content": "what time is it"}
    kept = SmallModel(SmallSettings(model="student"))
    first = [said(kept, [system, asked]) for system in systems]
    fresh = [said(SmallModel(SmallSettings(model="student")), [s, asked]) for s in systems]
    again = [said(kept, [system, asked]) for system in systems]  # the fifth is read as it comes
    assert first == fresh == again
    assert "ten past nine" in "".join(first[0])
    assert "six past nine" in "".join(first[1])


def test_a_template_that_begins_with_a_user_answers_without_keeping_anything(copied: Path) -> None:
    without_template(copied)
    (copied / "chat_template.jinja").write_text(
        "{% if messages[-1].role != 'user' %}{{ raise_exception('a user comes last') }}{% endif %}"
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
    )
    model = SmallModel(SmallSettings(model=copied))
    assert "".join(said(model, LIGHTS)) == "the kitchen lights are off."


def test_a_temperature_makes_replies_differ_and_a_seed_makes_them_alike() -> None:
    code = (
        "import threading\n"
        "from turngap_services.llm.small.model import SmallModel, SmallSettings\n"
        "model = SmallModel(SmallSettings(temperature=2, seed=5))\n"
        "prompt = model.prompt([{'role': 'user', 'content': 'hello'}])\n"
        "for _ in range(4):\n"
        "    pieces = []\n"
        "    model.say(prompt, pieces.append, threading.Event())\n"
        "    print(''.join(pieces))\n"
    )
    one, two = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert one.stdout == two.stdout
    assert len(set(one.stdout.splitlines())) > 1


def test_max_tokens_ends_a_reply() -> None:
    model = SmallModel(SmallSettings(max_tokens=2))
    reply = model.say(model.prompt(LIGHTS), lambda _: None, threading.Event())
    assert (reply.tokens, reply.finished) == (2, True)


def test_a_reply_stops_with_the_next_token(student: SmallModel) -> None:
    stop, heard = threading.Event(), list[str]()

    def hear(piece: str) -> None:
        heard.append(piece)
        stop.set()

    reply = student.say(student.prompt(LIGHTS), hear, stop)
    assert heard == ["the"]
    assert reply.tokens <= 2
    assert not reply.finished


def test_replies_at_the_same_time_do_not_mix(student: SmallModel) -> None:
    asked = ["turn off the kitchen lights", "set a timer for twelve minutes"] * 8
    replies: dict[int, str] = {}

    def ask(place: int, text: str) -> None:
        replies[place] = "".join(said(student, [SYSTEM, {"role": "user", "content": text}]))

    threads = [threading.Thread(target=ask, args=item) for item in enumerate(asked)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == {
        place: "".join(said(student, [SYSTEM, {"role": "user", "content": text}]))
        for place, text in enumerate(asked)
    }


def test_a_long_conversation_loses_its_oldest_messages_and_keeps_the_system_prompt(
    student: SmallModel,
) -> None:
    talk = [
        {"role": role, "content": f"{role} {number} says something of no great length"}
        for number in range(100)
        for role in ("user", "assistant")
    ]
    last = {"role": "user", "content": "turn off the kitchen lights"}
    prompt = student.prompt([SYSTEM, *talk, last])
    assert len(prompt) + SmallSettings().max_tokens <= student.limit
    alone = student.prompt([SYSTEM, last])
    system = alone.index("<|user|>")
    assert prompt[:system] == alone[:system]
    assert prompt[-len(alone) + system :] == alone[system:]


def test_one_huge_message_is_cut_to_what_can_be_read(student: SmallModel) -> None:
    prompt = student.prompt([{"role": "user", "content": "lights " * 2000}])
    assert len(prompt) + SmallSettings().max_tokens == student.limit
    assert prompt[-1] == "<|assistant|>"


def test_sessions_share_a_model_and_another_library_is_no_reason_for_another_one(
    tmp_path: Path,
) -> None:
    assert model_of(SmallSettings(library=tmp_path)) is model_of(SmallSettings())
    assert model_of(SmallSettings(max_tokens=5)) is not model_of(SmallSettings())


def without_template(directory: Path) -> None:
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["chat_template"]
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (shutil.rmtree, "model.missing", "no model directory at"),
        (spoil("model.bin", None), "model.missing", "has no model.bin"),
        (spoil("tokenizer.json", None), "model.missing", "has no tokenizer.json"),
        (cut_short, "model.damaged", "cannot be loaded"),
        (spoil("config.json", b"{"), "model.damaged", "cannot be loaded"),
        (spoil("tokenizer.json", b"{}"), "model.damaged", "cannot be loaded"),
        (spoil("tokenizer_config.json", b"no"), "model.damaged", "cannot be loaded"),
        (without_template, "model.template", "has no chat template"),
    ],
)
def test_a_model_that_cannot_be_used_is_one_clear_line(
    copied: Path, change: Callable[[Path], None], kind: str, words: str
) -> None:
    change(copied)
    with pytest.raises(AgentError, match=words) as e:
        SmallModel(SmallSettings(model=copied))
    assert e.value.kind == kind
    assert "\n" not in e.value.message
    assert e.value.hint
    assert e.value.exit_code == ExitCode.AGENT_FAILED


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (MemoryError("std::bad_alloc"), "model.memory", "too little memory on this machine"),
        (RuntimeError("CUDA failed with error out of memory"), "cuda.memory", "too little free"),
    ],
)
def test_a_machine_with_too_little_memory_is_not_taken_for_a_damaged_model(
    copied: Path, error: Exception, kind: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SmallModel(SmallSettings(model=copied))

    def full(*_: object, **__: object) -> None:
        raise error

    model._held[:] = [type("Generator", (), {"generate_batch": full})()]
    monkeypatch.setattr("ctranslate2.Generator", full)
    for use in (
        lambda: model.say(["<|user|>"], lambda _: None, threading.Event()),
        lambda: SmallModel(SmallSettings(model=copied)),
    ):
        with pytest.raises(AgentError, match=words) as e:
            use()
        assert (e.value.kind, e.value.exit_code) == (kind, ExitCode.AGENT_FAILED)
        assert "smaller model" in e.value.hint


def test_a_template_of_its_own_file_is_used(copied: Path) -> None:
    without_template(copied)
    (copied / "chat_template.jinja").write_text(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    )
    prompt = SmallModel(SmallSettings(model=copied)).prompt([{"role": "user", "content": "hello"}])
    assert prompt == ["<|user|>", "▁hello", "<|end|>"]


@pytest.mark.parametrize(
    ("behind", "begins"),
    [
        ("<think>\n", True),
        ("{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}", False),
        ("{% if enable_thinking is not defined %}<think>{% endif %}", False),
        ("{{ raise_exception('no') }}", False),
    ],
)
def test_reasoning_is_off_where_the_template_has_the_switch_and_known_where_it_begins(
    copied: Path, behind: str, begins: bool
) -> None:
    without_template(copied)
    (copied / "chat_template.jinja").write_text(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}" + behind
    )
    assert SmallModel(SmallSettings(model=copied)).begins_in_thought is begins


def test_the_marks_of_a_thought_are_shown_though_they_are_special_tokens(copied: Path) -> None:
    file = copied / "tokenizer.json"
    text = file.read_text(encoding="utf-8")
    for token, mark in (("<|system|>", "[THINK]"), ("<|user|>", "[/THINK]")):
        text = text.replace(token, mark)
    file.write_text(text, encoding="utf-8")
    tokens = Tokenizer.from_str(text)
    ids = tokens.encode("[THINK]light[/THINK]hello<|assistant|><|end|>", add_special_tokens=False)

    class Generator:
        def generate_batch(self, *_: object, callback: Any, **__: object) -> None:
            for number in ids.ids:
                callback(SimpleNamespace(token_id=number))

    model = SmallModel(SmallSettings(model=copied))
    model._held[:] = [Generator()]  # pyright: ignore[reportPrivateUsage]
    heard: list[str] = []
    model.say(["hello"], heard.append, threading.Event())
    assert "".join(heard).replace(" ", "") == "[THINK]light[/THINK]hello"
    assert without_thoughts("".join(heard)) == "hello"


def test_a_template_that_refuses_the_conversation_is_an_error_of_the_agent(copied: Path) -> None:
    without_template(copied)
    (copied / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(AgentError, match="roles must alternate"):
        SmallModel(SmallSettings(model=copied)).prompt(LIGHTS)


def test_a_process_that_used_it_ends_cleanly() -> None:
    # CTranslate2 aborts where its threads are left to the interpreter's last collection.
    code = (
        "from turngap_services.llm.small import SPEC\n"
        "from turngap_services.llm.small.model import model_of\n"
        "SPEC.prepare(SPEC.settings({}))\n"
        "ring = [model_of(SPEC.settings({}))]\n"
        "ring.append(ring)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "terminate" in done.stderr) == (0, False)
