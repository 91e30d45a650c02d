"""How reports say things: one symbol, one word and one spelling of a figure for all of them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from turngap.core import instants
from turngap.core.budget import LLM_WINDOW_MS, Outcome
from turngap.core.cut_ins import CutIns, TooEarly, false_endpoints, heard_cut_in
from turngap.core.events import ToolCall
from turngap.core.results import (
    AnswerRecord,
    HeldOutRecord,
    JudgedWith,
    PacingRecord,
    RunRecord,
    Turn,
)
from turngap.core.spoken import OUTSIDE
from turngap.core.stages import UNATTRIBUTED
from turngap.core.stats import Percentile, Proportion
from turngap.core.summary import Summary, Verdicts
from turngap.core.tokens import (
    COLD,
    OTHERS,
    RATE,
    SERVER,
    THOUGHT,
    THOUGHT_MS,
    TTFT,
    WINDOW,
    TokenFigures,
)
from turngap.core.untrusted import printable
from turngap.scenario.calls import call_text

# A remark of which the whole is in the stored run, as a traceback is.
SHORT = 300

# Beside the word, never instead of it: a report must be readable without colour.
SYMBOLS: dict[Outcome, str] = {
    "answered": "✓",
    "late": "!",
    "no_reply": "∅",
    "cut_in": "«",
    "abandoned": "–",
    "error": "✗",
}
OUTCOME_MEANS: dict[Outcome, str] = {
    "answered": "the reply began within the budget",
    "late": "the reply began, but over the budget",
    "no_reply": "the caller waited and heard nothing",
    "cut_in": "the agent began before the person had finished",
    "abandoned": "the person spoke again before any reply",
    "error": "the line or the agent failed",
}

# What a colour means, the same in each table and drawing; the second five are groups of stages.
Group = Literal["listen", "think", "speak", "line", "unknown"]
Style = Literal["", "strong", "dim", "good", "bad", "odd", "unsure"] | Group
OUTCOME_STYLES: dict[Outcome, Style] = {
    "answered": "good",
    "late": "bad",
    "no_reply": "bad",
    "cut_in": "odd",
    "abandoned": "",
    "error": "bad",
}


@dataclass(frozen=True, slots=True)
class StageLook:
    """How a stage is drawn and explained.

    `pattern` is a character that no other stage has: bars are readable in black and white.
    """

    pattern: str
    group: Group
    means: str


STAGES: dict[str, StageLook] = {
    "endpoint": StageLook("░", "listen", "until the agent decided that the turn was over"),
    "transcript": StageLook("▒", "listen", "until the final transcript was there"),
    "llm_request": StageLook("╱", "think", "until the language model was asked"),
    "tool_call": StageLook("╲", "think", "until it called a tool"),
    "tool_result": StageLook("┼", "think", "until the last of its tools had answered"),
    "llm_first_token": StageLook("█", "think", "until its first token"),
    "tts_request": StageLook("▚", "speak", "until the first words went to the voice"),
    "tts_first_audio": StageLook("▓", "speak", "until the voice gave its first audio"),
    "tts_first_audible": StageLook("·", "speak", "silence at the head of that audio"),
    "sent": StageLook("=", "line", "until that audio was written to the line"),
    "received": StageLook("»", "line", "until it reached the caller"),
    "agent_onset": StageLook(":", "line", "in the caller's playout, until it was heard"),
}
UNKNOWN_STAGE = StageLook("?", "unknown", "not explained by any mark that the agent reported")


def look_of(stage: str) -> StageLook:
    """How to draw a stage; what no mark explains, and names from elsewhere, as unexplained."""
    return STAGES.get(stage, UNKNOWN_STAGE)


def ms(value: float) -> str:
    """Milliseconds for reading: whole ones, and tenths below 10."""
    if value == 0:
        return "0"
    if abs(value) < 0.05:
        return "<0.1"
    text = f"{abs(value):.1f}" if abs(value) < 9.95 else f"{abs(value):.0f}"
    return f"−{text}" if value < 0 else text


def percent(share: float) -> str:
    """A share in whole per cent; only all is 100 and only none is 0."""
    if 0 < share < 0.01:
        return "<1 %"
    if 0.99 < share < 1:
        return ">99 %"
    return f"{share * 100:.0f} %"


def interval(p: Percentile) -> str:
    """The 95 % interval of a percentile, one-sided where n bounds one side only."""
    if p.low is not None and p.high is not None:
        return f"95 % interval {ms(p.low)} to {ms(p.high)}"
    if p.low is not None:
        return f"95 % sure: at least {ms(p.low)}"
    if p.high is not None:
        return f"95 % sure: at most {ms(p.high)}"
    return "too few independent turns for an interval"


def percentile_words(p: Percentile) -> tuple[str, str]:
    """A percentile as figure and remark; where there is none, a dash and the reason."""
    if p.value is None:
        return "–", p.why_none or "not known"
    return f"{ms(p.value)} ms", interval(p)


def hit_rate_words(rate: Proportion) -> tuple[str, str]:
    """The headline as figure and interval."""
    if rate.value is None or rate.low is None or rate.high is None:
        return "–", "no turns"
    return percent(rate.value), f"95 % interval {percent(rate.low)} to {percent(rate.high)}"


_SHORT_COMMIT = 9
NOT_LOOKED = "nobody looked for pauses in them (turngap label does)"


def cut_ins_words(cut_ins: CutIns) -> tuple[str, str]:
    """The headline's other half as figure and remark: the turns that the agent cut into."""
    figure, bounds = hit_rate_words(cut_ins)
    if cut_ins.value is None:
        return figure, bounds
    counted = f"{cut_ins.hits} of {turns_words(cut_ins.n, cut_ins.recorded)}; {bounds}"
    return figure, f"{counted}; {_pauses_words(cut_ins) or NOT_LOOKED}"


