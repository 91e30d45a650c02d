"""Derive the figures of a stored run again, from its audio and labels, by independent code.

The speech of both sides is read from the whole recording at once: Silero's probabilities and the
levels of three bands, by steps of 5 ms. Nothing of `turngap.caller` takes part. A figure differs if
it is off by more than the stated errors and this reading's own error together.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from turngap.core.audio import AUDIBLE_DBFS, FULL_SCALE
from turngap.core.budget import LABEL_ERROR_MS, NO_REPLY_MS, outcome_of
from turngap.core.clock import ns_to_ms
from turngap.core.results import Turn
from turngap.core.run_record import METRICS_VERSION, RunRecord
from turngap.core.stages import stages_of
from turngap.core.stored import AudioRecord
from turngap.scenario.speech import SPEECH, STEP, STEP_MS, band_levels, speech_probability
from turngap.silero import RATE
from turngap.store.files import sha256_of
from turngap.store.folders import AUDIO_DIR
from turngap.store.runs import read_run
from turngap.store.sound import read_sound

Floats = NDArray[np.float64]

# A voice is audible down to this far below its loud parts, and this far above steady noise.
BELOW_VOICE_DB, ABOVE_NOISE_DB = 22.0, 8.0
# Levels at which the person's speech may end: below its loud parts, and above the noise.
ENDS_DB = ((20.0, 10.0), (30.0, 8.0), (40.0, 6.0))
FLOOR_DBFS, LOUD_PERCENT = -58.0, 90
# This reading's own error: its steps and the 20 ms of sound around each. Where its levels place a
# bound so differently, it does not judge the bound.
OWN_MS, UNSURE_MS = 25.0, 120.0
# Silences up to this one belong to speech, the closure of a stop; so long may sound lead into it.
CLOSURE_MS, LEAD_MS = 120.0, 250.0
# Readings of the agent's first word: at these levels, over these gaps, and at most so late.
LEVELS_DB, GAPS_MS, LATE_MS = (-6.0, 0.0, 6.0), (15.0, CLOSURE_MS), 80.0
# From this spread on, the ear itself was not sure which sound begins the word.
LONG_LEAD_MS = 90.0
# Silero needs a window to be sure that speech begins; this much is read after an onset.
LAG_STEPS, AFTER_MS = 6, 1200.0
# So long, and with such a mean probability, only speech is speech to Silero.
SURE_STEPS, SURE = 80, 0.85
# Times that are stored twice are equal to this; what `score` takes for dead air, and for a hole.
NEAR_MS, DEAD_AIR_MS, HOLE_MS = 1.0, 2000.0, 500.0
# Of a turn longer than this, not all speech is stored.
LONGEST_MS = 580_000.0
# A hole of the line so soon after the onset makes another word the first to this reading.
TORN_MS = 1000.0

Spans = Sequence[tuple[float, float]]

NO_DIGESTS = "run.json has no digests of the audio: the run is older than they are"


NOT_COVERED = (
    "greetings, yields, holes under 500 ms and false starts against the audio; channels and notes; "
    "the agent's own marks and counts; what a line did; words and verdicts (docs/verify.md)"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A stored figure that is not the derived one; `turn` names its turn or file."""

    turn: str
    what: str
    stored: Any
    derived: Any
    why: str

    def __str__(self) -> str:
        return f"{self.turn}: {self.what} {self.stored}, derived {self.derived}: {self.why}"


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification: turns checked, differences, and what could not be derived.

    `derived` counts the turns whose figures the audio confirms or refutes; `not_derived` counts the
    others by their reason. `files` counts the audio files whose digest was compared.
    """

    run: Path
    checked: int
    derived: int
    files: int
    differ: tuple[Difference, ...]
    not_derived: dict[str, int] = field(default_factory=dict[str, int])

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "run": str(self.run)}

    def lines(self) -> list[str]:
        """Describe the result for people: the differences first, then what was not derived."""
        of = f"{self.checked} turns checked, {self.derived} of them by their audio"
        files = f"{self.files} audio files are the stored ones" if self.files else NO_DIGESTS
        if any(one.what == "sha256" for one in self.differ):
            files = f"{self.files} audio files compared by their digests"
        n = len(self.differ)
        result = "no difference" if not n else "1 difference" if n == 1 else f"{n} differences"
        if not self.derived:
            result += ", but no turn is confirmed" * (not n)
            of = f"{self.checked} turns checked, none of them by its audio"
        reasons = [f"  not derived of {n}: {why}" for why, n in self.not_derived.items()]
        result = f"{self.run}: {result}; {of}; {files}"
        return [*map(str, self.differ), result, *reasons, f"  not covered: {NOT_COVERED}"]


class _NotDerivedError(Exception):
    """The audio cannot show a turn's figures; the text is the reason, the same for like turns."""


