"""Read stereo call recordings, decide which side is the person's, and measure their faults."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from turngap.core.audio import Pcm
from turngap.core.errors import InputError
from turngap.core.untrusted import harmless
from turngap.core.wording import several
from turngap.store.files import sha256_of
from turngap.store.folders import AUDIO_DIR, RUN_FILE
from turngap.store.sound import read_sound

Side = Literal["left", "right"]
Person = Literal["left", "right", "auto"]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SUFFIXES = frozenset({".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".w64"})
FRAME_MS = 20
# Softer frames hold no voice; a side without a louder one is silent.
SILENT_DBFS = -60.0
# Frames of a voice that speaks lie less than this below its loud ones.
SPEAKS_DB = 25.0
# The shares of digital silence of a microphone and of a synthesiser differ by more; so do their
# noise floors, in dB.
SILENCE_APART, FLOOR_APART_DB = 0.3, 12.0
# Sides that correlate so well are one and the same.
SAME = 0.98
# An echo correlates with its source from here on; at most this many windows are compared, up to a
# delay of half a second in either direction.
ECHO, ECHO_WINDOWS, ECHO_WINDOW_MS, ECHO_LAG_MS = 0.3, 20, 400, 500.0
SAME_DELAY_MS = 30.0
ECHO_BELOW_DB = 2.0  # a person who speaks at the same time hides it
# Sides that hold each other's voice from here on are not apart.
CROSSTALK_DB = -6.0
# What lies no more than this over the echo of the other side is taken for the echo.
ECHO_MARGIN_DB = 6.0
# An echo that comes before its source by more says that the sides are not aligned.
EARLY_MS = 5.0
CLIPPED_SHARE = 1e-4
# A side that is centred further from zero (-60 dBFS) is moved there.
OFF_CENTRE = 33
# A microphone's side has hardly a frame of digital silence; a stretch of it is a hole.
HOLE_MS, HOLES_SHARE = 200, 0.1


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded call: both sides as mono int16 of one length and rate, aligned.

    Attributes:
        side: the person's channel; `why_side` says what decided it.
        notes: faults of the recording, each with its figure and what it does to the figures.
        echo_db: the level of the agent's voice in the person's channel, relative to its own; None
            if none was found. The person's side is silenced where it is no louder than that, and
            the agent's side where it is no louder than an echo of the person.
        offset_ms: by how much the agent's side was moved against the person's.
        sha256: of the file.
        recorded: both sides with the echo that was silenced in the others, for those who listen.
    """

    path: Path
    rate: int
    person: Pcm
    agent: Pcm
    side: Side
    why_side: str
    notes: tuple[str, ...] = ()
    echo_db: float | None = None
    offset_ms: float = 0.0
    sha256: str = ""
    recorded: tuple[Pcm, Pcm] | None = None


