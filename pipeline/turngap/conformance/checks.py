"""The checks that hold for every dialect: pure functions of what one conversation showed."""

from collections.abc import Callable
from itertools import pairwise
from math import inf
from statistics import median

import numpy as np

from turngap.caller.ear import SPEECH_GAP_MS
from turngap.caller.said import (
    AudioBytes,
    Fault,
    Flush,
    Ready,
    ReplyDone,
    ReplyText,
    Transcript,
)
from turngap.conformance import phones
from turngap.conformance.evidence import Check, Evidence, ns_of, troubles
from turngap.conformance.messages import sends_known_messages
from turngap.conformance.realtime import realtime_checks
from turngap.core.audio import Pcm, audible_onset, window_samples
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.untrusted import printable

# An agent that is still heard this long after the person has begun to speak into its reply goes on
# talking. The whole agents of published comparisons yield within 0.4 to 1.5 s.
YIELD_MS = 2000.0
# Audio that is louder than silence on both sides of a hole, within this much of it, was torn apart.
EDGE_MS = 20.0
# Audio that is this much ahead of its playing was not sent in real time: pipecat is two chunks of
# 40 ms ahead.
AHEAD_MS = 200.0
# What was on its way when the caller said goodbye may still arrive.
ON_ITS_WAY_MS = 200.0
# The person of soup-recipe speaks 1.5 s into the first reply, for 1.4 s.
REPLY_S = 3.0
# Of what was seen in several messages, so many are quoted.
QUOTED = 3


def judged(evidence: Evidence, dialect: str) -> list[Check]:
    """Return every check: those of all dialects in the order of a conversation, then its own."""
    checks = [check(evidence) for check in _CHECKS]
    own = _OWN.get(dialect)
    added = own(evidence, dialect) if own else []
    return [*checks, sends_known_messages(evidence, dialect), *added]


# What a dialect asks beyond that.
_OWN: dict[str, Callable[[Evidence, str], list[Check]]] = {
    **dict.fromkeys(phones.NAMES, phones.phone_checks),
    "openai-realtime": realtime_checks,
}


# The opening


def _ready(evidence: Evidence) -> Check:
    name = "says once that it is ready"
    ready = evidence.said(Ready)
    if not ready:
        return Check(name, "not seen", "the dialect has no word for it")
    after = f"{_since(evidence.log.opened_ns, ready[0][0])} after the WebSocket was open"
    if len(ready) > 1:
        return Check(name, "fail", f"{len(ready)} times; first {after}")
    return Check(name, "pass", after)


def _waits_for_ready(evidence: Evidence) -> Check:
    name = "sends audio only once it is ready"
    ready, chunks = evidence.said(Ready), evidence.chunks()
    if not ready or not chunks:
        return Check(name, "not seen", "no audio" if ready else "the dialect has no word for it")
    words = evidence.words()
    first = next(i for i, (_, word) in enumerate(words) if isinstance(word, Ready))
    early = [at for at, word in words[:first] if isinstance(word, AudioBytes)]
    if early:
        before = _since(early[0], ready[0][0])
        return Check(name, "fail", f"chunks before it: {len(early)}, the first {before}")
    return Check(name, "pass", f"first audio {_since(ready[0][0], chunks[0][0])} after it")


# Its audio


def _one_rate(evidence: Evidence) -> Check:
    name = "keeps to one rate"
    rates = dict.fromkeys(chunk.rate for _, chunk in evidence.chunks())
    if not rates:
        return Check(name, "not seen", "no audio")
    seen = ", ".join(f"{rate:,} Hz" for rate in rates)
    return Check(name, "pass" if len(rates) == 1 else "fail", seen)


def _chunks(evidence: Evidence) -> Check:
    name = "sends whole samples in every chunk"
    chunks = [chunk for _, chunk in evidence.chunks()]
    if not chunks:
        return Check(name, "not seen", "no audio")
    sizes = [ns_to_ms(ns_of(chunk)) for chunk in chunks]
    seen = (
        f"{len(chunks)} chunks of {median(sizes):.0f} ms in the median, "
        f"{min(sizes):.0f} to {max(sizes):.0f} ms"
    )
    odd = sum(len(chunk.data) % 2 for chunk in chunks)
    empty = sum(not chunk.data for chunk in chunks)
    if odd or empty:
        return Check(name, "fail", f"{seen}; {odd} of an odd number of bytes, {empty} empty")
    return Check(name, "pass", seen)


