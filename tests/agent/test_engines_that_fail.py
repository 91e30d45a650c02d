"""An engine that stalls, dies, refuses or does not stop costs its turn, and no other one.

Whole conversations of three turns with the stacks that ship, in virtual time. In the second turn an
engine does what the table says.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import pytest
from failing_engines import AFTER_A_TOOL, Cast, Fate, Fates, assembly_of, parts, talk_to

from turngap.agent import watchdogs
from turngap.backends import ConfiguredBackend
from turngap.core.tracked import TrackedTurn
from turngap_services.llm import combine
from turngap_services.llm.combine import SPECS as COMBINED

KINDS = ("stt", "llm", "tts")
# What fails turn after turn, below, is not repeated here; and the other stack hears, asks and
# speaks in the same way but for where its VAD stands, which only a stall tells.
AGAIN: tuple[Fate, ...] = ("stalls", "refuses")
FATES = [
    (kind, fate, "embedded")
    for kind in KINDS
    for fate in get_args(Fate)
    if fate not in (*AGAIN, "is_slow") and (kind == "llm" or fate not in AFTER_A_TOOL)
] + [(kind, "stalls", "stock") for kind in KINDS]

# What the turn says, beside the name of the engine's kind.
SAID: dict[tuple[str, Fate], str] = {
    ("stt", "stalls"): "no ",
    ("stt", "stalls_midway"): "no result for 3 s",
    ("stt", "dies"): "its server has gone",
    ("stt", "dies_midway"): "its server has gone",
    ("stt", "babbles"): "interim transcripts, but no final one",
    ("stt", "says_nothing"): "no transcript of",
    ("llm", "stalls"): "no token for 10 s",
    ("llm", "stalls_midway"): "no token for 1 s after 4 tokens",
    ("llm", "dies"): "its server has gone",
    ("llm", "dies_midway"): "its server has gone",
    ("llm", "stalls_after_a_tool"): "no token for 10 s",
    ("llm", "babbles"): "the reply has no end",
    ("llm", "babbles_after_a_tool"): "the reply has no end",
    ("llm", "says_nothing"): "the reply is empty",
    ("tts", "stalls"): "completed with no audio",
    ("tts", "stalls_midway"): "no audio for 1 s after 0.2 s of it",
    ("tts", "dies"): "its server has gone",
    ("tts", "dies_midway"): "its server has gone",
    ("tts", "babbles"): "the audio has no end",
    ("tts", "says_nothing"): "completed with no audio",
    ("tts", "makes_no_sense"): "no PCM16",
}
REFUSALS: dict[Fate, str] = {"refuses": "401", "is_busy": "429"}
# Whoever has nothing to say has not failed.
SILENT: set[tuple[str, Fate]] = {("stt", "says_nothing"), ("llm", "says_nothing")}
# Text that makes no sense is made harmless, and then is as good as any.
UNHARMED: set[tuple[str, Fate]] = {("stt", "makes_no_sense"), ("llm", "makes_no_sense")}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no end is as endless after less, and sooner heard out."""
    monkeypatch.setattr(watchdogs, "MOST_REPLY_CHARS", 300)
    monkeypatch.setattr(watchdogs, "LEAST_VOICE_MS", 2000.0)
    monkeypatch.setattr(watchdogs, "VOICE_MS_A_CHAR", 10.0)


def cast(kind: str, fates: Fates) -> Cast:
    return Cast(**{"stt": {}, "llm": {}, "tts": {}, kind: fates})


def check(turns: list[TrackedTurn], kind: str, said: str) -> None:
    """See that the second turn names the engine, and the others are answered."""
    first, second, third = turns
    for turn in (first, third):
        assert (turn.outcome, turn.error) in (("answered", None), ("late", None))
    assert "answer number 3" in third.reply or "answer number 4" in third.reply
    assert second.outcome == "error"
    assert second.error is not None
    assert second.error.startswith(f"{kind}: ")
    assert said in second.error


