"""How long after a person's last sound Whisper's text comes, and the gap of an agent with it.

For each size it plays the library's recordings in real time into pipecat's own service and into
`whisper` in several ways, one recording into all of them before the next, in an order that turns.
The turn's end is what the `adaptive` turn-taking would make of it: so many ms after the last
audible sample. With `--agent` it then replays scenarios against that agent.

    python benchmarks/whisper_streaming.py                          # canned, tiny.en's shape
    python benchmarks/whisper_streaming.py --models tiny base distil-small small --agent embedded
    python benchmarks/whisper_streaming.py --models base.en         # weights, so word error rates
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from loguru import logger
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
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

from training.whisper.canned import SHAPES, WHISPER_PIECES, make_canned
from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.stats import percentile
from turngap.scenario.library import library_dir, library_paths, load_scenario
from turngap.testing.pipelines import at_work, worker_of
from turngap_services.stt.whisper import SPEC
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
    """A way of transcribing, and what became of each recording."""

    name: str
    service: STTService
    worker: PipelineWorker | None = None
    texts: list[str] = field(default_factory=list[str])
    after_ms: list[float] = field(default_factory=list[float])
    cpu_s: float = 0.0
    heard: asyncio.Queue[tuple[int, str]] = field(default_factory=asyncio.Queue)


class Ear(FrameProcessor):
    """The end of a pipeline: notes when a transcript arrives."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        super().__init__(enable_direct_mode=True)
        self._hear = hear

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Pass everything on."""
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            self._hear(frame.text)
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


def contenders(model: str, threads: int, clock: MonotonicClock) -> list[Contender]:
    """Pipecat's service, ours after the end as that one, and ours while the person speaks."""
    stock = WhisperSTTService(
        device="cpu",
        compute_type="int8",
        settings=WhisperSTTService.Settings(model=model, language=Language.EN),
    )
    # It takes as many threads as it likes; and it pads to 30 s, which a smaller model cannot read.
    stock._model = WholeModel(model, device="cpu", compute_type="int8", cpu_threads=threads)

    def ours(name: str, **values: object) -> Contender:
        # As much of the audio before the voice was found as pipecat keeps.
        given = {"model": model, "device": "cpu", "threads": threads, "pre_roll_ms": 1000, **values}
        return Contender(name, SPEC.create(SPEC.settings(given), clock))

    return [
        Contender("pipecat", stock),
        ours("whisper, after the end", while_speaking=False, window="full"),
        ours("whisper, whole window", window="full"),
        ours("whisper, window fits", window="fit"),
    ]


@asynccontextmanager
async def listening(contender: Contender, clock: MonotonicClock) -> AsyncIterator[None]:
    def hear(text: str) -> None:
        contender.heard.put_nowait((clock.now_ns(), text))

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
    """One recording, in real time; notes when the transcript came after its last sound."""
    assert contender.worker is not None
    process = psutil.Process()
    times = process.cpu_times()
    before = times.user + times.system
    begun_ns, stopped_ns = clock.now_ns(), 0
    for due_ms, frame in timeline(recording, hold_ms):
        await clock.sleep_until_ns(begun_ns + ms_to_ns(due_ms))
        if isinstance(frame, VADUserStoppedSpeakingFrame):
            stopped_ns = clock.now_ns()
        await contender.worker.queue_frame(frame)
    try:
        async with asyncio.timeout(LATEST_S):
            came_ns, text = await contender.heard.get()
    except TimeoutError:
        contender.texts.append("")  # a missing transcript has no time, and all its words are wrong
    else:
        contender.texts.append(text)
        contender.after_ms.append(hold_ms + ns_to_ms(came_ns - stopped_ns))
    times = process.cpu_times()
    contender.cpu_s += times.user + times.system - before


def wrong(wanted: list[str], got: list[str]) -> str:
    """Words that differ, as a share of those wanted."""
    pairs = [(spoken_words(a), spoken_words(b)) for a, b in zip(wanted, got, strict=True)]
    errors = sum(Levenshtein.distance(a, b) for a, b in pairs)
    return f"{100 * errors / max(1, sum(len(a) for a, _ in pairs)):.1f} %"


