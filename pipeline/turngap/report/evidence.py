"""Draw the sound of each turn: the person and the agent on one time axis, with the gap."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from turngap.core.audio import FULL_SCALE
from turngap.core.clock import ns_to_ms
from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.report import looks, page, turn_words, words
from turngap.report.charts import (
    BOX,
    SHOWN_WHOLE,
    Bar,
    Chart,
    Domain,
    Dot,
    Mark,
    Path,
    Rule,
    time_ticks,
)
from turngap.report.sections import Sheet, Strip
from turngap.store.runs import Run
from turngap.store.sound import read_sound

# The most turns that are drawn, and the places of a track: two kilobytes a turn.
MOST_TURNS = 200
PLACES = 200
# What a track's height spans: from a quiet room to a loud voice.
SOFT_DBFS, LOUD_DBFS = -60.0, -10.0
# From the top, in pixels: the person's track, the gap, the agent's track, what counts as speech.
TRACK_PX, GAP_PX, SPEECH_PX = 20, 10, 3
AGENT_PX = TRACK_PX + GAP_PX
HEIGHT_PX = AGENT_PX + TRACK_PX + SPEECH_PX + 2
# Around the person's end, in ms: at least and at most.
BEFORE_MS = (1200.0, 3000.0)
AFTER_MS = (2500.0, 8000.0)
ROOM_MS = 800.0

Levels = NDArray[np.float64]


def evidence(run: Run, anchors: Sequence[str]) -> Sheet:
    """Draw the first turns of a run, all on one scale; `anchors` are those of their cards."""
    drawn = run.turns[:MOST_TURNS]
    before_ms, after_ms = _reach(drawn)
    strips = [
        Strip(
            words.turn_name(turn),
            f"{looks.SYMBOLS[turn.outcome]} {' '.join((turn.outcome, *_gap(turn)))}",
            looks.OUTCOME_STYLES[turn.outcome],
            anchor,
            _chart(turn, before_ms, after_ms, *levels_of(run, turn, before_ms, after_ms)),
        )
        for turn, anchor in zip(drawn, anchors, strict=False)
    ]
    note = (
        "Above the person, below the agent as heard, from "
        f"{SOFT_DBFS:g} to {LOUD_DBFS:g} dBFS; 0 is the person's end. The bar between them is the "
        "gap, which ends at the first word; a ring is the first sound before it, a second dot the "
        "first word of the answer. The line below is what counts as speech, hollow: holes in it."
    ).replace("-", "\N{MINUS SIGN}")
    if len(drawn) < len(run.turns):
        note += f" The first {len(drawn)} of {words.turns_words(len(run.turns))}."
    return Sheet(strips, note)


def _gap(turn: Turn) -> tuple[str, ...]:
    return turn_words.gap_words(turn)[-1:]


def _reach(turns: Sequence[Turn]) -> tuple[float, float]:
    """Return how much time to draw before and after the person's end: most turns fit whole."""
    gaps = [turn.gap_ms for turn in turns if turn.gap_ms is not None]
    early = -min(gaps, default=0.0) + ROOM_MS / 2
    last = sorted(turn.first_answer_ms or turn.gap_ms or 0.0 for turn in turns) or [0.0]
    late = last[math.ceil(SHOWN_WHOLE * len(last)) - 1] + ROOM_MS
    return min(max(early, BEFORE_MS[0]), BEFORE_MS[1]), min(max(late, AFTER_MS[0]), AFTER_MS[1])


def levels_of(
    run: Run, turn: Turn, before_ms: float, after_ms: float
) -> tuple[Levels | None, float]:
    """Measure how loud both tracks are at each place, from 0 to 1, and where the recording ends.

    Without a recording there is None.
    """
    file = page.audio_file(run, turn)
    if file is None or turn.audio is None:
        return None, after_ms
    from_ms = turn.audio.user_end_ms - before_ms
    try:
        sound = read_sound(
            file, "report", channels=2, part_ms=(from_ms, from_ms + before_ms + after_ms)
        )
    except InputError:
        return None, after_ms
    each = (before_ms + after_ms) * sound.rate / 1000 / PLACES
    skipped = max(0, round(-from_ms * sound.rate / 1000))
    power = np.zeros((math.ceil(PLACES * each) + 1, 2))
    heard = sound.samples[: len(power) - skipped].astype(np.float64) / FULL_SCALE
    power[skipped : skipped + len(heard)] = heard**2
    edges = np.round(np.arange(PLACES + 1) * each).astype(int)
    means = np.array([power[a:b].mean(axis=0) for a, b in pairwise(edges)])
    dbfs = 10 * np.log10(np.maximum(means, 1e-12))
    end_ms = max(0.0, from_ms) + len(sound.samples) * 1000 / sound.rate - turn.audio.user_end_ms
    return ((dbfs - SOFT_DBFS) / (LOUD_DBFS - SOFT_DBFS)).clip(0, 1), end_ms


