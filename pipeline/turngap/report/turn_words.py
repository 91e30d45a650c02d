"""Words for one turn: its gap, its answer, its tools, its LLM, and its oddities."""

from collections import Counter
from collections.abc import Mapping, Sequence

from turngap.core.budget import LLM_WINDOW_MS
from turngap.core.counts import (
    COLD,
    OTHERS,
    OUTSIDE,
    RATE,
    SERVER,
    THOUGHT,
    THOUGHT_MS,
    TTFT,
    WINDOW,
)
from turngap.core.cut_ins import TooEarly, false_endpoints, heard_cut_in
from turngap.core.events import ToolCall
from turngap.core.results import Turn
from turngap.core.stored import AnswerRecord, PacingRecord
from turngap.core.summary import TokenFigures
from turngap.core.untrusted import printable
from turngap.report.looks import SYMBOLS
from turngap.report.words import ms, turns_words
from turngap.scenario.expectation import call_text

# A remark of which the whole is in the stored run, as a traceback is.
SHORT = 300


def gap_words(turn: Turn) -> tuple[str, ...]:
    """Format the turn's gap, with and without its relation to the budget; empty if it has none."""
    if turn.gap_ms is None:
        return ()
    figure = f"{ms(turn.gap_ms)} ms"
    if turn.gap_ms < 0:
        if turn.outcome != "cut_in":
            return f"{figure}, within the label's error", figure
        return f"{figure}, before the person had finished", figure
    if turn.gap_ms > turn.budget_ms:
        return f"{figure}, {ms(turn.gap_ms - turn.budget_ms)} over the budget", figure
    return (figure,)


def why_words(turn: Turn) -> str | None:
    """Say why a turn has no gap or failed; None if there is nothing to explain."""
    if turn.why_no_gap is not None:
        return turn.why_no_gap
    if turn.error is not None:
        return f"the agent failed in mid-reply: {turn.error}"
    if turn.outcome == "error":
        return "the line was lost before the reply had ended"
    if turn.ended == "hung_up":
        return "the agent ended the call after its reply"
    return None


def answer_words(turn: Turn) -> str | None:
    """Say whether the reply was right, and what was wrong; None if nothing was expected."""
    answer = turn.answer
    if answer.verdict == "not_judged" and not (answer.heard and answer.why):
        return None
    return _verdict_words(answer)


def other_verdicts_words(turn: Turn) -> list[tuple[str, str]]:
    """List the verdicts other than the rule on the agent's text, each with its name."""
    found: list[tuple[str, str]] = []
    if (sound := turn.transcribed) is not None:
        heard = f"“{sound.heard}”: " if sound.heard else ""
        found.append(("by sound", heard + _verdict_words(sound)))
    if (judge := turn.judged) is not None:
        word = {True: f"{SYMBOLS['answered']} right", False: f"{SYMBOLS['error']} wrong"}
        said = "not judged" if judge.right is None else word[judge.right]
        found.append(("judge", f"{said}: {judge.why}" if judge.why else said))
    return found


def _verdict_words(answer: AnswerRecord) -> str:
    match answer.verdict:
        case "right":
            return f"{SYMBOLS['answered']} right"
        case "wrong":
            return f"{SYMBOLS['error']} wrong: {'; '.join(answer.failed)}"
        case "not_judged":
            return f"not judged: {answer.why or 'not known'}"


def calls_words(turn: Turn) -> list[str]:
    """List each tool call with its result."""
    return [f"{call_text(call)} {_came_of(call)}" for call in turn.calls or ()]


def _came_of(call: ToolCall) -> str:
    took = "" if call.ms is None else f" after {ms(call.ms)} ms"
    if call.error is not None:
        return f"failed{took}: {call.error}"
    return f"gave{took}: {call.result or 'nothing'}" if took else "did not return"


def notes_of(turn: Turn) -> list[str]:
    """List notes on the turn: barge-in, backchannels, the agent's errors, a starved caller."""
    notes = [*early_words(turn), *_heard_words(turn)]
    if OUTSIDE in turn.counts:
        notes.append("out of the recogniser's domain: the LLM was not asked")
    if turn.yield_ms is not None:
        notes.append(f"barge-in: the agent was silent after {ms(turn.yield_ms)} ms")
    for extra in turn.backchannels:
        effect = "stopped the reply" if extra.reply_stopped else "did not stop the reply"
        notes.append(f"“{extra.say}” {effect}")
    own_error = turn.error or ""
    notes += [f"the agent reported: {f}" for f in turn.faults if f not in own_error]
    for note in _other_notes(turn):
        n = turn.notes[note]
        notes.append(printable(note, SHORT) + ("" if n == 1 else f" ({n:,} times)"))
    if turn.llm is not None:
        notes.append(f"answered by {turn.llm}")
    if turn.left_out is not None:
        notes.append(f"left out of the figures: {turn.left_out}")
    if turn.pacing.starved:
        how = _how_starved(turn.pacing)
        counted = (
            "; the turn counts, but too many such turns make a run invalid"
            if turn.left_out is None
            else ""
        )
        notes.append(f"caller starved{how}: its gap may read long{counted}")
    return notes


