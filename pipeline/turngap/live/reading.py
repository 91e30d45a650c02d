"""Makes a scenario one's own: a person reads its lines, and each is labelled and kept at once.

Every line that was read is on the disk, in a scenario that can be played as far as it goes.
"""

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import soundfile
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from turngap.caller.stream import RATE
from turngap.core.audio import Pcm, rms_dbfs
from turngap.core.errors import InputError
from turngap.live.microphone import Take
from turngap.scenario.library import load_scenario
from turngap.scenario.model import Backchannel, Pause, Recorded, Scenario, SpeechBounds
from turngap.scenario.parsing import read_scenario, text_of
from turngap.scenario.speech import find_speech
from turngap.store.documents import is_file, write_atomically, writing
from turngap.store.files import read_bytes
from turngap.store.sound import MAX_SOUND_BYTES

# How much of the room is kept before and after the speech.
ROOM_MS = 300.0
# At the line's 16 bits, speech whose loudest 30 ms lie below this is near a usual room's noise.
SOFT_DBFS = -38.0


@dataclass(frozen=True, slots=True)
class Line:
    """Something to read: a turn (numbers from 1), or a backchannel of it."""

    turn: int
    backchannel: int | None
    recorded: Recorded

    @property
    def file(self) -> str:
        """Its name among the scenario's recordings."""
        place = "" if self.backchannel is None else f"-{self.backchannel}"
        return f"{self.turn}{place}.flac"


@dataclass(frozen=True, slots=True)
class Read:
    """A line as it was read, cut to its speech.

    Attributes:
        dbfs: level of the loudest 30 ms.
        warnings: why the person may want to read it again.
    """

    pcm: Pcm
    speech: SpeechBounds
    pauses: tuple[Pause, ...]
    dbfs: float
    warnings: tuple[str, ...]


def read_of(take: Take) -> Read | str:
    """Cut a take to its speech and label it, or return why it cannot be used."""
    if not take.spoken:
        return "nothing was heard: is this the right microphone, and is it switched on?"
    found = find_speech(take.pcm, RATE)
    if found is None:
        return "no speech was found in it"
    begin = max(0, math.floor((found.bounds.start_ms - ROOM_MS) * RATE / 1000))
    end = math.ceil((found.bounds.end_ms + ROOM_MS) * RATE / 1000)
    pcm = take.pcm[begin:end]
    # Its own labels, so that `turngap label` finds the same again.
    found = find_speech(pcm, RATE)
    if found is None:
        return "no speech was found in it"
    dbfs = _loudest_dbfs(pcm)
    warnings = [str(warning) for warning in found.warnings]
    if take.lost:
        warnings.append("the device lost some of the audio")
    if dbfs < SOFT_DBFS:
        warnings.append("it is very soft: come nearer, or turn the microphone up")
    return Read(pcm, found.bounds, found.pauses, dbfs, tuple(warnings))


