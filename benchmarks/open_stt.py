"""How long after a person's last sound an open-domain recogniser has the words, and at what cost.

Plays the library's recordings in real time into each engine, one recording into all of them before
the next, in an order that turns. The turn's end is what the `adaptive` turn-taking would make of
it: so many ms after the last audible sample.

    python benchmarks/open_stt.py                                   # canned models of these shapes
    python benchmarks/open_stt.py whisper:tiny pipecat:tiny --limit 8
    python benchmarks/open_stt.py whisper=base.en                   # weights, and so error rates

An engine is NAME:SHAPE or NAME=MODEL, NAME one of those that --help lists. A canned model has the
layers of a published one and calculates as that does, but its text is how long people speak, so
only its time counts.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from loguru import logger
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.stt_service import STTService
from pipecat.services.whisper.stt import WhisperSTTService
from pipecat.transcriptions.language import Language
from rapidfuzz.distance import Levenshtein

from training.whisper import canned as canned_whisper
from turngap.backends import BackendSpec
from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.stats import percentile
from turngap.scenario.library import library_dir, library_paths, load_scenario
from turngap.testing.pipelines import at_work, worker_of
from turngap_services.stt.whisper import SPEC as WHISPER
from turngap_services.stt.whisper.model import WholeModel
from turngap_services.text import spoken_words

RATE = 16_000
PACKET_MS = 20
STARTS_LATE_MS = 80  # when `adaptive` finds a voice
LEAD_S = 0.7  # line noise before each recording
LATEST_S = 30.0  # a transcript that has not come by then does not come


@dataclass(frozen=True)
class Recording:
    """What a person says, and where in it speech begins and ends."""

    name: str
    say: str
    pcm: np.ndarray
    start_ms: float
    end_ms: float


@dataclass
class Contender:
    """An engine with a model, and what became of each recording.

    Attributes:
        texts: what it wrote; empty where no transcript came.
        after_ms: from the person's last audible sample to the transcript, where one came.
        known_ms: to the first text, interim or not, that has all the words of the transcript: from
            then on `adaptive` may answer.
        cpu_s: CPU time of the whole process while it was played to.
    """

    name: str
    is_canned: bool
    service: STTService
    worker: PipelineWorker | None = None
    texts: list[str] = field(default_factory=list[str])
    after_ms: list[float] = field(default_factory=list[float])
    known_ms: list[float] = field(default_factory=list[float])
    cpu_s: float = 0.0
    heard: asyncio.Queue[tuple[int, str, bool]] = field(default_factory=asyncio.Queue)


class Ear(FrameProcessor):
    """The end of a pipeline: notes when a transcript arrives."""

    def __init__(self, hear: Callable[[str, bool], None]) -> None:
        super().__init__(enable_direct_mode=True)
        self._hear = hear

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Pass everything on."""
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame | InterimTranscriptionFrame):
            self._hear(frame.text, isinstance(frame, TranscriptionFrame))
        await self.push_frame(frame, direction)


def recordings(limit: int | None) -> list[Recording]:
    found: list[Recording] = []
    for path in library_paths(library_dir()):
        loaded = load_scenario(path)
        for turn in loaded.scenario.turns:
            assert turn.speech is not None
            pcm = loaded.clips[turn.audio].at_rate(RATE)
            found.append(
                Recording(turn.audio, turn.say, pcm, turn.speech.start_ms, turn.speech.end_ms)
            )
    return found[:limit]


def pipecats(model: str, threads: int, clock: MonotonicClock) -> STTService:
    """Pipecat's own Whisper, which reads after the end."""
    stock = WhisperSTTService(
        device="cpu",
        compute_type="int8",
        settings=WhisperSTTService.Settings(model=model, language=Language.EN),
    )
    # It takes as many threads as it likes; and it pads to 30 s, which a smaller model cannot read.
    stock._model = WholeModel(model, device="cpu", compute_type="int8", cpu_threads=threads)
    return stock


def ours(spec: BackendSpec, **given: object) -> Callable[[str, int, MonotonicClock], STTService]:
    """A backend of ours, with as much of the audio before the voice was found as pipecat keeps."""

    def make(model: str, threads: int, clock: MonotonicClock) -> STTService:
        settings = {"model": model, "threads": threads, "pre_roll_ms": 1000, **given}
        return spec.create(spec.settings(settings), clock)

    return make