@pytest.mark.parametrize(("kind", "fate", "stack"), FATES)
def test_the_turn_names_the_engine_and_the_next_is_answered(
    kind: str, fate: Fate, stack: str
) -> None:
    turns = talk_to(assembly_of(stack, cast(kind, {2: fate})))
    if (kind, fate) in UNHARMED:
        assert [(t.outcome, t.error) for t in turns] == [("answered", None)] * 3
        assert turns[1].reply.isprintable()
        return
    said = SAID.get((kind, fate), REFUSALS.get(fate, ""))
    if (kind, fate) in SILENT:
        assert [(t.outcome, t.error) for t in turns] == [
            ("answered", None),
            ("no_reply", None),
            ("answered", None),
        ]
        assert f": {kind}: {said}" in str(turns[1].why_no_gap)
        return
    check(turns, kind, said)


def test_a_recogniser_that_is_slow_is_waited_for() -> None:
    """It took longer than it may before it is called late, and the caller heard the answer."""
    turns = talk_to(assembly_of("embedded", cast("stt", {2: "is_slow"})))
    assert [t.outcome for t in turns] == ["answered", "late", "answered"]
    assert [t.error for t in turns] == [None] * 3
    assert turns[1].reply.startswith("Number 2")


@pytest.mark.parametrize(
    ("kind", "fate", "said"),
    [
        ("tts", "says_nothing", "completed with no audio"),
        ("llm", "is_busy", "429"),
        ("stt", "dies", "its server has gone"),
    ],
)
def test_without_marks_the_same_turn_is_an_error(kind: str, fate: Fate, said: str) -> None:
    """The agent tells in RTVI's `error` then, which names no engine."""
    agent = assembly_of("stock", cast(kind, {2: fate}))
    first, second, third = talk_to(replace(agent, traced=False))
    assert (first.outcome, second.outcome, third.outcome) == ("answered", "error", "answered")
    assert said in str(second.error)
    assert (first.error, third.error, second.agent_turns) == (None, None, ())


def test_a_turn_taker_that_raises_is_named() -> None:
    turns = talk_to(assembly_of("embedded", Cast(turn=frozenset({2}))))
    check(turns, "turn", "a turn that is no turn")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fate", AGAIN)
def test_an_engine_that_fails_turn_after_turn_is_asked_again_each_time(
    kind: str, fate: Fate
) -> None:
    """pipecat gives up a service whose key was refused, and a voice that was silent three times."""
    first, second, third = talk_to(assembly_of("embedded", cast(kind, {1: fate, 2: fate})))
    assert first.outcome == second.outcome == "error"
    for turn in (first, second):
        assert str(turn.error).startswith(f"{kind}: ")
        assert SAID.get((kind, fate), REFUSALS.get(fate, "")) in str(turn.error)
    assert (third.outcome, third.error) == ("answered", None)


# --- an LLM made of others ------------------------------------------------------------------------

PAIR = {"fast": "fast", "full": "full"}
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "race": PAIR,
    "route": PAIR,
    "opener": PAIR,
    "best-of": {"candidates": ("full", "fast")},
}


def combined(
    name: str, fates: Mapping[str, Fates], monkeypatch: pytest.MonkeyPatch
) -> ConfiguredBackend:
    monkeypatch.setattr(combine, "find", parts(fates))
    spec = next(spec for spec in COMBINED if spec.name == name)
    return ConfiguredBackend(name, spec, spec.settings(dict(SETTINGS[name])))


@pytest.mark.parametrize(
    ("name", "fate"),
    [
        *((name, "stalls") for name in SETTINGS),
        ("race", "stalls_midway"),
        ("opener", "stalls_midway"),
        ("route", "dies"),
        ("best-of", "dies"),
    ],
)
def test_a_combined_model_whose_parts_all_fail_is_named(
    name: str, fate: Fate, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = combined(name, {"fast": {2: fate}, "full": {2: fate}}, monkeypatch)
    check(talk_to(assembly_of("embedded", Cast(), llms=[llm])), "llm", "")


@pytest.mark.parametrize(
    ("name", "fate", "part"),
    [
        *((name, "stalls", "full") for name in SETTINGS),
        *((name, "dies", "fast") for name in SETTINGS),
    ],
)
def test_a_combined_model_with_one_part_that_fails_goes_on(
    name: str, fate: Fate, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fates: dict[str, Fates] = {"fast": {}, "full": {}, part: {2: fate}}
    turns = talk_to(assembly_of("embedded", Cast(), llms=[combined(name, fates, monkeypatch)]))
    assert [t.outcome for t in turns] in (["answered"] * 3, ["answered", "late", "answered"])
    assert [t.error for t in turns] == [None] * 3