def verify(folder: Path, on_turn: Callable[[int, int], None] = lambda _done, _of: None) -> Verified:
    """Verify a stored run: its files, its arithmetic, and what its audio shows.

    Raises:
        InputError: the folder holds no run that can be read.
    """
    run = read_run(folder)
    altered, files = _altered(folder, run.record, run.turns)
    differ = [*altered.values(), *_of_the_run(run.record, run.turns, altered)]
    try:
        differ += _of_the_calls(run.record, run.turns)
    except (KeyError, TypeError, ValueError, OverflowError):  # of a stranger's file
        why = "the stored events of its speech cannot be read"
        differ.append(Difference("the run", "events", None, None, why))
    calls = run.record.scored.calls if run.record.scored else ()
    echoing = {call.name for call in calls if call.echo_db is not None}
    reasons = Counter[str]()
    for done, turn in enumerate(run.turns, start=1):
        differ += _arithmetic(turn, run.record.budget_ms if calls else None)
        try:
            if turn.audio is not None and turn.audio.file in altered:
                raise _NotDerivedError("its audio file is not the one of the run")
            heard = [*_heard(turn, folder, echo=turn.scenario in echoing)]
            if heard and run.record.metrics_version != METRICS_VERSION:
                raise _NotDerivedError("its metrics version reads first words otherwise")
            there = {(each.turn, each.what) for each in differ}
            differ += [each for each in heard if (each.turn, each.what) not in there]
        except _NotDerivedError as e:
            reasons[str(e)] += 1
        on_turn(done, len(run.turns))
    derived = len(run.turns) - reasons.total()
    return Verified(folder, len(run.turns), derived, files, tuple(differ), dict(reasons))


# --- files and the run --------------------------------------------------------------------------


def _altered(
    folder: Path, record: RunRecord, turns: Sequence[Turn]
) -> tuple[dict[str, Difference], int]:
    """Compare the digests; return the differences by file, and how many files were compared."""
    found: dict[str, Difference] = {}
    if not record.audio_sha256:
        return found, 0
    names = {turn.audio.file: _name(turn.key) for turn in turns if turn.audio is not None}
    for file, digest in record.audio_sha256.items():
        try:
            now = sha256_of(folder / file, below=folder)
        except OSError as e:
            if file not in names and isinstance(e, FileNotFoundError):
                continue  # it is not published; `_of_the_run` looks for its turn
            why = "the file is missing" if isinstance(e, FileNotFoundError) else str(e)
            why += f" ({names.get(file, 'of no turn')})"
            found[file] = Difference(file, "sha256", digest, None, why)
            continue
        if now != digest:
            why = f"the file was altered ({names.get(file, 'of no turn')})"
            found[file] = Difference(file, "sha256", digest, now, why)
    for path in sorted((folder / AUDIO_DIR).glob("*")):
        file = f"{AUDIO_DIR}/{path.name}"
        if file not in record.audio_sha256 and record.finished_utc is not None:
            found[file] = Difference(file, "sha256", None, "", "run.json does not name the file")
    return found, len(record.audio_sha256)


