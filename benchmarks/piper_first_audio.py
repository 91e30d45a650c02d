"""How soon `piper` is heard here, beside pipecat's stock piper service on the same sentences.

Every sentence is spoken by each of four services in turn, in changing order, by the same voice:

    python benchmarks/piper_first_audio.py [--voice VOICE.onnx] [--rounds 5]

- `stock` is pipecat's `PiperTTSService` as it comes: a whole sentence at a time, onnxruntime's own
  choice of threads;
- `whole` is turngap's `piper` with `clauses = false`, so that what differs is not clauses;
- `threads` is `whole` with a thread for each core, as the stock service has;
- `clauses` is turngap's `piper` as it comes: the first clause first, one thread.

Without --voice it is a VITS of piper's medium shape with random weights (services/training/voices):
noise, that takes as long as a published voice.
"""

import argparse
import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from loguru import logger
from pipecat.frames.frames import TTSAudioRawFrame
from pipecat.pipeline.worker import PipelineParams
from pipecat.services.piper.tts import PiperTTSService as StockPiper
from pipecat.services.tts_service import TTSService

from training.voices import random_vits
from turngap.clocks import MonotonicClock
from turngap.core.audio import audible_onset
from turngap.core.clauses import parted
from turngap.testing.pipelines import at_work, worker_of
from turngap_services.script import scenarios
from turngap_services.tts.piper import PiperSettings, create, prepare

RATE = 22_050
RESAMPLES = 4000


@dataclass(frozen=True)
class Heard:
    """One sentence by one service; from the request, in ms."""

    text: str
    first_ms: float  # its first audio
    audible_ms: float  # its first audible sample, if what is made is played at once
    whole_ms: float  # its last audio
    cpu_ms: float  # of all cores


async def hear(service: TTSService, text: str, context: str) -> Heard:
    cpu_s, asked_s = time.process_time(), time.perf_counter()
    made: list[tuple[float, bytes]] = []
    async for frame in service.run_tts(text, context):
        if not isinstance(frame, TTSAudioRawFrame):
            raise SystemExit(f"{service.name} said {frame} of {text!r}")
        made.append(((time.perf_counter() - asked_s) * 1000, frame.audio))
    spent_ms = (time.process_time() - cpu_s) * 1000
    first_ms, whole_ms = made[0][0], made[-1][0]
    onset = audible_onset(np.frombuffer(made[0][1], np.int16), RATE)
    if onset is None:
        raise SystemExit(f"{service.name} began {text!r} with silence")
    return Heard(text, first_ms, first_ms + onset * 1000 / RATE, whole_ms, spent_ms)


async def measured(voice: Path, sentences: list[str], rounds: int) -> dict[str, list[Heard]]:
    settings = {
        "clauses": PiperSettings(voice=str(voice)),
        "whole": PiperSettings(voice=str(voice), clauses=False),
        "threads": PiperSettings(voice=str(voice), clauses=False, threads=os.cpu_count() or 1),
    }
    clock = MonotonicClock()
    services: dict[str, TTSService] = {}
    for name, each in settings.items():
        prepare(each)
        services[name] = create(each, clock)
    stock = StockPiper.Settings(voice=voice.stem)
    services["stock"] = StockPiper(settings=stock, download_dir=voice.parent)
    heard: dict[str, list[Heard]] = {name: [] for name in services}
    orders = itertools.cycle(itertools.permutations(services))
    params = PipelineParams(audio_out_sample_rate=RATE)
    async with at_work(worker_of(list(services.values()), params), patience_s=None):
        for service in services.values():  # what is slow once
            await hear(service, sentences[0], "warm")
        for number, text in enumerate(sentences * rounds):
            for name in next(orders):
                heard[name].append(await hear(services[name], text, f"{name}-{number}"))
    return heard


def ratio(ours: Sequence[Heard], theirs: Sequence[Heard], value: str) -> str:
    """Median of the pairs' ratios, with 95 % of resamples of whole sentences."""
    by_text: dict[str, list[float]] = {}
    for mine, their in zip(ours, theirs, strict=True):
        by_text.setdefault(mine.text, []).append(getattr(mine, value) / getattr(their, value))
    each = [np.array(ratios) for ratios in by_text.values()]
    draw = np.random.default_rng(0)
    medians = [
        np.median(np.concatenate([each[i] for i in draw.integers(0, len(each), len(each))]))
        for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(medians, (2.5, 97.5))
    middle = np.median(np.concatenate(each))
    return f"{middle:.2f} ({low:.2f} to {high:.2f}), n={len(ours)}"


def show(heard: dict[str, list[Heard]], of: set[str], title: str) -> None:
    chosen = {name: [h for h in all_ if h.text in of] for name, all_ in heard.items()}
    print(f"\n{title}: {len(of)} sentences")
    print(f"{'':9}{'first audio':>16}{'audible':>16}{'whole':>16}{'CPU':>8}   ms, p50 / p95")
    for name, all_ in chosen.items():
        columns = [
            f"{np.percentile(v, 50):8.1f}/{np.percentile(v, 95):7.1f}"
            for v in ([getattr(h, k) for h in all_] for k in ("first_ms", "audible_ms", "whole_ms"))
        ]
        cpu_ms = np.median([h.cpu_ms for h in all_])
        print(f"{name:9}" + "".join(columns) + f"{cpu_ms:8.0f}   n={len(all_)}")
    for value in ("first_ms", "audible_ms"):
        for name in ("clauses", "whole", "threads"):
            print(f"{value} {name} / stock: {ratio(chosen[name], chosen['stock'], value)}")


async def main() -> None:
    logger.remove()  # pipecat's debug lines
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("--voice", type=Path, help="an .onnx with its .onnx.json beside it")
    ask.add_argument("--rounds", type=int, default=5, help="times through the sentences")
    ask.add_argument("--library", type=Path, help="scenarios whose replies are spoken")
    arguments = ask.parse_args()
    found = dict.fromkeys(t.reply for s in scenarios(arguments.library) for t in s.turns if t.reply)
    sentences = list(found)
    with tempfile.TemporaryDirectory() as folder:
        voice = arguments.voice or Path(folder) / "random-medium.onnx"
        if arguments.voice is None:
            random_vits.make(voice)
        heard = await measured(voice, sentences, arguments.rounds)
    several = {text for text in sentences if len(parted(text)) > 1}
    show(heard, several, "of several clauses")
    show(heard, set(sentences) - several, "of one clause")
    show(heard, set(sentences), "all")


if __name__ == "__main__":
    asyncio.run(main())