def _loudest_dbfs(pcm: Pcm) -> float:
    window = RATE * 30 // 1000
    return max(rms_dbfs(pcm[at : at + window]) for at in range(0, len(pcm), window // 3))


class Reading:
    """A scenario that is being read into a folder.

    Args:
        source: the scenario's file.
        folder: where the own one is written, under the same name.
        again: numbers of turns to read anew although they are there.

    Raises:
        InputError: the source cannot be used, or the folder holds another scenario of that name.
    """

    def __init__(self, source: Path, folder: Path, again: tuple[int, ...] = ()) -> None:
        self.scenario = read_scenario(source)
        self.path = folder / f"{self.scenario.name}.yaml"
        self._source, self._folder = source, folder
        self._reads: dict[str, tuple[SpeechBounds, tuple[Pause, ...] | None]] = {}
        self._again = set(again)
        if strange := self._again - set(range(1, len(self.scenario.turns) + 1)):
            raise InputError(
                "record.no_such_line",
                f"{self.scenario.name} has no line {min(strange)}",
                hint=f"allowed: 1 to {len(self.scenario.turns)}",
            )
        if folder.resolve() == source.parent.resolve():
            raise InputError(
                "record.onto_itself",
                f"{source} lies in {folder}, where its recordings would be overwritten",
                hint="take another folder: --out DIR",
            )
        self._resume()

    def lines(self) -> list[Line]:
        """Return the lines to read now, in order."""
        return [
            line
            for line in _lines(self.scenario)
            if line.file not in self._reads or line.turn in self._again
        ]

    @property
    def missing(self) -> int:
        """How many lines were never read."""
        return sum(1 for line in _lines(self.scenario) if line.file not in self._reads)

    def keep(self, line: Line, read: Read) -> None:
        """Write a line's recording, and the scenario up to the turns that are there.

        Raises:
            InputError: the folder cannot be written to.
        """
        sound = io.BytesIO()
        soundfile.write(sound, read.pcm, RATE, subtype="PCM_16", format="FLAC")
        self._write(line.file, sound.getvalue())
        self._reads[line.file] = (read.speech, read.pauses)
        self._write_scenario()

    # --- the folder -----------------------------------------------------------------------------

    def _resume(self) -> None:
        """Find what was read before.

        Raises:
            InputError: the file there is not this scenario, read by a person.
        """
        if not is_file(self.path):
            if self._again:
                raise InputError(
                    "record.nothing_there",
                    f"{self.path} is not there, so no line of it can be read again",
                    hint="leave out --again",
                )
            return
        there = load_scenario(self.path).scenario
        wanted = [turn.say for turn in self.scenario.turns]
        if there.voices != "recorded" or [t.say for t in there.turns] != wanted[: len(there.turns)]:
            raise InputError(
                "record.exists",
                f"{self.path} is there, and is not a part of {self._source} read by a person",
                hint="take another folder: --out DIR; nothing is overwritten",
            )
        for line in _lines(there):
            speech = line.recorded.speech
            if line.recorded.audio != self._name(line) or speech is None:
                raise InputError(
                    "record.exists",
                    f"{self.path} names its recordings otherwise than `turngap record` does",
                    hint="take another folder: --out DIR; nothing is overwritten",
                )
            self._reads[line.file] = (speech, line.recorded.pauses)

    def _name(self, line: Line) -> str:
        return f"{self.scenario.name}/{line.file}"

    def _write_scenario(self) -> None:
        """Write the turns of which every line was read, from the first on."""
        yaml = YAML(typ="rt")
        yaml.preserve_quotes = True
        yaml.width = 96
        yaml.indent(mapping=2, sequence=4, offset=2)
        tree: Any = yaml.load(text_of(self._source))
        if "voices" not in tree:
            tree.insert(list(tree).index("turns"), "voices", None)
        tree["voices"] = "recorded"
        whole = 0
        for number, turn in enumerate(self.scenario.turns, start=1):
            mine = [line for line in _lines(self.scenario) if line.turn == number]
            if any(line.file not in self._reads for line in mine):
                break
            whole = number
            for line in mine:
                self._set(_node(tree, line), self._name(line), *self._reads[line.file])
            for place, extra in enumerate(turn.backchannels, start=1):
                if extra.is_sound:
                    self._copy(tree, number, place, extra)
        if whole == 0:
            return
        del tree["turns"][whole:]
        out = io.StringIO()
        yaml.dump(tree, out)
        self._write_file(self.path, out.getvalue().encode())
        load_scenario(self.path)  # make sure that it can be played

    def _set(
        self, node: Any, audio: str, speech: SpeechBounds, pauses: tuple[Pause, ...] | None
    ) -> None:
        node["audio"] = audio
        _put_after(node, "audio", "speech", _flow(speech.model_dump(exclude_none=True)))
        node.pop("pauses", None)
        if pauses is not None:
            listed = CommentedSeq([_flow(pause.model_dump()) for pause in pauses])
            listed.fa.set_flow_style()
            _put_after(node, "speech", "pauses", listed)

    def _copy(self, tree: Any, turn: int, place: int, sound: Backchannel) -> None:
        """Take over a sound without words, such as a cough."""
        file = self._source.parent / sound.audio
        name = f"{turn}-{place}{file.suffix}"
        self._write(name, read_bytes(file, "record", most=MAX_SOUND_BYTES))
        tree["turns"][turn - 1]["backchannels"][place - 1]["audio"] = f"{self.scenario.name}/{name}"

    def _write(self, name: str, content: bytes) -> None:
        self._write_file(self._folder / self.scenario.name / name, content)

    def _write_file(self, file: Path, content: bytes) -> None:
        with writing(file, "record.unwritable", "--out DIR"):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, content)


def _lines(scenario: Scenario) -> Iterator[Line]:
    """Yield what a person has to read of a scenario: all but sounds without words."""
    for number, turn in enumerate(scenario.turns, start=1):
        yield Line(number, None, turn)
        for place, extra in enumerate(turn.backchannels, start=1):
            if not extra.is_sound:
                yield Line(number, place, extra)


def _node(tree: Any, line: Line) -> CommentedMap:
    turn = tree["turns"][line.turn - 1]
    return turn if line.backchannel is None else turn["backchannels"][line.backchannel - 1]


def _put_after(node: CommentedMap, key: str, name: str, value: Any) -> None:
    if name in node:
        node[name] = value
    else:
        node.insert(list(node).index(key) + 1, name, value)


def _flow(content: dict[str, Any]) -> CommentedMap:
    node = CommentedMap(content)
    node.fa.set_flow_style()
    return node