def _holes(evidence: Evidence) -> Check:
    name = "keeps up with its playing"
    runs = list(evidence.runs())
    if not runs:
        return Check(name, "not seen", "no audio")
    flushes = [at for at, _ in evidence.said(Flush)]
    holes = [
        ns_to_ms(after.start_ns - before.end_ns)
        for before, after in pairwise(runs)
        if after.start_ns - before.end_ns < ms_to_ns(SPEECH_GAP_MS)
        and not any(before.end_ns <= at <= after.start_ns for at in flushes)
        and _loud(before.pcm[-_edge(before.rate) :], before.rate)
        and _loud(after.pcm[: _edge(after.rate)], after.rate)
    ]
    if holes:
        return Check(name, "fail", f"holes in its speech: {len(holes)}, up to {max(holes):.0f} ms")
    return Check(name, "pass", "no holes in its speech")


def _ahead(evidence: Evidence) -> Check:
    """How fast the audio comes; either is right, but what comes ahead must be flushed."""
    name = "sends audio ahead of its playing"
    chunks = evidence.chunks()
    if not chunks:
        return Check(name, "not seen", "no audio")
    end_ns = most_ns = 0
    for at_ns, word in evidence.words():
        if isinstance(word, AudioBytes):
            most_ns = max(most_ns, end_ns - at_ns)
            end_ns = max(end_ns, at_ns) + ns_of(word)
        elif isinstance(word, Flush):
            end_ns = 0
    ahead_ms = ns_to_ms(most_ns)
    pace = "in real time" if ahead_ms < AHEAD_MS else "faster than it is played"
    return Check(name, "seen", f"{pace}, up to {ahead_ms:.0f} ms ahead")


# The conversation


def _answers(evidence: Evidence) -> Check:
    name = "answers each utterance"
    turns = [played.turn for played in evidence.turns]
    if not turns:
        return Check(name, "not seen", "no turn was finished")
    unanswered = [turn for turn in turns if turn.onset_ns is None]
    if unanswered:
        which = ", ".join(f"{turn.turn} ({turn.outcome})" for turn in unanswered)
        return Check(name, "fail", f"no reply to {which} of {len(turns)}")
    gaps = ", ".join("cut in" if t.gap_ns is None else _ms(t.gap_ns) for t in turns)
    return Check(name, "pass", f"{len(turns)} of {len(turns)}; gaps {gaps}")


def _transcribes(evidence: Evidence) -> Check:
    return _told(evidence, "tells what it heard", Transcript)


def _tells_its_text(evidence: Evidence) -> Check:
    return _told(evidence, "tells what it says", ReplyText)


def _told(evidence: Evidence, name: str, kind: type[Transcript] | type[ReplyText]) -> Check:
    texts = [word.text for _, word in evidence.said(kind)]
    if not any(text.strip() for text in texts):
        return Check(name, "not seen", "no message of it")
    joined = printable("".join(texts) if kind is ReplyText else " / ".join(texts), 80)
    return Check(name, "pass", f"{len(texts)} messages: {joined}")


def _ends_replies(evidence: Evidence) -> Check:
    name = "says when a reply is complete, after its audio"
    done = [at for at, _ in evidence.said(ReplyDone)]
    if not done:
        return Check(name, "not seen", "no message of it")
    first = min((at for at, _ in evidence.chunks()), default=None)
    if first is None or done[0] < first:
        return Check(name, "fail", "it called a reply complete before it had sent any audio")
    return Check(name, "pass", f"{len(done)} times")


# The person speaks into a reply


def _yields(evidence: Evidence) -> Check:
    name = "falls silent when the person speaks into its reply"
    turn = evidence.barge_in()
    if turn is None:
        return Check(name, "not seen", _no_barge_in(evidence))
    yield_ns = turn.turn.yield_ns
    if yield_ns is None:
        return Check(name, "fail", "it was still speaking when the turn ended")
    ok = yield_ns <= ms_to_ns(YIELD_MS)
    return Check(name, "pass" if ok else "fail", f"{_ms(yield_ns)} after the person's onset")


def _flushes(evidence: Evidence) -> Check:
    name = "has the audio dropped that was not played"
    turn = evidence.barge_in()
    if turn is None:
        return Check(name, "not seen", _no_barge_in(evidence))
    at_ns = evidence.flush_ns(turn)
    if at_ns is not None:
        after = _since(turn.turn.user_start_ns, at_ns)
        if any(at == at_ns and flush.guessed for at, flush in evidence.said(Flush)):
            why = f"guessed {after} after the person's onset: it has no word for it, and stopped"
            return Check(name, "not seen", why)
        return Check(name, "pass", f"flushed {after} after the person's onset")
    if _yields(evidence).status == "pass":
        return Check(name, "not seen", "it sent no flush, and stopped by itself")
    return Check(name, "fail", "it sent no flush, and its reply was heard to the end")


