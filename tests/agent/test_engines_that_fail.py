"""An engine that stalls, dies, refuses or does not stop costs its turn, and no other one.

Whole conversations with the stacks that ship, in virtual time. In each turn but the first and the
last an engine does what the table says.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from failing_engines import Cast, Fate, Fates, assembly_of, parts, talk_to

from turngap.agent import watchdogs
from turngap.backends import ConfiguredBackend
from turngap.caller.conversation import Patience
from turngap.core.events import TrackedTurn
from turngap_services.llm import combine
from turngap_services.llm.combine import SPECS as COMBINED

KINDS = ("stt", "llm", "tts")
# No two that say the same follow each other, but for the two that refuse: pipecat gives up a
# service whose key was refused, and a voice that was silent three times.
FATES: dict[str, tuple[Fate, ...]] = {
    "stt": (
        *("refuses", "refuses", "stalls", "dies", "stalls_midway", "dies_midway", "is_busy"),
        *("babbles", "makes_no_sense", "says_nothing", "is_slow"),
    ),
    "llm": (
        *("refuses", "refuses", "stalls", "dies", "stalls_midway", "dies_midway", "babbles"),
        *("stalls_after_a_tool", "babbles_after_a_tool", "is_busy", "says_nothing"),
        "makes_no_sense",
    ),
    "tts": (
        *("refuses", "refuses", "stalls", "dies", "says_nothing", "stalls_midway"),
        *("dies_midway", "babbles", "is_busy", "makes_no_sense"),
    ),
}

# What the turn says, beside the name of the engine's kind.
SAID: dict[tuple[str, Fate], str] = {
    ("stt", "stalls"): "no ",
    ("stt", "stalls_midway"): "no result for 3 s",
    ("stt", "dies"): "its server has gone",
    ("stt", "dies_midway"): "its server has gone",
    ("stt", "babbles"): "interim transcripts, but no final one",
    ("stt", "says_nothing"): "no transcript of",
    ("llm", "stalls"): "no token for 3 s",
    ("llm", "stalls_midway"): "no token for 1 s after 4 tokens",
    ("llm", "dies"): "its server has gone",
    ("llm", "dies_midway"): "its server has gone",
    ("llm", "stalls_after_a_tool"): "no token for 3 s",
    ("llm", "babbles"): "the reply has no end",
    ("llm", "babbles_after_a_tool"): "the reply has no end",
    ("llm", "says_nothing"): "the reply is empty",
    ("tts", "stalls"): "completed with no audio",
    ("tts", "stalls_midway"): "no audio for 1 s after 0.2 s of it",
    ("tts", "dies"): "its server has gone",
    ("tts", "dies_midway"): "its server has gone",
    ("tts", "babbles"): "the audio has no end",
    ("tts", "says_nothing"): "completed with no audio",
    ("tts", "makes_no_sense"): "not PCM16",
}
REFUSALS: dict[Fate, str] = {
    "refuses": "401: key refused (put the right key in its environment variable",
    "is_busy": "429: too many requests (too many requests in a short time: wait",
}
# For the table: with the limits that ship, each turn that fails is waited for twice as long.
SOON = ("pipeline.first_token_ms=3000",)
IMPATIENT = Patience(no_reply_ms=4000, late_ms=1000)
# Whoever has nothing to say has not failed.
SILENT: set[tuple[str, Fate]] = {("stt", "says_nothing"), ("llm", "says_nothing")}
# Text that makes no sense is made harmless, and then is as good as any.
UNHARMED: set[tuple[str, Fate]] = {("stt", "makes_no_sense"), ("llm", "makes_no_sense")}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits: an endless thing is as endless after less, and sooner heard out."""
    monkeypatch.setattr(watchdogs, "MOST_REPLY_CHARS", 300)
    monkeypatch.setattr(watchdogs, "LEAST_VOICE_MS", 2000.0)
    monkeypatch.setattr(watchdogs, "VOICE_MS_A_CHAR", 10.0)


def cast(kind: str, fates: Fates) -> Cast:
    return Cast(**{"stt": {}, "llm": {}, "tts": {}, kind: fates})