def _of_the_run(
    record: RunRecord, turns: Sequence[Turn], altered: dict[str, Difference]
) -> Iterator[Difference]:
    """Yield turns that are stored twice or are missing, and a verdict that has no reason."""
    if record.valid != (not record.why_invalid):
        why = "; ".join(record.why_invalid) or "no reason is stored"
        yield Difference("the run", "valid", record.valid, not record.why_invalid, why)
    for key, n in Counter(turn.key for turn in turns).items():
        if n > 1:
            yield Difference(_name(key), "turns.jsonl", n, 1, "the turn is stored more than once")
    named = {turn.audio.file for turn in turns if turn.audio is not None}
    orphans = sorted(record.audio_sha256.keys() - named - altered.keys())
    numbers: dict[tuple[str, float, int], set[int]] = defaultdict(set)
    for turn in turns:
        numbers[turn.call].add(turn.turn)
    lacking = [
        _name((scenario, number, phase, repeat))
        for (scenario, phase, repeat), there in numbers.items()
        for number in range(1, max(there))
        if number not in there
    ]
    short = record.planned_turns - len(turns)
    owned_up = (
        record.finished_utc is None
        or record.failure is not None
        or any(f"{len(turns)} of {record.planned_turns}" in why for why in record.why_invalid)
    )
    if owned_up or not (lacking or orphans or short > 0):
        return
    said = [f"{file} belongs to no turn" for file in orphans]
    said += [f"{record.planned_turns} turns were planned"] if short > 0 else []
    missing = max(short, len(lacking), len(orphans))
    where = ", ".join(lacking) or "the run"
    why = "; ".join(said) or "later turns of the call are stored"
    yield Difference(where, "turns", len(turns), len(turns) + missing, f"missing: {why}")


def _name(key: tuple[str, int, float, int]) -> str:
    scenario, turn, phase_ms, repeat = key
    return f"{scenario} turn {turn} round {repeat}" + (f" phase {phase_ms:g} ms" * bool(phase_ms))


# --- the calls of a scored run ------------------------------------------------------------------


def _of_the_calls(record: RunRecord, turns: Sequence[Turn]) -> Iterator[Difference]:
    """Yield the figures of a scored run that do not follow from the speech of its calls."""
    by_call: dict[str, list[Turn]] = defaultdict(list)
    for turn in sorted(turns, key=lambda turn: turn.turn):
        by_call[turn.scenario].append(turn)
    for call in record.scored.calls if record.scored else ():
        if call.sha256 != (stored := record.scenario_hashes.get(call.name)):
            yield Difference(call.name, "sha256", call.sha256, stored, "by scenario_hashes")
        mine = by_call[call.name]
        events = [event for turn in mine for event in turn.events]
        if [turn.turn for turn in mine] != [*range(1, call.turns + 1)] or not events:
            continue  # _of_the_run names missing turns
        ends_ms, agent = call.seconds * 1000, _spans(events, call.seconds * 1000)
        starts = [_user_ms(turn)[0] for turn in mine]
        audio = mine[0].audio
        greeting = agent[0][0] if agent and agent[0][0] < starts[0] else None
        if audio is None or not _near(starts[0], audio.user_start_ms):
            greeting = mine[0].greeting_ms  # the first window may begin after the greeting
        for name, at in (call.name, call.greeting_ms), (_name(mine[0].key), mine[0].greeting_ms):
            if not _near(at, greeting):
                yield Difference(name, "greeting_ms", at, greeting, "the agent first speaks there")
        for turn, until_ms in zip(mine, [*starts[1:], ends_ms], strict=True):
            for what, now, why in _by_speech(turn, agent, until_ms, ends_ms, record):
                was = getattr(turn.audio if what == "user_end_ms" else turn, what)
                was = sorted(hole.ms for hole in was) if what == "holes" else was
                yield Difference(_name(turn.key), what, was, now, why)


