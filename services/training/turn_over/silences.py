"""Features of the silences of a take, while they last, to fit on and to judge by."""

from collections.abc import Iterator
from dataclasses import dataclass

from training.turn_over.hearing import PACKET, Hearing, asked_at
from training.turn_over.takes import RATE, Take
from turngap_services.turn.over import Evidence, words_of
from turngap_services.turn.voice import Voice

# When a silence is looked at, by its length in ms: mostly about when turns end.
LOOKS_MS = (100, 150, 200, 300, 450, 700, 1000, 1500)
ANSWERED_MS = 120  # by smart turn


@dataclass(frozen=True, slots=True)
class Look:
    """One look into a silence.

    Attributes:
        of: the take's voice.
        is_over: whether the turn is over.
        ms: how long the silence has lasted.
    """

    of: str
    take: str
    is_over: bool
    ms: float
    evidence: Evidence


def looks_into(take: Take, hearing: Hearing) -> Iterator[Look]:
    """Yield looks into the silences of a take: those within its turn, and the one after it."""
    heard = hearing.hear(take)
    judged = iter(heard.speech)
    voice = Voice(RATE, (lambda _: next(judged),) * 2, 0.5)
    text, read_ms = "", 0.0
    silence, complete = -1, None
    due = list(LOOKS_MS)
    for packet, at in enumerate(range(0, len(take.pcm) - PACKET + 1, PACKET)):
        voice.feed(take.pcm[at : at + PACKET])
        now_ms = (at + PACKET) * 1000 / RATE
        if packet in heard.read:
            text, read_ms = heard.read[packet], now_ms
        last = voice.last_audible
        if last is None:
            continue
        if last != silence:
            silence, complete, due = last, None, list(LOOKS_MS)
        ms = now_ms - last * 1000 / RATE
        if ms >= ANSWERED_MS and complete is None:
            complete = hearing.complete(take, heard, asked_at(last))
        while due and ms >= due[0]:
            due.pop(0)
            yield Look(
                take.voice,
                take.name,
                # An end is found to a margin, either way.
                last * 1000 / RATE > take.end_ms - 150 and now_ms > take.end_ms,
                ms,
                Evidence(tuple(words_of(text)), now_ms - read_ms, voice.melody(), complete),
            )