def check(turn: TrackedTurn, kind: str, said: str) -> None:
    assert turn.outcome == "error"
    assert str(turn.error).startswith(f"{kind}: ")
    assert said in str(turn.error)


def is_answered(turn: TrackedTurn, number: int) -> bool:
    at = turn.reply.endswith(f"This is answer number {number}, and it is here.")
    return at and (turn.outcome, turn.error) in (("answered", None), ("late", None))


@pytest.mark.parametrize("kind", KINDS)
def test_each_turn_names_what_the_engine_did_and_the_last_is_answered(kind: str) -> None:
    fates = FATES[kind]
    agent = assembly_of("embedded", cast(kind, dict(enumerate(fates, start=2))), sets=SOON)
    patience = None if kind == "stt" else IMPATIENT  # one that is slow is heard after 5 s, too
    first, *turns, last = talk_to(agent, len(fates) + 2, patience)
    for turn, fate in zip(turns, fates, strict=True):
        said = SAID.get((kind, fate), REFUSALS.get(fate, ""))
        if (kind, fate) in UNHARMED:
            assert (turn.outcome, turn.error) == ("answered", None)
            assert turn.reply.isprintable()
        elif (kind, fate) in SILENT:
            assert (turn.outcome, turn.error) == ("no_reply", None)
            assert f": {kind}: {said}" in str(turn.why_no_gap)
        elif fate == "is_slow":  # longer than it may before it is called late, and it is heard
            assert (turn.outcome, turn.error) == ("late", None)
            assert turn.reply.startswith("Number ")
        else:
            check(turn, kind, said)
            if fate == "dies_midway" and kind == "llm":  # what there is of the reply was heard
                assert turn.gap_ns is not None
                assert turn.reply.startswith("Number ")
    assert is_answered(first, 1)
    assert last.error is None
    assert last.reply.startswith("Number ")


def test_with_the_vad_in_the_transport_each_stall_is_named() -> None:
    """The other stack hears, asks and speaks in the same way but for where its VAD stands.

    Here the limits are those that ship.
    """
    fates = Cast(tts={2: "stalls"}, llm={4: "stalls"}, stt={6: "stalls"})
    turns = talk_to(assembly_of("stock", fates), 7)
    said = {"tts": "completed with no audio", "llm": "no token for 10 s", "stt": "no "}
    for kind, turn in zip(said, turns[1::2], strict=True):
        check(turn, kind, said[kind])
    assert [turn.error for turn in turns[::2]] == [None] * 4


def test_without_marks_the_same_turns_are_errors() -> None:
    """The agent tells in RTVI's `error` then, which names no engine."""
    fates = Cast(tts={2: "says_nothing"}, llm={4: "is_busy"}, stt={6: "dies"})
    turns = talk_to(replace(assembly_of("stock", fates), traced=False), 7)
    assert [turn.outcome for turn in turns] == ["answered", *["error", "answered"] * 3]
    for turn, said in zip(turns[1::2], ("with no audio", "429", "server has gone"), strict=True):
        assert said in str(turn.error)
        assert turn.agent_turns == ()
    assert [turn.error for turn in turns[::2]] == [None] * 4


def test_a_turn_taker_that_raises_is_named() -> None:
    first, second, third = talk_to(assembly_of("embedded", Cast(turn=frozenset({2}))))
    check(second, "turn", "a turn that is no turn")
    assert is_answered(first, 1)
    assert is_answered(third, 3)


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


@pytest.mark.parametrize("name", SETTINGS)
def test_a_combined_model_goes_on_with_one_part_and_is_named_where_all_fail(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both: Fates = {4: "stalls", 6: "dies", 7: "stalls_midway"}
    parts: dict[str, Fates] = {"full": {2: "stalls", **both}, "fast": {3: "dies", **both}}
    llm = combined(name, parts, monkeypatch)
    turns = talk_to(assembly_of("embedded", Cast(), llms=[llm]), 8)
    for turn in (turns[n - 1] for n in both):
        check(turn, "llm", "")
    for turn in (turns[n - 1] for n in (1, 2, 3, 5, 8)):
        assert (turn.outcome, turn.error) in (("answered", None), ("late", None))