def _by_speech(
    turn: Turn, agent: Spans, until_ms: float, ends_ms: float, record: RunRecord
) -> Iterator[tuple[str, Any, str]]:
    """Yield the figures of a turn that do not follow: name, derived value, and why."""
    start_ms, end_ms = _user_ms(turn)
    audio = turn.audio
    if audio and not _near(audio.user_end_ms - audio.user_start_ms, end_ms - start_ms):
        now = audio.user_start_ms + end_ms - start_ms
        yield "user_end_ms", now, "the event of the person's speech ends there"
        return
    no_reply_ms = record.settings.get("no_reply_ms", NO_REPLY_MS)
    silent_ms = ends_ms - end_ms
    short = turn.ended == "timeout" and silent_ms < no_reply_ms
    if turn.gap_ms is None and (turn.left_out is not None) != short:
        now = f"the recording ends {silent_ms:.0f} ms after the person" if short else None
        yield "left_out", now, f"{no_reply_ms:g} ms without a reply are awaited"
    if turn.turn > 1 and turn.greeting_ms is not None:
        yield "greeting_ms", None, "a greeting precedes the first turn"
    if turn.yield_ms is not None and not _among(start_ms + turn.yield_ms, [b for _, b in agent]):
        yield "yield_ms", None, "the agent does not fall silent there"
    first_ms, begins = turn.first_answer_ms, [a for a, _ in agent]
    late = first_ms is not None and first_ms >= (turn.gap_ms or 0.0) - NEAR_MS
    if first_ms is not None and late and not _among(end_ms + first_ms, begins):
        yield "first_answer_ms", turn.gap_ms, "no reply begins there"
    if turn.backchannels or until_ms - start_ms > LONGEST_MS:
        return  # neither the lengths of backchannels nor speech after 10 minutes are stored
    pauses = [(start_ms + p.start_ms, start_ms + p.end_ms) for p in turn.pauses or ()]
    bounds = [start_ms, *(ms for pause in pauses for ms in pause), end_ms]
    person = list(zip(bounds[::2], bounds[1::2], strict=True))
    heard = [(max(a, start_ms), min(b, until_ms)) for a, b in agent if a < until_ms]
    heard = [(a, b) for a, b in heard if a < b]
    together = sum(max(0.0, min(b, d) - max(a, c)) for a, b in person for c, d in heard)
    if not _near(turn.talk_over_ms, together):
        yield "talk_over_ms", together, "both sides speak for so long"
    last = [(until_ms, until_ms)] if until_ms < ends_ms else []
    dead = sum(ms for _, ms in _silences([*person, *heard, *last], DEAD_AIR_MS))
    if not _near(turn.dead_air_ms, dead):
        yield "dead_air_ms", dead, "both sides are silent for so long"
    onset_ms = None if turn.gap_ms is None else end_ms + turn.gap_ms
    reply = [] if onset_ms is None else [s for s in heard if s[1] > onset_ms]
    silent = [ms for _, ms in _silences(reply, HOLE_MS)]
    holes = sorted(hole.ms for hole in turn.holes)
    long = [ms for ms in holes if ms >= HOLE_MS]
    if len(long) > len(silent) or not all(_among(ms, silent) for ms in long):
        yield "holes", sorted(silent), "the reply has these silences of 500 ms or more"


def _spans(events: Sequence[Mapping[str, Any]], ends_ms: float) -> Spans:
    """Return the agent's speech by the events of a call, in ms from its start."""
    starts = [ns_to_ms(e["onset_ns"]) for e in events if e.get("event") == "AgentSpeech"]
    ends = sorted(ns_to_ms(e["at_ns"]) for e in events if e.get("event") == "AgentSilence")
    return [(a, next((b for b in ends if b >= a), ends_ms)) for a in sorted(starts)]


def _silences(spans: Spans, least_ms: float) -> Spans:
    """Return where silences between spans begin, and how long they are."""
    found, upto = list[tuple[float, float]](), None
    for a, b in sorted(spans):
        if upto is not None and a - upto >= least_ms:
            found.append((upto, a - upto))
        upto = b if upto is None else max(upto, b)
    return found


def _user_ms(turn: Turn) -> tuple[float, float]:
    """Return the bounds of the person's speech in the call, by the turn's event."""
    for event in turn.events:
        if event.get("event") == "UserSpeech":
            return ns_to_ms(event["start_ns"]), ns_to_ms(event["end_ns"])
    return 0.0, 0.0


def _among(ms: float, others: Sequence[float]) -> bool:
    return any(_near(ms, other) for other in others)


def _near(one: float | None, other: float | None) -> bool:
    return one == other if one is None or other is None else abs(one - other) < NEAR_MS


# --- a turn's own arithmetic --------------------------------------------------------------------