ENGINES = {
    "whisper": ours(WHISPER, device="cpu"),
    "whisper-full": ours(WHISPER, device="cpu", window="full"),
    "whisper-fit": ours(WHISPER, device="cpu", window="fit"),
    "whisper-end": ours(WHISPER, device="cpu", window="full", while_speaking=False),
    "pipecat": pipecats,
}
DEFAULT = (
    "whisper:tiny",
    "whisper:base",
    "whisper-full:tiny",
    "pipecat:tiny",
)


def contender(named: str, threads: int, models: Path, clock: MonotonicClock) -> Contender:
    """The engine of NAME:SHAPE or NAME=MODEL."""
    engine, is_model, model = named.partition("=")
    if not is_model:
        engine, _, shape = named.partition(":")
        # Each has a model of its own: engines that shared one would share its CPU caches too.
        directory = models / named.replace(":", "-")
        given = canned_whisper.SHAPES[shape]
        canned_whisper.make_canned(directory, shape=given, room=canned_whisper.WHISPER_PIECES)
        model = str(directory)
    service = ENGINES[engine](model, threads, clock)
    return Contender(named, not is_model, service)


@asynccontextmanager
async def listening(contender: Contender, clock: MonotonicClock) -> AsyncIterator[None]:
    def hear(text: str, is_final: bool) -> None:
        contender.heard.put_nowait((clock.now_ns(), text, is_final))

    params = PipelineParams(audio_in_sample_rate=RATE)
    contender.worker = worker_of((contender.service, Ear(hear)), params)
    async with at_work(contender.worker, patience_s=None):
        yield


def timeline(recording: Recording, hold_ms: float) -> list[tuple[float, Frame]]:
    """Each frame with the ms at which it is due: a packet is when its last sample has sounded."""
    lead, tail = round(LEAD_S * RATE), round((hold_ms / 1000 + 0.1) * RATE)
    noise = np.random.default_rng(0).normal(0, 41, lead + tail).astype(np.int16)  # -58 dBFS
    pcm = np.concatenate((noise[:lead], recording.pcm, noise[lead:]))
    packet = RATE * PACKET_MS // 1000
    frames: list[tuple[float, Frame]] = [
        ((at + packet) * 1000 / RATE, InputAudioRawFrame(pcm[at : at + packet].tobytes(), RATE, 1))
        for at in range(0, len(pcm), packet)
    ]
    lead_ms = LEAD_S * 1000
    start = VADUserStartedSpeakingFrame(start_secs=0.05)
    frames.append((lead_ms + recording.start_ms + STARTS_LATE_MS, start))
    stop = VADUserStoppedSpeakingFrame(stop_secs=hold_ms / 1000)
    frames.append((lead_ms + recording.end_ms + hold_ms, stop))
    return sorted(frames, key=lambda due: due[0])


async def play(
    contender: Contender, recording: Recording, hold_ms: float, clock: MonotonicClock
) -> None:
    """One recording, in real time; notes when its words came."""
    assert contender.worker is not None
    process = psutil.Process()
    times = process.cpu_times()
    before = times.user + times.system
    begun_ns = clock.now_ns()
    for due_ms, frame in timeline(recording, hold_ms):
        await clock.sleep_until_ns(begun_ns + ms_to_ns(due_ms))
        await contender.worker.queue_frame(frame)
    ended_ns = begun_ns + ms_to_ns(LEAD_S * 1000 + recording.end_ms)
    known: dict[str, int] = {}
    try:
        async with asyncio.timeout(LATEST_S):
            is_final, text, came_ns = False, "", 0
            while not is_final:
                came_ns, text, is_final = await contender.heard.get()
                known.setdefault(" ".join(spoken_words(text)), came_ns)
    except TimeoutError:
        contender.texts.append("")  # a missing transcript has no time, and all its words are wrong
    else:
        contender.texts.append(text)
        contender.after_ms.append(ns_to_ms(came_ns - ended_ns))
        contender.known_ms.append(ns_to_ms(known[" ".join(spoken_words(text))] - ended_ns))
    times = process.cpu_times()
    contender.cpu_s += times.user + times.system - before