def cut_in_sentence(cut_ins: CutIns | None) -> str:
    """The same beside a gap in a sentence; None where no cut-ins were stored."""
    if cut_ins is None or cut_ins.value is None:
        return "cut-ins not known"
    recorded = recorded_words(cut_ins.n, cut_ins.recorded).strip(" ()")
    about = filter(None, (recorded, hit_rate_words(cut_ins)[1], _pauses_words(cut_ins)))
    return f"cut in on {cut_ins.hits} of {turns_words(cut_ins.n)} ({'; '.join(about)})"


def _pauses_words(cut_ins: CutIns) -> str:
    """How much a share of cut-ins can tell: without pauses there is little to cut into."""
    if cut_ins.paused is None:
        return ""
    if not cut_ins.paused:
        return "none of them has a pause in which an agent could cut in"
    have = "has" if cut_ins.paused == 1 else "have"
    return f"{cut_ins.paused} of them {have} a pause in which an agent could cut in"


def instant(utc: str) -> str:
    """A stored instant for reading; what is none is shown as it is."""
    try:
        return f"{instants.instant(utc):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return printable(utc)


def commit(sha: str | None) -> str:
    """A commit, shortened; `+` behind one from which files differed, a dash for none."""
    if not sha:
        return "–"
    bare, dirty, _ = printable(sha).partition("-dirty")
    return bare[:_SHORT_COMMIT] + ("+" if dirty else "")


def turns_words(n: int, recorded: int | None = None) -> str:
    """`n` turns, and how many different ones these are where some were played again."""
    return ("1 turn" if n == 1 else f"{n} turns") + recorded_words(n, recorded)


def recorded_words(n: int, recorded: int | None) -> str:
    """What to say behind `n` where rounds repeat fewer turns; empty where they do not."""
    return "" if recorded in (None, n) else f" ({recorded} different)"


def turn_name(turn: Turn) -> str:
    """Which turn this is."""
    return take_name(turn.scenario, turn.turn, turn.repeat)


def take_name(scenario: str, number: int, repeat: int) -> str:
    """The same of a turn that is named by its key."""
    repeated = f", repeat {repeat}" if repeat > 1 else ""
    return f"{printable(scenario)}, turn {number}{repeated}"


def scenarios_words(names: Sequence[str]) -> str:
    """The scenarios that were played: up to two by name, else one and how many more."""
    if len(names) < 3:
        return " and ".join(map(printable, names))
    return f"{printable(names[0])} and {len(names) - 1} more scenarios"


