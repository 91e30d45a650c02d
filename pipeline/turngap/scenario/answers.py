"""Judge whether a turn got the right answer, by the reply as heard and the tools called."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.credits import PAUSE_MS
from turngap.core.events import (
    AgentSilence,
    AgentSpeech,
    Event,
    Flush,
    ReplyText,
    TrackedTurn,
    calls_of,
)
from turngap.core.results import Turn
from turngap.core.stored import NO_TEXT, AnswerRecord
from turngap.core.voice import LETTER_MS, letters, words_heard
from turngap.scenario.expectation import (
    MOST_SEARCHED,
    Called,
    Expectation,
    ReplyExpectation,
    ToolsExpectation,
    call_text,
    meets,
    pattern_matches,
)
from turngap.scenario.phrases import mentions

NOTHING_EXPECTED = "nothing is expected of this reply"
ABANDONED = "the person spoke again before any reply"
NO_CALLS = "the agent did not report which tools it called"
BROKEN_OFF = "the person interrupted the reply too early to judge it"
NO_REPLY = "no reply was heard"
TOO_LONG = f"a reply of over {MOST_SEARCHED} characters is not searched for the regex"
STOPPED = "unbroken: it stopped for a backchannel"


@dataclass(frozen=True, slots=True)
class Hearing:
    """The text that the person heard in a turn, and whether its last reply was whole."""

    text: str
    whole: bool


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings against an answer: `missing` from it, `wrong` in it, or `unknown`."""

    missing: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    unknown: str | None = None

    def __add__(self, other: "Findings") -> "Findings":
        unknown = self.unknown or other.unknown
        return Findings(self.missing + other.missing, self.wrong + other.wrong, unknown)

    def verdict(self, heard: Hearing | None, *, whole: bool) -> AnswerRecord:
        """Return the verdict; a broken-off answer (not `whole`) may lack parts without fault."""
        text = heard.text if heard else ""
        if self.wrong or (self.missing and whole):
            return AnswerRecord(verdict="wrong", heard=text, failed=(*self.missing, *self.wrong))
        if why := self.unknown or (BROKEN_OFF if self.missing else None):
            return AnswerRecord(verdict="not_judged", heard=text, why=why)
        return AnswerRecord(verdict="right", heard=text)


def answer_of(
    expected: Expectation,
    turn: TrackedTurn,
    events: Sequence[Event],
    upto_ns: int,
    *,
    stopped: bool = False,
) -> AnswerRecord:
    """Judge a finished turn.

    Args:
        expected: the scenario's expectation of the answer.
        turn: the turn as the tracker finished it.
        events: the events in the turn, up to the announcement of the next one.
        upto_ns: when the person began to speak again, or the caller stopped listening.
        stopped: whether the reply stopped for a backchannel; missing parts are then the agent's
            fault.
    """
    if expected.reply is None and expected.tools is None:
        return AnswerRecord(verdict="not_judged", why=NOTHING_EXPECTED)
    if turn.onset_ns is None:
        if turn.outcome == "abandoned":
            return AnswerRecord(verdict="not_judged", why=ABANDONED)
        return AnswerRecord(verdict="wrong", failed=(NO_REPLY,))
    heard = heard_of(turn, events, upto_ns) if turn.reply else None
    reply = _of_reply(expected.reply, heard, stopped=stopped)
    findings = reply + _of_calls(expected.tools, calls_of(turn.agent_turns))
    heard_out = heard.whole if heard else turn.ended in ("reply_done", "hung_up")
    own_fault = stopped or turn.outcome == "error"
    return findings.verdict(heard, whole=heard_out or own_fault)


def answer_again(expected: Expectation, turn: Turn, text: str, why_no_text: str) -> AnswerRecord:
    """Judge a stored turn by a recogniser's transcript of its sound, if there is one.

    All recorded sound was heard, but the sound is not the whole reply if the turn was broken off.
    """
    before = turn.answer.model_copy(update={"source": "transcribed", "heard": ""})
    if (expected.reply is None and expected.tools is None) or turn.gap_ns is None:
        return before  # nothing was expected, or nothing was heard
    heard_out = turn.ended in ("reply_done", "hung_up")
    stopped = any(extra.reply_stopped for extra in turn.backchannels)
    heard = Hearing(text, whole=heard_out) if text else None
    reply = _of_reply(expected.reply, heard, stopped=stopped)
    if heard is None and expected.reply is not None:
        reply = Findings(unknown=why_no_text)
    findings = reply + _of_calls(expected.tools, turn.calls)
    own_fault = stopped or turn.outcome == "error"
    record = findings.verdict(heard, whole=heard_out or own_fault)
    return record.model_copy(update={"source": "transcribed"})