def find_recordings(paths: Sequence[Path]) -> list[Path]:
    """Return the recordings among files and below folders, in the order of their names.

    A path that is given may be a link; links below a folder are not followed.

    Raises:
        InputError: a path does not exist, or a folder holds no recording.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
            root = path.resolve()  # a link below it may lead out of it, to what is not given
            files = [p for p in inside if p.is_file() and p.resolve() == root / p.relative_to(path)]
            if not files:
                raise InputError(
                    "call.none",
                    f"{harmless(str(path))} holds no recording",
                    hint="give a folder of stereo WAV, FLAC, Ogg or MP3 files",
                )
            found += files
        elif path.exists():
            found.append(path)
        else:
            raise InputError("call.missing", f"{harmless(str(path))} does not exist")
    return list(dict.fromkeys(found))


def read_recording(
    file: Path, *, person: Person = "auto", offset_ms: float | None = None
) -> Recording:
    """Read a call, and decide which side is the person's.

    Args:
        file: a stereo recording.
        person: the person's channel; `auto` decides by the sound.
        offset_ms: by how much the agent's side is late in the file; None: by an echo, if any.

    Raises:
        InputError: it cannot be read, has no two sides, or the person's side cannot be decided.
    """
    sound = read_sound(file, "call", channels=2, call=True)
    (left, left_by), (right, right_by) = (_centred(sound.samples[:, n]) for n in (0, 1))
    name, rate = harmless(str(file)), sound.rate
    del sound
    _check_heard(name, left, right, rate, person)
    if _correlation(left, right) > SAME:
        raise InputError(
            "call.mono",
            f"{name}: both channels hold the same sound",
            hint="record both sides apart (dual-channel, stereo)",
        )
    side, why = (person, "as given") if person != "auto" else _decide(file, left, right, rate)
    notes = tuple(
        f"the {each} side is centred at {by} of 32,768: moved to zero"
        for each, by in (("left", left_by), ("right", right_by))
        if by
    )
    if side == "right":
        left, right = right, left
    recording = Recording(file, rate, left, right, side, why, notes, sha256=sha256_of(file))
    return _with_notes(recording, offset_ms)


def _check_heard(name: str, left: Pcm, right: Pcm, rate: int, person: Person) -> None:
    """Refuse a call in which the person, or a side that might be the person's, is silent."""
    loudest = {
        side: float(_levels(pcm, rate).max(initial=-120.0))
        for side, pcm in (("left", left), ("right", right))
    }
    silent = [side for side, level in loudest.items() if level < SILENT_DBFS]
    if len(silent) == 2:
        raise InputError(
            "call.silent",
            f"{name}: nothing can be heard on either side",
            hint="play it; if it is silent, the recorder was not connected to the call",
        )
    if silent and person in ("auto", silent[0]):
        other = "right" if silent[0] == "left" else "left"
        raise InputError(
            "call.silent",
            f"{name}: the {silent[0]} side is silent (at most {loudest[silent[0]]:.0f} dBFS)",
            hint=f"if the person is on the {other} and the agent never spoke, "
            f"--person {other} counts its turns without reply",
        )


def _centred(pcm: Pcm) -> tuple[Pcm, int]:
    """Return a side around zero, and by how much it was off."""
    centre = int(np.median(pcm)) if len(pcm) else 0
    if abs(centre) < OFF_CENTRE:
        return np.ascontiguousarray(pcm), 0
    moved = np.clip(pcm, max(-32768, centre - 32768), min(32767, centre + 32767)) - centre
    return np.ascontiguousarray(moved.astype(np.int16)), centre