def _chart(
    turn: Turn, before_ms: float, after_ms: float, levels: Levels | None, end_ms: float
) -> Chart:
    budget = turn.budget_ms
    domain = Domain(-before_ms / budget, after_ms / budget)

    def x(ms: float) -> float:
        return domain.x(ms, budget)

    def bar(from_ms: float, to_ms: float, top: float, height: float, style: str = "") -> Bar:
        left = x(from_ms)
        return Bar(left, top, round(max(x(to_ms) - left, 0.3), 3), height, style)

    style = looks.OUTCOME_STYLES[turn.outcome]
    middle = TRACK_PX + GAP_PX / 2
    speech_px = AGENT_PX + TRACK_PX + 1
    bars = [bar(a, b, speech_px, SPEECH_PX) for a, b in speech_of(turn, end_ms)]
    if levels is None and turn.speech_ms is not None:
        bars.append(bar(-turn.speech_ms, 0, TRACK_PX - SPEECH_PX, SPEECH_PX, "listen"))
    bars += [
        bar(at, at + ms, speech_px, SPEECH_PX, "hole") for at, ms in _holes(turn) if at < after_ms
    ]
    dots: list[Dot] = []
    if turn.gap_ms is not None:
        ends = (min(0.0, turn.gap_ms), max(0.0, turn.gap_ms))
        bars.append(bar(*ends, TRACK_PX + 3, GAP_PX - 6, style))
        dots.append(Dot(x(turn.gap_ms), middle, style))
    marks = {
        "first sound": turn.first_sound_ms,
        "first answer": turn.first_answer_ms,
    }
    for name, at_ms in marks.items():
        if at_ms is not None and at_ms != turn.gap_ms:
            dots.append(Dot(x(at_ms), middle, style, name == "first sound", title=name))
    tracks = [] if levels is None else [("person", TRACK_PX), ("agent", AGENT_PX + TRACK_PX)]
    return Chart(
        spoken=_spoken(turn),
        height=HEIGHT_PX,
        name="evidence",
        x_ticks=time_ticks(domain, budget),
        y_ticks=[Mark(TRACK_PX - 8, "person"), Mark(AGENT_PX + TRACK_PX - 8, "agent")],
        bars=bars,
        paths=[
            Path(skyline(levels[:, n], bottom), name, area=True)
            for n, (name, bottom) in enumerate(tracks)
            if levels is not None
        ],
        rules=[Rule(x(0), style="zero"), Rule(x(budget))],
        dots=dots,
    )


def skyline(levels: Levels, bottom: int) -> str:
    """Draw levels as steps over a base line, in whole pixels."""
    tops = [bottom - round(level * TRACK_PX) for level in levels.tolist()]
    steps = [f"M0 {bottom}"]
    width = BOX // PLACES
    begin = 0
    for place in range(1, PLACES + 1):
        if place == PLACES or tops[place] != tops[begin]:
            steps.append(f"V{tops[begin]}h{(place - begin) * width}")
            begin = place
    return "".join([*steps, f"V{bottom}z"])


def speech_of(turn: Turn, until_ms: float) -> list[tuple[float, float]]:
    """Return the stretches that count as the agent's speech, in ms from the person's end."""
    end_ns = next((mark.at_ns for mark in turn.marks if mark.name == "user_end"), None)
    if end_ns is None:
        return []
    silences = turn.instants("AgentSilence")
    corrected = {*turn.instants("AgentSpeech", "instead_of_ns")}
    begun = {*turn.instants("AgentSpeech", "onset_ns")} - corrected
    found: list[tuple[float, float]] = []
    for onset_ns in sorted(begun):
        silent_ns = min((ns for ns in silences if ns > onset_ns), default=None)
        end_ms = until_ms if silent_ns is None else ns_to_ms(silent_ns - end_ns)
        found.append((ns_to_ms(onset_ns - end_ns), min(end_ms, until_ms)))
    return [(a, b) for a, b in found if a < until_ms]


def _holes(turn: Turn) -> list[tuple[float, float]]:
    """Return when the holes in the reply begin, in ms from the person's end, and their lengths."""
    return [((turn.gap_ms or 0.0) + hole.at_ms, hole.ms) for hole in turn.holes]


def _spoken(turn: Turn) -> str:
    shown_marks = {
        "first sound": turn.first_sound_ms,
        "first word": turn.gap_ms,
        "first answer": turn.first_answer_ms,
    }
    instants = [
        f"{name} at {words.ms(at)} ms" for name, at in shown_marks.items() if at is not None
    ]
    holes = [f"hole of {words.ms(ms)} ms at {words.ms(at)} ms" for at, ms in _holes(turn)]
    why = turn_words.why_words(turn)
    return ", ".join(
        ("What was heard: " + turn.outcome, *([why] if why else []), *instants, *holes)
    )