def ms(contender: Contender, q: float) -> float | None:
    """A percentile; infinite where the transcripts that it would be among never came.

    None: too few transcripts for it.
    """
    missing = len(contender.texts) - len(contender.after_ms)
    return percentile(contender.after_ms, q, censored=missing).value


def faster(contender: Contender, stock: Contender) -> str:
    """How many times sooner than stock's the transcript comes, at the median."""
    its, stocks = ms(contender, 0.5), ms(stock, 0.5)
    return f"{stocks / its:.1f}x" if its and stocks else "–"


def shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def show(model: str, every: list[Contender], said: list[Recording], *, is_canned: bool) -> None:
    stock, at_once = every[0], every[1]
    print(
        f"\n{model:<24}{'ms after the last sound':>24}{'':>6}{'less than':>11}"
        f"{'differs from':>15}{'WER':>8}{'CPU ms':>8}"
    )
    print(f"{'':<24}{'p50':>12}{'p95':>12}{'n':>6}{'pipecat':>11}{'after the end':>15}")
    for each in every:
        print(
            f"{each.name:<24}{shown(ms(each, 0.5)):>12}{shown(ms(each, 0.95)):>12}"
            f"{len(each.texts):>6}{faster(each, stock):>11}{wrong(at_once.texts, each.texts):>15}"
            f"{'-' if is_canned else wrong([r.say for r in said], each.texts):>8}"
            f"{1000 * each.cpu_s / len(said):>8.0f}"
        )
    if is_canned:
        print("the model is canned: what it reads is how long people speak, not what they say")


async def measure(name: str, model: str, arguments: argparse.Namespace, *, is_canned: bool) -> None:
    clock = MonotonicClock()
    said = recordings(arguments.limit)
    every = contenders(model, arguments.threads, clock)
    async with AsyncExitStack() as stack:
        for each in every:
            await stack.enter_async_context(listening(each, clock))
            await play(each, said[0], arguments.hold_ms, clock)  # what is slow once
            each.texts.clear()
            each.after_ms.clear()
            each.cpu_s = 0.0
        for number, recording in enumerate(said):
            turned = number % len(every)
            for each in every[turned:] + every[:turned]:
                await play(each, recording, arguments.hold_ms, clock)
            print(f"{recording.name}: {every[2].texts[-1]}", file=sys.stderr, flush=True)
    show(name, every, said, is_canned=is_canned)


def gap(model: str, window: str, arguments: argparse.Namespace) -> str:
    """Replay scenarios against a whole agent. Returns what the turns' gaps were."""
    sets = {
        "stt.model": model,
        "stt.window": window,
        "stt.device": "cpu",
        "stt.threads": arguments.threads,
    }
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-m", "turngap", "replay", *arguments.scenarios, "--json"]
        command += ["--agent", arguments.agent, "--stt", "whisper", "--out", runs]
        command += [f"--set={name}={value}" for name, value in sets.items()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        return done.stderr.strip()
    told = json.loads(done.stdout)
    summary, turns = told["summary"], told["turns"]
    again = sum(turn.get("counts", {}).get("stt_read_again", 0) for turn in turns)
    gaps = summary["gap_ms"]
    return (
        f"gap p50 {shown(gaps['p50'])}, p95 {shown(gaps['p95'])} (n={gaps['n']}), "
        f"{summary['hit_rate']:.0%} within the budget, {again:g} readings made again"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models",
        nargs="+",
        default=["tiny"],
        help=f"shapes of canned models ({', '.join(SHAPES)}), or directories or hub ids",
    )
    parser.add_argument("--hold-ms", type=float, default=250.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=int, help="recordings (default: the library's)")
    parser.add_argument("--agent", help="a stack, to play against a whole agent too")
    parser.add_argument("--scenarios", nargs="+", default=[], help="default: the library's")
    parser.add_argument("--windows", nargs="+", choices=("fit", "full"), default=["fit"])
    arguments = parser.parse_args()
    logger.remove()  # pipecat's debug lines
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            model = name
            if name in SHAPES:
                model = str(Path(folder, "canned"))
                make_canned(Path(model), shape=SHAPES[name], room=WHISPER_PIECES)
            asyncio.run(measure(name, model, arguments, is_canned=name in SHAPES))
            for window in arguments.windows if arguments.agent else ():
                print(f"{name}, window {window}: {gap(model, window, arguments)}", flush=True)


if __name__ == "__main__":
    main()