def wrong(wanted: list[str], got: list[str]) -> float:
    """Words that differ, as a share of those wanted."""
    pairs = [(spoken_words(a), spoken_words(b)) for a, b in zip(wanted, got, strict=True)]
    errors = sum(Levenshtein.distance(a, b) for a, b in pairs)
    return errors / max(1, sum(len(a) for a, _ in pairs))


def row(each: Contender, said: list[Recording], hold_ms: float) -> dict[str, object]:
    """What is known of an engine: None where too few turns came through, or no word is real."""
    missing = len(each.texts) - len(each.after_ms)

    def ms(values: list[float], q: float) -> float | None:
        return percentile(values, q, censored=missing).value

    spoken_s = sum(LEAD_S + (r.end_ms + hold_ms) / 1000 for r in said)
    return {
        "engine": each.name,
        "n": len(each.texts),
        "missing": missing,
        "known_p50_ms": ms(each.known_ms, 0.5),
        "known_p95_ms": ms(each.known_ms, 0.95),
        "final_p50_ms": ms(each.after_ms, 0.5),
        "final_p95_ms": ms(each.after_ms, 0.95),
        "cpu_share": each.cpu_s / spoken_s,
        "wer": None if each.is_canned else wrong([r.say for r in said], each.texts),
    }


def shown(value: object, spec: str) -> str:
    return "–" if value is None else format(value, spec)


def show(rows: list[Mapping[str, object]], hold_ms: float) -> None:
    print(
        f"\nms from the last audible sample; the turn is declared over after {hold_ms:g} ms\n"
        f"{'':<30}{'all words known':>18}{'transcript':>18}{'CPU':>8}{'WER':>8}{'n':>5}"
    )
    print(f"{'':<30}{'p50':>9}{'p95':>9}{'p50':>9}{'p95':>9}")
    for each in rows:
        names = (f"{part}_{q}_ms" for part in ("known", "final") for q in ("p50", "p95"))
        times = "".join(f"{shown(each[name], '.0f'):>9}" for name in names)
        print(
            f"{each['engine']:<30}{times}"
            f"{shown(each['cpu_share'], '.2f'):>8}{shown(each['wer'], '.1%'):>8}{each['n']:>5}"
        )
    print(
        "CPU: of one core, while the person speaks and until the turn is over; the line and the "
        "player included"
    )
    if any(each["wer"] is None for each in rows):
        print("no WER: the model is canned, what it reads is how long people speak")


async def measure(arguments: argparse.Namespace, models: Path) -> list[Mapping[str, object]]:
    clock = MonotonicClock()
    said = recordings(arguments.limit)
    every = [contender(each, arguments.threads, models, clock) for each in arguments.engines]
    async with AsyncExitStack() as stack:
        for each in every:
            await stack.enter_async_context(listening(each, clock))
            await play(each, said[0], arguments.hold_ms, clock)  # what is slow once
            each.texts.clear()
            each.after_ms.clear()
            each.known_ms.clear()
            each.cpu_s = 0.0
        for number, recording in enumerate(said):
            turned = number % len(every)
            for each in every[turned:] + every[:turned]:
                await play(each, recording, arguments.hold_ms, clock)
            print(f"{recording.name}: {every[0].texts[-1]}", file=sys.stderr, flush=True)
    return [row(each, said, arguments.hold_ms) for each in every]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "engines",
        nargs="*",
        default=DEFAULT,
        help=f"NAME:SHAPE or NAME=MODEL; names: {', '.join(ENGINES)}; shapes: "
        f"{', '.join(canned_whisper.SHAPES)}",
    )
    parser.add_argument("--hold-ms", type=float, default=250.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=int, help="recordings (default: the library's)")
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    arguments = parser.parse_args()
    for named in arguments.engines:
        if named.replace("=", ":").partition(":")[0] not in ENGINES:
            parser.error(f"no engine {named!r}; known: {', '.join(ENGINES)}")
    logger.remove()  # pipecat's debug lines
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(arguments, Path(folder)))
    if arguments.json:
        print(json.dumps({"hold_ms": arguments.hold_ms, "engines": rows}, indent=2))
    else:
        show(rows, arguments.hold_ms)


if __name__ == "__main__":
    main()