def judge(
    expected: ReplyExpectation, heard: Hearing, *, own_fault: bool = False, stopped: bool = False
) -> AnswerRecord:
    """Judge the part of a reply that was heard.

    Parts missing from a reply that the person broke off are not the agent's fault, unless the agent
    ended the reply itself, by an error (`own_fault`) or for a backchannel (`stopped`). Forbidden
    words that were heard are always the agent's fault.
    """
    findings = _of_reply(expected, heard, stopped=stopped)
    return findings.verdict(heard, whole=heard.whole or own_fault or stopped)


def _of_reply(
    expected: ReplyExpectation | None, heard: Hearing | None, *, stopped: bool
) -> Findings:
    if expected is None:
        return Findings()
    if heard is None:
        return Findings(unknown=NO_TEXT)
    text, unsure = heard.text, list[str]()
    missing = [*_of_phrases(expected, text, unsure)]
    wrong = [*_forbidden(expected, text, unsure)]
    if stopped and expected.unbroken:
        wrong.append(STOPPED)
    if expected.regex is not None and len(text) > MOST_SEARCHED:
        unsure.append(TOO_LONG)
    elif expected.regex is not None and not pattern_matches(expected.regex, text):
        missing.append(f"regex: {expected.regex} does not match")
    return Findings(tuple(missing), tuple(wrong), next(iter(unsure), None))


def _of_calls(expected: ToolsExpectation | None, calls: Sequence[Called] | None) -> Findings:
    if expected is None:
        return Findings()
    if calls is None:
        return Findings(unknown=NO_CALLS)
    return find(expected, calls)


def _of_phrases(expected: ReplyExpectation, text: str, unsure: list[str]) -> Iterator[str]:
    """Yield the missing phrases; add the reasons why others are uncertain."""
    found = mentions(text, (*expected.any_of, *expected.all_of))
    one_of = {phrase: found[phrase] for phrase in expected.any_of}
    if one_of and all(why is None for why in one_of.values()):
        yield f"expected one of: {_quoted(expected.any_of)}"
    if absent := [phrase for phrase in expected.all_of if found[phrase] is None]:
        yield f"not said: {_quoted(absent)}"
    needed = expected.all_of if "" in one_of.values() else found
    unsure += [f"{_quoted([phrase])}: {found[phrase]}" for phrase in needed if found[phrase]]


def _forbidden(expected: ReplyExpectation, text: str, unsure: list[str]) -> Iterator[str]:
    for phrase, why in mentions(text, expected.forbid, no=False).items():
        if why == "":
            yield f"said, but forbidden: {_quoted([phrase])}"
        elif why:
            unsure.append(f"{_quoted([phrase])}: {why}")


def _quoted(phrases: Iterable[str]) -> str:
    return ", ".join(f'"{phrase}"' for phrase in phrases)


def heard_of(turn: TrackedTurn, events: Sequence[Event], upto_ns: int) -> Hearing:
    """Return the agent's text as far as it was heard by `upto_ns`.

    A reply that was played to its end was heard whole. The agent's text has no times, so if the
    reply was broken off, by a flush or by the person, the words that fit at 65 ms a letter count.
    """
    replies = [_as_heard(part, turn, events, upto_ns) for part in _parts(turn, events)]
    # An agent that cut in and was talked down still owes an answer, and could give it.
    return Hearing(" … ".join(reply.text for reply in replies if reply.text), replies[-1].whole)


@dataclass(slots=True)
class _Part:
    """The text between two flushes, the last of which came at `flushed_ns`, if any."""

    text: str
    since_ns: int
    flushed_ns: int | None