def _still(pcm: Pcm, rate: int) -> Bools:
    """Return which 20 ms are digital silence: no two samples differ by more than 2."""
    size = rate * FRAME_MS // 1000
    whole = pcm[: len(pcm) // size * size].reshape(-1, size)
    if not whole.size:
        return np.zeros(len(whole), np.bool_)
    return np.asarray(whole.max(axis=1).astype(np.int32) - whole.min(axis=1) <= 2)


def _levels(pcm: Pcm, rate: int) -> Floats:
    """Return the level of each 20 ms in dBFS."""
    size = rate * FRAME_MS // 1000
    whole = pcm[: len(pcm) // size * size].reshape(-1, size)
    powers = [np.empty(0)]
    for first in range(0, len(whole), 4096):
        block = whole[first : first + 4096].astype(np.float64)
        powers.append(np.mean(np.square(block), axis=1))
    return 10 * np.log10(np.concatenate(powers) / 2**30 + 1e-12)


def _speaks(levels: Floats) -> Bools:
    """Return which frames may hold the side's voice."""
    heard = levels[levels > SILENT_DBFS]
    loud = float(np.percentile(heard, 95)) if len(heard) else 0.0
    return np.asarray(levels > max(SILENT_DBFS, loud - SPEAKS_DB))


def _correlation(one: Pcm, other: Pcm) -> float:
    """Return how alike two sides are, by a minute of their sound."""
    step = max(1, len(one) // 960_000)
    a, b = (side[::step].astype(np.float64) for side in (one, other))
    return abs(float(a @ b)) / (float(np.sqrt((a @ a) * (b @ b))) + 1e-9)


def _decide(file: Path, left: Pcm, right: Pcm, rate: int) -> tuple[Side, str]:
    """Return the person's side, and what decided it.

    Raises:
        InputError: nothing does.
    """
    if file.parent.name == AUDIO_DIR and (file.parent.parent / RUN_FILE).exists():
        return "left", "turngap's own recordings have the person on the left"
    levels = [_levels(side, rate) for side in (left, right)]
    digital = [float(_still(side, rate).mean()) for side in (left, right)]
    first = _first_speaker(levels)
    if abs(digital[0] - digital[1]) > SILENCE_APART:
        side: Side = "left" if digital[0] < digital[1] else "right"
        shares = (
            f"{min(digital):.0%} of it is digital silence, of the other side {max(digital):.0%}"
        )
        return side, f"a microphone is never quite silent: {shares}{_order(side, first)}"
    floors = [float(np.percentile(each, 10)) for each in levels]
    if abs(floors[0] - floors[1]) > FLOOR_APART_DB:
        side = "left" if floors[0] > floors[1] else "right"
        if side != first:  # an office behind the agent's voice is noise, too
            return side, (
                f"its noise floor is {max(floors):.0f} dBFS, the other side's {min(floors):.0f}: "
                f"microphones hear a room{_order(side, first)}"
            )
    raise InputError(
        "call.side",
        f"{harmless(str(file))}: the sound does not show which side is the person",
        hint="give --person left or --person right",
    )


def _first_speaker(levels: Sequence[Floats]) -> Side | None:
    """Return which side speaks first, by half a second or more."""
    frames = 500 // FRAME_MS
    heard = [np.flatnonzero(_speaks(each)) for each in levels]
    left, right = (int(each[0]) if len(each) else 10**9 for each in heard)
    if abs(left - right) < frames:
        return None
    return "left" if left < right else "right"


def _order(side: Side, first: Side | None) -> str:
    """Say whether the order of the voices fits a decision: most agents greet."""
    if first is None:
        return ""
    if first != side:
        return "; the other side speaks first, as a greeting does"
    return "; but it speaks first, where most agents greet: check it, or give --person"


def _with_notes(recording: Recording, offset_ms: float | None) -> Recording:
    """Measure a recording's faults; align its sides, and take the echo out of the person's."""
    notes, rate = list(recording.notes), recording.rate
    for who, pcm in (("person", recording.person), ("agent", recording.agent)):
        low, high = int(pcm.min(initial=0)), int(pcm.max(initial=0))
        limit = max(high, -low - 1)
        clipped = np.count_nonzero((pcm >= limit) | (pcm <= -limit)) / len(pcm)
        if limit > 30_000 and clipped > CLIPPED_SHARE:
            notes.append(f"{clipped:.2%} of the {who}'s samples are clipped: edges may move by ms")
    if float(_levels(recording.agent, rate).max(initial=-120.0)) < SILENT_DBFS:
        notes.append("the agent's side is silent: its recording may be lost, not its replies")
    if hole := _holes(recording.person, rate):
        notes.append(hole)
    if offset_ms:
        recording = _moved(recording, offset_ms)
        notes.append(f"the agent's side was moved by {-offset_ms:g} ms, as given")
    echo = _echo(recording.agent, recording.person, rate)
    if echo is not None and offset_ms is None and echo[1] < -EARLY_MS:
        notes.append(
            f"the agent's echo comes {-echo[1]:.0f} ms before its voice: its side is late by at "
            "least that and was moved; give --offset-ms if you know better"
        )
        recording = _moved(recording, -echo[1])
        echo = echo[0], 0.0
    back = _echo(recording.person, recording.agent, rate)
    if any(each is not None and each[0] > CROSSTALK_DB for each in (echo, back)):
        raise InputError(
            "call.crosstalk",
            f"{harmless(str(recording.path))}: each side holds the other's voice, within "
            f"{-CROSSTALK_DB:.0f} dB of its own",
            hint="record both sides before they are mixed (dual-channel)",
        )
    person, agent = recording.person, recording.agent
    if echo is not None:
        notes.append(_echo_note("person", "agent", *echo))
        person = _without_echo(person, recording.agent, rate, *echo)
    if back is not None:
        notes.append(_echo_note("agent", "person", *back))
        agent = _without_echo(agent, recording.person, rate, *back)
    return replace(
        recording,
        person=person,
        agent=agent,
        echo_db=None if echo is None else echo[0],
        notes=tuple(notes),
        recorded=(recording.person, recording.agent),
    )


def _echo_note(held_by: str, voice_of: str, echo_db: float, delay_ms: float) -> str:
    when = f"{abs(delay_ms):.0f} ms {'late' if delay_ms >= 0 else 'early'}"
    return (
        f"the {held_by}'s side holds the {voice_of}'s voice at {echo_db:.0f} dB, {when}: "
        f"silenced where the {held_by} is no louder"
    )


def _holes(person: Pcm, rate: int) -> str:
    """Say how long the person's side lost its sound, if it has a microphone's noise elsewhere."""
    still = _still(person, rate)
    if not 0 < still.mean() < HOLES_SHARE:
        return ""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], still.astype(np.int8), [0]])))
    lengths = (edges[1::2] - edges[::2]) * FRAME_MS
    lost = lengths[lengths >= HOLE_MS]
    if not len(lost):
        return ""
    return (
        f"the person's side holds {several(len(lost), 'hole')} of digital silence, the longest "
        f"{lost.max():,} ms: speech may be missing, and an end there is the hole's"
    )