def stand_ins_words(stand_ins: Sequence[str]) -> str:
    """What was not real in a measurement, and what its figures therefore do not tell."""
    if not stand_ins:
        return ""
    about = ["another model"] if any("LLM" in name for name in stand_ins) else []
    about += ["real callers"] if any("LLM" not in name for name in stand_ins) else []
    names = ", ".join(map(printable, stand_ins))
    return f"{names}: these figures say nothing about {' or '.join(about)}"


def gap_words(turn: Turn) -> tuple[str, ...]:
    """The turn's gap, with what it means against the budget and without; none where it has none."""
    if turn.gap_ms is None:
        return ()
    figure = f"{ms(turn.gap_ms)} ms"
    if turn.gap_ms < 0:
        return f"{figure}, before the person had finished", figure
    if turn.gap_ms > turn.budget_ms:
        return f"{figure}, {ms(turn.gap_ms - turn.budget_ms)} over the budget", figure
    return (figure,)


def why_words(turn: Turn) -> str | None:
    """Why a turn has no gap or failed; None where there is nothing to explain."""
    if turn.why_no_gap is not None:
        return printable(turn.why_no_gap)
    if turn.error is not None:
        return f"the agent failed in mid-reply: {printable(turn.error)}"
    if turn.outcome == "error":
        return "the line was lost before the reply had ended"
    return None


def answer_words(turn: Turn) -> str | None:
    """Whether the reply was right, and what was wrong; None where nothing was expected of it."""
    answer = turn.answer
    if answer.verdict == "not_judged" and not (answer.heard and answer.why):
        return None
    return _verdict_words(answer)


def right_words(summary: Summary) -> tuple[str, str] | None:
    """The share of right answers as figure and remark; None where no turn expects anything."""
    right = summary.right
    left = [f"{n} not judged ({printable(why)})" for why, n in summary.not_judged.items()]
    if right.value is None or right.low is None or right.high is None:
        return None
    bounds = f"95 % interval {percent(right.low)} to {percent(right.high)}"
    counted = f"{right.hits} of {turns_words(right.n, right.recorded)}; {bounds}"
    return percent(right.value), "; ".join([counted, *left])


def held_out_words(known: HeldOutRecord) -> tuple[str, str]:
    """What a model got right on dialogues that its training held out, as figure and remark."""
    share, bounds = hit_rate_words(known.right)
    counted = f"{known.right.hits} of {turns_words(known.right.n)}"
    return share, (
        f"not of this run: the model {printable(known.model)} was right in {counted} of "
        f"{known.dialogues} written dialogues that it was not trained on; {bounds}"
    )


def other_verdicts_words(turn: Turn) -> list[tuple[str, str]]:
    """What was found out beside the rule on the agent's text, each by its name."""
    found: list[tuple[str, str]] = []
    if (sound := turn.transcribed) is not None:
        heard = f"“{printable(sound.heard)}”: " if sound.heard else ""
        found.append(("by sound", heard + _verdict_words(sound)))
    if (judge := turn.judged) is not None:
        word = {True: f"{SYMBOLS['answered']} right", False: f"{SYMBOLS['error']} wrong"}
        said = "not judged" if judge.right is None else word[judge.right]
        found.append(("judge", f"{said}: {printable(judge.why)}" if judge.why else said))
    return found


def _verdict_words(answer: AnswerRecord) -> str:
    match answer.verdict:
        case "right":
            return f"{SYMBOLS['answered']} right"
        case "wrong":
            return f"{SYMBOLS['error']} wrong: {printable('; '.join(answer.failed))}"
        case "not_judged":
            return f"not judged: {printable(answer.why or 'not known')}"


def other_right_words(record: RunRecord, summary: Summary) -> list[tuple[str, str, str]]:
    """For each of these its name, the share of right answers, and what that rests on."""
    rows: list[tuple[str, str, str]] = []
    for name, figures, used in (
        ("by sound", summary.transcribed, record.transcribed_with),
        ("judge", summary.judged, record.judged_with),
    ):
        if figures is not None and used is not None:
            rows.append((name, *_verdicts_words(figures, used)))
    return rows


def _verdicts_words(figures: Verdicts, used: JudgedWith) -> tuple[str, str]:
    right = figures.right
    remarks = [f"{printable(used.backend)}" + (", closed domain" if used.closed_domain else "")]
    share, bounds = hit_rate_words(right)
    if right.n:
        remarks = [f"{right.hits} of {turns_words(right.n, right.recorded)}; {bounds}", *remarks]
    if figures.both:
        remarks.append(f"as by the agent's text in {figures.agree} of {figures.both}")
    remarks += [f"{n} not judged ({printable(why)})" for why, n in figures.not_judged.items()]
    return share, "; ".join(remarks)