def _parts(turn: TrackedTurn, events: Sequence[Event]) -> list[_Part]:
    """Return the turn's replies; one whole reply if its events do not give its text."""
    flushes = sorted(e.at_ns for e in events if isinstance(e, Flush))
    bounds = [turn.user_start_ns, *(ns for ns in flushes if ns > turn.user_start_ns)]
    parts = [
        _Part("", since, until) for since, until in zip(bounds, [*bounds[1:], None], strict=True)
    ]
    for piece in events:
        if isinstance(piece, ReplyText) and piece.at_ns >= turn.user_start_ns:
            next(p for p in reversed(parts) if p.since_ns <= piece.at_ns).text += piece.text
    for part in parts:
        part.text = part.text.strip()
    spoken = [part for part in parts if part.text]
    # The tracker leaves out the text of the reply before, which is still being dropped.
    while spoken and " ".join(part.text for part in spoken) != turn.reply:
        del spoken[0]
    return spoken or [_Part(turn.reply, turn.user_start_ns, None)]


def _as_heard(part: _Part, turn: TrackedTurn, events: Sequence[Event], upto_ns: int) -> Hearing:
    ends_ns = upto_ns if part.flushed_ns is None else part.flushed_ns
    spoken_ns, last_ns = _spoken(events, part.since_ns, ends_ns)
    if part.flushed_ns is None:
        broken_off = turn.ended in ("interrupted", "line_lost")
    else:
        # It was dropped while it was heard, in a pause between sentences, or before it began.
        broken_off = last_ns is None or ends_ns - last_ns < ms_to_ns(PAUSE_MS)
    if not broken_off:
        return Hearing(part.text, whole=True)
    whole_ms = LETTER_MS * letters(part.text)
    return Hearing(words_heard(part.text, ns_to_ms(spoken_ns), whole_ms), whole=False)


def _spoken(events: Sequence[Event], since_ns: int, upto_ns: int) -> tuple[int, int | None]:
    """Return how long the agent was audible between two instants, and when it last was."""
    total_ns, last_ns, began_ns = 0, None, None
    edges = [e for e in events if isinstance(e, AgentSpeech | AgentSilence)]
    for edge in sorted(edges, key=_instant):
        if isinstance(edge, AgentSpeech):
            began_ns = _instant(edge) if began_ns is None else began_ns
        elif began_ns is not None:
            total_ns += max(0, min(edge.at_ns, upto_ns) - max(began_ns, since_ns))
            if edge.at_ns > since_ns and began_ns < upto_ns:
                last_ns = min(edge.at_ns, upto_ns)
            began_ns = None
    if began_ns is not None and began_ns < upto_ns:
        total_ns += upto_ns - max(began_ns, since_ns)
        last_ns = upto_ns
    return total_ns, last_ns


def _instant(edge: AgentSpeech | AgentSilence) -> int:
    return edge.onset_ns if isinstance(edge, AgentSpeech) else edge.at_ns


def find(expected: ToolsExpectation, made: Sequence[Called]) -> Findings:
    """Compare the calls that were made with those expected, whether they succeeded or not."""
    unwanted = [
        f"tools: {call_text(call)} was called"
        for call in made
        if expected.none or any(meets(call, banned) for banned in expected.forbid)
    ]
    return Findings(tuple(_missing(expected, made)), tuple(unwanted))


def _missing(expected: ToolsExpectation, made: Sequence[Called]) -> Iterator[str]:
    """Yield the wanted calls that were not made, each of `made` meeting one of them.

    This is the usual search for augmenting paths: one call may meet several wants, and some wants
    may be met by no other call.
    """
    wanted = expected.all_of
    taken: dict[int, int] = {}  # index of a call made, to that of the want that it meets

    def place(want: int, tried: set[int]) -> bool:
        for i, call in enumerate(made):
            if i not in tried and meets(call, wanted[want]):
                tried.add(i)
                if i not in taken or place(taken[i], tried):
                    taken[i] = want
                    return True
        return False

    matched = {want for want in range(len(wanted)) if place(want, set())}
    absent = [call for i, call in enumerate(wanted) if i not in matched]
    called = ", ".join(map(call_text, made)) or "nothing"
    for call in absent:
        yield f"tools: {call_text(call)} was not called, but {called}"
    left = iter(made)  # the earliest of each counts
    in_order = all(any(meets(call, want) for call in left) for want in wanted)
    if expected.in_order and not absent and not in_order:
        order = ", then ".join(map(call_text, wanted))
        yield f"tools: not in the order {order}, but {called}"