def _moved(recording: Recording, late_ms: float) -> Recording:
    """Return the recording with the agent's side moved to be earlier by `late_ms`."""
    by = round(late_ms * recording.rate / 1000)
    agent = np.zeros_like(recording.agent)
    if by >= 0:
        agent[: len(agent) - by] = recording.agent[by:]
    else:
        agent[-by:] = recording.agent[:by]
    return replace(recording, agent=agent, offset_ms=-late_ms)


def _echo(voice: Pcm, holder: Pcm, rate: int) -> tuple[float, float] | None:
    """Return the level in dB and the delay in ms of a side's voice in the other's channel."""
    held, spoken = (_levels(pcm, rate) for pcm in (holder, voice))
    other = _speaks(spoken)
    frames, size = ECHO_WINDOW_MS // FRAME_MS, rate * FRAME_MS // 1000
    room = round(ECHO_LAG_MS) // FRAME_MS
    found: list[tuple[float, float]] = []
    starts = [
        n
        for n in range(room, len(spoken) - frames - room, frames // 2)
        if other[n : n + frames].mean() > 0.7
        and np.mean(held[n : n + frames]) < np.mean(spoken[n : n + frames]) - ECHO_BELOW_DB
    ]
    tried = starts[:: max(1, len(starts) // ECHO_WINDOWS)][:ECHO_WINDOWS]
    lag = round(ECHO_LAG_MS * rate / 1000)
    for n in tried:
        source = voice[n * size : (n + frames) * size].astype(np.float64)
        heard = holder[n * size - lag : (n + frames) * size + lag].astype(np.float64)
        length = 1 << (len(heard) + len(source)).bit_length()
        product = np.fft.rfft(heard, length) * np.conj(np.fft.rfft(source, length))
        match = np.fft.irfft(product, length)[: 2 * lag + 1]
        at = int(np.argmax(np.abs(match)))
        part = heard[at : at + len(source)]
        power = float(source @ source)
        alike = abs(float(match[at])) / (float(np.sqrt(power * (part @ part))) + 1e-9)
        if alike > ECHO:
            level = 20 * np.log10(abs(float(match[at])) / power + 1e-9)
            found.append((float(level), (at - lag) * 1000 / rate))
    middle = float(np.median([delay_ms for _, delay_ms in found])) if found else 0.0
    found = [each for each in found if abs(each[1] - middle) <= SAME_DELAY_MS]
    if len(found) < max(2, len(tried) // 3):
        return None
    levels, delays = zip(*found, strict=True)
    return float(np.median(levels)), float(np.median(delays))


def _without_echo(holder: Pcm, voice: Pcm, rate: int, echo_db: float, delay_ms: float) -> Pcm:
    """Return a side, silenced where it is no louder than the echo of the other's voice."""
    size = rate * FRAME_MS // 1000
    held, heard = (_levels(pcm, rate) for pcm in (holder, voice))
    late = round(delay_ms / FRAME_MS)
    # An echo lasts: of the frames around it, the loudest counts.
    near = [np.roll(heard, late + by) for by in (-1, 0, 1, 2)]
    expected = np.max(near, axis=0) + echo_db + ECHO_MARGIN_DB
    drop = np.repeat((held < expected) & (expected > SILENT_DBFS), size)
    kept = holder.copy()
    kept[: len(drop)][drop] = 0
    return kept
