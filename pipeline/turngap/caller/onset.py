"""Place the beginning of the first word to the sample, with the possible error."""

from collections.abc import Callable
from math import inf

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from turngap.core.audio import (
    FULL_SCALE,
    UNPLACED_MS,
    Pcm,
    audible_samples,
    dbfs_to_amplitude,
    window_samples,
)
from turngap.silero import WINDOW_MS

# The loudest 10 ms of a steady bed lie about 2 dB over most of them, its peaks 12 dB over its RMS.
OVER_BED_DB = 7.0
PEAKS_DB = 13.0

# What may belong to a word before the window that the detector takes for speech: this much, over
# holes as long as the closure of a stop; but no click, and no breath.
BACK_MS = UNPLACED_MS
HOLE_MS = 80.0
CLICK_MS = 25.0
CLICK_HOLE_MS = 15.0
BREATH_MS = 120.0

# How much of the sound before that shows what continues under the word.
UNDER_MS = 150.0

# Most words (95 %, n = 72) rise by 1 dB within this, from where they are audible on: so
# much of one may be hidden in a bed.
RISE_MS = 8.0

# Silero knows a word within this of where it begins (95 %, n = 72): sound that leads into it for
# longer is a long consonant or something else, and this long hardly a consonant.
LEAD_MS = 50.0
LONG_LEAD_MS = 90.0

# Without rumble the onset is taken from the sound as it is, unless the two differ by more.
AGREE_MS = 5.0
RUMBLE_HZ = 100.0
# How long the filter rings.
CONTEXT_MS = 60.0


def place(
    heard: Callable[[int, int], Pcm],
    at: int,
    since: int,
    end: int,
    dbfs: float,
    *,
    rate: int,
    under: float,
) -> tuple[int, int, float]:
    """Place the first word that leads into `at`; return its spread and the level used, too.

    The word begins no earlier than `since`. The level is the highest of `dbfs`, `under`, and 7 dB
    over the sound that continues under the word.
    `heard` returns a part of the stream, which is available up to `end`.
    """
    hop = window_samples(rate)

    def samples(ms: float) -> int:
        return round(rate * ms / 1000)

    back = max(at - samples(BACK_MS), since)
    quiet = max(back - samples(UNDER_MS), since)
    first = quiet - samples(CONTEXT_MS)
    raw = heard(first, end)
    flat = _without_rumble(raw, rate)
    sounds = (flat, raw)
    upto = at + samples(WINDOW_MS) - first

    def onset(level: float, noise: float, since: int) -> int | None:
        limits = dbfs_to_amplitude(level), dbfs_to_amplitude(max(level, noise + PEAKS_DB))
        found = [
            _lead_in(audible_samples(pcm, hop, *limits), since - first, upto, rate)
            for pcm in sounds
        ]
        if found[0] is None or found[1] is None:
            return found[0]
        return found[abs(found[0] - found[1]) <= samples(AGREE_MS)]

    # Sound that continues is under the word; if it reaches farther back than any word does, the
    # word is what rises above it.
    for part, lull in ((0.2, quiet), (0.75, back)):
        noise = -inf
        if back - quiet >= 3 * hop:
            before = loud_part(flat[quiet - first : back - first], hop, part)
            noise = min(before, _lull(flat[lull - first : at - first], hop))
        level = max(dbfs, noise + OVER_BED_DB, under)
        placed = onset(level, noise, back)
        if placed is None or placed > back - first + hop:
            break
    else:  # the detector was late, and the word began a little earlier
        earlier = onset(level, noise, quiet)
        if earlier is not None and (quiet == since or earlier > quiet - first + hop):
            placed, back = earlier, quiet
    if placed is None:
        return at, samples(BACK_MS), level
    spread, lead = 0, at - first - placed
    if lead > samples(LEAD_MS):
        spread = _other_sound(flat[placed:], lead, dbfs, hop)
        if lead > samples(LONG_LEAD_MS) and level <= dbfs:
            began = first + placed + spread
            if lead > samples(BACK_MS):
                least = samples(LONG_LEAD_MS)
                spread = max(spread, least) if spread <= samples(BACK_MS) else least
            return began, spread, level
    others = [onset(level + db, noise + max(db, 0), back) for db in (-6, 6)]
    if None in others:
        return first + placed, samples(BACK_MS), level
    places = [placed, *(o for o in others if o is not None)]
    hidden = samples(min(BACK_MS, RISE_MS * (level - dbfs)))
    return first + placed, max(hidden, spread, max(places) - min(places)), level


