"""Finds the speech of a scenario's recordings and writes its labels into the file.

Only the labels in the file are edited, so that comments, order and formatting stay byte for byte; a
YAML round trip would re-indent and re-wrap what people wrote.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from turngap.core.audio import Pcm, audible_end, audible_onset, rms_dbfs
from turngap.core.errors import InputError
from turngap.scenario.clips import Clip
from turngap.scenario.library import load_scenario
from turngap.scenario.model import Pause, Recorded, Scenario, SpeechBounds
from turngap.scenario.parsing import parse_scenario, text_of
from turngap.scenario.speech import FoundSpeech, find_speech
from turngap.store.documents import write_atomically
from turngap.store.yaml import compose_yaml

_R = TypeVar("_R", bound=Recorded)

Pauses = tuple[Pause, ...]


@dataclass(frozen=True, slots=True)
class Labelled:
    """A recording that `label_file` looked at.

    Attributes:
        audio: the recording, as named in the scenario.
        before: the bounds in the file before, if any.
        pauses_before: the pauses in the file before; None where nobody had looked.
        found: what the file says now, and what to check.
    """

    audio: str
    before: SpeechBounds | None
    pauses_before: Pauses | None
    found: FoundSpeech

    @property
    def changed(self) -> bool:
        found = self.found
        return (self.before, self.pauses_before) != (found.bounds, found.pauses)

    def __str__(self) -> str:
        was = _shown(self.before) if self.before else "unlabelled"
        text = f"{self.audio}: speech {_shown(self.found.bounds)}, was {was}"
        if self.found.pauses:
            count = len(self.found.pauses)
            longest_ms = max(pause.ms for pause in self.found.pauses)
            text += f"; {count} pause{'s' if count > 1 else ''}, up to {longest_ms:.0f} ms"
        return text


def label_file(path: Path, *, only_missing: bool = False) -> list[Labelled]:
    """Write the speech bounds and pauses of every recording of one scenario into its file.

    Args:
        path: the scenario file.
        only_missing: leave recordings alone whose bounds are there.

    Returns:
        What was looked at, in the file's order. If nothing `changed`, the file is untouched.

    Raises:
        InputError: the scenario or a recording cannot be used, or holds no speech. Nothing is
            written then.
    """
    loaded = load_scenario(path, need_labels=False)
    labelled: list[Labelled] = []
    for recorded in _recorded(loaded.scenario):
        if only_missing and recorded.speech is not None:
            continue
        found = _found(path, recorded, loaded.clips[recorded.audio])
        labelled.append(Labelled(recorded.audio, recorded.speech, recorded.pauses, found))
    changed = [label for label in labelled if label.changed]
    write_bounds(
        path,
        {label.audio: label.found.bounds for label in changed},
        {label.audio: label.found.pauses for label in changed},
    )
    return labelled


def write_bounds(
    path: Path,
    bounds: Mapping[str, SpeechBounds],
    pauses: Mapping[str, Pauses] | None = None,
) -> None:
    """Write speech bounds and pauses, by recording, into a scenario file, whole or not at all.

    Pauses of a recording that `pauses` does not name stay as they are.

    Raises:
        InputError: the file's YAML does not let the labels be set in place.
    """
    if not bounds:
        return
    pauses = pauses or {}
    text = text_of(path)
    edited = _spliced(text, _edits(path, text, bounds, pauses))
    _verify(path, text, edited, bounds, pauses)
    write_atomically(path.resolve(), edited.encode(), mode=path.stat().st_mode)


def _recorded(scenario: Scenario) -> Iterator[Recorded]:
    """Yield what has a recording; what a voice speaks is labelled whenever it is loaded."""
    for turn in scenario.turns:
        yield from (said for said in (turn, *turn.backchannels) if said.audio)


def _found(path: Path, recorded: Recorded, clip: Clip) -> FoundSpeech:
    found = find_speech(clip.pcm, clip.rate)
    if found is None:
        raise InputError(
            "label.no_speech",
            f"{path}: no speech was found in {recorded.audio}; the whole of it lies at "
            f"{rms_dbfs(clip.pcm):.0f} dBFS",
            hint="listen to it, and record it again; or write `speech: {start_ms: …, end_ms: …}` "
            "by hand",
        )
    return found


@dataclass(frozen=True, slots=True)
class _Edit:
    """Put `text` in place of the characters from `start` to `end`."""

    start: int
    end: int
    text: str


def _edits(
    path: Path, text: str, bounds: Mapping[str, SpeechBounds], pauses: Mapping[str, Pauses]
) -> list[_Edit]:
    edits: list[_Edit] = []
    for node in _recorded_nodes(compose_yaml(text, path, "scenario")):
        audio = _value(node, "audio")
        if isinstance(audio, ScalarNode) and audio.value in bounds:
            name = audio.value
            edits.extend(_edits_of(text, node, audio, bounds[name], pauses.get(name)))
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
    text: str,
    recorded: MappingNode,
    audio: ScalarNode,
    bounds: SpeechBounds,
    pauses: Pauses | None,
) -> Iterator[_Edit]:
    """Yield the edits of one recording's labels; new keys follow those that they belong to."""
    numbers = {key: _number(value) for key, value in bounds.model_dump().items()}
    speech, old_pauses = _value(recorded, "speech"), _value(recorded, "pauses")
    new = {}
    if isinstance(speech, MappingNode):
        yield from _numbers_of(text, speech, numbers)
    else:
        said = ", ".join(f"{key}: {n}" for key, n in numbers.items() if n != "null")
        if speech is None:
            new["speech"] = f"{{{said}}}"
        else:
            yield _instead(text, recorded, speech, f"{{{said}}}")
    if pauses is not None:
        written = f"[{', '.join(map(_pause, pauses))}]"
        if old_pauses is None:
            new["pauses"] = written
        else:
            yield _instead(text, recorded, old_pauses, written)
    anchor = speech if isinstance(speech, MappingNode) else audio
    yield from _added(text, recorded, anchor, new)