def calls_words(turn: Turn) -> list[str]:
    """Each tool that was called, with what became of it."""
    return [f"{printable(call_text(call))} {_came_of(call)}" for call in turn.calls or ()]


def _came_of(call: ToolCall) -> str:
    took = "" if call.ms is None else f" after {ms(call.ms)} ms"
    if call.error is not None:
        return f"failed{took}: {printable(call.error)}"
    return f"gave{took}: {printable(call.result or 'nothing')}" if took else "did not come back"


def tokens_words(turn: Turn) -> str | None:
    """How fast the turn's LLM was, and why; None where the agent told nothing of it."""
    first, rate, window = (turn.counts.get(name) for name in (TTFT, RATE, WINDOW))
    if first is None:
        return None
    parts = [f"first token after {ms(first)} ms"]
    if thought := turn.counts.get(THOUGHT):
        took = ms(turn.counts.get(THOUGHT_MS, 0.0))
        parts.append(
            f"before that it thought for {took} ms, {thought:.0f} pieces that nobody heard"
        )
    parts += [f"{rate:.0f} tokens/s"] if rate is not None else []
    parts += [f"{window:.0f} tokens within {ms(LLM_WINDOW_MS)} ms"] if window is not None else []
    told = {name: turn.counts[count] for name, count in SERVER.items() if count in turn.counts}
    if told:
        others = turn.counts.get(OTHERS, 0.0)
        means = f" (means, with {others:.0f} more that ended meanwhile)" if others else ""
        parts.append(_server_words(told) + means)
    parts += ["cold: its first turn since the agent began"] if COLD in turn.counts else []
    return " · ".join(parts)


def _server_words(server_ms: Mapping[str, float]) -> str:
    return "at the server " + ", ".join(f"{name} {ms(took)}" for name, took in server_ms.items())


def token_figures_words(figures: TokenFigures) -> str:
    """The same over a run; first turns apart."""
    parts: list[str] = []
    if figures.ttft_ms is not None:
        parts.append(f"first token p50 {ms(figures.ttft_ms)} ms")
    if figures.ttft_p95_ms.value is not None:
        parts.append(f"p95 {ms(figures.ttft_p95_ms.value)} ms")
    if figures.per_s is not None:
        parts.append(f"p50 {figures.per_s:.0f} tokens/s")
    if figures.in_window is not None:
        parts.append(f"p50 {figures.in_window:g} tokens within {ms(LLM_WINDOW_MS)} ms")
    if figures.server_ms:
        parts.append(f"p50 {_server_words(figures.server_ms)} ms")
    said = [f"{' · '.join(parts)} (n={figures.n})"] if figures.n else []
    if figures.cold_ttft_ms is not None:
        median = "" if figures.cold_n == 1 else "p50 "
        said.append(f"cold: first token {median}{ms(figures.cold_ttft_ms)} ms (n={figures.cold_n})")
    return "; ".join(said)


def notes_of(turn: Turn) -> list[str]:
    """What else is worth a word: barge-in, backchannels, the agent's errors, a starved caller."""
    notes = early_words(turn)
    if OUTSIDE in turn.counts:
        notes.append("out of the recogniser's domain: the LLM was not asked")
    if turn.yield_ms is not None:
        notes.append(f"barge-in: the agent was silent after {ms(turn.yield_ms)} ms")
    for extra in turn.backchannels:
        effect = "stopped the reply" if extra.reply_stopped else "did not stop the reply"
        notes.append(f"“{printable(extra.say)}” {effect}")
    told = turn.error or ""
    notes += [f"the agent reported: {printable(f)}" for f in turn.faults if f not in told]
    for note in _other_notes(turn):
        n = turn.notes[note]
        notes.append(printable(note, SHORT) + ("" if n == 1 else f" ({n:,} times)"))
    if turn.llm is not None:
        notes.append(f"answered by {printable(turn.llm)}")
    if turn.left_out is not None:
        notes.append(f"left out of the figures: {printable(turn.left_out)}")
    if turn.pacing.starved:
        how = _how_starved(turn.pacing)
        counted = "; the turn still counts in the figures" if turn.left_out is None else ""
        notes.append(f"caller starved{how}: its gap may read long{counted}")
    return notes