def _lead_in(audible: NDArray[np.intp], back: int, upto: int, rate: int) -> int | None:
    """Return the first of the audible samples that belong to the word at `upto`."""
    longest, click_hole, click, breath = (
        round(rate * ms / 1000) for ms in (HOLE_MS, CLICK_HOLE_MS, CLICK_MS, BREATH_MS)
    )
    audible = audible[audible >= back]
    if not len(audible):
        return None
    breaks = np.flatnonzero(np.diff(audible) > window_samples(rate))
    firsts = audible[np.concatenate(([0], breaks + 1))]
    lasts = audible[np.concatenate((breaks, [len(audible) - 1]))]
    run = max(0, int(np.searchsorted(firsts, upto)) - 1)
    while run > 0:
        hole = int(firsts[run] - lasts[run - 1])
        length = int(lasts[run - 1] - firsts[run - 1])
        if hole > longest:
            break
        if hole > click_hole and not (click <= length <= breath):
            break
        run -= 1
    return int(firsts[run])


def _other_sound(pcm: Pcm, lead: int, dbfs: float, hop: int) -> int:
    """Return how long other sound lasts before the word; the word is certain from `lead` on."""
    upto = lead + 3 * hop
    audible = audible_samples(pcm, hop, dbfs_to_amplitude(dbfs))
    holes = np.flatnonzero((np.diff(audible) >= hop) & (audible[1:] <= upto))
    if len(holes):
        return int(audible[holes[-1] + 1])
    noise = loud_part(pcm[:lead], hop, 0.5)
    limits = dbfs_to_amplitude(noise + OVER_BED_DB), dbfs_to_amplitude(noise + PEAKS_DB)
    risen = audible_samples(pcm, hop, *limits)
    return int(risen[0]) if len(risen) and risen[0] <= upto else lead


def levels(pcm: Pcm, hop: int) -> NDArray[np.float64]:
    """Return the level of every 10 ms in dBFS; of less than 10 ms of audio, the level of it all."""
    whole = pcm[: len(pcm) // hop * hop] if len(pcm) >= hop else pcm
    frames = whole.astype(np.float64).reshape(-1, min(hop, max(1, len(whole))))
    power = np.einsum("ij,ij->i", frames, frames) / frames.shape[1] / FULL_SCALE**2
    return 10 * np.log10(np.maximum(power, 1e-12)) if len(power) else np.array([-120.0])


def loud_part(pcm: Pcm, hop: int, quantile: float) -> float:
    """Return the level of the loud part of a sound: a quantile of the levels of its 10 ms."""
    return float(np.quantile(levels(pcm, hop), quantile))


def _lull(pcm: Pcm, hop: int) -> float:
    """Return the level of the quietest 30 ms."""
    each = levels(pcm, hop)
    return float(sliding_window_view(each, min(3, len(each))).max(axis=1).min())


def _without_rumble(pcm: Pcm, rate: int) -> Pcm:
    """Remove offset, hum and rumble from a sound with a Butterworth filter of the fourth order."""
    size = 1 << (len(pcm) - 1).bit_length()
    s = 1j * np.fft.rfftfreq(size, 1 / rate) / RUMBLE_HZ
    response = s**4 / ((s**2 + 0.7654 * s + 1) * (s**2 + 1.8478 * s + 1))
    flat = np.fft.irfft(np.fft.rfft(pcm, size) * response, size)[: len(pcm)]
    return np.rint(np.clip(flat, -32768, 32767)).astype(np.int16)
