"""Random choices for each turn before it is spoken: pauses, fillers, melody, speaker, room.

Sources: H. Bortfeld et al., Disfluency rates in conversation (Language and Speech 44, 2001); E.
Campione and J. Véronis, A large-scale multilingual study of silent pause duration (Speech Prosody
2002); A. Gravano and J. Hirschberg, Turn-taking cues in task-oriented dialogue (Computer Speech and
Language 25, 2011); LiveKit's eot-bench, for silence alone.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from training.turns.sentences import Kind, Sentence, SetName
from training.turns.speakers import SPEAKERS, Speaker

# Within-turn silences, in ms: log-normal, of which only those from 100 ms to 3 s are kept. Shorter
# ones are closures of consonants (eot-bench annotates from 100 ms too). Solved for the figures of
# silence alone on eot-bench's 400 English turns (a hold of 300 ms cuts in on 55.6 % of them, and
# it takes 1,600 ms to cut in on 5 %), with as many pauses a turn as are drawn here.
PAUSE_MEDIAN_MS, PAUSE_SIGMA = 148.0, 1.28
PAUSE_LEAST_MS, PAUSE_MOST_MS = 100.0, 3000.0
# How many pauses a turn with any has, as far as it has places for them.
PAUSES_A_TURN = {1: 0.55, 2: 0.33, 3: 0.12}

# 2.6 fillers in 100 words (Bortfeld et al. 2001) of turns of 11 words with 1.4 pauses.
FILLER_SHARE = 0.2
FILLER_BEFORE_SHARE = 0.6

# How a stretch of speech ends, in ToBI's terms; "none" breaks off in the middle.
Tone = Literal["L-L%", "H-L%", "L-H%", "H-H%", "none"]

# Gravano & Hirschberg (2011) counted the tones of people's speech before a pause within a turn:
# 25 % L-L%, 30 % H-L%, 11 % L-H%, 9 % H-H%, 22 % none; and at the end of a turn: 47 %, 13 %, 14 %,
# 22 % and 1 %. How they divide among kinds and questions is this corpus's assumption.
HOLD_TONES: Mapping[Kind, Mapping[Tone, float]] = {
    "whole": {"L-L%": 0.40, "H-L%": 0.24, "L-H%": 0.14, "H-H%": 0.10, "none": 0.12},
    "phrase": {"L-L%": 0.20, "H-L%": 0.34, "L-H%": 0.14, "H-H%": 0.12, "none": 0.20},
    "function": {"L-L%": 0.10, "H-L%": 0.38, "L-H%": 0.06, "H-H%": 0.04, "none": 0.42},
    "digits": {"L-L%": 0.18, "H-L%": 0.36, "L-H%": 0.18, "H-H%": 0.10, "none": 0.18},
}
END_TONES: Mapping[str, Mapping[Tone, float]] = {
    "nothing": {"L-L%": 0.62, "H-L%": 0.15, "L-H%": 0.13, "H-H%": 0.10},
    "a fact": {"L-L%": 0.60, "H-L%": 0.10, "L-H%": 0.12, "H-H%": 0.18},
    "yes or no": {"L-L%": 0.24, "H-L%": 0.08, "L-H%": 0.13, "H-H%": 0.55},
}

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Ending:
    """The ending of a stretch of speech.

    Attributes:
        tone: its boundary tone.
        semitones: where the melody ends, from the stretch's median.
        over_ms: how long the melody takes to get there.
        lengthened: how much longer its last syllables are; 1 is the engine's own.
        softer_db: how much softer the last 250 ms become.
    """

    tone: Tone
    semitones: float
    over_ms: float
    lengthened: float
    softer_db: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """Words said without a pause, and how they end.

    Attributes:
        text: its words, fillers included.
        ending: how it ends.
        higher: its height in the speaker's voice, in semitones.
        louder_db: how much louder it is than the speaker's usual level.
    """

    text: str
    ending: Ending
    higher: float
    louder_db: float


@dataclass(frozen=True, slots=True)
class Silence:
    """A pause: its place, its length, and whether it has a breath or a click in it."""

    kind: Kind
    ms: float
    filler: Literal["before", "after"] | None
    sound: Literal["breath", "click"] | None


@dataclass(frozen=True, slots=True)
class Scene:
    """The room and the line of a recorded turn.

    Attributes:
        active_dbfs: RMS of the speech.
        lead_ms, tail_ms: room sound before and after the speech.
        rt60_s: the room's reverberation time; None: a headset.
        direct_db: the level of the direct sound over the room's.
        snr_db: speech over noise.
        slope: the slope of the noise: 0 white, 1 pink.
        telephone: 8 kHz, 300 to 3,400 Hz, mu-law.
    """

    active_dbfs: float
    lead_ms: float
    tail_ms: float
    rt60_s: float | None
    direct_db: float
    snr_db: float
    slope: float
    telephone: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """One turn: `silences` lie between the `stretches`."""

    stretches: tuple[Stretch, ...]
    silences: tuple[Silence, ...]
    speaker: Speaker
    scene: Scene

    @property
    def say(self) -> str:
        """Return all that is said."""
        return " ".join(stretch.text for stretch in self.stretches)


def planned(sentence: Sentence, set_name: SetName, draw: np.random.Generator) -> Plan:
    """Draw one turn."""
    speaker = SPEAKERS[set_name].drawn(draw)
    scene = _scene(draw)
    count = min(_pick(PAUSES_A_TURN, draw), len(sentence.places))
    at = sorted(draw.choice(len(sentence.places), count, replace=False)) if count else []
    silences = tuple(_silence(sentence.places[i], draw) for i in at)
    cuts = [0, *(int(i) + 1 for i in at), len(sentence.parts)]
    stretches: list[Stretch] = []
    for number, (first, after) in enumerate(itertools.pairwise(cuts)):
        words = " ".join(sentence.parts[first:after])
        if number and silences[number - 1].filler == "after":
            words = f"{_filler(draw)} {words}"
        if number == len(silences):
            tone = _pick(END_TONES[sentence.asks], draw)
            ending = _ending(tone, draw, lengthened=1.1, holds=False)
        else:
            held = silences[number]
            # People draw out the function word at which they stop.
            longer = 1.6 if held.kind == "function" else 1.35
            ending = _ending(
                _pick(HOLD_TONES[held.kind], draw), draw, lengthened=longer, holds=True
            )
            if held.filler == "before":
                words = f"{words} {_filler(draw)}"
                ending = _ending("H-L%", draw, lengthened=1.6, holds=True)
        # Declination: what comes later in a turn lies lower, but not always.
        higher = float(draw.normal(-0.8, 1.0)) * number
        stretches.append(Stretch(words, ending, higher, float(draw.normal(0.0, 1.2))))
    return Plan(tuple(stretches), silences, speaker, scene)


def pause_ms(draw: np.random.Generator) -> float:
    """Draw the length of one pause."""
    while True:
        ms = float(np.exp(draw.normal(np.log(PAUSE_MEDIAN_MS), PAUSE_SIGMA)))
        if PAUSE_LEAST_MS <= ms <= PAUSE_MOST_MS:
            return ms


def _silence(kind: Kind, draw: np.random.Generator) -> Silence:
    ms = pause_ms(draw)
    filler = None
    if draw.random() < FILLER_SHARE:
        filler = "before" if draw.random() < FILLER_BEFORE_SHARE else "after"
    sound, chance = None, draw.random()
    if ms > 500 and chance < 0.2:
        sound = "breath"
    elif ms > 200 and chance > 0.95:
        sound = "click"
    return Silence(kind, ms, filler, sound)


def _filler(draw: np.random.Generator) -> str:
    return "um" if draw.random() < 0.5 else "uh"


def _ending(tone: Tone, draw: np.random.Generator, *, lengthened: float, holds: bool) -> Ending:
    # From the stretch's median, and its spread. At the end of a turn a level tone is stepped down.
    goal, spread = {
        "L-L%": (-5.0, 1.8),
        "H-L%": (0.3 if holds else -1.5, 1.3),
        "L-H%": (1.5, 1.5),
        "H-H%": (5.0, 2.0),
        "none": (0.0, 1.0),
    }[tone]
    if tone == "none":
        lengthened = 0.95  # what breaks off has no final lengthening, and an engine always has some
    softer = draw.normal(2.0, 2.0) if holds or tone != "L-L%" else draw.normal(4.5, 2.5)
    return Ending(
        tone,
        float(draw.normal(goal, spread)),
        float(draw.uniform(180, 400)),
        float(np.clip(draw.normal(lengthened, 0.2), 0.8, 2.2)),
        float(np.clip(softer, 0.0, 10.0)),
    )


def _scene(draw: np.random.Generator) -> Scene:
    return Scene(
        active_dbfs=float(draw.uniform(-34, -16)),
        lead_ms=float(draw.uniform(150, 600)),
        tail_ms=2000.0,  # as long as anybody waits: noise that stopped would tell the end
        rt60_s=float(draw.uniform(0.2, 0.6)) if draw.random() < 0.7 else None,
        direct_db=float(draw.uniform(2, 14)),
        snr_db=float(draw.uniform(15, 40)),
        slope=float(draw.uniform(0, 1)),
        telephone=bool(draw.random() < 0.25),
    )


def _pick(shares: Mapping[_T, float], draw: np.random.Generator) -> _T:
    values, weights = list(shares), np.array(list(shares.values()))
    return values[int(draw.choice(len(values), p=weights / weights.sum()))]