def _heard_words(turn: Turn) -> list[str]:
    """Describe the agent's other speech besides the reply, and its oddities."""
    said: list[str] = []
    if turn.greeting_ms is not None:
        began = "the line was open" if turn.talk_over_ms is None else "the recording began"
        said.append(f"the agent greeted {ms(turn.greeting_ms)} ms after {began}")
    answer_ms = turn.first_answer_ms
    if turn.gap_ms is not None and answer_ms is not None and answer_ms > turn.gap_ms:
        said.append(f"hold phrase first: the answer came after {ms(answer_ms)} ms")
    said += [
        f"hole of {ms(hole.ms)} ms in the reply, {ms(hole.at_ms)} ms after its onset"
        for hole in turn.holes
    ]
    if turn.false_starts:
        said.append(f"false starts: {turn.false_starts}")
    if turn.backchannels_heard:
        said.append(f"backchannels of the agent: {turn.backchannels_heard}")
    return said


# A turn may have many remarks; what is wrong with an agent shows in a few.
ODD_SHOWN = 5


def odd_words(turns: Sequence[Turn]) -> list[str]:
    """List oddities in what the agent sent, most frequent first, with the number of turns."""
    found = Counter(printable(note, SHORT) for turn in turns for note in _other_notes(turn))
    said = [f"in {n} of {turns_words(len(turns))}: {note}" for note, n in found.most_common()]
    return said[:ODD_SHOWN]


def _other_notes(turn: Turn) -> list[str]:
    """Return the notes on a turn that its error does not already mention."""
    return [note for note in turn.notes if note not in (turn.error or "")]


def early_words(turn: Turn) -> list[str]:
    """Say where the agent considered the turn over too early; empty if it did not."""
    if turn.pauses is None:
        return []
    if (cut_in := heard_cut_in(turn)) is not None:
        return [f"the agent cut in {place_words(cut_in)}"]
    unheard = [place_words(one) for one in false_endpoints(turn) or ()]
    what = "the agent took the turn to be over too early, but was not heard"
    return [f"{what}: {'; '.join(unheard)}"] if unheard else []


def place_words(early: TooEarly) -> str:
    """Say where in the person's turn the agent was too early."""
    if early.pause is None:
        return "over speech, before any labelled pause"
    length = f"a pause of {ms(early.pause.ms)} ms"
    if early.over_speech:
        return f"over speech, {ms(early.at_ms - early.pause.end_ms)} ms after {length}"
    return f"{ms(early.at_ms - early.pause.start_ms)} ms into {length}"


def _how_starved(pacing: PacingRecord) -> str:
    """Say which part of the caller was late, and by how much."""
    packets, loop = pacing.late_ms_max or 0.0, pacing.loop_lag_ms_max or 0.0
    if not packets and not loop:
        return ""
    if loop > packets:
        return f" (its event loop was held up for {ms(loop)} ms)"
    return f" (packets left up to {ms(packets)} ms late)"


def tokens_words(turn: Turn) -> str | None:
    """Say how fast the turn's LLM was, and why; None if the agent reported nothing about it."""
    first, rate, window = (turn.counts.get(name) for name in (TTFT, RATE, WINDOW))
    if first is None:
        return None
    parts = [f"first token after {ms(first)} ms"]
    if thought := turn.counts.get(THOUGHT):
        took = ms(turn.counts.get(THOUGHT_MS, 0.0))
        parts.append(
            f"before that it thought for {took} ms, {thought:.0f} pieces that were not heard"
        )
    parts += [f"{rate:.0f} tokens/s"] if rate is not None else []
    parts += (
        [f"{window:.0f} tokens in its first {ms(LLM_WINDOW_MS)} ms"] if window is not None else []
    )
    server = {name: turn.counts[count] for name, count in SERVER.items() if count in turn.counts}
    if server:
        others = turn.counts.get(OTHERS, 0.0)
        means = f" (means, with {others:.0f} more that ended meanwhile)" if others else ""
        parts.append(_server_words(server) + means)
    parts += ["cold: its first turn since the agent began"] if COLD in turn.counts else []
    return " · ".join(parts)


def _server_words(server_ms: Mapping[str, float]) -> str:
    return "at the server " + ", ".join(f"{name} {ms(took)}" for name, took in server_ms.items())


def token_figures_words(figures: TokenFigures) -> str:
    """Say how fast a run's LLM was; first turns are kept apart."""
    parts: list[str] = []
    if figures.ttft_ms is not None:
        parts.append(f"first token p50 {ms(figures.ttft_ms)} ms")
    if figures.ttft_p95_ms.value is not None:
        parts.append(f"p95 {ms(figures.ttft_p95_ms.value)} ms")
    if figures.per_s is not None:
        parts.append(f"p50 {figures.per_s:.0f} tokens/s")
    if figures.in_window is not None:
        parts.append(f"p50 {figures.in_window:g} tokens in its first {ms(LLM_WINDOW_MS)} ms")
    if figures.server_ms:
        parts.append(f"p50 {_server_words(figures.server_ms)} ms")
    said = [f"{' · '.join(parts)} (n={figures.n})"] if figures.n else []
    if figures.cold_ttft_ms is not None:
        median = "" if figures.cold_n == 1 else "p50 "
        said.append(f"cold: first token {median}{ms(figures.cold_ttft_ms)} ms (n={figures.cold_n})")
    return "; ".join(said)