def _arithmetic(turn: Turn, scored: float | None) -> Iterator[Difference]:
    """Yield the figures of a turn that do not follow from its others; `scored`: a call's budget."""

    def differs(what: str, stored: Any, derived: Any, why: str) -> Difference:
        return Difference(_name(turn.key), what, stored, derived, why)

    gap_ms = None if turn.gap_ns is None else ns_to_ms(turn.gap_ns)
    if turn.gap_ms != gap_ms:
        yield differs("gap_ms", turn.gap_ms, gap_ms, "it is not gap_ns")
    if (gap_ms is None) != (turn.why_no_gap is not None):
        yield differs(
            "why_no_gap", turn.why_no_gap, gap_ms, "a turn has a gap, or a reason for none"
        )
    outcome = outcome_of(gap_ms, turn.budget_ms, turn.ended, failed=turn.error is not None)
    if turn.outcome != outcome and turn.left_out is None:  # no one spoke a typed turn
        yield differs("outcome", turn.outcome, outcome, "it follows from gap, budget and end")
    if turn.left_out is not None and gap_ms is not None:
        yield differs("left_out", turn.left_out, None, "a turn with a gap is counted")
    spoken = [event for event in turn.events if event.get("event") == "UserSpeech"]
    budget_ms = spoken[0].get("budget_ms", turn.budget_ms) if len(spoken) == 1 else turn.budget_ms
    budget_ms = budget_ms if scored is None else scored
    if turn.budget_ms != budget_ms:
        yield differs("budget_ms", turn.budget_ms, budget_ms, "it was measured against that")
    first_ms = turn.first_answer_ms
    if gap_ms is not None and first_ms is not None and first_ms < gap_ms - NEAR_MS:
        yield differs("first_answer_ms", first_ms, gap_ms, "no answer precedes the reply")
    if any(stage.ms != ns_to_ms(stage.ns) for stage in turn.stages):
        yield differs("stages", "ms", "ns", "a stage's ms and ns are not the same time")
    total = sum(stage.ns for stage in turn.stages)
    marks = {mark.name: mark.at_ns for mark in turn.marks}
    if gap_ms is None:
        return
    if total != turn.gap_ns:
        yield differs("stages", total, turn.gap_ns, "they do not sum to the gap")
    if {"user_end", "agent_onset"} <= marks.keys():
        if marks["agent_onset"] - marks["user_end"] != turn.gap_ns:
            apart = marks["agent_onset"] - marks["user_end"]
            yield differs("marks", apart, turn.gap_ns, "they are not as far apart as the gap")
        elif total == turn.gap_ns and stages_of(marks) != turn.stages:
            yield differs("stages", _stages(turn.stages), _stages(stages_of(marks)), "by the marks")
    if (audio := turn.audio) is None or audio.onset_ms is None:
        return
    apart_ms = audio.onset_ms - audio.user_end_ms
    if abs(apart_ms - gap_ms) > 0.01:
        yield differs("gap_ms", gap_ms, apart_ms, "the bounds in its audio are not so far apart")


def _stages(stages: Any) -> dict[str, float]:
    return {stage.name: stage.ms for stage in stages}


# --- what the audio shows -----------------------------------------------------------------------


def _heard(turn: Turn, folder: Path, *, echo: bool) -> Iterator[Difference]:
    """Yield the bounds of a turn that are not where its audio has them.

    Raises:
        _NotDerivedError: the audio cannot show them.
    """
    audio = turn.audio
    if turn.left_out is not None:
        raise _NotDerivedError("the run's figures leave the turn out")
    if audio is None:
        raise _NotDerivedError("no audio was kept of the turn")
    if not (folder / audio.file).exists():
        raise _NotDerivedError("its audio file is missing")
    sound = read_sound(folder / audio.file, "verify", below=folder, channels=2)
    both = sound.samples.astype(np.float64) / FULL_SCALE
    both = both if sound.rate == RATE else soxr.resample(both, sound.rate, RATE)
    unsure = ""
    try:
        yield from _persons_end(turn, audio, both[:, 0], echo=echo)
    except _NotDerivedError as e:
        unsure = str(e)
    yield from _reply(turn, audio, both[:, 1])
    if unsure:
        raise _NotDerivedError(unsure)


