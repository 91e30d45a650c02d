"""Draws a recording with its labels, so that you can check by eye what was taken for speech."""

import base64
from collections.abc import Iterable, Iterator
from html import escape
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from turngap.core.audio import FULL_SCALE, Pcm
from turngap.scenario.clips import Clip
from turngap.scenario.label import Labelled
from turngap.scenario.library import load_scenario
from turngap.scenario.speech import FoundSpeech
from turngap.store.documents import writing

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
    Image.fromarray(_coloured(level)).resize(
        (WIDTH - LEFT - RIGHT, SPECTRUM_HEIGHT), Image.Resampling.BILINEAR
    ).save(out, "PNG", optimize=True)
    data = base64.b64encode(out.getvalue()).decode()
    return (
        f'<image x="{LEFT}" y="{SPECTRUM_TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{SPECTRUM_HEIGHT}" href="data:image/png;base64,{data}"/>'
    )


def _coloured(level: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return RGB, shape (n, m, 3), of levels from 0 to 1."""
    at = np.linspace(0, 1, len(COLOURS))
    channels = [np.interp(level, at, [colour[i] for colour in COLOURS]) for i in range(3)]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)


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
