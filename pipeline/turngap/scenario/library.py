"""Scenario files and their recordings: found, read, and checked before anything is played."""

import hashlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from ruamel.yaml.comments import CommentedMap

from turngap.core.audio import Pcm
from turngap.core.cue import SpeechBounds
from turngap.core.errors import InputError, TurngapError
from turngap.scenario.model import (
    EXTRA,
    Recorded,
    Scenario,
    UserTurn,
    library_dir,
    library_for,
    library_paths,
    line_of,
    parse_with_places,
    read_scenario,
    require_inside,
    scenario_paths,
    text_of,
)
from turngap.scenario.phrases import tokens
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
    """Load the recording named `at` a place in the file `path`, unless it is `known`."""
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


_R = TypeVar("_R", bound=Recorded)


@dataclass(frozen=True, slots=True)
class LoadedScenario:
    """A checked scenario and its recordings.

    Attributes:
        scenario: as in its file; a part spoken by a voice has a name instead of a file, and labels.
        clips: the recordings by their path as written in it, and spoken parts by their name.
        voice: the voice of the turns without a recording; None if each has one.
    """

    scenario: Scenario
    path: Path
    clips: dict[str, Clip]
    voice: str | None = None

    def content_hash(self) -> str:
        """Hash the file and every recording: baselines are comparable only if all are the same."""
        digest = hashlib.sha256(self.path.read_bytes())
        for name in sorted(self.clips):
            digest.update(self.clips[name].pcm.tobytes())
        return digest.hexdigest()[:16]


def content_hashes(scenarios: Iterable[LoadedScenario]) -> dict[str, str]:
    """Map each scenario's name to its content hash."""
    return {loaded.scenario.name: loaded.content_hash() for loaded in scenarios}


def load_scenario(path: Path, *, need_labels: bool = True) -> LoadedScenario:
    """Read a scenario and its recordings, and check the file and the recordings against each other.

    With `need_labels`, a voice speaks the turns without a recording.

    Raises:
        InputError: as `read_scenario`; also for a missing or non-audio file, for a text without a
            voice to speak it, and (with `need_labels`) for a label that is missing or lies outside
            its recording.
        TurngapError: the voice cannot be loaded, or failed.
    """
    scenario, tree = parse_with_places(path, text_of(path))
    clips: dict[str, Clip] = {}
    for where, recorded in _parts(scenario):
        if not recorded.audio:
            continue
        at = f"{path}:{line_of(tree, (*where, 'audio'))}"
        clip = read_clip(path, at, recorded, clips.get(recorded.audio))
        if need_labels:
            check_label(path, line_of(tree, (*where, "speech")), recorded, clip)
        clips[recorded.audio] = clip
        require_room(clips.values(), at)
    loaded = LoadedScenario(scenario, path, clips)
    silent = need_labels and not all(said.audio for _, said in _parts(scenario))
    return _spoken(loaded, tree) if silent else loaded


def _parts(scenario: Scenario) -> Iterator[tuple[tuple[str | int, ...], Recorded]]:
    """Yield every turn and backchannel with its place in the file."""
    for i, turn in enumerate(scenario.turns):
        yield ("turns", i), turn
        for j, extra in enumerate(turn.backchannels):
            yield ("turns", i, "backchannels", j), extra


def _spoken(loaded: LoadedScenario, tree: CommentedMap) -> LoadedScenario:
    """Record every text of the scenario that has no clip, named by its numbers: 2, 2-1."""
    from turngap.scenario.spoken import Voice

    path, clips = loaded.path, dict(loaded.clips)
    with _at(f"{path}:{line_of(tree, ('voice',))}"):
        voice = Voice.of(loaded.scenario.voice)

    def spoken(recorded: _R, *where: str | int) -> _R:
        if recorded.audio:
            return recorded
        name = "-".join(str(at + 1) for at in where if isinstance(at, int))
        at = f"{path}:{line_of(tree, (*where, 'say'))}"
        with _at(at):
            take = voice.take(recorded.say)
        clips[name] = Clip(take.pcm, take.rate, take.speech)
        require_room(clips.values(), at)
        labels = {"speech": take.speech, "pauses": take.pauses}
        return recorded.model_copy(update={"audio": name, **labels})

    turns: list[UserTurn] = []
    for i, turn in enumerate(loaded.scenario.turns):
        extras = [spoken(e, "turns", i, "backchannels", j) for j, e in enumerate(turn.backchannels)]
        with_extras = turn.model_copy(update={"backchannels": tuple(extras)})
        turns.append(spoken(with_extras, "turns", i))
    scenario = loaded.scenario.model_copy(update={"turns": tuple(turns)})
    return LoadedScenario(scenario, path, clips, voice.name)


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Add to a voice's error the place in a file at which the voice was wanted."""
    try:
        yield
    except TurngapError as e:
        raise type(e)(e.kind, f"{place}: {e.message}", hint=e.hint) from e


