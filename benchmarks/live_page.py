"""The live page in a conversation: how exact, how soon drawn, how busy; and pictures of it.

A Chromium with a recorded microphone talks to `turngap serve`, then to a scripted agent that
answers after known delays. Needs Chromium; best on a machine that does nothing else.

    python benchmarks/live_page.py                      figures
    python benchmarks/live_page.py --screenshots docs   and docs/live-*.png from the first talk
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/live"))  # the browser and its microphone, as the tests have it

from page_browser import (  # noqa: E402
    PAGE,
    Microphone,
    Opened,
    PageServer,
    chromium,
    opened,
    process,
    scripted_agent,
)

from turngap.testing.agent import Reply, Script  # noqa: E402

SAID = ("coffee-order/1", "coffee-order/2", "coffee-order/3", "coffee-order/4")
SWITCH_AFTER = 4
PAUSE_MS = 4400.0


def told(name: str, values: Sequence[float], unit: str = "ms") -> None:
    p50, p95 = np.percentile(values, [50, 95])
    figures = f"p50 {p50:6.1f}  p95 {p95:6.1f}  max {max(values):6.1f} {unit}"
    print(f"{name:<42} n={len(values):<4} {figures}")


async def converse(folder: Path, pictures: Path | None) -> None:
    """Eight recorded turns with the embedded agent; after four another model answers."""
    microphone = Microphone().pause(1500)
    for _ in range(2):
        for name in SAID:
            microphone.recording(ROOT / f"scenarios/{name}.flac").pause(PAUSE_MS)
    serve = ("-m", "turngap", "serve", "--json", "--port", "0", "--out", str(folder / "runs"))
    async with (
        process(*serve, "--offer", "sim-slow=sim,ttft_ms=420") as ready,
        chromium(microphone=microphone.write(folder / "said.wav")) as browser,
    ):
        tab = await opened(browser, ready["page"].replace("127.0.0.1", "localhost"))
        tools = await tab.page.context.new_cdp_session(tab.page)
        await tools.send("Performance.enable", {"timeDomain": "threadTicks"})
        await tab.start()
        await tab.watch_drawing()
        before, began = await busy_s(tools), time.perf_counter()
        await tab.finished(SWITCH_AFTER, timeout_s=60)
        await tab.page.select_option("#llm", "sim-slow")
        turns = await tab.finished(2 * len(SAID), timeout_s=60)
        share = (await busy_s(tools) - before) / (time.perf_counter() - began)
        drawn = [turn["drawnMs"] for turn in turns if turn.get("drawnMs") is not None]
        told("onset of the reply to its waterfall", drawn)
        told("main thread, CPU of the conversation", [100 * share], "%")
        told("turn gap", [turn["gapMs"] for turn in turns if turn["gapMs"] is not None])
        if pictures is not None:
            await take(tab, pictures)


async def busy_s(tools: Any) -> float:
    """CPU time that the page's main thread has spent in tasks."""
    metrics = (await tools.send("Performance.getMetrics"))["metrics"]
    return next(m["value"] for m in metrics if m["name"] == "TaskDuration")


async def take(tab: Opened, folder: Path) -> None:
    page = tab.page
    for name, width, scheme in (
        ("light", 1080, "light"),
        ("dark", 1080, "dark"),
        ("phone", 390, "light"),
    ):
        await page.set_viewport_size({"width": width, "height": 900})
        await page.emulate_media(color_scheme=scheme)
        await page.wait_for_timeout(300)
        height = await page.evaluate("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, 900 if width > 400 else 1100)}
        file = folder / f"live-{name}.png"
        await page.screenshot(path=file, clip=clip, full_page=True)
        print(f"{file} {file.stat().st_size // 1024} KB")


async def measure(folder: Path, turns: int) -> None:
    """Known delays from a scripted agent in a process of its own."""
    delays = [float(d) for d in np.random.default_rng(0).uniform(250, 700, turns)]
    microphone = Microphone().pause(1500)
    for _ in delays:
        microphone.tone(400).pause(1750)
    script = Script(replies=tuple(Reply(delay_ms=d, speech_ms=300) for d in delays))
    async with (
        scripted_agent(script) as port,
        PageServer(port) as server,
        chromium(microphone=microphone.write(folder / "tones.wav")) as browser,
    ):
        tab = await opened(browser, server.url)
        await tab.start()
        measured = await tab.finished(turns, timeout_s=microphone.ms / 1000 + 20)
    sound = [t for t in measured if t["leftOut"] is None and t["gapMs"] is not None]
    errors = [t["gapMs"] - delays[t["number"] - 1] for t in sound]
    told("error against injected delay, absolute", [abs(e) for e in errors])
    print(f"{'  the median reading is off by':<42} {np.median(errors):+.1f} ms")
    print(f"{'  left out: device stalls':<42} {len(measured) - len(sound)} of {len(measured)}")


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--screenshots", type=Path, metavar="DIR")
    options.add_argument("--turns", type=int, default=40)
    given = options.parse_args()
    sizes = {file.suffix: 0 for file in PAGE.iterdir()}
    for file in PAGE.iterdir():
        sizes[file.suffix] += file.stat().st_size
    print("bytes", ", ".join(f"{kind} {size}" for kind, size in sorted(sizes.items())))
    with tempfile.TemporaryDirectory() as folder:
        await converse(Path(folder), given.screenshots)
        await measure(Path(folder), given.turns)


if __name__ == "__main__":
    asyncio.run(main())
