"""The recordings of scenarios: read, and checked against what their file says of them."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from turngap.core.audio import Pcm
from turngap.core.errors import InputError
from turngap.scenario.model import Recorded, SpeechBounds
from turngap.store.documents import exists
from turngap.store.sound import MAX_SAMPLES, read_sound


@dataclass(frozen=True, slots=True)
class Clip:
    """A recording at its own rate. `speech` is None until `turngap label` has written it."""

    pcm: Pcm
    rate: int
    speech: SpeechBounds | None

    @property
    def duration_ms(self) -> float:
        return len(self.pcm) * 1000 / self.rate

    def at_rate(self, rate: int) -> Pcm:
        """Return the samples at `rate` Hz, resampled once if it differs."""
        if rate == self.rate:
            return self.pcm
        import soxr

        return soxr.resample(self.pcm, self.rate, rate)


def require_room(clips: Iterable[Clip], at: str) -> None:
    """Refuse recordings that are together too long to be loaded; `at` is the place in a file."""
    if (samples := sum(len(clip.pcm) for clip in clips)) > MAX_SAMPLES:
        raise InputError(
            "scenario.too_long",
            f"{at}: with this, {samples} samples of recordings would be loaded at once; expected "
            f"at most {MAX_SAMPLES}, which are ten hours at 16 kHz",
            hint="play fewer scenarios at a time",
        )


def read_clip(path: Path, at: str, recorded: Recorded, known: Clip | None) -> Clip:
    """Load a recording that stands `at` a place in the file `path`, unless it is `known`."""
    if known is not None:
        return replace(known, speech=recorded.speech)
    file = path.parent / recorded.audio
    if not exists(file):
        raise InputError("scenario.audio_missing", f"{at}: no such recording: {file}")
    if not file.resolve().is_relative_to(path.parent.resolve()):
        raise InputError(
            "scenario.outside",
            f"{at}: {recorded.audio} leads outside the scenario's folder (a link?)",
        )
    sound = read_sound(file, "scenario", at=at)
    return Clip(sound.samples[:, 0], sound.rate, recorded.speech)


def check_label(path: Path, line: int, recorded: Recorded, clip: Clip) -> None:
    """Refuse a recording whose speech bounds are missing, or lie outside it."""
    speech, audio = recorded.speech, recorded.audio
    if speech is None:
        raise InputError(
            "scenario.unlabelled",
            f"{path}:{line}: {audio} has no speech bounds",
            hint=f"turngap label {shlex.quote(str(path))}",
        )
    if speech.end_ms > clip.duration_ms:
        raise InputError(
            "scenario.label_outside",
            f"{path}:{line}: speech.end_ms {speech.end_ms:g} lies outside {audio}, which lasts "
            f"{clip.duration_ms:.0f} ms",
            hint=f"turngap label {shlex.quote(str(path))}",
        )