def load_scenarios(paths: Iterable[Path]) -> list[LoadedScenario]:
    """Load all scenarios, to refuse a bad one before anything is played."""
    loaded: list[LoadedScenario] = []
    for path in paths:
        loaded.append(load_scenario(path))
        require_room((c for one in loaded for c in one.clips.values()), str(path))
    return loaded


def chosen(
    agent: str, names: Sequence[str] = (), tag: str | None = None, library: Path | None = None
) -> tuple[Path, list[LoadedScenario]]:
    """Find the library, and load the scenarios to play against `agent`.

    Raises:
        InputError: there is no such scenario, or an agent of ours would not know its words.
    """
    folder = library_for(names, library)
    paths = scenario_paths(folder, names, tag)
    for path in paths:
        if twins := sorted(
            {str(other) for other in paths if other.stem == path.stem} - {str(path)}
        ):
            raise InputError(
                "scenario.twice",
                f"{path} and {twins[0]} have the same name, so their turns cannot be distinguished",
                hint="rename one, or play them in separate runs",
            )
    if "://" not in agent:
        require_inside(folder, paths)
    return folder, load_scenarios(paths)


# As many topics as people listen to, and remember.
TOPICS_AT_ONCE = 3
# A text is near a sentence if rapidfuzz's normalised indel similarity of their words is at least
# this. It is above the nearest of the 100 sentences of services/training/unknown/fit.txt, which
# no one says in the library (0.64). Of the 50 in judge.txt there, one is above it. The library's
# own with one word in five replaced at random stay above it: the lowest 1 % of 2,300 have 0.70.
NEAR = 0.65


@dataclass(frozen=True, slots=True)
class Domain:
    """The knowledge of a closed-domain agent.

    Attributes:
        topics: topics that the person may ask about, worded to follow "I can help with", each with
            a sentence that asks about it.
        examples: sentences to read aloud, each of which opens a conversation.
        sentences: everything that is said in the library.
    """

    topics: Mapping[str, str]
    examples: tuple[str, ...]
    sentences: tuple[str, ...] = ()

    def offer(self, times: int) -> str:
        """Return the answer to a turn outside of the domain, after `times` such turns in a row.

        The first answer names topics. Later ones name others, and give a sentence to try that asks
        about the first of them.
        """
        chosen = _from(tuple(self.topics), times * TOPICS_AT_ONCE, TOPICS_AT_ONCE)
        with_what = f"{', '.join(chosen)} and more" if chosen else "a few things only"
        offer = f"I can help with {with_what}."
        if times == 0 and chosen:
            return offer
        tries = [self.topics[chosen[0]]] if chosen else _from(self.examples, times, 1)
        return " ".join([offer, *(f"Try: {text}." for text in tries)])

    def knows(self, text: str) -> bool:
        """Return whether `text` is near a sentence of the library."""
        from rapidfuzz import fuzz, process

        known = [_words(sentence) for sentence in self.sentences]
        found = process.extractOne(_words(text), known, scorer=fuzz.ratio)
        return found is not None and found[1] >= NEAR * 100


def domain_of(library: Path | None) -> Domain:
    """Return the subjects of a library's conversations; those played by default come first.

    Raises:
        InputError: there is no library, or a scenario in it cannot be read.
    """
    every = [read_scenario(path) for path in library_paths(library_dir(library))]
    every.sort(key=lambda scenario: EXTRA in scenario.tags)
    topics: dict[str, str] = {}
    for scenario in every:
        if scenario.topic:
            topics.setdefault(scenario.topic, scenario.turns[0].say)
    openers = dict.fromkeys(scenario.turns[0].say for scenario in every)
    said = dict.fromkeys(turn.say for scenario in every for turn in scenario.turns)
    return Domain(topics, tuple(openers), tuple(said))


@lru_cache(maxsize=4096)  # of a whole library's sentences
def _words(text: str) -> str:
    return " ".join(tokens(text))


def _from(items: Sequence[str], start: int, count: int) -> list[str]:
    """Return `count` items from `start` on, continuing at the first after the last, none twice."""
    return [items[(start + n) % len(items)] for n in range(min(count, len(items)))]