def _numbers_of(text: str, speech: MappingNode, numbers: Mapping[str, str]) -> Iterator[_Edit]:
    new = {}
    for key, number in numbers.items():
        node = _value(speech, key)
        if node is not None:
            yield _Edit(node.start_mark.index, node.end_mark.index, number)
        elif number != "null":
            new[key] = number
    yield from _added(text, speech, speech.value[-1][1], new)


def _instead(text: str, parent: MappingNode, node: Node, written: str) -> _Edit:
    """Put text in place of a key's value: null, nothing at all, or a list of any style."""
    if isinstance(node, ScalarNode) and node.start_mark.index < node.end_mark.index:
        return _Edit(node.start_mark.index, node.end_mark.index, written)
    after_colon = text.index(":", _key_of(parent, node).end_mark.index) + 1
    end = after_colon if isinstance(node, ScalarNode) else _end(node)
    return _Edit(after_colon, end, f" {written}")


def _end(node: Node) -> int:
    """Return where a node's text ends; a block's own mark lies behind the comments after it."""
    if isinstance(node, MappingNode | SequenceNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _end(last[1] if isinstance(node, MappingNode) else last)
    return node.end_mark.index


def _added(text: str, mapping: MappingNode, after: Node, new: Mapping[str, str]) -> Iterator[_Edit]:
    """Add keys to a mapping behind a node within it."""
    if not new:
        return
    at = _end(after)
    if mapping.flow_style:
        yield _Edit(at, at, "".join(f", {key}: {value}" for key, value in new.items()))
        return
    # After the whole line, as a comment may follow on it.
    line_end = text.find("\n", at)
    indent = " " * mapping.value[0][0].start_mark.column
    newline = "\r\n" if text[line_end - 1] == "\r" else "\n"
    lines = "".join(f"{indent}{key}: {value}{newline}" for key, value in new.items())
    if line_end < 0:
        yield _Edit(len(text), len(text), "\n" + lines)
    else:
        yield _Edit(line_end + 1, line_end + 1, lines)


def _pause(pause: Pause) -> str:
    return f"{{start_ms: {_number(pause.start_ms)}, end_ms: {_number(pause.end_ms)}}}"


def _shown(bounds: SpeechBounds) -> str:
    start, end = _number(bounds.start_ms), _number(bounds.end_ms)
    if bounds.start_error_ms is None or bounds.end_error_ms is None:
        return f"{start} to {end} ms"
    return f"{start} ±{bounds.start_error_ms:.0f} to {end} ±{bounds.end_error_ms:.0f} ms"


def _number(value_ms: float | None) -> str:
    return "null" if value_ms is None else f"{value_ms:.1f}".removesuffix(".0")


def _spliced(text: str, edits: list[_Edit]) -> str:
    # From the last to the first; of those at one place the first stays in front.
    for edit in sorted(edits, key=lambda e: e.start)[::-1]:
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _verify(
    path: Path,
    text: str,
    edited: str,
    bounds: Mapping[str, SpeechBounds],
    pauses: Mapping[str, Pauses],
) -> None:
    """Refuse an edit that changed anything but the labels, as it would through a YAML alias."""
    wanted = _with_labels(parse_scenario(path, text), bounds, pauses)
    try:
        done = parse_scenario(path, edited)
    except InputError:
        done = None
    if done != wanted:
        raise InputError(
            "label.not_editable",
            f"{path}: the labels cannot be written in place, probably because turns share text "
            "through a YAML anchor",
            hint="write each turn out in full",
        )


def _with_labels(
    scenario: Scenario, bounds: Mapping[str, SpeechBounds], pauses: Mapping[str, Pauses]
) -> Scenario:
    def labelled(recorded: _R) -> _R:
        changes: dict[str, Any] = {"speech": bounds.get(recorded.audio, recorded.speech)}
        changes["pauses"] = pauses.get(recorded.audio, recorded.pauses)
        return recorded.model_copy(update=changes)

    turns = tuple(
        labelled(turn).model_copy(
            update={"backchannels": tuple(labelled(extra) for extra in turn.backchannels)}
        )
        for turn in scenario.turns
    )
    return scenario.model_copy(update={"turns": turns})


def speech_bounds(pcm: Pcm, rate: int, dbfs: float) -> SpeechBounds | None:
    """Return the first and last sample that is audible at `dbfs`, or None if there is none.

    Exact for synthetic speech on a clean line, and for nothing else: in any other recording
    `turngap.scenario.speech.find_speech` tells speech from noise. Rounded to 0.1 ms.
    """
    onset, end = audible_onset(pcm, rate, dbfs), audible_end(pcm, rate, dbfs)
    if onset is None or end is None or end <= onset:
        return None
    start_ms, end_ms = round(onset * 1000 / rate, 1), round(end * 1000 / rate, 1)
    # Rounding up must not leave the recording.
    longest_ms = math.floor(len(pcm) * 10_000 / rate) / 10
    return SpeechBounds(start_ms=start_ms, end_ms=min(end_ms, longest_ms))