# A turn may have many remarks; what is wrong with an agent shows in a few.
ODD_SHOWN = 5


def odd_words(turns: Sequence[Turn]) -> list[str]:
    """What was odd about what the agent sent, the most frequent first, and in how many turns."""
    found = Counter(printable(note, SHORT) for turn in turns for note in _other_notes(turn))
    said = [f"in {n} of {turns_words(len(turns))}: {note}" for note, n in found.most_common()]
    return said[:ODD_SHOWN]


def _other_notes(turn: Turn) -> list[str]:
    """The remarks on a turn but for what its error says already."""
    return [note for note in turn.notes if note not in (turn.error or "")]


def early_words(turn: Turn) -> list[str]:
    """Where the agent took the turn to be over too early, heard or not; empty where it did not."""
    if turn.pauses is None:
        return []
    if (cut_in := heard_cut_in(turn)) is not None:
        return [f"the agent cut in {place_words(cut_in)}"]
    unheard = [place_words(one) for one in false_endpoints(turn) or ()]
    what = "the agent took the turn to be over too early, but was not heard"
    return [f"{what}: {'; '.join(unheard)}"] if unheard else []


def place_words(early: TooEarly) -> str:
    """Where in the person's turn that was."""
    if early.pause is None:
        return "over speech, before any labelled pause"
    length = f"a pause of {ms(early.pause.ms)} ms"
    if early.over_speech:
        return f"over speech, {ms(early.at_ms - early.pause.end_ms)} ms after {length}"
    return f"{ms(early.at_ms - early.pause.start_ms)} ms into {length}"


def _how_starved(pacing: PacingRecord) -> str:
    """Which of the two was late, and by how much."""
    packets, loop = pacing.late_ms_max or 0.0, pacing.loop_lag_ms_max or 0.0
    if not packets and not loop:
        return ""
    if loop > packets:
        return f" (its event loop was held up for {ms(loop)} ms)"
    return f" (packets left up to {ms(packets)} ms late)"


def run_words(record: RunRecord) -> tuple[str, ...]:
    """What was run and what it was run against; once where the run is named after its agent."""
    return agent_words(record.name, record.agent)


def agent_words(name: str, described: Mapping[str, Any]) -> tuple[str, ...]:
    """The same of whatever has that name and was played against the agent that is described."""
    agent = described.get("stack") or described.get("url") or ""
    names = dict.fromkeys(filter(None, (printable(name), printable(str(agent)))))
    return (*(names or ("run",)), *spoken_words(described))


def spoken_words(agent: Mapping[str, Any]) -> tuple[str, ...]:
    """In which dialect an agent at a URL was spoken to, and how well a person is heard in it."""
    dialect, rate = agent.get("dialect"), agent.get("line_rate_hz")
    if not dialect or not isinstance(rate, int):
        return ()
    return (f"{printable(str(dialect))}, {rate / 1000:g} kHz",)


def validity_words(record: RunRecord) -> str:
    """Whether the run may be used, and if not, why."""
    if record.valid:
        return "valid"
    reasons = "; ".join(map(printable, record.why_invalid)) or "no reason was stored"
    return f"INVALID, do not use these figures: {reasons}"


def versions(record: RunRecord) -> str:
    """Of the program, of how figures are made from events, and of the file."""
    return (
        f"turngap {record.turngap_version}, metrics {record.metrics_version}, "
        f"schema {record.schema_version}"
    )


def marks_words(stages: Iterable[str]) -> str:
    """How to see stages, where an agent tells none; empty where it tells some or nobody replied."""
    if set(stages) != {UNATTRIBUTED}:
        return ""
    return (
        "the agent sends no marks, so all of its time is unattributed: add the two lines of "
        "MarksObserver to a pipecat bot to see which stage takes it (README.md, “Measure my bot”)"
    )


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as rows of dotted name and value."""
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        else:
            yield name, _setting(value)


def _setting(value: Any) -> str:
    """A setting's value for people: none of Python's own words."""
    if value is None:
        return "–"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