def _stays_silent(evidence: Evidence) -> Check:
    name = "sends no more of a reply that it has flushed"
    turn = evidence.barge_in()
    at_ns = None if turn is None else evidence.flush_ns(turn)
    if turn is None or at_ns is None:
        return Check(
            name, "not seen", _no_barge_in(evidence) if turn is None else "it sent no flush"
        )
    words = evidence.words()
    flush = words.index((at_ns, Flush()))
    late = [
        (at, word)
        for at, word in words[flush:]
        if isinstance(word, AudioBytes)
        and at < turn.turn.user_end_ns
        and _loud(_pcm(word), word.rate)
    ]
    if late:
        most = ns_to_ms(sum(ns_of(chunk) for _, chunk in late))
        last = _since(at_ns, late[-1][0])
        seen = f"{most:.0f} ms of sound came while the person spoke, the last {last} after it"
        return Check(name, "fail", seen)
    return Check(name, "pass", "nothing audible while the person spoke on")


def _no_barge_in(evidence: Evidence) -> str:
    if not evidence.chunks():
        return "no reply came that the person could have spoken into"
    return (
        "no reply was being given when the person spoke into it: to see this, let the reply to the "
        f"first question last {REPLY_S:g} s or more"
    )


# Its messages


def _readable(evidence: Evidence) -> Check:
    name = "sends messages that can be read"
    came, bad = evidence.log.came, troubles(evidence.log)
    if not came:
        return Check(name, "not seen", "no message")
    if bad:
        quoted = "; ".join(dict.fromkeys(each.why for each in bad[:QUOTED]))
        return Check(name, "fail", f"{len(bad)} of {len(came)} cannot be: {quoted}")
    if evidence.log.cut:
        log = evidence.log
        seen = f"{log.cut} of {len(came)} messages ({log.cut_size >> 20} MiB) were too much to keep"
        return Check(name, "fail", f"{seen}, and what they said is in no check")
    return Check(name, "pass", f"{len(came)} messages")


def _reports_no_errors(evidence: Evidence) -> Check:
    name = "reports no errors"
    # What it says when the caller has closed the session is its goodbye.
    end_ns = evidence.log.closed_ns or inf
    faults = [word.text for at, word in evidence.said(Fault) if at < end_ns]
    if not evidence.log.came:
        return Check(name, "not seen", "no message")
    if faults:
        quoted = "; ".join(dict.fromkeys(printable(text, 80) for text in faults[:QUOTED]))
        return Check(name, "fail", f"{len(faults)}: {quoted}")
    return Check(name, "pass", f"none in {len(evidence.log.came)} messages")


def _holds_the_line(evidence: Evidence) -> Check:
    name = "holds the line to the end"
    if evidence.failure is not None:
        return Check(name, "fail", printable(evidence.failure.message, 120))
    return Check(name, "pass", f"{len(evidence.turns)} turns")


def _stops(evidence: Evidence) -> Check:
    name = "sends no audio after the goodbye"
    closed_ns = evidence.log.closed_ns
    if closed_ns is None:
        return Check(name, "not seen", "the dialect has no word for it")
    if not evidence.chunks():
        return Check(name, "not seen", "no audio")
    last_ns = closed_ns + ms_to_ns(ON_ITS_WAY_MS)
    late = [at for at, _ in evidence.chunks() if at > last_ns]
    if late:
        last = _since(closed_ns, late[-1])
        return Check(name, "fail", f"{len(late)} chunks, the last {last} after it")
    return Check(name, "pass", f"none later than {ON_ITS_WAY_MS:.0f} ms after it")


_CHECKS: tuple[Callable[[Evidence], Check], ...] = (
    _ready,
    _waits_for_ready,
    _one_rate,
    _chunks,
    _holes,
    _ahead,
    _answers,
    _transcribes,
    _tells_its_text,
    _ends_replies,
    _yields,
    _flushes,
    _stays_silent,
    _readable,
    _reports_no_errors,
    _holds_the_line,
    _stops,
)


def _edge(rate: int) -> int:
    return round(rate * EDGE_MS / 1000)


def _pcm(chunk: AudioBytes) -> Pcm:
    return np.frombuffer(chunk.data[: len(chunk.data) // 2 * 2], dtype="<i2").astype(np.int16)


def _loud(pcm: Pcm, rate: int) -> bool:
    padded = np.concatenate((pcm, np.zeros(window_samples(rate), dtype=np.int16)))
    return audible_onset(padded, rate) is not None


def _ms(ns: int) -> str:
    return f"{ns_to_ms(ns):.0f} ms"


def _since(earlier_ns: int, later_ns: int) -> str:
    return _ms(later_ns - earlier_ns)