def _persons_end(
    turn: Turn, audio: AudioRecord, person: Floats, *, echo: bool
) -> Iterator[Difference]:
    """Yield a difference if the person's speech does not end at its label, by the level alone.

    Raises:
        _NotDerivedError: the speech fades into noise, and three levels place its end differently.
    """
    first, last = audio.user_start_ms - 400, audio.user_end_ms + 700
    levels = _levels(_cut(person, first, last))
    voice = levels[_step(audio.user_start_ms - max(0.0, first)) :]
    voice = voice[: max(1, _step(audio.user_end_ms - audio.user_start_ms))]
    if not len(voice):
        raise _NotDerivedError("the person's bounds lie outside its audio")
    loud, noise = np.percentile(voice, LOUD_PERCENT), np.percentile(levels, 10)
    ends: list[float] = []
    for fade_db, over_db in ENDS_DB:
        stretches = _stretches(levels > max(loud - fade_db, noise + over_db, FLOOR_DBFS))
        found = [max(0.0, first) + (end - 1) * STEP_MS for _, end in stretches]
        if found:
            ends.append(min(found, key=lambda end: abs(end - audio.user_end_ms)))
    error_ms = (LABEL_ERROR_MS if audio.label_error_ms is None else audio.label_error_ms) + OWN_MS
    if ends and not min(ends) - error_ms <= audio.user_end_ms <= max(ends) + error_ms:
        if echo and audio.user_end_ms < min(ends):
            raise _NotDerivedError("the agent's echo may follow the person's last word")
        why = f"the person's speech ends there, ±{error_ms:.0f} ms"
        now = round(float(np.median(ends)))
        yield Difference(_name(turn.key), "user_end_ms", audio.user_end_ms, now, why)
    elif not ends or max(ends) - min(ends) > UNSURE_MS:
        raise _NotDerivedError("the person's last word fades slowly, or into noise")


@dataclass(frozen=True, slots=True)
class _Speech:
    """A stretch of the agent's speech: between which instants it begins, and its end, in ms.

    `sure`: it is no tone or tune, which Silero takes for speech here and there.
    """

    from_ms: float
    to_ms: float
    end_ms: float
    sure: bool

    def begins_at(self, ms: float, error_ms: float) -> bool:
        return self.from_ms - error_ms <= ms <= self.to_ms + error_ms


def _reply(turn: Turn, audio: AudioRecord, agent: Floats) -> Iterator[Difference]:
    """Yield a difference if the agent's first word is not where the turn has it.

    Raises:
        _NotDerivedError: what is heard is no speech to Silero, or may belong to another turn.
    """
    name, onset_ms, end_ms = _name(turn.key), audio.onset_ms, audio.user_end_ms
    heard = agent if onset_ms is None else _cut(agent, 0, onset_ms + AFTER_MS)
    levels, found = _agents_speech(heard)
    told = bool(turn.ambiguous or turn.backchannels_heard or turn.false_starts)
    told = told or turn.yield_ms is not None or turn.first_answer_ms != turn.gap_ms
    own = [s for s in found if s.from_ms > audio.user_start_ms]
    if onset_ms is None:
        if not own or turn.outcome == "error":
            return
        if told or turn.why_no_gap is None or turn.ended == "interrupted":
            raise _NotDerivedError("speech is heard, and the run says why it may be no reply")
        if turn.bed_dbfs is not None or "cannot be placed" in turn.why_no_gap:
            raise _NotDerivedError("a bed plays, under which the ear places no word")
        if not any(s.sure for s in own):
            raise _NotDerivedError("the agent's sound is no speech to the ear, and some to this")
        derived = round(own[0].from_ms - end_ms)
        yield Difference(name, "gap_ms", None, derived, "the agent speaks there")
        return
    spread_ms = turn.onset_spread_ms or 0.0
    placed = [s for s in found if s.begins_at(onset_ms, spread_ms + OWN_MS)]
    if placed:
        before = [s for s in own if s.end_ms < placed[0].from_ms and not told]
        if before:
            raise _NotDerivedError("speech is heard before the first word")
        return
    near = levels[_step(max(0.0, onset_ms - OWN_MS)) : _step(onset_ms + 100)]
    loud = bool(len(near)) and float(near.max()) > FLOOR_DBFS
    if spread_ms >= LONG_LEAD_MS and any(s.begins_at(onset_ms, AFTER_MS / 4) for s in found):
        raise _NotDerivedError("other sound leads into the first word, and the run says so")
    dry = any("ran dry" in note for note in turn.notes)
    if dry and any(s.begins_at(onset_ms, CLOSURE_MS) for s in found):
        raise _NotDerivedError("the playout buffer ran dry, which shifts sound in the recording")
    if turn.line is not None and any(hole.at_ms < TORN_MS for hole in turn.line.dry):
        raise _NotDerivedError("the line tore the beginning of the reply")
    if turn.bed_dbfs is not None:
        raise _NotDerivedError("a bed plays under the first word")
    if loud and not any(abs(s.from_ms - onset_ms) < AFTER_MS for s in found):
        raise _NotDerivedError("the agent's sound is no speech to this reading")
    late = [s for s in own if s.from_ms > audio.user_start_ms] or found
    best = min(late, key=lambda s: abs(s.from_ms - onset_ms), default=None)
    derived = None if best is None else round(best.from_ms - end_ms)
    why = f"the first word is heard there, ±{spread_ms + OWN_MS:.0f} ms"
    yield Difference(name, "gap_ms", turn.gap_ms, derived, why if best else "nothing is heard")


