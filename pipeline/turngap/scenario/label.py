"""Finds the speech bounds of a scenario's recordings and writes them into its file.

Only the bounds in the file are edited, so that comments, order and formatting stay byte for byte; a
YAML round trip would re-indent and re-wrap what people wrote.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from turngap.core.audio import AUDIBLE_DBFS, Pcm, audible_end, audible_onset, rms_dbfs
from turngap.core.errors import InputError
from turngap.scenario.library import Clip, load_scenario, parse_scenario
from turngap.scenario.model import Recorded, Scenario, SpeechBounds
from turngap.store.documents import write_atomically

_R = TypeVar("_R", bound=Recorded)


@dataclass(frozen=True, slots=True)
class LabelChange:
    """Speech bounds that `label_file` wrote.

    Attributes:
        audio: the recording, as named in the scenario.
        before: the bounds in the file before, if any.
        after: the bounds in the file now.
        dbfs: the level from which a sample counted as audible.
    """

    audio: str
    before: SpeechBounds | None
    after: SpeechBounds
    dbfs: float

    def __str__(self) -> str:
        was = _shown(self.before) if self.before else "unlabelled"
        return f"{self.audio}: speech {_shown(self.after)}, was {was}"


def label_file(
    path: Path, *, only_missing: bool = False, dbfs: float | None = None
) -> list[LabelChange]:
    """Write the speech bounds of every recording of one scenario into its file.

    Args:
        path: the scenario file.
        only_missing: leave existing bounds alone.
        dbfs: the level of audibility; by default it follows each recording's own noise.

    Returns:
        The changes in the file's order; empty, with the file untouched, if there are none.

    Raises:
        InputError: the scenario or a recording cannot be used, or holds no audible speech. Nothing
            is written then.
    """
    loaded = load_scenario(path, need_labels=False)
    changes: list[LabelChange] = []
    for recorded in _recorded(loaded.scenario):
        if only_missing and recorded.speech is not None:
            continue
        change = _measured(path, recorded, loaded.clips[recorded.audio], dbfs)
        if change.after != change.before:
            changes.append(change)
    write_bounds(path, {change.audio: change.after for change in changes})
    return changes


def write_bounds(path: Path, bounds: Mapping[str, SpeechBounds]) -> None:
    """Write speech bounds, by recording, into a scenario file, whole or not at all.

    Raises:
        InputError: the file's YAML does not let the bounds be set in place.
    """
    if not bounds:
        return
    with path.open(encoding="utf-8", newline="") as file:
        text = file.read()
    edited = _spliced(text, _edits(text, bounds))
    _verify(path, text, edited, bounds)
    write_atomically(path.resolve(), edited.encode(), mode=path.stat().st_mode)


def _recorded(scenario: Scenario) -> Iterator[Recorded]:
    for turn in scenario.turns:
        yield turn
        yield from turn.backchannels


def _measured(path: Path, recorded: Recorded, clip: Clip, dbfs: float | None) -> LabelChange:
    level = speech_level_dbfs(clip.pcm, clip.rate) if dbfs is None else dbfs
    found = speech_bounds(clip.pcm, clip.rate, level)
    if found is None:
        raise InputError(
            "label.no_speech",
            f"{path}: {recorded.audio} holds no audible speech: nothing in it reaches "
            f"{level:.0f} dBFS for 10 ms; the whole of it lies at {rms_dbfs(clip.pcm):.0f} dBFS",
            hint="record it again, louder or with less noise around it",
        )
    return LabelChange(recorded.audio, recorded.speech, found, level)


@dataclass(frozen=True, slots=True)
class _Edit:
    """Put `text` in place of the characters from `start` to `end`."""

    start: int
    end: int
    text: str


def _edits(text: str, bounds: Mapping[str, SpeechBounds]) -> list[_Edit]:
    edits: list[_Edit] = []
    for node in _recorded_nodes(YAML(typ="rt").compose(text)):
        audio = _value(node, "audio")
        if isinstance(audio, ScalarNode) and audio.value in bounds:
            edits.extend(_edits_of(text, node, audio, bounds[audio.value]))
    return edits


def _recorded_nodes(root: Node | None) -> Iterator[MappingNode]:
    """Yield the mappings that name a recording: turns, and the backchannels within them."""
    for turn in _items(_value(root, "turns")):
        yield turn
        yield from _items(_value(turn, "backchannels"))


def _items(node: Node | None) -> list[MappingNode]:
    if not isinstance(node, SequenceNode):
        return []
    return [item for item in node.value if isinstance(item, MappingNode)]


def _value(node: Node | None, key: str) -> Node | None:
    if not isinstance(node, MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)


def _key_of(node: MappingNode, value: Node) -> Node:
    return next(name for name, held in node.value if held is value)


def _edits_of(
    text: str, recorded: MappingNode, audio: ScalarNode, bounds: SpeechBounds
) -> list[_Edit]:
    start, end = _number(bounds.start_ms), _number(bounds.end_ms)
    whole = f"{{start_ms: {start}, end_ms: {end}}}"
    speech = _value(recorded, "speech")
    if isinstance(speech, MappingNode):
        return [
            _Edit(node.start_mark.index, node.end_mark.index, number)
            for key, number in (("start_ms", start), ("end_ms", end))
            if (node := _value(speech, key)) is not None
        ]
    if isinstance(speech, ScalarNode):  # null, or nothing at all
        written = speech.start_mark.index < speech.end_mark.index
        colon = text.index(":", _key_of(recorded, speech).end_mark.index)
        start_at = speech.start_mark.index if written else colon + 1
        end_at = speech.end_mark.index if written else colon + 1
        return [_Edit(start_at, end_at, whole if written else f" {whole}")]
    after = audio.end_mark.index
    if recorded.flow_style:
        return [_Edit(after, after, f", speech: {whole}")]
    # After the whole line, as a comment may follow the path on it.
    line_end = text.find("\n", after)
    column = _key_of(recorded, audio).start_mark.column
    newline = "\r\n" if text[line_end - 1] == "\r" else "\n"
    line = " " * column + f"speech: {whole}{newline}"
    if line_end < 0:
        return [_Edit(len(text), len(text), "\n" + line)]
    return [_Edit(line_end + 1, line_end + 1, line)]


def _shown(bounds: SpeechBounds) -> str:
    return f"{_number(bounds.start_ms)} to {_number(bounds.end_ms)} ms"


def _number(value_ms: float) -> str:
    return f"{value_ms:.1f}".removesuffix(".0")


def _spliced(text: str, edits: list[_Edit]) -> str:
    for edit in sorted(edits, key=lambda e: e.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _verify(path: Path, text: str, edited: str, bounds: Mapping[str, SpeechBounds]) -> None:
    """Refuse an edit that changed anything but the bounds, as it would through a YAML alias."""
    wanted = _with_bounds(parse_scenario(path, text), bounds)
    try:
        done = parse_scenario(path, edited)
    except InputError:
        done = None
    if done != wanted:
        raise InputError(
            "label.not_editable",
            f"{path}: the speech bounds cannot be written in place, probably because turns share "
            "text through a YAML anchor",
            hint="write each turn out in full",
        )


def _with_bounds(scenario: Scenario, bounds: Mapping[str, SpeechBounds]) -> Scenario:
    def labelled(recorded: _R) -> _R:
        speech = bounds.get(recorded.audio, recorded.speech)
        return recorded.model_copy(update={"speech": speech})

    turns = tuple(
        labelled(turn).model_copy(
            update={"backchannels": tuple(labelled(extra) for extra in turn.backchannels)}
        )
        for turn in scenario.turns
    )
    return scenario.model_copy(update={"turns": turns})


# A recording's own noise is its quietest stretch of this length. The closure of a "t" is one, so a
# recording cut close to its speech has some noise, too; the quietest tenth of such a recording is
# speech, and taking that as the noise put ends up to 97 ms wrong.
FLOOR_WINDOW_MS = 30.0

# How far above the noise a sample must lie to be speech. The loudest 10 ms of a minute of pink
# noise lie up to 7.8 dB above its quietest 30, so a lower value takes noise for speech. A higher
# one loses weak last consonants: at 20 dB SNR, over 32 recordings whose clean bounds are known, the
# median error of the end is 7 ms with 8 dB and 21 ms with 12 dB. docs/scenarios.md has the table.
ABOVE_FLOOR_DB = 8.0


def speech_level_dbfs(pcm: Pcm, rate: int) -> float:
    """Return the level from which samples count as speech, above the recording's own noise."""
    return max(AUDIBLE_DBFS, _floor_dbfs(pcm, rate) + ABOVE_FLOOR_DB)


def _floor_dbfs(pcm: Pcm, rate: int) -> float:
    window = round(rate * FLOOR_WINDOW_MS / 1000)
    if len(pcm) < window:
        return float("-inf")
    energy = np.concatenate(([0.0], np.cumsum(np.square(pcm, dtype=np.float64))))
    quietest = int(np.argmin(energy[window:] - energy[:-window]))
    return rms_dbfs(pcm[quietest : quietest + window])


def speech_bounds(pcm: Pcm, rate: int, dbfs: float) -> SpeechBounds | None:
    """Return the first and last sample that is audible at `dbfs`, or None if there is none.

    Rounded to 0.1 ms: an error of 0.05 ms at most, small beside the instrument's own.
    """
    onset, end = audible_onset(pcm, rate, dbfs), audible_end(pcm, rate, dbfs)
    if onset is None or end is None or end <= onset:
        return None
    start_ms, end_ms = round(onset * 1000 / rate, 1), round(end * 1000 / rate, 1)
    # Rounding up must not leave the recording.
    longest_ms = math.floor(len(pcm) * 10_000 / rate) / 10
    return SpeechBounds(start_ms=start_ms, end_ms=min(end_ms, longest_ms))
