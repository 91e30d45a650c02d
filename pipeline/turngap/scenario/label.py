"""Find the speech of a scenario's recordings and write its labels into the file.

Only the labels in the file are edited. Comments, order and formatting stay byte for byte; a YAML
round trip would re-indent and re-wrap them.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from turngap.core.audio import FULL_SCALE, Pcm, rms_dbfs
from turngap.core.cue import Pause, SpeechBounds
from turngap.core.errors import InputError
from turngap.scenario.library import Clip, load_scenario
from turngap.scenario.model import Recorded, Scenario, parse_scenario, text_of
from turngap.scenario.speech import FoundSpeech, find_speech
from turngap.store.documents import write_atomically, writing
from turngap.store.yaml import compose_yaml

_R = TypeVar("_R", bound=Recorded)

Pauses = tuple[Pause, ...]


@dataclass(frozen=True, slots=True)
class Labelled:
    """A recording that `label_file` examined.

    Attributes:
        audio: the recording, as named in the scenario.
        before: the earlier bounds in the file, if any.
        pauses_before: the earlier pauses in the file; None if it had not been searched for any.
        found: the new labels in the file, and what to check.
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
        only_missing: skip recordings that have bounds.

    Returns:
        The examined recordings, in the file's order. If nothing `changed`, the file is untouched.

    Raises:
        InputError: the scenario or a recording cannot be used, or holds no speech. Nothing is
            written then.
    """
    loaded = load_scenario(path, need_labels=False)
    labelled: list[Labelled] = []
    for recorded in _recorded(loaded.scenario):
        if only_missing and recorded.speech is not None:
            continue
        clip = loaded.clips[recorded.audio]
        found = find_speech(clip.pcm, clip.rate)
        if found is None:
            raise InputError(
                "label.no_speech",
                f"{path}: no speech was found in {recorded.audio}; its level is "
                f"{rms_dbfs(clip.pcm):.0f} dBFS",
                hint="listen to it, and record it again; or write "
                "`speech: {start_ms: …, end_ms: …}` by hand",
            )
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
    edits: list[_Edit] = []
    for node in _recorded_nodes(compose_yaml(text, path, "scenario")):
        audio = _value(node, "audio")
        if isinstance(audio, ScalarNode) and audio.value in bounds:
            name = audio.value
            edits.extend(_edits_of(text, node, audio, bounds[name], pauses.get(name)))
    edited = text
    # From the last to the first; of those at one place the first stays in front.
    for edit in sorted(edits, key=lambda e: e.start)[::-1]:
        edited = edited[: edit.start] + edit.text + edited[edit.end :]
    # An edit through a YAML alias would change more than the labels.
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
    write_atomically(path.resolve(), edited.encode(), mode=path.stat().st_mode)


def _recorded(scenario: Scenario) -> Iterator[Recorded]:
    """Yield the parts with a recording; parts spoken by a voice are labelled whenever they load."""
    for turn in scenario.turns:
        yield from (said for said in (turn, *turn.backchannels) if said.audio)


@dataclass(frozen=True, slots=True)
class _Edit:
    """Put `text` in place of the characters from `start` to `end`."""

    start: int
    end: int
    text: str


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


def _edits_of(
    text: str,
    recorded: MappingNode,
    audio: ScalarNode,
    bounds: SpeechBounds,
    pauses: Pauses | None,
) -> Iterator[_Edit]:
    """Yield the edits of one recording's labels; new keys follow the keys that they belong to."""
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
    """Replace a key's value: null, nothing at all, or a list of any style."""
    if isinstance(node, ScalarNode) and node.start_mark.index < node.end_mark.index:
        return _Edit(node.start_mark.index, node.end_mark.index, written)
    key = next(name for name, held in parent.value if held is node)
    after_colon = text.index(":", key.end_mark.index) + 1
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


WIDTH, LEFT, RIGHT = 1000, 50, 20
WAVE_TOP, WAVE_HEIGHT = 60, 120
SPECTRUM_TOP, SPECTRUM_HEIGHT = 200, 220
AXIS = SPECTRUM_TOP + SPECTRUM_HEIGHT

# Speech spans about 60 dB from its vowels down to its weakest consonants.
SHOWN_DB = 70.0
# From black over violet and orange to white: even steps of lightness read as even steps of level.
COLOURS = ((0, 0, 4), (81, 18, 124), (183, 55, 121), (252, 137, 97), (252, 253, 191))

STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.small{font-size:11px;fill:#555}"
    ".bound{stroke-width:2}.start{stroke:#0a8f3c;fill:#0a8f3c}.end{stroke:#d1242f;fill:#d1242f}"
    ".error{opacity:.22;stroke:none}.pause{fill:#1f6feb;opacity:.3}.wave{fill:#3b4a5a}"
    ".warning{fill:#9a5b00}"
)


def draw_labels(path: Path, labelled: Iterable[Labelled], folder: Path) -> list[Path]:
    """Write an SVG picture of each labelled recording of a scenario file into a folder.

    Raises:
        InputError: the folder cannot be written.
    """
    clips = load_scenario(path, need_labels=False).clips
    drawn = []
    with writing(folder, "label.unwritable"):
        folder.mkdir(parents=True, exist_ok=True)
        for label in labelled:
            file = folder / f"{Path(label.audio).with_suffix('').as_posix().replace('/', '-')}.svg"
            file.write_text(picture(label.audio, clips[label.audio], label.found), encoding="utf-8")
            drawn.append(file)
    return drawn