def _agents_speech(agent: Floats) -> tuple[Floats, list[_Speech]]:
    """Return the levels of the agent's channel, and its stretches of speech."""
    levels = _levels(agent)
    sounding = np.flatnonzero(agent)
    if not len(sounding):
        return levels, []
    first = max(0, int(sounding[0]) // STEP - 60)
    chances = np.zeros(len(levels))
    chances[first:] = speech_probability(agent[first * STEP :], len(levels) - first)
    found: list[_Speech] = []
    for begun, end in _stretches(chances >= SPEECH, 0):
        loud = np.percentile(levels[begun : min(end, begun + 120)], LOUD_PERCENT)
        before = levels[max(0, begun - 160) : max(1, begun - 30)]
        level = max(
            min(AUDIBLE_DBFS, loud - BELOW_VOICE_DB), float(np.median(before)) + ABOVE_NOISE_DB
        )
        at, starts = max(0, begun - LAG_STEPS), list[float]()
        for over_db in LEVELS_DB:
            audible = levels > level + over_db
            if audible[at:end].any():
                first_audible = at + int(np.argmax(audible[at:end]))
                starts += [_back(audible, first_audible, ms) * STEP_MS for ms in GAPS_MS]
        if not starts:
            continue
        starts.append(min(at * STEP_MS, min(starts) + LATE_MS))
        sure = end - begun >= SURE_STEPS and float(chances[begun:end].mean()) >= SURE
        found.append(_Speech(min(starts), max(starts), end * STEP_MS, sure))
    return levels, found


def _back(audible: NDArray[np.bool_], at: int, gap_ms: float) -> int:
    """Return where the sound that leads into a step begins, over gaps, 250 ms back at most."""
    gap, least = _step(gap_ms), at - _step(LEAD_MS)
    while at > least:
        before = np.flatnonzero(audible[max(0, at - 1 - gap) : at])
        if not len(before):
            break
        at = max(0, at - 1 - gap) + int(before[0])
    return at


def _step(ms: float) -> int:
    return int(ms / STEP_MS)


def _cut(pcm: Floats, from_ms: float, to_ms: float) -> Floats:
    return pcm[max(0, int(from_ms * RATE / 1000)) : max(0, int(to_ms * RATE / 1000))]


def _levels(pcm: Floats) -> Floats:
    """Return the level of each step of 5 ms, in dBFS, of the bands of speech together."""
    return 10 * np.log10((10 ** (band_levels(pcm) / 10)).sum(axis=0) + 1e-14)


def _stretches(wanted: NDArray[np.bool_], gap: int = int(CLOSURE_MS / STEP_MS)) -> list[list[int]]:
    """Return the stretches of wanted steps; those at most `gap` steps apart are one."""
    found: list[list[int]] = []
    edges = np.flatnonzero(np.diff(np.concatenate(([False], wanted, [False]))))
    for begun, end in edges.reshape(-1, 2).tolist():
        if found and begun - found[-1][1] <= gap:
            found[-1][1] = end
        else:
            found.append([begun, end])
    return found
