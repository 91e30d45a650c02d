"""A backend as somebody asks for it: one text, read by every flag in the same way."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import SCENARIOS
from hypothesis import given
from hypothesis import strategies as st

from turngap import backends
from turngap.agent.switching import offers_of
from turngap.backends import BackendChoice, BackendSettings, BackendSpec, specs
from turngap.compare.play import ComparePlan
from turngap.core.errors import InputError
from turngap.judge import judge_backend, recogniser_backend
from turngap.play.target import AgentChoice

# --- how it is read ---------------------------------------------------------------------------

RACE = "race,fast_settings={a = 1, b = [2, 3]},full=sim:full"


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("sim", BackendChoice("sim", "sim")),
        (" slow = sim , ttft_ms=400", BackendChoice("slow", "sim", ("ttft_ms=400",))),
        (
            RACE,
            BackendChoice(RACE, "race", ("fast_settings={a = 1, b = [2, 3]}", "full=sim:full")),
        ),
        (
            "race,fast=small, full=sim:full",
            BackendChoice(
                "race,fast=small, full=sim:full", "race", ("fast=small", "full=sim:full")
            ),
        ),
    ],
)
def test_a_backend_is_read_with_its_label_and_settings(text: str, choice: BackendChoice) -> None:
    assert BackendChoice.parse(text) == choice


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("x,a=[0.1,0.4]", {"a": [0.1, 0.4]}),
        ('x,a={b = "c, d", e = [1, [2, 3]]},f=1', {"a": {"b": "c, d", "e": [1, [2, 3]]}, "f": 1}),
        ("x,a=\"one, two\",b='[',c=3", {"a": "one, two", "b": "[", "c": 3}),
        (r'x,a="say \", \\",b=1', {"a": 'say ", \\', "b": 1}),
        # An apostrophe within a word begins no string.
        ("x,a=don't,b=can't", {"a": "don't", "b": "can't"}),
        ("x,base_url=http://[::1]:8000/v1?a=b,model=m", {
            "base_url": "http://[::1]:8000/v1?a=b", "model": "m",
        }),
    ],
)  # fmt: skip
def test_commas_in_brackets_and_quotes_belong_to_the_value(
    text: str, values: dict[str, Any]
) -> None:
    assert BackendChoice.parse(text).values() == values


WORD = st.from_regex(r"[A-Za-z][A-Za-z0-9_:-]{0,11}", fullmatch=True)
# JSON spells these values as TOML does, but for characters that a terminal does not type either.
TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126))
VALUE = st.recursive(st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT, st.lists)


@given(label=st.none() | WORD, backend=WORD, settings=st.dictionaries(WORD, VALUE))
def test_whatever_is_written_is_read_back(
    label: str | None, backend: str, settings: dict[str, Any]
) -> None:
    head = backend if label is None else f"{label}={backend}"
    text = ",".join([head, *(f"{key}={json.dumps(value)}" for key, value in settings.items())])
    choice = BackendChoice.parse(text)
    assert (choice.name, choice.backend) == (text if label is None else label, backend)
    assert choice.values() == settings


# --- every flag reads it so -------------------------------------------------------------------


class Made(BackendSettings):
    prices: tuple[float, ...] = ()
    word: str = ""


def compared(text: str) -> tuple[str, Any]:
    plan = ComparePlan(
        choice=AgentChoice(),
        library=SCENARIOS,
        contenders=[BackendChoice.parse(text), BackendChoice("sim", "sim")],
        scenarios=[],
    )
    stack = plan.targets()[0].stack
    assert stack is not None
    return plan.contenders[0].name, Made(**stack.llm.settings)


def offered(text: str) -> tuple[str, Any]:
    own = backends.find("llm", "sim")
    offers = offers_of((own, own.settings({})), [text], SCENARIOS)
    return offers.names[1], offers.get(offers.names[1]).settings


def judging(text: str) -> tuple[str, Any]:
    asked = judge_backend(text, SCENARIOS)
    return asked.name, asked.settings


def transcribing(text: str) -> tuple[str, Any]:
    asked = recogniser_backend(text, SCENARIOS)
    return asked.name, asked.settings


@pytest.fixture(params=[compared, offered, judging, transcribing])
def read(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tuple[str, Any]]:
    """Parse a text as `--llm`, `--offer`, `--judge` and `--transcribe` do."""
    made = [
        BackendSpec("made", kind, Made, lambda _settings, _clock: None) for kind in ("llm", "stt")
    ]
    known = (*specs(), *made)
    monkeypatch.setattr("turngap.backends.specs", lambda: known)
    return request.param


def test_every_flag_takes_the_same_text(read: Callable[[str], tuple[str, Any]]) -> None:
    name, settings = read("mine=made,prices=[0.1,0.4],word='a, b'")
    assert (name, settings.prices, settings.word) == ("mine", (0.1, 0.4), "a, b")


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("made,word", "backend.unreadable", "'word' is no KEY=VALUE"),
        ("made,", "backend.unreadable", "'' is no KEY=VALUE"),
        ("made,=3", "backend.unreadable", "'=3' is no KEY=VALUE"),
        ("", "backend.unreadable", "'' is no [LABEL=]BACKEND"),
        ("mine=,word=a", "backend.unreadable", "'mine=' is no [LABEL=]BACKEND"),
        ("made,prices=[1,2", "backend.unreadable", "a bracket is not closed"),
        ("nobody", "backend.unknown", "backend named 'nobody'"),
    ],
)
def test_every_flag_refuses_the_same_texts_with_what_was_expected(
    read: Callable[[str], tuple[str, Any]], text: str, kind: str, said: str
) -> None:
    with pytest.raises(InputError) as e:
        read(text)
    assert e.value.kind == kind
    assert said in e.value.message
    assert ("slow=sim,ttft_ms=400" if kind == "backend.unreadable" else "made") in e.value.hint


def test_serve_offers_what_compare_compares(tmp_path: Path) -> None:
    offers = offers_of(
        (own := backends.find("llm", "sim"), own.settings({"library": tmp_path})),
        ["race,fast=small,full=small,fast_price=[0.1,0.4]"],
        tmp_path,
    )
    settings: Any = offers.get("race,fast=small,full=small,fast_price=[0.1,0.4]").settings
    assert (settings.fast, tuple(settings.fast_price)) == ("small", (0.1, 0.4))