def picture(name: str, clip: Clip, found: FoundSpeech) -> str:
    """Return an SVG: waveform and spectrogram, bounds with their errors, pauses and warnings."""
    height = AXIS + 50 + 18 * len(found.warnings)
    bounds = found.bounds
    text = (
        f"speech {bounds.start_ms:.0f} ±{bounds.start_error_ms or 0:.0f} to {bounds.end_ms:.0f} "
        f"±{bounds.end_error_ms or 0:.0f} ms, {found.snr_db:.0f} dB above the noise"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}"><style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-weight="600">{escape(name)}</text>',
        f'<text x="{LEFT}" y="44" class="small">{escape(text)}</text>',
        _waveform(clip.pcm),
        _spectrogram(clip),
        *_labels(found, clip.duration_ms),
        *_axis(clip),
    ]
    for i, warning in enumerate(found.warnings):
        y = AXIS + 52 + 18 * i
        parts.append(
            f'<text x="{LEFT}" y="{y}" class="warning">check: {escape(str(warning))}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _x(ms: float, length_ms: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * min(max(ms / length_ms, 0.0), 1.0)


def _waveform(pcm: Pcm) -> str:
    """Draw the lowest and the highest sample of each pixel; the loudest one fills the height."""
    columns = np.array_split(pcm.astype(np.float64), min(WIDTH - LEFT - RIGHT, len(pcm)))
    high = np.array([column.max() for column in columns])
    low = np.array([column.min() for column in columns])
    scale = WAVE_HEIGHT / 2 / max(1.0, float(np.abs(pcm.astype(np.float64)).max()))
    middle = WAVE_TOP + WAVE_HEIGHT / 2
    x = np.linspace(LEFT, WIDTH - RIGHT, len(columns))
    above = [f"{a:.1f},{middle - h * scale:.1f}" for a, h in zip(x, high, strict=True)]
    below = [f"{a:.1f},{middle - h * scale:.1f}" for a, h in zip(x, low, strict=True)]
    return f'<polygon class="wave" points="{" ".join([*above, *below[::-1]])}"/>'


def _spectrogram(clip: Clip) -> str:
    pcm = np.pad(clip.pcm, (0, max(0, clip.rate // 50 - len(clip.pcm))))
    width = clip.rate // 50
    windows = np.lib.stride_tricks.sliding_window_view(pcm / FULL_SCALE, width)
    stretches = windows[:: width - width * 3 // 4]
    steady = stretches.mean(axis=1, keepdims=True)
    power = np.abs(np.fft.rfft((stretches - steady) * np.hanning(width), axis=1).T) ** 2
    db = 10 * np.log10(power / (clip.rate * width / 4) + 1e-14)
    level = np.clip((db - db.max() + SHOWN_DB) / SHOWN_DB, 0, 1)[::-1]
    from PIL import Image

    out = BytesIO()
    at = np.linspace(0, 1, len(COLOURS))
    channels = [np.interp(level, at, [colour[i] for colour in COLOURS]) for i in range(3)]
    Image.fromarray(np.rint(np.stack(channels, axis=-1)).astype(np.uint8)).resize(
        (WIDTH - LEFT - RIGHT, SPECTRUM_HEIGHT), Image.Resampling.BILINEAR
    ).save(out, "PNG", optimize=True)
    data = base64.b64encode(out.getvalue()).decode()
    return (
        f'<image x="{LEFT}" y="{SPECTRUM_TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{SPECTRUM_HEIGHT}" href="data:image/png;base64,{data}"/>'
    )


def _labels(found: FoundSpeech, length_ms: float) -> Iterator[str]:
    top, bottom, bounds = WAVE_TOP, AXIS, found.bounds
    for pause in found.pauses:
        left, right = _x(pause.start_ms, length_ms), _x(pause.end_ms, length_ms)
        yield (
            f'<rect class="pause" x="{left:.1f}" y="{top}" width="{right - left:.1f}" '
            f'height="{bottom - top}"><title>pause of {pause.ms:.0f} ms</title></rect>'
        )
    for side, ms, error_ms in (
        ("start", bounds.start_ms, bounds.start_error_ms or 0.0),
        ("end", bounds.end_ms, bounds.end_error_ms or 0.0),
    ):
        left, right = _x(ms - error_ms, length_ms), _x(ms + error_ms, length_ms)
        x = _x(ms, length_ms)
        yield (
            f'<rect class="error {side}" x="{left:.1f}" y="{top}" width="{right - left:.1f}" '
            f'height="{bottom - top}"/>'
        )
        yield f'<line class="bound {side}" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'


def _axis(clip: Clip) -> Iterator[str]:
    length_s = clip.duration_ms / 1000
    step_s = next((s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 30) if length_s / s <= 14), 60)
    for i in range(int(length_s / step_s) + 1):
        x = _x(i * step_s * 1000, clip.duration_ms)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{AXIS}" y2="{AXIS + 5}" stroke="#555"/>'
        yield (
            f'<text class="small" x="{x:.1f}" y="{AXIS + 20}" text-anchor="middle">'
            f"{i * step_s:g} s</text>"
        )
    for khz in range(0, clip.rate // 2000 + 1, 2 if clip.rate <= 16_000 else 4):
        y = AXIS - SPECTRUM_HEIGHT * khz * 2000 / clip.rate
        yield (
            f'<text class="small" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{khz} kHz</text>'
        )
